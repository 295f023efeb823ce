// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "outboard/driver.h"

namespace outboard {

class Device;

/// Programs of a device by (source, options): in memory, then as binaries under `<cache dir>/programs`, then the
/// driver's compiler. Disk entries are written atomically (temporary file + rename), carry a checksum and the
/// device's cache_key, and are ignored and replaced when damaged or foreign; an unwritable directory only costs
/// speed. Thread-safe; different programs build in parallel.
class ProgramCache {
 public:
  explicit ProgramCache(Device& device);
  /// Throws Error(OB_BUILD_FAILED) with the build log.
  ob_kernel kernel(const std::string& source, const std::string& options, const std::string& entry);
  /// A binary, made by this device (of equal `cache_key`), that is tried before the program is looked for elsewhere.
  void offer(const std::string& source, const std::string& options, const std::string& binary);
  /// The binary of a program that `kernel` has made. Empty if there is none, or the driver gives none.
  std::string binary(const std::string& source, const std::string& options);
  /// Empty string: no disk cache. Process-wide.
  static void set_directory(const std::string& directory);

  struct Statistics {
    int64_t built = 0, loaded_from_disk = 0;
  };
  Statistics statistics() const;

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace outboard
