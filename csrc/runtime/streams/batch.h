// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>

namespace outboard {

/// Launches that do not depend on one another: none writes what another reads or writes, so that the driver need not
/// finish one before the next (see `launch_batch` in driver.h). Those that follow one another on a stream with the same
/// number are one batch; anything between them ends it. Not thread-safe.
class Batch {
 public:
  /// The number for a launch. `memory_given` counts how often a device has given memory to somebody (see
  /// Residency::memory_given): what was given after earlier launches of the batch may be memory that they still use.
  uint64_t number(uint64_t memory_given) {
    if (number_ == 0 || memory_given != memory_given_) renew();
    memory_given_ = memory_given;
    return number_;
  }
  /// Launches from here on depend on those before.
  void renew() {
    static std::atomic<uint64_t> last{0};
    number_ = last.fetch_add(1, std::memory_order_relaxed) + 1;
  }

 private:
  uint64_t number_ = 0;
  uint64_t memory_given_ = 0;
};

}  // namespace outboard
