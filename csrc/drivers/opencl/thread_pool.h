// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace outboard::opencl {

/// Memory of one thread that grows and never shrinks, aligned for any vector.
class Scratch {
 public:
  static constexpr size_t kAlignment = 128;

  /// At least `bytes` bytes; what was there before is lost. Throws std::bad_alloc.
  void* reserve(size_t bytes);
  void* data() const { return memory_.get(); }

 private:
  struct Free {
    void operator()(void* memory) const;
  };
  std::unique_ptr<void, Free> memory_;
  size_t bytes_ = 0;
};

/// Threads that share the pieces of one job with whoever brings it. They look for work for a while before they sleep,
/// because waking a thread costs more than most jobs.
class ThreadPool {
 public:
  /// Does the parts [begin, end) of a job, with memory of the thread's own. Must not throw.
  using Work = void (*)(const void* job, void* scratch, uint64_t begin, uint64_t end);

  /// `threads` includes the caller of `run`; the others start with the first job that is shared.
  explicit ThreadPool(unsigned threads);
  /// The pool is never destroyed: its threads may run when the process ends.
  ~ThreadPool() = delete;

  unsigned threads() const { return others_ + 1; }
  /// True if the other threads would notice a job without being woken.
  bool awake() const { return asleep_.load(std::memory_order_relaxed) == 0; }
  /// Does parts 0 to `count` of a job, `scratch_bytes` for each thread, and returns when all are done. What another
  /// thread brings meanwhile, it does alone. Throws std::bad_alloc and std::system_error before anything is done.
  void run(uint64_t count, Work work, const void* job, size_t scratch_bytes);
  /// The same on the calling thread alone.
  static void run_alone(uint64_t count, Work work, const void* job, size_t scratch_bytes);

 private:
  struct Worker {
    unsigned number;
    Scratch scratch;
  };

  /// The parts of a job that one thread does, always the same ones if it can: what it wrote a moment ago lies in the
  /// caches of its core. It goes forward; who has nothing left to do takes from the end.
  struct alignas(64) Share {
    std::atomic<uint64_t> dealt{0};  // pieces from the front, and above 32 bits pieces from the end
    uint64_t begin = 0, end = 0;
  };

  void start();
  void serve(Worker& worker);
  uint64_t new_job(uint64_t last) const;
  uint64_t wait_for_job(uint64_t last);
  void set_shares(uint64_t count);
  void work_as(unsigned number, void* scratch);
  void deal(Share& share, bool own, void* scratch);
  void leave_callers_core() const;

  const unsigned others_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::mutex busy_;  // held by whoever shares a job

  // The job: written while `open_` is 0.
  Work work_ = nullptr;
  const void* job_ = nullptr;
  uint64_t piece_ = 0;
  std::vector<Share> shares_;  // the caller's first

  alignas(64) std::atomic<uint64_t> open_{0};    // number of the job that may be joined, or 0
  alignas(64) std::atomic<uint32_t> joined_{0};  // other threads at work
  uint64_t jobs_ = 0;

  std::atomic<int> callers_core_{-1};  // where the last job was brought from, or -1
  std::atomic<unsigned> asleep_;       // threads that must be woken; at first those that must be started
  std::mutex sleep_;
  std::condition_variable wake_;
};

}  // namespace outboard::opencl
