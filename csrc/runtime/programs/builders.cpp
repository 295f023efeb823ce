// SPDX-License-Identifier: Apache-2.0
#include "runtime/programs/builders.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

namespace outboard {
namespace {

constexpr unsigned kMostThreads = 8;
constexpr auto kPatience = std::chrono::seconds(5);

}  // namespace

Builders& Builders::get() {
  static Builders* const instance = new Builders;  // leaked: threads may outlive static destructors
  return *instance;
}

Builders::Builders() : most_(std::clamp(std::thread::hardware_concurrency(), 1U, kMostThreads)) {}

void Builders::run(std::function<void()> task) {
  std::unique_lock lock(mutex_);
  if (stopping_) {
    lock.unlock();
    return task();
  }
  tasks_.push_back(std::move(task));
  if (idle_ >= tasks_.size() || threads_ == most_) return wake_.notify_one();
  ++threads_;
  lock.unlock();
  std::thread([this] { work(); }).detach();  // a process may end without a shutdown
}

void Builders::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    ++idle_;
    const bool found = wake_.wait_for(lock, kPatience, [this] { return !tasks_.empty() || stopping_; });
    --idle_;
    if (!found || tasks_.empty()) break;
    const std::function<void()> task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    task();
    lock.lock();
  }
  --threads_;
  ended_.notify_all();
}

void Builders::drop() noexcept {
  std::deque<std::function<void()>> dropped;
  const std::lock_guard lock(mutex_);
  dropped.swap(tasks_);
}

void Builders::stop() noexcept {
  std::unique_lock lock(mutex_);
  stopping_ = true;
  wake_.notify_all();
  ended_.wait(lock, [this] { return threads_ == 0; });
}

}  // namespace outboard
