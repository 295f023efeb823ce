// SPDX-License-Identifier: Apache-2.0
#include "torch/distributed/staging/issuer.h"

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
  std::unique_lock lock(mutex_);
  stop_ = true;
  changed_.notify_all();
  while (!threads_.empty()) {  // one that ends may have started another
    std::thread thread = std::move(threads_.back());
    threads_.pop_back();
    lock.unlock();
    thread.join();
    lock.lock();
  }
}

void Issuer::put(Task task) {
  const bool at_once = task.may_be_at_once && (task.exchange == nullptr || task.exchange->ready());
  std::unique_lock lock(mutex_);
  if (at_once && tasks_.empty() && !busy_) {
    {
      const Turn turn(busy_, lock, changed_);
      task.issue();
    }
    lock.unlock();
    if (task.after) task.after();
    return;
  }
  tasks_.push_back(std::move(task));
  require_server();
  changed_.notify_all();
}

void Issuer::require_server() {
  if (servers_ != 0) return;
  ++servers_;
  threads_.emplace_back([this] { run(); });
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
    Task task = std::move(tasks_.front());
    tasks_.pop_front();
    std::exception_ptr error;
    {
      const Turn turn(busy_, lock, changed_);
      try {
        if (task.exchange != nullptr) task.exchange->wait();
        task.issue();
      } catch (...) {
        error = std::current_exception();
      }
    }
    --servers_;
    if (!tasks_.empty()) require_server();
    lock.unlock();
    if (error != nullptr) {
      task.fail(error);
    } else if (task.after) {
      task.after();
    }
    task = {};  // without the lock: the end of its tensors may wait for Python
    lock.lock();
    ++servers_;
  }
}

}  // namespace outboard::distributed
