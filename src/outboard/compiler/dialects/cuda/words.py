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
/* Of the 32 items of a sub-group together, which all must come here. Four matrices of 8 x 8 halves in local memory, or
   their transposes, are loaded: item n has the address of row n % 8 of matrix n / 8, aligned to 16 bytes. It gets of
   each matrix the elements 2 * (n % 4) and the next of row n / 4. */
inline void ob_load_matrices(uint* v, const void* bits) {
  asm("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
      : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3]) : "r"((uint)__cvta_generic_to_shared(bits)) : "memory");
}
inline void ob_load_transposed(uint* v, const void* bits) {
  asm("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
      : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3]) : "r"((uint)__cvta_generic_to_shared(bits)) : "memory");
}
/* `v`, 16 x 8 floats, plus the product of 16 x 16 and 16 x 8 halves. An item has the elements 2 * (n % 4) and the next
   of the rows n / 4 and n / 4 + 8 in `v`; in bits[0] and bits[1] those of the first matrix, in bits[2] and bits[3] what
   is eight columns on; in bits[4] those of column n / 4 of the second matrix, in bits[5] what is eight rows on. */
#define OB_MULTIPLY(name, type) \
  inline void name(float* v, const uint* bits) { \
    asm("mma.sync.aligned.m16n8k16.row.col.f32." type "." type ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, " \
        "{%0, %1, %2, %3};" \
        : "+f"(v[0]), "+f"(v[1]), "+f"(v[2]), "+f"(v[3]) \
        : "r"(bits[0]), "r"(bits[1]), "r"(bits[2]), "r"(bits[3]), "r"(bits[4]), "r"(bits[5])); \
  }
OB_MULTIPLY(ob_multiply_half, "f16")
OB_MULTIPLY(ob_multiply_bfloat16, "bf16")
/* 16 bytes are copied from global to local memory, both aligned to as many, until ob_copied. */
inline void ob_copy_16(void* v, const void* bits) {
  asm("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"((uint)__cvta_generic_to_shared(v)), "l"(bits) : "memory");
}
inline void ob_copied() {
  void *v = 0, *bits = 0;
  asm("cp.async.wait_all;" ::: "memory");
}
/* Powers of two; 0 where that is no normal number. */
inline float ob_power_of_two(float v) {
  float bits;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(bits) : "f"(v));
  return bits;
}
/* Two floats as halves, the first in the lower bits. */
inline uint ob_pack_half(float first, float second) {
  uint bits;
  const float v[2] = {first, second};
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(v[1]), "f"(v[0]));
  return bits;
}
inline uint ob_pack_bfloat16(float first, float second) {
  uint bits;
  const float v[2] = {first, second};
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(v[1]), "f"(v[0]));
  return bits;
}
inline int convert_int_sat(float v) { return __float2int_rz(v); }
inline int convert_int_sat(double v) { return __double2int_rz(v); }
"""

WORDS = SHARED + _OWN
