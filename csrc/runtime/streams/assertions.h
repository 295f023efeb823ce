// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>

#include "outboard/driver.h"

namespace outboard {

class Device;

/// What kernels found wrong with the values that they read: an index out of range, a probability above 1.
///
/// A kernel that fails an assertion writes the assertion's code into one word of the device and goes on with some value
/// in range. The next wait for the device reads the word and throws (as with device-side assertions of CUDA, but
/// the device stays usable). So checking costs a launch nothing, and no result is seen before its check.
class Assertions {
 public:
  enum Kind : uint8_t { kRuntimeError = 0, kIndexError = 1 };

  explicit Assertions(Device& device) : device_(device) {}

  /// Tells what a code stands for. The same code always means the same.
  void add(int32_t code, Kind kind, const std::string& text);
  /// Where kernels write. Made and cleared by the first call, which may throw OutOfMemoryError.
  ob_ptr word();
  /// Whether there is such a place: it stays for as long as the device.
  bool has_word() const { return word_.load(std::memory_order_acquire) != 0; }
  /// Throws what the kernels finished so far complained of, once: IndexError or Error.
  void report();

 private:
  struct Meaning {
    Kind kind;
    std::string text;
  };

  int32_t take(ob_ptr word);

  Device& device_;
  std::mutex mutex_;
  std::map<int32_t, Meaning> meanings_;
  std::atomic<ob_ptr> word_{0};
  int32_t landing_ = 0;  // where the word is copied to: a copy that nobody waited for may arrive late
};

}  // namespace outboard
