# SPDX-License-Identifier: Apache-2.0
"""How operators are broken into simpler ones before Inductor lowers them."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch._decomp import core_aten_decompositions
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.lowering import fallbacks, lowerings

from . import additions, recurrent, rounding
from .corrections import DIGITS, corrected, with_digits_of

aten = torch.ops.aten
prims = torch.ops.prims


def _uniform(shape: Any, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Floats in [0, 1) of the device's generator, in a dtype."""
    seeds = prims.inductor_seeds(1, device)
    seed = prims.inductor_lookup_seed(seeds, 0)
    compute = torch.float32
    values = prims.inductor_random(list(shape), seed, "rand")
    return values.to(dtype) if dtype != compute else values


def _positive_uniform(shape: Any, device: torch.device) -> torch.Tensor:
    """Floats in (0, 1], for logarithms."""
    return 1.0 - _uniform(shape, torch.float32, device)


def _normal(shape: Any, device: torch.device) -> torch.Tensor:
    seeds = prims.inductor_seeds(1, device)
    return prims.inductor_random(list(shape), prims.inductor_lookup_seed(seeds, 0), "randn")


def _integers(low: int, high: int, shape: Any, device: torch.device) -> torch.Tensor:
    drawn: torch.Tensor = aten.randint.low(low, high, list(shape), dtype=torch.int64, device=device)
    return drawn


def _is_known(*numbers: Any) -> bool:
    """Whether these are numbers, and no symbols for those of an eager call, which are looked at each time."""
    return all(isinstance(number, (int, float)) for number in numbers)


def _uniform_(
    x: torch.Tensor, from_: float = 0.0, to: float = 1.0, generator: Any = None, **kwargs: Any
) -> torch.Tensor:
    low = kwargs.get("from", from_)
    if _is_known(low, to) and low > to:
        raise RuntimeError(f"uniform_ expects to return a [from, to) range, but found from={low} > to={to}")
    start, end = (aten.full.default([], bound, dtype=torch.float32, device=x.device) for bound in (low, to))
    values = with_digits_of(x.dtype, _uniform(x.shape, torch.float32, x.device)) * (end - start) + start
    # What may be rounded up to the end is the range's start, as on CUDA.
    reaches_end = values > end - end.abs() * 2.0 ** -DIGITS[x.dtype] if x.dtype in DIGITS else values >= end
    return x.copy_(torch.where(reaches_end, start, values))


def _normal_(x: torch.Tensor, mean: float = 0.0, std: float = 1.0, generator: Any = None) -> torch.Tensor:
    if _is_known(std) and std < 0:
        raise RuntimeError(f"normal expects std >= 0.0, but found std {std}")
    return x.copy_(aten.add.Scalar(aten.mul.Scalar(_normal(x.shape, x.device), std), mean))


def _exponential_(x: torch.Tensor, lambd: float = 1.0, generator: Any = None) -> torch.Tensor:
    if _is_known(lambd) and lambd <= 0:
        raise RuntimeError(f"exponential_ expects lambda > 0.0, but found lambda={lambd}")
    return x.copy_(torch.log(_positive_uniform(x.shape, x.device)) * (-1.0 / lambd))


def _geometric_(x: torch.Tensor, p: float, generator: Any = None) -> torch.Tensor:
    if _is_known(p) and not 0 < p < 1:
        raise RuntimeError(f"geometric_ expects p to be in (0, 1), but got p={p}")
    scale = torch.log1p(aten.full.default([], -p, dtype=torch.float32, device=x.device))
    return x.copy_(torch.ceil(torch.log(_positive_uniform(x.shape, x.device)) / scale).clamp(min=1.0))


def _cauchy_(x: torch.Tensor, median: float = 0.0, sigma: float = 1.0, generator: Any = None) -> torch.Tensor:
    if _is_known(sigma) and sigma <= 0:
        raise RuntimeError(f"cauchy_ expects sigma > 0.0, but found sigma={sigma}")
    return x.copy_(torch.tan(math.pi * (_uniform(x.shape, torch.float32, x.device) - 0.5)) * sigma + median)


def _log_normal_(x: torch.Tensor, mean: float = 1.0, std: float = 2.0, generator: Any = None) -> torch.Tensor:
    if _is_known(std) and std <= 0:
        raise RuntimeError(f"log_normal_ expects std > 0.0, but found std={std}")
    return x.copy_(torch.exp(_normal(x.shape, x.device) * std + mean))


def _bernoulli_float_(x: torch.Tensor, p: float = 0.5, generator: Any = None) -> torch.Tensor:
    if _is_known(p) and not 0 <= p <= 1:
        raise RuntimeError(f"bernoulli_ expects p to be in [0, 1], but got p={p}")
    return x.copy_(_uniform(x.shape, torch.float32, x.device) < p)


def _check_probabilities(p: torch.Tensor) -> None:
    """Raises in stream order, with the words of PyTorch's CPU kernel, unless all of ``p`` lie in [0, 1]."""
    aten._assert_async.msg(((p >= 0) & (p <= 1)).all(), "Expected p_in >= 0 && p_in <= 1 to be true, but got false.")


def _bernoulli_tensor_(x: torch.Tensor, p: torch.Tensor, generator: Any = None) -> torch.Tensor:
    _check_probabilities(p)
    return x.copy_(_uniform(x.shape, torch.float32, x.device) < p)


def _bernoulli(x: torch.Tensor, generator: Any = None) -> torch.Tensor:
    _check_probabilities(x)
    return (_uniform(x.shape, torch.float32, x.device) < x).to(x.dtype)


def _bernoulli_p(x: torch.Tensor, p: float, generator: Any = None) -> torch.Tensor:
    return (_uniform(x.shape, torch.float32, x.device) < p).to(x.dtype)


def _checked_binary_cross_entropy(
    x: torch.Tensor, target: torch.Tensor, weight: torch.Tensor | None = None, reduction: int = 1
) -> torch.Tensor:
    """The loss; raises in stream order, as other devices do, unless all of ``x`` are probabilities."""
    aten._assert_async.msg(((x >= 0) & (x <= 1)).all(), "all elements of input should be between 0 and 1")
    loss: torch.Tensor = torch._decomp.decomposition_table[aten.binary_cross_entropy.default](
        x, target, weight, reduction
    )
    return loss


#: Where a dtype's integers end being exact, or end.
_RANDOM_LIMITS = {
    torch.float16: 2**11 + 1,
    torch.bfloat16: 2**8 + 1,
    torch.float32: 2**24 + 1,
    torch.float64: 2**53 + 1,
    torch.bool: 2,
}


def _random_(x: torch.Tensor, generator: Any = None) -> torch.Tensor:
    high = _RANDOM_LIMITS.get(x.dtype)
    if high is None:
        high = torch.iinfo(x.dtype).max
    return x.copy_(_integers(0, high, x.shape, x.device))


def _random_from_(x: torch.Tensor, low: int, high: int | None, generator: Any = None) -> torch.Tensor:
    if high is None:
        high = _RANDOM_LIMITS.get(x.dtype) or torch.iinfo(x.dtype).max
    if _is_known(low, high) and low >= high:
        raise RuntimeError(f"random_ expects 'from' to be less than 'to', but got from={low} >= to={high}")
    values = _integers(low, high, x.shape, x.device)
    return x.copy_(_shortened(values, high, x.dtype) if x.dtype in DIGITS else values)


def _shortened(values: torch.Tensor, high: int, dtype: torch.dtype) -> torch.Tensor:
    """Integers as a dtype of few digits has them, those that would be rounded up to ``high`` or more rounded down."""
    end = aten.full.default([], high, dtype=torch.float32, device=values.device)
    _, exponent = torch.frexp(end - 1)
    last = torch.ldexp(torch.ones_like(end), exponent - DIGITS[dtype])  # how far the dtype's numbers there lie apart
    rounded = values.to(dtype).to(torch.float32)
    return torch.where(rounded >= end, torch.floor((end - 1) / last) * last, rounded)


def _random_to_(x: torch.Tensor, high: int, generator: Any = None) -> torch.Tensor:
    return _random_from_(x, 0, high)


def _native_dropout(x: torch.Tensor, p: float, train: bool | None) -> tuple[torch.Tensor, torch.Tensor]:
    if train is False or (_is_known(p) and p == 0):
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    probability = aten.full.default([], p, dtype=torch.float32, device=x.device)
    keep = _uniform(x.shape, torch.float32, x.device) >= probability
    scale = torch.where(probability < 1, 1.0 / (1.0 - probability), 0.0)
    return keep * x * scale, keep


def _index_put_impl_(
    x: torch.Tensor, indices: Any, values: torch.Tensor, accumulate: bool = False, unsafe: bool = False
) -> torch.Tensor:
    return x.copy_(aten.index_put(x, indices, values, accumulate))


def _index_put_impl(
    x: torch.Tensor, indices: Any, values: torch.Tensor, accumulate: bool = False, unsafe: bool = False
) -> torch.Tensor:
    return aten.index_put(x, indices, values, accumulate)


def _batch_norm(
    x: torch.Tensor, weight: Any, bias: Any, mean: Any, var: Any, training: bool, momentum: float, eps: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Batch norm; without training nothing is saved for the backward pass, as on the CPU."""
    out, saved_mean, saved_scale, _, _ = torch._decomp.decompositions.native_batch_norm_helper(
        x, weight, bias, mean, var, training, momentum, eps, functional=False
    )
    if not training:
        return out, *_no_statistics(x, weight, bias, mean, var)
    return out, saved_mean, saved_scale


def _no_statistics(x: torch.Tensor, *parameters: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """What is saved where nothing is: of the parameters' dtype, which may be wider than a half's."""
    dtype = next((each.dtype for each in parameters if each is not None), x.dtype)
    return x.new_empty((0,), dtype=dtype), x.new_empty((0,), dtype=dtype)


def _batch_norm_without_training(
    x: torch.Tensor, weight: Any, bias: Any, mean: Any, var: Any, momentum: float, eps: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return _batch_norm(x, weight, bias, mean, var, False, momentum, eps)


def _batch_norm_no_update(
    x: torch.Tensor, weight: Any, bias: Any, mean: Any, var: Any, momentum: float, eps: float
) -> tuple[torch.Tensor, ...]:
    return *_batch_norm(x, weight, bias, mean, var, False, momentum, eps), x.new_empty((0,), dtype=torch.uint8)


def _batch_norm_functional(
    x: torch.Tensor, weight: Any, bias: Any, mean: Any, var: Any, training: bool, momentum: float, eps: float
) -> tuple[torch.Tensor | None, ...]:
    """As ``_batch_norm``, with the new running statistics as results."""
    out, saved_mean, saved_scale, new_mean, new_var = torch._decomp.decompositions.native_batch_norm_helper(
        x, weight, bias, mean, var, training, momentum, eps, functional=True
    )
    if not training:
        saved_mean, saved_scale = _no_statistics(x, weight, bias, mean, var)
    return out, saved_mean, saved_scale, new_mean, new_var


def _linear_backward(
    x: torch.Tensor, grad: torch.Tensor, weight: torch.Tensor, mask: list[bool]
) -> tuple[torch.Tensor | None, ...]:
    """Gradients of ``x`` (..., in), ``weight`` (out, in) and the bias (out), of those that are asked for."""
    rows, grads = x.reshape(-1, x.shape[-1]), grad.reshape(-1, grad.shape[-1])
    return (
        aten.mm(grads, weight).reshape(x.shape) if mask[0] else None,
        aten.mm(grads.t(), rows) if mask[1] else None,
        grads.sum(0) if mask[2] else None,
    )


def embedding_gradient(
    grad: torch.Tensor, indices: torch.Tensor, num_weights: int, padding_idx: int, scale_grad_by_freq: bool
) -> Any:
    """Leaves the usual case to its kernel, which adds in one order where the decomposition's atomics do not."""
    if not scale_grad_by_freq:
        return NotImplemented
    whole: Callable[..., torch.Tensor] = torch._decomp.decomposition_table[aten.embedding_dense_backward.default]
    return whole(grad, indices, num_weights, padding_idx, scale_grad_by_freq)


def random_order(n: int, *, dtype: torch.dtype | None = None, device: Any = None, **unused: Any) -> torch.Tensor:
    """``randperm`` by the numbers of the device's generator, as the device's own: (n,)."""
    keys = torch.randint(0, torch.iinfo(torch.int64).max, (n,), device=device)
    return keys.sort().indices.to(dtype or torch.int64)


def _floor_divide(a: Any, b: Any) -> Any:
    return torch.div(a, b, rounding_mode="floor")


def _functional(in_place: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """The functional variant of a random fill: the same, into a new tensor."""

    def fill(x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return in_place(torch.empty_like(x), *args, **kwargs)

    return fill


def _random_table() -> dict[Any, Callable[..., Any]]:
    return {
        aten.uniform_.default: _uniform_,
        aten.normal_.default: _normal_,
        aten.exponential_.default: _exponential_,
        aten.geometric_.default: _geometric_,
        aten.cauchy_.default: _cauchy_,
        aten.log_normal_.default: _log_normal_,
        aten.bernoulli_.float: _bernoulli_float_,
        aten.bernoulli_.Tensor: _bernoulli_tensor_,
        aten.bernoulli.default: _bernoulli,
        aten.bernoulli.p: _bernoulli_p,
        aten.random_.default: _random_,
        getattr(aten.random_, "from"): _random_from_,
        aten.random_.to: _random_to_,
        aten.native_dropout.default: _native_dropout,
        aten.uniform.default: _functional(_uniform_),
        aten.normal_functional.default: _functional(_normal_),
        aten.exponential.default: _functional(_exponential_),
        aten.geometric.default: _functional(_geometric_),
        aten.cauchy.default: _functional(_cauchy_),
        aten.log_normal.default: _functional(_log_normal_),
        aten.bernoulli.Tensor: _functional(_bernoulli_tensor_),
        aten.random.default: _functional(_random_),
        getattr(aten.random, "from"): _functional(_random_from_),
        aten.random.to: _functional(_random_to_),
    }


#: Inductor rewrites these for the sake of whole graphs, or of complex numbers; one call is best left as it is.
_WHOLE = frozenset(
    {
        "aten::add", "aten::sub", "aten::mm", "aten::bmm", "aten::addmm", "aten::baddbmm", "aten::cat",
        "aten::convolution_backward", "aten::fill_", "aten::max_pool2d_with_indices",
        "aten::max_pool2d_with_indices_backward", "aten::_scaled_dot_product_flash_attention_for_cpu",
    }
)  # fmt: skip


def _left_whole(overload: Any) -> bool:
    """Whether Inductor lowers an operator well itself, so that its decomposition is not wanted."""
    if overload not in lowerings or overload in fallbacks:
        return False
    return overload._schema.name in _WHOLE or overload not in select_decomp_table()


@functools.cache
def eager_decompositions() -> dict[Any, Callable[..., Any]]:
    """The decompositions for single operators: what Inductor lowers itself stays whole."""
    table: dict[Any, Callable[..., Any]] = dict(core_aten_decompositions())
    table.update(select_decomp_table())
    table = {
        overload: function
        for overload, function in table.items()
        if isinstance(overload, torch._ops.OpOverload)
        and not _left_whole(overload)
        and overload._schema.name not in _WHOLE
    }
    table.update(_random_table())
    table[aten.native_batch_norm.default] = _batch_norm
    table[aten._native_batch_norm_legit.default] = _batch_norm
    table[aten._native_batch_norm_legit_no_training.default] = _batch_norm_without_training
    table[aten._batch_norm_no_update.default] = _batch_norm_no_update
    table[aten._native_batch_norm_legit_functional.default] = _batch_norm_functional
    table[aten.binary_cross_entropy.default] = _checked_binary_cross_entropy
    table[aten.floor_divide.default] = _floor_divide
    table[aten._index_put_impl_.default] = _index_put_impl_
    table[aten._index_put_impl.default] = _index_put_impl
    table[aten.embedding_dense_backward.default] = embedding_gradient
    table[aten.linear_backward.default] = _linear_backward
    table.update(additions.DECOMPOSITIONS)
    table.update(recurrent.CELLS)
    table.update(rounding.DECOMPOSITIONS)
    table.update(corrected(table))
    return table
