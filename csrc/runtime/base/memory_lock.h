// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>

namespace outboard {

/// A mutex that costs one atomic instruction to take and one to give while nobody else wants it, which is less than
/// half of what std::mutex costs: each operator takes two. See Drepper, "Futexes are tricky", 2011, mutex 2.
class LightMutex {
 public:
  void lock() {
    uint32_t free = kFree;
    if (state_.compare_exchange_strong(free, kHeld, std::memory_order_acquire)) return;
    wait();
  }

  void unlock() {
    if (state_.exchange(kFree, std::memory_order_release) != kWanted) return;
    const std::lock_guard guard(sleep_);
    wake_.notify_one();
  }

 private:
  static constexpr uint32_t kFree = 0, kHeld = 1, kWanted = 2;

  void wait() {
    std::unique_lock guard(sleep_);
    // A thread that gives up a wanted mutex takes `sleep_` first, and so finds a waiter asleep.
    while (state_.exchange(kWanted, std::memory_order_acquire) != kFree) wake_.wait(guard);
  }

  std::atomic<uint32_t> state_{kFree};
  std::mutex sleep_;
  std::condition_variable wake_;
};

/// The lock of one device's memory: taken while a piece of work is prepared, and for every allocation and free. The
/// same thread may take it again. Cheaper than std::recursive_mutex, and it can be given up whole while waiting.
///
/// Rule: its holder may call the driver and streams, but must not call Python or take another device's lock; a
/// thread that executes queued work (a submission thread) must not take it, because the holder may wait for that work.
class MemoryLock {
 public:
  void lock() {
    const std::thread::id self = std::this_thread::get_id();
    if (owner_.load(std::memory_order_relaxed) == self) {
      ++depth_;
      return;
    }
    mutex_.lock();
    owner_.store(self, std::memory_order_relaxed);
    depth_ = 1;
  }

  void unlock() {
    if (--depth_ > 0) return;
    owner_.store(std::thread::id(), std::memory_order_relaxed);
    mutex_.unlock();
  }

  /// True if the calling thread has the lock.
  bool held() const { return owner_.load(std::memory_order_relaxed) == std::this_thread::get_id(); }
  /// True for the outermost of nested locks.
  bool outermost() const { return depth_ == 1; }

  /// Gives the lock up, however often it was taken, for at most `time`, so that other threads get on.
  void yield_for(std::chrono::milliseconds time) {
    const int depth = depth_;
    owner_.store(std::thread::id(), std::memory_order_relaxed);
    mutex_.unlock();
    std::this_thread::sleep_for(time);
    mutex_.lock();
    owner_.store(std::this_thread::get_id(), std::memory_order_relaxed);
    depth_ = depth;
  }

 private:
  LightMutex mutex_;
  std::atomic<std::thread::id> owner_{};
  int depth_ = 0;
};

}  // namespace outboard
