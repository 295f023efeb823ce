# SPDX-License-Identifier: Apache-2.0
"""Parts of graphs that one executable serves for many sizes: inputs are padded to the sizes that the compiler has
buckets for, and results are cut. Both are copies of bytes, which every driver has."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import sympy
import torch

from outboard import compilers

from ...plans import plan as p
from ...plans.builder import PlanBuilder
from ...plans.schema import serialize
from ...target import target_of
from ..interface import device_name
from .padding import Dim, Number, Padded
from .parts import MOST_SIZES, Part, layout_of

#: Copies that padding or cutting one tensor may take; what is in more pieces gets an executable of its own size.
MOST_COPIES = 256

_Sizes = dict[sympy.Symbol, int]


class BucketedPart:
    """A part of a graph that is padded where it can be, and else is compiled for each set of sizes."""

    def __init__(self, static: Part, part: Part, padded: Padded, buckets: compilers.Bucketing, index: int) -> None:
        self._static, self._part, self._padded, self._index = static, part, padded, index
        self._bucket = buckets.bucket
        self._fits: dict[Any, _Fit | None] = {}
        self.__name__ = "executable"

    def __call__(self, *args: Any) -> Any:
        key = layout_of(args)
        if key not in self._fits:
            if len(self._fits) == MOST_SIZES:
                self._fits.pop(next(iter(self._fits)))
            self._fits[key] = self._fit(args)
        fit = self._fits[key]
        if fit is None:
            return self._static(*args)
        results = self._part(*fit.pad(args))
        return fit.cut(results) if self._part.gives_several else fit.cut([results])[0]

    def _fit(self, args: Sequence[Any]) -> _Fit | None:
        sizes = self._padded.sizes_of(args)
        buckets = {symbol: self._bucket(sizes[symbol]) for symbol in self._padded.varying}
        if 0 in sizes.values() or not any(buckets.values()):
            return None
        wide = {symbol: buckets.get(symbol) or size for symbol, size in sizes.items()}
        if any(wide[symbol] < size for symbol, size in sizes.items()):
            raise ValueError(
                f"the compiler has buckets {wide} for {sizes}: a bucket is no smaller than what goes into it"
            )
        try:
            return _Fit(self._padded, self._part, args, sizes, wide, self._index)
        except _Unfit:
            return None


class _Unfit(Exception):
    """These sizes are not padded."""


class _Fit:
    """How arguments of one set of sizes and strides are padded, and their results cut."""

    def __init__(
        self, padded: Padded, part: Part, args: Sequence[Any], sizes: _Sizes, wide: _Sizes, index: int
    ) -> None:
        self._padded, self._sizes, self._wide, self._index = padded, sizes, wide, index
        self._device = torch.device(device_name(), index)
        self._numbers = [
            None if isinstance(arg, torch.Tensor) else int(what.subs(wide))  # type: ignore[union-attr]
            for arg, what in zip(args, padded.inputs, strict=True)
        ]
        self._pads = [
            None if number is not None else self._copies(arg, dims, sizes, wide)
            for arg, dims, number in zip(args, padded.inputs, self._numbers, strict=True)
        ]
        self._extra = [self._given(what) for what in padded.extra]
        self._cuts: list[_Copies | None] | None = None  # known with the first results
        if part.plan_of(self.pad(args)) is None:
            raise _Unfit

    def pad(self, args: Sequence[Any]) -> list[Any]:
        """The arguments of the padded graph."""
        given = zip(args, self._pads, self._numbers, strict=True)
        return [number if number is not None else copies(arg) if copies else arg for arg, copies, number in given] + (
            self._extra
        )

    def cut(self, results: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The results without what came of padding."""
        if self._cuts is None:
            pairs = zip(results, self._padded.results, strict=True)
            self._cuts = [self._copies(result, dims, self._wide, self._sizes) for result, dims in pairs]
        return [copies(result) if copies else result for result, copies in zip(results, self._cuts, strict=True)]

    def _copies(self, tensor: torch.Tensor, dims: Any, have: _Sizes, want: _Sizes) -> _Copies | None:
        before, after = ([[_value(factor, sizes) for factor in dim] for dim in dims] for sizes in (have, want))
        return None if before == after else _Copies(tensor, before, after, self._index)

    def _given(self, what: Dim | Number) -> torch.Tensor:
        if len(what) == 2 and isinstance(what[1], torch.dtype):
            return torch.tensor(float(what[0].subs(self._sizes)), dtype=what[1]).to(self._device)
        rows = torch.ones((), dtype=torch.bool)
        for factor in what:
            size, whole = _value(factor, self._sizes), _value(factor, self._wide)
            rows = rows[..., None] & (torch.arange(whole) < size)
        return rows.flatten().to(self._device)


def _value(factor: sympy.Expr, sizes: _Sizes) -> int:
    return int(factor.subs(sizes))


class _Copies:
    """Takes what a dense tensor holds to one of other sizes, dense in the same order; new rows are 0. Raises _Unfit if
    there would be too many pieces. Sizes are given as the factors of each dimension."""

    def __init__(
        self, tensor: torch.Tensor, before: Sequence[Sequence[int]], after: Sequence[Sequence[int]], index: int
    ) -> None:
        from outboard import _C

        strides = tensor.stride()
        order = sorted(range(tensor.dim()), key=lambda d: (-strides[d], d))
        if _dense(tensor.shape, order) != [*strides] and not tensor.is_contiguous():
            raise _Unfit
        self._sizes = [math.prod(factors) for factors in after]
        self._strides = _dense(self._sizes, order)
        self._grows = math.prod(self._sizes) > tensor.numel()
        have, want = ([factor for d in order for factor in each[d]] for each in (before, after))
        last = max(place for place, sizes in enumerate(zip(have, want, strict=True)) if sizes[0] != sizes[1])
        common = [*map(min, have, want)]
        if math.prod(common[:last]) > MOST_COPIES:
            raise _Unfit
        builder = PlanBuilder(target_of(index))
        source, made = (builder.add_input(p.InputKind.TENSOR) for _ in range(2))
        nbytes = math.prod(common[last:]) * tensor.itemsize
        for at in itertools.product(*map(range, common[:last])):
            offsets = (_offset(at, sizes) * tensor.itemsize for sizes in (have, want))
            builder.copy(source, made, nbytes, *offsets)
        self._plan = _C.Plan(serialize(builder.finish()), index)

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        make = torch.zeros if self._grows else torch.empty
        memory = make(math.prod(self._sizes), dtype=tensor.dtype, device=tensor.device)
        made = memory.as_strided(self._sizes, self._strides)
        self._plan.run([tensor, made])
        return made


def _dense(sizes: Sequence[int], order: Sequence[int]) -> list[int]:
    """The strides of a tensor whose dimensions lie in this order, the outermost first."""
    strides, stride = [0] * len(sizes), 1
    for dim in reversed(order):
        strides[dim] = stride
        stride *= sizes[dim]
    return strides


def _offset(at: Sequence[int], sizes: Sequence[int]) -> int:
    """The number of the element where the outer dimensions are ``at`` and the others 0."""
    offset = 0
    for place, size in enumerate(sizes):
        offset = offset * size + (at[place] if place < len(at) else 0)
    return offset
