// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <unordered_map>

namespace outboard::common {

/// On a CPU, device memory is the host's. Pages of 2 MiB are cleared in a fraction of the time that as many small ones
/// take at their first use, and spare the kernels most misses of the address translation. Only an advice to the system.
void prefer_huge_pages(void* memory, uint64_t bytes);

/// Memory of the host that a thread touches before it is asked for. The system finds and clears pages when they are
/// touched first, and a virtual machine may have to get them from its host then: seconds per gibibyte, which would pass
/// within the first kernels.
class ExpectedMemory {
 public:
  /// Whether memory may be touched by another thread than will use it: not where this decides how far away it is.
  static bool helps();
  /// Bytes to allocate for `bytes` in whole pages of 2 MiB.
  static uint64_t with_edges(uint64_t bytes);

  /// `bytes` of memory that stay, and that nobody else uses. Starts the thread. What nobody takes for as long as
  /// `patience` was not needed after all, and goes back to the system.
  ExpectedMemory(void* memory, uint64_t bytes, std::chrono::milliseconds patience = std::chrono::minutes(1));
  /// Never destroyed: its thread may run when the process ends.
  ~ExpectedMemory() = delete;

  /// Part of the memory, ready or not, at a whole page; nullptr if too little is left.
  void* take(uint64_t bytes);
  /// Gives the pages of what `take` returned back to the system. False if `memory` is none of that.
  bool give_back(void* memory);

 private:
  void serve();
  void prepare(std::unique_lock<std::mutex>& lock);
  void return_rest(std::unique_lock<std::mutex>& lock);

  char* const begin_;
  const std::chrono::milliseconds patience_;
  std::mutex mutex_;
  std::condition_variable changed_;
  // Offsets into the memory: what is taken, what is ready, what there is.
  uint64_t taken_ = 0, ready_ = 0, end_;
  bool touching_ = false;  // the page at `ready_`
  std::unordered_map<void*, uint64_t> pieces_;
};

}  // namespace outboard::common
