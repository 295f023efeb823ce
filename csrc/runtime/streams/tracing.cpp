// SPDX-License-Identifier: Apache-2.0
#include "runtime/streams/tracing.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <map>
#include <mutex>
#include <set>
#include <utility>

#include "runtime/base/driver_call.h"
#include "runtime/device.h"
#include "runtime/streams/stream.h"
#include "runtime/streams/watchdog.h"

namespace outboard {

std::atomic<unsigned> observers{0};

namespace {

std::mutex traces_mutex;
std::vector<std::shared_ptr<Traced>> traces;
std::vector<TracedWork> ended_works;

thread_local std::vector<uint64_t> operations, ranges;

void pop(std::vector<uint64_t>& numbers) {
  if (!numbers.empty()) numbers.pop_back();  // what began before tracing did ends in it
}

/// An event that was just reached, and when: what other events of the device are compared with.
struct Reference {
  explicit Reference(Stream& stream) : event(stream.device()) {
    event.record(stream);
    event.finish_in_the_end();
    time = traced_clock();
  }

  Event event;
  int64_t time = 0;
};

}  // namespace

void observe(Observer observer, bool on) {
  if (on) {
    observers.fetch_or(observer, std::memory_order_relaxed);
  } else {
    observers.fetch_and(~unsigned{observer}, std::memory_order_relaxed);
  }
}

std::string TracedWork::description() const {
  switch (kind) {
    case Kind::kKernel:
      return (global[0] == 0 ? "the function '" : "the kernel '") + name + "'";
    case Kind::kCopy:
      return "a copy of " + std::to_string(bytes) + " bytes";
    case Kind::kFill:
      return "a fill of " + std::to_string(bytes) + " bytes";
    case Kind::kGraph:
      return "a graph of launches";
    case Kind::kCollective:
      return "the collective '" + name + "'";
  }
  return name;
}

int64_t traced_clock() {
  const auto time = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time).count();
}

uint64_t traced_operation() { return operations.empty() ? 0 : operations.back(); }

int64_t traced_thread() {
  thread_local const int64_t number = syscall(SYS_gettid);
  return number;
}

Traced::Traced(Stream& stream, TracedWork work)
    : stream_(stream),
      work_(std::move(work)),
      begin_(std::make_unique<EventHandle>(stream.device())),
      end_(std::make_unique<EventHandle>(stream.device())) {
  work_.device = stream.device().index();
  work_.stream = stream.id();
  work_.operation = traced_operation();
  work_.range = ranges.empty() ? 0 : ranges.back();
  work_.thread = traced_thread();
  work_.submit_begin = traced_clock();
}

Traced::~Traced() = default;

void Traced::submitted() { work_.submit_end = traced_clock(); }

Traced::Progress Traced::progress() const {
  if (in_call()) return Progress::kRunning;
  const ob_driver& driver = stream_.device().driver();
  // What failed before it is for others to hear: whatever else a wait says, this is not what hangs.
  const auto is_reached = [&](const EventHandle& event) { return driver.event_wait(event.get(), 0) != OB_NOT_READY; };
  if (!timed_.load(std::memory_order_acquire) || is_reached(*end_)) return Progress::kFinished;
  return is_reached(*begin_) ? Progress::kRunning : Progress::kWaiting;
}

void Traced::read_times(const DeviceDriver& driver, const EventHandle& reference, int64_t reference_time) {
  if (!timed_.load(std::memory_order_acquire)) return;
  int64_t since_begin = 0, since_end = 0;
  if (driver.event_elapsed(begin_->get(), reference.get(), &since_begin) != OB_OK) return;
  if (driver.event_elapsed(end_->get(), reference.get(), &since_end) != OB_OK) return;
  work_.begin = reference_time - since_begin;
  work_.end = reference_time - since_end;
}

TimedOnDevice::TimedOnDevice(const std::shared_ptr<Traced>& traced, const DeviceDriver& driver, ob_stream stream)
    : traced_(traced.get()), driver_(driver), stream_(stream) {
  if (traced_ == nullptr) return;
  begun_ = driver_.event_record(traced_->begin_->get(), stream_) == OB_OK;
  traced_->in_call_.store(true, std::memory_order_release);
  watch(traced);
}

TimedOnDevice::~TimedOnDevice() {
  if (traced_ == nullptr) return;
  hand_over_end();
  traced_->in_call_.store(false, std::memory_order_release);
}

void TimedOnDevice::hand_over_end() {
  if (!begun_ || driver_.event_record(traced_->end_->get(), stream_) != OB_OK) return;
  traced_->timed_.store(true, std::memory_order_release);
}

std::shared_ptr<Traced> trace(Stream& stream, TracedWork work) {
  if (!is_observed()) return nullptr;
  auto traced = std::make_shared<Traced>(stream, std::move(work));
  if (!is_tracing()) return traced;
  const std::lock_guard lock(traces_mutex);
  traces.push_back(traced);
  return traced;
}

void trace_ended(TracedWork work) {
  if (!is_tracing()) return;
  const std::lock_guard lock(traces_mutex);
  ended_works.push_back(std::move(work));
}

void start_tracing() {
  const std::lock_guard lock(traces_mutex);
  traces.clear();  // what was under way when tracing stopped
  ended_works.clear();
  observe(kTraced, true);
}

std::vector<TracedWork> stop_tracing() {
  observe(kTraced, false);
  std::vector<std::shared_ptr<Traced>> ended;
  std::vector<TracedWork> by_host;
  {
    const std::lock_guard lock(traces_mutex);
    ended.swap(traces);
    by_host.swap(ended_works);
  }
  std::set<Stream*> streams;
  for (const auto& traced : ended) streams.insert(&traced->stream_);
  for (Stream* stream : streams) stream->finish_in_the_end();
  std::map<Device*, std::unique_ptr<Reference>> references;
  std::vector<TracedWork> works;
  works.reserve(ended.size() + by_host.size());
  for (const auto& traced : ended) {
    Device& device = traced->stream_.device();
    if (!device.lost()) {
      auto& reference = references[&device];
      if (reference == nullptr) reference = std::make_unique<Reference>(traced->stream_);
      traced->read_times(device.driver(), reference->event.handle(), reference->time);
    }
    works.push_back(traced->work_);
  }
  works.insert(works.end(), by_host.begin(), by_host.end());
  return works;
}

void push_traced_operation(uint64_t number) { operations.push_back(number); }
void pop_traced_operation() { pop(operations); }
void push_traced_range(uint64_t number) { ranges.push_back(number); }
void pop_traced_range() { pop(ranges); }

}  // namespace outboard
