// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <future>
#include <map>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "fixture.h"
#include "runtime/base/error.h"

/// The states of allocations, oversubscription and the allocator's accounts, with copies and fills alone, so that every
/// driver can run it.
using namespace outboard;
using fixture::device;
using fixture::Holder;

namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

Holder make(uint64_t bytes, Device& on = device()) { return Holder(Allocation::create(on, bytes)); }

void fill(Allocation& allocation, Stream& stream, uint8_t value) {
  Work work(stream);
  stream.fill(work.resolve(allocation, Access::kOverwrite), &value, 1, allocation.size());
}

/// The one value of all bytes, read through the device; -1 if they differ.
int value_of(Allocation& allocation, Stream& stream) {
  std::vector<uint8_t> bytes(allocation.size());
  {
    Work work(stream);
    stream.copy(OB_DEVICE_TO_HOST, reinterpret_cast<uint64_t>(bytes.data()), work.resolve(allocation), bytes.size());
  }
  stream.synchronize();
  const bool same = std::memcmp(bytes.data(), bytes.data() + 1, bytes.size() - 1) == 0;  // each equals the next
  return same ? bytes[0] : -1;
}

void adopt(Allocation& allocation, uint8_t value) {
  auto buffer = allocation.device().residency().host_buffer(allocation.size());
  std::memset(buffer->memory, value, allocation.size());
  if (!allocation.adopt(std::move(buffer))) throw std::runtime_error("not adopted");
}

/// True as soon as nothing is outstanding, false if that takes longer than any machine would.
bool finishes(Stream& stream) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!stream.query()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

MemoryStatistics statistics(Device& of = device()) { return of.allocator().statistics(); }
LazyStatistics lazy(Device& of = device()) { return of.residency().statistics(); }

/// Limits a device's memory to what is in use and `bytes` more, for the length of a scope.
class Limited {
 public:
  explicit Limited(uint64_t bytes, Device& on = device()) : device_(on), old_(on.allocator().limit()) {
    on.empty_cache();
    on.allocator().set_limit(static_cast<uint64_t>(statistics(on).reserved.current) + bytes);
  }
  ~Limited() { device_.allocator().set_limit(old_); }

 private:
  Device& device_;
  uint64_t old_;
};

/// Three allocations in a memory that has room for two. The first two are in it, filled with 1 and 2.
struct ThreeWhereTwoFit {
  Stream& stream = device().default_stream();
  const Limited limited{8 * kMiB};
  const Holder a = make(4 * kMiB), b = make(4 * kMiB), c = make(4 * kMiB);

  ThreeWhereTwoFit() {
    fill(*a, stream, 1);
    fill(*b, stream, 2);
  }
  void check(int in_a, int in_b, int in_c) const {
    CHECK_EQ(value_of(*a, stream), in_a);
    CHECK_EQ(value_of(*b, stream), in_b);
    CHECK_EQ(value_of(*c, stream), in_c);
  }
};

void check_invariants(Device& of) {
  const MemoryStatistics s = statistics(of);
  CHECK(s.allocated.current <= s.active.current && s.active.current <= s.reserved.current);
  CHECK_EQ(s.cached.current, s.reserved.current - s.active.current);
}

}  // namespace

TEST(making_takes_nothing) {
  const int64_t before = statistics().allocated.current;
  const LazyStatistics start = lazy();
  const Holder x = make(64 << 20);
  CHECK_EQ(statistics().allocated.current, before);
  CHECK_EQ(lazy().unbacked.bytes - start.unbacked.bytes, 64 << 20);
  CHECK_EQ(lazy().unbacked.count - start.unbacked.count, 1);
  CHECK(x->mark_zero());
  CHECK(x->state() == State::kZero);
  CHECK_EQ(lazy().zero.bytes - start.zero.bytes, 64 << 20);
  CHECK_EQ(lazy().unbacked.bytes, start.unbacked.bytes);
  CHECK_EQ(statistics().allocated.current, before);
}

TEST(zeros_are_filled_on_first_use) {
  Stream& stream = device().default_stream();
  const Holder x = make(1000);
  fill(*x, stream, 7);
  CHECK_EQ(value_of(*x, stream), 7);
  CHECK(x->mark_zero());  // gives its memory up
  CHECK(x->state() == State::kZero);
  const int64_t filled = lazy().materialized.bytes;
  CHECK_EQ(value_of(*x, stream), 0);
  CHECK(x->state() == State::kDevice);
  CHECK_EQ(lazy().materialized.bytes - filled, 1000);
}

TEST(contents_wait_on_the_host) {
  Stream& stream = device().default_stream();
  const Holder x = make(5000);
  adopt(*x, 9);
  CHECK(x->state() == State::kHost);
  CHECK_EQ(static_cast<const uint8_t*>(x->host_contents()->memory)[4999], 9);
  adopt(*x, 10);
  CHECK_EQ(value_of(*x, stream), 10);
  CHECK(x->state() == State::kDevice);
  CHECK(x->host_contents() == nullptr);
  CHECK(!x->adopt(device().residency().host_buffer(5000)));  // on the device: copies go there
}

TEST(contents_do_not_wait_for_work_that_never_used_their_memory) {
  if (!device().host_accessible()) return;
  Stream& stream = device().default_stream();
  const Holder busy = make(4), zeros = make(4 * kMiB), given = make(4 * kMiB);
  adopt(*given, 7);
  CHECK(zeros->mark_zero());
  const ob_ptr flag = Work(stream).resolve(*busy);
  device().empty_cache();  // what is got next comes from the driver
  fixture::keep_busy(stream, flag);
  {
    Work work(stream);
    work.resolve(*zeros);
    work.resolve(*given);
  }
  CHECK(!stream.query());
  CHECK_EQ(value_of(*zeros, stream), 0);
  CHECK_EQ(value_of(*given, stream), 7);
}

TEST(contents_wait_for_work_that_used_their_memory) {
  Stream& stream = device().default_stream();
  if (!device().host_accessible()) return;  // see moves_in_wait_for_queued_work_that_used_the_memory
  for (const bool zero : {false, true}) {
    const Limited limited(4 * kMiB);
    const Holder next = make(4 * kMiB);
    ob_ptr memory;
    {
      const Holder used = make(4 * kMiB);
      memory = Work(stream).resolve(*used);
      fixture::keep_busy(stream, memory);  // and writes there in the end
    }
    if (zero) CHECK(next->mark_zero());
    if (!zero) adopt(*next, 7);
    CHECK_EQ(Work(stream).resolve(*next), memory);
    CHECK_EQ(value_of(*next, stream), zero ? 0 : 7);
  }
}

TEST(host_memory_is_used_again_though_the_stream_always_has_work) {
  if (!device().host_accessible()) return;  // what keeps the stream busy is a program
  Stream& stream = device().default_stream();
  const Holder busy = make(4);
  const ob_ptr flag = Pin(*busy, stream).pointer();
  std::set<const void*> used;
  for (int i = 0; i < 2000; ++i) {
    if (i % 200 == 0) fixture::keep_busy(stream, flag);
    const Holder x = make(100);
    adopt(*x, 9);
    used.insert(x->host_contents()->memory);
    Work(stream).resolve(*x);
  }
  stream.synchronize();
  CHECK(used.size() < 700);  // what the queue holds, and what no mark tells of yet
}

TEST(a_full_overwrite_needs_no_old_contents) {
  Stream& stream = device().default_stream();
  const Holder x = make(5000);
  adopt(*x, 9);
  const int64_t moved = lazy().materialized.count;
  fill(*x, stream, 3);
  CHECK_EQ(lazy().materialized.count, moved);
  CHECK_EQ(value_of(*x, stream), 3);
}

TEST(what_was_used_longest_ago_moves_out_and_comes_back) {
  Stream& stream = device().default_stream();
  const Limited limited(16 * kMiB);
  const LazyStatistics start = lazy();
  std::vector<Holder> all;
  for (uint8_t i = 0; i < 8; ++i) {
    all.push_back(make(4 * kMiB));
    fill(*all.back(), stream, i);
    check_invariants(device());
  }
  for (size_t i = 0; i < 8; ++i) CHECK(all[i]->state() == (i < 4 ? State::kSpilled : State::kDevice));
  CHECK_EQ(lazy().spilled.bytes - start.spilled.bytes, static_cast<int64_t>(16 * kMiB));
  for (int i = 0; i < 8; ++i) CHECK_EQ(value_of(*all[static_cast<size_t>(i)], stream), i);
  CHECK_EQ(lazy().restores.count - start.restores.count, 8);  // LRU's worst case: a cycle one round too long
  CHECK(lazy().spills.bytes - start.spills.bytes >= static_cast<int64_t>(32 * kMiB));
}

TEST(arguments_of_one_piece_of_work_stay_together) {
  Stream& stream = device().default_stream();
  const Limited limited(8 * kMiB);
  const Holder a = make(4 * kMiB), b = make(4 * kMiB), c = make(4 * kMiB);
  for (const Holder* each : {&a, &b, &c}) fill(**each, stream, 1);
  {
    Work work(stream);
    work.resolve(*a);
    work.resolve(*b);
    CHECK(a->state() == State::kDevice && b->state() == State::kDevice);
    try {
      work.resolve(*c);
      check::fail(__FILE__, __LINE__, "three arguments fit where two do");
    } catch (const OutOfMemoryError& error) {
      CHECK(std::string(error.what()).find("4.00 MiB") != std::string::npos);
    }
  }
  CHECK_EQ(value_of(*c, stream), 1);  // alone it fits
}

TEST(pinned_memory_stays) {
  Stream& stream = device().default_stream();
  const Limited limited(8 * kMiB);
  const Holder a = make(4 * kMiB), b = make(4 * kMiB), c = make(4 * kMiB);
  fill(*a, stream, 1);
  a->hold();
  fill(*b, stream, 2);
  fill(*c, stream, 3);
  CHECK(a->state() == State::kDevice && b->state() == State::kSpilled);
  CHECK(!a->mark_zero());
  c->hold();
  CHECK_THROWS(value_of(*b, stream), OutOfMemoryError);
  c->let_go();
  CHECK_EQ(value_of(*b, stream), 2);
  a->let_go();
  CHECK_EQ(value_of(*a, stream), 1);
}

TEST(waiting_for_a_call_that_pins) {
  Stream& stream = device().default_stream();
  const Limited limited(4 * kMiB);
  const Holder a = make(4 * kMiB), b = make(4 * kMiB);
  fill(*a, stream, 1);
  auto call = std::make_unique<Pin>(*a, stream);
  auto other = std::async(std::launch::async, [&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    call.reset();
  });
  fill(*b, stream, 2);
  other.get();
  CHECK(a->state() == State::kSpilled);
  CHECK_EQ(value_of(*a, stream), 1);
}

TEST(scattered_room_becomes_one_piece) {
  Stream& stream = device().default_stream();
  const Limited limited(40 * kMiB);
  std::vector<Holder> all;
  for (uint8_t i = 0; i < 20; ++i) {
    all.push_back(make(2 * kMiB));
    fill(*all.back(), stream, i);
  }
  for (size_t i = 0; i < 20; i += 2) fill(*all[i], stream, static_cast<uint8_t>(i));  // the odd ones are the oldest
  const Holder large = make(18 * kMiB);
  fill(*large, stream, 99);
  for (size_t i = 0; i < 20; ++i) CHECK_EQ(value_of(*all[i], stream), static_cast<int>(i));
  CHECK_EQ(value_of(*large, stream), 99);
}

TEST(a_failed_move_changes_nothing) {
  Stream& stream = device().default_stream();
  const Limited limited(4 * kMiB);
  const Holder a = make(4 * kMiB), b = make(4 * kMiB);
  fill(*a, stream, 1);
  fixture::fail("copy", 1, OB_INTERNAL);  // out
  CHECK_THROWS(fill(*b, stream, 2), Error);
  CHECK(a->state() == State::kDevice && b->state() == State::kUnbacked);
  fill(*b, stream, 2);
  CHECK(a->state() == State::kSpilled);
  fixture::fail("copy", 2, OB_INTERNAL);  // in, after `b` went out
  CHECK_THROWS(value_of(*a, stream), Error);
  CHECK(a->state() == State::kSpilled);
  CHECK_EQ(value_of(*a, stream), 1);
  CHECK_EQ(value_of(*b, stream), 2);
  CHECK(b->mark_zero());
  device().synchronize();
  fixture::fail("fill", 1, OB_INTERNAL);
  CHECK_THROWS(value_of(*b, stream), Error);
  CHECK(b->state() == State::kZero);
  CHECK_EQ(value_of(*b, stream), 0);
  check_invariants(device());
}

TEST(another_stream_sees_what_is_filled_in) {
  Stream& a = device().default_stream();
  Stream& b = device().pool_stream();
  for (int i = 0; i < 50; ++i) {
    const Holder x = make(kMiB);
    adopt(*x, static_cast<uint8_t>(i));
    {
      Work(a).resolve(*x);
    }
    CHECK_EQ(value_of(*x, b), i);
  }
}

TEST(memory_shared_by_streams_moves_when_both_are_done) {
  Stream& a = device().default_stream();
  Stream& b = device().pool_stream();
  const Limited limited(8 * kMiB);
  for (uint8_t round = 0; round < 20; ++round) {
    const Holder x = make(4 * kMiB), y = make(4 * kMiB), z = make(4 * kMiB);
    fill(*x, a, round);
    a.synchronize();
    fill(*x, b, static_cast<uint8_t>(round + 1));
    fill(*y, a, 1);
    fill(*z, a, 2);  // moves x, behind b's work
    CHECK(x->state() == State::kSpilled);
    CHECK_EQ(value_of(*x, a), round + 1);
  }
}

TEST(moves_out_do_not_wait_for_unrelated_work) {
  if (!fixture::can_pause()) return;  // the host moves the bytes there, in the order of the stream
  Stream& stream = device().default_stream();
  const Limited limited(8 * kMiB);
  const Holder a = make(4 * kMiB), b = make(4 * kMiB), c = make(4 * kMiB), d = make(4 * kMiB);
  fill(*a, stream, 1);
  fill(*b, stream, 2);
  fill(*c, stream, 3);  // moves a, and leaves a mark behind all uses of b
  stream.synchronize();
  fixture::Pause pause(stream);
  fill(*d, stream, 4);  // moves b, which nothing queued uses
  CHECK(b->state() == State::kSpilled);
  auto contents = std::async(std::launch::async, [&] { return b->host_contents(); });
  const bool moved = contents.wait_for(std::chrono::seconds(20)) == std::future_status::ready;
  CHECK(!stream.query());
  pause.end();
  CHECK_EQ(static_cast<const uint8_t*>(contents.get()->memory)[4 * kMiB - 1], 2);
  CHECK(moved);
  for (const auto& [holder, value] : {std::pair{&b, 2}, {&c, 3}, {&d, 4}, {&a, 1}}) {
    CHECK_EQ(value_of(**holder, stream), value);
  }
}

TEST(moves_in_do_not_wait_for_unrelated_work) {
  if (!fixture::can_pause()) return;
  const ThreeWhereTwoFit three;
  fill(*three.c, three.stream, 3);  // moves a
  three.stream.synchronize();
  fixture::Pause pause(three.stream);
  fill(*three.c, three.stream, 4);
  ob_ptr pointer;
  {
    Work work(three.stream);
    pointer = work.resolve(*three.a);  // moves b, and a into its place
    CHECK(three.b->state() == State::kSpilled);
  }
  CHECK(finishes(*device().transfer_stream()));
  CHECK(!three.stream.query());
  CHECK_EQ(*reinterpret_cast<const uint8_t*>(pointer + 4 * kMiB - 1), 1);  // the simulator's memory is the host's
  Event after_move(device());
  after_move.record(three.stream);
  CHECK(!after_move.query());
  pause.end();
  three.check(1, 2, 4);
}

TEST(moves_in_wait_for_queued_work_that_used_the_memory) {
  if (!fixture::can_pause()) return;
  Stream& stream = device().default_stream();
  const Limited limited(4 * kMiB);
  const Holder x = make(4 * kMiB);
  adopt(*x, 6);
  auto y = std::make_unique<Holder>(make(4 * kMiB));
  fill(**y, stream, 1);
  stream.synchronize();
  fixture::Pause pause(stream);
  std::vector<uint8_t> seen(4 * kMiB);
  ob_ptr pointer;
  {
    Work work(stream);
    pointer = work.resolve(**y);
    stream.copy(OB_DEVICE_TO_HOST, reinterpret_cast<uint64_t>(seen.data()), pointer, seen.size());
  }
  y.reset();
  CHECK_EQ(Work(stream).resolve(*x), pointer);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const bool waits = !device().transfer_stream()->query();
  pause.end();
  CHECK_EQ(value_of(*x, stream), 6);
  CHECK(waits);
  CHECK_EQ(std::count(seen.begin(), seen.end(), 1), static_cast<std::ptrdiff_t>(seen.size()));
}

TEST(who_waits_for_memory_gets_it_though_others_use_theirs_meanwhile) {
  const ThreeWhereTwoFit three;
  auto first = std::make_unique<Pin>(*three.a, three.stream), second = std::make_unique<Pin>(*three.b, three.stream);
  auto other = std::async(std::launch::async, [&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    Work work(three.stream);
    work.resolve(*three.a);
    work.resolve(*three.b);
    first.reset();
    second.reset();
  });
  fill(*three.c, three.stream, 3);
  other.get();
  three.check(1, 2, 3);
}

TEST(what_waiting_work_uses_stays) {
  const ThreeWhereTwoFit three;
  auto pin = std::make_unique<Pin>(*three.b, three.stream);
  std::string failure;
  auto other = std::async(std::launch::async, [&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    {
      Work work(three.stream);
      work.resolve(*three.a);  // a newer use does not hide the waiting one
    }
    if (!three.a->pinned() || three.a->mark_zero()) failure = "the memory may be given up or moved";
    pin.reset();
  });
  {
    Work work(three.stream);
    const ob_ptr source = work.resolve(*three.a);
    const ob_ptr target = work.resolve(*three.c, Access::kOverwrite);  // waits for b
    CHECK_EQ(work.resolve(*three.a), source);
    three.stream.copy(OB_DEVICE_TO_DEVICE, target, source, three.c->size());
  }
  other.get();
  CHECK_EQ(failure, std::string());
  three.check(1, 2, 1);
}

TEST(two_threads_bring_in_the_same) {
  Stream& stream = device().default_stream();
  const Limited limited(8 * kMiB);
  const int64_t before = statistics().allocated.current;
  {
    const Holder a = make(4 * kMiB), b = make(4 * kMiB), c = make(4 * kMiB);
    fill(*c, stream, 3);
    fill(*a, stream, 1);
    fill(*b, stream, 2);
    CHECK(c->state() == State::kSpilled);
    auto first = std::make_unique<Pin>(*a, stream), second = std::make_unique<Pin>(*b, stream);
    auto other = std::async(std::launch::async, [&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
      Work work(stream);
      first.reset();
      work.resolve(*c);  // takes a's place while the other thread waits for one
      second.reset();
    });
    CHECK_EQ(value_of(*c, stream), 3);
    other.get();
    for (const auto& [holder, value] : {std::pair{&a, 1}, {&b, 2}, {&c, 3}}) {
      CHECK_EQ(value_of(**holder, stream), value);
    }
  }
  CHECK_EQ(statistics().allocated.current, before);
}

TEST(the_history_tells_what_happened) {
  Stream& stream = device().default_stream();
  CachingAllocator& allocator = device().allocator();
  device().empty_cache();
  allocator.record_history(100);
  {
    const Holder x = make(3 * kMiB);
    fill(*x, stream, 1);
    uint64_t total = 0;
    for (const SegmentInfo& segment : allocator.segments()) {
      for (const BlockInfo& block : segment.blocks) total += block.size;
    }
    CHECK_EQ(static_cast<int64_t>(total), statistics().reserved.current);
  }
  device().empty_cache();
  std::vector<TraceEntry::Action> actions;
  for (const TraceEntry& entry : allocator.history()) actions.push_back(entry.action);
  CHECK(actions == (std::vector<TraceEntry::Action>{TraceEntry::kSegmentAlloc, TraceEntry::kAlloc, TraceEntry::kFree,
                                                    TraceEntry::kSegmentFree}));
  allocator.record_history(0);
  CHECK(allocator.history().empty());
}

TEST(options_are_those_of_pytorch) {
  Stream& stream = device().default_stream();
  CachingAllocator& allocator = device().allocator();
  device().empty_cache();
  AllocatorOptions options;
  options.roundup_power2_divisions.fill(4);
  allocator.set_options(options);
  Block* block = device().residency().allocate(1200 * 1024, stream);
  CHECK_EQ(block->size, 1280u * 1024);
  allocator.free(block);
  options = {};
  options.max_split_size = 24 * kMiB;
  allocator.set_options(options);
  device().empty_cache();
  Block* large = device().residency().allocate(40 * kMiB, stream);
  allocator.free(large);
  Block* small = device().residency().allocate(4 * kMiB, stream);
  for (const SegmentInfo& segment : allocator.segments()) {
    uint64_t total = 0;
    for (const BlockInfo& block : segment.blocks) total += block.size;
    CHECK(total != 40 * kMiB || segment.blocks.size() == 1);  // not cut for the small block
  }
  allocator.free(small);
  options = {};
  options.garbage_collection_threshold = 0.5;
  allocator.set_options(options);
  device().empty_cache();
  {
    const Limited limited(100 * kMiB);
    allocator.free(device().residency().allocate(40 * kMiB, stream));
    Block* other = device().residency().allocate(44 * kMiB, stream);  // 84 of 100 MiB: the free 40 go back first
    CHECK_EQ(statistics().cached.current, 0);
    allocator.free(other);
  }
  allocator.set_options({});
  device().empty_cache();
}

namespace {

/// One thread of the storm: owns its allocations, knows what is in them, and shares the devices' memory with others.
class Storm {
 public:
  Storm(unsigned seed, const std::vector<Device*>& devices) : random_(seed), devices_(devices) {}

  void run(int operations) {
    for (int i = 0; i < operations; ++i) step();
    for (const Entry& entry : live_) verify(entry);
  }

 private:
  struct Entry {
    Holder allocation;
    Stream* stream;
    int value;  // -1: anything
  };

  size_t below(size_t n) { return random_() % n; }

  Stream& any_stream(Device& of) { return of.stream(static_cast<int64_t>(below(3))); }

  void verify(const Entry& entry) const {
    if (entry.value >= 0) CHECK_EQ(value_of(*entry.allocation, *entry.stream), entry.value);
  }

  void step() {
    if (live_.empty() || (live_.size() < 12 && below(4) == 0)) {
      Device& on = *devices_[below(devices_.size())];
      live_.push_back({make(1 + below(below(6) == 0 ? 1500000 : 3000), on), &any_stream(on), -1});
      return;
    }
    Entry& entry = live_[below(live_.size())];
    Allocation& allocation = *entry.allocation;
    switch (below(9)) {
      case 0:
        verify(entry);
        std::swap(entry, live_.back());
        live_.pop_back();
        return;
      case 1:
        verify(entry);
        return;
      case 2:
        if (allocation.mark_zero()) entry.value = 0;
        return;
      case 3: {
        auto buffer = allocation.device().residency().host_buffer(allocation.size());
        std::memset(buffer->memory, 5, allocation.size());
        if (allocation.adopt(std::move(buffer))) entry.value = 5;
        return;
      }
      case 4:
        entry.stream->synchronize();
        entry.stream = &any_stream(allocation.device());
        return;
      case 5: {
        const Pin pin(allocation, *entry.stream);
        CHECK(allocation.state() == State::kDevice);
        return;
      }
      case 6:
        copy_from(entry, live_[below(live_.size())]);
        return;
      default:
        entry.value = static_cast<int>(below(256));
        fill(allocation, *entry.stream, static_cast<uint8_t>(entry.value));
    }
  }

  void copy_from(Entry& to, Entry& from) {
    const bool fits = &to.allocation->device() == &from.allocation->device() && &to != &from &&
                      to.allocation->size() <= from.allocation->size();
    if (!fits) return;
    from.stream->synchronize();
    Work work(*to.stream);
    const ob_ptr source = work.resolve(*from.allocation);
    to.stream->copy(OB_DEVICE_TO_DEVICE, work.resolve(*to.allocation, Access::kOverwrite), source,
                    to.allocation->size());
    to.value = from.value;
    to.stream->synchronize();
  }

  std::mt19937 random_;
  const std::vector<Device*>& devices_;
  std::vector<Entry> live_;
};

}  // namespace

TEST(threads_devices_and_streams_storm) {
  const char* text = std::getenv("OUTBOARD_TEST_STORM");
  const int operations = text == nullptr ? 10000 : std::atoi(text);
  std::vector<Device*> devices;
  for (int i = 0; i < std::min(2, Runtime::get().device_count()); ++i) devices.push_back(&Runtime::get().device(i));
  std::vector<int64_t> before;
  std::vector<std::unique_ptr<Limited>> limits;
  for (Device* each : devices) {
    for (int i = 0; i < 2; ++i) each->pool_stream();
    before.push_back(statistics(*each).allocated.current);
    limits.push_back(std::make_unique<Limited>(8 * kMiB, *each));
  }
  std::vector<std::thread> threads;
  std::vector<std::string> failures(8);
  for (unsigned t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      try {
        Storm(t + 1, devices).run(operations);
      } catch (const std::exception& error) {
        failures[t] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& failure : failures) CHECK_EQ(failure, std::string());
  for (size_t i = 0; i < devices.size(); ++i) {
    check_invariants(*devices[i]);
    devices[i]->synchronize();
    devices[i]->empty_cache();
    CHECK_EQ(statistics(*devices[i]).allocated.current, before[i]);
    const LazyStatistics end = lazy(*devices[i]);
    CHECK_EQ(end.spilled.bytes + end.host.bytes + end.zero.bytes + end.unbacked.bytes, 0);
    CHECK(end.spills.count > 0);
  }
}

int main() { return fixture::run_all(); }
