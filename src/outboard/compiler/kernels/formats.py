# SPDX-License-Identifier: Apache-2.0
"""How the operands of products lie in memory, and how they are multiplied: macros for the texts of CPU kernels.

An *item* is an element as it lies in memory: a number of the accumulators' type, or the bits of a half. A *cell* is
what the micro-kernel multiplies: usually one number of the accumulators' type. Where the processor has instructions for
products of bfloat16 (AVX512_BF16), a cell is a pair of them, for two values of k that follow each other; it takes their
two products into a sum of float at once. Then nothing is converted.

* ``ITEM``, ``ITEMS``: an item, and ``LANES`` of them; ``ITEMS_AT(p)``, ``COPY_ITEMS(p, items)``: in memory;
* ``ACC_OF(item)``, ``ACCS_AT(p)``, ``STORE_ITEMS(p, numbers)``: conversion;
* ``CELL``, ``CELLS``, ``K_CELL``: a cell, ``LANES`` of them, and how many values of k it has;
* ``CELL_OF(low, high)``, ``CELLS_OF(low, high)``: from the items of one value of k, and of the next one;
* ``CELLS_ALONG(low, high)``: from items of neighbours in k, twice as many where a cell takes two;
* ``FACTORS_AT(p)``: the same, from memory;
* ``MULTIPLY_ADD(a, b, c)``: c plus the products of two vectors of cells;
* ``IF_WITHIN(k, depth, item)``, ``ALL_IF_WITHIN(k, depth, items)``: the items of k + 1, or zeros if that is not below
  ``depth``;
* ``K_PACKED``: values of k that lie together in a packed matrix (``packing``); of pairs, ``SPLIT_LOW(pair)`` and
  ``SPLIT_HIGH(pair)`` are the numbers.

``HALVES`` is 1 for halves, ``PAIRS`` is 1 if cells are pairs.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ..dialects import c
from . import common

_HALVES = frozenset({torch.bfloat16, torch.float16})

_PLAIN = r"""
#define HALVES 0
#define PAIRS 0
#define ITEM ACC
#define ITEMS VECTOR
#define ITEMS_AT(p) VLOAD(p)
#define COPY_ITEMS(p, items) VSTORE(p, items)
#define ACC_OF(item) (item)
#define ACCS_AT(p) VLOAD(p)
#define STORE_ITEMS(p, numbers) VSTORE(p, numbers)
#define CELL ACC
#define CELLS VECTOR
#define K_CELL 1
#define K_PACKED 1
#define CELL_OF(low, high) (low)
#define CELLS_OF(low, high) (low)
#define CELLS_ALONG(low, high) (low)
#define FACTORS_AT(p) VLOAD(p)
"""

_WITHIN = r"""
#define IF_WITHIN(k, depth, item) ((k) + 1 < (depth) ? (item) : (ITEM)0)
#define ALL_IF_WITHIN(k, depth, items) ((k) + 1 < (depth) ? (items) : (ITEMS)(0))
"""
_FUSED = "#define MULTIPLY_ADD(a, b, c) fma(a, b, c)\n"
_WRAPPING = "#define MULTIPLY_ADD(a, b, c) ((a) * (b) + (c))\n"

_ITEMS = r"""
#define HALVES 1
#define ITEM ushort
#define ITEMS {items}
typedef ITEMS loose_items_t OB_ALIGNED(2);
#define ITEMS_AT(p) (*(OB_GLOBAL const loose_items_t*)(p))
#define COPY_ITEMS(p, items) (*(OB_GLOBAL loose_items_t*)(p) = (items))
#define ACCS_OF(items) {vector}
#define ACC_OF(item) {scalar}
#define ACCS_AT(p) ACCS_OF(ITEMS_AT(p))
#define STORE_ITEMS(p, numbers) COPY_ITEMS(p, {stored})
#define K_PACKED 2
#define SPLIT_LOW(pair) ACCS_OF(convert_{items}(pair))
#define SPLIT_HIGH(pair) ACCS_OF(convert_{items}((pair) >> 16))
typedef uint{lanes} loose_pairs_t OB_ALIGNED(2);
#define PAIRS_AT(p) (*(OB_GLOBAL const loose_pairs_t*)(p))
"""

_NO_PAIRS = r"""
#define PAIRS 0
#define CELL ACC
#define CELLS VECTOR
#define K_CELL 1
#define CELL_OF(low, high) ACC_OF(low)
#define CELLS_OF(low, high) ACCS_OF(low)
#define CELLS_ALONG(low, high) ACCS_OF(low)
#define FACTORS_AT(p) ACCS_AT(p)
"""

# The device's compiler need not know the instruction: its assembler does. Subnormal numbers count as zero, in operands
# and sums.
_WITH_PAIRS = r"""
#if defined(OB_AVX512_BF16) && defined(__AVX512F__) && LANES == 16
#define PAIRS 1
#define CELL uint
#define CELLS uint16
#define K_CELL 2
#define CELL_OF(low, high) ((uint)(low) | (uint)(high) << 16)
#define CELLS_OF(low, high) (convert_uint16(low) | convert_uint16(high) << 16)
#define CELLS_ALONG(low, high) ((uint16)(as_uint8(low), as_uint8(high)))
#define FACTORS_AT(p) PAIRS_AT(p)
float16 add_products(uint16 a, uint16 b, float16 c) {
  __asm__("vdpbf16ps %2, %1, %0" : "+v"(c) : "v"(a), "v"(b));
  return c;
}
#define MULTIPLY_ADD(a, b, c) add_products(a, b, c)
#else
"""


def is_half(dtype: torch.dtype, accumulate: str) -> bool:
    """Whether products of ``dtype`` multiply halves into sums of float."""
    return dtype in _HALVES and accumulate == "float"


def in_vectors(dtype: torch.dtype, accumulate: str) -> bool:
    """Whether products summed in ``accumulate`` load elements of ``dtype`` in vectors as they lie."""
    return is_half(dtype, accumulate) or common.stored_as(dtype, accumulate)


def item_dtype(dtype: torch.dtype, accumulate: str) -> torch.dtype | None:
    """The half that items of a product are; None if they are numbers of the accumulators' type."""
    return dtype if is_half(dtype, accumulate) else None


def item_size(dtype: torch.dtype | None, accumulate: str) -> int:
    """Bytes of an item."""
    return dtype.itemsize if dtype is not None else common.compute_size(accumulate)


def packed_together(dtype: torch.dtype | None) -> int:
    """Values of k that lie together in a packed matrix of such items."""
    return 1 if dtype is None else 2


def text(dtype: torch.dtype | None, accumulate: str, lanes: int, helpers: Mapping[str, str]) -> str:
    """The macros for items of a half ``dtype``, or of the accumulators' type if it is None; and the text of ``helpers``
    (``Prelude.snippets``), which the rest of the program needs and the macros may."""
    prelude = c.Prelude()
    prelude.snippets.update(helpers)
    macros = _macros(prelude, dtype, accumulate, lanes)
    return "".join(f"{snippet}\n" for snippet in prelude.snippets.values()) + macros


def _macros(prelude: c.Prelude, dtype: torch.dtype | None, accumulate: str, lanes: int) -> str:
    if dtype is None:
        return _PLAIN + _WITHIN + (_WRAPPING if accumulate == "long" else _FUSED)
    macros = _ITEMS.format(
        items=f"ushort{lanes}",
        lanes=lanes,
        vector=c.narrow_values(prelude, "items", dtype, lanes),
        scalar=c.narrow_values(prelude, "item", dtype, 1),
        stored=c.narrow_bits(prelude, "numbers", dtype, lanes),
    )
    cells = _NO_PAIRS + _FUSED
    if dtype == torch.bfloat16:
        cells = _WITH_PAIRS + cells + "#endif\n"
    return macros + cells + _WITHIN
