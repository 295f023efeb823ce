# SPDX-License-Identifier: Apache-2.0
"""Kernels over the planes of images: what pooling, padding and interpolation share.

A tensor of ``channels`` or ``images, channels`` and one to three spatial dimensions is a set of planes of d x h x w
elements, missing dimensions being 1. *Forward* computes each element of the output from a plane of the input;
*backward* adds each element of the output's gradient to places of a plane of the input's. One work-item owns a plane
there, so sums need no atomics and have one order; they are kept in ``ACC`` and copied to the result at the end.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import sympy

from ..plans import plan as p
from ..plans import strided
from ..plans.builder import PlanBuilder, Size, TensorArg
from . import common

_ZERO, _ONE = sympy.Integer(0), sympy.Integer(1)

# For both: `in`'s side has size id x ih x iw, `out`'s od x oh x ow. BODY sees d, h, w (a place of the output).
_PLANE_AT = "#define PLANE_AT(z, y, x) IN_LOAD(in, at + (z) * in_d + (y) * in_h + (x) * in_w)\n"

_FORWARD = r"""
OB_KERNEL void forward(OB_GLOBAL const IN_T* in, OB_GLOBAL OUT_T* out PARAMETERS) {
  OB_FOR(i, images * channels * od * oh * ow) {
    long q = i;
    const long w = q % ow; q /= ow;
    const long h = q % oh; q /= oh;
    const long d = q % od; q /= od;
    const long c = q % channels, n = q / channels;
    const long at = n * in_n + c * in_c;
    const long to = n * out_n + c * out_c + d * out_d + h * out_h + w * out_w;
    BODY
  }
}
"""

_BACKWARD = r"""
#define PLANE_ADD(z, y, x, value) sums[((z) * ih + (y)) * iw + (x)] += (value)
OB_KERNEL void backward(OB_GLOBAL const OUT_T* out, OB_GLOBAL ACC* all_sums PARAMETERS) {
  OB_FOR(plane, images * channels) {
    const long c = plane % channels, n = plane / channels;
    const long area = id * ih * iw;
    OB_GLOBAL ACC* sums = all_sums + plane * area;
    for (long k = 0; k < area; ++k) sums[k] = 0;
    for (long d = 0; d < od; ++d)
      for (long h = 0; h < oh; ++h)
        for (long w = 0; w < ow; ++w) {
          const ACC gradient = (ACC)OUT_LOAD(out, n * out_n + c * out_c + d * out_d + h * out_h + w * out_w);
          BODY
        }
  }
}

OB_KERNEL void copy_sums(OB_GLOBAL const ACC* all_sums, OB_GLOBAL IN_T* in PARAMETERS) {
  OB_FOR(i, images * channels * id * ih * iw) {
    long q = i;
    const long w = q % iw; q /= iw;
    const long h = q % ih; q /= ih;
    const long d = q % id; q /= id;
    IN_STORE(in, q / channels * in_n + q % channels * in_c + d * in_d + h * in_h + w * in_w, all_sums[i]);
  }
}
"""


@dataclasses.dataclass
class Planes:
    """A problem on planes of ``inner`` (the input, or its gradient) and ``outer`` (the output, or its gradient).

    ``numbers`` are further ``long`` parameters by name, ``scales`` further ``ACC`` parameters; ``extra`` are further
    tensors (name, macro prefix, tensor), whose plane strides are ``<name>_n`` to ``<name>_w``."""

    inner: TensorArg
    outer: TensorArg
    spatial: int
    body: str
    numbers: Mapping[str, Size] = dataclasses.field(default_factory=dict)
    scales: Mapping[str, float] = dataclasses.field(default_factory=dict)
    extra: Sequence[tuple[str, str, TensorArg]] = ()
    helpers: str = ""

    def covered(self, builder: PlanBuilder) -> bool:
        """Whether dtypes and ranks are those the kernels know."""
        ranks = {self.spatial + 1, self.spatial + 2}
        tensors = [self.inner, self.outer, *(tensor for _, _, tensor in self.extra)]
        floats = self.inner.dtype in common.FLOAT_DTYPES and self.outer.dtype == self.inner.dtype
        same_rank = len({len(tensor.sizes) for tensor in tensors}) == 1 and len(self.inner.sizes) in ranks
        return floats and same_rank and common.supported(builder, self.inner.dtype)

    def forward(self, builder: PlanBuilder) -> bool:
        """Appends the computation of ``outer``; False, having appended nothing, if it is not covered."""
        if not self.covered(builder):
            return False
        text = self._source(builder, _FORWARD)
        arguments = [builder.pointer(self.inner), builder.pointer(self.outer), *self._arguments(builder)]
        common.launch_items(builder, builder.kernel(text, "forward"), self.outer.numel(), arguments, grain=256)
        return True

    def backward(self, builder: PlanBuilder) -> bool:
        """Appends the computation of ``inner``; False, having appended nothing, if it is not covered."""
        if not self.covered(builder):
            return False
        text = self._source(builder, _BACKWARD)
        planes = strided.product(five(self.inner, self.spatial).sizes[:2])
        in_place = strided.is_dense(self.inner.sizes, self.inner.strides)
        if in_place and common.stored_as(self.inner.dtype, self._accumulate):
            arguments = [builder.pointer(self.outer), builder.pointer(self.inner), *self._arguments(builder)]
            common.launch_items(builder, builder.kernel(text, "backward"), planes, arguments, grain=1)
            return True
        width = common.compute_size(self._accumulate)
        sums = builder.allocate(common.larger(width, self.inner.numel() * width))
        arguments = [builder.pointer(self.outer), builder.pointer(sums), *self._arguments(builder)]
        common.launch_items(builder, builder.kernel(text, "backward"), planes, arguments, grain=1)
        arguments = [builder.pointer(sums), builder.pointer(self.inner), *self._arguments(builder)]
        common.launch_items(builder, builder.kernel(text, "copy_sums"), self.inner.numel(), arguments)
        builder.free(sums)
        return True

    def custom(self, builder: PlanBuilder, text: str, entry: str, count: Size, grain: int = 64) -> None:
        """Appends a kernel of ``count`` items that takes ``in``, ``out`` and the usual parameters."""
        kernel = builder.kernel(self._source(builder, text), entry)
        arguments = [builder.pointer(self.inner), builder.pointer(self.outer), *self._arguments(builder)]
        common.launch_items(builder, kernel, count, arguments, grain=grain)

    @property
    def _accumulate(self) -> str:
        return common.ELEMENT_TYPES[self.inner.dtype].compute

    def _source(self, builder: PlanBuilder, text: str) -> str:
        body = self.body.replace("\n", " ")
        defines = {"ACC": self._accumulate, "PARAMETERS": self._parameters(), "BODY": body}
        types = {"IN": self.inner.dtype, "OUT": self.outer.dtype}
        types |= {prefix: tensor.dtype for _, prefix, tensor in self.extra}
        return common.source(builder, _PLANE_AT + self.helpers + text, defines, types)

    def _longs(self) -> dict[str, Size]:
        inner, outer = five(self.inner, self.spatial), five(self.outer, self.spatial)
        result: dict[str, Size] = {"images": inner.sizes[0], "channels": inner.sizes[1]}
        result |= dict(zip(("id", "ih", "iw"), inner.sizes[2:], strict=True))
        result |= dict(zip(("od", "oh", "ow"), outer.sizes[2:], strict=True))
        for name, tensor in (("in", inner), ("out", outer), *((n, five(t, self.spatial)) for n, _, t in self.extra)):
            result |= {f"{name}_{axis}": stride for axis, stride in zip("ncdhw", tensor.strides, strict=True)}
        return result | dict(self.numbers)

    def _parameters(self) -> str:
        pointers = "".join(f", OB_GLOBAL {prefix}_T* {name}" for name, prefix, _ in self.extra)
        longs = "".join(f", const long {name}" for name in self._longs())
        return pointers + longs + "".join(f", const ACC {name}" for name in self.scales)

    def _arguments(self, builder: PlanBuilder) -> list[p.Argument]:
        double = self._accumulate == "double"
        result = [builder.pointer(tensor) for _, _, tensor in self.extra]
        result += [builder.int64(value) for value in self._longs().values()]
        return result + [common.float_value(builder, value, double) for value in self.scales.values()]


def five(tensor: TensorArg, spatial: int) -> TensorArg:
    """The tensor as images, channels, d, h, w; what is missing is 1."""
    batch = len(tensor.sizes) - spatial
    lead, fill = [_ONE] * (2 - batch), [_ONE] * (3 - spatial)
    sizes = (*lead, *tensor.sizes[:batch], *fill, *tensor.sizes[batch:])
    zeros, none = [_ZERO] * len(lead), [_ZERO] * len(fill)
    strides = (*zeros, *tensor.strides[:batch], *none, *tensor.strides[batch:])
    return TensorArg(tensor.buffer, tensor.dtype, sizes, strides, tensor.offset)


def triple(values: Sequence[Size], filler: int) -> dict[str, Size]:
    """One to three values by axis letter, missing leading axes filled."""
    padded = [sympy.Integer(filler)] * (3 - len(values)) + list(values)
    return dict(zip("dhw", padded, strict=True))
