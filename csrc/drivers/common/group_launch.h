// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "common/thread_pool.h"

namespace outboard::common {

struct GroupLaunch;

/// What a work-group of one kernel takes, learned from its launches. Thread-safe.
class GroupTime {
 public:
  /// Nanoseconds that so many groups would take one thread; UINT64_MAX if the kernel never ran.
  uint64_t expected(uint64_t groups) const;

 private:
  friend void run_groups(ThreadPool& pool, const GroupLaunch& launch);
  friend void run_groups(ThreadPool& pool, const GroupLaunch* launches, size_t count);

  float each() const { return each_.load(std::memory_order_relaxed); }
  void expect(float nanoseconds) { each_.store(nanoseconds, std::memory_order_relaxed); }

  std::atomic<float> each_{0};         // nanoseconds of a group on one thread; 0 if unknown
  std::atomic<uint32_t> launches_{0};  // about so many
};

/// The work-groups of a launch, as parts of a job for threads.
struct GroupLaunch {
  ThreadPool::Job job;
  GroupTime* time;  // of the kernel
};

/// Runs a launch and returns when it is done: on the calling thread alone where others would come too late to help.
/// Throws std::bad_alloc and std::system_error before it runs.
void run_groups(ThreadPool& pool, const GroupLaunch& launch);

/// The same for launches that do not depend on one another: threads that are done with one go on with the next.
void run_groups(ThreadPool& pool, const GroupLaunch* launches, size_t count);

/// Groups in a dimension. Local sizes are mostly 1 on a CPU, and a division takes as long as much of the rest of a
/// launch.
inline uint64_t group_count(uint64_t global, uint64_t local) { return local == 1 ? global : global / local; }

}  // namespace outboard::common
