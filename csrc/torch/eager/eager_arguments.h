// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/ivalue.h>

#include <cstddef>
#include <cstdint>
#include <utility>

namespace outboard::aten {

/// The arguments of one eager call, one IValue per argument of the schema, in an array of the caller's.
class Arguments {
 public:
  enum Tensors {
    kOwned,  ///< counted, as tensors in IValues are
    kLent    ///< not counted: their owner outlives the call; see `lend`
  };

  Arguments(c10::IValue* values, size_t count, Tensors tensors) : values_(values), count_(count) {
    TORCH_INTERNAL_ASSERT(tensors == kOwned || count <= 32, "one bit per argument");
    for (size_t i = 0; tensors == kLent && i < count; ++i) lent_ |= uint32_t{values[i].isTensor()} << i;
  }
  Arguments(const Arguments&) = delete;
  Arguments& operator=(const Arguments&) = delete;
  ~Arguments() {
    for (size_t i = 0; lent_ >> i != 0; ++i) give_back(i);
  }

  const c10::IValue& operator[](size_t i) const { return values_[i]; }
  const c10::IValue* begin() const { return values_; }
  const c10::IValue* end() const { return values_ + count_; }
  operator c10::ArrayRef<c10::IValue>() const { return c10::ArrayRef<c10::IValue>(values_, count_); }

  /// Exchanges one argument.
  void replace(size_t i, c10::IValue value) {
    give_back(i);
    values_[i] = std::move(value);
  }

 private:
  /// Empties a lent argument without counting it down.
  void give_back(size_t i) {
    if ((lent_ >> i & 1) == 0) return;
    c10::MaybeOwnedTraits<c10::IValue>::destroyBorrow(values_[i]);
    lent_ &= ~(uint32_t{1} << i);
  }

  c10::IValue* values_;
  size_t count_;
  uint32_t lent_ = 0;  // bit i: argument i is lent
};

/// A tensor for `Arguments::kLent`: counting one that only Python holds takes the GIL in PyTorch 2.13
/// (`TensorImpl::incref_pyobject`), on the way in and on the way out.
inline c10::IValue lend(const at::Tensor& tensor) {
  return c10::IValue(c10::MaybeOwnedTraits<at::Tensor>::createBorrow(tensor));
}
inline c10::IValue lend(const std::optional<at::Tensor>& tensor) {
  return tensor.has_value() ? lend(*tensor) : c10::IValue();
}
/// Anything else is a value of its own.
template <typename T>
c10::IValue lend(const T& value) {
  return c10::IValue(value);
}

}  // namespace outboard::aten
