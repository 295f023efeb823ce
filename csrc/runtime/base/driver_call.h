// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <string>

#include "runtime/base/error.h"

namespace outboard {

/// True in a child process forked after devices were opened. The driver's threads do not exist there and its locks may
/// be held for ever, so nothing of it may be touched.
inline std::atomic<bool> in_forked_child{false};

/// Throws ForkError in a forked child.
void refuse_in_forked_child();

/// A driver's table in the form of this version: what the driver is too old to know is null, as what it lacks. A
/// function that `struct_size` cuts in two is not there.
inline ob_driver whole_table(const ob_driver& given) {
  ob_driver table{};
  const size_t first = offsetof(ob_driver, last_error);
  const size_t known = std::min(given.struct_size, sizeof(table));
  if (known < first) return table;
  std::memcpy(&table, &given, known - (known - first) % sizeof(table.last_error));
  return table;
}

/// Why the runtime cannot use a driver's table, as the end of a sentence, or "".
std::string misfit(const ob_driver& given);

/// What has become of a device; each implies those before it but the first.
enum class DeviceState : uint8_t {
  kUsable,
  kLost,   ///< a call said so: nothing waits for it any more
  kReset,  ///< that is because it is given up for a successor
  kEnded,  ///< and nothing of what was queued goes on
};

/// The driver's table as one device uses it. It remembers when the device is lost.
struct DeviceDriver final : ob_driver {
  explicit DeviceDriver(const ob_driver& given) : ob_driver(given) {}

  bool lost() const { return state.load(std::memory_order_relaxed) != DeviceState::kUsable; }
  bool was_reset() const { return state.load(std::memory_order_relaxed) >= DeviceState::kReset; }
  bool work_ended() const { return state.load(std::memory_order_acquire) == DeviceState::kEnded; }
  /// The device is lost, if it is not already, and maybe more.
  void lose() const {
    DeviceState usable = DeviceState::kUsable;
    state.compare_exchange_strong(usable, DeviceState::kLost);
  }

  mutable std::atomic<DeviceState> state{DeviceState::kUsable};
};

/// Which of two devices' drivers a call that concerns both was refused by: the other's, if that device is lost.
inline const DeviceDriver& to_blame(const DeviceDriver& driver, const DeviceDriver& other) {
  return other.lost() ? other : driver;
}

/// Throws what a driver call of this thread reported: OutOfMemoryError or Error, "<what> failed: " and the driver's own
/// text; IndexError or Error with that text alone for values that an executable refused.
[[noreturn]] void throw_failure(const ob_driver& driver, ob_status status, const char* what);
/// The same; after OB_DEVICE_LOST the device stays lost.
[[noreturn]] void throw_failure(const DeviceDriver& driver, ob_status status, const char* what);

/// Throws Error(OB_DEVICE_LOST) once the device is lost, and in a forked child.
void refuse_if_unusable(const DeviceDriver& driver);

/// Whether the driver makes page-locked host memory.
inline bool has_host_memory(const ob_driver& driver) {
  return driver.host_alloc != nullptr && driver.host_free != nullptr;
}

template <typename Driver>
void check(const Driver& driver, ob_status status, const char* what) {
  if (status != OB_OK) throw_failure(driver, status, what);
}

}  // namespace outboard
