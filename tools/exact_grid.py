# SPDX-License-Identifier: Apache-2.0
"""Operators of whose results every bit is fixed, by IEEE 754 or what integers are, for ``tools/decompositions.py``.

A group of this grid is a form of call, such as two tensors of two dtypes, and has a result of each operator that the
CPU has for it, so that ``torch.compile`` makes one graph of all. The tensors hold every pair of each dtype's edges:
zeros, infinities, NaN, subnormal numbers, the largest and the smallest, ties between whole numbers, the minimum of
integers; and random bits.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tools.decomposition_grid import FLOATS, INTEGERS, Group, Source

DTYPES = (*FLOATS, *INTEGERS, torch.bool)
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

Operators = dict[str, Callable[..., Any]]

_UNARY: Operators = {
    **{
        name: getattr(torch, name)
        for name in (
            "floor", "ceil", "trunc", "round", "frac", "neg", "abs", "sign", "sgn", "signbit", "sqrt", "square",
            "reciprocal", "isnan", "isinf", "isfinite", "isposinf", "isneginf", "logical_not", "bitwise_not",
            "nan_to_num", "frexp", "positive", "relu",
        )
    },
    **{
        name: getattr(F, name)
        for name in ("relu6", "hardtanh", "leaky_relu", "hardshrink", "softshrink")
    },
    **{f"round {d}": lambda x, d=d: torch.round(x, decimals=d) for d in (2, -1, 5)},
    "threshold": lambda x: F.threshold(x, 0.5, 2),
    "nan_to_num 1": lambda x: torch.nan_to_num(x, 1, 2, 3),
}  # fmt: skip
_PAIRS: Operators = {
    **{
        name: getattr(torch, name)
        for name in (
            "add", "sub", "mul", "minimum", "maximum", "fmin", "fmax", "eq",
            "ne", "lt", "le", "gt", "ge", "copysign", "nextafter", "heaviside", "logical_and", "logical_or",
            "logical_xor", "bitwise_and", "bitwise_or", "bitwise_xor",
        )
    },
    "rsub": torch.rsub,
    "sub 2": lambda a, b: torch.sub(a, b, alpha=2),
    "where": lambda a, b: torch.where(a > b, a, b),
    "clamp_min": lambda a, b: torch.clamp(a, min=b),
    "clamp_max": lambda a, b: torch.clamp(a, max=b),
}  # fmt: skip
#: By whole numbers that are not 0, and of the minimum not by -1: what ends a program on the CPU.
_QUOTIENTS: Operators = {
    **{name: getattr(torch, name) for name in ("div", "floor_divide", "remainder", "fmod")},
    "div trunc": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "div floor": lambda a, b: torch.div(a, b, rounding_mode="floor"),
}
_SHIFTS: Operators = {"<<": lambda a, b: a << b, ">>": lambda a, b: a >> b}
_REDUCTIONS: Operators = {
    **{name: getattr(torch, name) for name in ("amax", "amin", "argmax", "argmin", "any", "all", "count_nonzero")},
    **{
        f"{name} {d}": lambda x, name=name, d=d: getattr(torch, name)(x, d)
        for name in ("amax", "amin", "max", "min", "argmax", "argmin", "cummax", "cummin", "any", "all")
        for d in (0, 1)
    },
    **{f"sort {d}": lambda x, d=d: torch.sort(x, d, stable=True) for d in (0, 1)},
    "aminmax": torch.aminmax,
}  # fmt: skip
#: Exact for integers alone: they wrap around.
_SUMS: Operators = {
    "sum": torch.sum,
    "prod": torch.prod,
    **{
        f"{name} {d}": lambda x, name=name, d=d: getattr(torch, name)(x, d)
        for name in ("sum", "prod", "cumsum", "cumprod")
        for d in (0, 1)
    },
    **{f"sum {d}": lambda x, d=d: torch.sum(x, dtype=d) for d in (torch.int32, torch.int8, torch.uint8)},
    "diff": torch.diff,
}
#: What tensors meet as Python's numbers.
_NUMBERS: tuple[Any, ...] = (
    True, 0, 1, -1, 2, 3, 7, -7, 10, 127, -128, 2**31 - 1, -(2**31), 2**53 + 1, 2**62, 0.0, -0.0, 0.1, -0.5, 0.5, 1.5,
    3.0, 1 / 3, 1e-40, 1e-45, 65504.0, 1e30, -1e300, math.inf, -math.inf, math.nan,
)  # fmt: skip


def edges(dtype: torch.dtype) -> Tensor:
    """Numbers of a dtype near which operators have other pieces: one dimension."""
    if dtype == torch.bool:
        return torch.tensor([False, True])
    if not dtype.is_floating_point:
        info = torch.iinfo(dtype)
        near = {0, 1, 2, 3, 5, 7, 8, 10, 31, 32, 63, 64, info.max, info.max - 1, info.max // 2, info.max // 2 + 1}
        below = {-1, -2, -3, -5, -7, -8, -10, info.min, info.min + 1, info.min // 2} if info.min else set()
        return torch.tensor(sorted(x for x in near | below if x <= info.max), dtype=dtype)
    info = torch.finfo(dtype)
    whole = 1 / info.eps
    up = [0.0, 0.1, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 7.0, 10.0, 1 / 3, 100.25, 12345.678, math.inf]
    up += [info.max, info.tiny, info.smallest_normal * info.eps, info.tiny / 2, 0.5 - info.eps / 4, whole, whole + 1]
    up += [whole / 2 + 0.5, math.sqrt(info.max), math.sqrt(info.tiny)]
    up += [float(2**n) for n in (7, 8, 15, 16, 31, 32, 63, 64) if 2**n < info.max]
    positive = torch.tensor(up, dtype=torch.float64).to(dtype)
    return torch.cat([positive, -positive, torch.tensor([math.nan], dtype=dtype)])


def drawn(dtype: torch.dtype, count: int, turn: int) -> Tensor:
    """As many numbers of a dtype whose bits are random, and, of floats, each second of a usual size."""
    generator = torch.Generator().manual_seed(turn)
    if dtype == torch.bool:
        return torch.rand(count, generator=generator) < 0.5
    same = _BITS[dtype.itemsize]
    info = torch.iinfo(same)
    bits = torch.randint(info.min, info.max, (count,), generator=generator, dtype=same).view(dtype)
    if dtype.is_floating_point:
        bits[::2] = (torch.randn(count, generator=generator, dtype=torch.float64) * 20)[::2].to(dtype)
    return bits


def _ones(dtype: torch.dtype) -> Callable[[int], list[Source]]:
    return lambda turn: [(torch.cat([edges(dtype), drawn(dtype, 67 + turn, turn)]),)]


def _every_pair(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    return a.repeat_interleave(b.numel()), b.repeat(a.numel())


def _twos(one: torch.dtype, other: torch.dtype, quotients: bool = False) -> Callable[[int], list[Source]]:
    """Every pair of edges and random pairs, in an order that mixes them; then edges with one number in a tensor."""

    def make(turn: int) -> list[Source]:
        left, right = _every_pair(edges(one), edges(other))
        a = torch.cat([left, drawn(one, 67, turn)])
        b = torch.cat([right, drawn(other, 67, turn + 1)])
        mixed = torch.randperm(a.numel(), generator=torch.Generator().manual_seed(turn))
        scalars = edges(other)
        found = [(a[mixed], b[mixed]), (edges(one), scalars[turn * 5 % scalars.numel()])]
        return [_divisible(*each) for each in found] if quotients else found

    return make


def _divisible(a: Tensor, b: Tensor) -> Source:
    """The same, with other divisors where the CPU divides integers by 0 or the minimum by -1."""
    dtype = torch.result_type(a, b)
    if dtype.is_floating_point or dtype == torch.bool:
        return a, b
    b = torch.where(b == 0, torch.ones_like(b), b)
    overflows = (a.to(dtype) == torch.iinfo(dtype).min) & (b == -1)
    return torch.where(overflows, torch.ones_like(a), a), b


def _with_numbers(dtype: torch.dtype, kind: type, quotients: bool = False) -> Callable[[int], list[Source]]:
    """Tensors with each number of a kind that the dtype takes; as quotients, no integers that are 0 or a minimum."""
    x = torch.cat([edges(dtype), drawn(dtype, 33, 0)])
    whole = not dtype.is_floating_point
    if quotients and whole and dtype != torch.bool:
        x = x[(x != 0) & (x != torch.iinfo(dtype).min)]
    in_range = torch.iinfo(torch.int64 if dtype == torch.bool else dtype) if whole else None
    return lambda turn: [
        (x, number)
        for number in _NUMBERS
        if type(number) is kind
        and (in_range is None or kind is float or in_range.min <= number <= in_range.max)
        and not (quotients and number == 0 and kind is not float)
    ]


def _shifted(one: torch.dtype, other: torch.dtype) -> Callable[[int], list[Source]]:
    """Shifts by less than the bits of the dtype: by more, PyTorch promises nothing."""

    def make(turn: int) -> list[Source]:
        bits = torch.iinfo(torch.promote_types(one, other)).bits
        return [_every_pair(edges(one), torch.arange(min(bits, 127)).to(other))]

    return make


def _rows(dtype: torch.dtype) -> Callable[[int], list[Source]]:
    def make(turn: int) -> list[Source]:
        plain = drawn(dtype, (5 + turn) * 37, turn)
        special = plain.clone()
        special[::5] = edges(dtype).repeat(plain.numel())[: len(special[::5])]
        return [(x.view(5 + turn, 37),) for x in (plain.nan_to_num() if dtype.is_floating_point else plain, special)]

    return make


def _bundle(form: str, operators: Operators, dtypes: Sequence[torch.dtype], make: Any, *example: Any) -> Group:
    """One group of all operators that the CPU has for such arguments."""
    parts = {name: function for name, function in operators.items() if _is_accepted(function, *example)}
    label = f"exact {form} {' '.join(str(dtype).removeprefix('torch.') for dtype in dtypes)}"
    return Group(label, lambda *x: [function(*x) for function in parts.values()], make, orders=0, parts=parts)


def _is_accepted(function: Callable[..., Any], *example: Any) -> bool:
    try:
        function(*example)
    except (RuntimeError, TypeError):
        return False
    return True


def _one(dtype: torch.dtype) -> Tensor:
    return torch.ones(1, 1, dtype=dtype)


def _both(operators: Operators) -> Operators:
    """Operators of a tensor and a number, and of the number and the tensor."""
    swapped = {f"{name} swapped": lambda x, number, f=f: f(number, x) for name, f in operators.items()}
    return operators | swapped


def _of_one(dtype: torch.dtype) -> Iterator[Group]:
    yield _bundle("unary", _UNARY, (dtype,), _ones(dtype), _one(dtype))
    casts: Operators = {f"to {d}": lambda x, d=d: x.to(d) for d in DTYPES if d != dtype}
    yield _bundle("casts", casts, (dtype,), _ones(dtype), _one(dtype))
    reductions = _REDUCTIONS if dtype.is_floating_point else _REDUCTIONS | _SUMS
    yield _bundle("rows", reductions, (dtype,), _rows(dtype), _one(dtype))
    for kind in (bool, int, float):
        form, example = kind.__name__, (_one(dtype), kind(1))
        yield _bundle(form, _both(_PAIRS), (dtype,), _with_numbers(dtype, kind), *example)
        yield _bundle(f"{form} quotients", _both(_QUOTIENTS), (dtype,), _with_numbers(dtype, kind, True), *example)


def _of_two(one: torch.dtype, other: torch.dtype) -> Iterator[Group]:
    example = (_one(one), _one(other))
    yield _bundle("pairs", _PAIRS, (one, other), _twos(one, other), *example)
    yield _bundle("quotients", _QUOTIENTS, (one, other), _twos(one, other, True), *example)
    if one in INTEGERS and other in INTEGERS:
        yield _bundle("shifts", _SHIFTS, (one, other), _shifted(one, other), *example)
    if one.is_floating_point and other == torch.int32:
        yield _bundle("powers", {"ldexp": torch.ldexp}, (one, other), _twos(one, other), *example)


def exact() -> Iterator[Group]:
    """Forms of call with one tensor, with a tensor and a number, and with two, of each dtype."""
    for dtype in DTYPES:
        yield from _of_one(dtype)
    for one, other in itertools.product(DTYPES, DTYPES):
        yield from _of_two(one, other)
