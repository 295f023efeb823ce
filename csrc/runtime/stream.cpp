// SPDX-License-Identifier: Apache-2.0
#include "runtime/stream.h"

#include <cstdlib>
#include <cstring>

#include "runtime/device.h"
#include "runtime/driver_call.h"
#include "runtime/graph.h"

namespace outboard {

void refuse_in_forked_child() {
  if (!in_forked_child.load(std::memory_order_relaxed)) return;
  throw Error(OB_DEVICE_LOST,
              "the device cannot be used in a forked subprocess: its driver was initialized in the parent. Start "
              "workers with the 'spawn' start method (torch.multiprocessing.set_start_method('spawn')).");
}

void throw_failure(const ob_driver& driver, ob_status status, const char* what) {
  const char* text = driver.last_error();
  const std::string message = std::string(what) + " failed: " + (text != nullptr ? text : "no details");
  if (status == OB_OUT_OF_MEMORY) throw OutOfMemoryError(message);
  throw Error(status, message);
}

namespace {

ob_stream create_stream(Device& device) {
  ob_stream handle = nullptr;
  check(device.driver(), device.driver().stream_create(device.handle(), &handle), "creating a stream");
  return handle;
}

bool launches_block() {
  static const bool blocking = [] {
    const char* value = std::getenv("OUTBOARD_LAUNCH_BLOCKING");
    return value != nullptr && std::strcmp(value, "1") == 0;
  }();
  return blocking;
}

[[noreturn]] void refuse_in_capture(const char* what) {
  throw Error(OB_UNSUPPORTED, std::string(what) +
                                  " is not possible while a graph is captured, because nothing runs then. Do it before "
                                  "or after: what waits are item(), printing, copies from and to the host, and "
                                  "operators that run on the CPU.");
}

}  // namespace

Stream::Stream(Device& device, int64_t id)
    : device_(device),
      id_(id),
      handle_(create_stream(device)),
      queue_(device.driver(), handle_, device.residency().lock()) {}

Stream::Stream(Device& device, int64_t id, Stream& origin)
    : device_(device),
      id_(id),
      origin_(&origin),
      handle_(origin.handle_),
      queue_(device.driver(), handle_, device.residency().lock()) {}

void Stream::record_to(Recording* recording) { recording_ = recording; }

void Stream::stand_for(Stream& origin) {
  if (origin_ == &origin) return;
  if (!origin_->query()) {
    Event event(device_);
    event.record(*origin_);
    origin.wait(event);
  }
  origin_ = &origin;
  handle_ = origin.handle_;
}

void Stream::submitted(ob_status status, const char* what) {
  submitted_.fetch_add(1, std::memory_order_release);  // a failed command may have left something in the queue
  check(device_.driver(), status, what);
}

bool Stream::idle() const {
  return finished_.load(std::memory_order_acquire) >= submitted_.load(std::memory_order_acquire);
}

void Stream::finished(uint64_t count) {
  uint64_t known = finished_.load(std::memory_order_relaxed);
  while (known < count && !finished_.compare_exchange_weak(known, count, std::memory_order_acq_rel)) {
  }
}

void Stream::launch(Kernel& kernel, const uint64_t global[3], const uint32_t local[3], const ob_argument* arguments,
                    uint32_t count) {
  refuse_in_forked_child();
  if (recording_ != nullptr) return recording_->launch(kernel, global, local, arguments, count);
  if (origin_ != nullptr) return origin_->launch(kernel, global, local, arguments, count);
  queue_.put(kernel, global, local, arguments, count);
  submitted_.fetch_add(1, std::memory_order_release);
  if (launches_block()) synchronize();
}

void Stream::flush() {
  refuse_in_forked_child();
  if (origin_ != nullptr) return origin_->flush();
  queue_.drain();
}

void Stream::copy(ob_copy_kind kind, uint64_t dst, uint64_t src, uint64_t bytes) {
  if (bytes == 0) return;
  if (recording_ != nullptr && kind != OB_DEVICE_TO_DEVICE) refuse_in_capture("a copy from or to the host");
  if (recording_ != nullptr) return recording_->copy(dst, src, bytes);
  if (origin_ != nullptr) return origin_->copy(kind, dst, src, bytes);
  flush();
  submitted(device_.driver().copy(handle_, kind, dst, src, bytes), "copying memory");
}

void Stream::fill(ob_ptr dst, const void* pattern, uint32_t pattern_size, uint64_t bytes) {
  if (bytes == 0) return;
  if (recording_ != nullptr) return recording_->fill(dst, pattern, pattern_size, bytes);
  if (origin_ != nullptr) return origin_->fill(dst, pattern, pattern_size, bytes);
  flush();
  submitted(device_.driver().fill(handle_, dst, pattern, pattern_size, bytes), "filling memory");
}

void Stream::wait(const Event& event) {
  if (!event.recorded()) return;
  if (recording_ != nullptr) refuse_in_capture("waiting for an event");
  if (origin_ != nullptr) return origin_->wait(event);
  flush();
  submitted(device_.driver().stream_wait_event(handle_, event.handle()), "waiting for an event");
  if (event.asserts_.load(std::memory_order_acquire)) expect_assertions();
}

void Stream::synchronize() {
  if (recording_ != nullptr) refuse_in_capture("waiting for the device");
  if (origin_ != nullptr) return origin_->synchronize();
  // Taken before the wait: what another thread submits meanwhile marks the stream again.
  const bool asserts = asserts_.exchange(false, std::memory_order_acq_rel);
  finish();
  if (asserts) device_.assertions().report();
}

void Stream::expect_assertions() {
  if (recording_ != nullptr) return recording_->expect_assertions();
  asserts_.store(true, std::memory_order_release);
  if (launches_block()) synchronize();
}

void Stream::finish() {
  refuse_in_forked_child();
  if (origin_ != nullptr) return origin_->finish();
  const uint64_t count = submitted_.load(std::memory_order_acquire);
  if (finished_.load(std::memory_order_acquire) >= count) return;
  flush();
  const ob_status status = device_.driver().stream_wait(handle_, 1);
  finished(count);  // after an error too: it is reported once, and the stream stays usable
  check(device_.driver(), status, "synchronizing a stream");
}

bool Stream::query() {
  refuse_in_forked_child();
  if (origin_ != nullptr) return origin_->query();
  if (idle()) return true;
  if (!queue_.empty()) return false;  // a failed launch is kept for whoever submits or waits
  const uint64_t count = submitted_.load(std::memory_order_acquire);
  const ob_status status = device_.driver().stream_wait(handle_, 0);
  if (status == OB_NOT_READY) return false;
  finished(count);
  check(device_.driver(), status, "querying a stream");
  return true;
}

void Stream::run_on_host(const std::function<void()>& function) {
  synchronize();
  function();
}

Event::Event(Device& device) : device_(device) {
  refuse_in_forked_child();
  check(device.driver(), device.driver().event_create(device.handle(), &handle_), "creating an event");
}

Event::~Event() {
  if (!in_forked_child.load(std::memory_order_relaxed)) device_.driver().event_destroy(handle_);
}

void Event::record(Stream& target) {
  if (target.recording() != nullptr) refuse_in_capture("recording an event");
  Stream& stream = target.actual();
  stream.flush();
  asserts_.store(stream.asserts_.load(std::memory_order_acquire), std::memory_order_release);
  check(device_.driver(), device_.driver().event_record(handle_, stream.handle()), "recording an event");
  recorded_ = true;
}

void Event::synchronize() {
  finish();
  if (recorded_ && asserts_.load(std::memory_order_acquire)) device_.assertions().report();
}

void Event::finish() {
  refuse_in_forked_child();
  if (!recorded_) return;
  check(device_.driver(), device_.driver().event_wait(handle_, 1), "waiting for an event");
}

bool Event::query() {
  refuse_in_forked_child();
  if (!recorded_) return true;
  const ob_status status = device_.driver().event_wait(handle_, 0);
  if (status == OB_NOT_READY) return false;
  check(device_.driver(), status, "querying an event");
  return true;
}

double Event::elapsed_ms(const Event& end) const {
  refuse_in_forked_child();
  if (!recorded_ || !end.recorded_) {
    throw Error(OB_INVALID_ARGUMENT, "both events must be recorded before the time between them can be taken");
  }
  int64_t nanoseconds = 0;
  check(device_.driver(), device_.driver().event_elapsed(handle_, end.handle_, &nanoseconds), "timing events");
  return static_cast<double>(nanoseconds) * 1e-6;
}

}  // namespace outboard
