// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <string>

#include "runtime/error.h"

namespace outboard {

/// True in a child process forked after devices were opened. The driver's threads do not exist there and its locks may
/// be held for ever, so nothing of it may be touched.
inline std::atomic<bool> in_forked_child{false};

/// Throws Error(OB_DEVICE_LOST) in a forked child.
void refuse_in_forked_child();

/// Throws what a driver call of this thread reported, OutOfMemoryError or Error: "<what> failed: " and the driver's own
/// text.
[[noreturn]] void throw_failure(const ob_driver& driver, ob_status status, const char* what);

/// A function that a driver may lack, or be too old to know: then nullptr.
template <typename Function>
Function optional(const ob_driver& driver, Function ob_driver::* field) {
  const auto offset = reinterpret_cast<const char*>(&(driver.*field)) - reinterpret_cast<const char*>(&driver);
  return driver.struct_size >= static_cast<size_t>(offset) + sizeof(Function) ? driver.*field : nullptr;
}

inline void check(const ob_driver& driver, ob_status status, const char* what) {
  if (status != OB_OK) throw_failure(driver, status, what);
}

}  // namespace outboard
