// SPDX-License-Identifier: Apache-2.0
#ifdef __linux__
#include <sched.h>
#endif

#include <atomic>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "check.h"
#include "common/thread_pool.h"

/// The pool that runs kernels: every part of a job is done once, by whoever comes first.
using outboard::common::Scratch;
using outboard::common::ThreadPool;

namespace {

struct Count {
  explicit Count(uint64_t parts) : done(parts) {}
  std::vector<std::atomic<int>> done;
};

void count_parts(const void* job, void* scratch, uint64_t begin, uint64_t end) {
  auto& count = *const_cast<Count*>(static_cast<const Count*>(job));
  if (scratch != nullptr) std::memset(scratch, 1, 64);
  for (uint64_t i = begin; i < end; ++i) count.done[i].fetch_add(1, std::memory_order_relaxed);
}

bool each_once(const Count& count) {
  for (const auto& part : count.done) {
    if (part.load(std::memory_order_relaxed) != 1) return false;
  }
  return true;
}

ThreadPool& pool() {
  static ThreadPool* const instance = new ThreadPool(4);  // never destroyed, as its threads
  return *instance;
}

void wait_at_first(const void* job, void*, uint64_t begin, uint64_t) {
  auto& arrived = *const_cast<std::atomic<int>*>(static_cast<const std::atomic<int>*>(job));
  if (begin < 4) arrived.fetch_add(1);
  while (arrived.load() < 4) std::this_thread::yield();  // passes only if all threads take part
}

struct Fronts {
  std::mutex lock;
  std::map<std::thread::id, uint64_t> first;
};

void note_first(const void* job, void*, uint64_t begin, uint64_t) {
  auto& fronts = *const_cast<Fronts*>(static_cast<const Fronts*>(job));
  const auto arrived = [&fronts] {
    std::lock_guard lock(fronts.lock);
    return fronts.first.size();
  };
  {
    std::lock_guard lock(fronts.lock);
    fronts.first.emplace(std::this_thread::get_id(), begin);
  }
  while (arrived() < 4) std::this_thread::yield();  // nobody has a second piece before all have a first one
}

}  // namespace

TEST(each_thread_begins_with_the_same_share_of_each_job) {
  std::map<std::thread::id, uint64_t> before;
  for (int round = 0; round < 5; ++round) {
    Fronts fronts;
    pool().run({64, note_first, &fronts, 0});
    std::set<uint64_t> begins;
    for (const auto& [thread, begin] : fronts.first) begins.insert(begin);
    CHECK(begins == (std::set<uint64_t>{0, 16, 32, 48}));
    CHECK_EQ(fronts.first.at(std::this_thread::get_id()), 0u);
    CHECK(round == 0 || fronts.first == before);
    before = fronts.first;
  }
}

TEST(each_part_is_done_once) {
  for (const uint64_t parts : {0, 1, 2, 3, 7, 64, 1000, 4097}) {
    Count count(parts);
    pool().run({parts, count_parts, &count, 64});
    CHECK(each_once(count));
  }
}

TEST(all_threads_take_part) {
  std::atomic<int> arrived{0};
  pool().run({4, wait_at_first, &arrived, 0});
  CHECK_EQ(arrived.load(), 4);
}

TEST(threads_that_fell_asleep_come_back) {
  for (int round = 0; round < 5; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    std::atomic<int> arrived{0};
    pool().run({4, wait_at_first, &arrived, 0});
    CHECK_EQ(arrived.load(), 4);
  }
}

TEST(jobs_from_several_threads_do_not_mix) {
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 2000; ++i) {
        Count count(static_cast<uint64_t>(i % 37));
        pool().run({count.done.size(), count_parts, &count, 64});
        if (!each_once(count)) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK_EQ(wrong.load(), 0);
}

TEST(each_part_of_each_job_is_done_once) {
  for (const std::vector<uint64_t>& sizes : std::vector<std::vector<uint64_t>>{
           {}, {0}, {1}, {0, 0}, {1, 1}, {7, 0, 1, 1000}, {4097, 3}, std::vector<uint64_t>(100, 8)}) {
    std::deque<Count> counts;
    std::vector<ThreadPool::Job> jobs;
    for (const uint64_t parts : sizes) jobs.push_back({parts, count_parts, &counts.emplace_back(parts), 64});
    pool().run(jobs.data(), jobs.size());
    for (const Count& count : counts) CHECK(each_once(count));
    ThreadPool::run_alone(jobs.data(), jobs.size());
    for (const Count& count : counts) {
      for (const auto& part : count.done) CHECK_EQ(part.load(), 2);
    }
  }
}

TEST(threads_go_on_with_the_next_job_without_waiting_for_each_other) {
  for (int round = 0; round < 20; ++round) {
    // Part 0 of the first job ends when another thread is done with the last one.
    struct Shared {
      std::atomic<int> last_done{0};
    } shared;
    const auto wait_for_last = [](const void* job, void*, uint64_t begin, uint64_t) {
      if (begin != 0) return;
      while (static_cast<const Shared*>(job)->last_done.load() == 0) std::this_thread::yield();
    };
    const auto be_last = [](const void* job, void*, uint64_t, uint64_t) {
      const_cast<Shared*>(static_cast<const Shared*>(job))->last_done.fetch_add(1);
    };
    Count between(64);
    const ThreadPool::Job jobs[] = {
        {4, wait_for_last, &shared, 0}, {64, count_parts, &between, 64}, {4, be_last, &shared, 0}};
    pool().run(jobs, 3);
    CHECK_EQ(shared.last_done.load(), 4);
    CHECK(each_once(between));
  }
}

TEST(batches_from_several_threads_do_not_mix) {
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 500; ++i) {
        std::deque<Count> counts;
        std::vector<ThreadPool::Job> jobs;
        for (int k = 0; k < (i + t) % 7; ++k) {
          Count& count = counts.emplace_back(static_cast<uint64_t>((i * 5 + k * 11) % 37));
          jobs.push_back({count.done.size(), count_parts, &count, 64});
        }
        pool().run(jobs.data(), jobs.size());
        for (const Count& count : counts) wrong += each_once(count) ? 0 : 1;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK_EQ(wrong.load(), 0);
}

#ifdef __linux__
cpu_set_t allowed_cores() {
  cpu_set_t cores;
  sched_getaffinity(0, sizeof(cores), &cores);
  return cores;
}

void count_restricted(const void* job, void*, uint64_t, uint64_t) {
  const auto& [caller, cores, restricted] =
      *static_cast<const std::tuple<std::thread::id, cpu_set_t, std::atomic<int>*>*>(job);
  const cpu_set_t mine = allowed_cores();
  if (std::this_thread::get_id() != caller && !CPU_EQUAL(&mine, &cores)) ++*restricted;
}

TEST(threads_leave_the_callers_core_and_stay_free) {
  const cpu_set_t cores = allowed_cores();
  std::atomic<int> restricted{0};
  const std::tuple<std::thread::id, cpu_set_t, std::atomic<int>*> job{std::this_thread::get_id(), cores, &restricted};
  pool().run({4, count_restricted, &job, 0});  // the threads start, with all cores
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (!CPU_ISSET(core, &cores)) continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    CHECK_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
    for (int i = 0; i < 200; ++i) pool().run({64, count_restricted, &job, 0});
    std::atomic<int> arrived{0};
    pool().run({4, wait_at_first, &arrived, 0});
    CHECK_EQ(arrived.load(), 4);
  }
  CHECK_EQ(sched_setaffinity(0, sizeof(cores), &cores), 0);
  CHECK_EQ(restricted.load(), 0);
}
#endif

TEST(a_pool_of_one_is_the_caller) {
  ThreadPool* const alone = new ThreadPool(1);  // never destroyed, as any pool
  Count count(100);
  alone->run({100, count_parts, &count, 0});
  CHECK(each_once(count));
  CHECK_EQ(alone->threads(), 1u);
}

TEST(scratch_grows_and_is_aligned) {
  Scratch scratch;
  for (const size_t bytes : {1, 100, 1 << 20, 5}) {
    void* memory = scratch.reserve(bytes);
    CHECK_EQ(reinterpret_cast<uintptr_t>(memory) % Scratch::kAlignment, 0u);
    std::memset(memory, 1, bytes);
  }
}

int main() { return check::run_all(); }
