// SPDX-License-Identifier: Apache-2.0
#include "runtime/streams/stream.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "runtime/base/driver_call.h"
#include "runtime/base/interruption.h"
#include "runtime/device.h"
#include "runtime/programs/program_cache.h"
#include "runtime/streams/collectives.h"
#include "runtime/streams/graph.h"
#include "runtime/streams/library_work.h"
#include "runtime/streams/tracing.h"

namespace outboard {

namespace {

/// How often a wait whose result nobody sees is tried again: a driver reports each failure of earlier work once.
constexpr int kWaits = 3;

/// What every device takes (OpenCL's least), where the driver does not say more.
constexpr uint64_t kLeastArgumentBytes = 1024;

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

/// Counts a command once it is submitted. Also one that fails: it may have left something in the driver's queue.
class CountedAtEnd {
 public:
  explicit CountedAtEnd(std::atomic<uint64_t>& count) : count_(count) {}
  ~CountedAtEnd() { count_.fetch_add(1, std::memory_order_release); }

 private:
  std::atomic<uint64_t>& count_;
};

/// The status of one of the driver's waits, which takes whether it may block: not where the user may interrupt it.
template <typename Wait>
ob_status patiently(Device& device, Wait&& wait) {
  if (device.order().lock().held() || !may_be_interrupted()) return wait(1);
  ob_status status = OB_OK;
  wait_interruptibly([&] {
    status = wait(0);
    return status != OB_NOT_READY;
  });
  return status;
}

/// If the driver cannot mark the place, a wait for the event must still find the work before it finished. A
/// device that can do neither is taken for lost.
void record_or_finish(const DeviceDriver& driver, ob_event event, ob_stream stream) {
  try {
    check(driver, driver.event_record(event, stream), "recording an event");
  } catch (const Error&) {
    for (int i = 0; i < kWaits; ++i) {
      if (driver.stream_wait(stream, 1) == OB_OK) throw;
    }
    driver.lose();
    throw;
  }
}

/// Refuses what is beyond the device's limits, so that no driver has to.
void check_launch(const ob_device_properties& limits, const Launch& launch) {
  const uint64_t group = uint64_t{launch.local[0]} * launch.local[1] * launch.local[2];
  if (group > limits.max_work_group_size) {
    throw Error(OB_INVALID_ARGUMENT, "a kernel is to run in work-groups of " + std::to_string(group) +
                                         " work-items, and the device has at most " +
                                         std::to_string(limits.max_work_group_size));
  }
  const uint64_t bytes = launch.arguments.bytes();
  const uint64_t most = limits.max_argument_bytes == 0 ? kLeastArgumentBytes : limits.max_argument_bytes;
  if (bytes <= most) return;
  throw Error(OB_INVALID_ARGUMENT, "a kernel is to have " + std::to_string(bytes) +
                                       " bytes of arguments, and the device takes at most " + std::to_string(most));
}

TracedWork moved(ob_copy_kind direction, uint64_t bytes) {
  TracedWork work;
  work.kind = TracedWork::Kind::kCopy;
  work.direction = direction;
  work.bytes = bytes;
  return work;
}

}  // namespace

Stream::Stream(Device& device, int64_t id)
    : device_(device),
      id_(id),
      handle_(create_stream(device)),
      queue_(device.driver(), handle_, device.order().lock()) {}

Stream::Stream(Device& device, int64_t id, Stream& origin)
    : device_(device),
      id_(id),
      origin_(&origin),
      handle_(origin.handle_),
      queue_(device.driver(), handle_, device.order().lock()) {}

void Stream::record_to(Recording* recording) { recording_ = recording; }

void Stream::stand_for(Stream& origin) {
  if (origin_ == &origin) return;
  origin.follow(*origin_);
  origin_ = &origin;
  handle_ = origin.handle_;
}

void Stream::hand_over(const SubmissionQueue::Command& command, bool may_run_at_once) {
  if (may_run_at_once) {
    queue_.run_or_put(command);
  } else {
    queue_.put(command);
  }
}

/// `work` says what the command is, if somebody wants to know. A command that waits may not run at once, since the
/// calling thread holds the lock of the device's memory then.
template <typename Command>
void Stream::submit(TracedWork work, Command command, bool may_run_at_once) {
  const CountedAtEnd counted(submitted_);
  if (!is_observed()) return hand_over(std::move(command), may_run_at_once);
  const std::shared_ptr<Traced> traced = trace(*this, std::move(work));
  const auto timed_command = [this, traced, command = std::move(command)]() mutable {
    const TimedOnDevice timed(traced, device_.driver(), handle_);
    command();
  };
  hand_over(timed_command, may_run_at_once);
  if (traced != nullptr) traced->submitted();
}

bool Stream::idle() const {
  if (device_.driver().work_ended()) return true;
  if (lent_.load(std::memory_order_acquire) != 0) return false;
  return finished_.load(std::memory_order_acquire) >= submitted_.load(std::memory_order_acquire);
}

void Stream::finished(uint64_t count) {
  uint64_t known = finished_.load(std::memory_order_relaxed);
  while (known < count && !finished_.compare_exchange_weak(known, count, std::memory_order_acq_rel)) {
  }
}

void Stream::launch(const Launch& launch) {
  refuse_if_unusable(device_.driver());
  check_launch(device_.properties(), launch);
  if (recording_ != nullptr) return recording_->launch(launch);
  if (origin_ != nullptr) return origin_->launch(launch);
  if (is_observed()) {
    launch_traced(launch);
  } else {
    queue_.put(launch);
  }
  submitted_.fetch_add(1, std::memory_order_release);
  if (launches_block()) synchronize();
}

void Stream::call(std::shared_ptr<const LibraryWork> work) {
  if (recording_ != nullptr) return recording_->call(std::move(work));
  if (origin_ != nullptr) return origin_->call(std::move(work));
  refuse_if_unusable(device_.driver());
  TracedWork traced;
  traced.name = work->name();
  // A library's functions take as long as they take, an executable may be a whole model: where the driver runs it in
  // its call, that is for the thread that hands work over, so that the user can stop waiting for it.
  const bool may_run_at_once = !work->is_loaded();
  const auto call = [&driver = device_.driver(), stream = handle_, work = std::move(work)] {
    check(driver,
          driver.library_call(stream, work->function(), work->operands().data(),
                              static_cast<uint32_t>(work->operands().size())),
          "calling a library function");
  };
  submit(traced, call, may_run_at_once);
  if (launches_block()) synchronize();
}

void Stream::collective(std::shared_ptr<DriverCollective> work) {
  if (recording_ != nullptr) refuse_in_capture("a collective");
  if (origin_ != nullptr) return origin_->collective(std::move(work));
  refuse_if_unusable(device_.driver());
  TracedWork traced;
  traced.name = "collective";
  const bool is_ready = work->is_ready();
  submit(
      traced, [&driver = device_.driver(), stream = handle_, work = std::move(work)] { work->submit(driver, stream); },
      is_ready);
}

void Stream::launch_traced(const Launch& launch) {
  TracedWork work;
  work.name = launch.kernel->name();
  std::copy_n(launch.global, 3, work.global.begin());
  std::copy_n(launch.local, 3, work.local.begin());
  const std::shared_ptr<Traced> traced = trace(*this, std::move(work));
  queue_.put(launch, traced);
  if (traced != nullptr) traced->submitted();
}

void Stream::flush() {
  refuse_if_unusable(device_.driver());
  if (origin_ != nullptr) return origin_->flush();
  queue_.drain();
}

void Stream::copy(ob_copy_kind kind, uint64_t dst, uint64_t src, uint64_t bytes) {
  copy_in_order(kind, dst, src, bytes);
  if (kind != OB_DEVICE_TO_DEVICE) flush();
}

void Stream::copy_in_order(ob_copy_kind kind, uint64_t dst, uint64_t src, uint64_t bytes, HostBuffer* buffer) {
  if (bytes == 0) return;
  if (recording_ != nullptr && kind != OB_DEVICE_TO_DEVICE) refuse_in_capture("a copy from or to the host");
  if (recording_ != nullptr) return recording_->copy(dst, src, bytes);
  if (origin_ != nullptr) return origin_->copy_in_order(kind, dst, src, bytes, buffer);
  refuse_if_unusable(device_.driver());
  submit(moved(kind, bytes), [&driver = device_.driver(), stream = handle_, kind, dst, src, bytes, buffer] {
    if (buffer != nullptr && kind == OB_HOST_TO_DEVICE) buffer->refuse_if_lost();
    const ob_status status = driver.copy(stream, kind, dst, src, bytes);
    if (buffer != nullptr && kind == OB_DEVICE_TO_HOST) buffer->lost = status != OB_OK;
    check(driver, status, "copying memory");
  });
}

void Stream::copy_peer(Device& target, ob_ptr dst, ob_ptr src, uint64_t bytes) {
  if (bytes == 0) return;
  if (recording_ != nullptr) refuse_in_capture("a copy to another device");
  if (origin_ != nullptr) return origin_->copy_peer(target, dst, src, bytes);
  refuse_if_unusable(device_.driver());
  refuse_if_unusable(target.driver());
  submit(moved(OB_DEVICE_TO_DEVICE, bytes), [this, &target, dst, src, bytes] {
    const DeviceDriver& driver = device_.driver();
    const ob_status status = driver.copy_peer(handle_, target.handle(), dst, device_.handle(), src, bytes);
    check(to_blame(driver, target.driver()), status, "copying memory to another device");
  });
}

void Stream::fill(ob_ptr dst, const void* pattern, uint32_t pattern_size, uint64_t bytes) {
  if (bytes == 0) return;
  if (recording_ != nullptr) return recording_->fill(dst, pattern, pattern_size, bytes);
  if (origin_ != nullptr) return origin_->fill(dst, pattern, pattern_size, bytes);
  refuse_if_unusable(device_.driver());
  std::array<char, 16> copied{};
  std::memcpy(copied.data(), pattern, pattern_size);
  TracedWork work;
  work.kind = TracedWork::Kind::kFill;
  work.bytes = bytes;
  submit(work, [&driver = device_.driver(), stream = handle_, dst, copied, pattern_size, bytes] {
    check(driver, driver.fill(stream, dst, copied.data(), pattern_size, bytes), "filling memory");
  });
}

void Stream::launch_graph(void* graph) {
  if (origin_ != nullptr) return origin_->launch_graph(graph);
  refuse_if_unusable(device_.driver());
  TracedWork work;
  work.kind = TracedWork::Kind::kGraph;
  submit(work, [&driver = device_.driver(), stream = handle_, graph] {
    check(driver, driver.graph_launch(stream, graph), "launching a graph");
  });
}

void Stream::wait(const Event& event) {
  if (!event.recorded()) return;
  if (recording_ != nullptr) refuse_in_capture("waiting for an event");
  if (origin_ != nullptr) return origin_->wait(event);
  refuse_if_unusable(device_.driver());
  refuse_if_unusable(event.device().driver());
  const Event::Point point = event.point();
  const bool ours = device_.shares_driver_with(event.device());
  const SubmissionQueue::Command command = [&driver = device_.driver(), &other = event.device().driver(),
                                            &queue = queue_, stream = handle_, point, ours] {
    point.wait_until_handed_over();
    queue.keep(point.handle->failure());
    const ob_event reached = point.handle->get();
    if (!ours) return check(other, other.event_wait(reached, 1), "waiting for an event of another driver");
    const ob_status status = driver.stream_wait_event(stream, reached);
    check(to_blame(driver, other), status, "waiting for an event");
  };
  const CountedAtEnd counted(submitted_);
  hand_over(command, ours && point.handed_over());
  if (event.asserts_.load(std::memory_order_acquire)) expect_assertions();
}

void Stream::follow(Stream& earlier) {
  Stream& source = earlier.actual();
  if (&source == &actual()) return;
  if (source.query()) return actual().queue_.keep(source.queue_.failure());
  Event event(device_);
  event.record(source);
  wait(event);
}

void Stream::synchronize() {
  if (recording_ != nullptr) refuse_in_capture("waiting for the device");
  if (origin_ != nullptr) return origin_->synchronize();
  // Taken before the wait: what another thread submits meanwhile marks the stream again.
  const bool asserts = asserts_.exchange(false, std::memory_order_acq_rel);
  finish();
  let_go_of_kept();
  if (asserts) device_.assertions().report();
}

void Stream::expect_assertions() {
  if (recording_ != nullptr) return recording_->expect_assertions();
  asserts_.store(true, std::memory_order_release);
  if (launches_block()) synchronize();
}

void Stream::finish() {
  refuse_if_unusable(device_.driver());
  if (origin_ != nullptr) return origin_->finish();
  const uint64_t count = submitted_.load(std::memory_order_acquire);
  if (idle()) return queue_.report();  // who found that out asked nothing
  flush();
  // After an error nobody knows whether the work is finished: the next one asks again.
  check(device_.driver(), wait_for_driver(), "synchronizing a stream");
  finished(count);
}

bool Stream::finish_in_the_end() noexcept {
  if (origin_ != nullptr) return origin_->finish_in_the_end();
  if (in_forked_child.load(std::memory_order_relaxed)) return false;
  const Uninterrupted whole;
  const uint64_t count = submitted_.load(std::memory_order_acquire);
  queue_.hand_over_all();
  for (int i = 0; i < kWaits && !device_.lost(); ++i) {
    try {
      check(device_.driver(), device_.driver().stream_wait(handle_, 1), "synchronizing a stream");
      finished(count);
      return true;
    } catch (const Error&) {
      queue_.keep_current();
    }
  }
  return idle();
}

void Stream::keep_until_finished(std::shared_ptr<const void> memory) noexcept {
  if (origin_ != nullptr) return origin_->keep_until_finished(std::move(memory));
  if (finish_in_the_end()) return;
  const std::lock_guard lock(kept_mutex_);
  kept_.push_back(std::move(memory));
}

size_t Stream::kept() const {
  const std::lock_guard lock(kept_mutex_);
  return kept_.size();
}

void Stream::let_go_of_kept() {
  std::vector<std::shared_ptr<const void>> memory;  // freed without the lock
  const std::lock_guard lock(kept_mutex_);
  if (idle()) memory.swap(kept_);
}

bool Stream::surely_finished() noexcept {
  try {
    return query();
  } catch (const Error&) {
    queue_.keep_current();
    return false;
  }
}

/// Waits for what the driver has: in its own way, unless somebody may want to interrupt that.
ob_status Stream::wait_for_driver() const {
  const ob_driver& driver = device_.driver();
  return patiently(device_, [&](int blocking) { return driver.stream_wait(handle_, blocking); });
}

bool Stream::query() {
  refuse_if_unusable(device_.driver());
  if (origin_ != nullptr) return origin_->query();
  if (idle()) return true;
  // Taken first: what another thread puts from here on the driver may not have yet when it is asked.
  const uint64_t count = submitted_.load(std::memory_order_acquire);
  if (!queue_.empty()) return false;  // a failed launch is kept for the next call that submits or waits
  const ob_status status = device_.driver().stream_wait(handle_, 0);
  if (status == OB_NOT_READY) return false;
  check(device_.driver(), status, "querying a stream");
  finished(count);
  return true;
}

void Stream::run_on_host(const std::function<void()>& function) {
  synchronize();
  function();
}

EventHandle::EventHandle(Device& device) : driver_(device.driver()) {
  refuse_if_unusable(driver_);
  check(driver_, driver_.event_create(device.handle(), &event_), "creating an event");
}

std::shared_ptr<Failure> EventHandle::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void EventHandle::set_failure(std::shared_ptr<Failure> failure) {
  const std::lock_guard lock(mutex_);
  failure_ = std::move(failure);
}

EventHandle::~EventHandle() {
  if (!in_forked_child.load(std::memory_order_relaxed)) driver_.event_destroy(event_);
}

Event::Event(Device& device) : device_(device), point_{std::make_shared<EventHandle>(device), nullptr, 0} {}

bool Event::Point::handed_over() const { return stream == nullptr || stream->queue_.reached(place); }

void Event::Point::wait_until_handed_over() const {
  if (stream != nullptr) stream->queue_.wait_until(place);
}

Event::Point Event::point() const {
  std::lock_guard lock(mutex_);
  return point_;
}

void Event::record(Stream& target) {
  if (target.recording() != nullptr) refuse_in_capture("recording an event");
  refuse_if_unusable(device_.driver());
  refuse_if_unusable(target.device().driver());
  Stream& stream = target.actual();
  asserts_.store(stream.asserts_.load(std::memory_order_acquire), std::memory_order_release);
  const std::shared_ptr<EventHandle> handle = point().handle;
  SubmissionQueue& queue = stream.queue_;
  const uint64_t place = queue.mark([&driver = device_.driver(), &queue, handle, stream = stream.handle_] {
    handle->set_failure(queue.failure());
    record_or_finish(driver, handle->get(), stream);
  });
  std::lock_guard lock(mutex_);
  point_.stream = &stream;
  point_.place = place;
  recorded_ = true;
}

void Event::synchronize() {
  finish();
  if (!recorded_) return;
  point().stream->queue_.report();
  if (asserts_.load(std::memory_order_acquire)) device_.assertions().report();
}

void Event::finish() {
  refuse_if_unusable(device_.driver());
  if (!recorded_) return;
  const Point at = point();
  at.wait_until_handed_over();
  const auto wait = [&](int blocking) { return device_.driver().event_wait(at.handle->get(), blocking); };
  check(device_.driver(), patiently(device_, wait), "waiting for an event");
}

bool Event::surely_reached() noexcept {
  if (device_.driver().work_ended()) return true;
  try {
    return query();
  } catch (const Error&) {
  }
  try {
    record(*point().stream);
  } catch (const Error&) {  // the next caller tries again
  }
  return false;
}

void Event::finish_in_the_end() {
  const Uninterrupted whole;
  try {
    finish();
  } catch (const Error&) {
    if (!point().stream->finish_in_the_end()) throw;
  }
}

bool Event::query() {
  refuse_if_unusable(device_.driver());
  if (!recorded_) return true;
  const Point at = point();
  if (!at.handed_over()) return false;
  const ob_status status = device_.driver().event_wait(at.handle->get(), 0);
  if (status == OB_NOT_READY) return false;
  check(device_.driver(), status, "querying an event");
  return true;
}

double Event::elapsed_ms(const Event& end) const {
  refuse_if_unusable(device_.driver());
  if (!recorded_ || !end.recorded_) {
    throw Error(OB_INVALID_ARGUMENT, "both events must be recorded before the time between them can be taken");
  }
  if (!device_.shares_driver_with(end.device_)) {
    throw Error(OB_INVALID_ARGUMENT, "the events belong to devices of different drivers: no clock measures both");
  }
  const Point from = point(), to = end.point();
  if (!from.handed_over() || !to.handed_over()) {
    throw Error(OB_INVALID_ARGUMENT, "an event is not reached yet: synchronize it before the time is taken");
  }
  int64_t nanoseconds = 0;
  const ob_status status = device_.driver().event_elapsed(from.handle->get(), to.handle->get(), &nanoseconds);
  check(to_blame(device_.driver(), end.device().driver()), status, "timing events");
  return static_cast<double>(nanoseconds) * 1e-6;
}

}  // namespace outboard
