// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <map>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "fixture.h"
#include "plan_writer.h"
#include "runtime/base/driver_call.h"
#include "runtime/base/error.h"
#include "runtime/plans/executor.h"
#include "runtime/streams/batch.h"
#include "runtime/streams/graph.h"

/// Launches that do not depend on one another, and what keeps its order among them.
using namespace outboard;
using fixture::device;
using fixture::Holder;

namespace {

constexpr int64_t kItems = 4096;

Kernel& kernel(const char* name) {
  static std::map<std::string, KernelUse> known;
  const auto at = known.find(name);
  if (at != known.end()) return *at->second;
  KernelUse found = device().programs().kernel(
      "__kernel void twice(__global float* y) { y[get_global_id(0)] *= 2.0f; }"
      "__kernel void next(__global float* y) { y[get_global_id(0)] += 1.0f; }",
      "", name);
  found->get();
  return *known.emplace(name, std::move(found)).first->second;
}

/// Vectors of so many ones.
std::vector<Holder> vectors(size_t count) {
  std::vector<Holder> all;
  for (size_t i = 0; i < count; ++i) all.push_back(fixture::upload(std::vector<float>(kItems, 1.0f)));
  return all;
}

void launch(const char* name, Stream& stream, Allocation& memory, uint64_t batch = 0) {
  Work work(stream);
  stream.launch(fixture::launch_of(kernel(name), work.resolve(memory), kItems, batch));
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

/// A queue that hands nothing over before it is let go.
class Held {
 public:
  Held() : queue_(device().driver(), stream_.handle(), device().order().lock()) {
    queue_.put([this] {
      while (!free_.load()) std::this_thread::yield();
    });
  }
  ~Held() {
    free_.store(true);
    queue_.stop();
  }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;

  void launch(Kernel& which, Allocation& memory, uint64_t batch) {
    const ob_ptr pointer = Pin(memory, stream_).pointer();
    stream_.synchronize();
    queue_.put(fixture::launch_of(which, pointer, kItems, batch));
  }
  /// Hands everything over and waits for it. Throws what failed.
  void finish() {
    free_.store(true);
    queue_.drain();
    outboard::check(device().driver(), device().driver().stream_wait(stream_.handle(), 1), "waiting for a stream");
  }

 private:
  Stream& stream_ = device().pool_stream();
  SubmissionQueue queue_;
  std::atomic<bool> free_{false};
};

}  // namespace

TEST(a_batch_goes_to_the_driver_together) {
  const std::vector<Holder> all = vectors(10);
  const uint64_t before = fixture::calls("launch_batch");
  Held queue;
  Batch batch;
  for (const Holder& each : all) queue.launch(kernel("next"), *each, batch.number(0));
  for (const Holder& each : all) queue.launch(kernel("twice"), *each, 0);  // each by itself
  batch.renew();
  for (const Holder& each : all) queue.launch(kernel("next"), *each, batch.number(0));
  batch.renew();
  for (const Holder& each : all) queue.launch(kernel("twice"), *each, batch.number(0));
  queue.finish();
  CHECK_EQ(fixture::calls("launch_batch") - before, has_batches() ? 3u : 0u);
  for (const Holder& each : all) CHECK(all_are(*each, 10.0f));
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
  const std::vector<Holder> all = vectors(5);
  Held queue;
  Batch batch;
  fixture::fail("launch", 3, OB_INTERNAL);
  for (const Holder& each : all) queue.launch(kernel("next"), *each, batch.number(0));
  CHECK_THROWS(queue.finish(), Error);
  queue.finish();  // told once
  for (size_t i = 0; i < all.size(); ++i) CHECK(all_are(*all[i], i == 2 ? 1.0f : 2.0f));
}

TEST(a_batch_that_fails_leaves_what_comes_after_it) {
  if (!has_batches()) return;
  const std::vector<Holder> all = vectors(3);
  Held queue;
  Batch batch;
  fixture::fail("launch_batch", 1, OB_INTERNAL);
  for (const Holder& each : all) queue.launch(kernel("next"), *each, batch.number(0));
  for (const Holder& each : all) queue.launch(kernel("twice"), *each, 0);
  CHECK_THROWS(queue.finish(), Error);
  queue.finish();
  for (const Holder& each : all) CHECK(all_are(*each, 2.0f));
}

TEST(a_kernel_that_is_not_built_leaves_the_others_of_its_batch) {
  const std::vector<Holder> all = vectors(3);
  ProgramCache cache(device());
  fixture::fail("program_build", 1, OB_BUILD_FAILED);
  const KernelUse broken = cache.kernel("__kernel void k(__global float* x) { x[0] += 9.0f; }", "", "k");
  Held queue;
  Batch batch;
  queue.launch(kernel("next"), *all[0], batch.number(0));
  queue.launch(*broken, *all[1], batch.number(0));
  queue.launch(kernel("next"), *all[2], batch.number(0));
  try {
    queue.finish();
    check::fail(__FILE__, __LINE__, "a program that could not be built was launched");
  } catch (const Error& error) {
    CHECK_EQ(error.status(), OB_BUILD_FAILED);
  }
  queue.finish();  // told once
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

void run(const Executable& executable, Stream& stream, Allocation& memory, Batch& batch) {
  const int64_t size = kItems, stride = 1;
  Input input;
  input.tensor = {&memory, DType::kFloat32, 1, &size, &stride, 0};
  std::vector<Scalar> symbols;
  CHECK(executable.bind(&input, symbols));
  ExecutionContext context{stream};
  context.batch = &batch;
  std::vector<Result> results;
  executable.run(&input, symbols, context, results);
}

/// The batches that runs of a plan belong to, numbered from 1 in the order of their appearance; 0 for none.
std::vector<int> batches_of(const Executable& executable, const std::vector<Holder>& all) {
  Stream& stream = device().default_stream();
  Graph graph(device());
  Stream& capture = graph.begin(stream, 0);
  Batch batch;
  for (const Holder& each : all) run(executable, capture, *each, batch);
  graph.end();
  graph.replay(stream);
  stream.synchronize();
  std::vector<int> found;
  std::map<std::string, int> numbers;
  std::istringstream lines(graph.text());
  for (std::string line; std::getline(lines, line);) {
    const size_t at = line.find(" batch ");
    if (line.rfind("launch", 0) != 0) continue;
    found.push_back(at == std::string::npos ? 0 : numbers.emplace(line.substr(at), numbers.size() + 1).first->second);
  }
  return found;
}

}  // namespace

TEST(plans_that_are_one_launch_make_a_batch) {
  const std::vector<Holder> all = vectors(4);
  CHECK((batches_of(double_plan(false), all) == std::vector<int>{1, 1, 1, 1}));
  CHECK((batches_of(double_plan(true), all) == std::vector<int>{0, 0, 0, 0}));  // they may depend on their other steps
  for (const Holder& each : all) CHECK(all_are(*each, 4.0f));
}

TEST(memory_that_is_given_in_between_ends_a_batch) {
  std::vector<Holder> all = vectors(4);
  const uint64_t bytes = kItems * sizeof(float);
  all.insert(all.begin() + 2, Holder(Allocation::create(device(), bytes)));  // without memory, and then with some
  all.emplace_back(Allocation::create(device(), bytes));                     // that somebody may have used a moment ago
  CHECK((batches_of(double_plan(false), all) == std::vector<int>{1, 1, 2, 2, 2, 3}));
  for (const size_t i : {0, 1, 3, 4}) CHECK(all_are(*all[i], 2.0f));
}

int main() { return fixture::run_all(); }
