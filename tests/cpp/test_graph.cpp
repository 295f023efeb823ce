// SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "check.h"
#include "fixture.h"
#include "runtime/base/error.h"
#include "runtime/streams/graph.h"

/// Capture and replay of fills and copies, which devices without programs have too.
using namespace outboard;
using fixture::device;
using fixture::Holder;

namespace {

constexpr uint64_t kBytes = 1 << 16;

Holder make(uint64_t bytes = kBytes) { return Holder(Allocation::create(device(), bytes)); }

void fill(Allocation& allocation, Stream& stream, uint8_t value) {
  Work work(stream);
  stream.fill(work.resolve(allocation, Access::kOverwrite), &value, 1, allocation.size());
}

void copy(Allocation& to, Allocation& from, Stream& stream) {
  Work work(stream);
  const ob_ptr source = work.resolve(from);
  stream.copy(OB_DEVICE_TO_DEVICE, work.resolve(to, Access::kOverwrite), source, to.size());
}

int last_byte(Allocation& allocation, Stream& stream) {
  std::vector<uint8_t> bytes(allocation.size());
  {
    Work work(stream);
    const ob_ptr from = work.resolve(allocation);
    stream.copy(OB_DEVICE_TO_HOST, reinterpret_cast<uint64_t>(bytes.data()), from, bytes.size());
  }
  stream.synchronize();
  return bytes.back();
}

}  // namespace

TEST(replays_do_what_was_recorded) {
  Stream& stream = device().default_stream();
  const Holder x = make(), y = make();
  fill(*x, stream, 1);
  fill(*y, stream, 9);
  Graph graph(device());
  Stream& capture = graph.begin(stream, 0);
  {
    const Holder between = make();
    copy(*between, *x, capture);
    copy(*y, *between, capture);
  }
  graph.end();
  CHECK_EQ(last_byte(*y, stream), 9);
  for (uint8_t value = 2; value < 6; ++value) {
    fill(*x, stream, value);
    graph.replay(stream);
    CHECK_EQ(last_byte(*y, stream), static_cast<int>(value));
  }
}

TEST(seeds_are_drawn_anew) {
  Stream& stream = device().default_stream();
  const Holder x = make(16);
  Graph graph(device());
  Stream& capture = graph.begin(stream, 0);
  {
    Work work(capture);
    int64_t next = 0;
    capture.recording()->seeds(work.resolve(*x), 2, [next](int64_t* out, int64_t count) mutable {
      for (int64_t i = 0; i < count; ++i) out[i] = (++next) << 56;
    });
  }
  graph.end();
  graph.replay(stream);
  CHECK_EQ(last_byte(*x, stream), 2);
  graph.replay(stream);
  CHECK_EQ(last_byte(*x, stream), 4);
}

TEST(a_graph_gives_its_memory_back) {
  Stream& stream = device().default_stream();
  stream.synchronize();
  device().empty_cache();
  const int64_t before = device().allocator().statistics().reserved.current;
  for (int i = 0; i < 10; ++i) {
    Graph graph(device());
    Stream& capture = graph.begin(stream, 0);
    const Holder x = make(4 << 20), y = make(4 << 20);
    fill(*x, capture, 1);
    copy(*y, *x, capture);
    graph.end();
    graph.replay(stream);
    device().empty_cache();
    CHECK_EQ(last_byte(*y, stream), 1);
  }
  device().synchronize();
  device().empty_cache();
  CHECK_EQ(device().allocator().statistics().reserved.current, before);
}

TEST(wrong_uses_are_refused) {
  Stream& stream = device().default_stream();
  Graph graph(device());
  CHECK_THROWS(graph.replay(stream), Error);
  CHECK_THROWS(graph.end(), Error);
  CHECK_THROWS(graph.begin(stream, 777), Error);
  Stream& capture = graph.begin(stream, 0);
  CHECK_THROWS(capture.synchronize(), Error);
  Event event(device());
  CHECK_THROWS(event.record(capture), Error);
  Graph inner(device());
  CHECK_THROWS(inner.begin(capture, 0), Error);
  CHECK_THROWS(inner.begin(stream, graph.pool()), Error);
  graph.end();
  CHECK_THROWS(graph.begin(stream, 0), Error);
}

TEST(results_apart_are_written_by_no_other_graph) {
  Stream& stream = device().default_stream();
  const Holder source = make(), other = make();
  fill(*source, stream, 3);
  fill(*other, stream, 4);
  Graph first(device()), second(device());
  Stream& capture = first.begin(stream, 0, /*results_apart=*/true);
  {
    const Holder between(Allocation::create_internal(device(), kBytes));
    copy(*between, *source, capture);
  }
  first.end();
  // The memory of `between` is free for what comes: for `result` only if that is not kept apart.
  Stream& again = second.begin(stream, first.pool(), /*results_apart=*/true);
  const Holder result = make();
  copy(*result, *other, again);
  second.end();
  second.replay(stream);
  CHECK_EQ(last_byte(*result, stream), 4);
  first.replay(stream);
  CHECK_EQ(last_byte(*result, stream), 4);
}

TEST(pressure_leaves_graphs_alone) {
  Stream& stream = device().default_stream();
  stream.synchronize();
  device().empty_cache();
  const uint64_t limit = device().allocator().limit();
  const Holder x = make(1 << 20), y = make(1 << 20);
  fill(*x, stream, 7);
  Graph graph(device());
  Stream& capture = graph.begin(stream, 0);
  copy(*y, *x, capture);
  graph.end();
  const auto reserved = static_cast<uint64_t>(device().allocator().statistics().reserved.current);
  device().allocator().set_limit(reserved + (4 << 20));
  std::vector<Holder> others;
  for (uint8_t i = 0; i < 12; ++i) {
    others.push_back(make(1 << 20));
    fill(*others.back(), stream, i);
  }
  graph.replay(stream);
  CHECK_EQ(last_byte(*y, stream), 7);
  CHECK(x->state() == State::kDevice && y->state() == State::kDevice);
  for (uint8_t i = 0; i < 12; ++i) CHECK_EQ(last_byte(*others[i], stream), static_cast<int>(i));
  device().allocator().set_limit(limit);
}

int main() { return fixture::run_all(); }
