// SPDX-License-Identifier: Apache-2.0
#include "runtime/programs/loaded_functions.h"

#include "runtime/base/driver_call.h"
#include "runtime/base/error.h"
#include "runtime/base/sha256.h"
#include "runtime/device.h"

namespace outboard {

LoadedFunction::~LoadedFunction() {
  if (!in_forked_child.load(std::memory_order_relaxed)) driver_.function_release(handle_);
}

std::shared_ptr<const LoadedFunction> LoadedFunctions::load(const std::string& code) {
  const DeviceDriver& driver = device_.driver();
  if (driver.function_load == nullptr || driver.function_release == nullptr) {
    throw Error(OB_UNSUPPORTED, "the device's driver loads no executables");
  }
  const Digest digest = sha256(code.data(), code.size());
  const std::lock_guard lock(mutex_);
  std::weak_ptr<const LoadedFunction>& known = functions_[digest];
  if (auto function = known.lock()) return function;
  refuse_if_unusable(driver);
  ob_function handle = nullptr;
  check(driver, driver.function_load(device_.handle(), code.data(), code.size(), &handle), "loading an executable");
  const auto function = std::make_shared<const LoadedFunction>(driver, handle);
  known = function;
  return function;
}

}  // namespace outboard
