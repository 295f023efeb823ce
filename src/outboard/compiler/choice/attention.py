# SPDX-License-Identifier: Apache-2.0
"""Whether ``scaled_dot_product_attention`` is one operator for the sake of the driver's library, on devices whose own
kernel for it is no faster than products and a softmax apart (``csrc/torch/operators/attention.cpp`` asks)."""

from __future__ import annotations

import contextlib
import contextvars
import functools
from collections.abc import Iterator

import torch

from ..plans.dtypes import dtype_number
from ..target import Target, target_of
from . import functions, libraries
from .calls import library_choice, may_use_library

#: The operator that such a call becomes, and that the library is asked for.
OPERATOR = "aten::_scaled_dot_product_flash_attention_for_cpu"

#: Sets of sizes that go to the library, in the life of a process. It may compile a kernel for each, for about a second
#: (cuDNN), and what comes in so many sizes will go on so.
MOST_SIZES = 64

#: Sizes and strides.
_Layout = tuple[tuple[int, ...], tuple[int, ...]]
#: What went to the library.
_taken: set[tuple[object, ...]] = set()


_left_out: contextvars.ContextVar[bool] = contextvars.ContextVar("outboard_attention_without_library", default=False)


@contextlib.contextmanager
def without_library() -> Iterator[None]:
    """Inside, no attention goes to the library: what is traced runs where there may be none."""
    token = _left_out.set(True)
    try:
        yield
    finally:
        _left_out.reset(token)


def goes_to_library(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, causal: bool, scale: float | None
) -> bool:
    """Whether the library has a function for a call without mask, dropout and gradient, and was measured to be faster
    than our kernel; not for few queries or ever other sizes. The tensors are of a device of ours, or fake ones with
    sizes that may be symbols; of a symbol without a value to go by nothing is known, and the answer is False."""
    target = target_of(query.device.index or 0)
    if _left_out.get() or not may_use_library(target, OPERATOR):
        return False
    layouts = [_layout(tensor) for tensor in (query, key, value)]
    if any(layout is None for layout in layouts):
        return False
    return _decide(target, query.dtype, tuple(layout for layout in layouts if layout), causal, scale, library_choice())


def is_in_library(query: torch.Tensor) -> bool:
    """Whether the library has attention at all, of the dtype of ``query`` and usual sizes, and may be asked for it."""
    target = target_of(query.device.index or 0)
    return may_use_library(target, OPERATOR) and _has_usual(target, query.dtype)


@functools.lru_cache(maxsize=64)
def _has_usual(target: Target, dtype: torch.dtype) -> bool:
    layout = ((2, 2, 64, 64), (2 * 64 * 64, 64 * 64, 64, 1))
    return _has(target, dtype, (layout,) * 3, False, None)


def _layout(tensor: torch.Tensor) -> _Layout | None:
    """Sizes and strides as they are, or as the values that traced ones stand for; None if there is none."""
    sizes, strides = ([_hint(each) for each in every] for every in (tensor.size(), tensor.stride()))
    if None in sizes or None in strides:
        return None
    return tuple(each for each in sizes if each is not None), tuple(each for each in strides if each is not None)


def _hint(size: int | torch.SymInt) -> int | None:
    if isinstance(size, int):
        return size
    hint = size.node.hint
    return int(hint) if hint is not None else None


@functools.lru_cache(maxsize=4096)
def _decide(
    target: Target, dtype: torch.dtype, layouts: tuple[_Layout, ...], causal: bool, scale: float | None, choice: str
) -> bool:
    query, key, _ = layouts
    if query[0][2] < libraries.LEAST_QUERIES or len(_taken) >= MOST_SIZES:
        return False
    if not _has(target, dtype, layouts, causal, scale):
        return False
    if choice != "driver" and not libraries.attention_is_faster(target, dtype, query[0], key[0], causal):
        return False
    _taken.add((target, dtype, layouts, causal, scale))
    return True


def _has(target: Target, dtype: torch.dtype, layouts: tuple[_Layout, ...], causal: bool, scale: float | None) -> bool:
    query = layouts[0]
    number = dtype_number(dtype)
    tensors = [(number, *layout, False) for layout in layouts]
    out = torch.empty_like(torch.empty_strided(*query, dtype=dtype, device="meta")).stride()
    batches, heads, queries, _ = query[0]
    logarithms = ((batches, heads, queries), (queries * heads, 1, heads))
    results = [(number, query[0], out, True), (dtype_number(torch.float32), *logarithms, True)]
    return functions.has(target, OPERATOR, (*tensors, 0.0, causal, None, scale, *results))
