// SPDX-License-Identifier: Apache-2.0
/// Functions that a driver loads from bytes: the simulator's executables, run by plans, in stream order.
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "check.h"
#include "fixture.h"
#include "plan_writer.h"
#include "runtime/base/error.h"
#include "runtime/plans/executor.h"
#include "runtime/streams/graph.h"

using namespace outboard;
using fixture::device;
using fixture::Holder;

namespace {

/// An executable of the simulator, under its first line.
std::string sealed(const std::string& lines) {
  uint64_t checksum = 0xcbf29ce484222325;
  for (const char each : lines) checksum = (checksum ^ static_cast<unsigned char>(each)) * 0x100000001b3;
  char head[64];
  std::snprintf(head, sizeof(head), "outboard-sim 1 %016" PRIx64 "\n", checksum);
  return head + lines;
}

/// c = a * b + number, and their sum, of three floats.
const std::string kCode = sealed(
    "input 6 3\n"
    "input 6 3\n"
    "input 7 -\n"
    "multiply 6 3 %0 %1\n"
    "broadcast 6 3 %2\n"
    "add 6 3 %3 %4\n"
    "sum 6 - %5 0\n"
    "result 6 3 %5\n"
    "result 6 1 %6\n");

PlanWriter tensor(uint32_t buffer, int64_t size) {
  return PlanWriter().u8(CallArgument::kTensor).append(wire::view(buffer, wire::number(size)));
}

PlanWriter number(double value) {
  CallArgument argument;
  argument.kind = CallArgument::kFloat;
  argument.number = value;
  return PlanWriter(argument);
}

PlanParts parts_of(const std::string& code, int64_t size = 3) {
  PlanParts parts;
  parts.inputs = {Plan::kTensorInput, Plan::kTensorInput, Plan::kTensorInput, Plan::kTensorInput};
  parts.buffers = 4;
  parts.steps = {wire::execute(code, {tensor(0, size), tensor(1, size), number(0.5)},
                               {wire::view(2, wire::number(size)), wire::view(3, wire::number(1))})};
  return parts;
}

std::unique_ptr<Executable> compile(const PlanParts& parts) {
  const std::string bytes = parts.bytes();
  return std::make_unique<Executable>(Plan::parse(bytes.data(), bytes.size()), device());
}

/// The operands in the device's memory, and plans run on them.
class Operands {
 public:
  void run(const Executable& executable, Stream& stream) {
    fixture::run(executable, stream, {&a, &b, &c, &total}, count);
  }
  bool are_right() const {
    return fixture::download(*c, 3) == std::vector<float>{4.5, 10.5, 18.5} &&
           fixture::download(*total, 1) == std::vector<float>{33.5};
  }

  Holder a = fixture::upload({1, 2, 3}), b = fixture::upload({4, 5, 6});
  Holder c = fixture::upload({-1, -1, -1}), total = fixture::upload({-1});

 private:
  static constexpr int64_t count = 3;
};

/// Three floats, behind a fourth that is 7.
PlanWriter behind_a_seven() {
  LayoutSpec layout{"behind a seven", DType::kFloat32, {3}, DType::kFloat32, {4}, "", "", 0, 0};
  layout.to_code = sealed(
      "input 6 3\n"
      "full 6 4 #0x1.cp+2\n"
      "update 6 4 %1 %0 0 1 1\n"
      "result 6 4 %2\n");
  layout.from_code = sealed(
      "input 6 4\n"
      "slice 6 3 %0 0 1 1\n"
      "result 6 3 %1\n");
  return PlanWriter(layout);
}

PlanParts with_layout(std::vector<PlanWriter> steps) {
  PlanParts parts;
  parts.inputs = {Plan::kTensorInput, Plan::kTensorInput};
  parts.buffers = 3;
  parts.layouts = {behind_a_seven()};
  parts.steps = std::move(steps);
  return parts;
}

/// Whether a plan of this code is refused, and by what status.
ob_status status_of(const PlanParts& parts) {
  try {
    compile(parts);
  } catch (const Error& error) {
    return error.status();
  }
  return OB_OK;
}

}  // namespace

TEST(a_plan_runs_an_executable) {
  Operands operands;
  operands.run(*compile(parts_of(kCode)), device().default_stream());
  CHECK(operands.are_right());
}

TEST(equal_bytes_are_loaded_once_and_released_with_their_last_plan) {
  const uint64_t loads = fixture::calls("function_load");
  auto first = compile(parts_of(kCode)), second = compile(parts_of(kCode));
  CHECK_EQ(fixture::calls("function_load") - loads, 1u);
  CHECK_EQ(fixture::live("function"), 1);
  first.reset();
  CHECK_EQ(fixture::live("function"), 1);
  second.reset();
  CHECK_EQ(fixture::live("function"), 0);
}

TEST(executables_run_in_stream_order_and_outlive_their_plan) {
  Operands operands;
  Stream& stream = device().pool_stream();
  {
    fixture::Pause pause(stream);
    operands.run(*compile(parts_of(kCode)), stream);  // whose plan is gone before the work begins
    CHECK(!stream.query());
  }
  stream.synchronize();
  CHECK(operands.are_right());
}

TEST(graphs_hold_executables) {
  Operands operands;
  Stream& stream = device().default_stream();
  Graph graph(device());
  operands.run(*compile(parts_of(kCode)), graph.begin(stream, 0));
  graph.end();
  CHECK_EQ(fixture::live("function"), 1);
  graph.replay(stream);
  CHECK(operands.are_right());
}

TEST(contents_stay_in_a_layout_until_other_work_needs_them) {
  Holder a = fixture::upload({1, 2, 3}), b = fixture::upload({0, 0, 0});
  Stream& stream = device().default_stream();
  const auto run = [&](std::vector<PlanWriter> steps) {
    fixture::run(*compile(with_layout(std::move(steps))), stream, {&a, &b}, 3);
  };
  const auto count = [] { return device().residency().statistics().relayouts.count; };
  const int64_t before = count();
  run({wire::to_layout(0, 0, 2)});
  run({wire::to_layout(0, 0, 2)});
  CHECK_EQ(count() - before, 1);
  CHECK(a->state() == State::kArranged);
  CHECK_EQ(a->arrangement()->layout().name(), std::string("behind a seven"));
  CHECK_EQ(device().residency().statistics().arranged.count, 1);
  run({wire::to_layout(0, 0, 2), wire::from_layout(2, 1, 0)});
  CHECK_EQ(count() - before, 1);
  CHECK(b->state() == State::kArranged);
  CHECK(fixture::download(*b, 3) == std::vector<float>({1, 2, 3}));
  CHECK(b->state() == State::kDevice && a->state() == State::kArranged);
  CHECK(fixture::download(*a, 3) == std::vector<float>({1, 2, 3}));
  CHECK_EQ(count() - before, 3);
  CHECK_EQ(device().residency().statistics().arranged.count, 0);
}

TEST(a_part_of_an_allocation_and_one_that_may_not_move_are_copied_each_time) {
  Holder a = fixture::upload({1, 2, 3, 4}), b = fixture::upload({0, 0, 0, 0});
  Stream& stream = device().default_stream();
  const auto plan = compile(with_layout({wire::to_layout(0, 4, 2), wire::from_layout(2, 1, 4)}));
  fixture::run(*plan, stream, {&a, &b}, 4);
  CHECK(a->state() == State::kDevice && b->state() == State::kDevice);
  CHECK(fixture::download(*b, 4) == std::vector<float>({0, 2, 3, 4}));
  Holder held = fixture::upload({5, 6, 7}), into = fixture::upload({0, 0, 0});
  held->pin();
  into->hold();
  fixture::run(*compile(with_layout({wire::to_layout(0, 0, 2), wire::from_layout(2, 1, 0)})), stream, {&held, &into},
               3);
  CHECK(held->state() == State::kDevice && into->state() == State::kDevice);
  held->unpin();
  into->let_go();
  CHECK(fixture::download(*into, 3) == std::vector<float>({5, 6, 7}));
}

TEST(another_stream_waits_for_the_way_to_a_layout) {
  Holder a = fixture::upload({1, 2, 3}), b = fixture::upload({0, 0, 0});
  Stream &first = device().pool_stream(), &second = device().pool_stream();
  {
    fixture::Pause pause(first);
    fixture::run(*compile(with_layout({wire::to_layout(0, 0, 2)})), first, {&a, &b}, 3);
    CHECK(a->state() == State::kArranged);
    fixture::run(*compile(with_layout({wire::to_layout(0, 0, 2), wire::from_layout(2, 1, 0)})), second, {&a, &b}, 3);
    Work work(second);
    work.resolve(*b);
    CHECK(!second.query());
  }
  second.synchronize();
  CHECK(fixture::download(*b, 3) == std::vector<float>({1, 2, 3}));
}

TEST(graphs_bring_contents_to_a_layout_at_each_replay) {
  Holder a = fixture::upload({1, 2, 3}), b = fixture::upload({0, 0, 0});
  Stream& stream = device().default_stream();
  const auto plan = compile(with_layout({wire::to_layout(0, 0, 2), wire::from_layout(2, 1, 0)}));
  fixture::run(*plan, stream, {&a, &b}, 3);  // in the layout when the graph is captured
  Graph graph(device());
  fixture::run(*plan, graph.begin(stream, 0), {&a, &b}, 3);
  graph.end();
  const float changed[] = {7, 8, 9};
  {
    Work work(stream);
    stream.copy(OB_HOST_TO_DEVICE, work.resolve(*a), reinterpret_cast<ob_ptr>(changed), sizeof(changed));
  }
  graph.replay(stream);
  CHECK(fixture::download(*b, 3) == std::vector<float>({7, 8, 9}));
}

TEST(plans_with_layouts_that_lead_out_of_memory_are_refused) {
  Holder a = fixture::upload({1, 2, 3}), b = fixture::upload({0, 0});
  const auto status = [&](std::vector<PlanWriter> steps) {
    try {
      fixture::run(*compile(with_layout(std::move(steps))), device().default_stream(), {&a, &b}, 3);
    } catch (const Error& error) {
      return error.status();
    }
    return OB_OK;
  };
  CHECK_EQ(status({wire::to_layout(0, 0, 2)}), OB_OK);
  for (const int64_t offset : {-4, 4, 12, 1 << 30}) {
    CHECK_EQ(status({wire::to_layout(0, offset, 2)}), OB_INVALID_ARGUMENT);
  }
  CHECK_EQ(status({wire::to_layout(1, 0, 2)}), OB_INVALID_ARGUMENT);                              // too small
  CHECK_EQ(status({wire::to_layout(0, 0, 2), wire::from_layout(2, 1, 0)}), OB_INVALID_ARGUMENT);  // too small
  CHECK_EQ(status({wire::to_layout(0, 0, 1)}), OB_INVALID_ARGUMENT);                              // an input
  CHECK_EQ(status({wire::to_layout(0, 0, 2, 1)}), OB_INVALID_ARGUMENT);                           // no such layout
  CHECK_EQ(status({wire::from_layout(1, 0, 0)}), OB_INVALID_ARGUMENT);                            // of an input
  CHECK_EQ(status({wire::from_layout(2, 0, 0)}), OB_INVALID_ARGUMENT);                            // of nothing
  CHECK_EQ(status({wire::allocate(2, wire::number(8)), wire::from_layout(2, 0, 0)}), OB_INVALID_ARGUMENT);
}

TEST(damaged_bytes_are_refused) {
  for (size_t i = 0; i < kCode.size(); ++i) {
    std::string damaged = kCode;
    damaged[i] = static_cast<char>(damaged[i] ^ 1);
    CHECK_EQ(status_of(parts_of(damaged)), OB_BUILD_FAILED);
    CHECK_EQ(status_of(parts_of(kCode.substr(0, i) + " ")), OB_BUILD_FAILED);
  }
  CHECK_EQ(status_of(parts_of(sealed("input 6 3\nconjure 6 3 %0\n"))), OB_BUILD_FAILED);
  CHECK_EQ(status_of(parts_of(sealed("input 6 3\nadd 6 3 %0 %1\n"))), OB_BUILD_FAILED);
  CHECK_EQ(status_of(parts_of(kCode)), OB_OK);
}

TEST(operands_of_other_sizes_are_refused) {
  Operands operands;
  const auto executable = compile(parts_of(kCode, 2));
  CHECK_THROWS((operands.run(*executable, device().default_stream()), device().synchronize()), Error);
}

TEST(what_goes_wrong_in_an_executable_is_told_by_a_wait) {
  const std::string code =
      sealed("input 6 3\ninput 6 3\ninput 7 -\ntake 6 3 %0 %1 0\nsum 6 - %3 0\nresult 6 3 %3\nresult 6 1 %4\n");
  Operands operands;
  const auto executable = compile(parts_of(code));  // whose indices, 4 to 6, are out of range
  CHECK_THROWS((operands.run(*executable, device().default_stream()), device().synchronize()), IndexError);
  operands.run(*compile(parts_of(kCode)), device().default_stream());
  CHECK(operands.are_right());
}

TEST(failures_of_the_driver_are_told) {
  Operands operands;
  for (const ob_status status : {OB_BUILD_FAILED, OB_OUT_OF_MEMORY, OB_INTERNAL}) {
    fixture::fail("function_load", 1, status);
    CHECK_EQ(status_of(parts_of(kCode)), status);
  }
  const auto executable = compile(parts_of(kCode));
  fixture::fail("library_call", 1, OB_OUT_OF_MEMORY);
  CHECK_THROWS((operands.run(*executable, device().default_stream()), device().synchronize()), Error);
  operands.run(*executable, device().default_stream());
  CHECK(operands.are_right());
}

TEST(a_plan_of_an_executable_does_not_lead_out_of_memory) {
  Operands operands;
  CHECK_THROWS(operands.run(*compile(parts_of(kCode, 1 << 20)), device().default_stream()), Error);
}

int main() { return fixture::run_all(); }
