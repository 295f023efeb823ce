// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "outboard/driver.h"
#include "runtime/base/small_array.h"

namespace outboard {

class Kernel;

/// Arguments of a kernel, by value: pointers, and numbers of up to eight bytes. They can be copied and kept; what a
/// driver reads is made of them when it is called.
class Arguments {
 public:
  /// Most that need no heap.
  static constexpr size_t kFew = 32;
  /// The same in the form that a driver reads. Points into the arguments.
  using Readable = SmallArray<ob_argument, kFew>;

  Arguments() = default;
  /// So many, all of them the number 0 of one byte.
  explicit Arguments(size_t count) : words_(count), sizes_(count) {}

  void set_pointer(size_t number, ob_ptr pointer) {
    words_[number] = pointer;
    sizes_[number] = kPointer;
  }
  template <typename Number>
  void set(size_t number, Number value) {
    static_assert(std::is_arithmetic_v<Number> && sizeof(Number) <= sizeof(uint64_t));
    std::memcpy(&words_[number], &value, sizeof(value));
    sizes_[number] = sizeof(value);
  }
  /// Copies without a heap what needs none.
  void assign(const Arguments& other) {
    words_.assign(other.words_.data(), other.words_.size());
    sizes_.assign(other.sizes_.data(), other.sizes_.size());
  }

  size_t size() const { return words_.size(); }
  /// Bytes of all of them, as devices limit them.
  uint64_t bytes() const {
    uint64_t total = 0;
    for (const uint8_t size : sizes_) total += size == kPointer ? sizeof(ob_ptr) : size;
    return total;
  }
  /// Writes `size()` elements that point into this.
  void read(ob_argument* readable) const {
    for (size_t i = 0; i < size(); ++i) {
      const bool pointer = sizes_[i] == kPointer;
      readable[i] = {pointer, pointer ? uint32_t{sizeof(ob_ptr)} : sizes_[i], &words_[i]};
    }
  }
  Readable read() const {
    Readable readable(size());
    read(readable.data());
    return readable;
  }

 private:
  static constexpr uint8_t kPointer = 0;

  SmallArray<uint64_t, kFew> words_;
  SmallArray<uint8_t, kFew> sizes_;  // bytes, or kPointer
};

/// A kernel, how many work-items it runs in, and what it is given: what plans make, queues and graphs keep, and drivers
/// are handed.
struct Launch {
  Kernel* kernel = nullptr;
  uint64_t global[3] = {1, 1, 1};
  uint32_t local[3] = {1, 1, 1};
  uint64_t batch = 0;  ///< the number of a Batch that it belongs to, or 0
  Arguments arguments;
};

}  // namespace outboard
