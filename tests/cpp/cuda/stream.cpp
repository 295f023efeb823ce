// SPDX-License-Identifier: Apache-2.0
#include "stream.h"

#include <chrono>
#include <utility>

namespace simulator {
namespace {

struct Gate {
  std::mutex mutex;
  std::condition_variable changed;
  bool held = false;

  void pass() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return !held; });
  }
};

Gate& gate() {
  static Gate* const instance = new Gate;
  return *instance;
}

}  // namespace

void Point::reach() {
  const std::lock_guard lock(mutex);
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  nanoseconds = std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
  changed.notify_all();
}

void Point::wait() {
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return nanoseconds >= 0; });
}

bool Point::reached() {
  const std::lock_guard lock(mutex);
  return nanoseconds >= 0;
}

std::shared_ptr<Point> Event::last() {
  const std::lock_guard lock(mutex);
  return point;
}

struct Stream::Queue {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Command> commands;
  uint64_t put = 0, done = 0;
  bool ending = false;

  static void work(const std::shared_ptr<Queue>& self) {
    for (;;) {
      std::unique_lock lock(self->mutex);
      self->changed.wait(lock, [&] { return !self->commands.empty() || self->ending; });
      if (self->commands.empty()) return;
      const Command command = std::move(self->commands.front());
      self->commands.pop_front();
      lock.unlock();
      gate().pass();
      command();
      lock.lock();
      ++self->done;
      self->changed.notify_all();
    }
  }
};

Stream::Stream(Context* context_) : context(context_), queue_(std::make_shared<Queue>()) {
  std::thread(Queue::work, queue_).detach();
}

Stream::~Stream() {
  const std::lock_guard lock(queue_->mutex);
  queue_->ending = true;
  queue_->changed.notify_all();
}

void Stream::put(Command command) {
  const std::lock_guard lock(queue_->mutex);
  queue_->commands.push_back(std::move(command));
  ++queue_->put;
  queue_->changed.notify_all();
}

bool Stream::idle() {
  const std::lock_guard lock(queue_->mutex);
  return queue_->done == queue_->put;
}

void Stream::wait() {
  std::unique_lock lock(queue_->mutex);
  const uint64_t target = queue_->put;
  queue_->changed.wait(lock, [&] { return queue_->done >= target; });
}

void Stream::hold(bool held) {
  const std::lock_guard lock(gate().mutex);
  gate().held = held;
  gate().changed.notify_all();
}

}  // namespace simulator
