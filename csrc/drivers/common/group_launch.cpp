// SPDX-License-Identifier: Apache-2.0
#include "common/group_launch.h"

#include <algorithm>
#include <chrono>
#include <vector>

namespace outboard::common {
namespace {

using Clock = std::chrono::steady_clock;

/// Shorter launches are done before another thread has noticed them, or has been woken.
constexpr uint64_t kWorthSharing = 6000, kWorthWaking = 30000;  // ns
/// Launches of one group of which one is timed: looking at the clock twice takes as long as the smallest kernels.
constexpr uint32_t kTimedEvery = 16;

bool worth_sharing(const ThreadPool& pool, uint64_t nanoseconds) {
  return nanoseconds >= (pool.awake() ? kWorthSharing : kWorthWaking);
}

float nanoseconds_since(Clock::time_point begin) {
  return std::chrono::duration<float, std::nano>(Clock::now() - begin).count();
}

}  // namespace

uint64_t GroupTime::expected(uint64_t groups) const {
  const float nanoseconds = each();
  return nanoseconds == 0 ? UINT64_MAX : static_cast<uint64_t>(nanoseconds * static_cast<float>(groups));
}

void run_groups(ThreadPool& pool, const GroupLaunch& launch) {
  GroupTime& time = *launch.time;
  const uint64_t groups = launch.job.count;
  const uint32_t launches = time.launches_.load(std::memory_order_relaxed);
  time.launches_.store(launches + 1, std::memory_order_relaxed);
  if (groups < 2 && launches % kTimedEvery != 0) return ThreadPool::run_alone(launch.job);
  const bool shared = groups > 1 && worth_sharing(pool, time.expected(groups));
  const auto begin = Clock::now();
  if (shared) {
    pool.run(launch.job);
  } else {
    ThreadPool::run_alone(launch.job);
  }
  const float elapsed = nanoseconds_since(begin);
  const float threads = shared ? static_cast<float>(std::min<uint64_t>(pool.threads(), groups)) : 1.0f;
  if (groups > 0) time.expect(elapsed * threads / static_cast<float>(groups));
}

void run_groups(ThreadPool& pool, const GroupLaunch* launches, size_t count) {
  struct Known {
    GroupTime* time;
    float each;
  };
  std::vector<Known> known;  // of which it is known how long they take
  std::vector<ThreadPool::Job> jobs;
  known.reserve(count);
  float expected = 0;
  for (size_t i = 0; i < count; ++i) {
    const float each = launches[i].time->each();
    if (each == 0) {
      run_groups(pool, launches[i]);
      continue;
    }
    expected += each * static_cast<float>(launches[i].job.count);
    known.push_back({launches[i].time, each});
    jobs.push_back(launches[i].job);
  }
  if (expected == 0) return;
  const bool shared = worth_sharing(pool, static_cast<uint64_t>(expected));
  const auto begin = Clock::now();
  if (shared) {
    pool.run(jobs.data(), jobs.size());
  } else {
    ThreadPool::run_alone(jobs.data(), jobs.size());
  }
  // Which took how much of it is not known: all are taken to be as much slower or faster than expected.
  const float threads = shared ? static_cast<float>(pool.threads()) : 1.0f;
  const float factor = nanoseconds_since(begin) * threads / expected;
  for (const Known& launch : known) launch.time->expect(launch.each * factor);
}

}  // namespace outboard::common
