# SPDX-License-Identifier: Apache-2.0
"""Operators whose rounding PyTorch defines otherwise than Inductor: for single operators and whole graphs alike."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import sympy
import torch
from torch._inductor import ir, lowering
from torch._inductor.fx_passes import joint_graph
from torch._inductor.pattern_matcher import Match
from torch._inductor.virtualized import V, ops
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND

from outboard import patches, torch_release

from ...operators.overloads import overloads_of
from ..optimizers.chains import wide
from ..overrides import HALVES
from ..symbols import expression
from .fills import check_floats

aten = torch.ops.aten
_CONVERSION = torch.ops.prims.convert_element_type


# ---- decompositions ----


def _ldexp(x: Any, exponent: Any) -> Any:
    """``ldexp`` of other than floats by integers as PyTorch computes it: by a power, in the type of the product."""
    integral = isinstance(exponent, torch.Tensor) and not exponent.dtype.is_floating_point
    if isinstance(x, torch.Tensor) and x.dtype.is_floating_point and integral and exponent.dtype != torch.bool:
        return NotImplemented
    return x * torch.pow(2.0, exponent)


def _soft_shrink(x: torch.Tensor, lambd: Any = 0.5) -> torch.Tensor:
    """``softshrink`` whose zeros are positive, as on the CPU, which rounds bounds of halves from PyTorch 2.14 on."""
    check_floats("softshrink", x)
    if x.dtype in HALVES:
        if torch_release.number(torch.__version__) >= (2, 14):
            lambd = torch.scalar_tensor(lambd, dtype=x.dtype, device=x.device).float()
        return _soft_shrink(x.float(), lambd).to(x.dtype)
    moved = torch.where(x > 0, x - lambd, x + lambd)
    return torch.where((x >= -lambd) & (x <= lambd), torch.zeros_like(x), moved)


def _greatest(x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """``fmax``; of two that are equal, the first, whose layout the result has."""
    return torch.where((x >= other) | torch.isnan(other), x, other)


def _least(x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """``fmin``; of two that are equal, the first, whose layout the result has."""
    return torch.where((x <= other) | torch.isnan(other), x, other)


def _round_decimals(x: torch.Tensor, decimals: Any = 0) -> Any:
    """To so many digits by a product and a quotient, as on the CPU: PyTorch's own multiplies with an inverse, which is
    rounded itself."""
    check_floats("round with decimals", x)
    value = wide(x)
    power = 10.0 ** abs(decimals) if abs(decimals) <= math.log10(torch.finfo(value.dtype).max) else math.inf
    result = torch.round(value * power) / power if decimals >= 0 else torch.round(value / power) * power
    return result.to(x.dtype)


#: Decompositions that replace, on our device, those of PyTorch and Inductor.
DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    aten.round.decimals: _round_decimals,
    aten.ldexp.Tensor: _ldexp,
    aten.softshrink.default: _soft_shrink,
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
    narrow = lowering.make_pointwise(
        lambda x: ops.to_dtype(x, dtype, use_compute_types=False), override_return_dtype=dtype
    )
    return narrow(value)


def register(name: str) -> None:
    """Replaces Inductor's lowerings for tensors on the device of that name."""
    _register_multiples(name)
    _register_division(name)
    _register_factors(name)
    _register_zeros(name)
    _register_next(name)
    _register_product(name)
    _register_limits(name)
    _register_powers(name)
    _register_conversions(name)
    _register_elements(name)
    _register_single_elements(name)


def _register_division(name: str) -> None:
    """Division rounded down as PyTorch does it; rounded towards zero, tensors of halves round the quotient first. What
    is divided by a constant is not multiplied with its inverse, which is rounded once more."""
    module: Any = lowering
    for overload in (aten.div.Tensor_mode, aten.div.Scalar_mode):
        module.lowerings[overload] = _division(name, module.lowerings[overload])
    patches.apply(
        "quotients by constants are rounded once", {"torch._inductor.lowering.div_prim": partial(_once, name)}
    )


def _once(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def divide(a: Any, b: Any) -> Any:
        return lowering.make_pointwise(ops.truediv)(a, b) if _is_on(name, a, b) and _is_float(a, b) else original(a, b)

    return divide


def _division(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    module: Any = lowering

    def rounded(a: Any, b: Any, *, up: bool, narrow: bool) -> Any:
        dtype = next(value.get_dtype() for value in (a, b) if isinstance(value, ir.TensorBox))
        narrow = narrow and dtype in HALVES
        if up:
            quotient = module.div(a, b)
            return module.trunc(_narrowed(quotient, dtype) if narrow else quotient)
        return module.make_pointwise(partial(_floor_of_halves, dtype))(a, b) if narrow else module.floordiv(a, b)

    kind = ELEMENTWISE_TYPE_PROMOTION_KIND.DEFAULT
    # In a table of its own: it is called below, with operands promoted and broadcast as those of the operator are.
    promoted = module._register_lowering([aten.div.Tensor_mode], rounded, True, kind, False, {})

    @functools.wraps(original)
    def divide(a: Any, b: Any, rounding_mode: str | None = None) -> Any:
        if rounding_mode is None or not _is_on(name, a, b) or not _gives_float(a, b):
            return original(a, b, rounding_mode=rounding_mode)
        # A divisor that is one number, the CPU does not round.
        narrow = isinstance(b, ir.TensorBox) and bool(b.get_size())
        return promoted(a, b, up=rounding_mode == "trunc", narrow=narrow)

    return divide


def _floor_of_halves(dtype: torch.dtype, a: Any, b: Any) -> Any:
    """A quotient rounded down by PyTorch's steps (c10/util/generic_math.h), each of them rounded to a half dtype."""

    def step(value: Any) -> Any:
        return ops.to_dtype(value, dtype, use_compute_types=False)

    zero, one, half = (ops.constant(value, torch.float32) for value in (0.0, 1.0, 0.5))
    quotient, rest = ops.truediv(a, b), ops.fmod(a, b)
    found = step(ops.truediv(step(ops.sub(a, rest)), b))
    is_above = ops.and_(ops.ne(rest, zero), ops.ne(ops.lt(b, zero), ops.lt(rest, zero)))
    found = ops.where(is_above, step(ops.sub(found, one)), found)
    whole = ops.floor(found)
    nearest = ops.where(ops.gt(step(ops.sub(found, whole)), half), ops.add(whole, one), whole)
    nearest = ops.where(ops.eq(found, zero), ops.copysign(zero, quotient), nearest)
    return ops.where(ops.eq(b, zero), quotient, nearest)


def _gives_float(*values: Any) -> bool:
    """Whether any operand makes the quotient a float: by its dtype, or as a number that is no integer."""
    numbers = [value for value in values if not isinstance(value, ir.TensorBox)]
    return _is_float(*values) or any(
        isinstance(n, float) or (isinstance(n, sympy.Basic) and n.is_integer is not True) for n in numbers
    )


def _register_next(name: str) -> None:
    """The number after a half, which is not the next float."""
    module: Any = lowering
    original = module.lowerings[aten.nextafter.default]

    def follow(x: Any, other: Any) -> Any:
        if not _is_on(name, x, other) or x.get_dtype() not in HALVES:
            return original(x, other)
        return module.make_pointwise(functools.partial(_next_half, x.get_dtype()))(x, other)

    module.register_lowering([aten.nextafter.default], broadcast=True)(follow)


def _next_half(dtype: torch.dtype, x: Any, goal: Any) -> Any:
    """By the bits of the float that is the same number: halves are so many of them apart."""
    info = torch.finfo(dtype)
    least, single = info.smallest_normal, 1 << (13 if dtype == torch.float16 else 16)

    def number(value: float) -> Any:
        return ops.constant(value, torch.float32)

    def either(condition: Any, yes: Any, no: Any) -> Any:
        return ops.where(condition, yes, no)

    zero, tiny, size = number(0.0), number(least * info.eps), ops.abs(x)
    away = ops.eq(ops.gt(goal, x), ops.gt(x, zero))
    step = either(away, ops.constant(single, torch.int32), ops.constant(-single, torch.int32))
    bits = ops.add(ops.to_dtype_bitcast(x, torch.int32, torch.float32), step)
    found = ops.to_dtype_bitcast(bits, torch.float32, torch.int32)
    if dtype == torch.float16:
        # The lowest exponent has one spacing down to zero, and infinity comes after the largest half.
        at_least = ops.and_(ops.eq(size, number(least)), ops.logical_not(away))
        low = ops.or_(ops.lt(size, number(least)), at_least)
        near = ops.add(x, either(ops.gt(goal, x), tiny, ops.neg(tiny)))
        found = either(low, either(ops.eq(near, zero), ops.copysign(zero, x), near), found)
        found = either(ops.isinf(x), ops.copysign(number(info.max), x), found)
    found = either(ops.eq(x, zero), ops.copysign(tiny, goal), found)
    found = either(ops.eq(x, goal), goal, found)
    missing = ops.or_(ops.isnan(x), ops.isnan(goal))
    return either(missing, ops.add(x, goal), found)


def _register_factors(name: str) -> None:
    """Numbers, and tensors of no dimensions, that halves are multiplied with, or divided by, are not rounded first, as
    on the CPU. All others are, as are those that come first."""
    _change_lowerings((aten.mul, aten.div, aten.true_divide, aten.floor_divide), partial(_with_factor, name))


def _register_zeros(name: str) -> None:
    """A product with the integer 0 is NaN where a float is no number, and has the float's sign: no constant."""
    place = "torch._inductor.fx_passes.joint_graph:UniformValueConstantFolder._add_peephole_patterns"
    patches.apply("a product of floats with zero is computed", {place: partial(_without_products, name)})


def _without_products(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def find(self: Any) -> None:
        original(self)
        for node in [*self.node_replacements]:
            value = node.meta["val"]
            if value.device.type == name and (value.is_floating_point() or value.is_complex()):
                for table in (self.node_replacements, self.node_replacements_shapes, self.constant_data_ptrs):
                    del table[node]

    return find


def _change_lowerings(packets: Iterable[Any], change: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Replaces the lowerings that the operators' overloads have by what ``change`` makes of them."""
    table: Any = lowering.lowerings
    for packet in packets:
        for overload in overloads_of(packet):
            if overload in table:
                table[overload] = change(table[overload])


def _with_factor(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def lower(a: Any, b: Any, **kwargs: Any) -> Any:
        if not _is_on(name, a, b):
            return original(a, b, **kwargs)
        if _meets_single_element(b, a):
            a = _narrowed(a, b.get_dtype())
        is_number = isinstance(b, (int, float, sympy.Basic)) and a.get_dtype() in HALVES
        if not is_number and not _meets_single_element(a, b):
            return original(a, b, **kwargs)
        factor = b if is_number else lowering.to_dtype(b, torch.float32)
        return lowering.to_dtype(original(lowering.to_dtype(a, torch.float32), factor, **kwargs), a.get_dtype())

    return lower


def _meets_single_element(halves: Any, other: Any) -> bool:
    """Whether a tensor of halves meets one of no dimensions and another real dtype."""
    if not all(isinstance(each, ir.TensorBox) for each in (halves, other)):
        return False
    is_wide = other.get_dtype() != halves.get_dtype() and not other.get_dtype().is_complex
    return bool(is_wide and halves.get_dtype() in HALVES and halves.get_size() and not other.get_size())


#: Operators in which the CPU takes tensors of no dimensions for numbers, and rounds these first.
_ROUNDING_NUMBERS = (
    aten.eq, aten.ne, aten.lt, aten.le, aten.gt, aten.ge, aten.add, aten.sub, aten.pow, aten.fmod, aten.remainder,
    aten.nextafter, aten.atan2, aten.hypot, aten.addcmul,
)  # fmt: skip
#: The same, of those that are decomposed.
_ROUNDING_NUMBERS_DECOMPOSED = (
    aten.logaddexp.default, aten.logaddexp2.default, aten.xlogy.Tensor, aten.special_xlog1py.default,
    aten.addcdiv.default, aten.lerp.Tensor,
)  # fmt: skip


def _register_single_elements(name: str) -> None:
    """Operands without dimensions are rounded to the dtype of the halves that they meet."""
    _change_lowerings(_ROUNDING_NUMBERS, partial(_rounding_numbers, name))


def _rounding_numbers(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def lower(*args: Any, **kwargs: Any) -> Any:
        halves = [x for x in args if isinstance(x, ir.TensorBox) and x.get_size() and x.get_dtype() in HALVES]
        if not halves or not _is_on(name, *halves):
            return original(*args, **kwargs)
        dtype = halves[0].get_dtype()

        def rounded(value: Any) -> Any:
            is_wide = isinstance(value, ir.TensorBox) and not value.get_size() and value.get_dtype() != dtype
            return _narrowed(value, dtype) if is_wide and not value.get_dtype().is_complex else value

        return original(*map(rounded, args), **kwargs)

    return lower


def rounding_numbers(table: dict[Any, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
    """Decompositions of a table whose operands without dimensions are rounded to the dtype of the halves they meet."""
    return {overload: _after_rounding(table[overload]) for overload in _ROUNDING_NUMBERS_DECOMPOSED}


def _after_rounding(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def decompose(*args: Any, **kwargs: Any) -> Any:
        dtypes = [x.dtype for x in args if isinstance(x, torch.Tensor) and x.dim() and x.dtype in HALVES]

        def rounded(value: Any) -> Any:
            is_wide = isinstance(value, torch.Tensor) and not value.dim() and value.dtype != dtypes[0]
            return as_stored(value.to(dtypes[0])) if is_wide and not value.dtype.is_complex else value

        return original(*map(rounded, args), **kwargs) if dtypes else original(*args, **kwargs)

    return decompose


def as_stored(x: torch.Tensor) -> torch.Tensor:
    """What is computed, as memory holds it: halves are computed as floats. Two views alone become none."""
    return (x.view(torch.int16) | 0).view(x.dtype) if x.dtype in HALVES else x


def _register_product(name: str) -> None:
    """The product of ``addcmul`` is added before it is rounded, as on the CPU. Of integers it is an integer, where
    Inductor's is a float."""
    module: Any = lowering
    original = module.lowerings[aten.addcmul.default]

    def add_product(x: Any, a: Any, b: Any, *, value: Any = 1) -> Any:
        if not _is_on(name, x, a, b) or x.get_dtype().is_complex:
            return original(x, a, b, value=value)
        dtype = x.get_dtype()

        def add_scaled(x: Any, a: Any, b: Any) -> Any:
            scaled = a if plain else ops.mul(_number(value, dtype), a)
            return ops.fma(scaled, b, x) if dtype.is_floating_point else ops.add(x, ops.mul(scaled, b))

        plain = not isinstance(value, sympy.Basic) and value == 1
        return lowering.make_pointwise(add_scaled, override_return_dtype=dtype)(x, a, b)

    module.register_lowering([aten.addcmul.default], broadcast=True)(add_product)


def _register_multiples(name: str) -> None:
    """A multiple of a tensor or a number is added before it is rounded, as on the CPU and on CUDA. Numbers are rounded
    to the dtype of halves, as on the CPU."""
    module: Any = lowering
    for overload, sign in ((aten.add.Tensor, 1), (aten.sub.Tensor, -1)):
        module.register_lowering([overload], broadcast=True)(_adding_multiples(name, module.lowerings[overload], sign))


def _adding_multiples(name: str, original: Callable[..., Any], sign: int) -> Callable[..., Any]:
    module: Any = lowering

    def add_multiple(a: Any, b: Any, *, alpha: Any = 1) -> Any:
        alpha = expression(alpha)
        plain = not isinstance(alpha, sympy.Basic) and alpha == 1
        if plain or not isinstance(a, ir.TensorBox) or not _is_on(name, a) or not a.get_dtype().is_floating_point:
            return original(a, b, alpha=alpha)
        dtype = a.get_dtype()

        def number(value: Any) -> Any:
            found = _number(value, dtype)
            return ops.to_dtype(found, dtype, use_compute_types=False) if dtype in HALVES else found

        def add(a: Any, *others: Any) -> Any:
            (multiplied,) = others or (number(b),)
            return ops.fma(multiplied, number(sign * alpha), a)

        operands = (a, b) if isinstance(b, ir.TensorBox) else (a,)
        return module.make_pointwise(add, override_return_dtype=dtype)(*operands)

    return add_multiple


def _number(value: Any, dtype: torch.dtype) -> Any:
    """A number or a symbol, in the dtype that tensors of ``dtype`` are computed in."""
    computed = torch.float32 if dtype in HALVES else dtype
    return ops.index_expr(value, computed) if isinstance(value, sympy.Basic) else ops.constant(value, computed)


def _register_limits(name: str) -> None:
    """Of a zero and a limit that is the other zero, the first is kept."""
    module: Any = lowering
    for overload in (aten.clamp_min.default, aten.clamp_max.default):
        module.lowerings[overload] = _limit(name, module.lowerings[overload])


def _limit(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """The greater, or the lesser, of two is the second where they are equal."""

    @functools.wraps(original)
    def limit(x: Any, bound: Any) -> Any:
        swapped = _is_on(name, x) and _is_float(x) and not isinstance(bound, ir.TensorBox)
        return original(bound, x) if swapped else original(x, bound)

    return limit


def _register_powers(name: str) -> None:
    """Powers of integers by tensors of integers, which Inductor leaves to a library, and by negative numbers, which it
    takes for powers of floats; and inverse square roots, which ATen takes for such."""
    module: Any = lowering
    for overload in (aten.pow.Tensor_Tensor, aten.pow.Tensor_Scalar, aten.pow.Scalar):
        original = module.lowerings[overload]

        def power(a: Any, b: Any, original: Any = original) -> Any:
            dtypes = [value.get_dtype() for value in (a, b) if isinstance(value, ir.TensorBox)]
            if not _is_on(name, a, b):
                return original(a, b)
            if not _is_integer(dtypes[0]):
                # ATen's own way, which knows -0.0 and -inf otherwise than powers do.
                is_root = isinstance(b, float) and b == -0.5 and dtypes[0].is_floating_point
                return module.reciprocal(module.sqrt(a)) if is_root else original(a, b)
            if not isinstance(b, ir.TensorBox):
                b = V.graph.sizevars.guard_int(b) if isinstance(b, sympy.Basic) else b
                if b < 0:
                    raise RuntimeError("Integers to negative integer powers are not allowed.")
                return original(a, b)
            base = a if isinstance(a, ir.TensorBox) else module.full_like(b, a)
            return module.make_pointwise(ops.pow)(base, b)

        module.register_lowering([overload], broadcast=True)(power)


def _register_conversions(name: str) -> None:
    """Indices that become floats are rounded, where Inductor goes on with the integers, and so is what the program
    itself converts to a half dtype, where Inductor goes on with floats."""

    def exact(original: Callable[..., Any]) -> Callable[..., Any]:
        def to_dtype(value: Any, dtype: torch.dtype, src_dtype: Any = None, use_compute_types: bool = False) -> Any:
            is_small = value.is_constant() and abs(value.expr) <= 2**8
            narrows = dtype in (*HALVES, torch.float32) and not value.dtype.is_floating_point
            if name in V.graph.device_types and narrows and not is_small:
                return NotImplemented
            return original(value, dtype, src_dtype, use_compute_types)

        return to_dtype

    place = "torch._inductor.index_propagation:SymPyOps.to_dtype"
    patches.apply("indices that become floats are rounded", {place: exact})
    _change_lowerings((_CONVERSION,), partial(_rounding_conversions, name))
    for entry in joint_graph.patterns.patterns[("call_function", _CONVERSION.default)]:
        if getattr(entry, "handler", None) is joint_graph.pointless_convert:
            entry.extra_check = partial(_keeps_numbers, name, entry.extra_check)


def _rounding_conversions(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    # What decompositions convert to a half and back is of one operator, which kernels of the CPU's round once.
    @functools.wraps(original)
    def convert(x: Any, dtype: torch.dtype) -> Any:
        is_of_program = str(V.graph.current_node.meta.get("original_aten")) == "aten._to_copy.default"
        goes_on = dtype in HALVES and x.get_dtype() in (*HALVES, torch.float32) and x.get_dtype() != dtype
        return _narrowed(x, dtype) if is_of_program and goes_on and _is_on(name, x) else original(x, dtype)

    return convert


def _keeps_numbers(name: str, original: Callable[[Match], bool], match: Match) -> bool:
    """Whether the first of two conversions can be left out: its dtype holds what it converts."""
    value, dtype = match.kwargs["arg"].meta.get("val"), match.kwargs["dtype1"]
    is_ours = isinstance(value, torch.Tensor) and value.device.type == name
    return original(match) and (not is_ours or value.dtype == dtype or value.dtype.itemsize < dtype.itemsize)


def _register_elements(name: str) -> None:
    """What is added or multiplied in halves is rounded to them first, but for means, as on the CPU."""
    _change_lowerings((aten.sum, aten.prod, aten.cumsum, aten.cumprod), partial(_rounding_elements, name))


def _rounding_elements(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def lower(x: Any, *args: Any, dtype: torch.dtype | None = None, **kwargs: Any) -> Any:
        if dtype is not None and dtype in HALVES and _is_on(name, x) and x.get_dtype() != dtype:
            x = _narrowed(x, dtype)
        return original(x, *args, dtype=dtype, **kwargs)

    return lower


def _is_integer(dtype: torch.dtype) -> bool:
    return not dtype.is_floating_point and not dtype.is_complex
