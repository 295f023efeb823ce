# SPDX-License-Identifier: Apache-2.0
"""The numbers in tensors, which follow from a program's seed, and whether two tensors hold the same."""

from __future__ import annotations

import torch
from torch import Tensor

from tools.fuzz_collectives import dtypes

#: How many units in the last place a result may be off that was rounded: once for each of up to four terms, and once
#: more where the mean is taken.
_ROUNDINGS = 5
#: The share of numbers that are none, where there are any.
_NONE = 0.03


def new(count: int, dtype: str, *seed: int, nones: bool = False) -> Tensor:
    """Small whole numbers, on the CPU, as many as asked for. ``nones``: some are none (NaN), where the dtype is
    one of real floating-point numbers."""
    mixed = 0
    for part in seed:
        mixed = (mixed * 1_000_003 + part + 1) % (1 << 62)
    generator = torch.Generator().manual_seed(mixed)
    kind = getattr(torch, dtype)
    least = 0 if dtype in ("uint8", "uint16", "bool") else dtypes.LEAST
    most = 1 if dtype == "bool" else dtypes.MOST
    whole = torch.randint(least, most + 1, (count,), generator=generator, dtype=torch.int64)
    if not dtypes.is_complex(dtype) and dtypes.is_whole(dtype):
        return whole.to(kind)
    if not dtypes.is_complex(dtype):
        real = whole.float()
        if nones:
            real[torch.rand(count, generator=generator) < _NONE] = torch.nan
        return real.to(kind)
    imaginary = torch.randint(least, most + 1, (count,), generator=generator, dtype=torch.int64)
    return torch.complex(whole.double(), imaginary.double()).to(kind)


def difference(actual: Tensor, expected: Tensor, close: bool = False) -> str:
    """In which elements a tensor, moved to the CPU, is not as expected; or ''."""
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        return f"{actual.dtype} {tuple(actual.shape)} instead of {expected.dtype} {tuple(expected.shape)}"
    if not close and torch.equal(_bits(actual), _bits(expected)):
        return ""
    wrong = _unequal(actual.reshape(-1), expected.reshape(-1), close).nonzero().reshape(-1)
    if not len(wrong):
        return ""
    some = wrong[:6]
    shown = actual.reshape(-1)[some].tolist(), expected.reshape(-1)[some].tolist()
    return f"{len(wrong)} of {actual.numel()} differ, at {some.tolist()}: {shown[0]} instead of {shown[1]}"


def _bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(-1).view(torch.uint8)


def _unequal(actual: Tensor, expected: Tensor, close: bool) -> Tensor:
    if expected.is_complex():
        return _unequal(torch.view_as_real(actual), torch.view_as_real(expected), close).any(-1)
    if actual.dtype.itemsize == 1 and actual.is_floating_point():
        actual, expected = actual.float(), expected.float()
    if not close or not expected.is_floating_point():
        return (actual != expected) & ~(actual.isnan() & expected.isnan())
    room = torch.finfo(expected.dtype).eps * _ROUNDINGS * dtypes.MOST
    return ~torch.isclose(actual.double(), expected.double(), rtol=room, atol=room, equal_nan=True)
