# SPDX-License-Identifier: Apache-2.0
"""Decompositions that take the place of PyTorch's where those differ from its own CPU kernels.

Found by ``tests/compiler/test_decompositions.py``, which compares every decomposition in use with the operator itself.
Each returns NotImplemented for the calls that PyTorch's own decomposition or lowering has right.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._decomp import decomposition_table
from torch._prims_common import REDUCTION_OUTPUT_TYPE_KIND, reduction_dtypes

from ...target import target_of
from ..optimizers.chains import wide
from ..overrides import HALVES
from . import fills, interpolation, mistaken_shapes
from .rounding import as_stored

aten = torch.ops.aten


def _assert(condition: Tensor, message: str) -> None:
    """Raises in stream order, with the words of PyTorch's CPU kernel, unless all of ``condition`` holds."""
    aten._assert_async.msg(condition.all(), message)


def _multilabel_margin_loss(x: Tensor, target: Tensor, reduction: int) -> tuple[Tensor, Tensor]:
    """PyTorch's own takes what follows the first -1 for labels 0."""
    shape = x.shape
    x, target = torch.atleast_2d(x), torch.atleast_2d(target)
    rows, classes = x.shape
    place = torch.arange(classes, device=x.device)
    end = torch.where(target == -1, place, classes).amin(-1, keepdim=True)
    is_label = place < end
    label = torch.where(is_label, target, 0)
    _assert((label >= 0) & (label < classes), "argument #2 'target' is out of range")
    label = label.clamp(0, classes - 1)
    is_target = ((place == label.unsqueeze(-1)) & is_label.unsqueeze(-1)).any(1)
    margin = 1 - x.gather(1, label).unsqueeze(-1) + x.unsqueeze(1)  # (row, label, class)
    counts = (margin > 0) & is_label.unsqueeze(-1) & ~is_target.unsqueeze(1)
    loss = torch.where(counts, margin, 0).sum((1, 2)) / classes
    return _reduced(loss, shape[:-1], reduction), is_target.to(x.dtype).reshape(shape)


def _reduced(loss: Tensor, shape: Sequence[int], reduction: int) -> Tensor:
    """The margin loss of each sample, their mean (0 of none: the CPU writes nothing then), or their sum."""
    if reduction == 0:
        return loss.reshape(shape)
    return loss.sum() / torch.sym_max(loss.numel(), 1) if reduction == 1 else loss.sum()


def _grid_sampler_2d(x: Tensor, grid: Tensor, interpolation: int, padding: int, align_corners: bool) -> Any:
    """ATen takes the first place for a NaN, where padding brings all others inside; what is reflected without end is
    NaN, too."""
    whole = decomposition_table[aten.grid_sampler_2d.default]
    if padding == 0 or interpolation == 2:
        return whole(x, grid, interpolation, padding, align_corners)
    is_nowhere = ~grid.isfinite() if padding == 2 else grid.isnan()
    return whole(x, torch.where(is_nowhere, -1.0, grid), interpolation, padding, align_corners)


def _multi_margin_loss(
    x: Tensor, target: Tensor, p: Any = 1, margin: Any = 1, weight: Tensor | None = None, reduction: int = 1
) -> Tensor:
    """PyTorch's own counts terms that are NaN, gives the loss of a single sample a dimension, where losses are not
    reduced, and takes an order of 2.5 as it is, of which ATen drops the fraction."""
    rows, label = torch.atleast_2d(x), torch.atleast_1d(target).unsqueeze(1)
    classes = rows.shape[1]
    term = above = margin - rows.gather(1, label) + rows
    if p >= 2:
        term = term * above
    if weight is not None:
        term = term * weight[label]
    is_label = torch.arange(classes, device=x.device) == label
    loss = torch.where((above > 0) & ~is_label, term, 0).sum(1) / classes
    return _reduced(loss, target.shape, reduction)


def _multi_margin_loss_backward(
    grad: Tensor, x: Tensor, target: Tensor, p: Any, margin: Any, weight: Tensor | None = None, reduction: int = 1
) -> Tensor:
    """PyTorch has a decomposition of the loss only."""
    shape = x.shape
    x, label = torch.atleast_2d(x), torch.atleast_1d(target).unsqueeze(1)
    rows, classes = x.shape
    above = margin - x.gather(1, label) + x
    slope = torch.where(above > 0, 2 * above if p >= 2 else 1.0, 0.0) / classes
    if weight is not None:
        slope = slope * weight[label]
    if reduction == 1:
        slope = slope / rows
    is_label = torch.arange(classes, device=x.device) == label
    others = torch.where(is_label, 0, slope)
    change = torch.where(is_label, -others.sum(1, keepdim=True), others).to(x.dtype)
    return (change * (grad.reshape(-1, 1) if reduction == 0 else grad)).reshape(shape)


def _trilinear(
    one: Tensor,
    two: Tensor,
    three: Tensor,
    expand1: list[int],
    expand2: list[int],
    expand3: list[int],
    sumdim: list[int],
    unroll_dim: int = 1,
) -> Tensor:
    """Of all dimensions of the product, each factor lacks those that it is expanded by. PyTorch has none."""
    dims = range(one.dim() + len(expand1))
    kept = [[dim for dim in dims if dim not in without] for without in (expand1, expand2, expand3, sumdim)]
    return torch.einsum(one, kept[0], two, kept[1], three, kept[2], kept[3])


def _repeat_interleave(repeats: Tensor, output_size: int | None = None) -> Any:
    """PyTorch's own believes ``output_size``, and counts down where there is nothing to repeat."""
    if not isinstance(output_size, int) or repeats.dtype not in (torch.int32, torch.int64):
        return NotImplemented
    if repeats.shape[0] == 0 or output_size == 0:
        return NotImplemented
    ends = repeats.cumsum(0)
    _assert(repeats >= 0, "repeats can not be negative")
    _assert(ends[-1] == output_size, "allocated size does not match required size")
    place = torch.arange(output_size, device=repeats.device)
    found = torch.searchsorted(ends, place, out_int32=repeats.dtype == torch.int32, right=True)
    return found.clamp(max=repeats.shape[0] - 1)


def _searchsorted(sequence: Tensor, values: Tensor, *, sorter: Tensor | None = None, **options: Any) -> Any:
    """With ``sorter``: sorts first, which checks the places that it names."""
    if sorter is None:
        return NotImplemented
    return aten.searchsorted.Tensor(sequence.gather(-1, sorter), values, **options)


def _binary_cross_entropy(x: Tensor, target: Tensor, weight: Tensor | None = None, reduction: int = 1) -> Tensor:
    """PyTorch's own makes a number of what no probability is."""
    _assert((x >= 0) & (x <= 1), "all elements of input should be between 0 and 1")
    _assert((target >= 0) & (target <= 1), "all elements of target should be between 0 and 1")
    loss: Tensor = decomposition_table[aten.binary_cross_entropy.default](x, target, weight, reduction)
    return loss


def _lerp(start: Tensor, end: Tensor, weight: Tensor) -> Any:
    """Between integers, in the weight's dtype: PyTorch's own subtracts bytes, of which none is negative."""
    if start.dtype.is_floating_point or start.dtype.is_complex:
        return NotImplemented
    dtype = torch.result_type(start, weight)
    return aten.lerp.Tensor(start.to(dtype), end.to(dtype), weight)


def _frexp(x: Tensor) -> Any:
    """From the bits. Inductor has an operation for it that gives two values, which no dialect knows."""
    if x.dtype not in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        return NotImplemented
    is_double = x.dtype == torch.float64
    wide = x if is_double else x.float()
    integer, digits, bias = (torch.int64, 52, 1022) if is_double else (torch.int32, 23, 126)
    is_small = wide.abs() < torch.finfo(wide.dtype).tiny
    bits = torch.where(is_small, wide * 2.0**digits, wide).view(integer)
    ones = 2 * bias + 3  # all bits of the exponent
    exponent = ((bits >> digits) & ones) - bias - torch.where(is_small, digits, 0)
    mantissa = ((bits & ~(ones << digits)) | (bias << digits)).view(wide.dtype)
    is_special = (wide == 0) | ~wide.isfinite()
    exponent = torch.where(is_special, 0, exponent).to(torch.int32)
    return torch.where(is_special, wide, mantissa).to(x.dtype), exponent


def _averaging_backward(overload: Any) -> Callable[..., Any]:
    """The gradient of an average over windows. PyTorch's own divides by the whole window also where ``ceil_mode`` lets
    it reach beyond the padding."""

    def decompose(
        grad: Tensor,
        x: Tensor,
        kernel: list[int],
        stride: list[int],
        padding: list[int],
        ceil_mode: bool,
        count_include_pad: bool,
        divisor_override: int | None = None,
    ) -> Any:
        if not ceil_mode or not count_include_pad or divisor_override is not None:
            return NotImplemented
        dims = len(kernel)
        count = torch.ones([], dtype=torch.int64, device=x.device)
        for axis, (k, s, p) in enumerate(zip(kernel, stride or kernel, padding, strict=True)):
            begin = torch.arange(grad.shape[axis - dims], device=x.device) * s - p
            inside = torch.clamp(begin + k, max=x.shape[axis - dims] + p) - begin
            count = count * inside.view(-1, *[1] * (dims - 1 - axis))
        result: Tensor = overload(wide(grad) / count, wide(x), kernel, stride, padding, True, True, 1)
        return result.to(x.dtype)

    return decompose


def _refusing_integers(operator: str) -> Callable[..., Any]:
    def refuse(x: Tensor, *args: Any, **kwargs: Any) -> Any:
        promoted = args[0] if args and isinstance(args[0], Tensor) and args[0].is_floating_point() else x
        fills.check_floats(operator, promoted)
        return NotImplemented

    return refuse


def _check_variance(x: Tensor, *args: Any, **kwargs: Any) -> Any:
    fills.check_floats("var", x, RuntimeError("std and var only support floating point and complex dtypes"))
    return NotImplemented


def _deviation(x: Tensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    """The standard deviation, whose square need not be a number of the dtype: in float64 where the device has it."""
    _check_variance(x)
    result = _deviation_and_mean(x, dim, correction=correction, keepdim=keepdim)
    return result if result is NotImplemented else result[0]


def _deviation_and_mean(x: Tensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    """As :func:`_deviation`, and the mean. Without float64, of numbers that are divided by the largest."""
    if x.dtype not in (torch.float16, torch.bfloat16, torch.float32) or x.numel() == 0:
        return NotImplemented
    options = {"correction": correction, "keepdim": keepdim}
    if target_of(x.device.index or 0).has_fp64:
        variance, mean = aten.var_mean.correction(x.double(), dim, **options)
        return variance.sqrt().to(x.dtype), mean.to(x.dtype)
    dims = list(range(x.dim())) if dim is None or dim == [] else dim
    largest = wide(x).abs().amax(dims, keepdim=True)
    unit = torch.where((largest > 0) & (largest < math.inf), largest, 1)
    variance, mean = aten.var_mean.correction(wide(x) / unit, dim, **options)
    unit = unit if keepdim else unit.squeeze(dims)
    return (variance.sqrt() * unit).to(x.dtype), (mean * unit).to(x.dtype)


def _logical(overload: Any) -> Callable[..., Any]:
    """Of operands in the dtype that they make, in which a large number without dimensions may be 0."""

    def decompose(x: Tensor, other: Tensor) -> Any:
        dtype = torch.result_type(x, other)
        return NotImplemented if x.dtype == other.dtype else overload(x.to(dtype), other.to(dtype))

    return decompose


def _search_number(sequence: Tensor, number: Any, **options: Any) -> Tensor:
    """A number is compared in the dtype that it and the sequence make, where PyTorch's own takes it for a float."""
    dtype = torch.result_type(sequence, number)
    wanted = torch.full([1], number, dtype=dtype, device=sequence.device)
    found: Tensor = aten.searchsorted.Tensor(sequence, wanted, **options)
    return found[0]


def _bucketize_number(number: Any, boundaries: Tensor, *, out_int32: bool = False, right: bool = False) -> Tensor:
    return _search_number(boundaries, number, out_int32=out_int32, right=right)


def _pixel_unshuffle(x: Tensor, factor: int) -> Any:
    return x.clone(memory_format=torch.contiguous_format) if x.numel() == 0 else NotImplemented


def _any(reduce: Callable[..., Tensor]) -> Callable[..., Any]:
    """``any`` of bytes is a byte, as PyTorch once had no other bool."""

    def decompose(x: Tensor, *args: Any, **kwargs: Any) -> Any:
        if x.dtype != torch.uint8:
            return NotImplemented
        return reduce(x != 0, *args, **kwargs).to(torch.uint8)

    return decompose


def _promoted(clamp: Callable[..., Tensor], *names: str) -> Callable[..., Any]:
    """Limits take part in type promotion, and are held to the dtype that comes of it."""

    def decompose(x: Tensor, *limits: Any, **named: Any) -> Any:
        given = dict(zip(names, limits, strict=False)) | named
        dtype = x.dtype
        for value in given.values():
            if value is not None:
                dtype = torch.promote_types(dtype, torch.result_type(x, value))
        held = {name: fills.limit(value, dtype, name) for name, value in given.items()}
        return NotImplemented if dtype == x.dtype and held == given else clamp(x.to(dtype), **held)

    return decompose


def _where(condition: Tensor, yes: Any, no: Any) -> Any:
    """A condition may be of bytes, as PyTorch once had no bool."""
    return torch.where(condition != 0, yes, no) if condition.dtype == torch.uint8 else NotImplemented


def _roll(x: Tensor, shifts: Any, dims: Any = ()) -> Any:
    """Of nothing, no dimension is wrong. Along one, PyTorch's own has a remainder for each element, where a comparison
    will do."""
    if x.numel() == 0:
        return x.clone(memory_format=torch.contiguous_format)
    if len(shifts) != 1 or len(dims) != 1 or not x.dim():
        return NotImplemented
    dim = dims[0] % x.dim() if -x.dim() <= dims[0] < x.dim() else dims[0]
    size = x.shape[dim]
    places = (size - shifts[0]) % size + torch.arange(size, device=x.device)
    return x.index_select(dim, torch.where(places < size, places, places - size))


def _take(x: Tensor, index: Tensor) -> Any:
    """With an index without dimensions, which PyTorch's own makes a number of."""
    return NotImplemented if index.dim() else aten.take.default(x, index.reshape(1)).reshape([])


def _median(along: Any) -> Callable[..., Any]:
    """Over all elements the kernel takes a contiguous tensor, along a dimension any."""

    def decompose(x: Tensor) -> Any:
        return NotImplemented if x.is_contiguous() else along(x.reshape(-1), 0)[0]

    return decompose


def _constant_pad_nd(x: Tensor, pad: Any, value: Any = 0) -> Tensor:
    """PyTorch's own takes a value that is known only. Sides that are not padded have guards for that: else sizes are
    products of sums, which sympy expands for seconds."""
    _check_sides(x, pad)
    known = [0 if side == 0 else side for side in pad]
    if isinstance(value, (bool, int, float)):
        fills.check_number(value, x.dtype)
        return NotImplemented if known == list(pad) else aten.constant_pad_nd(x, known, value)
    inside = aten.constant_pad_nd(torch.ones([], dtype=torch.bool, device=x.device).expand(x.shape), pad, False)
    return torch.where(inside, aten.constant_pad_nd(x, pad, 0), aten.full([], value, dtype=x.dtype, device=x.device))


def _check_sides(x: Tensor, pad: Any) -> None:
    """Raises where sides cut more than there is, which PyTorch's own lets pass if the other side makes up for it."""
    for axis in range(len(pad) // 2):
        size = x.shape[-1 - axis]
        for side in pad[2 * axis : 2 * axis + 2]:
            size = size + side if side < 0 else size
        if size < 0:
            raise RuntimeError("narrow(): length must be non-negative.")


def _reflection_backward(grad: Tensor, x: Tensor, padding: Any) -> Any:
    """The gradient of reflected sides, of which some are cut: PyTorch's own takes what is cut for elements, too."""
    if all(side >= 0 for side in padding):
        return NotImplemented
    for axis in range(len(padding) // 2):
        left, dim = padding[2 * axis], grad.dim() - 1 - axis
        size, length = x.shape[dim], grad.shape[dim]
        place = torch.arange(size, device=grad.device)
        mirrored = [
            (place + left, place >= 0),
            (left - place, place > 0),
            (2 * (size - 1) + left - place, place < size - 1),
        ]
        parts = []
        for source, is_such in mirrored:
            found = grad.index_select(dim, source.clamp(0, length - 1))
            inside = (is_such & (source >= 0) & (source < length)).view(-1, *[1] * axis)
            parts.append(torch.where(inside, found, 0))
        grad = parts[0] + parts[1] + parts[2]
    return grad


def _of_no_bools(name: str) -> Callable[..., Any]:
    """``argmax`` and its like refuse truth values, of which Inductor finds one."""

    def decompose(x: Tensor, *_: Any, **__: Any) -> Any:
        if x.dtype == torch.bool:
            raise RuntimeError(f"{name}(): does not support bool input")
        return NotImplemented

    return decompose


def _cumulative_product(x: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Any:
    """Of truth values as bytes, where Inductor makes a tensor of int64 of them."""
    if x.dtype != torch.bool or dtype not in (None, torch.int64):
        return NotImplemented
    return aten.cumprod.default(x.to(torch.uint8), dim)


def _celu(x: Tensor, alpha: Any = 1) -> Any:
    """Refuses to divide by 0, as the CPU's kernel does. So a plan is for one ``alpha``."""
    if alpha == 0:
        raise RuntimeError("ZeroDivisionError: alpha cannot be 0 for CELU")
    return NotImplemented


def _elu(x: Tensor, alpha: Any = 1, scale: Any = 1, input_scale: Any = 1) -> Tensor:
    """Where ``x`` is 0 nothing is multiplied by ``alpha``, which may be infinite."""
    value = wide(x)
    negative = torch.expm1(value * input_scale) * (alpha * scale)
    return torch.where(value < 0, negative, value * scale).to(x.dtype)


def _gate(x: Tensor) -> Tensor:
    """``(1 + tanh(u)) / 2`` of the approximation of ``gelu``, which keeps its digits where ``tanh`` is nearly -1."""
    return torch.sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x))


def _gelu(x: Tensor, *, approximate: str = "none") -> Any:
    """``gelu`` by ``tanh`` as one by ``sigmoid``."""
    if approximate != "tanh":
        return NotImplemented
    value = wide(x)
    return (value * _gate(value)).to(x.dtype)


def _gelu_backward(grad: Tensor, x: Tensor, *, approximate: str = "none") -> Any:
    """The gradient of :func:`_gelu`."""
    if approximate != "tanh":
        return NotImplemented
    value = wide(x)
    gate = _gate(value)
    bounded = value.clamp(-100, 100)  # beyond, the gate is 0 or 1: nothing times what must not be infinite
    slope = 2 * math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * bounded * bounded)
    return (wide(grad) * gate * (1 + value * (1 - gate) * slope)).to(x.dtype)


def _hardswish_backward(grad: Tensor, x: Tensor) -> Tensor:
    """Exact around its zero, where PyTorch's own subtracts a rounded quotient."""
    value = wide(x)
    inside = torch.where(value < 3, grad * ((value + 1.5) / 3), grad)
    return torch.where(value <= -3, 0.0, inside).to(x.dtype)


def _threshold(x: Tensor, threshold: Any, value: Any) -> Any:
    """Of integers, with integers: PyTorch's own makes floats of large ones, which they do not fit again."""
    if x.dtype.is_floating_point:
        return NotImplemented
    replacement = torch.full((), torch.sym_int(value), dtype=x.dtype, device=x.device)
    return torch.where(x <= torch.sym_int(threshold), replacement, x)


def _xlog1py(x: Tensor, y: Tensor) -> Tensor:
    """``xlog1py``, of float32 by way of float64 where the device has it: a runtime's ``log1p`` may be off by more than
    one unit, and the product rounds once more. What decides how the result lies is ``x`` as it is, not a copy of it."""
    kind = torch.result_type(x, y)
    dtype = kind if kind.is_floating_point else torch.get_default_dtype()
    doubles = dtype == torch.float32 and target_of(x.device.index or 0).has_fp64
    real = torch.float64 if doubles else torch.promote_types(dtype, torch.float32)
    is_nothing = x == torch.where(torch.isnan(y), torch.nan, 0.0)
    return torch.where(is_nothing, 0.0, x * torch.log1p(y.to(real))).to(dtype)


def _shrink_backward(grad: Tensor, x: Tensor, limit: Any) -> Tensor:
    """Of ``hardshrink`` and ``softshrink``, for which PyTorch has no decomposition."""
    return torch.where((x >= -limit) & (x <= limit), 0.0, grad)


def _native_layer_norm(x: Tensor, shape: Any, weight: Any, bias: Any, eps: float) -> Any:
    """Of nothing, the mean is 0 and the deviation NaN."""
    if x.numel() or all(shape):
        return NotImplemented
    sizes = [*x.shape[: x.dim() - len(shape)], *[1] * len(shape)]
    dtype = torch.float32 if x.dtype in (torch.float16, torch.bfloat16) else x.dtype
    return torch.empty_like(x), x.new_zeros(sizes, dtype=dtype), x.new_full(sizes, float("nan"), dtype=dtype)


def _native_group_norm(
    x: Tensor, weight: Any, bias: Any, batch: int, channels: int, size: int, groups: int, eps: float
) -> Any:
    """As ``_native_layer_norm``; the mean and deviation of halves are of their weights' dtype."""
    dtype = x.dtype if weight is None else weight.dtype
    if not x.numel() and size == 0:
        sizes = (batch, groups)
        return torch.empty_like(x), x.new_zeros(sizes, dtype=dtype), x.new_full(sizes, float("nan"), dtype=dtype)
    if dtype == x.dtype:
        return NotImplemented
    result, *statistics = aten.native_group_norm(x.to(dtype), weight, bias, batch, channels, size, groups, eps)
    return result.to(x.dtype), *statistics


def _smooth_l1_loss_backward(grad: Tensor, x: Tensor, target: Tensor, reduction: int, beta: float) -> Tensor:
    """PyTorch's own has no gradient where a difference is NaN."""
    difference = x - target
    if reduction == 1:
        grad = grad / max(difference.numel(), 1)
    if beta == 0:
        slope = torch.zeros_like(difference)
    elif beta > 1e-37:  # its reciprocal is rounded once, as that of a constant is
        slope = difference * (1 / beta)
    else:
        slope = aten.div.Scalar(difference, beta)
    inside = torch.where(difference.abs() < beta, slope, difference.sign())
    return grad * torch.where(difference.isnan(), difference, inside)


def _smooth_l1_loss(x: Tensor, target: Tensor, reduction: int = 1, beta: float = 1.0) -> Any:
    """With a guard: the CPU refuses negative numbers."""
    bool(beta >= 0)
    return NotImplemented


def _slice_scatter(x: Tensor, source: Tensor, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    """With a guard: the CPU refuses what has not the size of the slice."""
    bool(source.shape[dim] == aten.slice(x, dim, start, end, step).shape[dim])
    return NotImplemented


def _bound(eps: Any, x: Tensor) -> Tensor:
    """The lower bound of ``logit``, as a number of the dtype of ``x``. Raises RuntimeError if that has none of it."""
    most = torch.finfo(x.dtype).max
    if not -most <= eps <= most:  # of which there is a guard
        eps = float(eps)
        fills.check_number(eps, x.dtype)
    return as_stored(torch.full((), eps, dtype=x.dtype, device=x.device))


def _logit(x: Tensor, eps: Any = None) -> Any:
    """PyTorch's own does not round the bounds: that of halves may be 1, of which the result is infinite."""
    if eps is None or not x.dtype.is_floating_point or eps < 0:
        return NotImplemented
    low = _bound(eps, x)
    high = as_stored(1 - low)
    x = torch.where(x < low, low, torch.where(x > high, high, x))
    return torch.log(x / (1 - x))


def _logit_backward(grad: Tensor, x: Tensor, eps: Any = None) -> Any:
    """As ``_logit``; PyTorch's own takes negative bounds for bounds."""
    if eps is None:
        return NotImplemented
    low = _bound(eps, x)
    if eps < 0:
        return aten.logit_backward(grad, x)
    value = wide(x)
    slope = wide(grad) / (value * (1 - value))
    return torch.where((x >= low) & (x <= as_stored(1 - low)), slope, 0.0).to(x.dtype)


def _huber_loss(x: Tensor, target: Tensor, reduction: int = 1, delta: float = 1.0) -> Any:
    """Losses have the dtype of ``x``, whatever that of the target is."""
    if not mistaken_shapes.target_of_other_dtype(x, target):
        return NotImplemented
    loss = aten.huber_loss(*(each.to(torch.result_type(x, target)) for each in (x, target)), 0, delta).to(x.dtype)
    return _reduced(loss, loss.shape, reduction)


def _loss_backward(grad: Tensor, x: Tensor, target: Tensor, reduction: int, *_: Any) -> Any:
    """PyTorch's own divides by the number of elements even if there are none."""
    return x - target if mistaken_shapes.mean_of_nothing(grad, x, target, reduction) else NotImplemented


def _in_float(overload: Any) -> Callable[..., Any]:
    """An operator whose number the CPU does not round, though halves are what it is computed from."""

    def decompose(x: Tensor, *args: Any, **kwargs: Any) -> Any:
        if x.dtype not in HALVES:
            return NotImplemented
        others = [each.float() if isinstance(each, Tensor) else each for each in args]
        return overload(x.float(), *others, **kwargs).to(x.dtype)

    return decompose


def _outside_if_negative(index: Tensor, size: Any) -> Tensor:
    """Indices into ``size`` elements, of which negative ones do not count from the end but are wrong."""
    return torch.where(index < 0, size, index)


def _counting_up(overload: Any) -> Callable[..., Tensor]:
    """PyTorch's decomposition of an operator with ``dim`` and ``index``, which takes negative indices."""
    whole, operator = decomposition_table[overload], overload._schema.name.removeprefix("aten::").rstrip("_")

    def decompose(x: Tensor, dim: int, index: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        fills.check_index(operator, index)
        size = x.shape[dim] if x.dim() else 1
        index = torch.atleast_1d(index) if x.dim() else index
        result: Tensor = whole(x, dim, _outside_if_negative(index, size), *args, **kwargs)
        return result

    return decompose


def _adding_rows(overload: Any) -> Callable[..., Tensor]:
    """``index_add``, which PyTorch's decomposition lets broadcast what it adds, or makes numbers of bools."""
    whole = _counting_up(overload)

    def decompose(x: Tensor, dim: int, index: Tensor, source: Tensor, **kwargs: Any) -> Tensor:
        sizes = [[*each.shape] for each in (x, source)]
        if x.dim() and source.dim() > dim % x.dim():
            sizes = [[*size[: dim % x.dim()], *size[dim % x.dim() + 1 :]] for size in sizes]
        if sizes[0] != sizes[1]:
            raise RuntimeError(
                "source tensor shape must match self tensor shape, excluding the specified dimension. "
                f"Got self.shape = {[*x.shape]} source.shape = {[*source.shape]}"
            )
        alpha = kwargs.get("alpha", 1)
        if source.dtype == torch.bool and alpha != 1:  # 1 makes a plan of its own: it reports wrong indices otherwise
            return whole(x, dim, index, (source * alpha).to(torch.bool))
        return whole(x, dim, index, source, **kwargs)

    return decompose


def _unpooling(overload: Any, dims: int) -> Callable[..., Tensor]:
    """PyTorch's decomposition of an unpooling writes an index past its image into the next."""
    whole = decomposition_table[overload]

    def decompose(x: Tensor, indices: Tensor, output_size: list[int], *args: Any) -> Tensor:
        size = math.prod(output_size)
        total = size * math.prod(x.shape[:-dims])
        checked = torch.where((indices < 0) | (indices >= size), total, indices)
        result: Tensor = whole(x, checked, output_size, *args)
        return result

    return decompose


def _batch_norm_backward(*args: Any) -> Any:
    """PyTorch's own computes the gradient of the source also where none is asked for."""
    *_, mask = args
    if mask[0]:
        return NotImplemented
    return (None, *decomposition_table[aten.native_batch_norm_backward.default](*args)[1:])


def _vector_norm(
    x: Tensor, order: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Any:
    """PyTorch's own asks whether the order is even, to save the absolute values: so one plan serves one order."""
    if not isinstance(order, torch.SymFloat):
        return NotImplemented
    known = next((each for each in (0.0, 1.0, 2.0) if order == each), None)
    if known is None and all(size == 1 for size in (x.shape if not dim or not x.dim() else [x.shape[d] for d in dim])):
        known = 1.0  # as any other: of one number it is the absolute value
    if known is not None:
        return decomposition_table[aten.linalg_vector_norm.default](x, known, dim, keepdim, dtype=dtype)
    exponent: Any = order
    wide, result = reduction_dtypes(x, REDUCTION_OUTPUT_TYPE_KIND.COMPLEX_TO_FLOAT, dtype)
    powers = torch.sum(x.to(wide).abs().pow(exponent), dim or None, keepdim)
    return powers.pow(1.0 / exponent).to(result)


def _diagonal_copy(x: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    """By the middle diagonal of what follows the first columns or rows: views take no offset that is not known."""
    if not isinstance(offset, torch.SymInt):
        return NotImplemented
    dim = dim2 if offset >= 0 else dim1
    skipped = torch.sym_min(offset if offset >= 0 else -offset, x.shape[dim])
    return x.narrow(dim, skipped, x.shape[dim] - skipped).diagonal(0, dim1, dim2).clone()


#: Overload -> its decomposition, which may return NotImplemented.
CORRECTIONS: dict[Any, Callable[..., Any]] = {
    aten.multilabel_margin_loss_forward.default: _multilabel_margin_loss,
    aten.grid_sampler_2d.default: _grid_sampler_2d,
    aten.multi_margin_loss.default: _multi_margin_loss,
    aten.multi_margin_loss_backward.default: _multi_margin_loss_backward,
    aten._trilinear.default: _trilinear,
    aten.repeat_interleave.Tensor: _repeat_interleave,
    aten.searchsorted.Tensor: _searchsorted,
    aten.searchsorted.Scalar: _search_number,
    aten.bucketize.Scalar: _bucketize_number,
    aten.binary_cross_entropy.default: _binary_cross_entropy,
    **{overload: _adding_rows(overload) for overload in (aten.index_add.default, aten.index_add_.default)},
    aten.lerp.Tensor: _lerp,
    aten.frexp.Tensor: _frexp,
    aten.lerp.Scalar: _in_float(aten.lerp.Scalar),
    aten.addcdiv.default: _in_float(aten.addcdiv.default),
    aten.avg_pool2d_backward.default: _averaging_backward(aten.avg_pool2d_backward.default),
    aten.avg_pool3d_backward.default: _averaging_backward(aten.avg_pool3d_backward.default),
    **{
        overload: _logical(overload)
        for overload in (aten.logical_and.default, aten.logical_or.default, aten.logical_xor.default)
    },
    aten.std.correction: _deviation,
    aten.var.correction: _check_variance,
    aten.std_mean.correction: _deviation_and_mean,
    **interpolation.CORRECTIONS,
    aten.pixel_unshuffle.default: _pixel_unshuffle,
    aten.any.default: _any(aten.any.default),
    aten.any.dim: _any(aten.any.dim),
    aten.any.dims: _any(aten.any.dims),
    aten.clamp.default: _promoted(aten.clamp.default, "min", "max"),
    aten.clamp_min.default: _promoted(aten.clamp_min.default, "min"),
    aten.clamp_max.default: _promoted(aten.clamp_max.default, "max"),
    aten.where.self: _where,
    aten.roll.default: _roll,
    aten.take.default: _take,
    **dict.fromkeys(
        (
            aten.reflection_pad1d_backward.default,
            aten.reflection_pad2d_backward.default,
            aten.reflection_pad3d_backward.default,
        ),
        _reflection_backward,
    ),
    aten.cumprod.default: _cumulative_product,
    aten.argmax.default: _of_no_bools("argmax"),
    aten.argmin.default: _of_no_bools("argmin"),
    aten.median.default: _median(aten.median.dim),
    aten.nanmedian.default: _median(aten.nanmedian.dim),
    aten.constant_pad_nd.default: _constant_pad_nd,
    aten.celu.default: _celu,
    aten.celu_.default: _celu,
    aten.elu.default: _elu,
    aten.gelu.default: _gelu,
    aten.gelu_backward.default: _gelu_backward,
    aten.special_xlog1py.default: _xlog1py,
    aten.threshold.default: _threshold,
    aten.hardswish_backward.default: _hardswish_backward,
    aten.hardshrink_backward.default: _shrink_backward,
    aten.softshrink_backward.default: _shrink_backward,
    aten.native_batch_norm_backward.default: _batch_norm_backward,
    aten.native_layer_norm.default: _native_layer_norm,
    aten.native_group_norm.default: _native_group_norm,
    aten.smooth_l1_loss.default: _smooth_l1_loss,
    aten.slice_scatter.default: _slice_scatter,
    aten.logit.default: _logit,
    aten.logit_backward.default: _logit_backward,
    aten.smooth_l1_loss_backward.default: _smooth_l1_loss_backward,
    aten.huber_loss.default: _huber_loss,
    aten.huber_loss_backward.default: _loss_backward,
    aten.mse_loss_backward.default: _loss_backward,
    aten.max_unpool2d.default: _unpooling(aten.max_unpool2d.default, 2),
    aten.max_unpool3d.default: _unpooling(aten.max_unpool3d.default, 3),
    aten.linalg_vector_norm.default: _vector_norm,
    aten.diagonal_copy.default: _diagonal_copy,
    **fills.CORRECTIONS,
    **{
        overload: _counting_up(overload)
        for overload in (
            aten.index_select.default,
            aten.index_copy.default,
            aten.index_copy_.default,
        )
    },
}


#: Operators of which the CPU has none for integers. Their decompositions and lowerings compute with them, and cut what
#: comes out.
_NOT_OF_INTEGERS = (
    aten._adaptive_avg_pool2d.default,
    aten._adaptive_avg_pool3d.default,
    aten._log_softmax.default,
    aten._softmax.default,
    aten.celu.default,
    aten.frac.default,
    aten.gelu.default,
    aten.glu.default,
    aten.grid_sampler_2d.default,
    aten.hardshrink.default,
    aten.hardsigmoid.default,
    aten.hardswish.default,
    aten.huber_loss.default,
    aten.hypot.default,
    aten.lerp.Scalar,
    aten.log_sigmoid_forward.default,
    aten.logaddexp.default,
    aten.logaddexp2.default,
    aten.mish.default,
    aten.mse_loss.default,
    aten.nextafter.default,
    aten.nll_loss2d_forward.default,
    aten.nll_loss_forward.default,
    aten.silu.default,
    aten.smooth_l1_loss.default,
    aten.softplus.default,
    aten.upsample_bicubic2d.vec,
    aten.upsample_bilinear2d.vec,
    aten.upsample_linear1d.vec,
    aten.upsample_trilinear3d.vec,
)


def _first(ours: Callable[..., Any], theirs: Callable[..., Any] | None) -> Callable[..., Any]:
    """One decomposition, and another where it returns NotImplemented."""
    if theirs is None:
        return ours

    def decompose(*args: Any, **kwargs: Any) -> Any:
        result = ours(*args, **kwargs)
        return theirs(*args, **kwargs) if result is NotImplemented else result

    return decompose


_OF_SOME_DTYPES = frozenset(_NOT_OF_INTEGERS) - CORRECTIONS.keys()
for _overload in _NOT_OF_INTEGERS:
    _name = _overload._schema.name.removeprefix("aten::").lstrip("_")
    CORRECTIONS[_overload] = _first(_refusing_integers(_name), CORRECTIONS.get(_overload))


#: Overloads whose correction is for some dtypes only; calls of others need not be taken apart to find out.
_CONCERNED: dict[Any, Callable[[torch.dtype], bool]] = {
    **dict.fromkeys(
        (aten.var.correction, *_OF_SOME_DTYPES), lambda dtype: not dtype.is_floating_point and not dtype.is_complex
    ),
    **dict.fromkeys(
        (aten.any.default, aten.any.dim, aten.any.dims, aten.where.self), lambda dtype: dtype == torch.uint8
    ),
    **dict.fromkeys(
        (aten.argmax.default, aten.argmin.default, aten.cumprod.default), lambda dtype: dtype == torch.bool
    ),
    **dict.fromkeys((aten.lerp.Scalar, aten.addcdiv.default), lambda dtype: dtype in HALVES),
    **dict.fromkeys(
        (aten.clamp.default, aten.clamp_min.default, aten.clamp_max.default), lambda dtype: not dtype.is_floating_point
    ),
}


def concerns(overload: Any, x: Any) -> bool:
    """Whether a call on ``x``, its first argument, may have to be corrected."""
    concerned = _CONCERNED.get(overload)
    return concerned is None or not isinstance(x, Tensor) or concerned(x.dtype)


def corrected(table: dict[Any, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
    """:data:`CORRECTIONS`, each with the table's own decomposition behind it."""
    return {overload: _first(function, table.get(overload)) for overload, function in CORRECTIONS.items()}
