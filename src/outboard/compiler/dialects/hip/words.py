# SPDX-License-Identifier: Apache-2.0
"""What HIP C++ calls the words of programs where it differs from CUDA C++.

For hipRTC, or for hipcc with ``-include hip/hip_runtime.h``. Helper functions carry no qualifier: Clang is told to take
all for functions of the device. A sub-group is a wavefront, of 32 or 64 work-items by the GPU that is compiled for.
"""

from __future__ import annotations

import re

from ..cuda.shared import SHARED

#: What headers of the host's C library have defined already, if there are some.
_LIMITS = re.findall(r"^#define ([A-Z]+(?:_MIN|_MAX)?) ", SHARED, re.MULTILINE)
_FORGOTTEN = "".join(f"#undef {name}\n" for name in _LIMITS)

_OWN = r"""#define OB_KERNEL extern "C" __global__
#define OB_ALIGNED(bytes) __attribute__((aligned(bytes)))
#define OB_SHUFFLE(value, lane) __shfl(value, lane)
#define OB_SUB_GROUP_ID() (ob_thread() / ob_wavefront())
#define OB_SUB_GROUP_ITEM() (ob_thread() % ob_wavefront())
#define OB_SUB_GROUP_COUNT() ((ob_threads() + ob_wavefront() - 1u) / ob_wavefront())
#define OB_SUB_GROUP_BARRIER() ob_wavefront_barrier()
__device__ inline uint ob_wavefront() { return (uint)warpSize; }
/* The last sub-group of a group may be smaller. */
__device__ inline uint ob_sub_group_size() {
  const uint size = ob_wavefront(), rest = ob_threads() - ob_thread() / size * size;
  return rest < size ? rest : size;
}
__device__ inline void ob_wavefront_barrier() {
  __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "wavefront");
  __builtin_amdgcn_wave_barrier();
}
inline float ob_of_half(ushort bits) { return (float)__builtin_bit_cast(_Float16, bits); }
inline ushort ob_to_half(float v) { return __builtin_bit_cast(ushort, (_Float16)v); }
/* In C++ a value that does not fit has no meaning. */
template <typename T> inline int ob_saturated(T v) {
  return v != v ? 0 : v >= (T)2147483648.0 ? INT_MAX : v <= (T)-2147483648.0 ? INT_MIN : (int)v;
}
inline int convert_int_sat(float v) { return ob_saturated(v); }
inline int convert_int_sat(double v) { return ob_saturated(v); }
"""

WORDS = f"{_FORGOTTEN}#pragma clang force_cuda_host_device begin\n{SHARED}{_OWN}"
