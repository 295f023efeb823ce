// SPDX-License-Identifier: Apache-2.0
#include "runtime/memory/work_order.h"

#include <algorithm>
#include <utility>

#include "runtime/device.h"

namespace outboard {
namespace {

constexpr size_t kMarks = 64;        // points of streams to remember
constexpr uint64_t kMarkEvery = 16;  // pieces of work between two of them, while memory moves

}  // namespace

WorkOrder::WorkOrder(Device& device) : device_(device) {}
WorkOrder::~WorkOrder() = default;

uint64_t WorkOrder::begin() {
  lock_.lock();
  if (lock_.outermost()) current_ = ++begun_;
  return current_;
}

void WorkOrder::let_others_work(std::chrono::milliseconds time) {
  const uint64_t mine = current_;
  waiting_.push_back(mine);
  lock_.yield_for(time);
  waiting_.erase(std::find(waiting_.begin(), waiting_.end(), mine));
  current_ = mine;
}

/// The number of the oldest work that may still submit something.
uint64_t WorkOrder::first_unfinished() const {
  uint64_t first = current_;
  for (const uint64_t work : waiting_) first = std::min(first, work);
  return first;
}

/// A point of `stream` behind its work up to number `last_use`, and behind as little else as is known: memory was
/// mostly used long ago, and earlier moves left marks. nullptr if it is reached.
Event* WorkOrder::behind(Stream& stream, uint64_t last_use) {
  if (last_use == 0) return nullptr;  // never used
  for (Mark& each : marks_) {
    if (each.stream != &stream || each.number <= last_use) continue;
    if (each.event != nullptr && each.event->surely_reached()) each.event = nullptr;
    return each.event.get();
  }
  return mark(stream).event.get();
}

WorkOrder::Mark& WorkOrder::mark(Stream& stream) {
  Mark made{&stream, first_unfinished(), nullptr};
  if (!stream.surely_finished()) {
    made.event = std::make_unique<Event>(device_);
    made.event->record(stream);
  }
  if (marks_.size() == kMarks) marks_.pop_front();
  return marks_.emplace_back(std::move(made));
}

void WorkOrder::mark_now_and_then(Stream& stream) {
  for (auto each = marks_.rbegin(); each != marks_.rend(); ++each) {
    if (each->stream != &stream) continue;
    if (each->number + kMarkEvery > first_unfinished()) return;
    break;
  }
  mark(stream);
}

void WorkOrder::order_after(Stream& stream, Stream& user, uint64_t last_use) {
  if (&stream == &user) return;
  if (const Event* event = behind(user, last_use)) stream.wait(*event);
}

void WorkOrder::wait_for(Stream& stream, uint64_t last_use) {
  Stream* const transfers = device_.transfer_stream();
  if (transfers == nullptr) return stream.finish();
  if (Event* event = behind(stream, last_use)) event->finish_in_the_end();
  transfers->finish();
}

}  // namespace outboard
