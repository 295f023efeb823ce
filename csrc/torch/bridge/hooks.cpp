// SPDX-License-Identifier: Apache-2.0
#include "torch/bridge/hooks.h"

#include <ATen/detail/PrivateUse1HooksInterface.h>

#include "torch/bridge/devices.h"
#include "torch/bridge/generator.h"
#include "torch/bridge/host_allocator.h"
#include "torch/bridge/storage.h"
#include "torch/bridge/tensor.h"

namespace outboard::aten {
namespace {

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return device_count() > 0; }
  /// All devices are opened at once, when the first is needed; none counts in a forked child, where PyTorch would ask
  /// for its streams in the middle of work of the CPU.
  bool hasPrimaryContext(c10::DeviceIndex index) const override {
    return devices_opened() && index >= 0 && index < device_count() && !Runtime::get().forked();
  }
  /// Throws, with what to install, if there is no device.
  void init() const override { device(-1); }

  c10::DeviceIndex deviceCount() const override { return device_count(); }
  c10::DeviceIndex getCurrentDevice() const override { return current_device(); }
  void setCurrentDevice(c10::DeviceIndex index) const override {
    if (index >= 0) set_current_device(index);
  }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    const c10::DeviceIndex previous = current_device();
    if (index != previous) setCurrentDevice(index);
    return previous;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override { return exchangeDevice(index); }

  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override { return default_generator(index); }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override {
    return at::make_generator<DeviceGenerator>(static_cast<c10::DeviceIndex>(device(index).index()));
  }

  c10::Device getDeviceFromPtr(void* data) const override {
    Allocation* allocation = translate_errors([&] { return Allocation::find(data); });
    TORCH_CHECK(allocation != nullptr, "The pointer is not to memory of a ", torch_device(-1), " device");
    return torch_device(static_cast<c10::DeviceIndex>(allocation->device().index()));
  }
  bool isPinnedPtr(const void* data) const override { return is_pinned(data); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return pinned_allocator(); }

  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    resize_storage(*storage.unsafeGetStorageImpl(), bytes);
  }
};

}  // namespace

void register_hooks() { at::RegisterPrivateUse1HooksInterface(new Hooks()); }

}  // namespace outboard::aten
