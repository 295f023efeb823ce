// SPDX-License-Identifier: Apache-2.0
#pragma once

#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace outboard::common {

/// Rounding and denormal numbers as OpenCL wants them, whatever the thread has set for itself.
class FloatingPoint {
 public:
#ifdef __x86_64__
  FloatingPoint() : before_(_mm_getcsr()) {
    if (differs()) _mm_setcsr(kDefault);
  }
  ~FloatingPoint() {
    if (differs()) _mm_setcsr(before_);
  }
  FloatingPoint(const FloatingPoint&) = delete;
  FloatingPoint& operator=(const FloatingPoint&) = delete;

 private:
  static constexpr unsigned kDefault = 0x1f80, kFlags = 0x3f;  // flags of what happened, which nobody reads

  bool differs() const { return (before_ & ~kFlags) != kDefault; }

  unsigned before_;
#endif
};

}  // namespace outboard::common
