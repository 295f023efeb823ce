// SPDX-License-Identifier: Apache-2.0
#include "torch/devices.h"

#include <c10/util/Exception.h>

#include <atomic>

#include "runtime/driver_call.h"
#include "torch/tensor.h"

namespace outboard::aten {
namespace {

std::atomic<Runtime*> runtime{nullptr};

std::string missing_device_message() {
  std::string message =
      "No " + c10::DeviceTypeName(c10::DeviceType::PrivateUse1, /*lower_case=*/true) + " device is available.";
  for (const std::string& problem : problems()) message += "\n  " + problem;
  if (problems().empty()) message += " Install a runtime for your hardware, or, for any CPU: pip install ziglang.";
  return message + "\nRun `outboard doctor` to see what was looked for.";
}

Runtime& require_runtime() {
  Runtime* started = runtime.load(std::memory_order_acquire);
  TORCH_CHECK(started != nullptr && started->device_count() > 0, missing_device_message());
  return *started;
}

}  // namespace

void initialize(const std::vector<std::string>& driver_paths, const Runtime::Choice& choice,
                const std::vector<std::string>& last_resort) {
  runtime.store(&Runtime::initialize(driver_paths, choice, last_resort), std::memory_order_release);
}

const std::vector<std::string>& problems() {
  static const std::vector<std::string> not_started{"Outboard was not initialized."};
  Runtime* started = runtime.load(std::memory_order_acquire);
  return started == nullptr ? not_started : started->problems();
}

c10::DeviceIndex device_count() noexcept {
  Runtime* started = runtime.load(std::memory_order_acquire);
  return started == nullptr ? 0 : static_cast<c10::DeviceIndex>(started->device_count());
}

c10::DeviceIndex current_device() noexcept {
  Runtime* started = runtime.load(std::memory_order_acquire);
  return started == nullptr ? 0 : static_cast<c10::DeviceIndex>(started->current_device());
}

void set_current_device(c10::DeviceIndex index) {
  Runtime& started = require_runtime();
  translate_errors([&] { started.set_current_device(index); });
}

void require_parent_process() {
  if (in_forked_child.load(std::memory_order_relaxed)) translate_errors(refuse_in_forked_child);
}

Device& device(c10::DeviceIndex index) {
  Runtime& started = require_runtime();
  return translate_errors([&]() -> Device& { return started.device(index < 0 ? started.current_device() : index); });
}

}  // namespace outboard::aten
