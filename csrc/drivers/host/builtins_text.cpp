// SPDX-License-Identifier: Apache-2.0
#include "host/builtins_text.h"

// OpenCL C 3.0's built-in functions (the specification's section 6.15) for Clang, which knows the language but none of
// its functions. `obh_item` (`struct Item` in item.h) and `obh_barrier` are defined beside the program's code, in
// instructions.cpp. Functions of the C library are called by their names in the linker. Vectors of what only the C
// library knows are computed lane by lane.
namespace outboard::host {

const char* const kBuiltinsText = R"CL(
//: core
#pragma OPENCL EXTENSION cl_khr_fp16 : enable
#define OBH_FN __attribute__((overloadable, always_inline)) static
#define OBH_PURE __attribute__((const))
typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef __SIZE_TYPE__ size_t;
typedef __PTRDIFF_TYPE__ ptrdiff_t;
typedef __INTPTR_TYPE__ intptr_t;
typedef __UINTPTR_TYPE__ uintptr_t;
#define OBH_VECTORS(T) \
  typedef T T##2 __attribute__((ext_vector_type(2))); typedef T T##3 __attribute__((ext_vector_type(3))); \
  typedef T T##4 __attribute__((ext_vector_type(4))); typedef T T##8 __attribute__((ext_vector_type(8))); \
  typedef T T##16 __attribute__((ext_vector_type(16)));
OBH_VECTORS(char) OBH_VECTORS(uchar) OBH_VECTORS(short) OBH_VECTORS(ushort) OBH_VECTORS(int) OBH_VECTORS(uint)
OBH_VECTORS(long) OBH_VECTORS(ulong) OBH_VECTORS(half) OBH_VECTORS(float) OBH_VECTORS(double)
#define OBH_EACH_WIDTH(M, ...) M(2, __VA_ARGS__) M(3, __VA_ARGS__) M(4, __VA_ARGS__) M(8, __VA_ARGS__) M(16, __VA_ARGS__)
#define OBH_EACH_INTEGER(M) \
  M(char, uchar) M(uchar, uchar) M(short, ushort) M(ushort, ushort) M(int, uint) M(uint, uint) M(long, ulong) \
  M(ulong, ulong)
#define OBH_LANES(W) _Pragma("unroll") for (int i = 0; i < W; ++i)
#define NULL ((void*)0)
#define CHAR_BIT 8
#define SCHAR_MAX 127
#define SCHAR_MIN (-127 - 1)
#define CHAR_MAX SCHAR_MAX
#define CHAR_MIN SCHAR_MIN
#define UCHAR_MAX 255
#define SHRT_MAX 32767
#define SHRT_MIN (-32767 - 1)
#define USHRT_MAX 65535
#define INT_MAX 2147483647
#define INT_MIN (-2147483647 - 1)
#define UINT_MAX 0xffffffffU
#define LONG_MAX 0x7fffffffffffffffL
#define LONG_MIN (-0x7fffffffffffffffL - 1)
#define ULONG_MAX 0xffffffffffffffffUL
#define FLT_DIG 6
#define FLT_MANT_DIG 24
#define FLT_RADIX 2
#define FLT_MAX_EXP 128
#define FLT_MIN_EXP (-125)
#define FLT_MAX 0x1.fffffep127f
#define FLT_MIN 0x1.0p-126f
#define FLT_EPSILON 0x1.0p-23f
#define DBL_DIG 15
#define DBL_MANT_DIG 53
#define DBL_MAX_EXP 1024
#define DBL_MIN_EXP (-1021)
#define DBL_MAX 0x1.fffffffffffffp1023
#define DBL_MIN 0x1.0p-1022
#define DBL_EPSILON 0x1.0p-52
#define HALF_MAX 0x1.ffcp15h
#define MAXFLOAT FLT_MAX
#define HUGE_VALF __builtin_huge_valf()
#define HUGE_VAL __builtin_huge_val()
#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")
#define M_E 2.7182818284590452354
#define M_LOG2E 1.4426950408889634074
#define M_LOG10E 0.43429448190325182765
#define M_LN2 0.69314718055994530942
#define M_LN10 2.30258509299404568402
#define M_PI 3.14159265358979323846
#define M_PI_2 1.57079632679489661923
#define M_PI_4 0.78539816339744830962
#define M_1_PI 0.31830988618379067154
#define M_2_PI 0.63661977236758134308
#define M_2_SQRTPI 1.12837916709551257390
#define M_SQRT2 1.41421356237309504880
#define M_SQRT1_2 0.70710678118654752440
#define M_E_F ((float)M_E)
#define M_LOG2E_F ((float)M_LOG2E)
#define M_LOG10E_F ((float)M_LOG10E)
#define M_LN2_F ((float)M_LN2)
#define M_LN10_F ((float)M_LN10)
#define M_PI_F ((float)M_PI)
#define M_PI_2_F ((float)M_PI_2)
#define M_PI_4_F ((float)M_PI_4)
#define M_1_PI_F ((float)M_1_PI)
#define M_2_PI_F ((float)M_2_PI)
#define M_SQRT2_F ((float)M_SQRT2)
#define M_SQRT1_2_F ((float)M_SQRT1_2)
#define CLK_LOCAL_MEM_FENCE 1u
#define CLK_GLOBAL_MEM_FENCE 2u
#define CLK_IMAGE_MEM_FENCE 4u
typedef uint cl_mem_fence_flags;
struct obh_item {
  ulong group_id[3], local_id[3], local_size[3], group_count[3];
  uint sub_group_size, dimensions;
  ulong* exchange;
};
struct obh_item* obh_item(void);
void obh_barrier(uint whole_group);

//: get_work_dim
OBH_FN uint get_work_dim(void) { return obh_item()->dimensions; }
//: get_group_id
OBH_FN size_t get_group_id(uint d) { return d < 3 ? obh_item()->group_id[d] : 0; }
//: get_local_id
OBH_FN size_t get_local_id(uint d) { return d < 3 ? obh_item()->local_id[d] : 0; }
//: get_local_size
OBH_FN size_t get_local_size(uint d) { return d < 3 ? obh_item()->local_size[d] : 1; }
//: get_enqueued_local_size
OBH_FN size_t get_enqueued_local_size(uint d) { return d < 3 ? obh_item()->local_size[d] : 1; }
//: get_num_groups
OBH_FN size_t get_num_groups(uint d) { return d < 3 ? obh_item()->group_count[d] : 1; }
//: get_global_id
OBH_FN size_t get_global_id(uint d) {
  return d < 3 ? obh_item()->group_id[d] * obh_item()->local_size[d] + obh_item()->local_id[d] : 0;
}
//: get_global_size
OBH_FN size_t get_global_size(uint d) { return d < 3 ? obh_item()->group_count[d] * obh_item()->local_size[d] : 1; }
//: get_global_offset
OBH_FN size_t get_global_offset(uint d) { return 0; }
//: get_local_linear_id
OBH_FN size_t get_local_linear_id(void) {
  const struct obh_item* item = obh_item();
  return (item->local_id[2] * item->local_size[1] + item->local_id[1]) * item->local_size[0] + item->local_id[0];
}
//: get_global_linear_id
OBH_FN size_t get_global_linear_id(void) {
  return (get_global_id(2) * get_global_size(1) + get_global_id(1)) * get_global_size(0) + get_global_id(0);
}
//: barrier
OBH_FN void barrier(cl_mem_fence_flags flags) { obh_barrier(1); }
//: work_group_barrier
OBH_FN void work_group_barrier(cl_mem_fence_flags flags) { obh_barrier(1); }
//: mem_fence read_mem_fence write_mem_fence
#define mem_fence(flags) __atomic_thread_fence(__ATOMIC_ACQ_REL)
#define read_mem_fence(flags) mem_fence(flags)
#define write_mem_fence(flags) mem_fence(flags)
//: prefetch
#define prefetch(pointer, count) ((void)(pointer), (void)(count))

//: obh_sub_group_first obh_group_items
OBH_FN uint obh_sub_group_first(void) {
  return (uint)get_local_linear_id() / obh_item()->sub_group_size * obh_item()->sub_group_size;
}
OBH_FN uint obh_group_items(void) { return (uint)(get_local_size(0) * get_local_size(1) * get_local_size(2)); }
//: get_max_sub_group_size
OBH_FN uint get_max_sub_group_size(void) { return obh_item()->sub_group_size; }
//: get_sub_group_size
OBH_FN uint get_sub_group_size(void) {
  const uint left = obh_group_items() - obh_sub_group_first(), most = obh_item()->sub_group_size;
  return left < most ? left : most;
}
//: get_num_sub_groups
OBH_FN uint get_num_sub_groups(void) { return (obh_group_items() - 1) / obh_item()->sub_group_size + 1; }
//: get_sub_group_id
OBH_FN uint get_sub_group_id(void) { return (uint)get_local_linear_id() / obh_item()->sub_group_size; }
//: get_sub_group_local_id
OBH_FN uint get_sub_group_local_id(void) { return (uint)get_local_linear_id() % obh_item()->sub_group_size; }
//: sub_group_barrier
OBH_FN void sub_group_barrier(cl_mem_fence_flags flags) { obh_barrier(0); }
//: sub_group_shuffle
#define OBH_SHUFFLE_OF(T) \
  OBH_FN T sub_group_shuffle(T value, uint lane) { \
    volatile T* mine = (volatile T*)&obh_item()->exchange[get_local_linear_id()]; \
    *mine = value; \
    obh_barrier(0); \
    const T result = *(volatile T*)&obh_item()->exchange[obh_sub_group_first() + lane]; \
    obh_barrier(0); \
    return result; \
  }
OBH_SHUFFLE_OF(char) OBH_SHUFFLE_OF(uchar) OBH_SHUFFLE_OF(short) OBH_SHUFFLE_OF(ushort) OBH_SHUFFLE_OF(int)
OBH_SHUFFLE_OF(uint) OBH_SHUFFLE_OF(long) OBH_SHUFFLE_OF(ulong) OBH_SHUFFLE_OF(float) OBH_SHUFFLE_OF(double)

//: select
#define select(a, b, c) ((c) ? (b) : (a))
//: bitselect
#define OBH_BITSELECT(T) OBH_FN T bitselect(T a, T b, T c) { return (a & ~c) | (b & c); }
#define OBH_BITSELECTS(W, T) OBH_BITSELECT(T##W)
#define OBH_OF(T, U) OBH_BITSELECT(T) OBH_EACH_WIDTH(OBH_BITSELECTS, T)
OBH_EACH_INTEGER(OBH_OF)
#undef OBH_OF
//: any all
#define OBH_ANY(T) OBH_FN int any(T x) { return x < 0; } OBH_FN int all(T x) { return x < 0; }
#define OBH_ANYS(W, T) \
  OBH_FN int any(T##W x) { T seen = 0; OBH_LANES(W) seen |= x[i]; return seen < 0; } \
  OBH_FN int all(T##W x) { T seen = -1; OBH_LANES(W) seen &= x[i]; return seen < 0; }
OBH_ANY(char) OBH_ANY(short) OBH_ANY(int) OBH_ANY(long)
OBH_EACH_WIDTH(OBH_ANYS, char) OBH_EACH_WIDTH(OBH_ANYS, short) OBH_EACH_WIDTH(OBH_ANYS, int) OBH_EACH_WIDTH(OBH_ANYS, long)

//: OBH_EACH_FLOAT
#define OBH_FLOATS(W, M) M(float##W, int##W) M(double##W, long##W)
#define OBH_EACH_FLOAT(M) M(float, int) M(double, int) OBH_EACH_WIDTH(OBH_FLOATS, M)
//: isnan
#define OBH_OF(T, I) OBH_FN I isnan(T x) { return x != x; }
OBH_EACH_FLOAT(OBH_OF)
#undef OBH_OF
//: isinf
#define OBH_OF(T, I) OBH_FN I isinf(T x) { return __builtin_elementwise_abs(x) == (T)INFINITY; }
OBH_EACH_FLOAT(OBH_OF)
#undef OBH_OF
//: isfinite
#define OBH_OF(T, I) OBH_FN I isfinite(T x) { return __builtin_elementwise_abs(x) < (T)INFINITY; }
OBH_EACH_FLOAT(OBH_OF)
#undef OBH_OF
//: signbit
OBH_FN int signbit(float x) { return __builtin_astype(x, int) < 0; }
OBH_FN int signbit(double x) { return __builtin_astype(x, long) < 0; }
#define OBH_SIGNBITS(W, ...) \
  OBH_FN int##W signbit(float##W x) { return __builtin_astype(x, int##W) < 0; } \
  OBH_FN long##W signbit(double##W x) { return __builtin_astype(x, long##W) < 0; }
OBH_EACH_WIDTH(OBH_SIGNBITS)

//: fabs
#define OBH_OF(T, I) OBH_FN T fabs(T x) { return __builtin_elementwise_abs(x); }
OBH_EACH_FLOAT(OBH_OF)
#undef OBH_OF
//: ceil
#define OBH_OF(T, I) OBH_FN T ceil(T x) { return __builtin_elementwise_ceil(x); }
OBH_EACH_FLOAT(OBH_OF)
#undef OBH_OF
//: floor
#define OBH_OF(T, I) OBH_FN T floor(T x) { return __builtin_elementwise_floor(x); }
OBH_EACH_FLOAT(OBH_OF)
#undef OBH_OF
//: trunc
#define OBH_OF(T, I) OBH_FN T trunc(T x) { return __builtin_elementwise_trunc(x); }
OBH_EACH_FLOAT(OBH_OF)
#undef OBH_OF
//: rint
#define OBH_OF(T, I) OBH_FN T rint(T x) { return __builtin_elementwise_roundeven(x); }
OBH_EACH_FLOAT(OBH_OF)
#undef OBH_OF
//: round
#define OBH_OF(T, I) OBH_FN T round(T x) { return __builtin_elementwise_round(x); }
OBH_EACH_FLOAT(OBH_OF)
#undef OBH_OF
//: sqrt
OBH_FN float sqrt(float x) { return __builtin_sqrtf(x); }
OBH_FN double sqrt(double x) { return __builtin_sqrt(x); }
#if __has_builtin(__builtin_elementwise_sqrt)
#define OBH_SQRT(W, ...) \
  OBH_FN float##W sqrt(float##W x) { return __builtin_elementwise_sqrt(x); } \
  OBH_FN double##W sqrt(double##W x) { return __builtin_elementwise_sqrt(x); }
#else
#define OBH_SQRT(W, ...) \
  OBH_FN float##W sqrt(float##W x) { OBH_LANES(W) x[i] = __builtin_sqrtf(x[i]); return x; } \
  OBH_FN double##W sqrt(double##W x) { OBH_LANES(W) x[i] = __builtin_sqrt(x[i]); return x; }
#endif
OBH_EACH_WIDTH(OBH_SQRT)
//: rsqrt
#define OBH_OF(T, I) OBH_FN T rsqrt(T x) { return (T)1 / sqrt(x); }
OBH_EACH_FLOAT(OBH_OF)
#undef OBH_OF
//: fma
OBH_FN float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
OBH_FN double fma(double a, double b, double c) { return __builtin_fma(a, b, c); }
#if __has_builtin(__builtin_elementwise_fma)
#define OBH_FMA(W, ...) \
  OBH_FN float##W fma(float##W a, float##W b, float##W c) { return __builtin_elementwise_fma(a, b, c); } \
  OBH_FN double##W fma(double##W a, double##W b, double##W c) { return __builtin_elementwise_fma(a, b, c); }
#else
#define OBH_FMA(W, ...) \
  OBH_FN float##W fma(float##W a, float##W b, float##W c) { \
    OBH_LANES(W) a[i] = __builtin_fmaf(a[i], b[i], c[i]); return a; } \
  OBH_FN double##W fma(double##W a, double##W b, double##W c) { \
    OBH_LANES(W) a[i] = __builtin_fma(a[i], b[i], c[i]); return a; }
#endif
OBH_EACH_WIDTH(OBH_FMA)
//: mad
#define OBH_OF(T, I) OBH_FN T mad(T a, T b, T c) { return a * b + c; }
OBH_EACH_FLOAT(OBH_OF)
#undef OBH_OF
//: copysign
#define OBH_COPYSIGN(T, U, B) \
  OBH_FN T copysign(T x, T y) { \
    const U sign = (U)B; \
    return __builtin_astype((__builtin_astype(x, U) & ~sign) | (__builtin_astype(y, U) & sign), T); \
  }
#define OBH_COPYSIGNS(W, ...) \
  OBH_COPYSIGN(float##W, uint##W, 0x80000000u) OBH_COPYSIGN(double##W, ulong##W, 0x8000000000000000ul)
OBH_COPYSIGN(float, uint, 0x80000000u) OBH_COPYSIGN(double, ulong, 0x8000000000000000ul) OBH_EACH_WIDTH(OBH_COPYSIGNS)
//: fmin fmax
/* The other one where one is NaN. */
#define OBH_FMIN(T) \
  OBH_FN T fmin(T a, T b) { return a != a ? b : (b < a ? b : a); } \
  OBH_FN T fmax(T a, T b) { return a != a ? b : (b > a ? b : a); }
#define OBH_FMINS(W, T) \
  OBH_FMIN(T##W) \
  OBH_FN T##W fmin(T##W a, T b) { return fmin(a, (T##W)b); } OBH_FN T##W fmax(T##W a, T b) { return fmax(a, (T##W)b); }
OBH_FMIN(float) OBH_FMIN(double) OBH_EACH_WIDTH(OBH_FMINS, float) OBH_EACH_WIDTH(OBH_FMINS, double)
//: min max
#define OBH_MIN(T) \
  OBH_FN T min(T a, T b) { return b < a ? b : a; } OBH_FN T max(T a, T b) { return a < b ? b : a; }
#define OBH_MINS(W, T) \
  OBH_FN T##W min(T##W a, T##W b) { return __builtin_elementwise_min(a, b); } \
  OBH_FN T##W max(T##W a, T##W b) { return __builtin_elementwise_max(a, b); } \
  OBH_FN T##W min(T##W a, T b) { return min(a, (T##W)b); } OBH_FN T##W max(T##W a, T b) { return max(a, (T##W)b); }
#define OBH_FLOAT_MINS(W, T) \
  OBH_FN T##W min(T##W a, T##W b) { return b < a ? b : a; } OBH_FN T##W max(T##W a, T##W b) { return a < b ? b : a; } \
  OBH_FN T##W min(T##W a, T b) { return min(a, (T##W)b); } OBH_FN T##W max(T##W a, T b) { return max(a, (T##W)b); }
#define OBH_OF(T, U) OBH_MIN(T) OBH_EACH_WIDTH(OBH_MINS, T)
OBH_EACH_INTEGER(OBH_OF)
#undef OBH_OF
OBH_MIN(float) OBH_MIN(double) OBH_EACH_WIDTH(OBH_FLOAT_MINS, float) OBH_EACH_WIDTH(OBH_FLOAT_MINS, double)
//: clamp
#define OBH_CLAMP(T) OBH_FN T clamp(T x, T low, T high) { return min(max(x, low), high); }
#define OBH_CLAMPS(W, T) \
  OBH_CLAMP(T##W) OBH_FN T##W clamp(T##W x, T low, T high) { return min(max(x, (T##W)low), (T##W)high); }
#define OBH_OF(T, U) OBH_CLAMP(T) OBH_EACH_WIDTH(OBH_CLAMPS, T)
OBH_EACH_INTEGER(OBH_OF) OBH_OF(float, ) OBH_OF(double, )
#undef OBH_OF
//: sign
#define OBH_OF(T, I) OBH_FN T sign(T x) { return x > (T)0 ? (T)1 : (x < (T)0 ? (T)-1 : (x != x ? (T)0 : x)); }
OBH_EACH_FLOAT(OBH_OF)
#undef OBH_OF
//: step
#define OBH_OF(T, I) OBH_FN T step(T edge, T x) { return x < edge ? (T)0 : (T)1; }
OBH_EACH_FLOAT(OBH_OF)
#undef OBH_OF
//: mix
#define OBH_OF(T, I) OBH_FN T mix(T x, T y, T a) { return x + (y - x) * a; }
OBH_EACH_FLOAT(OBH_OF)
#undef OBH_OF

//: abs
#define OBH_ABS(T, U) OBH_FN U abs(T x) { return x < 0 ? (U)(0 - (U)x) : (U)x; }
#define OBH_ABSES(W, T, U) \
  OBH_FN U##W abs(T##W x) { \
    const U##W bits = __builtin_astype(x, U##W); return __builtin_astype(x < (T##W)0, U##W) != (U##W)0 ? -bits : bits; }
#define OBH_OF(T, U) OBH_ABS(T, U) OBH_EACH_WIDTH(OBH_ABSES, T, U)
OBH_OF(char, uchar) OBH_OF(short, ushort) OBH_OF(int, uint) OBH_OF(long, ulong)
#undef OBH_OF
#define OBH_ABSES(W, U) OBH_FN U##W abs(U##W x) { return x; }
#define OBH_OF(U) OBH_FN U abs(U x) { return x; } OBH_EACH_WIDTH(OBH_ABSES, U)
OBH_OF(uchar) OBH_OF(ushort) OBH_OF(uint) OBH_OF(ulong)
#undef OBH_OF
//: mul_hi mad_hi
#define OBH_MUL_HI(T, WIDE, BITS) OBH_FN T mul_hi(T a, T b) { return (T)(((WIDE)a * (WIDE)b) >> BITS); }
#define OBH_MUL_HIS(W, T, WIDE, BITS) \
  OBH_FN T##W mul_hi(T##W a, T##W b) { \
    return __builtin_convertvector((__builtin_convertvector(a, WIDE##W) * __builtin_convertvector(b, WIDE##W)) >> \
      (WIDE##W)(BITS), T##W); }
#define OBH_OF(T, WIDE, BITS) OBH_MUL_HI(T, WIDE, BITS) OBH_EACH_WIDTH(OBH_MUL_HIS, T, WIDE, BITS)
OBH_OF(char, short, 8) OBH_OF(uchar, ushort, 8) OBH_OF(short, int, 16) OBH_OF(ushort, uint, 16) OBH_OF(int, long, 32)
OBH_OF(uint, ulong, 32)
#undef OBH_OF
#define OBH_MUL_HI_64(U, L) \
  OBH_FN U mul_hi(U a, U b) { \
    const U low = (U)0xfffffffful, al = a & low, ah = a >> 32, bl = b & low, bh = b >> 32; \
    const U middle = ah * bl + (al * bl >> 32), other = al * bh + (middle & low); \
    return ah * bh + (middle >> 32) + (other >> 32); \
  } \
  OBH_FN L mul_hi(L a, L b) { \
    const U x = __builtin_astype(a, U), y = __builtin_astype(b, U); \
    return __builtin_astype(mul_hi(x, y) - (__builtin_astype(a >> 63, U) & y) - (__builtin_astype(b >> 63, U) & x), L); \
  }
#define OBH_MUL_HIS_64(W, ...) OBH_MUL_HI_64(ulong##W, long##W)
OBH_MUL_HI_64(ulong, long) OBH_EACH_WIDTH(OBH_MUL_HIS_64)
#define mad_hi(a, b, c) (mul_hi(a, b) + (c))
//: mul24
#define mul24(a, b) ((a) * (b))
//: mad24
#define mad24(a, b, c) ((a) * (b) + (c))
//: rotate
#define OBH_ROTATE(T, U, BITS) \
  OBH_FN T rotate(T x, T n) { \
    const U bits = __builtin_astype(x, U), left = __builtin_astype(n, U) & (U)(BITS - 1); \
    return __builtin_astype((U)((bits << left) | (bits >> (((U)BITS - left) & (U)(BITS - 1)))), T); \
  }
#define OBH_ROTATES(W, T, U, BITS) OBH_ROTATE(T##W, U##W, BITS)
#define OBH_OF(T, U) OBH_ROTATE(T, U, (int)(8 * sizeof(T))) OBH_EACH_WIDTH(OBH_ROTATES, T, U, (int)(8 * sizeof(T)))
OBH_EACH_INTEGER(OBH_OF)
#undef OBH_OF
//: popcount
#define OBH_POPCOUNTS(W, T, U) OBH_FN T##W popcount(T##W x) { OBH_LANES(W) x[i] = popcount((T)x[i]); return x; }
#define OBH_OF(T, U) \
  OBH_FN T popcount(T x) { return (T)__builtin_popcountl((ulong)(U)x); } OBH_EACH_WIDTH(OBH_POPCOUNTS, T, U)
OBH_EACH_INTEGER(OBH_OF)
#undef OBH_OF
//: clz ctz
#define OBH_CLZS(W, T, U) \
  OBH_FN T##W clz(T##W x) { OBH_LANES(W) x[i] = clz((T)x[i]); return x; } \
  OBH_FN T##W ctz(T##W x) { OBH_LANES(W) x[i] = ctz((T)x[i]); return x; }
#define OBH_OF(T, U) \
  OBH_FN T clz(T x) { return x == 0 ? (T)(8 * sizeof(T)) : (T)(__builtin_clzl((ulong)(U)x) - (64 - 8 * sizeof(T))); } \
  OBH_FN T ctz(T x) { return x == 0 ? (T)(8 * sizeof(T)) : (T)__builtin_ctzl((ulong)(U)x); } \
  OBH_EACH_WIDTH(OBH_CLZS, T, U)
OBH_EACH_INTEGER(OBH_OF)
#undef OBH_OF
//: add_sat sub_sat
#if __has_builtin(__builtin_elementwise_add_sat)
#define OBH_SATS(W, T) \
  OBH_FN T##W add_sat(T##W a, T##W b) { return __builtin_elementwise_add_sat(a, b); } \
  OBH_FN T##W sub_sat(T##W a, T##W b) { return __builtin_elementwise_sub_sat(a, b); }
#define OBH_OF(T, U) \
  OBH_FN T add_sat(T a, T b) { return __builtin_elementwise_add_sat(a, b); } \
  OBH_FN T sub_sat(T a, T b) { return __builtin_elementwise_sub_sat(a, b); } OBH_EACH_WIDTH(OBH_SATS, T)
OBH_EACH_INTEGER(OBH_OF)
#undef OBH_OF
#endif

//: OBH_LIBRARY1 OBH_LIBRARY2 OBH_LIBRARY1S OBH_LIBRARY2S
/* A function of the C library for each type and width, of one, two or three arguments. */
#define OBH_LIBRARY1S(W, name, T, c) \
  OBH_FN T##W name(T##W a) { T##W r; OBH_LANES(W) r[i] = c(a[i]); return r; }
#define OBH_LIBRARY2S(W, name, T, c) \
  OBH_FN T##W name(T##W a, T##W b) { T##W r; OBH_LANES(W) r[i] = c(a[i], b[i]); return r; }
#define OBH_LIBRARY1(name) \
  OBH_PURE float obh_c_##name##_f(float) __asm__(#name "f"); \
  OBH_PURE double obh_c_##name(double) __asm__(#name); \
  OBH_FN float name(float a) { return obh_c_##name##_f(a); } \
  OBH_FN double name(double a) { return obh_c_##name(a); } \
  OBH_EACH_WIDTH(OBH_LIBRARY1S, name, float, obh_c_##name##_f) OBH_EACH_WIDTH(OBH_LIBRARY1S, name, double, obh_c_##name)
#define OBH_LIBRARY2(name) \
  OBH_PURE float obh_c_##name##_f(float, float) __asm__(#name "f"); \
  OBH_PURE double obh_c_##name(double, double) __asm__(#name); \
  OBH_FN float name(float a, float b) { return obh_c_##name##_f(a, b); } \
  OBH_FN double name(double a, double b) { return obh_c_##name(a, b); } \
  OBH_EACH_WIDTH(OBH_LIBRARY2S, name, float, obh_c_##name##_f) OBH_EACH_WIDTH(OBH_LIBRARY2S, name, double, obh_c_##name)
//: exp
OBH_LIBRARY1(exp)
//: exp2
OBH_LIBRARY1(exp2)
//: exp10
OBH_LIBRARY1(exp10)
//: expm1
OBH_LIBRARY1(expm1)
//: log
OBH_LIBRARY1(log)
//: log2
OBH_LIBRARY1(log2)
//: log10
OBH_LIBRARY1(log10)
//: log1p
OBH_LIBRARY1(log1p)
//: logb
OBH_LIBRARY1(logb)
//: sin
OBH_LIBRARY1(sin)
//: cos
OBH_LIBRARY1(cos)
//: tan
OBH_LIBRARY1(tan)
//: asin
OBH_LIBRARY1(asin)
//: acos
OBH_LIBRARY1(acos)
//: atan
OBH_LIBRARY1(atan)
//: sinh
OBH_LIBRARY1(sinh)
//: cosh
OBH_LIBRARY1(cosh)
//: tanh
OBH_LIBRARY1(tanh)
//: asinh
OBH_LIBRARY1(asinh)
//: acosh
OBH_LIBRARY1(acosh)
//: atanh
OBH_LIBRARY1(atanh)
//: erf
OBH_LIBRARY1(erf)
//: erfc
OBH_LIBRARY1(erfc)
//: tgamma
OBH_LIBRARY1(tgamma)
//: cbrt
OBH_LIBRARY1(cbrt)
//: pow
OBH_LIBRARY2(pow)
//: atan2
OBH_LIBRARY2(atan2)
//: fmod
OBH_LIBRARY2(fmod)
//: remainder
OBH_LIBRARY2(remainder)
//: hypot
OBH_LIBRARY2(hypot)
//: nextafter
OBH_LIBRARY2(nextafter)
//: fdim
OBH_LIBRARY2(fdim)
//: powr
#define powr(a, b) pow(a, b)
//: lgamma
/* The functions of this name leave the sign in a variable that all threads share. */
float obh_c_lgammaf_r(float, __private int*) __asm__("lgammaf_r");
double obh_c_lgamma_r(double, __private int*) __asm__("lgamma_r");
OBH_FN float lgamma(float a) { int sign; return obh_c_lgammaf_r(a, &sign); }
OBH_FN double lgamma(double a) { int sign; return obh_c_lgamma_r(a, &sign); }
OBH_EACH_WIDTH(OBH_LIBRARY1S, lgamma, float, lgamma) OBH_EACH_WIDTH(OBH_LIBRARY1S, lgamma, double, lgamma)
//: ldexp
OBH_PURE float obh_c_ldexpf(float, int) __asm__("ldexpf");
OBH_PURE double obh_c_ldexp(double, int) __asm__("ldexp");
OBH_FN float ldexp(float a, int n) { return obh_c_ldexpf(a, n); }
OBH_FN double ldexp(double a, int n) { return obh_c_ldexp(a, n); }
#define OBH_LDEXPS(W, T) \
  OBH_FN T##W ldexp(T##W a, int##W n) { OBH_LANES(W) a[i] = ldexp((T)a[i], (int)n[i]); return a; } \
  OBH_FN T##W ldexp(T##W a, int n) { return ldexp(a, (int##W)n); }
OBH_EACH_WIDTH(OBH_LDEXPS, float) OBH_EACH_WIDTH(OBH_LDEXPS, double)
//: ilogb
OBH_PURE int obh_c_ilogbf(float) __asm__("ilogbf");
OBH_PURE int obh_c_ilogb(double) __asm__("ilogb");
OBH_FN int ilogb(float a) { return obh_c_ilogbf(a); }
OBH_FN int ilogb(double a) { return obh_c_ilogb(a); }
//: frexp
OBH_FN float frexp(float a, int* n) { int m; const float r = __builtin_frexpf(a, &m); *n = m; return r; }
OBH_FN double frexp(double a, int* n) { int m; const double r = __builtin_frexp(a, &m); *n = m; return r; }

//: vload2 vload3 vload4 vload8 vload16 vstore2 vstore3 vstore4 vstore8 vstore16
#define OBH_MEMORY(W, T) \
  typedef T obh_##T##W##_at __attribute__((ext_vector_type(W), aligned(sizeof(T)))); \
  OBH_FN T##W vload##W(size_t n, const T* p) { return *(const obh_##T##W##_at*)(p + n * W); } \
  OBH_FN void vstore##W(T##W v, size_t n, T* p) { *(obh_##T##W##_at*)(p + n * W) = v; }
#define OBH_MEMORY3(T) \
  OBH_FN T##3 vload3(size_t n, const T* p) { p += n * 3; return (T##3)(p[0], p[1], p[2]); } \
  OBH_FN void vstore3(T##3 v, size_t n, T* p) { p += n * 3; p[0] = v.x; p[1] = v.y; p[2] = v.z; }
#define OBH_OF(T, U) OBH_MEMORY(2, T) OBH_MEMORY3(T) OBH_MEMORY(4, T) OBH_MEMORY(8, T) OBH_MEMORY(16, T)
OBH_EACH_INTEGER(OBH_OF) OBH_OF(float, ) OBH_OF(double, )
#undef OBH_OF

//: obh_from_half obh_to_half
/* Where the processor converts halves, that is an instruction; where not, by hand: Clang would call a library that is
   not there. */
#if defined(__F16C__) || defined(__aarch64__)
OBH_FN float obh_from_half(ushort bits) { return (float)__builtin_astype(bits, half); }
OBH_FN ushort obh_to_half(float value) { return __builtin_astype((half)value, ushort); }
#define OBH_HALVES(W, ...) \
  OBH_FN float##W obh_from_half(ushort##W bits) { \
    return __builtin_convertvector(__builtin_astype(bits, half##W), float##W); } \
  OBH_FN ushort##W obh_to_half(float##W value) { \
    return __builtin_astype(__builtin_convertvector(value, half##W), ushort##W); }
#else
OBH_FN float obh_from_half(ushort bits) {
  const uint magnitude = (uint)(bits & 0x7fff) << 13, sign = (uint)(bits & 0x8000) << 16;
  const float scaled = __builtin_astype(magnitude, float) * 0x1p112f;
  const uint result = (bits & 0x7c00) == 0x7c00 ? (magnitude | 0x7f800000u) : __builtin_astype(scaled, uint);
  return __builtin_astype(result | sign, float);
}
OBH_FN ushort obh_to_half(float value) {
  const uint bits = __builtin_astype(value, uint), sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return (ushort)(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
  if (magnitude >= 0x47800000u) return (ushort)(sign | 0x7c00u);
  if (magnitude < 0x38800000u) {
    const float shifted = __builtin_astype(magnitude, float) + 0.5f;
    return (ushort)(sign | (__builtin_astype(shifted, uint) - 0x3f000000u));
  }
  return (ushort)(sign | ((magnitude + 0xc8000fffu + ((magnitude >> 13) & 1u)) >> 13));
}
#define OBH_HALVES(W, ...) \
  OBH_FN float##W obh_from_half(ushort##W bits) { \
    float##W r; OBH_LANES(W) r[i] = obh_from_half((ushort)bits[i]); return r; } \
  OBH_FN ushort##W obh_to_half(float##W value) { \
    ushort##W r; OBH_LANES(W) r[i] = obh_to_half((float)value[i]); return r; }
#endif
OBH_EACH_WIDTH(OBH_HALVES)
//: vload_half vload_half2 vload_half3 vload_half4 vload_half8 vload_half16 vloada_half2 vloada_half4 vloada_half8 vloada_half16
OBH_FN float vload_half(size_t n, const half* p) { return obh_from_half(((const ushort*)p)[n]); }
#define OBH_LOAD_HALVES(W, ...) \
  OBH_FN float##W vload_half##W(size_t n, const half* p) { \
    typedef ushort obh_at __attribute__((ext_vector_type(W), aligned(2))); \
    return obh_from_half((ushort##W)*(const obh_at*)((const ushort*)p + n * W)); } \
  OBH_FN float##W vloada_half##W(size_t n, const half* p) { return vload_half##W(n, p); }
OBH_LOAD_HALVES(2) OBH_LOAD_HALVES(4) OBH_LOAD_HALVES(8) OBH_LOAD_HALVES(16)
OBH_FN float3 vload_half3(size_t n, const half* p) {
  return (float3)(vload_half(3 * n, p), vload_half(3 * n + 1, p), vload_half(3 * n + 2, p));
}
//: vstore_half vstore_half2 vstore_half3 vstore_half4 vstore_half8 vstore_half16 vstore_half_rte vstore_half2_rte vstore_half3_rte vstore_half4_rte vstore_half8_rte vstore_half16_rte
OBH_FN void vstore_half(float v, size_t n, half* p) { ((ushort*)p)[n] = obh_to_half(v); }
OBH_FN void vstore_half(double v, size_t n, half* p) { ((ushort*)p)[n] = obh_to_half((float)v); }
#define OBH_STORE_HALVES(W, ...) \
  OBH_FN void vstore_half##W(float##W v, size_t n, half* p) { \
    typedef ushort obh_at __attribute__((ext_vector_type(W), aligned(2))); \
    *(obh_at*)((ushort*)p + n * W) = obh_to_half(v); }
OBH_STORE_HALVES(2) OBH_STORE_HALVES(4) OBH_STORE_HALVES(8) OBH_STORE_HALVES(16)
OBH_FN void vstore_half3(float3 v, size_t n, half* p) {
  vstore_half(v.x, 3 * n, p); vstore_half(v.y, 3 * n + 1, p); vstore_half(v.z, 3 * n + 2, p);
}
#define vstore_half_rte(v, n, p) vstore_half(v, n, p)
#define vstore_half2_rte(v, n, p) vstore_half2(v, n, p)
#define vstore_half3_rte(v, n, p) vstore_half3(v, n, p)
#define vstore_half4_rte(v, n, p) vstore_half4(v, n, p)
#define vstore_half8_rte(v, n, p) vstore_half8(v, n, p)
#define vstore_half16_rte(v, n, p) vstore_half16(v, n, p)

//: OBH_EACH_ATOMIC
#define OBH_EACH_ATOMIC(M) M(int) M(uint) M(long) M(ulong)
//: atomic_add atom_add
#define OBH_OF(T) OBH_FN T atomic_add(volatile T* p, T v) { return __atomic_fetch_add(p, v, __ATOMIC_RELAXED); }
OBH_EACH_ATOMIC(OBH_OF)
#undef OBH_OF
#define atom_add(p, v) atomic_add(p, v)
//: atomic_sub atom_sub
#define OBH_OF(T) OBH_FN T atomic_sub(volatile T* p, T v) { return __atomic_fetch_sub(p, v, __ATOMIC_RELAXED); }
OBH_EACH_ATOMIC(OBH_OF)
#undef OBH_OF
#define atom_sub(p, v) atomic_sub(p, v)
//: atomic_inc atom_inc
#define OBH_OF(T) OBH_FN T atomic_inc(volatile T* p) { return __atomic_fetch_add(p, (T)1, __ATOMIC_RELAXED); }
OBH_EACH_ATOMIC(OBH_OF)
#undef OBH_OF
#define atom_inc(p) atomic_inc(p)
//: atomic_dec atom_dec
#define OBH_OF(T) OBH_FN T atomic_dec(volatile T* p) { return __atomic_fetch_sub(p, (T)1, __ATOMIC_RELAXED); }
OBH_EACH_ATOMIC(OBH_OF)
#undef OBH_OF
#define atom_dec(p) atomic_dec(p)
//: atomic_and atom_and
#define OBH_OF(T) OBH_FN T atomic_and(volatile T* p, T v) { return __atomic_fetch_and(p, v, __ATOMIC_RELAXED); }
OBH_EACH_ATOMIC(OBH_OF)
#undef OBH_OF
#define atom_and(p, v) atomic_and(p, v)
//: atomic_or atom_or
#define OBH_OF(T) OBH_FN T atomic_or(volatile T* p, T v) { return __atomic_fetch_or(p, v, __ATOMIC_RELAXED); }
OBH_EACH_ATOMIC(OBH_OF)
#undef OBH_OF
#define atom_or(p, v) atomic_or(p, v)
//: atomic_xor atom_xor
#define OBH_OF(T) OBH_FN T atomic_xor(volatile T* p, T v) { return __atomic_fetch_xor(p, v, __ATOMIC_RELAXED); }
OBH_EACH_ATOMIC(OBH_OF)
#undef OBH_OF
#define atom_xor(p, v) atomic_xor(p, v)
//: atomic_min atom_min
#define OBH_OF(T) OBH_FN T atomic_min(volatile T* p, T v) { return __atomic_fetch_min(p, v, __ATOMIC_RELAXED); }
OBH_EACH_ATOMIC(OBH_OF)
#undef OBH_OF
#define atom_min(p, v) atomic_min(p, v)
//: atomic_max atom_max
#define OBH_OF(T) OBH_FN T atomic_max(volatile T* p, T v) { return __atomic_fetch_max(p, v, __ATOMIC_RELAXED); }
OBH_EACH_ATOMIC(OBH_OF)
#undef OBH_OF
#define atom_max(p, v) atomic_max(p, v)
//: atomic_xchg atom_xchg
#define OBH_OF(T) OBH_FN T atomic_xchg(volatile T* p, T v) { return __atomic_exchange_n(p, v, __ATOMIC_RELAXED); }
OBH_EACH_ATOMIC(OBH_OF)
#undef OBH_OF
OBH_FN float atomic_xchg(volatile float* p, float v) {
  return __builtin_astype(__atomic_exchange_n((volatile uint*)p, __builtin_astype(v, uint), __ATOMIC_RELAXED), float);
}
#define atom_xchg(p, v) atomic_xchg(p, v)
//: atomic_cmpxchg atom_cmpxchg
#define OBH_OF(T) \
  OBH_FN T atomic_cmpxchg(volatile T* p, T expected, T v) { \
    __atomic_compare_exchange_n(p, &expected, v, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED); return expected; }
OBH_EACH_ATOMIC(OBH_OF)
#undef OBH_OF
#define atom_cmpxchg(p, expected, v) atomic_cmpxchg(p, expected, v)
)CL";

}  // namespace outboard::host
