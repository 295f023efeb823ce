// SPDX-License-Identifier: Apache-2.0
#include "host/cuda_text.h"

// What the CUDA C++ Programming Guide (NVIDIA, version 13; "C++ Language Extensions") and the CUDA Math API have built
// in, for programs that are tried on a processor. `obh_item` and `obh_barrier` are as in builtins_text.cpp. Arrays of a
// work-group are variables of the thread, which runs one group at a time. `inline` is made `static`, by which nothing
// is merged by the linker.
namespace outboard::host {
namespace {

constexpr const char* kText = R"CUDA(
#define inline static __inline__
#define __global__
#define __device__
#define __host__
#define __constant__
#define __forceinline__ __inline__ __attribute__((always_inline))
#define __shared__ static thread_local
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
#define OBH_FN static __inline__ __attribute__((always_inline))
typedef __SIZE_TYPE__ size_t;
extern "C" {
struct obh_item {
  unsigned long group_id[3], local_id[3], local_size[3], group_count[3];
  unsigned int sub_group_size, dimensions;
  unsigned long* exchange;
};
struct obh_item* obh_item(void);
void obh_barrier(unsigned int whole_group);
float lgammaf_r(float, int*);
double lgamma_r(double, int*);
}

struct obh_three { unsigned int x, y, z; };
OBH_FN obh_three obh_of(const unsigned long* n) { return {(unsigned int)n[0], (unsigned int)n[1], (unsigned int)n[2]}; }
#define threadIdx obh_of(obh_item()->local_id)
#define blockIdx obh_of(obh_item()->group_id)
#define blockDim obh_of(obh_item()->local_size)
#define gridDim obh_of(obh_item()->group_count)
#define warpSize 32

OBH_FN unsigned int obh_thread() {
  return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
}
OBH_FN unsigned int obh_threads() { return blockDim.x * blockDim.y * blockDim.z; }
OBH_FN void __syncthreads() { obh_barrier(1); }
/* Who takes part must be among those who are said to; a program that errs ends here. */
OBH_FN void obh_check(unsigned int mask) { if (((mask >> obh_thread() % 32u) & 1u) == 0) __builtin_trap(); }
OBH_FN void __syncwarp(unsigned int mask = 0xffffffffu) { obh_check(mask); obh_barrier(0); }
template <typename T> OBH_FN T __shfl_sync(unsigned int mask, T value, int lane) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "CUDA shuffles words of 32 and 64 bits");
  obh_check(mask);
  const unsigned int own = obh_thread(), other = own / 32u * 32u + ((unsigned int)lane & 31u);
  unsigned long* const places = obh_item()->exchange;
  __builtin_memcpy(&places[own], &value, sizeof(T));
  obh_barrier(0);
  T result = value;  /* of a lane that does not exist it could be anything */
  if (other < obh_threads()) __builtin_memcpy(&result, &places[other], sizeof(T));
  obh_barrier(0);
  return result;
}

#define OBH_ATOMICS(T) \
  OBH_FN T atomicAdd(T* p, T v) { return __atomic_fetch_add(p, v, __ATOMIC_RELAXED); } \
  OBH_FN T atomicExch(T* p, T v) { return __atomic_exchange_n(p, v, __ATOMIC_RELAXED); } \
  OBH_FN T atomicCAS(T* p, T seen, T v) { \
    __atomic_compare_exchange_n(p, &seen, v, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED); \
    return seen; \
  }
OBH_ATOMICS(int) OBH_ATOMICS(unsigned int) OBH_ATOMICS(unsigned long long)

template <typename To, typename From> OBH_FN To obh_bits(From value) {
  static_assert(sizeof(To) == sizeof(From), "");
  To result;
  __builtin_memcpy(&result, &value, sizeof(To));
  return result;
}
OBH_FN float __int_as_float(int v) { return obh_bits<float>(v); }
OBH_FN float __uint_as_float(unsigned int v) { return obh_bits<float>(v); }
OBH_FN int __float_as_int(float v) { return obh_bits<int>(v); }
OBH_FN unsigned int __float_as_uint(float v) { return obh_bits<unsigned int>(v); }
OBH_FN double __longlong_as_double(long long v) { return obh_bits<double>(v); }
OBH_FN long long __double_as_longlong(double v) { return obh_bits<long long>(v); }
OBH_FN unsigned int __umulhi(unsigned int a, unsigned int b) {
  return (unsigned int)(((unsigned long long)a * b) >> 32);
}
OBH_FN unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return (unsigned long long)(((unsigned __int128)a * b) >> 64);
}
/* Towards zero, the nearest where there is none, 0 of NaN. */
OBH_FN int __double2int_rz(double v) {
  return v != v ? 0 : v <= -2147483648.0 ? (-2147483647 - 1) : v >= 2147483647.0 ? 2147483647 : (int)v;
}
OBH_FN int __float2int_rz(float v) { return __double2int_rz(v); }

/* The instructions of PTX that programs use, by their names; `v` and `bits` are what theirs are called. */
constexpr bool obh_is(const char* text, const char* start) {
  for (++text; *start != 0; ++text, ++start) {
    if (*text != *start) return false;
  }
  return true;
}
constexpr const char* obh_instructions[] = {
    "cvt.f32.f16 ", "cvt.rn.f16.f32 ", "cvt.rn.f16x2.f32 ", "cvt.rn.bf16x2.f32 ",
    "ldmatrix.sync.aligned.m8n8.x4.shared.b16 ", "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 ",
    "mma.sync.aligned.m16n8k16.row.col.f32.\" \"f16\" \".\" \"f16\" \".f32 ",
    "mma.sync.aligned.m16n8k16.row.col.f32.\" \"bf16\" \".\" \"bf16\" \".f32 ",
    "cp.async.cg.shared.global ", "cp.async.wait_all;", "ex2.approx.ftz.f32 "};
constexpr int obh_instruction(const char* text) {
  for (int n = 0; n < 11; ++n) {
    if (obh_is(text, obh_instructions[n])) return n;
  }
  return -1;
}
#if !defined(__F16C__) && !defined(__aarch64__)
#error "CUDA programs are tried on processors that convert halves"
#endif
OBH_FN unsigned short obh_half(bool brain, float v) {
  if (!brain) return obh_bits<unsigned short>((_Float16)v);
  const unsigned int bits = obh_bits<unsigned int>(v);
  return v != v ? 0x7fff : (unsigned short)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
OBH_FN float obh_float(bool brain, unsigned short bits) {
  return brain ? obh_bits<float>((unsigned int)bits << 16) : (float)obh_bits<_Float16>(bits);
}
/* A value that was rounded to float is rounded once more: not both at once, as contraction allows. */
template <int instruction> OBH_FN void obh_ptx(float& v, unsigned short& bits) {
#pragma clang fp contract(off)
  if (instruction == 0) {
    v = (float)obh_bits<_Float16>(bits);
  } else {
    bits = obh_bits<unsigned short>((_Float16)v);
  }
}
template <int instruction> OBH_FN void obh_ptx(const float (&v)[2], unsigned int& bits) {
#pragma clang fp contract(off)
  bits = obh_half(instruction == 3, v[0]) | (unsigned int)obh_half(instruction == 3, v[1]) << 16;
}
/* Copies that are on their way, of each item: nobody sees them before they have been waited for. */
struct obh_copies { int count; struct { void* to; const void* from; } each[32]; };
static thread_local obh_copies obh_under_way[1024];
template <int instruction> OBH_FN void obh_ptx(void* v, const void* bits) {
  obh_copies& own = obh_under_way[obh_thread()];
  if (instruction == 8) {
    if (((unsigned long)v | (unsigned long)bits) % 16u != 0 || own.count == 32) __builtin_trap();
    own.each[own.count++] = {v, bits};
    return;
  }
  for (int n = 0; n < own.count; ++n) __builtin_memcpy(own.each[n].to, own.each[n].from, 16);
  own.count = 0;
}
template <int instruction> OBH_FN void obh_ptx(float& v, float& bits) {
  bits = v < -126.0f ? 0.0f : __builtin_exp2f(v);
}
/* What each of the 32 items of a sub-group has; all of them must come here. */
template <typename T> OBH_FN void obh_gather(T value, T (&all)[32]) {
  static_assert(sizeof(T) == 8, "");
  const unsigned int own = obh_thread(), first = own / 32u * 32u;
  if (obh_threads() < first + 32u) __builtin_trap();
  unsigned long* const places = obh_item()->exchange;
  __builtin_memcpy(&places[own], &value, 8);
  obh_barrier(0);
  __builtin_memcpy(all, &places[first], sizeof(all));
  obh_barrier(0);
}
template <int instruction> void obh_ptx(unsigned int* v, const void* bits) {
  const unsigned short* rows[32];
  obh_gather((const unsigned short*)bits, rows);
  const unsigned int lane = obh_thread() % 32u, across = 2u * (lane % 4u), down = lane / 4u;
  for (unsigned int n = 0; n < 4; ++n) {
    const unsigned short *const first = rows[8 * n + across], *const second = rows[8 * n + across + 1];
    const unsigned short* const row = rows[8 * n + down];
    if ((unsigned long)row % 16u != 0) __builtin_trap();
    v[n] = instruction == 5 ? first[down] | (unsigned int)second[down] << 16
                            : row[across] | (unsigned int)row[across + 1] << 16;
  }
}
/* Each element's sixteen products are summed in double precision, and rounded once. */
template <int instruction> void obh_ptx(float* v, const unsigned int* bits) {
  constexpr bool brain = instruction == 7;
  unsigned long all[3][32];
  for (int n = 0; n < 3; ++n) obh_gather(bits[2 * n] | (unsigned long)bits[2 * n + 1] << 32, all[n]);
  const auto half = [&](int n, int lane, int k) {
    return (double)obh_float(brain, (unsigned short)(all[n / 2][lane] >> (32 * (n % 2) + 16 * k)));
  };
  const int lane = (int)(obh_thread() % 32u);
  for (int n = 0; n < 4; ++n) {
    const int row = lane / 4, below = n / 2, column = 2 * (lane % 4) + n % 2;
    double sum = v[n];
    for (int k = 0; k < 16; ++k) {
      const double left = half(2 * (k / 8) + below, 4 * row + k % 8 / 2, k % 2);
      sum += left * half(4 + k / 8, 4 * column + k % 8 / 2, k % 2);
    }
    v[n] = (float)sum;
  }
}
#define asm(...) \
  static_assert(obh_instruction(#__VA_ARGS__) >= 0, "an instruction that the processor does not stand in for"); \
  obh_ptx<obh_instruction(#__VA_ARGS__)>(v, bits)

#define OBH_ONE(name) \
  OBH_FN float name(float a) { return __builtin_##name##f(a); } \
  OBH_FN double name(double a) { return __builtin_##name(a); }
#define OBH_TWO(name) \
  OBH_FN float name(float a, float b) { return __builtin_##name##f(a, b); } \
  OBH_FN double name(double a, double b) { return __builtin_##name(a, b); }
OBH_ONE(fabs) OBH_ONE(floor) OBH_ONE(ceil) OBH_ONE(trunc) OBH_ONE(rint) OBH_ONE(round) OBH_ONE(nearbyint) OBH_ONE(sqrt)
OBH_ONE(exp) OBH_ONE(exp2) OBH_ONE(expm1) OBH_ONE(log) OBH_ONE(log2) OBH_ONE(log10) OBH_ONE(log1p) OBH_ONE(cbrt)
OBH_ONE(sin) OBH_ONE(cos) OBH_ONE(tan) OBH_ONE(asin) OBH_ONE(acos) OBH_ONE(atan) OBH_ONE(sinh) OBH_ONE(cosh)
OBH_ONE(tanh) OBH_ONE(asinh) OBH_ONE(acosh) OBH_ONE(atanh) OBH_ONE(erf) OBH_ONE(erfc) OBH_ONE(tgamma) OBH_ONE(logb)
OBH_TWO(pow) OBH_TWO(atan2) OBH_TWO(fmod) OBH_TWO(remainder) OBH_TWO(hypot) OBH_TWO(nextafter) OBH_TWO(copysign)
OBH_TWO(fdim) OBH_TWO(fmin) OBH_TWO(fmax)
OBH_FN float exp10(float a) { return __builtin_powf(10.0f, a); }
OBH_FN double exp10(double a) { return __builtin_pow(10.0, a); }
OBH_FN float rsqrt(float a) { return 1.0f / __builtin_sqrtf(a); }
OBH_FN double rsqrt(double a) { return 1.0 / __builtin_sqrt(a); }
OBH_FN float lgamma(float a) { int sign; return lgammaf_r(a, &sign); }
OBH_FN double lgamma(double a) { int sign; return lgamma_r(a, &sign); }
OBH_FN float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
OBH_FN double fma(double a, double b, double c) { return __builtin_fma(a, b, c); }
OBH_FN float ldexp(float a, int n) { return __builtin_ldexpf(a, n); }
OBH_FN double ldexp(double a, int n) { return __builtin_ldexp(a, n); }
OBH_FN float frexp(float a, int* n) { return __builtin_frexpf(a, n); }
OBH_FN double frexp(double a, int* n) { return __builtin_frexp(a, n); }
OBH_FN int ilogb(float a) { return __builtin_ilogbf(a); }
OBH_FN int ilogb(double a) { return __builtin_ilogb(a); }
#define OBH_CLASS(name) \
  OBH_FN bool name(float a) { return __builtin_##name(a); } \
  OBH_FN bool name(double a) { return __builtin_##name(a); }
OBH_CLASS(isnan) OBH_CLASS(isinf) OBH_CLASS(isfinite) OBH_CLASS(signbit)
OBH_FN int abs(int a) { return a < 0 ? -a : a; }
OBH_FN long abs(long a) { return a < 0 ? -a : a; }
OBH_FN long long abs(long long a) { return a < 0 ? -a : a; }
OBH_FN float abs(float a) { return __builtin_fabsf(a); }
OBH_FN double abs(double a) { return __builtin_fabs(a); }
#define OBH_ORDER(T, U, R) \
  OBH_FN R min(T a, U b) { return (R)b < (R)a ? (R)b : (R)a; } \
  OBH_FN R max(T a, U b) { return (R)a < (R)b ? (R)b : (R)a; }
OBH_ORDER(int, int, int) OBH_ORDER(unsigned, unsigned, unsigned) OBH_ORDER(int, unsigned, unsigned)
OBH_ORDER(unsigned, int, unsigned) OBH_ORDER(long, long, long) OBH_ORDER(unsigned long, unsigned long, unsigned long)
OBH_ORDER(long, unsigned long, unsigned long) OBH_ORDER(unsigned long, long, unsigned long)
OBH_ORDER(long long, long long, long long) OBH_ORDER(unsigned long long, unsigned long long, unsigned long long)
OBH_FN float min(float a, float b) { return __builtin_fminf(a, b); }
OBH_FN float max(float a, float b) { return __builtin_fmaxf(a, b); }
OBH_FN double min(double a, double b) { return __builtin_fmin(a, b); }
OBH_FN double max(double a, double b) { return __builtin_fmax(a, b); }
OBH_FN double min(float a, double b) { return __builtin_fmin(a, b); }
OBH_FN double max(float a, double b) { return __builtin_fmax(a, b); }
OBH_FN double min(double a, float b) { return __builtin_fmin(a, b); }
OBH_FN double max(double a, float b) { return __builtin_fmax(a, b); }
#line 1 "program"
)CUDA";

}  // namespace

std::string with_cuda(std::string_view source) { return kText + std::string(source); }

}  // namespace outboard::host
