# SPDX-License-Identifier: Apache-2.0
"""Sampling images at given places: grid_sampler of two and three dimensions and its gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..plans import strided
from ..plans.builder import PlanBuilder, TensorArg
from . import common, planes

if TYPE_CHECKING:
    from .call import ExternCall

# Places are read from the grid in the order x, y, z. `slope` is d place / d grid value.
_PLACES = r"""
ACC reflect(ACC place, ACC twice_low, ACC twice_high, ACC* slope) {
  if (twice_low == twice_high) { *slope = 0; return 0; }
  const ACC low = twice_low / 2, span = (twice_high - twice_low) / 2;
  ACC away = place - low;
  if (away < 0) { *slope = -*slope; away = -away; }
  const ACC rest = fmod(away, span);
  const ACC flips = floor(away / span);
  if (fmod(flips, (ACC)2) == 0) return rest + low;
  *slope = -*slope;
  return span - rest + low;
}
ACC clip(ACC place, long size, ACC* slope) {
  /* NaN goes to 0, as ATen's clip of NaN does. */
  if (!(place > 0)) { *slope = 0; return 0; }
  if (place >= (ACC)(size - 1)) { *slope = 0; return (ACC)(size - 1); }
  return place;
}
ACC place_of(ACC value, long size, ACC* slope) {
  *slope = ALIGN ? (ACC)(size - 1) / 2 : (ACC)size / 2;
  ACC place = ALIGN ? (value + 1) / 2 * (ACC)(size - 1) : ((value + 1) * (ACC)size - 1) / 2;
  if (PADDING == 2) {
    place = ALIGN ? reflect(place, 0, 2 * (ACC)(size - 1), slope) : reflect(place, -1, 2 * (ACC)size - 1, slope);
  }
  if (PADDING != 0) place = clip(place, size, slope);
  /* Far outside (or NaN) stays outside after conversion to an integer. */
  if (!(place > (ACC)-1e8 && place < (ACC)1e8)) place = -100;
  return place;
}
#define GRID(k) ((ACC)GRID_LOAD(grid, n * grid_n + d * grid_d + h * grid_h + w * grid_w + (k) * grid_c))
#if DEPTH
#define READ_PLACES \
  ACC sx, sy, sz; \
  const ACC px = place_of(GRID(0), iw, &sx), py = place_of(GRID(1), ih, &sy), pz = place_of(GRID(2), id, &sz);
#else
#define READ_PLACES \
  ACC sx, sy, sz = 0; \
  const ACC px = place_of(GRID(0), iw, &sx), py = place_of(GRID(1), ih, &sy), pz = 0;
#endif
#define INSIDE(z, y, x) ((z) >= 0 && (y) >= 0 && (x) >= 0 && (z) < id && (y) < ih && (x) < iw)
/* The neighbours of a place (or the nearest one) with weights; at a depth of one the second layer weighs nothing. */
#if NEAREST
#define EACH_NEIGHBOUR const long z = (long)rint(pz), y = (long)rint(py), x = (long)rint(px); const ACC weight = 1; \
  if (INSIDE(z, y, x))
#else
#define EACH_NEIGHBOUR \
  const ACC fx = floor(px), fy = floor(py), fz = floor(pz); \
  for (int corner = 0; corner < (DEPTH ? 8 : 4); ++corner) { \
    const int cx = corner & 1, cy = (corner >> 1) & 1, cz = corner >> 2; \
    const long x = (long)fx + cx, y = (long)fy + cy, z = (long)fz + cz; \
    const ACC wx = cx ? px - fx : 1 - (px - fx), wy = cy ? py - fy : 1 - (py - fy); \
    const ACC wz = cz ? pz - fz : 1 - (pz - fz); \
    const ACC weight = wx * wy * wz; \
    if (INSIDE(z, y, x))
#endif
#if NEAREST
#define END_NEIGHBOUR
#else
#define END_NEIGHBOUR }
#endif
"""
_FORWARD = (
    "READ_PLACES ACC sum = 0; EACH_NEIGHBOUR sum += weight * (ACC)PLANE_AT(z, y, x); END_NEIGHBOUR "
    "OUT_STORE(out, to, sum);"
)
_BACKWARD = "READ_PLACES EACH_NEIGHBOUR PLANE_ADD(z, y, x, weight * gradient); END_NEIGHBOUR"

_GRID_GRADIENT = r"""
OB_KERNEL void grid_gradient(OB_GLOBAL const IN_T* in, OB_GLOBAL const OUT_T* out PARAMETERS) {
  OB_FOR(i, images * od * oh * ow) {
    long q = i;
    const long w = q % ow; q /= ow;
    const long h = q % oh; q /= oh;
    const long d = q % od, n = q / od;
    READ_PLACES
    ACC gx = 0, gy = 0, gz = 0;
#if !NEAREST
    for (long c = 0; c < channels; ++c) {
      const ACC gradient = (ACC)OUT_LOAD(out, n * out_n + c * out_c + d * out_d + h * out_h + w * out_w);
      EACH_NEIGHBOUR {
        const ACC value = gradient * (ACC)IN_LOAD(in, n * in_n + c * in_c + z * in_d + y * in_h + x * in_w);
        gx += (cx ? value : -value) * wy * wz;
        gy += (cy ? value : -value) * wx * wz;
        gz += (cz ? value : -value) * wx * wy;
      }
      END_NEIGHBOUR
    }
#endif
    const long at = n * result_n + d * result_d + h * result_h + w * result_w;
    GRID_STORE(result, at, gx * sx);
    GRID_STORE(result, at + result_c, gy * sy);
#if DEPTH
    GRID_STORE(result, at + 2 * result_c, gz * sz);
#endif
  }
}
"""


def _as_planes(grid: TensorArg) -> TensorArg:
    """A grid (n, ..., k) seen as planes (n, k, ...)."""
    sizes = (grid.sizes[0], grid.sizes[-1], *grid.sizes[1:-1])
    strides = (grid.strides[0], grid.strides[-1], *grid.strides[1:-1])
    return TensorArg(grid.buffer, grid.dtype, sizes, strides, grid.offset)


def _macros(values: dict[str, Any], spatial: int) -> str | None:
    mode, padding = common.static_int(values["interpolation_mode"]), common.static_int(values["padding_mode"])
    if mode not in (0, 1) or padding is None:
        return None
    return (
        f"#define ALIGN {int(bool(values['align_corners']))}\n#define PADDING {padding}\n"
        f"#define NEAREST {mode}\n#define DEPTH {int(spatial == 3)}\n" + _PLACES
    )


def lower_forward(builder: PlanBuilder, call: ExternCall) -> bool:
    """``grid_sampler_2d`` and ``3d``, bilinear or nearest."""
    values, out = call.bind(), call.outputs()[0]
    spatial = len(out.sizes) - 2
    macros = _macros(values, spatial)
    if macros is None or values["grid"].dtype != out.dtype:
        return False
    extra = [("grid", "GRID", _as_planes(values["grid"]))]
    return planes.Planes(values["input"], out, spatial, _FORWARD, extra=extra, helpers=macros).forward(builder)


def lower_backward(builder: PlanBuilder, call: ExternCall) -> bool:
    """``grid_sampler_2d_backward`` and ``3d_backward``, bilinear or nearest, for both gradients."""
    values, results = call.bind(), call.outputs()
    grad, source, grid = values["grad_output"], values["input"], values["grid"]
    spatial = len(grad.sizes) - 2
    macros = _macros(values, spatial)
    mask = [bool(flag) for flag in values["output_mask"]]
    if macros is None or len(results) != 2 or grid.dtype != grad.dtype:
        return False
    extra = [("grid", "GRID", _as_planes(grid))]
    to_grid = [*extra, ("result", "GRID", _as_planes(results[1]))]
    of_source = planes.Planes(results[0], grad, spatial, _BACKWARD, extra=extra, helpers=macros)
    of_grid = planes.Planes(source, grad, spatial, "", extra=to_grid, helpers=macros)
    if not of_grid.covered(builder) or (mask[0] and not of_source.covered(builder)):
        return False
    if mask[0]:
        of_source.backward(builder)
    of_grid.custom(builder, _GRID_GRADIENT, "grid_gradient", strided.product([grad.sizes[0], *grad.sizes[2:]]))
    return True
