// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace outboard::common {

/// How much memory of the machine this process may use, and how much of it is left. In bytes.
struct HostMemory {
  uint64_t total;
  uint64_t available;

  /// What devices that use it may have in all: a part is left to the system and to the rest of the process.
  uint64_t for_devices() const { return total - total / 16; }

  /// Of the machine, or of the smallest control group around the process.
  static HostMemory now();
  /// The same for another place than "/": folders `proc` and `sys` in `root`.
  static HostMemory now(const std::string& root);
};

}  // namespace outboard::common
