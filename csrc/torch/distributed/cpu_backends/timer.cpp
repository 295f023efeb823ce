// SPDX-License-Identifier: Apache-2.0
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <optional>
#include <torch/csrc/distributed/c10d/reducer_timer.hpp>
#include <vector>

namespace outboard::distributed {
namespace {

/// Where the time of a step of DistributedDataParallel goes (torch/csrc/distributed/c10d/reducer_timer.hpp): what the
/// device took, between events on the current stream.
class DeviceTimer : public c10d::Timer {
 public:
  explicit DeviceTimer(c10::Device device) : device_(device), guard_(device.type()) {
    for (int i = 0; i <= static_cast<int>(Event::kBackwardCommEnd); ++i) {
      events_.emplace_back(device.type(), c10::EventFlag::BACKEND_DEFAULT);
    }
  }

  void record(Event event) override {
    Timer::record(event);
    at(event).record(guard_.getStream(device_));
  }

  /// Nanoseconds; none where a step had no such part, as a forward step whose gradients nobody asked for.
  std::optional<int64_t> measureDifference(Event start, Event end) override {
    if (!at(start).was_marked_for_recording() || !at(end).was_marked_for_recording()) return std::nullopt;
    at(start).synchronize();
    at(end).synchronize();
    const double milliseconds = at(start).elapsedTime(at(end));
    // Of two steps: this one has not come to its end.
    if (milliseconds < 0) return std::nullopt;
    return static_cast<int64_t>(milliseconds * 1e6);
  }

 private:
  c10::Event& at(Event event) { return events_[static_cast<size_t>(event)]; }

  const c10::Device device_;
  const c10::impl::VirtualGuardImpl guard_;
  std::vector<c10::Event> events_;
};

}  // namespace
}  // namespace outboard::distributed

namespace c10d {
namespace {
C10_REGISTER_TYPED_CLASS(TimerRegistry, c10::kPrivateUse1, outboard::distributed::DeviceTimer)
}  // namespace
}  // namespace c10d
