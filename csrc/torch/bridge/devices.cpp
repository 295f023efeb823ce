// SPDX-License-Identifier: Apache-2.0
#include "torch/bridge/devices.h"

#include <c10/util/Exception.h>
#include <c10/util/ScopeExit.h>

#include <atomic>
#include <utility>

#include "runtime/base/driver_call.h"
#include "torch/bridge/tensor.h"

namespace outboard::aten {
namespace {

std::atomic<Runtime*> runtime{nullptr};
std::function<Runtime&()>* open_devices = nullptr;  // leaked: threads may still ask while the process ends
thread_local bool opening = false;

/// Code that chooses between devices may ask for them: there are none yet.
Runtime* open_here() {
  if (open_devices == nullptr || opening) return nullptr;
  opening = true;
  const auto ended = c10::make_scope_exit([] { opening = false; });
  Runtime& opened = translate_errors([&]() -> Runtime& { return (*open_devices)(); });
  runtime.store(&opened, std::memory_order_release);
  return &opened;
}

/// The runtime, opened if it was not; nullptr where nothing says how, or it is being done.
Runtime* find_runtime() {
  Runtime* opened = runtime.load(std::memory_order_acquire);
  return opened != nullptr ? opened : open_here();
}

std::string missing_device_message() {
  std::string message =
      "No " + c10::DeviceTypeName(c10::DeviceType::PrivateUse1, /*lower_case=*/true) + " device is available.";
  for (const std::string& problem : problems()) message += "\n  " + problem;
  if (problems().empty()) message += " Install a runtime for your hardware, or, for any CPU: pip install ziglang.";
  return message + "\nRun `outboard doctor` to see what was looked for.";
}

Runtime& require_runtime() {
  Runtime* opened = find_runtime();
  TORCH_CHECK(opened != nullptr && opened->device_count() > 0, missing_device_message());
  return *opened;
}

}  // namespace

void open_devices_with(std::function<Runtime&()> open) {
  open_devices = new std::function<Runtime&()>(std::move(open));
}

bool devices_opened() noexcept { return runtime.load(std::memory_order_acquire) != nullptr; }

Runtime& opened_runtime() {
  Runtime* opened = find_runtime();
  TORCH_CHECK(opened != nullptr, missing_device_message());
  return *opened;
}

const std::vector<std::string>& problems() {
  static const std::vector<std::string> not_opened{"Outboard has not opened its devices."};
  Runtime* opened = find_runtime();
  return opened == nullptr ? not_opened : opened->problems();
}

c10::DeviceIndex device_count() noexcept {
  try {
    Runtime* opened = find_runtime();
    return opened == nullptr ? 0 : static_cast<c10::DeviceIndex>(opened->device_count());
  } catch (const std::exception&) {  // thrown at the first use of a device; the number of devices throws nothing
    return 0;
  }
}

c10::DeviceIndex current_device() noexcept {
  Runtime* opened = runtime.load(std::memory_order_acquire);
  return opened == nullptr ? 0 : static_cast<c10::DeviceIndex>(opened->current_device());
}

void set_current_device(c10::DeviceIndex index) {
  Runtime& opened = require_runtime();
  translate_errors([&] { opened.set_current_device(index); });
}

void require_parent_process() {
  if (in_forked_child.load(std::memory_order_relaxed)) translate_errors(refuse_in_forked_child);
}

Device& device(c10::DeviceIndex index) {
  Runtime& opened = require_runtime();
  return translate_errors([&]() -> Device& { return opened.device(index < 0 ? opened.current_device() : index); });
}

}  // namespace outboard::aten
