// SPDX-License-Identifier: Apache-2.0
#include "torch/distributed/issuer.h"

#include <utility>

namespace outboard::distributed {
namespace {

/// Marks that a thread issues, until it ends.
class Turn {
 public:
  Turn(bool& busy, std::unique_lock<std::mutex>& lock, std::condition_variable& changed)
      : busy_(busy), lock_(lock), changed_(changed) {
    busy_ = true;
    lock_.unlock();
  }
  ~Turn() {
    lock_.lock();
    busy_ = false;
    changed_.notify_all();
  }

 private:
  bool& busy_;
  std::unique_lock<std::mutex>& lock_;
  std::condition_variable& changed_;
};

}  // namespace

Issuer::~Issuer() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Issuer::put(Task task) {
  const bool at_once = task.exchange->ready();
  std::unique_lock lock(mutex_);
  if (at_once && tasks_.empty() && !busy_) {
    const Turn turn(busy_, lock, changed_);
    return task.issue();
  }
  tasks_.push_back(std::move(task));
  if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
  changed_.notify_all();
}

void Issuer::drain() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return tasks_.empty() && !busy_; });
}

void Issuer::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return !busy_ && (stop_ || !tasks_.empty()); });
    if (tasks_.empty()) return;
    const Task task = std::move(tasks_.front());
    tasks_.pop_front();
    const Turn turn(busy_, lock, changed_);
    try {
      task.exchange->wait();
      task.issue();
    } catch (...) {
      task.fail(std::current_exception());
    }
  }
}

}  // namespace outboard::distributed
