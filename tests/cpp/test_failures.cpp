// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "check.h"
#include "fixture.h"
#include "runtime/base/driver_call.h"
#include "runtime/base/error.h"
#include "runtime/streams/stream.h"

/// What holds when a driver fails: whose memory is whose, and what is lost with a device. On discrete drivers only,
/// whose work can be stopped: the simulator and the strict driver.
using namespace outboard;

namespace {

constexpr size_t kBytes = 1 << 20;
using Memory = std::vector<char>;

std::shared_ptr<Memory> memory_of(char byte) { return std::make_shared<Memory>(kBytes, byte); }
uint64_t address(const Memory& memory) { return reinterpret_cast<uint64_t>(memory.data()); }

/// Device memory full of 7s, whose copy to the host is queued but cannot begin.
struct StoppedCopy {
  explicit StoppedCopy(Device& device)
      : stream(device.default_stream()), source(Allocation::create(device, kBytes)), target(memory_of(0)) {
    const char seven = 7;
    const ob_ptr from = Pin(*source, stream).pointer();
    stream.fill(from, &seven, 1, kBytes);
    stream.synchronize();
    pause = std::make_unique<fixture::Pause>(stream);
    stream.copy(OB_DEVICE_TO_HOST, address(*target), from, kBytes);
  }
  ~StoppedCopy() {
    pause->end();
    stream.keep_until_finished(target);
  }
  bool arrived() const { return *target == *memory_of(7); }

  Stream& stream;
  fixture::Holder source;
  std::shared_ptr<Memory> target;
  std::unique_ptr<fixture::Pause> pause;
};

Device& other_device() { return Runtime::get().device(1); }

bool says(const std::exception& error, const char* text) { return std::strstr(error.what(), text) != nullptr; }

/// The text of the Error(OB_DEVICE_LOST) that `function` throws; "" if it throws none.
template <typename Function>
std::string lost_text(const Function& function) {
  try {
    function();
  } catch (const Error& error) {
    if (error.status() == OB_DEVICE_LOST) return error.what();
  }
  return "";
}

}  // namespace

TEST(a_failed_wait_finishes_nothing) {
  StoppedCopy copy(fixture::device());
  fixture::fail("stream_wait", 1, OB_INTERNAL);
  CHECK_THROWS(copy.stream.finish(), Error);
  CHECK(!copy.stream.query());
  fixture::fail("stream_wait", 1, OB_INTERNAL);
  CHECK_THROWS(copy.stream.query(), Error);
  CHECK(!copy.stream.query());
  copy.pause->end();
  copy.stream.synchronize();
  CHECK(copy.arrived());
}

TEST(memory_of_a_failed_copy_is_kept_until_it_arrived) {
  StoppedCopy copy(fixture::device());
  fixture::fail("stream_wait", 1, OB_INTERNAL);
  CHECK_THROWS(copy.stream.synchronize(), Error);
  std::atomic<bool> ended{false};
  std::thread releaser([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    ended = true;
    copy.pause->end();
  });
  copy.stream.keep_until_finished(copy.target);
  CHECK(ended);
  releaser.join();
  CHECK(copy.arrived());
  CHECK_EQ(copy.stream.kept(), 0u);
}

TEST(a_launch_that_failed_before_a_copy_does_not_end_it) {
  StoppedCopy copy(fixture::device());
  Stream& stream = copy.stream;
  const auto second = memory_of(0);
  fixture::fail("copy", 1, OB_INTERNAL);  // which may have been queued nevertheless, as far as the caller knows
  CHECK_THROWS(stream.copy(OB_DEVICE_TO_HOST, address(*second), Pin(*copy.source, stream).pointer(), kBytes), Error);
  CHECK(!stream.query());
  copy.pause->end();
  stream.keep_until_finished(second);
  CHECK(stream.query());
  CHECK_EQ(stream.kept(), 0u);
}

TEST(host_buffers_wait_for_their_stream_after_a_failure) {
  Device& device = fixture::device();
  StoppedCopy copy(device);
  {
    const std::lock_guard guard(device.order().lock());
    HostBuffers buffers(device);
    HostBuffer* buffer = buffers.take(kBytes, &copy.stream);
    void* const taken = buffer->memory;
    buffers.give_back(buffer);
    fixture::fail("stream_wait", 1, OB_INTERNAL);
    HostBuffer* next = buffers.take(kBytes, nullptr);  // for the host, at once
    CHECK(next->memory != taken);
    buffers.give_back(next);
    copy.pause->end();
    CHECK(copy.stream.finish_in_the_end());
    buffers.trim(0, true);
  }
  CHECK_THROWS(copy.stream.flush(), Error);  // what was noticed in the middle of something else is told
}

namespace {

/// Has `stream` hand its next work over later, from a thread of its own: an empty queue hands over at once.
void hand_over_later(Stream& stream, Stream& other, ob_ptr word) {
  if (!fixture::is_strict()) return;  // the simulator runs no kernels
  fixture::keep_busy(other, word);
  Event event(other.device());
  event.record(other);
  stream.wait(event);
}

/// Whether `function` throws what was injected.
template <typename Function>
bool is_told(const Function& function) {
  try {
    function();
  } catch (const Error& error) {
    if (!says(error, "injected")) check::fail(__FILE__, __LINE__, error.what());
    return true;
  }
  return false;
}

fixture::Holder full_of(char byte, Device& device) {
  fixture::Holder made(Allocation::create(device, kBytes));
  std::shared_ptr<HostBuffer> buffer = device.residency().host_buffer(kBytes);
  std::memset(buffer->memory, byte, kBytes);
  CHECK(made->adopt(std::move(buffer)));
  return made;
}

char first_byte(Allocation& allocation, Stream& stream) {
  char value = 0;
  stream.copy(OB_DEVICE_TO_HOST, reinterpret_cast<uint64_t>(&value), Pin(allocation, stream).pointer(), 1);
  stream.synchronize();
  return value;
}

}  // namespace

TEST(a_failed_transfer_is_told_once_to_who_needs_what_it_brings) {
  Device& device = fixture::device();
  Stream& stream = device.default_stream();
  fixture::Holder word = fixture::upload({0});
  for (char round = 0; round < 20; ++round) {
    const fixture::Holder x = full_of(round, device);
    hand_over_later(*device.transfer_stream(), stream, Pin(*word, stream).pointer());
    fixture::fail("copy", 1, OB_INTERNAL);
    const bool at_once = is_told([&] { Work(stream).resolve(*x); });
    CHECK(is_told([&] { stream.synchronize(); }) != at_once);
    fixture::fail("copy", 0, OB_OK);
    CHECK(!is_told([&] { device.synchronize(); }));
  }
}

TEST(a_stream_that_waits_for_another_has_its_failures) {
  Device& device = fixture::device();
  Stream& first = device.pool_stream();
  Stream& second = device.pool_stream();
  fixture::Holder word = fixture::upload({0}), x(Allocation::create(device, kBytes));
  const Pin pin(*x, first);
  for (char round = 0; round < 20; ++round) {
    hand_over_later(first, device.default_stream(), Pin(*word, device.default_stream()).pointer());
    fixture::fail("fill", 1, OB_INTERNAL);
    const bool at_once = is_told([&] { first.fill(pin.pointer(), &round, 1, kBytes); });
    if (round % 2 == 0) second.follow(first);
    if (round % 2 == 1) {
      Event event(device);
      event.record(first);
      second.wait(event);
    }
    CHECK(is_told([&] { second.synchronize(); }) != at_once);
    CHECK(!is_told([&] { first.synchronize(); }));
    fixture::fail("fill", 0, OB_OK);
  }
}

TEST(what_a_failed_move_to_the_host_lost_is_not_read) {
  Device& device = fixture::device();
  Stream& stream = device.default_stream();
  fixture::Holder word = fixture::upload({0});
  const Pin pin(*word, stream);
  bool lost = false;
  for (char round = 1; round <= 20; ++round) {
    const fixture::Holder x = full_of(round, device);
    CHECK_EQ(first_byte(*x, stream), round);
    hand_over_later(*device.transfer_stream(), stream, pin.pointer());
    fixture::fail("copy", 1, OB_INTERNAL);
    const bool at_once = is_told([&] {
      const Work other(stream);  // what it uses stays
      CHECK(device.residency().make_room());
    });
    is_told([&] { device.synchronize(); });
    fixture::fail("copy", 0, OB_OK);
    if (at_once) {
      CHECK(x->state() == State::kDevice);
      CHECK_EQ(first_byte(*x, stream), round);
      continue;
    }
    lost = true;
    CHECK_THROWS(first_byte(*x, stream), Error);
    CHECK_THROWS(x->host_contents(), Error);
    CHECK_THROWS(device.synchronize(); first_byte(*x, stream), Error);  // for ever
    CHECK(x->mark_zero());
    CHECK_EQ(first_byte(*x, stream), 0);
  }
  CHECK(lost || !fixture::is_strict());
}

TEST(a_lost_device_stays_lost_and_others_do_not_notice) { CHECK_EQ(fixture::run_again("lost"), 0); }

TEST(a_device_that_was_reset_is_as_new) { CHECK_EQ(fixture::run_again("reset"), 0); }

TEST(a_table_cut_in_the_middle_of_a_function_lacks_it) {
  ob_driver given = fixture::device().driver();
  given.struct_size = offsetof(ob_driver, memory_info) + sizeof(void*) / 2;
  CHECK(whole_table(given).launch != nullptr);
  CHECK(whole_table(given).memory_info == nullptr);
  CHECK_EQ(misfit(given), "");
  given.struct_size = offsetof(ob_driver, launch) + sizeof(void*) - 1;
  CHECK_EQ(misfit(given), "lacks what every driver must have: launch");
}

TEST(what_a_driver_lacks_is_named) {
  ob_driver given = fixture::device().driver();
  given.copy = nullptr;
  given.event_wait = nullptr;
  CHECK_EQ(misfit(given), "lacks what every driver must have: event_wait, copy");
  given.abi_major = 9;
  CHECK(misfit(given).find("version 9") != std::string::npos && misfit(given).find("version 1") != std::string::npos);
}

TEST(more_than_the_device_gives_at_once_is_refused) {
  const uint64_t most = fixture::device().properties().max_allocation;
  try {
    const std::lock_guard guard(fixture::device().order().lock());
    fixture::device().residency().allocate(most + 1, fixture::device().default_stream());
    CHECK(false);
  } catch (const OutOfMemoryError& error) {
    CHECK(says(error, "MiB"));
  }
}

namespace {

/// Device 0 is lost while a copy to the host has not begun; device 1 goes on, and the process ends as ever.
int lose() {
  Device& device = fixture::device();
  StoppedCopy copy(device);
  const std::weak_ptr<Memory> memory = copy.target;
  fixture::fail("stream_wait", 1, OB_DEVICE_LOST);
  if (lost_text([&] { copy.stream.synchronize(); }).find("new one") == std::string::npos) return 1;
  copy.stream.keep_until_finished(copy.target);
  copy.target = memory_of(0);
  if (memory.expired() || copy.stream.kept() != 1) return 2;
  if (!device.lost() || other_device().lost()) return 3;
  Stream& stream = copy.stream;
  if (lost_text([&] { stream.synchronize(); }).empty() || lost_text([&] { stream.query(); }).empty()) return 4;
  if (lost_text([&] { Event(device).record(stream); }).empty()) return 5;
  if (lost_text([&] {
        fixture::Holder(Allocation::create(device, 4)), device.residency().allocate(4, stream);
      }).empty()) {
    return 6;
  }
  if (lost_text([&] { device.programs().kernel("", "", "k"); }).empty()) return 7;
  copy.pause->end();  // now the copy arrives, in memory that is still there
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  if (memory.expired() || *memory.lock() != *memory_of(7)) return 8;
  fixture::Holder x(Allocation::create(other_device(), kBytes));
  Stream& other = other_device().default_stream();
  const auto source = memory_of(3), target = memory_of(0);
  const Pin pin(*x, other);
  other.copy(OB_HOST_TO_DEVICE, pin.pointer(), address(*source), kBytes);
  other.copy(OB_DEVICE_TO_HOST, address(*target), pin.pointer(), kBytes);
  other.synchronize();
  if (*target != *source) return 9;
  Runtime::get().shutdown();
  return 0;
}

bool works(Device& device) { return first_byte(*full_of(5, device), device.default_stream()) == 5; }

/// What is said of all that was on the device before, to who uses it with what there is now.
bool says_reset(Stream& before, Event& event, Allocation& memory, Device& now) {
  Stream& stream = now.default_stream();
  const std::vector<std::function<void()>> uses{[&] { before.synchronize(); }, [&] { before.query(); },
                                                [&] { event.query(); },        [&] { event.synchronize(); },
                                                [&] { stream.wait(event); },   [&] { Work(stream).resolve(memory); },
                                                [&] { event.record(stream); }, [&] { Event(before.device()); }};
  return std::all_of(uses.begin(), uses.end(),
                     [](const auto& use) { return lost_text(use).find("was reset") != std::string::npos; });
}

/// Submits work and waits, over and over, beside resets: each of them fails as on a lost device, or works.
void keep_working(const std::atomic<bool>& ended, std::atomic<int>& wrong) {
  while (!ended) {
    try {
      if (!works(Runtime::get().device(0))) ++wrong;
    } catch (const Error& error) {
      if (error.status() != OB_DEVICE_LOST) ++wrong;
    }
  }
}

/// Device 0 is reset while it hangs, after it was lost, after a reset that failed, and while others use it.
int reset() {
  Device& before = fixture::device();
  Runtime& runtime = Runtime::get();
  Stream& pool = before.pool_stream();
  runtime.set_current_stream(pool);
  const fixture::Holder x = full_of(3, before);
  if (first_byte(*x, before.default_stream()) != 3) return 1;
  Event event(before);
  event.record(pool);
  StoppedCopy copy(before);
  const std::weak_ptr<Memory> memory = copy.target;
  Device& now = runtime.reset(0);
  if (&now == &before || &runtime.device(0) != &now || now.lost() || !before.was_reset() || other_device().lost()) {
    return 2;
  }
  if (&runtime.current_stream(0) != &now.stream(pool.id())) return 3;
  if (!says_reset(pool, event, *x, now) || now.lost()) return 4;
  copy.pause->end();  // which the copy of before does not notice any more
  if (!works(now) || !works(other_device()) || copy.arrived()) return 5;
  copy.stream.keep_until_finished(std::exchange(copy.target, memory_of(0)));
  if (!memory.expired()) return 6;  // nothing writes to it any more
  fixture::fail("stream_wait", 1, OB_DEVICE_LOST);
  if (lost_text([&] { works(now); }).find("reset()") == std::string::npos) return 7;
  fixture::fail("device_reset", 1, OB_INTERNAL);
  try {
    runtime.reset(0);
    return 8;
  } catch (const Error& error) {
    if (!says(error, "resetting the device failed: injected")) return 9;
  }
  if (!works(runtime.reset(0))) return 10;
  std::atomic<bool> ended{false};
  std::atomic<int> wrong{0};
  std::thread worker([&] { keep_working(ended, wrong); });
  for (int i = 0; i < 30; ++i) runtime.reset(0);
  ended = true;
  worker.join();
  if (wrong != 0 || !works(runtime.device(0)) || !works(other_device())) return 11;
  runtime.shutdown();
  return 0;
}

}  // namespace

int main(int count, char** arguments) {
  if (count > 1 && std::strcmp(arguments[1], "reset") == 0) return reset();
  if (count > 1 && std::strcmp(arguments[1], "lost") == 0) return lose();
  return fixture::run_all();
}
