# SPDX-License-Identifier: Apache-2.0
"""What reductions keep beside a total: NaN that were seen, digits that were lost."""

from __future__ import annotations

import torch

from .prelude import Prelude, choose, helper
from .types import bits_dtype, type_name


@helper("nan_bits")
def _helper_nan_bits(prelude: Prelude, full: str, dtype: torch.dtype, width: int) -> str:
    # The bits of NaN, without the sign, are greater than those of all other numbers.
    t, kind = type_name(dtype, width), bits_dtype(dtype)
    bits = type_name(kind, width)
    larger = choose(kind, width, "b > a", "b", "a")
    return f"{bits} {full}({bits} a, {t} value) {{ const {bits} b = as_{bits}(fabs(value)); return {larger}; }}"


@helper("with_nan")
def _helper_with_nan(prelude: Prelude, full: str, dtype: torch.dtype, width: int) -> str:
    one, kind = type_name(dtype), bits_dtype(dtype)
    bits = type_name(kind, width)
    some = prelude.use("any", torch.int64 if dtype.itemsize == 8 else torch.int32, width)
    seen = f"{some}(bits > ({bits})(as_{type_name(kind)}(({one})INFINITY)))"
    return f"{one} {full}({one} a, {bits} bits) {{ return {seen} ? ({one})NAN : a; }}"


@helper("add_to")
def _helper_add_to(prelude: Prelude, full: str, dtype: torch.dtype, width: int) -> str:
    """Adds a partial sum to a total, and what that rounds off to ``lost`` (D. Knuth's exact sum of two)."""
    t = type_name(dtype, width)
    return (
        f"void {full}({t}* total, {t}* lost, {t} a) {{ const {t} sum = *total + a, part = sum - *total; "
        f"*lost += (*total - (sum - part)) + (a - part); *total = sum; }}"
    )


@helper("with_lost")
def _helper_with_lost(prelude: Prelude, full: str, dtype: torch.dtype, width: int) -> str:
    """A total with what its additions have rounded off, which is NaN where the total is infinite or NaN."""
    t = type_name(dtype, width)
    chosen = choose(dtype, width, "lost == lost", "total + lost", "total")
    return f"{t} {full}({t} total, {t} lost) {{ return {chosen}; }}"
