# SPDX-License-Identifier: Apache-2.0
"""Random numbers: the operators that draw, for single calls and whole graphs, in terms of three draws that kernels
have: uniform and normal floats, and 64 random bits.

Numbers are computed in float64 for float64, else in float32. What is taken by its logarithm, or compared with a
probability, has as many digits near 0 as elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._decomp import decomposition_table

from ...target import target_of
from .fills import check_floats

aten = torch.ops.aten

#: Binary digits of halves, which are computed with as floats.
DIGITS = {torch.float16: 11, torch.bfloat16: 8}
#: Where a dtype's integers end being exact, or end.
_LIMITS = {
    torch.float16: 2**11 + 1,
    torch.bfloat16: 2**8 + 1,
    torch.float32: 2**24 + 1,
    torch.float64: 2**53 + 1,
    torch.bool: 2,
}
_MOST = 2**63 - 1


def _computed(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _number(value: Any, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A number, or the symbol for one of an eager call, without dimensions."""
    made: Tensor = aten.full.default([], value, dtype=dtype, device=device)
    return made


def _is_known(*numbers: Any) -> bool:
    """Whether these are numbers, and no symbols for those of an eager call, which are looked at each time."""
    return all(isinstance(number, (int, float)) for number in numbers)


def _with_digits_of(dtype: torch.dtype, x: Tensor) -> Tensor:
    """Numbers of [0, 1) with no more digits than a dtype holds, so that it does not round them up to 1."""
    return x if dtype not in DIGITS else torch.floor(x * 2.0 ** DIGITS[dtype]) * 2.0 ** -DIGITS[dtype]


# ---- draws ----


def _integers(low: int, high: int, shape: Any, device: torch.device) -> Tensor:
    drawn: Tensor = aten.randint.low(low, high, list(shape), dtype=torch.int64, device=device)
    return drawn


def _bits(shape: Any, device: torch.device) -> Tensor:
    """int64 of 64 random bits."""
    return _integers(-_MOST - 1, _MOST, shape, device)


def _uniform(shape: Any, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Numbers in [0, 1) in the dtype that ``dtype`` is computed in: multiples of 2^-24 or 2^-53."""
    if dtype != torch.float64:
        drawn: Tensor = aten.rand.default(list(shape), dtype=torch.float32, device=device)
        return drawn
    digits = (_bits(shape, device) >> 11) & (2**53 - 1)
    return digits.to(torch.float64) * 2.0**-53


def _chance(shape: Any, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Numbers in (0, 1], with all digits however small, and a random bool to each."""
    bits = _bits(shape, device)
    if dtype != torch.float64:
        bits = bits.to(torch.int32)
    count = 8 * bits.dtype.itemsize - 1
    number = (bits & (2**count - 1)).to(_computed(dtype))
    return (number + 0.5) * 2.0**-count, bits < 0


def _normal(shape: Any, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Standard normal numbers (G. Box and M. Muller, 1958)."""
    if dtype != torch.float64:
        drawn: Tensor = aten.randn.default(list(shape), dtype=torch.float32, device=device)
        return drawn
    radius = torch.sqrt(2.0 * _exponential(shape, dtype, device))
    return radius * torch.cos(2 * math.pi * _uniform(shape, dtype, device))


def _exponential(shape: Any, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Standard exponential numbers, neither 0 nor infinite: minus the logarithm of a half of a chance, or of what that
    lacks to 1. The latter loses no digits by W. Kahan's way to ``log1p`` by ``log``."""
    chance, is_rest = _chance(shape, dtype, device)
    half = 0.5 * chance
    number = torch.where(is_rest, 1.0 - half, half)
    result, lacking = -torch.log(number), 1.0 - number
    near_0 = torch.where(lacking == 0, half, result * (half / lacking))
    return torch.where(is_rest, near_0, result)


def _rand(size: Any, *, dtype: torch.dtype | None = None, device: Any = None, **options: Any) -> Any:
    """float64 of 53 digits, and halves below 1: PyTorch's own rounds floats, of which some become 1."""
    dtype = dtype or torch.get_default_dtype()
    if dtype == torch.float64:
        return _uniform(size, dtype, device)
    if dtype not in DIGITS:
        return NotImplemented
    return _with_digits_of(dtype, _uniform(size, dtype, device)).to(dtype)


def _randn(size: Any, *, dtype: torch.dtype | None = None, device: Any = None, **options: Any) -> Any:
    """float64, where PyTorch's own draws floats."""
    dtype = dtype or torch.get_default_dtype()
    return _normal(size, dtype, device) if dtype == torch.float64 else NotImplemented


def random_order(n: int, *, dtype: torch.dtype | None = None, device: Any = None, **unused: Any) -> Tensor:
    """``randperm`` by the numbers of the device's generator, as the device's own: (n,)."""
    keys = torch.randint(0, _MOST, (n,), device=device)
    return keys.sort().indices.to(dtype or torch.int64)


# ---- fills: what they write to a tensor ----


def _uniform_values(x: Tensor, from_: float = 0.0, to: float = 1.0, generator: Any = None, **kwargs: Any) -> Tensor:
    low = kwargs.get("from", from_)
    if _is_known(low, to) and low > to:
        raise RuntimeError(f"uniform_ expects to return a [from, to) range, but found from={low} > to={to}")
    start, end = (_number(bound, _computed(x.dtype), x.device) for bound in (low, to))
    values = _with_digits_of(x.dtype, _uniform(x.shape, x.dtype, x.device)) * (end - start) + start
    # What may be rounded up to the end is the range's start, as on CUDA.
    reaches_end = values > end - end.abs() * 2.0 ** -DIGITS[x.dtype] if x.dtype in DIGITS else values >= end
    return torch.where(reaches_end, start, values)


def _scaled_normal(x: Tensor, mean: float, std: float) -> Tensor:
    mean_, std_ = (_number(value, _computed(x.dtype), x.device) for value in (mean, std))
    return _normal(x.shape, x.dtype, x.device) * std_ + mean_


def _normal_values(x: Tensor, mean: float = 0.0, std: float = 1.0, generator: Any = None) -> Tensor:
    if _is_known(std) and std < 0:
        raise RuntimeError(f"normal expects std >= 0.0, but found std {std}")
    return _scaled_normal(x, mean, std)


def _log_normal_values(x: Tensor, mean: float = 1.0, std: float = 2.0, generator: Any = None) -> Tensor:
    if _is_known(std) and std <= 0:
        raise RuntimeError(f"log_normal_ expects std > 0.0, but found std={std}")
    return torch.exp(_scaled_normal(x, mean, std))


def _exponential_values(x: Tensor, lambd: float = 1.0, generator: Any = None) -> Tensor:
    if _is_known(lambd) and lambd <= 0:
        raise RuntimeError(f"exponential_ expects lambda > 0.0, but found lambda={lambd}")
    values = _exponential(x.shape, x.dtype, x.device) / _number(lambd, _computed(x.dtype), x.device)
    # What float16 would round to 0 is its least number.
    return values.clamp(min=2.0**-24) if x.dtype == torch.float16 else values


def _geometric_values(x: Tensor, p: float, generator: Any = None) -> Tensor:
    """The integer above an exponential number. Wide integers need more digits of it than floats have."""
    if _is_known(p) and not 0 < p < 1:
        raise RuntimeError(f"geometric_ expects p to be in (0, 1), but got p={p}")
    is_wide = x.dtype in (torch.int32, torch.int64) and target_of(x.device.index or 0).has_fp64
    dtype = torch.float64 if is_wide else x.dtype
    rate = -torch.log1p(-_number(p, _computed(dtype), x.device))
    return torch.ceil(_exponential(x.shape, dtype, x.device) / rate).clamp(min=1.0)


def _cauchy_values(x: Tensor, median: float = 0.0, sigma: float = 1.0, generator: Any = None) -> Tensor:
    if _is_known(sigma) and sigma <= 0:
        raise RuntimeError(f"cauchy_ expects sigma > 0.0, but found sigma={sigma}")
    chance, is_negative = _chance(x.shape, x.dtype, x.device)
    distance = 1.0 / torch.tan(0.5 * math.pi * chance)
    median_, sigma_ = (_number(value, _computed(x.dtype), x.device) for value in (median, sigma))
    return torch.where(is_negative, -distance, distance) * sigma_ + median_


def _happens(shape: Any, p: Tensor) -> Tensor:
    """True with a probability that is a tensor: never for 0, always for 1."""
    return _chance(shape, p.dtype, p.device)[0] <= p


def _bernoulli_float_values(x: Tensor, p: float = 0.5, generator: Any = None) -> Tensor:
    if _is_known(p) and not 0 <= p <= 1:
        raise RuntimeError(f"bernoulli_ expects p to be in [0, 1], but got p={p}")
    return _happens(x.shape, _number(p, _computed(x.dtype), x.device))


def _check_probabilities(p: Tensor) -> None:
    """Raises in stream order, with the words of PyTorch's CPU kernel, unless all of ``p`` lie in [0, 1]."""
    aten._assert_async.msg(((p >= 0) & (p <= 1)).all(), "Expected p_in >= 0 && p_in <= 1 to be true, but got false.")


def _bernoulli_tensor_values(x: Tensor, p: Tensor, generator: Any = None) -> Tensor:
    _check_probabilities(p)
    return _happens(x.shape, p)


def _bernoulli(x: Tensor, generator: Any = None) -> Tensor:
    _check_probabilities(x)
    return _happens(x.shape, x).to(x.dtype)


def _random_values(x: Tensor, generator: Any = None) -> Tensor:
    return _random_from_values(x, 0, None)


def _random_from_values(x: Tensor, low: int, high: int | None, generator: Any = None) -> Tensor:
    if high is None:  # all up to the limit are exact; those of int64 that can be drawn end one before
        limit = _LIMITS.get(x.dtype) or min(torch.iinfo(x.dtype).max + 1, _MOST)
        return _integers(low, limit, x.shape, x.device)
    if _is_known(low, high) and low >= high:
        raise RuntimeError(f"random_ expects 'from' to be less than 'to', but got from={low} >= to={high}")
    values = _integers(low, high, x.shape, x.device)
    return _shortened(values, low, high, x.dtype) if x.dtype in DIGITS else values


def _shortened(values: Tensor, low: int, high: int, dtype: torch.dtype) -> Tensor:
    """Integers as a dtype of few digits has them. Those that it would round beyond a bound become the last ones that
    PyTorch's CPU kernel draws (``update_from`` and ``update_to`` of ATen/native/DistributionTemplates.h)."""
    least, end = (_number(bound, torch.float32, values.device) for bound in (low, high))

    def spacing(number: Tensor) -> Tensor:
        _, exponent = torch.frexp(number)
        return torch.ldexp(torch.ones_like(number), exponent - DIGITS[dtype])

    def rounded(number: Tensor) -> Tensor:
        return torch.round(number / spacing(number)) * spacing(number)

    first, last = rounded(least + 1), rounded(end - 1)
    least = torch.where(first < least, first + spacing(least + 1), least)
    end = torch.where(last >= end, last - spacing(end - 1), end)
    return torch.clamp(rounded(values.to(torch.float32)), rounded(least), rounded(end - 1))


def _random_to_values(x: Tensor, high: int, generator: Any = None) -> Tensor:
    return _random_from_values(x, 0, high)


def _native_dropout(x: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    if train is False or (_is_known(p) and p == 0):
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    probability = _number(p, torch.float32, x.device)
    keep = _uniform(x.shape, torch.float32, x.device) >= probability
    scale = torch.where(probability < 1, 1.0 / (1.0 - probability), 0.0)
    return keep * x * scale, keep


def _normal_of_tensors(overload: Any) -> Callable[..., Tensor]:
    """PyTorch's own takes any standard deviations."""
    whole = decomposition_table[overload]

    def decompose(mean: Any, std: Tensor, **kwargs: Any) -> Tensor:
        result: Tensor = whole(mean, std, **kwargs)
        aten._assert_async.msg((std >= 0).all(), "normal expects all elements of std >= 0.0")
        return result

    return decompose


def _of_floats(values: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Refuses to fill integers with numbers between them."""

    def checked(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        check_floats(f"filling by {values.__name__.strip('_').removesuffix('_values')} numbers", x)
        return values(x, *args, **kwargs)

    return checked


def _in_place(values: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda x, *args, **kwargs: x.copy_(values(x, *args, **kwargs))


def _functional(values: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A tensor that lies as the one that is not written to."""
    return lambda x, *args, **kwargs: aten.copy.default(x, values(x, *args, **kwargs))


#: Fills, as overload that writes, overload that does not, and what is written.
_FILLS: tuple[tuple[Any, Any, Callable[..., Tensor]], ...] = (
    (aten.uniform_.default, aten.uniform.default, _of_floats(_uniform_values)),
    (aten.normal_.default, aten.normal_functional.default, _of_floats(_normal_values)),
    (aten.exponential_.default, aten.exponential.default, _of_floats(_exponential_values)),
    (aten.geometric_.default, aten.geometric.default, _geometric_values),
    (aten.cauchy_.default, aten.cauchy.default, _of_floats(_cauchy_values)),
    (aten.log_normal_.default, aten.log_normal.default, _of_floats(_log_normal_values)),
    (aten.bernoulli_.float, aten.bernoulli.p, _bernoulli_float_values),
    (aten.bernoulli_.Tensor, aten.bernoulli.Tensor, _bernoulli_tensor_values),
    (aten.random_.default, aten.random.default, _random_values),
    (getattr(aten.random_, "from"), getattr(aten.random, "from"), _random_from_values),
    (aten.random_.to, aten.random.to, _random_to_values),
)
#: Overload -> its decomposition, which may return NotImplemented.
DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    aten.rand.default: _rand,
    aten.randn.default: _randn,
    aten.bernoulli.default: _bernoulli,
    aten.native_dropout.default: _native_dropout,
    **{overload: _normal_of_tensors(overload) for overload in (aten.normal.Tensor_Tensor, aten.normal.float_Tensor)},
    **{overload: _in_place(values) for overload, _, values in _FILLS},
    **{overload: _functional(values) for _, overload, values in _FILLS},
}
