# SPDX-License-Identifier: Apache-2.0
"""What CUDA C++ calls the words of programs, and functions that only OpenCL C has of its own.

For NVRTC with ``--device-as-default-execution-space``: helper functions carry no qualifier.
"""

from __future__ import annotations

from .shared import SHARED

_OWN = r"""#define OB_KERNEL extern "C" __global__
#define OB_ALIGNED(bytes) __align__(bytes)
#define OB_SHUFFLE(value, lane) __shfl_sync(ob_active(), value, lane)
#define OB_SUB_GROUP_ID() ((uint)ob_thread() / 32u)
#define OB_SUB_GROUP_ITEM() ((uint)ob_thread() % 32u)
#define OB_SUB_GROUP_COUNT() ((ob_threads() + 31u) / 32u)
#define OB_SUB_GROUP_BARRIER() __syncwarp(ob_active())
/* The last sub-group of a group may be smaller. */
inline uint ob_sub_group_size() {
  const uint rest = ob_threads() - ob_thread() / 32u * 32u;
  return rest < 32u ? rest : 32u;
}
inline uint ob_active() { const uint size = ob_sub_group_size(); return size == 32u ? 0xffffffffu : (1u << size) - 1u; }
/* In PTX, so that no header is needed. */
inline float ob_of_half(ushort bits) { float v; asm("cvt.f32.f16 %0, %1;" : "=f"(v) : "h"(bits)); return v; }
inline ushort ob_to_half(float v) { ushort bits; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(v)); return bits; }
inline int convert_int_sat(float v) { return __float2int_rz(v); }
inline int convert_int_sat(double v) { return __double2int_rz(v); }
"""

WORDS = SHARED + _OWN
