// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace outboard::common {

/// How much memory of the machine this process may use, and how much of it is left. In bytes.
struct HostMemory {
  uint64_t total;
  uint64_t available;

  /// Of the machine, or of the smallest control group around the process.
  static HostMemory now();
  /// The same for another place than "/": folders `proc` and `sys` in `root`.
  static HostMemory now(const std::string& root);
};

}  // namespace outboard::common
