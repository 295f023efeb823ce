// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "outboard/driver.h"
#include "runtime/base/memory_lock.h"
#include "runtime/streams/launch.h"

namespace outboard {

class Traced;
struct DeviceDriver;

/// What went wrong with queued work. Every queue with work behind it has it; the first that is asked tells it.
class Failure {
 public:
  explicit Failure(std::exception_ptr exception) : exception_(std::move(exception)) {}
  bool told() const { return told_.load(std::memory_order_acquire); }
  /// Throws it, the first time.
  void tell() {
    if (!told_.exchange(true, std::memory_order_acq_rel)) std::rethrow_exception(exception_);
  }

 private:
  const std::exception_ptr exception_;
  std::atomic<bool> told_{false};
};

/// Hands work to a driver in order, from a thread of its own: a driver's launch costs microseconds, or as long as the
/// kernel runs, putting one here a fraction of one. The thread also waits for kernels that are still being built.
/// Several threads may put, which `producers` guards: the lock of the device's memory, which whoever prepares a launch
/// holds already. Failures, those of builds included, are kept and thrown, once, by the next that puts or drains. Waits
/// can be interrupted (interruption.h), except those of threads that hold the lock.
class SubmissionQueue {
 public:
  using Command = std::function<void()>;

  SubmissionQueue(const DeviceDriver& driver, ob_stream stream, MemoryLock& producers);
  SubmissionQueue(const SubmissionQueue&) = delete;
  SubmissionQueue& operator=(const SubmissionQueue&) = delete;

  /// Queues a launch, or launches at once if nothing is before it and the driver says that this takes less time. Waits
  /// while the queue is full. Throws Error for an earlier failure. Launches that follow one another with the same
  /// `batch`, unless it is 0, do not depend on one another (see Batch): the thread hands over together what it finds of
  /// them, unless they are `traced`, one by one.
  void put(const Launch& launch, std::shared_ptr<Traced> traced = nullptr);
  /// Queues other work, which must not take the memory lock. Returns its place, for `reached`.
  uint64_t put(Command command);
  /// The same, except that the command runs at once, and its exceptions leave, if nothing is before it.
  uint64_t run_or_put(const Command& command);
  /// The same for what only marks a place: an earlier failure is left to callers that need the work, because the one
  /// that marks may not be able to report it.
  uint64_t mark(const Command& command);

  /// Waits, without the lock, until there is room for a piece of work: then putting it waits no more, or not for long.
  void wait_for_room() {
    if (put_.load(std::memory_order_relaxed) - known_done_.load(std::memory_order_relaxed) >= kSlots - kReserve) {
      wait_until_half_empty();
    }
  }
  /// True if the driver has what was put at this place.
  bool reached(uint64_t place) const { return done_.load(std::memory_order_acquire) >= place; }
  void wait_until(uint64_t place);
  /// Waits until the driver has all that was put.
  void hand_over_all() { wait_until(put_.load(std::memory_order_acquire)); }
  /// The same. Throws Error for a failure among it.
  void drain();
  /// Keeps a failure, unless there is one already, for the next that puts or drains. Nothing to keep: nullptr.
  void keep(std::shared_ptr<Failure> failure) noexcept;
  /// The exception that is being handled.
  void keep_current() noexcept { keep(std::make_shared<Failure>(std::current_exception())); }
  /// A failure that nobody has been told of, or nullptr.
  std::shared_ptr<Failure> failure() const;
  /// Throws a failure that nobody has been told of.
  void report();
  /// True if the driver has all that was put.
  bool empty() const { return reached(put_.load(std::memory_order_acquire)); }
  /// Drains without throwing and ends the thread; what is put later goes to the driver at once.
  void stop() noexcept;
  /// Leaves out what the driver does not have yet, and ends the thread unless the driver keeps it for long.
  void abandon() noexcept;

 private:
  uint64_t enqueue(Command command);
  static constexpr uint64_t kNothing = UINT64_MAX;
  static constexpr uint64_t kSlots = 512;
  static constexpr uint64_t kReserve = 32;       // entries that a piece of work may need
  static constexpr uint64_t kMostTogether = 64;  // launches

  struct Slot {
    Command command;  // empty for a launch
    std::shared_ptr<Traced> traced;
    Launch launch;  // its batch is 0 for commands
  };

  void start();
  void work();
  bool wait_for_work(uint64_t done);
  bool is_cheap(const Launch& launch) const;
  void wait_until_half_empty();
  Slot& next_slot();
  void publish();
  bool wait_until(uint64_t place, std::chrono::milliseconds time);
  void end(std::chrono::milliseconds patience) noexcept;
  uint64_t count_together(uint64_t first) const;
  void carry_out(Slot& slot) noexcept;
  void leave_out(uint64_t first, uint64_t count) noexcept;
  void carry_out_batch(uint64_t first, uint64_t count) noexcept;
  bool make_ready(const Launch& launch, ob_argument* arguments, ob_launch& readable) noexcept;
  void hand_over(const Launch& launch, const std::shared_ptr<Traced>& traced);
  void throw_failure();

  // What both sides write has a cache line of its own, and what they only read another: a line that two cores write
  // costs as much as the rest of a launch.
  const DeviceDriver& driver_;
  ob_stream stream_;
  std::unique_ptr<std::array<Slot, kSlots>> slots_;  // made by the first put
  std::vector<ob_argument> together_;                // of the launches of a batch; the thread's own
  MemoryLock& producers_;                            // held while putting
  std::atomic<bool> asleep_{false}, stopping_{false}, stopped_{false}, failed_{false}, abandoned_{false};
  std::atomic<uint64_t> wanted_{kNothing};  // the first place that a thread in wait_until waits for
  mutable std::mutex sleep_;                // guards the condition variables and the failure
  std::condition_variable wake_, progress_;
  std::shared_ptr<Failure> failure_;
  alignas(64) std::atomic<uint64_t> put_{0};  // so far
  std::atomic<uint64_t> known_done_{0};       // what producers saw of `done_`
  alignas(64) std::atomic<uint64_t> done_{0};
};

}  // namespace outboard
