// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <type_traits>

namespace outboard {

/// An array whose length is fixed when it is made: the first `N` elements need no heap. For the paths that run on
/// every operator. Elements start as zeros.
template <typename T, size_t N>
class SmallArray {
  static_assert(std::is_trivially_copyable_v<T>, "elements are copied as bytes");

 public:
  SmallArray() {}
  explicit SmallArray(size_t size) : size_(size) {
    if (size > N) heap_ = std::make_unique<T[]>(size);
    if (size <= N) std::fill_n(inline_, size, T{});
  }
  SmallArray(std::initializer_list<T> items) : SmallArray(items.size()) {
    std::copy(items.begin(), items.end(), data());
  }
  SmallArray(const T* items, size_t size) : SmallArray(size) { std::copy_n(items, size, data()); }
  SmallArray(const SmallArray& other) : SmallArray(other.data(), other.size_) {}
  SmallArray(SmallArray&& other) noexcept : size_(other.size_), heap_(std::move(other.heap_)) {
    if (size_ <= N) std::copy_n(other.inline_, size_, inline_);
    other.size_ = 0;
  }
  SmallArray& operator=(SmallArray other) noexcept {
    size_ = other.size_;
    heap_ = std::move(other.heap_);
    if (size_ <= N) std::copy_n(other.inline_, size_, inline_);
    return *this;
  }

  /// Copies `size` items here, in place of what was there.
  void assign(const T* items, size_t size) {
    if (size > N && size > size_) heap_ = std::make_unique<T[]>(size);
    if (size <= N) heap_ = nullptr;
    size_ = size;
    std::copy_n(items, size, data());
  }

  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  T* data() { return size_ > N ? heap_.get() : inline_; }
  const T* data() const { return size_ > N ? heap_.get() : inline_; }
  T& operator[](size_t i) { return data()[i]; }
  const T& operator[](size_t i) const { return data()[i]; }
  T* begin() { return data(); }
  T* end() { return data() + size_; }
  const T* begin() const { return data(); }
  const T* end() const { return data() + size_; }

 private:
  size_t size_ = 0;
  std::unique_ptr<T[]> heap_;  // of more than N elements
  union {
    T inline_[N];  // in a union, so that elements beyond the size are not made
  };
};

/// Sizes or strides of a tensor.
using Dims = SmallArray<int64_t, 6>;

}  // namespace outboard
