# SPDX-License-Identifier: Apache-2.0
"""Which dtypes are moved and reduced, by which reductions, and up to which numbers results are exact."""

from __future__ import annotations

REDUCED = ("float32", "float64", "bfloat16", "float16", "int64", "int32", "int8", "uint8", "bool", "complex64")
MOVED = (*REDUCED, "int16", "uint16", "float8_e4m3fn", "float8_e5m2", "complex128")
REDUCTIONS = ("SUM", "SUM", "SUM", "AVG", "PREMUL_SUM", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")

ITEM_SIZES = {
    "float32": 4, "float64": 8, "bfloat16": 2, "float16": 2, "int64": 8, "int32": 4, "int8": 1, "uint8": 1, "bool": 1,
    "complex64": 8, "int16": 2, "uint16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1, "complex128": 16,
}  # fmt: skip

#: Whole numbers up to these are exact, and so are their sums and products below, in any order.
LIMITS = {"float16": 2048, "bfloat16": 256, "int8": 127, "uint8": 255, "float8_e4m3fn": 16, "float8_e5m2": 8}
_ELSE = 1 << 24

#: New numbers lie from LEAST to MOST; those of dtypes without a sign from 0.
LEAST, MOST = -2, 3


def limit(dtype: str) -> int:
    """The greatest magnitude that programs let numbers of a dtype reach."""
    return LIMITS.get(dtype, _ELSE)


def is_whole(dtype: str) -> bool:
    """Whether it is a dtype of integers, bool among them."""
    return dtype == "bool" or "int" in dtype


def is_complex(dtype: str) -> bool:
    """Whether its numbers are complex."""
    return dtype.startswith("complex")


def reduces(reduction: str, dtype: str) -> bool:
    """Whether the reduction is there for the dtype, as docs/distributed.md says."""
    if dtype not in REDUCED:
        return False
    if is_complex(dtype):
        return reduction in ("SUM", "AVG", "PREMUL_SUM")
    if reduction == "PREMUL_SUM":
        return not is_whole(dtype)
    if dtype == "bool":
        return reduction != "AVG"
    return is_whole(dtype) or not reduction.startswith("B")


def is_exact(reduction: str, dtype: str) -> bool:
    """Whether results are whole numbers again."""
    return is_whole(dtype) or reduction not in ("AVG", "PREMUL_SUM")


def growth(reduction: str, bound: int, ranks: int) -> int:
    """How great the numbers of a result may be, of numbers up to ``bound`` on each rank."""
    if reduction == "PRODUCT":
        return int(max(bound, 1) ** ranks)
    if reduction in ("SUM", "AVG", "PREMUL_SUM"):
        return bound * ranks
    return 2 * bound + 1 if reduction.startswith("B") else bound
