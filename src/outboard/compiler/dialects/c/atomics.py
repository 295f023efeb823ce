# SPDX-License-Identifier: Apache-2.0
"""Atomic additions to elements of any type."""

from __future__ import annotations

import torch

from ..base import Unsupported
from .types import memory_type

#: Between float and the bits of a half in a register (the builtin conversions work on memory), to nearest even.
_HALF_CONVERSIONS = """float ob_half_to_float(ushort bits) {
  uint magnitude = (uint)(bits & 0x7fff) << 13;
  float scaled = as_float(magnitude) * as_float(0x77800000u);
  uint result = (bits & 0x7c00) == 0x7c00 ? (magnitude | 0x7f800000u) : as_uint(scaled);
  return as_float(result | ((uint)(bits & 0x8000) << 16));
}
uint ob_float_to_half(float value) {
  uint bits = as_uint(value), sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7fffffffu;
  if (magnitude >= 0x47800000u) return sign | (magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u);
  if (magnitude < 0x38800000u) return sign | (as_uint(as_float(magnitude) + 0.5f) - 0x3f000000u);
  return sign | ((magnitude + 0xc8000fffu + ((magnitude >> 13) & 1u)) >> 13);
}
"""


def atomic_add_helper(dtype: torch.dtype, has_long: bool = True) -> tuple[str, str]:
    """(name, text) of ``void name(OB_GLOBAL T* p, V value)`` for an element type; ``has_long`` tells whether the device
    has atomic operations on 64 bits. Raises Unsupported.

    Without them integers are added by halves: the addition that makes the lower half overflow, and no other, sees that
    and carries, so the whole is right once all are done.

    The first exchange, of a zero, finds out what is there: a plain read beside other items' exchanges would be a race.
    """
    memory = memory_type(dtype)
    name = f"ob_atomic_add_{str(dtype).rpartition('.')[2]}"
    if dtype in (torch.int32, torch.uint32):
        return name, f"void {name}(OB_GLOBAL {memory}* p, {memory} v) {{ OB_ATOMIC_ADD(p, v); }}"
    if dtype in (torch.int64, torch.uint64) and not has_long:
        return name, (
            f"void {name}(OB_GLOBAL {memory}* p, {memory} v) {{ "
            "volatile OB_GLOBAL uint* q = (volatile OB_GLOBAL uint*)p; "
            "const uint low = (uint)v, old = OB_ATOMIC_ADD(q, low), high = (uint)((ulong)v >> 32) + (old + low < low); "
            "if (high != 0) OB_ATOMIC_ADD(q + 1, high); }"
        )
    if dtype in (torch.int64, torch.uint64):
        return name, f"void {name}(OB_GLOBAL {memory}* p, {memory} v) {{ OB_ATOMIC_ADD_LONG(p, v); }}"
    if dtype == torch.float32:
        return name, (
            f"void {name}(OB_GLOBAL float* p, float v) {{ volatile OB_GLOBAL uint* q = (volatile OB_GLOBAL uint*)p; "
            "uint old = 0, seen; do { seen = old; old = OB_EXCHANGE(q, seen, as_uint(as_float(seen) + v)); } "
            "while (old != seen); }"
        )
    if dtype == torch.float64:
        return name, (
            f"void {name}(OB_GLOBAL double* p, double v) {{ "
            "volatile OB_GLOBAL ulong* q = (volatile OB_GLOBAL ulong*)p; "
            "ulong old = 0, seen; do { seen = old; old = OB_EXCHANGE_LONG(q, seen, as_ulong(as_double(seen) + v)); } "
            "while (old != seen); }"
        )
    if dtype in (torch.float16, torch.bfloat16):
        # The 32-bit word around the element is exchanged.
        if dtype == torch.float16:
            read, write = "ob_half_to_float(part)", "uint sum = ob_float_to_half(value + v);"
        else:
            read, write = "as_float((uint)part << 16)", "uint sum = ob_bf16_float(value + v);"
        conversions = _HALF_CONVERSIONS if dtype == torch.float16 else ""
        return name, conversions + (
            f"void {name}(OB_GLOBAL {memory}* p, float v) {{ "
            "size_t address = (size_t)p; "
            "volatile OB_GLOBAL uint* q = (volatile OB_GLOBAL uint*)(address & ~(size_t)3); "
            "uint shift = (uint)(address & 2) * 8, old = 0, seen; do { seen = old; "
            f"ushort part = (ushort)(seen >> shift); float value = {read}; {write} "
            "old = OB_EXCHANGE(q, seen, (seen & ~(0xffffu << shift)) | ((uint)sum << shift)); "
            "} while (old != seen); }"
        )
    if dtype in (torch.int8, torch.uint8, torch.int16, torch.uint16, torch.bool):
        bits = 8 if dtype.itemsize == 1 else 16
        mask = "0xffu" if bits == 8 else "0xffffu"
        low = 3 if bits == 8 else 2
        combine = "(part | (uint)(v != 0))" if dtype == torch.bool else "(part + (uint)v)"
        return name, (
            f"void {name}(OB_GLOBAL {memory}* p, int v) {{ "
            "size_t address = (size_t)p; "
            "volatile OB_GLOBAL uint* q = (volatile OB_GLOBAL uint*)(address & ~(size_t)3); "
            f"uint shift = (uint)(address & {low}) * 8, old = 0, seen; do {{ seen = old; "
            f"uint part = (seen >> shift) & {mask}; uint sum = {combine} & {mask}; "
            f"old = OB_EXCHANGE(q, seen, (seen & ~({mask} << shift)) | (sum << shift)); }} while (old != seen); }}"
        )
    raise Unsupported(f"atomic add to {dtype}")
