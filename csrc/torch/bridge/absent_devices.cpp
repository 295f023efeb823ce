// SPDX-License-Identifier: Apache-2.0
#include "torch/bridge/absent_devices.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace outboard::aten {
namespace {

/// A device type without devices: nothing can be switched to.
class AbsentDevices final : public c10::impl::DeviceGuardImplInterface {
 public:
  explicit AbsentDevices(c10::DeviceType type) : type_(type) {}

  c10::DeviceType type() const override { return type_; }
  c10::Device exchangeDevice(c10::Device) const override { return none(); }
  c10::Device getDevice() const override { return none(); }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device) const override { return c10::Stream(c10::Stream::DEFAULT, none()); }
  c10::Stream exchangeStream(c10::Stream) const override { return c10::Stream(c10::Stream::DEFAULT, none()); }
  c10::DeviceIndex deviceCount() const noexcept override { return 0; }

 private:
  c10::Device none() const { return c10::Device(type_, 0); }

  c10::DeviceType type_;
};

}  // namespace

void admit_absent_device_type(const std::string& name) {
  const c10::DeviceType type = c10::Device(name).type();
  if (c10::impl::hasDeviceGuardImpl(type)) return;
  c10::impl::DeviceGuardImplRegistrar(type, new AbsentDevices(type));  // lives as long as the process
}

}  // namespace outboard::aten
