// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <unordered_set>

namespace outboard::aten {

/// How many calls ran a plan that was known, of all threads. Each thread has a counter of its own, since to count in
/// common takes as long as to look a plan up.
class Hits {
 public:
  class Counter {
   public:
    Counter();
    ~Counter();
    Counter(const Counter&) = delete;
    Counter& operator=(const Counter&) = delete;
    void add() { count_.store(count_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed); }

   private:
    friend class Hits;
    std::atomic<int64_t> count_{0};  // only its thread writes
  };

  /// Since the last reset.
  static int64_t total();
  static void reset();

 private:
  static Hits& all();

  template <typename Function>
  void change(Function&& function) {
    const std::lock_guard guard(mutex_);
    function(*this);
  }

  int64_t sum() const;

  std::mutex mutex_;
  std::unordered_set<const Counter*> counters_;
  int64_t ended_ = 0;      // of threads that are gone
  int64_t forgotten_ = 0;  // before the last reset
};

/// Counts a call that had to ask the compiler.
void count_miss();

struct EagerStatistics {
  int64_t hits = 0;    ///< calls that ran a plan found in C++
  int64_t misses = 0;  ///< calls that had to ask the compiler
  int64_t plans = 0;   ///< plans held in memory
};
/// Since the last reset; plans as they are.
EagerStatistics eager_statistics();
void reset_eager_statistics();

}  // namespace outboard::aten
