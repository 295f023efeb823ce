// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>

namespace outboard {

/// The lock of one device's memory: taken while a piece of work is prepared, and for every allocation and free. The
/// same thread may take it again. Cheaper than std::recursive_mutex, and it can be given up whole while waiting.
///
/// Rule: whoever holds it may call the driver and streams, but must not call Python or take another device's lock; a
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
  std::mutex mutex_;
  std::atomic<std::thread::id> owner_{};
  int depth_ = 0;
};

}  // namespace outboard
