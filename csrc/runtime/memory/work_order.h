// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "runtime/base/memory_lock.h"

namespace outboard {

class Device;
class Event;
class Stream;

/// The pieces of work that use one device's memory, by number, and points of streams behind them. Of memory it is known
/// by which work it was used last: whoever gives it to somebody else waits for that, and for as little else as can be.
/// All but `begin` and `lock` is for who holds the lock.
class WorkOrder {
 public:
  explicit WorkOrder(Device& device);
  ~WorkOrder();
  WorkOrder(const WorkOrder&) = delete;
  WorkOrder& operator=(const WorkOrder&) = delete;

  /// The lock of the device's memory.
  MemoryLock& lock() { return lock_; }
  /// Takes the lock, until `end`. Returns the number of the work that begins. Work within work has the outer one's:
  /// what either uses must stay.
  uint64_t begin();
  void end() { lock_.unlock(); }
  uint64_t current() const { return current_; }
  /// Gives the lock up for a while. Then other threads work; the number stays.
  void let_others_work(std::chrono::milliseconds time);

  /// Has `stream` wait for work of `user` up to number `last_use`.
  void order_after(Stream& stream, Stream& user, uint64_t last_use);
  /// Waits until work of `stream` up to number `last_use`, and moves of memory, are done.
  void wait_for(Stream& stream, uint64_t last_use);
  /// While memory moves: remembers where `stream` is, unless that is known well enough.
  void mark_now_and_then(Stream& stream);
  void forget_marks() { marks_.clear(); }

 private:
  /// A point of a stream behind all work with a smaller number.
  struct Mark {
    const Stream* stream;
    uint64_t number;
    std::unique_ptr<Event> event;  // nullptr: reached
  };

  uint64_t first_unfinished() const;
  Event* behind(Stream& stream, uint64_t last_use);
  Mark& mark(Stream& stream);

  Device& device_;
  MemoryLock lock_;
  uint64_t begun_ = 0;             // so far
  uint64_t current_ = 0;           // the one that holds the lock
  std::deque<Mark> marks_;         // oldest first
  std::vector<uint64_t> waiting_;  // numbers of those that wait for memory without the lock
};

}  // namespace outboard
