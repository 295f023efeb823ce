// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

namespace outboard {

/// Reads the fields that plans and model files are made of, one after the other and never beyond the end.
/// Little-endian. What is wrong goes to `invalid`, which throws.
class WireReader {
 public:
  using Invalid = void (*)(const std::string& what);

  WireReader(const uint8_t* data, size_t bytes, Invalid invalid) : data_(data), end_(data + bytes), invalid_(invalid) {}

  template <typename T>
  T fixed() {
    if (left() < sizeof(T)) invalid_("truncated");
    T value;
    std::memcpy(&value, data_, sizeof(T));
    data_ += sizeof(T);
    return value;
  }
  uint8_t u8() { return fixed<uint8_t>(); }
  uint32_t u32() { return fixed<uint32_t>(); }

  /// A value below `limit`.
  template <typename T>
  T bounded(T value, size_t limit, const char* what) const {
    if (static_cast<size_t>(value) >= limit) invalid_(std::string(what) + " out of range");
    return value;
  }

  /// A length and as many bytes.
  std::string text() {
    const uint32_t size = u32();
    if (left() < size) invalid_("truncated text");
    std::string value(reinterpret_cast<const char*>(data_), size);
    data_ += size;
    return value;
  }

  /// One of an enumeration's values, of which `last` is the greatest.
  template <typename T>
  void choice(T& value, int last) {
    value = static_cast<T>(bounded(u8(), static_cast<size_t>(last) + 1, "kind"));
  }

  /// A length and as many items.
  template <typename T, typename Read>
  void each(std::vector<T>& items, Read&& read) {
    const uint32_t count = u32();
    if (left() < count) invalid_("truncated list");
    items.reserve(std::min(count, 1024u));  // a damaged count must not take much memory
    for (uint32_t i = 0; i < count; ++i) {
      T item{};
      read(item);
      items.push_back(std::move(item));
    }
  }

  size_t left() const { return static_cast<size_t>(end_ - data_); }

 private:
  const uint8_t* data_;
  const uint8_t* end_;
  Invalid invalid_;
};

}  // namespace outboard
