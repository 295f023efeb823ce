// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <mutex>
#include <string>

#include "outboard/driver.h"

namespace outboard::host {

/// What /proc/cpuinfo says of the first processor, or an empty text.
std::string processor_text(const std::string& what);

/// What Linux tells of the processor, in /proc and /sys. Thread-safe.
class Sensors {
 public:
  Sensors();
  /// OB_NOT_KNOWN where Linux does not tell, as in most virtual machines. How busy it is is since the last question.
  ob_sensors read();

 private:
  /// Time of all processors since the machine started.
  struct Time {
    int64_t busy = 0, all = 0;
  };
  static Time time();
  int64_t busy();

  std::mutex mutex_;
  Time last_;
  int64_t percent_ = 0;
};

}  // namespace outboard::host
