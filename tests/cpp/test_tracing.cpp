// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <vector>

#include "check.h"
#include "fixture.h"
#include "runtime/base/error.h"
#include "runtime/programs/program_cache.h"
#include "runtime/streams/batch.h"
#include "runtime/streams/graph.h"
#include "runtime/streams/tracing.h"

/// What a profiler is told of the work of streams.
using namespace outboard;
using fixture::device;
using Kind = TracedWork::Kind;

namespace {

int64_t now() {
  const auto time = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time).count();
}

int64_t count(const std::vector<TracedWork>& works, Kind kind) {
  return std::count_if(works.begin(), works.end(), [&](const TracedWork& work) { return work.kind == kind; });
}

}  // namespace

TEST(each_kind_of_work_has_its_times_and_who_submitted_it) {
  Stream& stream = device().pool_stream();
  const fixture::Holder x = fixture::upload({0, 0});
  const Pin pin(*x, stream);
  stream.synchronize();
  const int64_t before = now();
  start_tracing();
  push_traced_range(90);
  push_traced_operation(7);
  fixture::keep_busy(stream, pin.pointer());
  push_traced_operation(8);
  const float one = 1;
  stream.fill(pin.pointer() + sizeof(float), &one, sizeof(float), sizeof(float));
  pop_traced_operation();
  pop_traced_range();
  float values[2] = {0, 0};
  stream.copy(OB_DEVICE_TO_HOST, reinterpret_cast<uint64_t>(values), pin.pointer(), sizeof(values));
  pop_traced_operation();
  stream.synchronize();
  const std::vector<TracedWork> works = stop_tracing();
  const int64_t after = now();
  CHECK(works.size() >= 3);
  CHECK_EQ(count(works, Kind::kKernel), 1);
  CHECK_EQ(count(works, Kind::kFill), 1);
  CHECK_EQ(count(works, Kind::kCopy), 1);
  int64_t last = before;
  for (const TracedWork& work : works) {
    CHECK_EQ(work.device, device().index());
    CHECK_EQ(work.stream, stream.id());
    CHECK(before <= work.submit_begin && work.submit_begin <= work.submit_end && work.submit_end <= after);
    // Clocks of a device and of the host agree within a hair; work of one stream comes one after the other.
    CHECK(work.begin >= last - 1000000 && work.begin <= work.end && work.end <= after + 1000000);
    last = work.end;
  }
  const TracedWork& kernel = works[0];
  CHECK(kernel.kind == Kind::kKernel && !kernel.name.empty());
  CHECK(kernel.end - kernel.begin > 1000000);  // tens of milliseconds of counting
  CHECK_EQ(kernel.operation, 7u);
  CHECK_EQ(kernel.range, 90u);
  CHECK(works[1].kind == Kind::kFill);
  CHECK_EQ(works[1].operation, 8u);
  CHECK_EQ(works[1].bytes, sizeof(float));
  CHECK(works[2].kind == Kind::kCopy && works[2].direction == OB_DEVICE_TO_HOST);
  CHECK_EQ(works[2].operation, 7u);
  CHECK_EQ(works[2].range, 0u);
  CHECK_EQ(works[2].bytes, sizeof(values));
  CHECK_EQ(values[0], 1.0f);
  CHECK_EQ(values[1], 1.0f);
}

TEST(nothing_is_recorded_when_nobody_asks) {
  Stream& stream = device().pool_stream();
  const fixture::Holder x = fixture::upload({0});
  const Pin pin(*x, stream);
  const uint64_t before = fixture::calls("event_record");
  fixture::keep_busy(stream, pin.pointer());
  stream.synchronize();
  CHECK_EQ(fixture::calls("event_record"), before);
  CHECK(stop_tracing().empty());
  start_tracing();
  CHECK(stop_tracing().empty());
}

TEST(work_whose_time_cannot_be_taken_runs_all_the_same) {
  Stream& stream = device().pool_stream();
  const fixture::Holder x = fixture::upload({0});
  const Pin pin(*x, stream);
  stream.synchronize();
  for (const char* function : {"event_record", "event_elapsed"}) {
    const float earlier = fixture::download(*x, 1)[0];
    start_tracing();
    fixture::fail(function, 1, OB_INTERNAL);
    fixture::keep_busy(stream, pin.pointer());
    stream.synchronize();
    fixture::keep_busy(stream, pin.pointer());
    const std::vector<TracedWork> works = stop_tracing();
    fixture::fail(function, 0, OB_OK);
    CHECK_EQ(works.size(), 2u);
    CHECK_EQ(works[0].end, 0);
    CHECK(works[1].end > works[1].begin);
    CHECK_EQ(fixture::download(*x, 1)[0], earlier + 2);
  }
}

TEST(a_failure_is_left_to_who_waits) {
  Stream& stream = device().pool_stream();
  const fixture::Holder x = fixture::upload({0});
  const Pin pin(*x, stream);
  stream.synchronize();
  start_tracing();
  fixture::fail("launch", 1, OB_INTERNAL);
  try {
    fixture::keep_busy(stream, pin.pointer());
  } catch (const Error&) {  // where it was launched at once
    stop_tracing();
    return;
  }
  CHECK_EQ(stop_tracing().size(), 1u);
  CHECK_THROWS(stream.synchronize(), Error);
  stream.synchronize();
}

TEST(kernels_of_a_batch_are_traced_one_by_one) {
  Stream& stream = device().pool_stream();
  const fixture::Holder x = fixture::upload({0}), y = fixture::upload({0});
  const Pin first(*x, stream), second(*y, stream);
  stream.synchronize();
  const int64_t steps = 100000;
  Kernel& kernel = fixture::slow_kernel();
  start_tracing();
  for (const Pin* pin : {&first, &second}) {
    const ob_ptr pointer = pin->pointer();
    Launch launch = fixture::launch_of(kernel, pointer, 1, 12345);
    launch.arguments = Arguments(2);
    launch.arguments.set_pointer(0, pointer);
    launch.arguments.set(1, steps);
    stream.launch(launch);
  }
  const std::vector<TracedWork> works = stop_tracing();
  CHECK_EQ(works.size(), 2u);
  CHECK(works[0].end <= works[1].begin + 1000000 && works[1].end > works[1].begin);
  CHECK_EQ(fixture::download(*x, 1)[0] + fixture::download(*y, 1)[0], 2.0f);
}

TEST(replays_of_graphs_are_traced) {
  Stream& stream = device().pool_stream();
  const fixture::Holder x = fixture::upload({0});
  stream.synchronize();
  Graph graph(device());
  {
    Stream& recorded = graph.begin(stream, 0);
    Work work(recorded);
    fixture::keep_busy(recorded, work.resolve(*x));
  }
  graph.end();
  start_tracing();
  graph.replay(stream);
  graph.replay(stream);
  const std::vector<TracedWork> works = stop_tracing();
  CHECK_EQ(count(works, Kind::kKernel) + count(works, Kind::kGraph), 2);
  for (const TracedWork& work : works) CHECK(work.end > work.begin);
}

TEST(what_the_host_did_is_kept_with_the_times_that_it_has) {
  TracedWork collective;
  collective.kind = Kind::kCollective;
  collective.name = "sum";
  collective.begin = 5;
  collective.end = 7;
  trace_ended(collective);  // nothing is traced yet
  start_tracing();
  push_traced_operation(3);
  CHECK_EQ(traced_operation(), 3u);
  pop_traced_operation();
  CHECK_EQ(traced_operation(), 0u);
  trace_ended(collective);
  const std::vector<TracedWork> works = stop_tracing();
  CHECK_EQ(works.size(), 1u);
  CHECK(works[0].kind == Kind::kCollective && works[0].name == "sum" && works[0].begin == 5 && works[0].end == 7);
  start_tracing();
  CHECK(stop_tracing().empty());
}

int main() { return fixture::run_all(); }
