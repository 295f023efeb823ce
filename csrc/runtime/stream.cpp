// SPDX-License-Identifier: Apache-2.0
#include "runtime/stream.h"

#include "runtime/device.h"
#include "runtime/driver_call.h"

namespace outboard {

Stream::Stream(Device& device, int64_t id) : device_(device), id_(id) {
  check(device.driver(), device.driver().stream_create(device.handle(), &handle_), "creating a stream");
}

void Stream::launch(ob_kernel kernel, const uint64_t global[3], const uint32_t local[3], const ob_argument* arguments,
                    uint32_t count) {
  outstanding_.store(true, std::memory_order_release);
  check(device_.driver(), device_.driver().launch(handle_, kernel, global, local, arguments, count),
        "launching a kernel");
}

void Stream::copy(ob_copy_kind kind, uint64_t dst, uint64_t src, uint64_t bytes) {
  if (bytes == 0) return;
  outstanding_.store(true, std::memory_order_release);
  check(device_.driver(), device_.driver().copy(handle_, kind, dst, src, bytes), "copying memory");
}

void Stream::fill(ob_ptr dst, const void* pattern, uint32_t pattern_size, uint64_t bytes) {
  if (bytes == 0) return;
  outstanding_.store(true, std::memory_order_release);
  check(device_.driver(), device_.driver().fill(handle_, dst, pattern, pattern_size, bytes), "filling memory");
}

void Stream::wait(const Event& event) {
  if (!event.recorded()) return;
  outstanding_.store(true, std::memory_order_release);
  check(device_.driver(), device_.driver().stream_wait_event(handle_, event.handle()), "waiting for an event");
}

void Stream::synchronize() {
  if (!outstanding_.exchange(false, std::memory_order_acq_rel)) return;
  const ob_status status = device_.driver().stream_wait(handle_, 1);
  check(device_.driver(), status, "synchronizing a stream");
}

bool Stream::query() {
  if (!outstanding_.load(std::memory_order_acquire)) return true;
  const ob_status status = device_.driver().stream_wait(handle_, 0);
  if (status == OB_NOT_READY) return false;
  check(device_.driver(), status, "querying a stream");
  return true;
}

void Stream::run_on_host(const std::function<void()>& function) {
  synchronize();
  function();
}

Event::Event(Device& device) : device_(device) {
  check(device.driver(), device.driver().event_create(device.handle(), &handle_), "creating an event");
}

Event::~Event() { device_.driver().event_destroy(handle_); }

void Event::record(Stream& stream) {
  check(device_.driver(), device_.driver().event_record(handle_, stream.handle()), "recording an event");
  recorded_ = true;
}

void Event::synchronize() {
  if (!recorded_) return;
  check(device_.driver(), device_.driver().event_wait(handle_, 1), "waiting for an event");
}

bool Event::query() {
  if (!recorded_) return true;
  const ob_status status = device_.driver().event_wait(handle_, 0);
  if (status == OB_NOT_READY) return false;
  check(device_.driver(), status, "querying an event");
  return true;
}

double Event::elapsed_ms(const Event& end) const {
  if (!recorded_ || !end.recorded_) {
    throw Error(OB_INVALID_ARGUMENT, "both events must be recorded before the time between them can be taken");
  }
  int64_t nanoseconds = 0;
  check(device_.driver(), device_.driver().event_elapsed(handle_, end.handle_, &nanoseconds), "timing events");
  return static_cast<double>(nanoseconds) * 1e-6;
}

}  // namespace outboard
