# SPDX-License-Identifier: Apache-2.0
"""Partial results of reductions."""

from __future__ import annotations

import math

import torch

from ..base import Unsupported
from .arithmetic import arithmetic, least_or_greatest
from .prelude import Prelude
from .types import LIMITS, literal, type_name


def identity_of(kind: str, dtype: torch.dtype) -> str:
    """The neutral element of a reduction, one lane."""
    if kind in ("sum", "any", "xor_sum"):
        return literal(0, dtype)
    if kind == "prod":
        return literal(1, dtype)
    low = kind in ("max", "argmax")
    if dtype.is_floating_point:
        return literal(-math.inf if low else math.inf, dtype)
    return f"(({type_name(dtype)})({LIMITS[dtype][0 if low else 1]}))"


def combine(prelude: Prelude, kind: str, a: str, b: str, dtype: torch.dtype, width: int) -> str:
    """Two partial results of a reduction as one; of bool, a sum is whether any is true, a product whether all are.
    Raises Unsupported."""
    if dtype == torch.bool and kind in ("sum", "prod"):
        return f"({a} {'|' if kind == 'sum' else '&'} {b})"
    if kind == "sum":
        return arithmetic("+", [a, b], dtype, width)
    if kind == "prod":
        return arithmetic("*", [a, b], dtype, width)
    if kind == "any":
        return f"({a} | {b})"
    if kind == "xor_sum":
        return f"({a} ^ {b})"
    if kind in ("min", "max"):
        return least_or_greatest(prelude, "minimum" if kind == "min" else "maximum", [a, b], dtype, width)
    raise Unsupported(f"reduction {kind}")


def quick_combine(prelude: Prelude, kind: str, a: str, b: str, dtype: torch.dtype, width: int) -> str:
    """``combine`` for "min" and "max" of floats where NaN is counted apart, by ``nan_bits``: one instruction of most
    processors, where ``combine`` is several that wait for each other."""
    return f"{prelude.use(f'quick_{kind}', dtype, width)}({a}, {b})"


def nan_bits(prelude: Prelude, bits: str, value: str, dtype: torch.dtype, width: int) -> str:
    """What ``bits`` (an unsigned integer as wide as ``dtype``, zero at first) becomes when ``value`` has been seen."""
    return f"{prelude.use('nan_bits', dtype, width)}({bits}, {value})"


def with_nan(prelude: Prelude, value: str, bits: str, dtype: torch.dtype, width: int) -> str:
    """``value``, of one lane, or NaN if any of the ``width`` lanes of ``nan_bits`` has seen one."""
    return f"{prelude.use('with_nan', dtype, width)}({value}, {bits})"


def better(kind: str, value: str, best: str, index: str, best_index: str, dtype: torch.dtype) -> str:
    """Whether a value (one lane) replaces the best so far in argmax/argmin: NaN wins, ties go to the lower index."""
    compare = ">" if kind == "argmax" else "<"
    tie = f"({value} == {best} && {index} < {best_index})"
    if not dtype.is_floating_point:
        return f"({value} {compare} {best} || {tie})"
    nan_tie = f"({value} != {value} && ({best} == {best} || {index} < {best_index}))"
    return f"(({best} == {best} && {value} {compare} {best}) || {tie} || {nan_tie})"
