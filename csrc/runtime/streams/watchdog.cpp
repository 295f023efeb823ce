// SPDX-License-Identifier: Apache-2.0
#include "runtime/streams/watchdog.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/device.h"
#include "runtime/streams/stream.h"
#include "runtime/streams/tracing.h"

namespace outboard {
namespace {

using Clock = std::chrono::steady_clock;
using Progress = Traced::Progress;

constexpr auto kLongestInterval = std::chrono::milliseconds(1000);
constexpr int kLooksPerLimit = 10;
/// How many finished works are let go of for each that is handed over: fewer and they would pile up.
constexpr int kLetGo = 2;
/// A driver that answers no more keeps the thread, but not the process that ends.
constexpr auto kLastLook = std::chrono::milliseconds(500);

/// The work of one stream that may not be finished, in order, and since when the first of it is where it is.
struct Queue {
  std::deque<std::shared_ptr<const Traced>> works;
  std::shared_ptr<const Traced> first;
  Progress progress = Progress::kFinished;
  Clock::time_point since;
  bool reported = false;

  /// Finds the first that is not finished. Asks the driver.
  void look(Clock::time_point now) {
    for (; !works.empty(); works.pop_front()) {
      const Progress found = works.front()->progress();
      if (found != Progress::kFinished) return note(works.front(), found, now);
    }
    note(nullptr, Progress::kFinished, now);
  }

  void note(const std::shared_ptr<const Traced>& work, Progress found, Clock::time_point now) {
    if (work == first && found == progress) return;
    first = work;
    progress = found;
    since = now;
    reported = false;
  }
};

class Watchdog {
 public:
  explicit Watchdog(Clock::duration limit) : limit_(limit) {
    std::thread([this] { work(); }).detach();  // a process may end without a shutdown
  }

  void add(const std::shared_ptr<const Traced>& work) {
    const std::lock_guard lock(mutex_);
    Queue& queue = queues_[&work->stream()];
    for (int i = 0; i < kLetGo && !queue.works.empty(); ++i) {
      if (queue.works.front()->progress() != Progress::kFinished) break;
      queue.works.pop_front();
    }
    queue.works.push_back(work);
  }

  void stop() {
    std::unique_lock lock(end_mutex_);
    ending_ = true;
    changed_.notify_all();
    changed_.wait_for(lock, kLastLook, [&] { return ended_; });
  }

 private:
  void work() {
    pthread_setname_np(pthread_self(), "ob watchdog");
    const auto interval = std::min<Clock::duration>(limit_ / kLooksPerLimit, kLongestInterval);
    std::unique_lock lock(end_mutex_);
    while (!changed_.wait_for(lock, interval, [&] { return ending_; })) {
      lock.unlock();
      look();
      lock.lock();
    }
    ended_ = true;
    changed_.notify_all();
  }

  void look() {
    const std::lock_guard lock(mutex_);
    const Clock::time_point now = Clock::now();
    // A driver that does not return from a call may hold a lock of its own: nothing more is asked of the device then.
    std::set<const Device*> in_calls;
    for (auto& [stream, queue] : queues_) {
      if (queue.works.empty() || !queue.works.front()->in_call()) continue;
      queue.note(queue.works.front(), Progress::kRunning, now);
      in_calls.insert(&stream->device());
    }
    for (auto& [stream, queue] : queues_) {
      if (in_calls.count(&stream->device()) == 0) queue.look(now);
    }
    for (auto& [stream, queue] : queues_) {
      if (queue.progress == Progress::kRunning && now - queue.since >= limit_) report(*stream, queue, now);
    }
    report_waiting(now);
  }

  /// What has not begun waits for what runs, as a rule, which is told of in its place. If nothing runs and nothing has
  /// changed anywhere, streams wait for one another, or for something that only the driver knows of.
  void report_waiting(Clock::time_point now) {
    const bool any_runs = std::any_of(queues_.begin(), queues_.end(), [&](const auto& each) {
      return each.second.progress == Progress::kRunning || now - each.second.since < limit_;
    });
    for (auto& [stream, queue] : queues_) {
      if (!any_runs && queue.progress == Progress::kWaiting) report(*stream, queue, now);
    }
  }

  static void report(const Stream& stream, Queue& queue, Clock::time_point now) {
    if (std::exchange(queue.reported, true)) return;
    const char* const state = queue.progress == Progress::kRunning ? "has been running" : "has been waiting";
    std::fprintf(
        stderr,
        "outboard: warning: device %d (%s), stream %lld: %s %s for %.1f s, and nothing behind it on the stream "
        "can run (OUTBOARD_WATCHDOG)\n",
        stream.device().index(), stream.device().properties().name, static_cast<long long>(stream.id()),
        queue.first->description().c_str(), state, std::chrono::duration<double>(now - queue.since).count());
  }

  const Clock::duration limit_;
  std::mutex mutex_;  // guards the queues
  std::map<const Stream*, Queue> queues_;
  std::mutex end_mutex_;
  std::condition_variable changed_;
  bool ending_ = false, ended_ = false;
};

Watchdog* watchdog = nullptr;  // set before there is work, and never destroyed

/// OUTBOARD_WATCHDOG in seconds; 0 where it is not set.
double watchdog_seconds() {
  const char* const text = std::getenv("OUTBOARD_WATCHDOG");
  if (text == nullptr || *text == '\0') return 0;
  char* end = nullptr;
  const double seconds = std::strtod(text, &end);
  if (*end == '\0' && seconds >= 0 && seconds < 1e9) return seconds;
  throw Error(OB_INVALID_ARGUMENT,
              std::string("OUTBOARD_WATCHDOG is '") + text + "': use a number of seconds, such as 30");
}

}  // namespace

void start_watchdog() {
  if (watchdog != nullptr) return;
  const double seconds = watchdog_seconds();
  if (seconds == 0) return;
  watchdog = new Watchdog(std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds)));
  observe(kWatched, true);
}

void stop_watchdog() noexcept {
  if (watchdog == nullptr) return;
  observe(kWatched, false);
  watchdog->stop();
}

void watch(const std::shared_ptr<const Traced>& work) {
  if (is_observed(kWatched)) watchdog->add(work);
}

}  // namespace outboard
