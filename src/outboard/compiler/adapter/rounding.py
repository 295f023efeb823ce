# SPDX-License-Identifier: Apache-2.0
"""Operators whose rounding PyTorch defines otherwise than Inductor: for single operators and whole graphs alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sympy
import torch
from torch._inductor import ir, lowering
from torch._inductor.virtualized import ops

aten = torch.ops.aten

HALVES = (torch.float16, torch.bfloat16)


# ---- decompositions ----


def _ldexp(x: Any, exponent: Any) -> Any:
    """``ldexp`` as PyTorch computes it: by a power, in the type that its product has."""
    return x * torch.pow(2.0, exponent)


def _next_after(x: torch.Tensor, other: torch.Tensor) -> Any:
    """The next half towards another, by the bits of the float that is the same number."""
    if x.dtype not in HALVES or other.dtype != x.dtype:
        return NotImplemented
    start, goal = torch.broadcast_tensors(x.float(), other.float())
    tiny = torch.finfo(x.dtype).smallest_normal * torch.finfo(x.dtype).eps
    away = (goal > start) == (start > 0)  # from zero
    single = 1 << (24 - (11 if x.dtype == torch.float16 else 8))
    bits = start.view(torch.int32) + torch.where(away, single, -single)
    found = bits.view(torch.float32)
    if x.dtype == torch.float16:
        # The lowest exponent has one spacing down to zero, and infinity comes after the largest half.
        least = torch.finfo(x.dtype).smallest_normal
        low = (start.abs() < least) | ((start.abs() == least) & ~away)
        found = torch.where(low, start + torch.where(goal > start, tiny, -tiny), found)
        found = torch.where(start.isinf(), torch.copysign(torch.full_like(start, 65504.0), start), found)
    found = torch.where(start == 0, torch.copysign(torch.full_like(start, tiny), goal), found)
    found = torch.where(start == goal, goal, found)
    return torch.where(start.isnan() | goal.isnan(), start + goal, found).to(x.dtype)


def _soft_shrink(x: torch.Tensor, lambd: Any = 0.5) -> torch.Tensor:
    """``softshrink`` whose zeros are positive."""
    moved = torch.where(x > 0, x - lambd, x + lambd)
    return torch.where((x >= -lambd) & (x <= lambd), torch.zeros_like(x), moved)


def _of_a_half(operator: Callable[..., Any]) -> Callable[..., Any]:
    """A remainder of halves by a number: the number is rounded first, as the CPU does."""

    def decompose(x: torch.Tensor, divisor: Any) -> Any:
        if x.dtype not in HALVES:
            return NotImplemented
        return operator(x, torch.scalar_tensor(divisor, dtype=x.dtype, device=x.device))

    return decompose


def _greatest(x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """``fmax``; of two that are equal, the first."""
    return torch.where(torch.isnan(other) | (other <= x), x, other)


def _least(x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """``fmin``; of two that are equal, the first."""
    return torch.where(torch.isnan(other) | (other >= x), x, other)


#: Decompositions that replace, on our device, those of PyTorch and Inductor.
DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    aten.ldexp.Tensor: _ldexp,
    aten.nextafter.default: _next_after,
    aten.softshrink.default: _soft_shrink,
    aten.remainder.Scalar: _of_a_half(torch.remainder),
    aten.fmod.Scalar: _of_a_half(torch.fmod),
    aten.fmax.default: _greatest,
    aten.fmin.default: _least,
}


# ---- lowerings ----


def _is_on(name: str, *values: Any) -> bool:
    devices = [value.get_device() for value in values if isinstance(value, ir.TensorBox)]
    return any(device is not None and device.type == name for device in devices)


def _is_float(*values: Any) -> bool:
    return any(isinstance(value, ir.TensorBox) and value.get_dtype().is_floating_point for value in values)


def _narrowed(value: Any, dtype: torch.dtype) -> Any:
    return lowering.make_pointwise(lambda x: ops.to_dtype(x, dtype, use_compute_types=False))(value)


def register(name: str) -> None:
    """Replaces Inductor's lowerings for tensors on the device of that name."""
    _register_division(name)
    _register_product(name)


def _register_division(name: str) -> None:
    """Division rounded down as PyTorch does it; rounded towards zero, tensors of halves round the quotient first."""
    module: Any = lowering
    for overload in (aten.div.Tensor_mode, aten.div.Scalar_mode):
        original = module.lowerings[overload]

        def divide(
            a: Any, b: Any, rounding_mode: str | None = None, original: Any = original, overload: Any = overload
        ) -> Any:
            if rounding_mode is None or not _is_on(name, a, b) or not _is_float(a, b):
                return original(a, b, rounding_mode=rounding_mode)
            if rounding_mode == "floor":
                return module.floordiv(a, b)
            quotient = module.div(a, b)
            dtype = quotient.get_dtype()
            if dtype in HALVES and overload is aten.div.Tensor_mode:
                quotient = _narrowed(quotient, dtype)
            return module.trunc(quotient)

        module.register_lowering([overload], broadcast=True)(divide)


def _register_product(name: str) -> None:
    """The product of ``addcmul`` is added before it is rounded, as on the CPU."""
    module: Any = lowering
    original = module.lowerings[aten.addcmul.default]

    def add_product(x: Any, a: Any, b: Any, *, value: Any = 1) -> Any:
        if not _is_on(name, x, a, b) or not _is_float(x):
            return original(x, a, b, value=value)
        dtype = x.get_dtype()

        def factor() -> Any:
            return ops.index_expr(value, dtype) if isinstance(value, sympy.Basic) else ops.constant(value, dtype)

        plain = not isinstance(value, sympy.Basic) and value == 1
        return lowering.make_pointwise(
            lambda x, a, b: ops.fma(a if plain else ops.mul(factor(), a), b, x), override_return_dtype=dtype
        )(x, a, b)

    module.register_lowering([aten.addcmul.default], broadcast=True)(add_product)
