// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "fixture.h"
#include "plan_writer.h"
#include "runtime/batch.h"
#include "runtime/error.h"
#include "runtime/executor.h"
#include "runtime/graph.h"

/// Launches that do not depend on one another, and what keeps its order among them.
using namespace outboard;
using fixture::device;
using fixture::Holder;

namespace {

constexpr int64_t kItems = 4096;

Kernel& kernel(const char* name) {
  Kernel& found = device().programs().kernel(
      "__kernel void twice(__global float* y) { y[get_global_id(0)] *= 2.0f; }"
      "__kernel void next(__global float* y) { y[get_global_id(0)] += 1.0f; }",
      "", name);
  found.get();
  return found;
}

/// Vectors of so many ones.
std::vector<Holder> vectors(size_t count) {
  std::vector<Holder> all;
  for (size_t i = 0; i < count; ++i) all.push_back(fixture::upload(std::vector<float>(kItems, 1.0f)));
  return all;
}

void launch(Kernel& which, Stream& stream, Allocation& memory, uint64_t batch) {
  Work work(stream);
  const ob_ptr pointer = work.resolve(memory);
  const ob_argument argument{1, sizeof(pointer), &pointer};
  const uint64_t global[3] = {kItems, 1, 1};
  const uint32_t local[3] = {1, 1, 1};
  stream.launch(which, global, local, &argument, 1, batch);
}

void launch(const char* name, Stream& stream, Allocation& memory, uint64_t batch = 0) {
  launch(kernel(name), stream, memory, batch);
}

bool all_are(Allocation& memory, float value) {
  return fixture::download(memory, kItems) == std::vector<float>(kItems, value);
}

bool has_batches() { return device().driver().launch_batch != nullptr; }

/// Something for a stream to do while more is put behind it.
class Busy {
 public:
  explicit Busy(Stream& stream) : memory_(fixture::upload({0})) {
    fixture::keep_busy(stream, Pin(*memory_, stream).pointer());
  }

 private:
  Holder memory_;
};

}  // namespace

TEST(a_batch_goes_to_the_driver_together) {
  Stream& stream = device().default_stream();
  const std::vector<Holder> all = vectors(10);
  launch("next", stream, *all[0]);
  stream.synchronize();
  const uint64_t before = fixture::calls("launch_batch");
  const Busy busy(stream);
  Batch batch;
  for (const Holder& each : all) launch("next", stream, *each, batch.number(0));
  stream.synchronize();
  CHECK_EQ(fixture::calls("launch_batch") - before, has_batches() ? 1u : 0u);
  for (size_t i = 0; i < all.size(); ++i) CHECK(all_are(*all[i], i == 0 ? 3.0f : 2.0f));
}

TEST(long_batches_are_complete) {
  Stream& stream = device().default_stream();
  const std::vector<Holder> all = vectors(1500);  // more than wait in the queue at a time
  Batch batch;
  for (const Holder& each : all) launch("next", stream, *each, batch.number(0));
  stream.synchronize();
  for (const Holder& each : all) CHECK_EQ(fixture::download(*each, 1)[0], 2.0f);
}

TEST(what_comes_before_and_after_a_batch_keeps_its_order) {
  Stream& stream = device().default_stream();
  const std::vector<Holder> all = vectors(8);
  float expected = 1;
  for (int round = 0; round < 20; ++round) {
    const Busy busy(stream);
    Batch batch;
    for (const Holder& each : all) launch("twice", stream, *each, batch.number(0));
    for (const Holder& each : all) launch("next", stream, *each);  // no batch
    batch.renew();
    for (const Holder& each : all) launch("twice", stream, *each, batch.number(0));
    batch.renew();
    for (const Holder& each : all) launch("next", stream, *each, batch.number(0));
    expected = (2 * expected + 1) * 2 + 1;
    if (expected > 1e6f) break;
  }
  stream.synchronize();
  for (const Holder& each : all) CHECK(all_are(*each, expected));
}

TEST(commands_end_a_batch) {
  Stream& stream = device().default_stream();
  const std::vector<Holder> all = vectors(4);
  Event event(device());
  const Busy busy(stream);
  Batch batch;
  const float three = 3;
  for (const Holder& each : all) launch("next", stream, *each, batch.number(0));
  for (const Holder& each : all) {
    Work work(stream);
    stream.fill(work.resolve(*each), &three, sizeof(three), kItems * sizeof(float));
  }
  for (const Holder& each : all) launch("twice", stream, *each, batch.number(0));
  event.record(stream);
  for (const Holder& each : all) launch("next", stream, *each, batch.number(0));
  CHECK(!event.query());
  event.synchronize();
  stream.synchronize();
  for (const Holder& each : all) CHECK(all_are(*each, 7.0f));
}

TEST(launches_of_other_threads_end_a_batch) {
  Stream& stream = device().default_stream();
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      const std::vector<Holder> all = vectors(5);
      float expected = 1;
      for (int round = 0; round < 10; ++round) {
        for (const char* name : {"next", "twice"}) {
          Batch batch;
          for (const Holder& each : all) launch(name, stream, *each, batch.number(0));
        }
        expected = (expected + 1) * 2;
      }
      for (const Holder& each : all) wrong += all_are(*each, expected) ? 0 : 1;
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK_EQ(wrong.load(), 0);
}

TEST(a_launch_that_fails_leaves_the_others_of_its_batch) {
  Stream& stream = device().default_stream();
  for (const char* function : {"launch", "launch_batch"}) {
    if (!has_batches() && std::string(function) == "launch_batch") continue;
    const std::vector<Holder> all = vectors(5);
    {
      const Busy busy(stream);
      Batch batch;
      fixture::fail(function, function == std::string("launch") ? 4 : 1, OB_INTERNAL);  // the first is `busy`
      for (const Holder& each : all) launch("next", stream, *each, batch.number(0));
    }
    CHECK_THROWS(stream.synchronize(), Error);
    stream.synchronize();  // told once
    for (size_t i = 0; i < all.size(); ++i) {
      const bool failed = function == std::string("launch_batch") || i == 2;
      CHECK(all_are(*all[i], failed ? 1.0f : 2.0f));
    }
    launch("next", stream, *all[0]);
    stream.synchronize();
    fixture::fail(function, 0, OB_OK);
  }
}

TEST(a_kernel_that_is_not_built_leaves_the_others_of_its_batch) {
  Stream& stream = device().default_stream();
  const std::vector<Holder> all = vectors(3);
  ProgramCache cache(device());
  kernel("next");
  const Busy busy(stream);
  stream.flush();
  fixture::fail("program_build", 1, OB_BUILD_FAILED);
  Kernel& broken = cache.kernel("__kernel void k(__global float* x) { x[0] += 9.0f; }", "", "k");
  const Busy more(stream);
  Batch batch;
  launch("next", stream, *all[0], batch.number(0));
  launch(broken, stream, *all[1], batch.number(0));
  launch("next", stream, *all[2], batch.number(0));
  try {
    stream.synchronize();
    check::fail(__FILE__, __LINE__, "a program that could not be built was launched");
  } catch (const Error& error) {
    CHECK_EQ(error.status(), OB_BUILD_FAILED);
  }
  CHECK(all_are(*all[0], 2.0f));
  CHECK(all_are(*all[1], 1.0f));
  CHECK(all_are(*all[2], 2.0f));
}

TEST(a_replay_behind_a_replay_is_another_batch) {
  Stream& stream = device().default_stream();
  const std::vector<Holder> all = vectors(6);
  Graph graph(device());
  Stream& capture = graph.begin(stream, 0);
  Batch batch;
  for (const Holder& each : all) launch("next", capture, *each, batch.number(0));
  for (const Holder& each : all) launch("next", capture, *each, batch.number(1));  // memory was given: a new batch
  graph.end();
  const Busy busy(stream);
  for (int i = 0; i < 40; ++i) graph.replay(stream);
  stream.synchronize();
  for (const Holder& each : all) CHECK(all_are(*each, 81.0f));
}

TEST(numbers_change_when_memory_was_given) {
  Batch batch, other;
  const uint64_t first = batch.number(7);
  CHECK(first != 0);
  CHECK_EQ(batch.number(7), first);
  CHECK(other.number(7) != first);
  const uint64_t second = batch.number(8);
  CHECK(second != first);
  CHECK_EQ(batch.number(8), second);
  batch.renew();
  CHECK(batch.number(8) != second);
}

namespace {

/// y = 2 y, in place or with another step before.
Executable double_plan(bool with_buffer) {
  PlanParts parts;
  parts.inputs = {Plan::kTensorInput};
  parts.symbols = {wire::symbol(Symbol::kSize, 0, 0)};
  parts.buffers = 2;
  parts.source = "__kernel void twice(__global float* y) { y[get_global_id(0)] *= 2.0f; }";
  parts.entries = {"twice"};
  if (with_buffer) parts.steps.push_back(wire::allocate(1, wire::number(16)));
  parts.steps.push_back(wire::launch(0, wire::number(kItems), {wire::pointer(0)}));
  const std::string bytes = parts.bytes();
  return Executable(Plan::parse(bytes.data(), bytes.size()), device());
}

void run(const Executable& executable, Allocation& memory, Batch& batch) {
  const int64_t size = kItems, stride = 1;
  Input input;
  input.tensor = {&memory, DType::kFloat32, 1, &size, &stride, 0};
  std::vector<Scalar> symbols;
  CHECK(bind_symbols(executable.plan(), &input, symbols));
  ExecutionContext context{device().default_stream()};
  context.batch = &batch;
  std::vector<Result> results;
  executable.run(&input, symbols, context, results);
}

uint64_t batches_of(const Executable& executable, const std::vector<Holder>& all) {
  Stream& stream = device().default_stream();
  executable.wait_until_built();
  const uint64_t before = fixture::calls("launch_batch");
  const Busy busy(stream);
  Batch batch;
  for (const Holder& each : all) run(executable, *each, batch);
  stream.synchronize();
  return fixture::calls("launch_batch") - before;
}

}  // namespace

TEST(plans_that_are_one_launch_make_a_batch) {
  const std::vector<Holder> all = vectors(6);
  CHECK_EQ(batches_of(double_plan(false), all), has_batches() ? 1u : 0u);
  CHECK_EQ(batches_of(double_plan(true), all), 0u);  // their launches may depend on their other steps
  for (const Holder& each : all) CHECK(all_are(*each, 4.0f));
}

TEST(memory_that_is_given_in_between_ends_a_batch) {
  std::vector<Holder> all = vectors(2);
  for (int i = 0; i < 2; ++i) all.emplace_back(Allocation::create(device(), kItems * sizeof(float)));  // no memory yet
  // The first two go together; each of the others gets memory, which somebody may have used a moment ago.
  CHECK_EQ(batches_of(double_plan(false), all), has_batches() ? 1u : 0u);
  while (all.size() > 2) all.pop_back();
  for (const Holder& each : all) CHECK(all_are(*each, 2.0f));
}

int main() { return fixture::run_all(); }
