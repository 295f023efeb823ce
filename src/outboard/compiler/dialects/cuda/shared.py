# SPDX-License-Identifier: Apache-2.0
"""What CUDA C++ and languages made after it, such as HIP C++, call by the same names."""

from __future__ import annotations

SHARED = r"""typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
#define OB_HAS_DOUBLES
#define OB_GROUP_OF(x, y, z) __launch_bounds__((x) * (y) * (z))
#define OB_GLOBAL
#define OB_LOCAL
#define OB_SHARED __shared__
#define OB_CONSTANT __constant__
#define OB_RESTRICT __restrict__
#define OB_PRAGMA(text) _Pragma(#text)
#define OB_UNROLL(count) OB_PRAGMA(unroll count)
#define OB_GROUP_ID(d) ob_group_id(d)
#define OB_GROUP_COUNT(d) ob_group_count(d)
#define OB_LOCAL_ID(d) ob_local_id(d)
#define OB_LOCAL_COUNT(d) ob_local_count(d)
#define OB_ITEM_ID(d) (ob_group_id(d) * ob_local_count(d) + ob_local_id(d))
#define OB_ITEM_COUNT(d) (ob_group_count(d) * ob_local_count(d))
#define OB_BARRIER() __syncthreads()
#define OB_SUB_GROUPS_OF(size)
#define OB_SUB_GROUP_SIZE() ob_sub_group_size()
#define ob_half ushort
#define OB_LOAD_HALF(p, i) ob_of_half((p)[i])
#define OB_STORE_HALF(p, i, v) ((p)[i] = ob_to_half(v))
#define OB_ATOMIC_ADD(p, v) atomicAdd((uint*)(p), (uint)(v))
#define OB_ATOMIC_ADD_LONG(p, v) atomicAdd((unsigned long long*)(p), (unsigned long long)(v))
#define OB_EXCHANGE(p, seen, v) atomicCAS((uint*)(p), seen, v)
#define OB_EXCHANGE_LONG(p, seen, v) \
  ((ulong)atomicCAS((unsigned long long*)(p), (unsigned long long)(seen), (unsigned long long)(v)))
#define INFINITY __int_as_float(0x7f800000)
#define NAN __int_as_float(0x7fffffff)
#define CHAR_MIN (-128)
#define CHAR_MAX 127
#define UCHAR_MAX 255
#define SHRT_MIN (-32768)
#define SHRT_MAX 32767
#define USHRT_MAX 65535
#define INT_MIN (-2147483647 - 1)
#define INT_MAX 2147483647
#define UINT_MAX 4294967295u
#define LONG_MIN (-9223372036854775807L - 1L)
#define LONG_MAX 9223372036854775807L
#define ULONG_MAX 18446744073709551615ul
inline long ob_group_id(int d) { return d == 0 ? blockIdx.x : d == 1 ? blockIdx.y : blockIdx.z; }
inline int ob_local_id(int d) { return d == 0 ? threadIdx.x : d == 1 ? threadIdx.y : threadIdx.z; }
inline int ob_local_count(int d) { return d == 0 ? blockDim.x : d == 1 ? blockDim.y : blockDim.z; }
inline long ob_group_count(int d) { return d == 0 ? gridDim.x : d == 1 ? gridDim.y : gridDim.z; }
inline uint ob_thread() { return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z); }
inline uint ob_threads() { return blockDim.x * blockDim.y * blockDim.z; }
inline float as_float(uint v) { return __uint_as_float(v); }
inline float as_float(int v) { return __int_as_float(v); }
inline int as_int(float v) { return __float_as_int(v); }
inline int as_int(uint v) { return (int)v; }
inline uint as_uint(float v) { return __float_as_uint(v); }
inline uint as_uint(int v) { return (uint)v; }
inline double as_double(ulong v) { return __longlong_as_double((long long)v); }
inline double as_double(long v) { return __longlong_as_double((long long)v); }
inline long as_long(double v) { return (long)__double_as_longlong(v); }
inline long as_long(ulong v) { return (long)v; }
inline ulong as_ulong(double v) { return (ulong)__double_as_longlong(v); }
inline ulong as_ulong(long v) { return (ulong)v; }
inline char as_char(uchar v) { return (char)v; }
inline uchar as_uchar(char v) { return (uchar)v; }
inline short as_short(ushort v) { return (short)v; }
inline ushort as_ushort(short v) { return (ushort)v; }
template <typename T> inline T clamp(T v, T low, T high) { return v < low ? low : v > high ? high : v; }
inline uint mul_hi(uint a, uint b) { return __umulhi(a, b); }
inline ulong mul_hi(ulong a, ulong b) { return (ulong)__umul64hi(a, b); }
inline int convert_int_sat(int v) { return v; }
inline int convert_int_sat(long v) { return v < INT_MIN ? INT_MIN : v > INT_MAX ? INT_MAX : (int)v; }
"""
