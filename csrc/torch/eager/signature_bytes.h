// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string_view>

namespace outboard::aten {

/// Bytes written one after the other and compared as whole words; the first 256 need no heap.
class SignatureBytes {
 public:
  SignatureBytes() = default;
  SignatureBytes(const SignatureBytes&) = delete;
  SignatureBytes& operator=(const SignatureBytes&) = delete;

  /// Room for `count` more bytes, which the caller writes.
  char* extend(size_t count) {
    if (size_ + count > capacity_) grow(size_ + count);
    char* const place = data_ + size_;
    size_ += count;
    return place;
  }
  void push(char value) { *extend(1) = value; }
  template <typename T>
  void push_raw(const T& value) {
    std::memcpy(extend(sizeof(T)), &value, sizeof(T));
  }
  void push(std::string_view text) { std::memcpy(extend(text.size()), text.data(), text.size()); }

  void clear() { size_ = 0; }

  /// Fills the last word up with zeros.
  void complete() {
    const size_t missing = (kWord - size_ % kWord) % kWord;
    std::memset(extend(missing), 0, missing);
  }

  bool empty() const { return size_ == 0; }
  std::string_view view() const { return {data_, size_}; }

  /// Whether other complete bytes are the same. Shorter than a call of memcmp for the few words of a signature.
  bool equals(std::string_view other) const {
    if (other.size() != size_) return false;
    uint64_t difference = 0;
    for (size_t i = 0; i < size_; i += kWord) difference |= word(data_ + i) ^ word(other.data() + i);
    return difference == 0;
  }

  /// A hash of complete bytes and `seed`: FNV-1a by words, folded since its low bits alone hang on low bits alone.
  uint64_t hash(uint64_t seed) const {
    constexpr uint64_t kPrime = 0x100000001b3;
    uint64_t hash = seed * kPrime;
    for (size_t i = 0; i < size_; i += kWord) {
      hash = (hash ^ word(data_ + i)) * kPrime;
      hash ^= hash >> 29;
    }
    return hash;
  }

 private:
  static constexpr size_t kWord = sizeof(uint64_t);

  static uint64_t word(const char* place) {
    uint64_t value;
    std::memcpy(&value, place, kWord);
    return value;
  }

  void grow(size_t least) {
    const size_t capacity = 2 * least;
    auto larger = std::make_unique<char[]>(capacity);
    std::memcpy(larger.get(), data_, size_);
    heap_ = std::move(larger);
    data_ = heap_.get();
    capacity_ = capacity;
  }

  char inline_[256];
  std::unique_ptr<char[]> heap_;
  char* data_ = inline_;
  size_t size_ = 0, capacity_ = sizeof(inline_);
};

}  // namespace outboard::aten
