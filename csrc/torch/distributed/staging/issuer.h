// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "torch/distributed/staging/exchange.h"

namespace outboard::distributed {

/// Starts collectives in the order in which they come, each when the device is done with what comes before it: at once
/// on the calling thread if it is, else on a thread of its own, which the first one that has to wait starts. While that
/// thread is told of an end, which may take long or wait for later collectives, another one goes on.
class Issuer {
 public:
  struct Task {
    std::shared_ptr<Exchange> exchange;  ///< null: nothing on a device comes before it
    std::function<void()> issue;
    /// Called once that is done, when later ones may begin.
    std::function<void()> after;
    /// Is given what `issue` or the device's work threw, unless that went to who put the task.
    std::function<void(std::exception_ptr)> fail;
    bool may_be_at_once = true;  ///< on the calling thread
  };

  Issuer() = default;
  /// Issues what is left.
  ~Issuer();
  Issuer(const Issuer&) = delete;
  Issuer& operator=(const Issuer&) = delete;

  /// Throws what `issue` throws if it is called at once.
  void put(Task task);
  /// Waits until everything that was put is issued.
  void drain();

 private:
  void run();
  /// Has a thread take tasks. The mutex is held.
  void require_server();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task> tasks_;
  bool busy_ = false;  ///< a thread issues
  bool stop_ = false;
  size_t servers_ = 0;  ///< threads that are not in `after` or `fail`
  std::vector<std::thread> threads_;
};

}  // namespace outboard::distributed
