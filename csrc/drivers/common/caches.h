// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace outboard::common {

/// The first processor's caches of data, in bytes; 0 where the system does not tell.
struct Caches {
  uint64_t near;  ///< the fastest
  uint64_t last;  ///< the last before memory

  /// From sysfs: sysconf reports those of whole sockets on some processors.
  static Caches now();
  /// The same for another place than "/": a folder `sys` in `root`.
  static Caches now(const std::string& root);
};

}  // namespace outboard::common
