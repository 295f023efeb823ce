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

namespace outboard {

std::atomic<bool> tracing_is_on{false};

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

void Traced::read_times(const DeviceDriver& driver, const EventHandle& reference, int64_t reference_time) {
  if (!timed_.load(std::memory_order_acquire)) return;
  int64_t since_begin = 0, since_end = 0;
  if (driver.event_elapsed(begin_->get(), reference.get(), &since_begin) != OB_OK) return;
  if (driver.event_elapsed(end_->get(), reference.get(), &since_end) != OB_OK) return;
  work_.begin = reference_time - since_begin;
  work_.end = reference_time - since_end;
}

TimedOnDevice::TimedOnDevice(Traced* traced, const DeviceDriver& driver, ob_stream stream)
    : traced_(traced), driver_(driver), stream_(stream) {
  begun_ = traced_ != nullptr && driver_.event_record(traced_->begin_->get(), stream_) == OB_OK;
}

TimedOnDevice::~TimedOnDevice() {
  if (!begun_ || driver_.event_record(traced_->end_->get(), stream_) != OB_OK) return;
  traced_->timed_.store(true, std::memory_order_release);
}

std::shared_ptr<Traced> trace(Stream& stream, TracedWork work) {
  if (!is_tracing()) return nullptr;
  auto traced = std::make_shared<Traced>(stream, std::move(work));
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
  tracing_is_on.store(true, std::memory_order_relaxed);
}

std::vector<TracedWork> stop_tracing() {
  tracing_is_on.store(false, std::memory_order_relaxed);
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
