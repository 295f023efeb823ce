// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "outboard/driver.h"

namespace outboard::strict {

/// One recording of an event: streams that wait for it keep it, whatever happens to the event.
class Point {
 public:
  /// `failure`: what the work before it failed with that nobody has been told of yet.
  void reach(ob_status failure, const std::string& text);
  void wait();
  /// The same, until `given_up` is set.
  void wait_unless(const std::atomic<bool>& given_up);
  /// What the work before it failed with, or, before it is reached, OB_NOT_READY.
  ob_status status();
  /// Nanoseconds of a steady clock; -1 before it is reached.
  int64_t time();

 private:
  std::mutex mutex_;
  std::condition_variable reached_;
  int64_t nanoseconds_ = -1;
  ob_status failure_ = OB_OK;
  std::string text_;
};

/// How late things are: mostly not at all, often a little, now and then by far. Not thread-safe.
class Delay {
 public:
  explicit Delay(uint64_t stream);
  /// How long to wait this time, mostly 0.
  std::chrono::microseconds draw();
  /// Waits so long.
  void pass();
  /// True half of the time.
  bool toss() { return (next() & 1) != 0; }
  uint64_t next();

 private:
  uint64_t state_;
};

/// Commands in order, and a thread that carries them out later than anybody would like.
class Queue {
 public:
  /// What the wrapped driver said; its text is on the thread that runs the command.
  using Command = std::function<ob_status()>;

  /// Once `given_up` is set, commands are left out, and points are reached all the same.
  Queue(uint64_t number, const std::atomic<bool>& given_up) : given_up_(given_up), late_(number), later_(~number) {}
  /// Waits for everything that was put.
  ~Queue();
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  void put(Command command) { put({std::move(command), true}); }
  /// Reaches the point, whatever failed before it.
  void record(std::shared_ptr<Point> point);
  /// What comes later waits for the point, and has its failure.
  void wait_for(std::shared_ptr<Point> point);
  /// OB_OK once all that was put is finished, OB_NOT_READY before if not blocking; or, once, what a command failed
  /// with. `lost` ends the wait.
  ob_status wait(bool blocking, const std::atomic<bool>& lost);

  /// While held, no queue begins another command.
  static void hold(bool held);
  /// A `given_up` was set: held queues of that device go on.
  static void look_again();
  /// The nth next command of any queue that does work fails with `status` (0: none does).
  static void fail_command(uint64_t nth, ob_status status);

 private:
  struct Entry {
    Command command;
    bool is_work;  // it may fail by fail_command, and be left out
  };

  void put(Entry entry);
  void work();
  ob_status carry_out(const Entry& entry);

  const std::atomic<bool>& given_up_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Entry> entries_;
  uint64_t put_ = 0, done_ = 0;
  bool ending_ = false;
  ob_status failure_ = OB_OK;
  std::string failure_text_;
  Delay late_;   // of the thread
  Delay later_;  // of those who wait; guarded by mutex_
  std::thread thread_;
};

}  // namespace outboard::strict
