// SPDX-License-Identifier: Apache-2.0
/// What is taken away from readers without a lock stays until none of them can be reading it.
#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "check.h"
#include "runtime/base/reclamation.h"

using namespace outboard;

namespace {

/// Counts how many of its kind there are, and spoils itself in the end.
struct Number {
  explicit Number(int value_) : value(value_) { ++live; }
  ~Number() {
    value = -1;
    --live;
  }
  std::atomic<int> value;
  static inline std::atomic<int> live{0};
};

}  // namespace

TEST(who_reads_keeps_what_was_taken_away) {
  Reclaimer reclaimer;
  Reclaimer::Reader reader(reclaimer);
  {
    const Reclaimer::Section outer(reader);
    {
      const Reclaimer::Section inner(reader);
      reclaimer.retire({std::make_shared<Number>(1)});
    }
    reclaimer.collect();
    CHECK_EQ(Number::live, 1);  // the outer one still reads
  }
  CHECK_EQ(reclaimer.kept(), 1u);
  const Reclaimer::Section later(reader);  // began after it was taken away
  reclaimer.collect();
  CHECK_EQ(Number::live, 0);
  CHECK_EQ(reclaimer.kept(), 0u);
}

TEST(without_readers_nothing_is_kept) {
  Reclaimer reclaimer;
  const Reclaimer::Reader idle(reclaimer);
  reclaimer.retire({std::make_shared<Number>(1), std::make_shared<Number>(2)});
  reclaimer.collect();
  CHECK_EQ(Number::live, 0);
}

TEST(a_thread_that_ended_reads_nothing) {
  Reclaimer reclaimer;
  {
    Reclaimer::Reader reader(reclaimer);
    const Reclaimer::Section section(reader);
    reclaimer.retire({std::make_shared<Number>(1)});
    reclaimer.collect();
    CHECK_EQ(Number::live, 1);
  }
  reclaimer.collect();
  CHECK_EQ(Number::live, 0);
}

TEST(readers_never_find_what_is_gone) {
  constexpr int kReaders = 3, kChanges = 20000;
  Reclaimer reclaimer;
  std::atomic<const Number*> current{nullptr};
  auto held = std::make_shared<const Number>(0);
  current = held.get();
  std::atomic<bool> ends{false};
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < kReaders; ++i) {
    threads.emplace_back([&] {
      Reclaimer::Reader reader(reclaimer);
      while (!ends) {
        const Reclaimer::Section section(reader);
        const Number* const found = current.load(std::memory_order_acquire);
        for (int look = 0; look < 20; ++look) wrong += found->value.load(std::memory_order_relaxed) < 0 ? 1 : 0;
      }
    });
  }
  for (int change = 1; change <= kChanges; ++change) {
    auto next = std::make_shared<const Number>(change);
    current.store(next.get(), std::memory_order_release);
    reclaimer.retire({std::exchange(held, std::move(next))});
    reclaimer.collect();
  }
  ends = true;
  for (std::thread& thread : threads) thread.join();
  CHECK_EQ(wrong, 0);
  reclaimer.collect();
  CHECK_EQ(Number::live, 1);
}

int main() { return check::run_all(); }
