// SPDX-License-Identifier: Apache-2.0
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "fixture.h"
#include "runtime/base/error.h"
#include "runtime/base/interruption.h"

/// Streams, events, and what happens when the process forks or ends in the middle of work.
using namespace outboard;
using fixture::device;

namespace {

float first(Allocation& allocation) { return fixture::download(allocation, 1)[0]; }

}  // namespace

TEST(synchronize_waits_for_the_work) {
  Stream& stream = device().pool_stream();
  const fixture::Holder x = fixture::upload({0});
  fixture::keep_busy(stream, Pin(*x, stream).pointer());
  CHECK(!stream.query());
  stream.synchronize();
  CHECK(stream.query());
  CHECK_EQ(first(*x), 1.0f);
}

TEST(query_becomes_true_without_waiting) {
  Stream& stream = device().pool_stream();
  const fixture::Holder x = fixture::upload({0});
  fixture::keep_busy(stream, Pin(*x, stream).pointer());
  uint64_t asked = 0;
  while (!stream.query()) {
    ++asked;
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  CHECK(asked > 0);
  CHECK_EQ(first(*x), 1.0f);
}

TEST(an_idle_stream_costs_no_driver_call) {
  Stream& stream = device().pool_stream();
  stream.synchronize();
  const uint64_t before = fixture::calls("stream_wait");
  for (int i = 0; i < 10; ++i) {
    stream.synchronize();
    CHECK(stream.query());
  }
  CHECK_EQ(fixture::calls("stream_wait"), before);
}

TEST(two_threads_may_wait_for_one_stream) {
  Stream& stream = device().pool_stream();
  const fixture::Holder x = fixture::upload({0});
  const ob_ptr pointer = Pin(*x, stream).pointer();
  for (int round = 1; round <= 3; ++round) {
    fixture::keep_busy(stream, pointer);
    std::atomic<int> wrong{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&] {
        stream.synchronize();
        float value = 0;
        std::memcpy(&value, reinterpret_cast<const void*>(pointer), sizeof(value));
        if (device().host_accessible() && value != static_cast<float>(round)) ++wrong;
      });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK_EQ(wrong.load(), 0);
  }
}

TEST(copies_and_fills_keep_the_order_of_the_stream) {
  Stream& stream = device().pool_stream();
  const fixture::Holder x = fixture::upload({5, 5, 5, 5}), y = fixture::upload({0, 0, 0, 0});
  const ob_ptr from = Pin(*x, stream).pointer(), to = Pin(*y, stream).pointer();
  fixture::keep_busy(stream, from);                // x[0] = 6
  stream.copy(OB_DEVICE_TO_DEVICE, to, from, 16);  // y = 6 5 5 5
  const float two = 2;
  stream.fill(from, &two, sizeof(two), 16);             // x = 2 2 2 2
  fixture::keep_busy(stream, from);                     // x[0] = 3
  stream.copy(OB_DEVICE_TO_DEVICE, to + 12, from, 4);   // y = 6 5 5 3
  stream.copy(OB_DEVICE_TO_DEVICE, from + 4, from, 8);  // x = 3 3 2 2: source and target overlap
  stream.synchronize();
  CHECK(fixture::download(*y, 4) == (std::vector<float>{6, 5, 5, 3}));
  CHECK(fixture::download(*x, 4) == (std::vector<float>{3, 3, 2, 2}));
}

TEST(fills_repeat_any_pattern) {
  Stream& stream = device().default_stream();
  const fixture::Holder x = fixture::upload(std::vector<float>(16, 0));
  const ob_ptr memory = Pin(*x, stream).pointer();
  for (const uint32_t size : {1u, 2u, 4u, 8u, 16u}) {
    for (const bool busy : {false, true}) {
      const fixture::Holder other = fixture::upload({0});
      if (busy) fixture::keep_busy(stream, Pin(*other, stream).pointer());
      unsigned char pattern[16], host[64];
      for (uint32_t i = 0; i < size; ++i) pattern[i] = static_cast<unsigned char>(size + i);
      const unsigned char zero = 0;
      stream.fill(memory, &zero, 1, 64);
      stream.fill(memory + 16, pattern, size, 3 * size);
      stream.copy(OB_DEVICE_TO_HOST, reinterpret_cast<uint64_t>(host), memory, 64);
      stream.synchronize();
      for (uint32_t i = 0; i < 64; ++i) {
        const bool inside = i >= 16 && i < 16 + 3 * size;
        CHECK_EQ(int{host[i]}, inside ? static_cast<int>(pattern[(i - 16) % size]) : 0);
      }
    }
  }
}

TEST(an_event_orders_two_streams) {
  Stream &a = device().pool_stream(), &b = device().pool_stream();
  const fixture::Holder x = fixture::upload({0}), y = fixture::upload({0});
  fixture::keep_busy(a, Pin(*x, a).pointer());
  Event event(device());
  event.record(a);
  CHECK(!event.query());
  b.wait(event);
  b.copy(OB_DEVICE_TO_DEVICE, Pin(*y, b).pointer(), Pin(*x, b).pointer(), 4);
  b.synchronize();
  CHECK(event.query());
  CHECK_EQ(first(*y), 1.0f);
}

TEST(streams_that_wait_for_each_other_in_turn) {
  Stream &a = device().pool_stream(), &b = device().pool_stream();
  const fixture::Holder x = fixture::upload({0});
  const ob_ptr pointer = Pin(*x, a).pointer();
  for (int round = 0; round < 50; ++round) {
    fixture::keep_busy(a, pointer);
    Event mine(device()), other(device());
    mine.record(a);
    b.wait(mine);
    fixture::keep_busy(b, pointer);
    other.record(b);
    a.wait(other);
  }
  a.synchronize();
  CHECK_EQ(first(*x), 100.0f);
}

TEST(events_measure_the_work_between_them) {
  Stream& stream = device().pool_stream();
  const fixture::Holder x = fixture::upload({0});
  Event start(device()), middle(device()), end(device());
  CHECK(start.query());
  CHECK_THROWS(start.elapsed_ms(end), Error);
  start.record(stream);
  middle.record(stream);
  fixture::keep_busy(stream, Pin(*x, stream).pointer());
  end.record(stream);
  CHECK_THROWS(start.elapsed_ms(end), Error);  // not reached yet
  end.synchronize();
  CHECK(start.elapsed_ms(end) > 2);
  CHECK(start.elapsed_ms(middle) < start.elapsed_ms(end));
  start.record(stream);  // an event may be recorded again
  start.synchronize();
  CHECK(start.elapsed_ms(end) <= 0);
}

TEST(memory_of_another_stream_is_not_reused_too_early) {
  CachingAllocator& allocator = device().allocator();
  Stream &home = device().pool_stream(), &other = device().pool_stream();
  const fixture::Holder x = fixture::upload({0});
  Block* block = device().residency().allocate(3 << 20, home);
  const ob_ptr pointer = block->ptr;
  allocator.record_stream(block, other);
  fixture::keep_busy(other, Pin(*x, other).pointer());
  allocator.free(block);
  Block* meanwhile = device().residency().allocate(3 << 20, home);
  CHECK(meanwhile->ptr != pointer);
  other.synchronize();
  Block* later = device().residency().allocate(3 << 20, home);
  CHECK_EQ(later->ptr, pointer);
  allocator.free(meanwhile);
  allocator.free(later);
}

TEST(a_failing_event_costs_time_not_correctness) {
  CachingAllocator& allocator = device().allocator();
  Stream &home = device().pool_stream(), &other = device().pool_stream();
  for (const char* function : {"event_create", "event_record"}) {
    const fixture::Holder x = fixture::upload({0});
    allocator.empty_cache();  // also takes back what other tests left waiting
    const int64_t active = allocator.statistics().active.current;
    Block* block = device().residency().allocate(1000, home);
    allocator.record_stream(block, other);
    fixture::keep_busy(other, Pin(*x, other).pointer());
    fixture::fail(function, 1, OB_INTERNAL);
    const ob_ptr pointer = block->ptr;
    allocator.free(block);
    Block* meanwhile = device().residency().allocate(1000, home);
    CHECK(meanwhile->ptr != pointer || other.query());
    allocator.free(meanwhile);
    try {
      other.synchronize();
    } catch (const Error& error) {
      CHECK(std::string(function) == "event_record");  // the stream's thread met it
    }
    allocator.empty_cache();
    CHECK_EQ(allocator.statistics().active.current, active);
  }
}

TEST(a_failed_wait_is_reported_once) {
  Stream& stream = device().pool_stream();
  const fixture::Holder x = fixture::upload({0});
  fixture::keep_busy(stream, Pin(*x, stream).pointer());
  fixture::fail("stream_wait", 1, OB_INTERNAL);
  CHECK_THROWS(stream.synchronize(), Error);
  fixture::keep_busy(stream, Pin(*x, stream).pointer());
  stream.synchronize();
  CHECK_EQ(first(*x), 2.0f);
}

TEST(what_is_cheap_is_launched_at_once) {
  const auto launch_cost = device().driver().launch_cost;
  if (launch_cost == nullptr) return;
  const KernelUse kernel =
      device().programs().kernel("__kernel void next(__global float* x) { x[0] += 1.0f; }", "", "next");
  Stream& stream = device().pool_stream();
  const fixture::Holder x = fixture::upload({0}), y = fixture::upload({0});
  const Launch launch = fixture::launch_of(*kernel, Pin(*x, stream).pointer());
  for (int i = 0; i < 100; ++i) {
    stream.launch(launch);
    stream.synchronize();
  }
  if (launch_cost(kernel->get(), launch.global, launch.local) == UINT64_MAX)
    return;  // this device's kernels go through a queue
  uint64_t at_once = 0;
  for (int i = 0; i < 100; ++i) {
    const uint64_t before = fixture::calls("launch");
    stream.launch(launch);
    at_once += fixture::calls("launch") - before;
    stream.synchronize();
  }
  CHECK(at_once > 50);  // the machine may have stopped one of those that were timed
  fixture::keep_busy(stream, Pin(*y, stream).pointer());
  stream.launch(launch);
  CHECK(!stream.query());  // but never before others
  stream.synchronize();
  CHECK_EQ(first(*x), 201.0f);
}

TEST(launches_with_many_arguments_wait_in_the_queue_too) {
  constexpr uint32_t kNumbers = 40;
  std::string head = "__kernel void many(__global float* x", sum;
  for (uint32_t i = 0; i < kNumbers; ++i) {
    head += ", float a" + std::to_string(i);
    sum += " + a" + std::to_string(i);
  }
  const KernelUse kernel = device().programs().kernel(head + ") { x[0] = x[0]" + sum + "; }", "", "many");
  kernel->get();
  Stream& stream = device().pool_stream();
  const fixture::Holder x = fixture::upload({0});
  const ob_ptr pointer = Pin(*x, stream).pointer();
  const auto launch = [&] {
    Launch many = fixture::launch_of(*kernel, pointer);
    many.arguments = Arguments(kNumbers + 1);
    many.arguments.set_pointer(0, pointer);
    for (uint32_t i = 0; i < kNumbers; ++i) many.arguments.set(i + 1, static_cast<float>(i));
    stream.launch(many);
  };
  fixture::keep_busy(stream, pointer);  // x[0] = 1
  launch();
  CHECK(!stream.query());  // still busy: nobody waited for its turn
  launch();
  stream.synchronize();
  CHECK_EQ(first(*x), 1.0f + 2 * (kNumbers * (kNumbers - 1) / 2));
}

TEST(pool_streams_are_found_by_their_id) {
  Stream& stream = device().pool_stream();
  CHECK(&device().stream(stream.id()) == &stream);
  CHECK(&device().stream(0) == &device().default_stream());
  CHECK_THROWS(device().stream(-1), Error);
  CHECK_THROWS(device().stream(33), Error);
}

TEST(each_thread_has_its_own_current_stream) {
  Runtime& runtime = Runtime::get();
  Stream& mine = device().pool_stream();
  runtime.set_current_stream(mine);
  std::thread([&] { CHECK(&runtime.current_stream(0) == &device().default_stream()); }).join();
  CHECK(&runtime.current_stream(0) == &mine);
  runtime.set_current_stream(device().default_stream());
}

namespace {

struct Interrupted {};

std::atomic<bool> interrupt{false};

constexpr Interruptions kInterruptions{[] { return interrupt.load(); }, [] { throw Interrupted(); },
                                       [] { return false; }};

/// Waits are interrupted in its scope.
struct Interrupting {
  Interrupting() {
    set_interruptions(&kInterruptions);
    interrupt = true;
  }
  ~Interrupting() { interrupt = false; }
};

template <typename Function>
bool is_interrupted(Function&& function) {
  try {
    function();
  } catch (const Interrupted&) {
    return true;
  }
  return false;
}

}  // namespace

TEST(waits_can_be_interrupted) {
  Stream& stream = device().pool_stream();
  Allocation* x = Allocation::create(device(), 4);
  for (int i = 0; i < 20; ++i) fixture::keep_busy(stream, Pin(*x, stream).pointer());  // 0.4 s on a fast processor
  Event event(device());
  event.record(stream);
  {
    const Interrupting interrupting;
    const auto begin = std::chrono::steady_clock::now();
    CHECK(stream.query() || is_interrupted([&] { stream.synchronize(); }));
    CHECK(event.query() || is_interrupted([&] { event.synchronize(); }));
    CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(1));
    const Uninterrupted whole;
    CHECK(!is_interrupted([&] { event.synchronize(); }));
  }
  stream.synchronize();
  CHECK(stream.query() && event.query());
  x->release();
}

TEST(the_process_may_end_with_queued_work) { CHECK_EQ(fixture::run_again("exit-with-work"), 0); }
TEST(the_process_may_end_from_another_thread) { CHECK_EQ(fixture::run_again("exit-from-thread"), 0); }
TEST(a_forked_child_is_told_so) { CHECK_EQ(fixture::run_again("fork"), 0); }

namespace {

/// Leaves a busy queue and live memory behind.
void leave_work() {
  Allocation* x = Allocation::create(device(), 4);
  for (Stream* stream : {&device().default_stream(), &device().pool_stream()}) {
    fixture::keep_busy(*stream, Pin(*x, *stream).pointer());
  }
}

template <typename Function>
bool is_refused(Function&& function) {
  try {
    function();
  } catch (const ForkError& error) {
    return std::strstr(error.what(), "spawn") != nullptr;
  }
  return false;
}

/// In a forked child: every use is refused with advice, and nothing hangs.
int check_child(Allocation* allocation, Stream& stream) {
  if (!Runtime::get().forked()) return 10;
  if (!is_refused([&] { device(); })) return 11;
  if (!is_refused([&] { stream.synchronize(); })) return 12;
  if (!is_refused([&] { Runtime::get().current_stream(0); })) return 13;
  if (!is_refused([&] { Allocation::create(stream.device(), 4); })) return 14;
  if (!is_refused([&] { stream.device().residency().allocate(4, stream); })) return 15;
  if (!is_refused([&] { Event event(stream.device()); })) return 16;
  allocation->release();
  return 0;
}

int fork_in_use() {
  Stream& stream = device().default_stream();
  Allocation* allocation = Allocation::create(device(), 4);
  fixture::keep_busy(stream, Pin(*allocation, stream).pointer());
  const pid_t child = fork();
  if (child == 0) _exit(check_child(allocation, stream));
  int status = 0;
  waitpid(child, &status, 0);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) return WEXITSTATUS(status);
  stream.synchronize();  // the parent goes on
  return 0;
}

}  // namespace

int main(int count, char** arguments) {
  const std::string scenario = count > 1 ? arguments[1] : "";
  if (scenario == "exit-with-work") {
    leave_work();
    return 0;
  }
  if (scenario == "exit-from-thread") {
    std::thread([] {
      leave_work();
      std::exit(0);
    }).join();
  }
  if (scenario == "fork") return fork_in_use();
  return fixture::run_all();
}
