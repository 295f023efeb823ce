// SPDX-License-Identifier: Apache-2.0
#include "opencl/thread_pool.h"

#ifdef __linux__
#include <sched.h>
#endif

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <new>
#include <thread>

namespace outboard::opencl {
namespace {

/// How long a thread looks for work before it sleeps.
constexpr auto kPatience = std::chrono::microseconds(100);
/// Looks in a row between looks at the clock.
constexpr int kLooks = 256;
/// Pieces per thread: enough that one who is late holds up the others little.
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

void ThreadPool::run_alone(uint64_t count, Work work, const void* job, size_t scratch_bytes) {
  thread_local Scratch scratch;
  work(job, scratch.reserve(scratch_bytes), 0, count);
}

void ThreadPool::run(uint64_t count, Work work, const void* job, size_t scratch_bytes) {
  std::unique_lock busy(busy_, std::try_to_lock);
  if (!busy || others_ == 0 || count < 2) return run_alone(count, work, job, scratch_bytes);
  if (workers_.empty()) start();
  for (const auto& worker : workers_) worker->scratch.reserve(scratch_bytes);
  thread_local Scratch scratch;
  void* const own = scratch.reserve(scratch_bytes);
  work_ = work;
  job_ = job;
  set_shares(count);
  callers_core_.store(current_core(), std::memory_order_relaxed);
  open_.store(++jobs_, std::memory_order_seq_cst);
  if (asleep_.load(std::memory_order_seq_cst) != 0) {
    std::lock_guard lock(sleep_);
    wake_.notify_all();
  }
  work_as(0, own);
  // Whoever joins from here on finds the job closed; whoever joined before is waited for.
  open_.store(0, std::memory_order_seq_cst);
  for (int look = 0; joined_.load(std::memory_order_seq_cst) != 0; ++look) {
    if (look < kLooks) {
      relax();
    } else {
      std::this_thread::yield();  // it may wait for this core
    }
  }
}

void ThreadPool::set_shares(uint64_t count) {
  piece_ = std::max<uint64_t>(1, count / (kPieces * threads()));
  uint64_t begin = 0;
  for (unsigned i = 0; i < threads(); ++i) {
    Share& share = shares_[i];
    share.dealt.store(0, std::memory_order_relaxed);
    share.begin = begin;
    share.end = begin = begin + (count - begin) / (threads() - i);
  }
}

void ThreadPool::work_as(unsigned number, void* scratch) {
  for (unsigned i = 0; i < threads(); ++i) deal(shares_[(number + i) % threads()], i == 0, scratch);
}

void ThreadPool::deal(Share& share, bool own, void* scratch) {
  const uint64_t pieces = (share.end - share.begin + piece_ - 1) / piece_;
  for (;;) {
    const uint64_t dealt = share.dealt.fetch_add(own ? 1 : kFromEnd, std::memory_order_relaxed);
    const uint64_t front = dealt % kFromEnd, back = dealt / kFromEnd;
    if (front + back >= pieces) return;
    const uint64_t begin = share.begin + piece_ * (own ? front : pieces - 1 - back);
    work_(job_, scratch, begin, std::min(begin + piece_, share.end));
  }
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
    last = wait_for_job(last);
    joined_.fetch_add(1, std::memory_order_seq_cst);
    if (open_.load(std::memory_order_seq_cst) == last) work_as(worker.number, worker.scratch.data());
    joined_.fetch_sub(1, std::memory_order_seq_cst);
  }
}

/// The number of the job that may be joined if it is not the last one, else 0.
uint64_t ThreadPool::new_job(uint64_t last) const {
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

uint64_t ThreadPool::wait_for_job(uint64_t last) {
  const auto begin = std::chrono::steady_clock::now();
  do {
    for (int look = 0; look < kLooks; ++look) {
      if (const uint64_t job = new_job(last); job != 0) return job;
      relax();
    }
    std::this_thread::yield();  // the core may be wanted
    leave_callers_core();
  } while (std::chrono::steady_clock::now() - begin < kPatience);
  std::unique_lock lock(sleep_);
  asleep_.fetch_add(1, std::memory_order_seq_cst);
  uint64_t job = new_job(last);
  for (; job == 0; job = new_job(last)) wake_.wait(lock);
  asleep_.fetch_sub(1, std::memory_order_relaxed);
  return job;
}

}  // namespace outboard::opencl
