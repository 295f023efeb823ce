# SPDX-License-Identifier: Apache-2.0
"""Deformable convolution (Dai et al. 2017; with factors, Zhu et al. 2018), torchvision's ``deform_conv2d``, and its
gradients.

What the filters see is gathered into columns, [groups, channels of a group x taps, images x pixels]: the rest of the
work is products of matrices, of ``gemm``. The gradient of the input is summed by items that own a plane each, so it
needs no atomics.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sympy

from ..plans import plan as p
from ..plans import strided
from ..plans.builder import NotExpressible, PlanBuilder, Size, TensorArg
from . import common, gemm, index

if TYPE_CHECKING:
    from .call import ExternCall

_BODY = r"""
#define ACC IN_C
#define PARAMETERS \
  OB_GLOBAL const IN_T* offset, OB_GLOBAL const IN_T* mask, const long images, const long channels, \
  const long height, const long width, const long filters, const long taps_y, const long taps_x, const long out_h, \
  const long out_w, const long offset_groups, const long stride_y, const long stride_x, const long pad_y, \
  const long pad_x, const long step_y, const long step_x, const long in_n, const long in_c, const long in_h, \
  const long in_w
/* Where tap `tap` of image `n` looks from pixel `at` (a number in out_h x out_w), in offset group `g`. */
#define PLACE \
  const long taps = taps_y * taps_x, pixels = out_h * out_w; \
  const long seen = ((n * offset_groups + g) * taps + tap) * pixels + at; \
  const long pair = ((n * offset_groups + g) * taps + tap) * 2 * pixels + at; \
  const ACC factor = HAS_MASK ? IN_LOAD(mask, seen) : (ACC)1; \
  const ACC y = (ACC)(at / out_w * stride_y - pad_y + tap / taps_x * step_y) + IN_LOAD(offset, pair); \
  const ACC x = (ACC)(at % out_w * stride_x - pad_x + tap % taps_x * step_x) + IN_LOAD(offset, pair + pixels); \
  /* Far outside, or no number, stays outside as an integer. */ \
  const int is_near = y > (ACC)-1 && x > (ACC)-1 && y < (ACC)height && x < (ACC)width; \
  const long y0 = is_near ? (long)floor(y) : -2, x0 = is_near ? (long)floor(x) : -2; \
  const ACC wy = is_near ? y - (ACC)y0 : 0, wx = is_near ? x - (ACC)x0 : 0;
#define INSIDE(y, x) ((y) >= 0 && (x) >= 0 && (y) < height && (x) < width)
#define PIXEL(y, x) (INSIDE(y, x) ? IN_LOAD(plane, (y) * in_h + (x) * in_w) : (ACC)0)
#define READ_CORNERS \
  const ACC v00 = PIXEL(y0, x0), v01 = PIXEL(y0, x0 + 1), v10 = PIXEL(y0 + 1, x0), v11 = PIXEL(y0 + 1, x0 + 1);
#define BLEND ((1 - wy) * ((1 - wx) * v00 + wx * v01) + wy * ((1 - wx) * v10 + wx * v11))

/* One item owns CHANNELS channels of an offset group at a tap and pixel, and finds out only once where it looks. */
OB_KERNEL void gather(OB_GLOBAL const IN_T* in, OB_GLOBAL IN_T* columns, PARAMETERS) {
  const long share = channels / offset_groups, chunks = (share + CHANNELS - 1) / CHANNELS;
  OB_FOR(i, offset_groups * chunks * taps_y * taps_x * images * out_h * out_w) {
    long q = i;
    const long at = q % (out_h * out_w); q /= out_h * out_w;
    const long n = q % images; q /= images;
    const long tap = q % (taps_y * taps_x); q /= taps_y * taps_x;
    const long from = q % chunks * CHANNELS, g = q / chunks;
    const long end = from + CHANNELS < share ? from + CHANNELS : share;
    PLACE
    for (long c = g * share + from; c < g * share + end; ++c) {
      OB_GLOBAL const IN_T* plane = in + n * in_n + c * in_c;
      READ_CORNERS
      IN_STORE(columns, ((c * taps + tap) * images + n) * pixels + at, factor * BLEND);
    }
  }
}

/* The gradients of a tap's offsets and of its factor. */
OB_KERNEL void tap_gradients(OB_GLOBAL const IN_T* in, OB_GLOBAL const IN_T* columns, OB_GLOBAL IN_T* to_offset,
                             OB_GLOBAL IN_T* to_mask, PARAMETERS) {
  OB_FOR(i, images * offset_groups * taps_y * taps_x * out_h * out_w) {
    long q = i;
    const long at = q % (out_h * out_w); q /= out_h * out_w;
    const long tap = q % (taps_y * taps_x); q /= taps_y * taps_x;
    const long g = q % offset_groups, n = q / offset_groups, share = channels / offset_groups;
    PLACE
    ACC along_y = 0, along_x = 0, of_factor = 0;
    for (long c = g * share; c < (g + 1) * share; ++c) {
      OB_GLOBAL const IN_T* plane = in + n * in_n + c * in_c;
      READ_CORNERS
      const ACC gradient = IN_LOAD(columns, ((c * taps + tap) * images + n) * pixels + at);
      along_y += gradient * factor * (wx * (v11 - v01) + (1 - wx) * (v10 - v00));
      along_x += gradient * factor * (wy * (v11 - v10) + (1 - wy) * (v01 - v00));
      of_factor += gradient * BLEND;
    }
    IN_STORE(to_offset, pair, along_y);
    IN_STORE(to_offset, pair + pixels, along_x);
#if HAS_MASK
    IN_STORE(to_mask, seen, of_factor);
#endif
  }
}

OB_KERNEL void scatter(OB_GLOBAL const IN_T* columns, OB_GLOBAL ACC* all_sums, OB_GLOBAL IN_T* to, PARAMETERS) {
  OB_FOR(item, images * channels) {
    const long n = item / channels, c = item % channels, g = c / (channels / offset_groups);
    OB_GLOBAL ACC* sums = all_sums + item * height * width;
    for (long k = 0; k < height * width; ++k) sums[k] = 0;
    for (long tap = 0; tap < taps_y * taps_x; ++tap)
      for (long at = 0; at < out_h * out_w; ++at) {
        PLACE
        const ACC gradient = factor * IN_LOAD(columns, ((c * taps + tap) * images + n) * pixels + at);
        for (int corner = 0; corner < 4; ++corner) {
          const long row = y0 + corner / 2, column = x0 + corner % 2;
          const ACC weight = (corner / 2 ? wy : 1 - wy) * (corner % 2 ? wx : 1 - wx);
          if (INSIDE(row, column)) sums[row * width + column] += weight * gradient;
        }
      }
    for (long k = 0; k < height * width; ++k)
      IN_STORE(to, n * in_n + c * in_c + k / width * in_h + k % width * in_w, sums[k]);
  }
}

/* Between [images, filters, pixels], of any strides, and [filters, images x pixels]. */
#define FLAT_PARAMETERS \
  const long images, const long filters, const long pixels, const long out_w, const long out_n, const long out_c, \
  const long out_h, const long out_x
#define FLAT_PLACE \
  const long at = i % pixels, n = i / pixels % images, f = i / pixels / images; \
  const long place = n * out_n + f * out_c + at / out_w * out_h + at % out_w * out_x;
OB_KERNEL void finish(OB_GLOBAL const IN_T* flat, OB_GLOBAL const IN_T* bias, OB_GLOBAL IN_T* out, FLAT_PARAMETERS) {
  OB_FOR(i, filters * images * pixels) {
    FLAT_PLACE
    IN_STORE(out, place, IN_LOAD(flat, i) + IN_LOAD(bias, f));
  }
}
OB_KERNEL void flatten(OB_GLOBAL const IN_T* out, OB_GLOBAL IN_T* flat, FLAT_PARAMETERS) {
  OB_FOR(i, filters * images * pixels) {
    FLAT_PLACE
    IN_STORE(flat, i, IN_LOAD(out, place));
  }
}
OB_KERNEL void sum_rows(OB_GLOBAL const IN_T* flat, OB_GLOBAL IN_T* sums, const long rows, const long length) {
  OB_FOR(row, rows) {
    ACC sum = 0;
    for (long i = 0; i < length; ++i) sum += IN_LOAD(flat, row * length + i);
    IN_STORE(sums, row, sum);
  }
}
OB_KERNEL void clear(OB_GLOBAL IN_T* to, const long count) {
  OB_FOR(i, count) IN_STORE(to, i, (ACC)0);
}
"""


#: Vectors of channels of an item that gathers.
_CHANNELS = 1


def _matrices(buffer: TensorArg, batch: Size, rows: Size, columns: Size) -> TensorArg:
    """Contiguous elements seen as (batch, rows, columns)."""
    strides = (rows * columns, columns, sympy.Integer(1))
    return TensorArg(buffer.buffer, buffer.dtype, (batch, rows, columns), strides, buffer.offset)


def _transposed(matrices: TensorArg) -> TensorArg:
    (batch, rows, columns), (step, row, column) = matrices.sizes, matrices.strides
    return TensorArg(matrices.buffer, matrices.dtype, (batch, columns, rows), (step, column, row), matrices.offset)


class _Problem:
    """One call: its tensors, sizes and program."""

    def __init__(self, builder: PlanBuilder, call: ExternCall, outer: TensorArg) -> None:
        self.builder, self.outer = builder, outer
        self.values: dict[str, Any] = call.bind()
        self.input: TensorArg = self.values["input"]
        self.weight: TensorArg = self.values["weight"]
        self.offset: TensorArg = self.values["offset"]
        self.mask: TensorArg = self.values["mask"]
        self.has_mask = bool(self.values["use_mask"])
        self.temporary: list[TensorArg] = []
        self.channels = builder.target.tuning.beside(_CHANNELS)

    def covered(self) -> bool:
        """Whether dtypes and ranks are those that the kernels know."""
        tensors = (self.input, self.weight, self.offset, self.mask, self.values["bias"], self.outer)
        dtypes = {tensor.dtype for tensor in tensors}
        ranks = {len(tensor.sizes) for tensor in (self.input, self.weight, self.offset, self.outer)}
        floats = len(dtypes) == 1 and dtypes <= common.FLOAT_DTYPES and ranks == {4}
        known = all(common.static_int(self.values[name]) for name in ("groups", "offset_groups"))
        return floats and known and common.supported(self.builder, self.input.dtype)

    def prepare(self) -> None:
        """Has all tensors that kernels take as they lie be dense."""
        self.weight, self.offset, bias = (self.dense(x) for x in (self.weight, self.offset, self.values["bias"]))
        self.values["bias"] = bias
        if self.has_mask:
            self.mask = self.dense(self.mask)
        self.text = common.source(
            self.builder, _BODY, {"HAS_MASK": int(self.has_mask), "CHANNELS": self.channels}, {"IN": self.input.dtype}
        )
        groups = sympy.Integer(common.static_int(self.values["groups"]) or 1)
        images, filters, *pixels = self.outer.sizes
        self.groups, self.filters = groups, filters
        self.terms = strided.product(self.weight.sizes[1:])
        self.pixels = strided.product(pixels)
        self.positions = images * self.pixels

    def dense(self, tensor: TensorArg) -> TensorArg:
        """The tensor, or a dense copy of it."""
        made = index._dense(self.builder, tensor)
        if made is not tensor:
            self.temporary.append(made)
        return made

    def matrices(self, rows: Size, columns: Size) -> TensorArg:
        """Room for a matrix of each group."""
        strides = (rows * columns, columns, sympy.Integer(1))
        made = self.builder.allocate_like((self.groups, rows, columns), strides, self.input.dtype)
        self.temporary.append(made)
        return made

    def filters_of_groups(self) -> TensorArg:
        """The weights as matrices."""
        return _matrices(self.weight, self.groups, self.filters / self.groups, self.terms)

    def launch(self, entry: str, count: Size, tensors: list[TensorArg], grain: int = 64) -> None:
        """One of the kernels with ``PARAMETERS``."""
        values, input_ = self.values, self.input
        numbers = [*input_.sizes, self.filters, *self.weight.sizes[2:], *self.outer.sizes[2:]]
        numbers += [values[name] for name in ("offset_groups", "stride_h", "stride_w", "pad_h", "pad_w")]
        numbers += [values["dilation_h"], values["dilation_w"]]
        pointers = [self.builder.pointer(item) for item in (*tensors, self.offset, self.mask)]
        # The input's gradient is laid out as it likes: `scatter` takes its strides.
        laid_out = tensors[-1] if entry == "scatter" else input_
        self._launch(entry, count, pointers, [*numbers, *laid_out.strides], grain)

    def gather(self, columns: TensorArg) -> None:
        """What the filters see."""
        groups = common.static_int(self.values["offset_groups"]) or 1
        chunks = common.ceil_div(common.floor_div(self.input.sizes[1], groups), self.channels)
        items = groups * chunks * strided.product(self.weight.sizes[2:]) * self.positions
        self.launch("gather", items, [self.input, columns], grain=16)

    def launch_flat(self, entry: str, tensors: list[TensorArg]) -> None:
        """One of the kernels with ``FLAT_PARAMETERS``."""
        images, filters, _, width = self.outer.sizes
        pointers = [self.builder.pointer(item) for item in tensors]
        numbers = [images, filters, self.pixels, width, *self.outer.strides]
        self._launch(entry, self.outer.numel(), pointers, numbers, 512)

    def _launch(self, entry: str, count: Size, pointers: list[p.Argument], numbers: list[Size], grain: int) -> None:
        arguments = pointers + [self.builder.int64(number) for number in numbers]
        common.launch_items(self.builder, self.builder.kernel(self.text, entry), count, arguments, grain=grain)

    def sum_rows(self, flat: TensorArg, sums: TensorArg) -> None:
        """The sum over all images and pixels of each filter."""
        pointers = [self.builder.pointer(flat), self.builder.pointer(sums)]
        self._launch("sum_rows", self.filters, pointers, [self.filters, self.positions], 1)

    def clear(self, tensor: TensorArg) -> None:
        """Zeros."""
        self._launch("clear", tensor.numel(), [self.builder.pointer(tensor)], [tensor.numel()], 8192)

    def multiply(self, left: TensorArg, right: TensorArg, product: TensorArg) -> None:
        """Products of matrices. Raises NotExpressible if the device has no kernel for these."""
        if not gemm.emit(self.builder, left, right, product):
            raise NotExpressible("products of a deformable convolution")

    def end(self) -> None:
        """Gives intermediate results back."""
        for tensor in self.temporary:
            self.builder.free(tensor.buffer)


def lower_forward(builder: PlanBuilder, call: ExternCall) -> bool:
    """``deform_conv2d``."""
    out = call.outputs()[0]
    problem = _Problem(builder, call, out)
    if not problem.covered():
        return False
    problem.prepare()
    columns = problem.matrices(problem.terms, problem.positions)
    products = problem.matrices(problem.filters / problem.groups, problem.positions)
    problem.gather(columns)
    problem.multiply(problem.filters_of_groups(), columns, products)
    problem.launch_flat("finish", [products, problem.values["bias"], out])
    problem.end()
    return True


def lower_backward(builder: PlanBuilder, call: ExternCall) -> bool:
    """``_deform_conv2d_backward``: the gradients of input, weight, offsets, factors and bias."""
    to_input, to_weight, to_offset, to_mask, to_bias = call.outputs()
    problem = _Problem(builder, call, call.tensor(0))
    dense = all(tensor.is_contiguous() for tensor in (to_weight, to_offset, to_mask, to_bias))
    if not problem.covered() or not dense:
        return False
    problem.prepare()
    columns = problem.matrices(problem.terms, problem.positions)
    gradients = problem.matrices(problem.filters / problem.groups, problem.positions)
    problem.launch_flat("flatten", [problem.outer, gradients])
    problem.sum_rows(gradients, to_bias)
    problem.gather(columns)
    of_filters = _matrices(to_weight, problem.groups, problem.filters / problem.groups, problem.terms)
    problem.multiply(gradients, _transposed(columns), of_filters)
    problem.multiply(_transposed(problem.filters_of_groups()), gradients, columns)
    _spread(problem, columns, to_input, to_offset, to_mask)
    problem.end()
    return True


def _spread(
    problem: _Problem, columns: TensorArg, to_input: TensorArg, to_offset: TensorArg, to_mask: TensorArg
) -> None:
    """What the gradient of the columns means for what they were gathered from."""
    builder, compute = problem.builder, common.ELEMENT_TYPES[to_input.dtype].compute
    width = common.compute_size(compute)
    sums = builder.allocate(common.larger(width, to_input.numel() * width))
    view = TensorArg(sums, to_input.dtype, to_input.sizes, to_input.strides)
    planes = strided.product(to_input.sizes[:2])
    problem.launch("scatter", planes, [columns, view, to_input], grain=1)
    builder.free(sums)
    taps = to_offset.numel() / 2
    problem.launch("tap_gradients", taps, [problem.input, columns, to_offset, to_mask], grain=16)
    if not problem.has_mask:
        problem.clear(to_mask)
