// SPDX-License-Identifier: Apache-2.0
#include <ATen/record_function.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <utility>

#include "torch/bridge/deferred.h"
#include "torch/bridge/devices.h"
#include "torch/bridge/storage.h"
#include "torch/bridge/sync_debug.h"
#include "torch/bridge/tensor.h"

/// Devices, streams and events as PyTorch's generic code (torch.Stream, torch.Event, autograd) drives them.
namespace outboard::aten {
namespace {

c10::Stream wrap(const Stream& stream) {
  const auto index = static_cast<c10::DeviceIndex>(stream.device().index());
  return c10::Stream(c10::Stream::UNSAFE, torch_device(index), stream.id());
}

Stream& unwrap(const c10::Stream& stream) {
  settle();
  Device& owner = device(stream.device_index());
  return translate_errors([&]() -> Stream& { return owner.stream(stream.id()); });
}

void support(c10::DeviceCapability& capability, c10::ScalarTypeIndex type) {
  capability.capability_data.capability_bits |= uint64_t{1} << type;
}

class GuardImpl final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return c10::DeviceType::PrivateUse1; }

  c10::Device exchangeDevice(c10::Device to) const override {
    const c10::Device previous = getDevice();
    if (to.index() >= 0 && to.index() != previous.index()) setDevice(to);
    return previous;
  }
  c10::Device getDevice() const override { return torch_device(current_device()); }
  void setDevice(c10::Device to) const override {
    if (to.index() >= 0) set_current_device(to.index());
  }
  void uncheckedSetDevice(c10::Device to) const noexcept override {
    if (!devices_opened() || to.index() < 0 || to.index() >= device_count()) return;
    Runtime::get().restore_current_device(to.index());
  }
  c10::DeviceIndex deviceCount() const noexcept override { return device_count(); }

  c10::DeviceCapability getDeviceCapability(c10::Device of) const override {
    const ob_device_properties& properties = device(of.index()).properties();
    c10::DeviceCapability capability;
    capability.capability_data.capability_bits = 0;
    for (auto type : {c10::kIndex_Byte, c10::kIndex_Char, c10::kIndex_Short, c10::kIndex_Int, c10::kIndex_Long,
                      c10::kIndex_UInt16, c10::kIndex_UInt32, c10::kIndex_UInt64, c10::kIndex_Bool, c10::kIndex_Half,
                      c10::kIndex_BFloat16, c10::kIndex_Float, c10::kIndex_ComplexHalf, c10::kIndex_ComplexFloat,
                      c10::kIndex_Float8_e5m2, c10::kIndex_Float8_e4m3fn}) {
      support(capability, type);
    }
    if (properties.has_fp64 != 0) {
      support(capability, c10::kIndex_Double);
      support(capability, c10::kIndex_ComplexDouble);
    }
    return capability;
  }

  /// Autograd notes the stream of a leaf that it first meets, be it for a view, and an exception there ends the
  /// process. A forked child, which may have views, is told the default one; what would be submitted to it is refused.
  c10::Stream getStream(c10::Device of) const override {
    if (in_forked_child.load(std::memory_order_relaxed)) return c10::Stream(c10::Stream::DEFAULT, of);
    return wrap(current_stream(of.index()));
  }
  c10::Stream getDefaultStream(c10::Device of) const override {
    Device& owner = device(of.index());
    return wrap(translate_errors([&]() -> Stream& { return owner.default_stream(); }));
  }
  c10::Stream getStreamFromGlobalPool(c10::Device of, bool) const override { return getNewStream(of, 0); }
  // Drivers have no priorities: every stream is equal.
  c10::Stream getNewStream(c10::Device of, int) const override {
    Device& owner = device(of.index());
    return wrap(translate_errors([&]() -> Stream& { return owner.pool_stream(); }));
  }
  c10::Stream exchangeStream(c10::Stream to) const override {
    const c10::Stream previous = getStream(to.device());
    Stream& stream = unwrap(to);
    translate_errors([&] { Runtime::get().set_current_stream(stream); });
    return previous;
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override {
    translate_errors([&] { unwrap(stream).flush(); });
    return unwrap(stream).handle();
  }
  bool queryStream(const c10::Stream& stream) const override {
    return translate_errors([&] { return unwrap(stream).query(); });
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    RECORD_FUNCTION("Stream.synchronize()", c10::ArrayRef<const c10::IValue>{});
    note_wait("Stream.synchronize()");
    translate_errors([&] { unwrap(stream).synchronize(); });
  }
  void synchronizeDevice(const c10::DeviceIndex index) const override {
    settle();
    translate_errors([&] { device(index).synchronize(); });
  }

  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override { delete static_cast<Event*>(event); }
  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex index,
              const c10::EventFlag) const override {
    TORCH_CHECK(index == -1 || index == stream.device_index(), "Event device index ", static_cast<int>(index),
                " does not match recording stream's device index ", static_cast<int>(stream.device_index()), ".");
    translate_errors([&] {
      Stream& target = unwrap(stream);
      if (*event != nullptr && static_cast<Event*>(*event)->device().was_reset()) {
        delete static_cast<Event*>(std::exchange(*event, nullptr));
      }
      if (*event == nullptr) *event = new Event(target.device());
      static_cast<Event*>(*event)->record(target);
    });
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event == nullptr) return;
    translate_errors([&] { unwrap(stream).wait(*static_cast<Event*>(event)); });
  }
  bool queryEvent(void* event) const override {
    if (event == nullptr) return true;
    return translate_errors([&] { return static_cast<Event*>(event)->query(); });
  }
  void synchronizeEvent(void* event) const override {
    if (event == nullptr) return;
    translate_errors([&] { static_cast<Event*>(event)->synchronize(); });
  }
  double elapsedTime(void* start, void* end, const c10::DeviceIndex) const override {
    TORCH_CHECK(start != nullptr && end != nullptr, "Both events must be recorded before calculating elapsed time.");
    return translate_errors([&] { return static_cast<Event*>(start)->elapsed_ms(*static_cast<Event*>(end)); });
  }

  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    storage_allocator()->recordStream(data, stream);
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, GuardImpl);

}  // namespace
}  // namespace outboard::aten
