// SPDX-License-Identifier: Apache-2.0
#include <thread>
#include <vector>

#include "check.h"
#include "runtime/base/memory_lock.h"

using namespace outboard;

namespace {

/// Calls `step` so many times on each of some threads at once.
template <typename Step>
void on_threads(int threads, int times, Step&& step) {
  std::vector<std::thread> running;
  for (int i = 0; i < threads; ++i) {
    running.emplace_back([&] {
      for (int k = 0; k < times; ++k) step();
    });
  }
  for (std::thread& thread : running) thread.join();
}

}  // namespace

TEST(a_light_mutex_excludes) {
  constexpr int kThreads = 4, kTimes = 20000;
  LightMutex mutex;
  int count = 0;  // plain: lost updates show two threads inside
  on_threads(kThreads, kTimes, [&] {
    mutex.lock();
    ++count;
    mutex.unlock();
  });
  CHECK_EQ(count, kThreads * kTimes);
}

TEST(whoever_waits_for_a_light_mutex_is_woken) {
  LightMutex mutex;
  for (int round = 0; round < 50; ++round) {
    mutex.lock();
    int entered = 0;
    std::vector<std::thread> waiting;
    for (int i = 0; i < 3; ++i) {
      waiting.emplace_back([&] {
        mutex.lock();
        ++entered;
        mutex.unlock();
      });
    }
    if (round % 2 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));  // now they sleep
    mutex.unlock();
    for (std::thread& thread : waiting) thread.join();
    CHECK_EQ(entered, 3);
  }
}

TEST(a_memory_lock_nests_and_is_given_up_whole) {
  MemoryLock lock;
  lock.lock();
  lock.lock();
  CHECK(!lock.outermost());
  int entered = 0;
  std::thread other([&] {
    lock.lock();
    entered = 1;
    lock.unlock();
  });
  while (entered == 0) lock.yield_for(std::chrono::milliseconds(1));
  CHECK(!lock.outermost());
  lock.unlock();
  CHECK(lock.outermost());
  lock.unlock();
  other.join();
}

int main() { return check::run_all(); }
