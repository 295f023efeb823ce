// SPDX-License-Identifier: Apache-2.0
#include "common/thread_pool.h"

#ifdef __linux__
#include <sched.h>
#endif

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <new>
#include <thread>

namespace outboard::common {
namespace {

/// How long a thread looks for work before it sleeps.
constexpr auto kPatience = std::chrono::microseconds(100);
/// Looks in a row between looks at the clock.
constexpr int kLooks = 256;
/// Pieces of a thread's share: enough that a late thread hardly holds up the others.
constexpr uint64_t kPieces = 16;
/// One piece from the end of a share.
constexpr uint64_t kFromEnd = uint64_t{1} << 32;

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

/// The core that this thread runs on, or -1 if that is not known.
int current_core() {
#ifdef __linux__
  return sched_getcpu();
#else
  return -1;
#endif
}

}  // namespace

void Scratch::Free::operator()(void* memory) const { std::free(memory); }

void* Scratch::reserve(size_t bytes) {
  if (bytes <= bytes_) return memory_.get();
  const size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  memory_.reset(std::aligned_alloc(kAlignment, rounded));
  bytes_ = memory_ == nullptr ? 0 : rounded;
  if (memory_ == nullptr) throw std::bad_alloc();
  return memory_.get();
}

ThreadPool::ThreadPool(unsigned threads)
    : others_(threads == 0 ? 0 : threads - 1), shares_(others_ + 1), asleep_(others_) {}

namespace {

size_t scratch_of(const ThreadPool::Job* jobs, size_t number) {
  size_t bytes = 0;
  for (size_t i = 0; i < number; ++i) bytes = std::max(bytes, jobs[i].scratch_bytes);
  return bytes;
}

}  // namespace

void ThreadPool::run_alone(const Job* jobs, size_t number) {
  thread_local Scratch scratch;
  void* const own = scratch.reserve(scratch_of(jobs, number));
  for (size_t i = 0; i < number; ++i) jobs[i].function(jobs[i].job, own, 0, jobs[i].count);
}

void ThreadPool::run(const Job* jobs, size_t number) {
  std::unique_lock busy(busy_, std::try_to_lock);
  const bool shared = number > 1 || (number == 1 && jobs[0].count > 1);
  if (!busy || others_ == 0 || !shared) return run_alone(jobs, number);
  if (workers_.empty()) start();
  const size_t scratch_bytes = scratch_of(jobs, number);
  for (const auto& worker : workers_) worker->scratch.reserve(scratch_bytes);
  thread_local Scratch scratch;
  void* const own = scratch.reserve(scratch_bytes);
  open(jobs, number);
  work_as(0, own);
  close();
}

/// Lets the other threads join.
void ThreadPool::open(const Job* jobs, size_t number) {
  jobs_ = jobs;
  number_ = number;
  pieces_ = 1;
  for (size_t i = 0; i < number; ++i) {
    pieces_ = std::max(pieces_, std::min(kPieces, (jobs[i].count + threads() - 1) / threads()));
  }
  for (Share& share : shares_) share.dealt.store(0, std::memory_order_relaxed);
  callers_core_.store(current_core(), std::memory_order_relaxed);
  open_.store(++runs_, std::memory_order_seq_cst);
  if (asleep_.load(std::memory_order_seq_cst) == 0) return;
  std::lock_guard lock(sleep_);
  wake_.notify_all();
}

/// Threads that join from here on find nothing. Those that joined before are waited for.
void ThreadPool::close() {
  open_.store(0, std::memory_order_seq_cst);
  for (int look = 0; joined_.load(std::memory_order_seq_cst) != 0; ++look) {
    if (look < kLooks) {
      relax();
    } else {
      std::this_thread::yield();  // it may wait for this core
    }
  }
}

void ThreadPool::work_as(unsigned number, void* scratch) {
  for (unsigned i = 0; i < threads(); ++i) deal((number + i) % threads(), i == 0, scratch);
}

void ThreadPool::deal(unsigned owner, bool own, void* scratch) {
  const uint64_t pieces = number_ * pieces_;
  for (;;) {
    const uint64_t dealt = shares_[owner].dealt.fetch_add(own ? 1 : kFromEnd, std::memory_order_relaxed);
    const uint64_t front = dealt % kFromEnd, back = dealt / kFromEnd;
    if (front + back >= pieces) return;
    do_piece(owner, own ? front : pieces - 1 - back, scratch);
  }
}

/// Pieces of a share are numbered through all jobs. In jobs with fewer parts some are empty.
void ThreadPool::do_piece(unsigned owner, uint64_t piece, void* scratch) const {
  const Job& job = jobs_[piece / pieces_];
  const uint64_t place = piece % pieces_;
  const uint64_t first = job.count * owner / threads(), parts = job.count * (owner + 1) / threads() - first;
  const uint64_t begin = parts * place / pieces_, end = parts * (place + 1) / pieces_;
  if (begin < end) job.function(job.job, scratch, first + begin, first + end);
}

void ThreadPool::start() {
  workers_.reserve(others_);
  asleep_.store(0, std::memory_order_seq_cst);
  while (workers_.size() < others_) {
    auto worker = std::make_unique<Worker>();
    worker->number = static_cast<unsigned>(workers_.size()) + 1;
    std::thread([this, &worker = *worker] { serve(worker); }).detach();  // a process may end without a shutdown
    workers_.push_back(std::move(worker));
  }
}

void ThreadPool::serve(Worker& worker) {
  for (uint64_t last = 0;;) {
    last = wait_for_run(last);
    joined_.fetch_add(1, std::memory_order_seq_cst);
    if (open_.load(std::memory_order_seq_cst) == last) work_as(worker.number, worker.scratch.data());
    joined_.fetch_sub(1, std::memory_order_seq_cst);
  }
}

/// The number of the run that may be joined if it is not the last one, else 0.
uint64_t ThreadPool::new_run(uint64_t last) const {
  const uint64_t open = open_.load(std::memory_order_seq_cst);
  return open == last ? 0 : open;
}

/// Moves to another core if jobs come from this one. Here the thread would get its share of a job when the job is done:
/// schedulers leave threads that ran a moment ago where they are, even while another core has nothing to do.
void ThreadPool::leave_callers_core() const {
#ifdef __linux__
  const int core = callers_core_.load(std::memory_order_relaxed);
  if (core < 0 || core != current_core()) return;
  cpu_set_t allowed, others;
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return;
  others = allowed;
  CPU_CLR(core, &others);
  if (CPU_COUNT(&others) == 0 || sched_setaffinity(0, sizeof(others), &others) != 0) return;
  sched_setaffinity(0, sizeof(allowed), &allowed);  // it has moved, and may be moved again
#endif
}

uint64_t ThreadPool::wait_for_run(uint64_t last) {
  const auto begin = std::chrono::steady_clock::now();
  do {
    for (int look = 0; look < kLooks; ++look) {
      if (const uint64_t run = new_run(last); run != 0) return run;
      relax();
    }
    std::this_thread::yield();  // the core may be wanted
    leave_callers_core();
  } while (std::chrono::steady_clock::now() - begin < kPatience);
  std::unique_lock lock(sleep_);
  asleep_.fetch_add(1, std::memory_order_seq_cst);
  uint64_t run = new_run(last);
  for (; run == 0; run = new_run(last)) wake_.wait(lock);
  asleep_.fetch_sub(1, std::memory_order_relaxed);
  return run;
}

}  // namespace outboard::common
