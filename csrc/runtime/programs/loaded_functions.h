// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "outboard/driver.h"

namespace outboard {

class Device;
struct DeviceDriver;

/// A function that the driver made of an executable's bytes. It is released with its last user; what is queued then is
/// the driver's to finish.
class LoadedFunction {
 public:
  LoadedFunction(const DeviceDriver& driver, ob_function handle) : driver_(driver), handle_(handle) {}
  LoadedFunction(const LoadedFunction&) = delete;
  LoadedFunction& operator=(const LoadedFunction&) = delete;
  ~LoadedFunction();

  ob_function handle() const { return handle_; }

 private:
  const DeviceDriver& driver_;
  const ob_function handle_;
};

/// A device's functions from bytes. Equal bytes are loaded once, for as long as anybody uses them. Thread-safe.
class LoadedFunctions {
 public:
  explicit LoadedFunctions(Device& device) : device_(device) {}
  /// Throws Error(OB_BUILD_FAILED) for bytes that the driver refuses, Error(OB_UNSUPPORTED) of a driver that loads
  /// none.
  std::shared_ptr<const LoadedFunction> load(const std::string& code);

 private:
  using Digest = std::array<uint8_t, 32>;

  Device& device_;
  std::mutex mutex_;
  std::map<Digest, std::weak_ptr<const LoadedFunction>> functions_;
};

}  // namespace outboard
