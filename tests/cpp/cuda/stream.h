// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace simulator {

struct Context;

/// One recording of an event: streams that wait for it keep it, whatever happens to the event.
struct Point {
  std::mutex mutex;
  std::condition_variable changed;
  int64_t nanoseconds = -1;  // not reached

  void reach();
  void wait();
  bool reached();
};

struct Event {
  Context* context;
  std::mutex mutex;
  std::shared_ptr<Point> point;  // nullptr: never recorded

  std::shared_ptr<Point> last();
};

using Command = std::function<void()>;

struct Graph {
  Context* context;
  std::vector<Command> commands;
};

/// Commands in order, and the thread that carries them out. A stream that is deleted does what it was given first.
class Stream {
 public:
  explicit Stream(Context* context);
  /// Returns at once.
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  void put(Command command);
  bool idle();
  void wait();

  Context* const context;
  std::unique_ptr<Graph> capture;  // what is recorded, while something is
  bool capture_failed = false;

  /// Holds all streams, or lets them go on.
  static void hold(bool held);

 private:
  struct Queue;
  const std::shared_ptr<Queue> queue_;
};

}  // namespace simulator
