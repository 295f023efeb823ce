# SPDX-License-Identifier: Apache-2.0
"""Interpolation by factors, as PyTorch's CPU kernels do it.

A factor that the user names is not quite the ratio of the sizes, and places in the source are computed from it. Where
a side keeps its size, though, the CPU copies it in linear modes, and ``nearest`` in two dimensions copies or repeats a
side that keeps its size or doubles; so does CUDA, in linear modes if all sides keep their sizes. ``nearest`` in one and
three dimensions goes by the factor. PyTorch's decompositions always do, also by one that is not positive, which is none
on the CPU. A side of which the factor does not count is here given none. Gradients are those of the results: the CPU's
of ``nearest`` in one and three dimensions are those of copies, CUDA's are not.

A factor need not fit the sizes. Where it leads beyond the source, the last place counts; Inductor's lowering of
``nearest`` reads what lies in memory there.

Linear modes weigh both neighbours, rounded as the CPU's kernels round. PyTorch's decomposition computes places in the
dtype of the images, of halves too, and adds a part of the neighbours' difference to one, which is NaN of infinities.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch
from torch import Tensor
from torch._decomp.decompositions import upsample_compute_output_size
from torch._inductor import ir, lowering
from torch._inductor.virtualized import V, ops
from torch._prims_common import suggest_memory_format

aten = torch.ops.aten

#: Windows of more elements are added up by a kernel.
_MOST_TERMS = 25

#: Operator -> how often as long as before sides may be for the factor not to count.
_REPEATED: dict[str, tuple[int, ...]] = {
    "upsample_nearest1d": (),
    "upsample_nearest2d": (1, 2),
    "upsample_nearest3d": (),
    "_upsample_nearest_exact1d": (),
    "_upsample_nearest_exact2d": (),
    "_upsample_nearest_exact3d": (),
    "upsample_linear1d": (1,),
    "upsample_bilinear2d": (1,),
    "upsample_trilinear3d": (1,),
}


def _counting(
    repeated: Sequence[int], sizes: Sequence[Any], result: Sequence[Any], factors: Sequence[Any]
) -> list[Any]:
    """The factors, None for those that do not count."""
    return [
        None if factor is None or any(after == times * before for times in repeated) else factor
        for before, after, factor in zip(sizes, result, factors, strict=True)
    ]


def _corrected(overload: Any, repeated: Sequence[int], place: int = 0) -> Callable[..., Any]:
    """Without the factors that do not count. ``place`` is where the sizes of the source are among the arguments: those
    of a tensor, or given."""

    def decompose(*args: Any, **kwargs: Any) -> Any:
        values = _in_order(overload, args, kwargs)
        source, size = values[place], values[1]
        sides = source.shape[2:] if isinstance(source, Tensor) else source[2:]
        given = values[-len(size) :]
        counting = _counting(repeated, sides, size, given)
        return NotImplemented if counting == given else overload(*values[: -len(size)], *counting)

    return decompose


def _linear(overload: Any, repeated: Sequence[int]) -> Callable[..., Any]:
    """A linear mode of floats: the weighted sum of both neighbours in each dimension, the last one first."""

    def decompose(*args: Any, **kwargs: Any) -> Any:
        x, size, align_corners, *factors = _in_order(overload, args, kwargs)
        if not x.is_floating_point():
            return NotImplemented
        counting = _counting(repeated, x.shape[2:], size, factors)
        sides = zip(x.shape[2:], size, counting, strict=True)
        dtype = torch.promote_types(x.dtype, torch.float32)
        found = [_neighbours(*side, align_corners, dtype, x.device) for side in sides]
        tails = [[1] * (len(size) - 1 - axis) for axis in range(len(size))]
        places = [[place.view(-1, *tail) for place in pair] for (*pair, _), tail in zip(found, tails, strict=True)]
        values = [aten._unsafe_index(x, [None, None, *each]).to(dtype) for each in itertools.product(*places)]
        for (*_, weight), tail in zip(reversed(found), reversed(tails), strict=True):
            high = weight.view(-1, *tail)
            low = 1 - high
            values = [torch.addcmul(a * low, b, high) for a, b in zip(values[::2], values[1::2], strict=True)]
        return values[0].to(x.dtype).contiguous(memory_format=suggest_memory_format(x))

    return decompose


def _nearest(overload: Any, repeated: Sequence[int]) -> Callable[..., Any]:
    """The element whose place is nearest, rounded down, or with ``exact`` from the middle of a place."""
    offset = 0.5 if "exact" in str(overload) else 0.0

    def decompose(*args: Any, **kwargs: Any) -> Tensor:
        x, size, *factors = _in_order(overload, args, kwargs)
        counting = _counting(repeated, x.shape[2:], size, factors)
        places = []
        for axis, (before, after, factor) in enumerate(zip(x.shape[2:], size, counting, strict=True)):
            index = torch.arange(after, device=x.device, dtype=torch.float32) + offset
            place = (index * _step(before, after, factor)).clamp(max=before - 1).to(torch.int64)
            places.append(place.view(-1, *[1] * (len(size) - 1 - axis)))
        result: Tensor = aten._unsafe_index(x, [None, None, *places])
        return result.contiguous(memory_format=suggest_memory_format(x))

    return decompose


def _step(before: Any, after: Any, factor: Any) -> Any:
    """How far apart the places in the source are. A factor that is not positive is none."""
    return 1.0 / factor if factor is not None and factor > 0 else before / after


def _neighbours(
    before: Any, after: Any, factor: float | None, align_corners: bool, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """For each place of a side: the two places of the source around it, and the weight of the second."""
    index = torch.arange(after, device=device).to(dtype)
    if align_corners:
        place = index * ((before - 1) / (after - 1) if after > 1 else 0.0)
    else:
        step = _step(before, after, factor)
        place = torch.add(torch.full((), -0.5, dtype=dtype, device=device), index + 0.5, alpha=step).clamp(min=0)
    low = place.clamp(max=before - 1).to(torch.int64)
    return low, (low + 1).clamp(max=before - 1), (place - low).clamp(0, 1)


def _in_order(overload: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
    """All arguments, in the order of the schema; those not given are None."""
    arguments = overload._schema.arguments
    return [*args, *(kwargs.get(argument.name) for argument in arguments[len(args) :])]


def _by_factors(overload: Any, vec: Any) -> Callable[..., Tensor]:
    """``vec``, which computes the result's size itself, by the overload that is told it."""

    def decompose(*args: Any, **kwargs: Any) -> Tensor:
        x, size, *options, factors = _in_order(vec, args, kwargs)
        size = upsample_compute_output_size(x.shape, size, factors)
        result: Tensor = overload(x, size, *options, *(factors or []))
        return result

    return decompose


def _corrections() -> dict[Any, Callable[..., Any]]:
    table: dict[Any, Callable[..., Any]] = {}
    for name, repeated in _REPEATED.items():
        forward, backward = getattr(aten, name), getattr(aten, f"{name}_backward").default
        makes = _nearest if "nearest" in name else _linear
        table[forward.default] = makes(forward.default, repeated)
        table[forward.vec] = _by_factors(forward.default, forward.vec)
        if repeated:
            table[backward] = _corrected(backward, repeated, place=2)
    return table


#: Overload -> its decomposition, which returns NotImplemented where every factor counts.
CORRECTIONS = _corrections()


def register(name: str) -> None:
    """Has the gradient of ``upsample_nearest2d`` on the device called ``name`` go by the factors: by its kernel, unless
    sides grow to a power of 2 times their size. Inductor's lowering goes by sizes, whose ratio it takes for exact, and
    has to know them."""
    overload = aten.upsample_nearest2d_backward.default
    original = lowering.lowerings[overload]
    call = lowering.fallback_handler(overload, add_to_fallback_set=False)

    @functools.wraps(original)
    def lower(grad: Any, output_size: Any, input_size: Any, *factors: Any) -> Any:
        if grad.get_device() is None or grad.get_device().type != name:
            return original(grad, output_size, input_size, *factors)
        sides = zip(output_size, input_size[2:], [*factors, None, None][:2], strict=True)
        times = [_times(*side) for side in sides]
        if 0 in times or math.prod(times) > _MOST_TERMS:
            return call(grad, output_size, input_size, *factors)
        for size, same in zip(grad.get_size(), (*input_size[:2], *output_size), strict=True):
            V.graph.sizevars.check_equals(size, same)
        return _sums(grad, input_size, *times)

    lowering.lowerings[overload] = lower


def _times(after: Any, before: Any, factor: float | None) -> int:
    """How often as long a side becomes, if that is a power of 2 and the factor says the same; else 0."""
    known = [V.graph.sizevars.optimization_hint(size) for size in (after, before)]
    times = known[0] // known[1] if known[1] else 0
    if times < 1 or times & (times - 1) or factor not in (None, times):
        return 0
    return times if V.graph.sizevars.evaluate_expr(sympy.Eq(after, times * before)) else 0


def _sums(grad: Any, size: Sequence[Any], high: int, wide: int) -> Any:
    """What lies in each window of ``high`` by ``wide``, row by row, as the CPU adds it up."""
    grad.realize_hint()
    load = grad.make_loader()

    def window(index: Sequence[Any]) -> Any:
        *image, h, w = index
        places = itertools.product(range(high), range(wide))
        return functools.reduce(ops.add, (load([*image, high * h + a, wide * w + b]) for a, b in places))

    return ir.Pointwise.create(device=grad.get_device(), dtype=grad.get_dtype(), inner_fn=window, ranges=list(size))
