"""The language of the chip's programs: what it calls the words that Outboard writes kernels with (docs/dialects.md).

Here it is C++ for the processor, one work-item in a group.
"""

from outboard.compiler.dialects import Dialect

WORDS = r"""#include <limits.h>
#include <math.h>
#include <string.h>
#include <utility>
typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
#define OB_HAS_DOUBLES
#define OB_KERNEL [[mychip::kernel]] static
#define OB_GROUP_OF(x, y, z)
#define OB_GLOBAL
#define OB_LOCAL
#define OB_SHARED static thread_local
#define OB_CONSTANT const
#define OB_RESTRICT __restrict__
#define OB_ALIGNED(bytes) __attribute__((aligned(bytes)))
#define OB_PRAGMA(text) _Pragma(#text)
#define OB_UNROLL(count) OB_PRAGMA(GCC unroll count)
#define OB_GROUP_ID(d) mychip_group[d]
#define OB_GROUP_COUNT(d) mychip_groups[d]
#define OB_LOCAL_ID(d) 0
#define OB_LOCAL_COUNT(d) 1
#define OB_ITEM_ID(d) mychip_group[d]
#define OB_ITEM_COUNT(d) mychip_groups[d]
#define OB_BARRIER()
#define ob_half ushort
#define OB_LOAD_HALF(p, i) ((float)mychip_bits<_Float16>((p)[i]))
#define OB_STORE_HALF(p, i, v) ((p)[i] = mychip_bits<ushort>((_Float16)(v)))
#define OB_ATOMIC_ADD(p, v) __atomic_fetch_add(p, v, __ATOMIC_RELAXED)
#define OB_ATOMIC_ADD_LONG(p, v) __atomic_fetch_add(p, v, __ATOMIC_RELAXED)
#define OB_EXCHANGE(p, seen, v) __sync_val_compare_and_swap(p, seen, v)
#define OB_EXCHANGE_LONG(p, seen, v) __sync_val_compare_and_swap(p, seen, v)
static thread_local long mychip_group[3], mychip_groups[3];
/* Runs a kernel for each group: `values` point to its arguments. 0 if it takes another number of them. */
template <typename... P, unsigned long... I>
void mychip_call(void (*kernel)(P...), void** values, std::index_sequence<I...>) {
  kernel(*(P*)values[I]...);
}
template <typename... P>
int mychip_launch(void (*kernel)(P...), void** values, unsigned count, const unsigned long* groups) {
  if (count != sizeof...(P)) return 0;
  for (int d = 0; d < 3; ++d) mychip_groups[d] = groups[d];
  for (mychip_group[2] = 0; mychip_group[2] < groups[2]; ++mychip_group[2])
    for (mychip_group[1] = 0; mychip_group[1] < groups[1]; ++mychip_group[1])
      for (mychip_group[0] = 0; mychip_group[0] < groups[0]; ++mychip_group[0])
        mychip_call(kernel, values, std::index_sequence_for<P...>());
  return 1;
}
template <typename To, typename From> To mychip_bits(From value) {
  static_assert(sizeof(To) == sizeof(From), "");
  To result;
  memcpy(&result, &value, sizeof(To));
  return result;
}
template <typename T> float as_float(T v) { return mychip_bits<float>(v); }
template <typename T> int as_int(T v) { return mychip_bits<int>(v); }
template <typename T> uint as_uint(T v) { return mychip_bits<uint>(v); }
template <typename T> double as_double(T v) { return mychip_bits<double>(v); }
template <typename T> long as_long(T v) { return mychip_bits<long>(v); }
template <typename T> ulong as_ulong(T v) { return mychip_bits<ulong>(v); }
template <typename T> char as_char(T v) { return mychip_bits<char>(v); }
template <typename T> uchar as_uchar(T v) { return mychip_bits<uchar>(v); }
template <typename T> short as_short(T v) { return mychip_bits<short>(v); }
template <typename T> ushort as_ushort(T v) { return mychip_bits<ushort>(v); }
template <typename T> T min(T a, T b) { return b < a ? b : a; }
template <typename T> T max(T a, T b) { return a < b ? b : a; }
template <typename T> T clamp(T v, T low, T high) { return v < low ? low : v > high ? high : v; }
inline uint mul_hi(uint a, uint b) { return ((ulong)a * b) >> 32; }
inline ulong mul_hi(ulong a, ulong b) { return ((unsigned __int128)a * b) >> 64; }
template <typename T> int convert_int_sat(T v) {
  return v != v ? 0 : v >= (T)INT_MAX ? INT_MAX : v <= (T)INT_MIN ? INT_MIN : (int)v;
}
inline float lgamma_r(float v, int* sign) { return lgammaf_r(v, sign); }
"""

DIALECT = Dialect("mychip", WORDS, vectors=False)
