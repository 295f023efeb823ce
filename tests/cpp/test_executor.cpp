// SPDX-License-Identifier: Apache-2.0
#include <numeric>
#include <thread>

#include "check.h"
#include "fixture.h"
#include "plan_writer.h"
#include "runtime/base/error.h"
#include "runtime/plans/executor.h"
#include "runtime/streams/graph.h"

/// Every kind of step, argument and result of a plan, run on a device.
using namespace outboard;
using fixture::device;
using fixture::Holder;

namespace {

constexpr const char* kSource =
    "__kernel void add_index(__global float* y, __global const float* x) {"
    "  long i = get_global_id(0); y[i] = x[i] + i; }"
    "__kernel void demand(__global float* x, __global int* failed) { if (x[get_global_id(0)] < 0) *failed = 5; }"
    "__kernel void set(__global float* y, long value) { y[get_global_id(0)] = value; }"
    "__kernel void set_but_read_nothing(__global float* y, __global const float* x) { y[get_global_id(0)] = 3; }"
    "__kernel void grid(__global int* y) {"
    "  long w = get_global_size(0), h = get_global_size(1);"
    "  y[(get_global_id(2) * h + get_global_id(1)) * w + get_global_id(0)] ="
    "    get_global_id(2) * 100 + get_global_id(1) * 10 + get_global_id(0); }";

Executable compile(const PlanParts& parts) {
  const std::string bytes = parts.bytes();
  return Executable(Plan::parse(bytes.data(), bytes.size()), device());
}

/// A one-dimensional float tensor over `holder`.
struct Tensor {
  Tensor(const Holder& holder, int64_t size_, int64_t offset = 0) : size(size_) {
    binding = {holder.get(), DType::kFloat32, 1, &size, &stride, offset};
  }
  Tensor(const Tensor&) = delete;
  Tensor& operator=(const Tensor&) = delete;
  int64_t size, stride = 1;
  TensorBinding binding;
};

std::vector<Result> run(const Executable& executable, const std::vector<Input>& inputs,
                        std::function<void(int64_t*, int64_t)> seeds = {}) {
  std::vector<Scalar> symbols;
  if (!executable.bind(inputs.data(), symbols)) throw std::runtime_error("guards do not hold");
  ExecutionContext context{device().default_stream(), std::move(seeds)};
  std::vector<Result> results;
  executable.run(inputs.data(), symbols, context, results);
  return results;
}

Input input(const Tensor& tensor) {
  Input made;
  made.tensor = tensor.binding;
  return made;
}

PlanParts one_input(uint32_t buffers) {
  PlanParts parts;
  parts.inputs = {Plan::kTensorInput};
  parts.symbols = {wire::symbol(Symbol::kSize, 0, 0)};
  parts.buffers = buffers;
  parts.source = kSource;
  parts.entries = {"add_index", "set", "grid", "demand"};
  return parts;
}

int64_t allocated() { return device().allocator().statistics().allocated.current; }
int64_t active() { return device().allocator().statistics().active.current; }

}  // namespace

TEST(a_chain_of_kernels_uses_intermediates) {
  const Holder x = fixture::upload({1, 2, 3});
  const int64_t before = allocated();
  {
    PlanParts parts = one_input(3);
    parts.steps = {wire::allocate(1, wire::number(12)),
                   wire::launch(0, wire::number(3), {wire::pointer(1), wire::pointer(0)}),
                   wire::allocate(2, wire::number(12)),
                   wire::launch(0, wire::number(3), {wire::pointer(2), wire::pointer(1)}), wire::free(1)};
    parts.outputs = {wire::output(wire::view(2, wire::number(3)))};
    const Tensor tensor(x, 3);
    std::vector<Result> results = run(compile(parts), {input(tensor)});
    CHECK_EQ(results.size(), 1u);
    CHECK(results[0].new_allocation);
    const Holder y(results[0].allocation);
    CHECK(fixture::download(*y, 3) == (std::vector<float>{1, 4, 7}));
    CHECK_EQ(allocated(), before + 12);  // the result, and nothing of the way to it
  }
  CHECK_EQ(allocated(), before);
}

TEST(a_plan_asks_its_device_how_many_compute_units_there_are) {
  const Holder x = fixture::upload({0, 0, 0});
  const Tensor tensor(x, 3);
  PlanParts parts = one_input(1);
  parts.symbols.push_back(wire::symbol(Symbol::kComputeUnits, 0));
  parts.steps = {wire::launch(1, wire::number(3), {wire::pointer(0), wire::int64({{Expr::kSymbol, 1}})})};
  run(compile(parts), {input(tensor)});
  const auto units = static_cast<float>(device().properties().compute_units);
  CHECK(units > 0);
  CHECK(fixture::download(*x, 3) == (std::vector<float>{units, units, units}));
}

TEST(launches_that_follow_one_another_replay_as_graphs_of_the_driver) {
  Stream& stream = device().default_stream();
  const Holder x = fixture::upload({0, 0, 0});
  const Tensor tensor(x, 3);
  PlanParts parts = one_input(3);  // x becomes x + 2 i by way of 1 and 2, with a copy among the launches
  const auto add = [](uint32_t to, uint32_t from) {
    return wire::launch(0, wire::number(3), {wire::pointer(to), wire::pointer(from)});
  };
  parts.steps = {wire::allocate(1, wire::number(12)),
                 wire::allocate(2, wire::number(12)),
                 add(1, 0),
                 add(2, 1),
                 wire::copy(2, 0, 0, 0, 12),
                 add(1, 2),
                 add(2, 1),
                 wire::free(1),
                 wire::free(2)};
  const Executable executable = compile(parts);
  run(executable, {input(tensor)});
  CHECK(fixture::download(*x, 3) == (std::vector<float>{0, 2, 4}));
  Graph graph(device());
  const auto capture = [&] {
    graph.reset();
    std::vector<Scalar> symbols;
    const std::vector<Input> inputs{input(tensor)};
    CHECK(executable.bind(inputs.data(), symbols));
    ExecutionContext context{graph.begin(stream, 0)};
    std::vector<Result> results;
    executable.run(inputs.data(), symbols, context, results);
    graph.end();
  };
  capture();
  const uint64_t launches = fixture::calls("graph_launch");
  for (int i = 0; i < 10; ++i) graph.replay(stream);  // the next begins before the one before is done
  CHECK(fixture::download(*x, 3) == (std::vector<float>{0, 22, 44}));
  const bool has_graphs = fixture::calls("capture_end") > 0;
  CHECK_EQ(fixture::calls("graph_launch") - launches, has_graphs ? 20u : 0u);

  fixture::fail("capture_begin", 1, OB_UNSUPPORTED);  // then launch by launch
  capture();
  graph.replay(stream);
  CHECK(fixture::download(*x, 3) == (std::vector<float>{0, 24, 48}));
  fixture::fail("capture_begin", 0, OB_OK);
  if (!has_graphs) return;

  for (const char* function : {"capture_begin", "launch", "capture_end", "graph_launch"}) {
    capture();
    fixture::fail(function, 1, OB_OUT_OF_MEMORY);
    CHECK_THROWS((graph.replay(stream), stream.synchronize()), Error);
    graph.reset();
  }
  run(executable, {input(tensor)});
  stream.synchronize();
}

TEST(a_kernel_tells_of_wrong_values) {
  PlanParts parts = one_input(1);
  parts.assertions = {wire::assertion(5, Assertions::kIndexError, "a value is negative")};
  parts.steps = {wire::launch(3, wire::number(3), {wire::pointer(0), wire::assertions()})};
  const Executable executable = compile(parts);
  const Holder right = fixture::upload({1, 0, 3}), wrong = fixture::upload({1, -1, 3});
  for (int i = 0; i < 3; ++i) {
    run(executable, {input(Tensor(right, 3))});
    device().default_stream().synchronize();
    run(executable, {input(Tensor(wrong, 3))});
    run(executable, {input(Tensor(right, 3))});
    CHECK_THROWS(device().default_stream().synchronize(), IndexError);
  }
}

TEST(assertions_need_a_text) {
  PlanParts parts = one_input(1);
  parts.steps = {wire::launch(3, wire::number(3), {wire::pointer(0), wire::assertions()})};
  CHECK_THROWS(compile(parts), Error);
  parts.assertions = {wire::assertion(0, Assertions::kIndexError, "no code")};
  CHECK_THROWS(compile(parts), Error);
  parts.assertions = {wire::assertion(1, 9, "no such kind")};
  CHECK_THROWS(compile(parts), Error);
}

TEST(storage_offsets_of_inputs_are_applied) {
  const Holder x = fixture::upload({9, 9, 1, 2, 3});
  PlanParts parts = one_input(2);
  parts.steps = {wire::allocate(1, wire::number(12)),
                 wire::launch(0, wire::number(2), {wire::pointer(1, 4), wire::pointer(0, 4)})};
  parts.outputs = {wire::output(wire::view(1, wire::number(2), 1, 1)),
                   wire::output(wire::view(0, wire::number(2), 1, 1)), PlanWriter().u8(Output::kInput).u32(0),
                   PlanWriter().u8(Output::kInt).expr({{Expr::kSymbol, 0}}), PlanWriter().u8(Output::kNone)};
  const Tensor tensor(x, 3, 2);
  std::vector<Result> results = run(compile(parts), {input(tensor)});
  CHECK_EQ(results.size(), 5u);
  const Holder y(results[0].allocation);
  CHECK_EQ(results[0].storage_offset, 1);
  CHECK_EQ(results[0].sizes[0], 2);
  CHECK_EQ(fixture::download(*y, 3)[1], 2.0f);
  CHECK_EQ(fixture::download(*y, 3)[2], 4.0f);
  CHECK(!results[1].new_allocation && results[1].allocation == nullptr);
  CHECK_EQ(results[1].input, 0u);
  CHECK_EQ(results[1].storage_offset, 3);  // 1 from element 0, which is at 2
  CHECK(results[2].kind == Output::kInput);
  CHECK_EQ(results[3].scalar.i, 3);
  CHECK(results[4].kind == Output::kNone);
}

TEST(two_results_may_share_a_buffer) {
  const Holder x = fixture::upload({1, 2});
  const int64_t before = allocated();
  {
    PlanParts parts = one_input(2);
    parts.steps = {wire::allocate(1, wire::number(8)),
                   wire::launch(0, wire::number(2), {wire::pointer(1), wire::pointer(0)})};
    parts.outputs = {wire::output(wire::view(1, wire::number(1))), wire::output(wire::view(1, wire::number(1), 1, 1))};
    const Tensor tensor(x, 2);
    std::vector<Result> results = run(compile(parts), {input(tensor)});
    const Holder first(results[0].allocation), second(results[1].allocation);
    CHECK(first.get() == second.get());
  }
  CHECK_EQ(allocated(), before);
}

TEST(grids_have_three_dimensions) {
  const Holder x = fixture::upload({0});
  PlanParts parts = one_input(2);
  PlanWriter launch;
  launch.u8(2).u32(2).constant(4).constant(3).constant(2).u32(2).u32(1).u32(1).each({wire::pointer(1)});
  parts.steps = {wire::allocate(1, wire::number(96)), launch};
  parts.outputs = {wire::output(wire::view(1, wire::number(24), 1, 0, DType::kInt32))};
  const Tensor tensor(x, 1);
  const Holder y(run(compile(parts), {input(tensor)}).at(0).allocation);
  std::vector<int32_t> values(24);
  Stream& stream = device().default_stream();
  stream.copy(OB_DEVICE_TO_HOST, reinterpret_cast<uint64_t>(values.data()), Pin(*y, stream).pointer(), 96);
  stream.synchronize();
  CHECK_EQ(values[23], 123);
  CHECK_EQ(values[12], 100);
  CHECK_EQ(values[5], 11);
}

TEST(empty_tensors_launch_nothing) {
  const Holder x(Allocation::create(device(), 0));
  PlanParts parts = one_input(2);
  const wire::Code bytes = {{Expr::kSymbol, 0}, {Expr::kConst, 4}, {Expr::kMul, 0}};
  parts.steps = {wire::allocate(1, bytes), wire::launch(0, {{Expr::kSymbol, 0}}, {wire::pointer(1), wire::pointer(0)})};
  parts.outputs = {wire::output(wire::view(1, {{Expr::kSymbol, 0}}))};
  const Tensor tensor(x, 0);
  const uint64_t launches = fixture::calls("launch");
  const Holder y(run(compile(parts), {input(tensor)}).at(0).allocation);
  CHECK_EQ(y->size(), 0u);
  CHECK_EQ(fixture::calls("launch"), launches);
}

TEST(copies_and_seeds_reach_their_buffers) {
  const Holder x = fixture::upload({1, 2, 3, 4});
  PlanParts parts = one_input(3);
  parts.steps = {wire::allocate(1, wire::number(16)), wire::copy(0, 8, 1, 0, 8), wire::copy(0, 0, 1, 8, 8),
                 wire::allocate(2, wire::number(24)), wire::seeds(2, 24)};
  parts.outputs = {wire::output(wire::view(1, wire::number(4))),
                   wire::output(wire::view(2, wire::number(3), 1, 0, DType::kInt64))};
  const Tensor tensor(x, 4);
  std::vector<Result> results = run(compile(parts), {input(tensor)}, [](int64_t* seeds, int64_t count) {
    std::iota(seeds, seeds + count, int64_t{1} << 40);
  });
  const Holder y(results[0].allocation), s(results[1].allocation);
  CHECK(fixture::download(*y, 4) == (std::vector<float>{3, 4, 1, 2}));
  int64_t seeds[3];
  Stream& stream = device().default_stream();
  stream.copy(OB_DEVICE_TO_HOST, reinterpret_cast<uint64_t>(seeds), Pin(*s, stream).pointer(), sizeof(seeds));
  stream.synchronize();
  CHECK_EQ(seeds[2], (int64_t{1} << 40) + 2);
}

TEST(fills_reach_their_bytes) {
  const Holder x = fixture::upload({1, 2, 3, 4});
  const Tensor tensor(x, 4);
  const auto filled = [&](const PlanWriter& step) {
    PlanParts parts = one_input(2);
    parts.steps = {wire::allocate(1, wire::number(16)), wire::copy(0, 0, 1, 0, 16), step};
    parts.outputs = {wire::output(wire::view(1, wire::number(4)))};
    std::vector<Result> results = run(compile(parts), {input(tensor)});
    const Holder y(results[0].allocation);
    return fixture::download(*y, 4);
  };
  const float seven = 7;
  const std::string pattern(reinterpret_cast<const char*>(&seven), sizeof(seven));
  CHECK(filled(wire::fill(1, 4, 8, pattern)) == (std::vector<float>{1, 7, 7, 4}));
  CHECK(filled(wire::fill(1, 12, 4, std::string(1, '\0'))) == (std::vector<float>{1, 2, 3, 0}));
  CHECK(filled(wire::fill(1, 4, 0, pattern)) == (std::vector<float>{1, 2, 3, 4}));
  CHECK_THROWS(filled(wire::fill(1, 4, 6, pattern)), Error);   // half an element
  CHECK_THROWS(filled(wire::fill(1, 12, 8, pattern)), Error);  // behind the end
  for (const size_t size : {0, 3, 32}) {
    CHECK_THROWS(filled(wire::fill(1, 0, 0, std::string(size, '\0'))), Error);
  }
}

TEST(library_functions_get_their_arguments) {
  const Holder x = fixture::upload({1, 2, 3, 4});
  HostCall* seen = nullptr;
  int64_t total = 0;
  HostFunctions::get().add("test::sum_of", [&](HostCall& call) {
    seen = &call;
    const TensorView& from = call.arguments.at(0).tensor;
    CHECK_EQ(from.sizes[0], 2);
    CHECK_EQ(from.strides[0], 2);
    total = call.arguments.at(1).integer + static_cast<int64_t>(call.arguments.at(2).list.size());
    CHECK_EQ(call.arguments.at(2).list.at(1).text, "two");
    CHECK_EQ(call.arguments.at(3).number, 2.5);
    call.stream.copy(OB_DEVICE_TO_DEVICE, call.results.at(0).data, from.data, 4);
  });
  PlanParts parts = one_input(2);
  const PlanWriter list =
      PlanWriter()
          .u8(CallArgument::kList)
          .each({PlanWriter().u8(CallArgument::kInt).constant(1), PlanWriter().u8(CallArgument::kString).text("two")});
  const double number = 2.5;
  uint64_t bits;
  std::memcpy(&bits, &number, sizeof(bits));
  const PlanWriter half =
      PlanWriter().u8(CallArgument::kFloat).u32(static_cast<uint32_t>(bits)).u32(static_cast<uint32_t>(bits >> 32));
  parts.steps = {wire::allocate(1, wire::number(4)),
                 wire::call("test::sum_of",
                            {PlanWriter().u8(CallArgument::kTensor).append(wire::view(0, wire::number(2), 2, 1)),
                             PlanWriter().u8(CallArgument::kInt).expr({{Expr::kSymbol, 0}}), list, half},
                            {wire::view(1, wire::number(1))})};
  parts.outputs = {wire::output(wire::view(1, wire::number(1)))};
  const Tensor tensor(x, 4);
  const Holder y(run(compile(parts), {input(tensor)}).at(0).allocation);
  CHECK(seen != nullptr);
  CHECK_EQ(total, 6);
  CHECK_EQ(fixture::download(*y, 1)[0], 2.0f);
}

TEST(library_names_match_exactly_then_by_longest_prefix) {
  std::string called;
  for (const char* name : {"names::*", "names::inner::*", "names::inner::exact"}) {
    HostFunctions::get().add(name, [&called, name](HostCall&) { called = name; });
  }
  const auto call = [&](const std::string& name) {
    PlanParts parts;
    parts.steps = {wire::call(name, {})};
    run(compile(parts), {});
    return called;
  };
  CHECK_EQ(call("names::x"), "names::*");
  CHECK_EQ(call("names::inner::x"), "names::inner::*");
  CHECK_EQ(call("names::inner::exact"), "names::inner::exact");
  CHECK(HostFunctions::get().find("unknown::x") == nullptr);
}

TEST(a_missing_library_function_is_named) {
  PlanParts parts;
  parts.steps = {wire::call("nowhere::to_be_found", {})};
  try {
    run(compile(parts), {});
  } catch (const Error& error) {
    CHECK_EQ(error.status(), OB_UNSUPPORTED);
    CHECK(std::string(error.what()).find("nowhere::to_be_found") != std::string::npos);
    return;
  }
  check::fail(__FILE__, __LINE__, "a missing function was called");
}

TEST(a_failure_at_any_step_returns_every_buffer) {
  const Holder x = fixture::upload({1, 2, 3});
  HostFunctions::get().add("test::throws", [](HostCall&) { throw Error(OB_INTERNAL, "as asked"); });
  const int64_t before = allocated();
  const int64_t before_active = active();
  for (int failing = 0; failing < 6; ++failing) {
    PlanParts parts = one_input(4);
    std::vector<PlanWriter> steps = {
        wire::allocate(1, wire::number(12)), wire::launch(0, wire::number(3), {wire::pointer(1), wire::pointer(0)}),
        wire::allocate(2, wire::number(12)), wire::copy(1, 0, 2, 0, 12), wire::allocate(3, wire::number(12))};
    steps.insert(steps.begin() + std::min<int>(failing, 5), wire::call("test::throws", {}));
    parts.steps = steps;
    parts.outputs = {wire::output(wire::view(2, wire::number(3)))};
    const Tensor tensor(x, 3);
    CHECK_THROWS(run(compile(parts), {input(tensor)}), Error);
    CHECK_EQ(allocated(), before);
    CHECK_EQ(active(), before_active);
  }
}

TEST(impossible_sizes_are_errors) {
  const Holder x = fixture::upload({1});
  const Tensor tensor(x, 1);
  const int64_t before = allocated();
  for (const int64_t bytes : {int64_t{-4}, int64_t{1} << 62}) {
    PlanParts parts = one_input(2);
    parts.steps = {wire::allocate(1, wire::number(bytes))};
    CHECK_THROWS(run(compile(parts), {input(tensor)}), Error);
  }
  PlanParts parts = one_input(2);
  parts.steps = {wire::allocate(1, wire::number(16)), wire::copy(0, 0, 1, 0, -1)};
  CHECK_THROWS(run(compile(parts), {input(tensor)}), Error);
  CHECK_EQ(allocated(), before);
}

TEST(nothing_in_a_plan_leads_out_of_its_buffers) {
  const Holder x = fixture::upload({1, 2, 3, 4});
  const Tensor tensor(x, 2, 1);  // x[1:3]
  const auto refused = [&](const PlanWriter& step, const PlanWriter& output) {
    PlanParts parts = one_input(2);
    parts.steps = {wire::allocate(1, wire::number(16)), step};
    parts.outputs = {output};
    try {
      for (const Result& result : run(compile(parts), {input(tensor)})) {
        if (result.new_allocation) result.allocation->release();
      }
    } catch (const Error& error) {
      CHECK_EQ(error.status(), OB_INVALID_ARGUMENT);
      return true;
    }
    return false;
  };
  const PlanWriter step = wire::copy(0, 0, 1, 0, 8), whole = wire::output(wire::view(1, wire::number(4)));
  CHECK(!refused(step, whole));
  CHECK(!refused(wire::copy(0, -4, 1, 0, 16), whole));  // what comes before a view is the tensor's, too
  CHECK(refused(wire::copy(0, -8, 1, 0, 8), whole));
  CHECK(refused(wire::copy(0, 0, 1, 0, 16), whole));
  CHECK(refused(wire::copy(0, 0, 1, 12, 8), whole));
  CHECK(refused(wire::copy(0, 0, 1, INT64_MAX, 8), whole));
  CHECK(!refused(wire::copy(0, 99, 1, -99, 0), whole));  // no bytes are in any memory
  CHECK(refused(wire::seeds(1, 24), whole));
  for (const int64_t offset : {int64_t{17}, int64_t{-1}, INT64_MIN}) {
    CHECK(refused(wire::launch(1, wire::number(1), {wire::pointer(1, offset), wire::int64(wire::number(1))}), whole));
  }
  CHECK(refused(wire::launch(1, wire::number(INT64_MAX), {wire::pointer(1), wire::int64(wire::number(1))}), whole));
  CHECK(refused(step, wire::output(wire::view(1, wire::number(5)))));
  CHECK(refused(step, wire::output(wire::view(1, wire::number(2), 1, 3))));
  CHECK(refused(step, wire::output(wire::view(1, wire::number(2), -1, 3))));
  CHECK(refused(step, wire::output(wire::view(1, wire::number(-1)))));
  CHECK(refused(step, wire::output(wire::view(1, wire::number(2), 1, INT64_MAX))));
  CHECK(refused(step, wire::output(wire::view(1, wire::number(2), INT64_MAX))));
  CHECK(!refused(step, wire::output(wire::view(0, wire::number(3), 1, -1))));
  CHECK(refused(step, wire::output(wire::view(0, wire::number(2), 1, -2))));
}

TEST(tensors_without_elements_may_begin_behind_their_memory) {
  const Holder x = fixture::upload({1, 2, 3, 4});
  PlanParts parts = one_input(2);
  parts.entries = {"set_but_read_nothing"};
  parts.steps = {wire::allocate(1, wire::number(8)),
                 wire::launch(0, wire::number(2), {wire::pointer(1), wire::pointer(0)})};
  parts.outputs = {wire::output(wire::view(1, wire::number(2)))};
  const Tensor empty(x, 0, 9), full(x, 1, 9);
  const Holder y(run(compile(parts), {input(empty)}).at(0).allocation);
  CHECK_EQ(fixture::download(*y, 2)[1], 3.0f);
  CHECK_THROWS(run(compile(parts), {input(full)}), Error);
}

TEST(views_that_are_handed_to_a_library_stay_inside_too) {
  HostFunctions::get().add("test::inside", [](HostCall&) {});
  const Holder x = fixture::upload({1, 2, 3, 4});
  const Tensor tensor(x, 4);
  for (const int64_t size : {4, 5}) {
    PlanParts parts = one_input(1);
    parts.steps = {
        wire::call("test::inside", {PlanWriter().u8(CallArgument::kTensor).append(wire::view(0, wire::number(size)))})};
    if (size == 4) {
      run(compile(parts), {input(tensor)});
    } else {
      CHECK_THROWS(run(compile(parts), {input(tensor)}), Error);
    }
  }
}

TEST(numbers_are_not_taken_for_pointers) {
  const Holder x = fixture::upload({1, 2});
  const Tensor tensor(x, 2);
  PlanParts parts = one_input(1);
  parts.steps = {wire::launch(1, wire::number(1), {wire::int64(wire::number(64)), wire::int64(wire::number(1))})};
  const auto run_and_wait = [&] {
    run(compile(parts), {input(tensor)});  // raises itself if the driver has the launch already
    device().synchronize();
  };
  CHECK_THROWS(run_and_wait(), Error);
  parts.steps = {wire::launch(1, wire::number(2), {wire::pointer(0), wire::int64(wire::number(7))})};
  run(compile(parts), {input(tensor)});
  CHECK(fixture::download(*x, 2) == (std::vector<float>{7, 7}));
}

TEST(work_groups_are_no_larger_than_the_device_has_them) {
  PlanParts parts = one_input(1);
  PlanWriter launch;
  launch.u8(2).u32(1).constant(1).constant(1).constant(1).u32(1u << 20).u32(1u << 20).u32(1u << 31);
  launch.each({wire::pointer(0), wire::int64(wire::number(1))});
  parts.steps = {launch};
  CHECK_THROWS(compile(parts), Error);
}

TEST(wrong_kernel_arguments_are_errors) {
  const Holder x = fixture::upload({1});
  const Tensor tensor(x, 1);
  PlanParts parts = one_input(1);
  parts.steps = {wire::launch(1, wire::number(1), {wire::pointer(0), wire::int64(wire::number(1)), wire::pointer(0)})};
  const auto run_and_wait = [&] {
    run(compile(parts), {input(tensor)});  // raises itself if the driver has the launch already
    device().synchronize();
  };
  CHECK_THROWS(run_and_wait(), Error);  // launches are handed to the driver later
  parts.entries = {"no_such_kernel"};
  parts.steps = {wire::launch(0, wire::number(1), {wire::pointer(0)})};
  CHECK_THROWS(run_and_wait(), Error);  // programs are built meanwhile
}

TEST(a_launch_reports_that_its_program_was_not_built_and_the_next_tries_again) {
  fixture::Holder x = fixture::upload({1.0f});
  Stream& stream = device().default_stream();
  const ob_ptr pointer = Pin(*x, stream).pointer();
  ProgramCache cache(device());
  fixture::fail("program_build", 1, OB_BUILD_FAILED);
  const KernelUse kernel = cache.kernel("__kernel void k(__global float* x) { x[0] += 3.0f; }", "", "k");
  const auto launch = [&] {
    stream.launch(fixture::launch_of(*kernel, pointer));
    stream.synchronize();
  };
  try {
    launch();
    check::fail(__FILE__, __LINE__, "a program that could not be built was launched");
  } catch (const Error& error) {
    CHECK_EQ(error.status(), OB_BUILD_FAILED);
    CHECK(std::string(error.what()).find("injected") != std::string::npos);
  }
  launch();
  CHECK_EQ(fixture::download(*x, 1)[0], 4.0f);
}

namespace {

/// A plan that sets 16 numbers to what it is given, as often as there are launches.
PlanParts setting(int launches) {
  PlanParts parts;
  parts.inputs = {Plan::kIntInput};
  parts.symbols = {wire::symbol(Symbol::kInt, 0)};
  parts.buffers = 2;
  parts.source = kSource;
  parts.entries = {"set"};
  parts.steps = {wire::allocate(1, wire::number(64))};
  for (int i = 0; i < launches; ++i) {
    parts.steps.push_back(wire::launch(0, wire::number(16), {wire::pointer(1), wire::int64({{Expr::kSymbol, 0}})}));
  }
  parts.outputs = {wire::output(wire::view(1, wire::number(16)))};
  return parts;
}

/// How often a thread that shares an executable with others got wrong results.
int wrong_in_threads(const Executable& executable) {
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 200; ++i) {
        Input value;
        value.scalar.i = t * 1000 + i;
        const Holder y(run(executable, {value}).at(0).allocation);
        if (fixture::download(*y, 16) != std::vector<float>(16, static_cast<float>(t * 1000 + i))) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return wrong.load();
}

}  // namespace

TEST(threads_share_an_executable_and_its_kernels) {
  // A plan of several launches is evaluated for one thread while another runs by what it was before.
  for (const int launches : {1, 3}) CHECK_EQ(wrong_in_threads(compile(setting(launches))), 0);
}

int main() { return fixture::run_all(); }
