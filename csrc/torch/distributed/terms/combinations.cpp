// SPDX-License-Identifier: Apache-2.0
#include "torch/distributed/terms/combinations.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Exception.h>
#include <c10/util/Half.h>

#include <cstdint>
#include <type_traits>

namespace outboard::distributed {
namespace {

struct Sum {
  template <typename T>
  static T of(T a, T b) {
    return static_cast<T>(a + b);
  }
};

struct Product {
  template <typename T>
  static T of(T a, T b) {
    return static_cast<T>(a * b);
  }
};

/// Of numbers, one of which is none, that one, as torch.minimum does.
struct Minimum {
  template <typename T>
  static T of(T a, T b) {
    return a < b || a != a ? a : b;
  }
};

struct Maximum {
  template <typename T>
  static T of(T a, T b) {
    return a > b || a != a ? a : b;
  }
};

struct And {
  template <typename T>
  static T of(T a, T b) {
    return static_cast<T>(a & b);
  }
};

struct Or {
  template <typename T>
  static T of(T a, T b) {
    return static_cast<T>(a | b);
  }
};

struct Xor {
  template <typename T>
  static T of(T a, T b) {
    return static_cast<T>(a ^ b);
  }
};

template <typename T, typename Function>
void apply(const void* a, const void* b, void* result, size_t count) {
  const T* const left = static_cast<const T*>(a);
  const T* const right = static_cast<const T*>(b);
  T* const out = static_cast<T*>(result);
  for (size_t i = 0; i < count; ++i) out[i] = Function::template of<T>(left[i], right[i]);
}

template <typename T>
Combination of_numbers(c10d::ReduceOp::RedOpType reduction) {
  switch (reduction) {
    case c10d::ReduceOp::SUM:
    case c10d::ReduceOp::AVG:
      return {apply<T, Sum>, sizeof(T)};
    case c10d::ReduceOp::PRODUCT:
      return {apply<T, Product>, sizeof(T)};
    case c10d::ReduceOp::MIN:
      return {apply<T, Minimum>, sizeof(T)};
    case c10d::ReduceOp::MAX:
      return {apply<T, Maximum>, sizeof(T)};
    default:
      break;
  }
  if constexpr (std::is_integral_v<T>) {
    switch (reduction) {
      case c10d::ReduceOp::BAND:
        return {apply<T, And>, sizeof(T)};
      case c10d::ReduceOp::BOR:
        return {apply<T, Or>, sizeof(T)};
      case c10d::ReduceOp::BXOR:
        return {apply<T, Xor>, sizeof(T)};
      default:
        break;
    }
  }
  TORCH_CHECK(false, "Cannot use ReduceOp.", name_of(reduction), " with non-integral dtype");
}

}  // namespace

const char* name_of(const c10d::ReduceOp& reduction) {
  switch (reduction.op_) {
    case c10d::ReduceOp::SUM:
      return "SUM";
    case c10d::ReduceOp::AVG:
      return "AVG";
    case c10d::ReduceOp::PRODUCT:
      return "PRODUCT";
    case c10d::ReduceOp::MIN:
      return "MIN";
    case c10d::ReduceOp::MAX:
      return "MAX";
    case c10d::ReduceOp::BAND:
      return "BAND";
    case c10d::ReduceOp::BOR:
      return "BOR";
    default:
      return "BXOR";
  }
}

Combination combination(const c10d::ReduceOp& reduction, at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return of_numbers<float>(reduction.op_);
    case at::kDouble:
      return of_numbers<double>(reduction.op_);
    case at::kHalf:
      return of_numbers<c10::Half>(reduction.op_);
    case at::kBFloat16:
      return of_numbers<c10::BFloat16>(reduction.op_);
    case at::kChar:
      return of_numbers<int8_t>(reduction.op_);
    case at::kByte:
    case at::kBool:
      return of_numbers<uint8_t>(reduction.op_);
    case at::kInt:
      return of_numbers<int32_t>(reduction.op_);
    case at::kLong:
      return of_numbers<int64_t>(reduction.op_);
    default:
      TORCH_CHECK_TYPE(false, "Reductions across ranks are not there for ", dtype);
  }
}

}  // namespace outboard::distributed
