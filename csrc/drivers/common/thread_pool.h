// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace outboard::common {

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

/// Threads that share the pieces of jobs with the thread that brings them. They look for work for a while before they
/// sleep, because waking a thread costs more than most jobs.
class ThreadPool {
 public:
  /// Does the parts [begin, end) of a job, with memory of the thread's own. Must not throw.
  using Function = void (*)(const void* job, void* scratch, uint64_t begin, uint64_t end);

  /// Parts 0 to `count` of something, in any order.
  struct Job {
    uint64_t count;
    Function function;
    const void* job;
    size_t scratch_bytes;  // for each thread
  };

  /// `threads` includes the caller of `run`; the others start with the first job that is shared.
  explicit ThreadPool(unsigned threads);
  /// The pool is never destroyed: its threads may run when the process ends.
  ~ThreadPool() = delete;

  unsigned threads() const { return others_ + 1; }
  /// True if the other threads would notice jobs without being woken.
  bool awake() const { return asleep_.load(std::memory_order_relaxed) == 0; }
  /// Does jobs and returns when all are done. A thread that has done its share of one goes on with the next: jobs of
  /// one call wait for each other only at the end. A call of another thread meanwhile does its jobs alone. Throws
  /// std::bad_alloc and std::system_error before anything is done.
  void run(const Job* jobs, size_t number);
  void run(const Job& job) { run(&job, 1); }
  /// The same on the calling thread alone.
  static void run_alone(const Job* jobs, size_t number);
  static void run_alone(const Job& job) { run_alone(&job, 1); }

 private:
  struct Worker {
    unsigned number;
    Scratch scratch;
  };

  /// The parts of each job that one thread does, always the same ones if it can: what it wrote a moment ago lies in the
  /// caches of its core. It goes forward, job after job; a thread with nothing left takes from the end.
  struct alignas(64) Share {
    std::atomic<uint64_t> dealt{0};  // pieces from the front, and above 32 bits pieces from the end
  };

  void start();
  void serve(Worker& worker);
  uint64_t new_run(uint64_t last) const;
  uint64_t wait_for_run(uint64_t last);
  void open(const Job* jobs, size_t number);
  void close();
  void work_as(unsigned number, void* scratch);
  void deal(unsigned owner, bool own, void* scratch);
  void do_piece(unsigned owner, uint64_t piece, void* scratch) const;
  void leave_callers_core() const;

  const unsigned others_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::mutex busy_;  // held by the thread that shares a job

  // The jobs: written while `open_` is 0.
  const Job* jobs_ = nullptr;
  size_t number_ = 0;
  uint64_t pieces_ = 0;        // of a thread's share of one job
  std::vector<Share> shares_;  // the caller's first

  alignas(64) std::atomic<uint64_t> open_{0};    // number of the run that may be joined, or 0
  alignas(64) std::atomic<uint32_t> joined_{0};  // other threads at work
  uint64_t runs_ = 0;

  std::atomic<int> callers_core_{-1};  // where the last jobs were brought from, or -1
  std::atomic<unsigned> asleep_;       // threads that must be woken; at first those that must be started
  std::mutex sleep_;
  std::condition_variable wake_;
};

}  // namespace outboard::common
