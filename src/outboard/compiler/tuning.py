# SPDX-License-Identifier: Apache-2.0
"""How a device likes its code: what is decided by more than correctness, decided once, from what its driver reports."""

from __future__ import annotations

import dataclasses

#: What is taken for a processor's caches where its driver does not tell.
_NEAR_CACHE, _LAST_CACHE = 32 << 10, 32 << 20
#: Bytes of half a row in a block of a product's second matrix, or of a row of two registers of 32 bytes and the room of
#: what it is multiplied by. Of so many rows, panels of two registers fill the first cache, and those of four come from
#: the second, where narrower blocks would be walked too often.
_BLOCK_ROW = 128
#: Lanes of the widest vector types of OpenCL C.
_MOST_LANES = 16


@dataclasses.dataclass(frozen=True)
class Tuning:
    """One device's code. Bytes, elements and work-items are counted as such."""

    #: Explicit vectors and long chunks, one work-item per work-group; else many short work-items (SIMT).
    vectors: bool
    #: Floats in an explicit vector.
    lanes: int
    #: Bytes of a vector register, and how many there are.
    register: int
    registers: int
    #: Long sums of floats are of doubles, as on PyTorch's CPU: where that is no slow one.
    sums_in_doubles: bool
    #: Depth of a block of a product's second matrix.
    k_block: int
    #: Results of as many bytes are written past the caches, which would not hold them until the next kernel and which
    #: would have to read each line before it is overwritten.
    far: int
    #: Bytes by which a kernel that reads row after row, twice each, runs ahead of itself: while it computes, no
    #: processor goes on reading. A few rows of usual lengths, and a fraction of the first cache.
    ahead: int
    #: Elements one after another that a work-item takes at a time where work has to be cut.
    share: int
    #: Work-items that keep a compute unit busy.
    busy: int
    #: Work-items per work-group of element-wise kernels.
    group: int

    @staticmethod
    def of(*, execution: str, vector_width: int, near_cache: int, last_cache: int, has_fp64: bool) -> Tuning:
        """The tuning for a device, from properties of these names in driver.h (caches in bytes)."""
        vectors = execution == "vector" if execution else vector_width > 1
        register, registers = (64, 32) if vector_width >= 16 else (32, 16)
        near = _power_of_two(near_cache or _NEAR_CACHE)
        return Tuning(
            vectors=vectors,
            lanes=_lanes(vector_width),
            register=register,
            registers=registers,
            sums_in_doubles=vectors and has_fp64,
            k_block=max(64, min(near // _BLOCK_ROW, 512)),
            far=last_cache or _LAST_CACHE,
            ahead=near // 4,
            share=1 << 14 if vectors else 8,
            busy=8 if vectors else 1 << 9,
            group=1 if vectors else 128,
        )

    def beside(self, vectors: int) -> int:
        """Elements beside each other that a work-item computes: so many vectors, or one."""
        return vectors * self.lanes if self.vectors else 1


def _lanes(width: int) -> int:
    """Two of the device's vectors, so that one does not wait for the other, from 4 lanes to the most."""
    return next((lanes for lanes in (4, 8) if 2 * width <= lanes), _MOST_LANES)


def _power_of_two(number: int) -> int:
    """The largest one up to ``number``, which is at least 1."""
    return 1 << (number.bit_length() - 1)
