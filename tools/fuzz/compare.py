# SPDX-License-Identifier: Apache-2.0
"""Whether the device's value is the CPU's: structure, dtype, shape, strides, and numbers within rounding.

Numbers that differ by more than a few units in the last place are judged by a run of the same line in float64: the
device may be as far from it as twice the CPU is, because where terms cancel neither order of summation is better.
"""

from __future__ import annotations

import cmath
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten

from tools.fuzz import allowed
from tools.fuzz.program import FLOATS, tensors

#: Units in the last place by which a result may differ before float64 is asked.
CLOSE = {torch.float16: 2, torch.bfloat16: 2, torch.float32: 16, torch.float64: 64}
#: Units in the last place, of the exact value, that the device may be off whatever the CPU's own error is.
OWN_ERROR = 4


def difference(ours: Any, theirs: Any, device: str) -> str:
    """What of ``ours`` (the device's value) is not as ``theirs`` (the CPU's), numbers and strides aside; or ''."""
    mine, my_form = tree_flatten(ours)
    others, other_form = tree_flatten(theirs)
    if str(my_form) != str(other_form):
        return f"structure {my_form} instead of {other_form}"
    for one, other in zip(mine, others, strict=True):
        text = _leaf_difference(one, other, device)
        if text:
            return text
    return ""


def _leaf_difference(one: Any, other: Any, device: str) -> str:
    if not isinstance(other, Tensor):
        if type(one) is not type(other):
            return f"{type(one).__name__} instead of {type(other).__name__}"
        return "" if isinstance(other, (float, complex)) or one == other else f"{one} instead of {other}"
    if not isinstance(one, Tensor):
        return f"{type(one).__name__} instead of a tensor"
    if one.device.type not in (device, "cpu"):
        return f"on {one.device}"
    if one.dtype != other.dtype:
        return f"dtype {one.dtype} instead of {other.dtype}"
    if one.shape != other.shape:
        return f"shape {tuple(one.shape)} instead of {tuple(other.shape)}"
    if one.requires_grad != other.requires_grad:
        return f"requires a gradient: {one.requires_grad}"
    if one.is_inference() != other.is_inference():
        return f"is of inference mode: {one.is_inference()}"
    return ""


def stride_difference(line: str, ours: Any, theirs: Any) -> str:
    """In which tensor of the results the strides are not the CPU's, or ''. The forms must be the same."""
    for one, other in zip(tensors(ours), tensors(theirs), strict=True):
        if _strides(one) != _strides(other) and not allowed.strides(line, one, other):
            return f"strides {one.stride()} instead of {other.stride()} of {tuple(one.shape)}"
    return ""


def _strides(value: Tensor) -> list[int]:
    """Strides that have a meaning: steps along dimensions with more than one index."""
    if value.numel() == 0:
        return []
    return [step for step, size in zip(value.stride(), value.shape, strict=True) if size > 1]


def is_close(ours: Tensor, theirs: Tensor) -> bool:
    """Equal integers; floats within a few units in the last place, NaN and infinities in the same places."""
    if not theirs.is_floating_point() and not theirs.is_complex():
        return torch.equal(ours, theirs)
    limits, wide = torch.finfo(theirs.dtype), torch.complex128 if theirs.is_complex() else torch.float64
    scale = CLOSE[theirs.real.dtype] * limits.eps
    return torch.allclose(ours.to(wide), theirs.to(wide), rtol=scale, atol=limits.tiny * scale, equal_nan=True)


def within_rounding(
    ours: Tensor, theirs: Tensor, exact: Tensor | None, shaken: Tensor | None = None, terms: int = 1
) -> bool:
    """Whether the device is about as near to ``exact`` (float64) as the CPU is, in the largest error of the tensor; or
    no further from the CPU than ``shaken``, the CPU's result for operands that differ in their last bit. ``terms``: how
    many numbers may have been added for one."""
    if theirs.is_complex():
        parts = (x if x is None else torch.view_as_real(x.resolve_conj()) for x in (ours, theirs, exact, shaken))
        return within_rounding(*parts, terms=2 * terms)  # type: ignore[arg-type]
    if shaken is not None and _within(ours, theirs, shaken):
        return True
    if theirs.dtype not in FLOATS:
        return False
    if theirs.dtype == torch.float64 or exact is None:
        return _near_in_norm(ours, theirs, terms)
    if exact.shape != theirs.shape or not exact.is_floating_point():
        return False
    limits = torch.finfo(theirs.dtype)
    rounded = exact.to(theirs.dtype)
    finite = rounded.isfinite() & theirs.isfinite() & ours.isfinite()
    if not _special_values_agree(ours, theirs, exact, finite):
        return False
    truth = exact[finite]
    my_error = (ours[finite].double() - truth).abs()
    error = (theirs[finite].double() - truth).abs()
    allowance = truth.abs() * limits.eps * OWN_ERROR + limits.tiny * limits.eps * OWN_ERROR
    return bool((my_error <= allowance + 2 * error.max()).all()) if truth.numel() else True


def _within(ours: Tensor, theirs: Tensor, shaken: Tensor) -> bool:
    finite = theirs.isfinite() & shaken.isfinite() & ours.isfinite()
    if not finite.any() or not is_close(ours[~finite], theirs[~finite]):
        return False
    far = (shaken - theirs)[finite].abs().max()
    return bool(((ours - theirs)[finite].abs() <= 4 * far).all())


def _special_values_agree(ours: Tensor, theirs: Tensor, exact: Tensor, finite: Tensor) -> bool:
    """Outside of ``finite`` the device must show what the CPU does, or what the exact value rounds to. Where the CPU
    overflows on its way to a finite result it is no oracle."""
    rest = ~finite
    mine, cpu, truth = ours[rest].double(), theirs[rest].double(), exact[rest].to(theirs.dtype).double()
    same = (mine == cpu) | (mine.isnan() & cpu.isnan())
    right = (mine == truth) | (mine.isnan() & truth.isnan())
    lost = ~cpu.isfinite() & truth.isfinite()
    return bool((same | right | lost).all())


def _near_in_norm(ours: Tensor, theirs: Tensor, terms: int) -> bool:
    """For what has no wider type: the difference against the largest value, as the error of a sum is bounded."""
    finite = theirs.isfinite()
    if not torch.equal(finite, ours.isfinite()) or not is_close(ours[~finite], theirs[~finite]):
        return False
    if not finite.any():
        return True
    largest = theirs[finite].abs().max().item()
    terms = max(theirs.numel(), 64, terms)
    return bool(((ours - theirs)[finite].abs() <= largest * terms * torch.finfo(theirs.dtype).eps).all())


def scalar_difference(ours: Any, theirs: Any, operands: list[Tensor]) -> str:
    """Differences of Python numbers in a result, such as those of ``sum().item()``, beyond the rounding of a sum of the
    floating-point ``operands``."""
    eps = torch.finfo(operands[0].dtype if operands else torch.float64).eps
    terms = sum(float(x.abs().double().nan_to_num(0, 0, 0).sum()) for x in operands)
    mine, others = tree_flatten(ours)[0], tree_flatten(theirs)[0]
    for one, other in zip(mine, others, strict=True):
        if not isinstance(other, (float, complex)) or (cmath.isnan(one) and cmath.isnan(other)):
            continue
        if not cmath.isclose(one, other, rel_tol=64 * eps, abs_tol=OWN_ERROR * eps * terms):
            return f"{one} instead of {other}"
    return ""


def exceptions_differ(line: str, ours: Exception | None, theirs: Exception | None) -> str:
    """Why two outcomes are not the same exception, or ''."""
    if ours is None and theirs is None:
        return ""
    if theirs is None and ours is not None:
        if allowed.only_device_raises(line, ours):
            return ""
        return f"raises {type(ours).__name__}: {_first_line(ours)}"
    if ours is None:
        return "" if allowed.only_cpu_raises(line, theirs) else f"does not raise {_text(theirs)}"
    if isinstance(ours, type(theirs)) or allowed.other_exception(line, ours, theirs):
        return ""
    return f"raises {_text(ours)} instead of {_text(theirs)}"


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {_first_line(error)}"


def _first_line(error: Exception | None) -> str:
    return (str(error).splitlines() or [""])[0][:200]
