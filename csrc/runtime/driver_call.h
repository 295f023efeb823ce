// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <atomic>
#include <cstring>
#include <string>

#include "runtime/error.h"

namespace outboard {

/// True in a child process forked after devices were opened. The driver's threads do not exist there and its locks may
/// be held for ever, so nothing of it may be touched.
inline std::atomic<bool> in_forked_child{false};

/// Throws ForkError in a forked child.
void refuse_in_forked_child();

/// Throws what a driver call of this thread reported, OutOfMemoryError or Error: "<what> failed: " and the driver's own
/// text.
[[noreturn]] void throw_failure(const ob_driver& driver, ob_status status, const char* what);

/// A driver's table in the form of this version: what the driver is too old to know is null, as what it lacks.
inline ob_driver whole_table(const ob_driver& given) {
  ob_driver table{};
  std::memcpy(&table, &given, std::min(given.struct_size, sizeof(table)));
  return table;
}

/// Bytes that an argument's value has.
inline size_t bytes_of(const ob_argument& argument) {
  return argument.is_pointer != 0 ? sizeof(ob_ptr) : argument.size;
}

/// Whether the driver makes page-locked host memory.
inline bool has_host_memory(const ob_driver& driver) {
  return driver.host_alloc != nullptr && driver.host_free != nullptr;
}

inline void check(const ob_driver& driver, ob_status status, const char* what) {
  if (status != OB_OK) throw_failure(driver, status, what);
}

}  // namespace outboard
