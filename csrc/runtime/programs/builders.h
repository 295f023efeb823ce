// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>

namespace outboard {

/// The threads that load and build programs, shared by all devices. They start when there is work and end when there
/// has been none for a while.
class Builders {
 public:
  static Builders& get();

  /// Runs `task`, which must not throw, on some thread; after `stop`, on this one.
  void run(std::function<void()> task);
  /// Waits until all tasks are done. Later ones run where they are asked for.
  void stop() noexcept;
  /// Forgets tasks that have not begun.
  void drop() noexcept;

 private:
  Builders();
  void work();

  const unsigned most_;  // threads
  std::mutex mutex_;
  std::condition_variable wake_, ended_;
  std::deque<std::function<void()>> tasks_;
  unsigned threads_ = 0, idle_ = 0;
  bool stopping_ = false;
};

}  // namespace outboard
