// SPDX-License-Identifier: Apache-2.0
/// Functions of a driver's own library: the simulator's product of matrices, called by plans, in stream order.
#include <cstdint>
#include <string>
#include <vector>

#include "check.h"
#include "fixture.h"
#include "plan_writer.h"
#include "runtime/base/error.h"
#include "runtime/plans/executor.h"
#include "runtime/plans/host_functions.h"
#include "runtime/streams/graph.h"

using namespace outboard;
using fixture::device;
using fixture::Holder;

namespace {

constexpr int64_t kRows = 2, kInner = 3, kColumns = 4;

/// A view of kRows x kInner, kInner x kColumns or kRows x kColumns floats, all of a buffer.
PlanWriter matrix(uint32_t buffer, int64_t rows, int64_t columns, int64_t offset = 0) {
  const auto number = [](int64_t value) { return wire::expression(wire::number(value)); };
  return PlanWriter(
      ViewSpec{buffer, DType::kFloat32, {number(rows), number(columns)}, {number(columns), number(1)}, number(offset)});
}

PlanWriter tensor_argument(const PlanWriter& view) { return PlanWriter().u8(CallArgument::kTensor).append(view); }

/// c = a @ b by the driver, of three inputs.
PlanParts product(const std::string& name = "driver::aten::mm", int64_t offset = 0) {
  PlanParts parts;
  parts.inputs = {Plan::kTensorInput, Plan::kTensorInput, Plan::kTensorInput};
  parts.buffers = 3;
  parts.steps = {wire::call(
      name, {tensor_argument(matrix(0, kRows, kInner, offset)), tensor_argument(matrix(1, kInner, kColumns))},
      {matrix(2, kRows, kColumns)})};
  return parts;
}

Executable compile(const PlanParts& parts) {
  const std::string bytes = parts.bytes();
  return Executable(Plan::parse(bytes.data(), bytes.size()), device());
}

/// The operands in the device's memory, and the plan run on them.
class Product {
 public:
  void run(const Executable& executable, Stream& stream) { fixture::run(executable, stream, {&a, &b, &c}, count); }
  bool is_right() const {
    return fixture::download(*c, kRows * kColumns) == std::vector<float>{5, 8, 11, 14, 14, 23, 32, 41};
  }

  Holder a = fixture::upload({0, 1, 2, 3, 4, 5});
  Holder b = fixture::upload({0, 0, 0, 0, 1, 2, 3, 4, 2, 3, 4, 5});
  Holder c = fixture::upload(std::vector<float>(kRows * kColumns, -1));

 private:
  static constexpr int64_t count = 1;
};

}  // namespace

TEST(a_plan_calls_the_drivers_library) {
  CHECK(std::string(device().properties().library) == "simulated library");
  Product product_of;
  const Executable executable = compile(product());
  const uint64_t asked = fixture::calls("library_find");
  for (int i = 0; i < 3; ++i) product_of.run(executable, device().default_stream());
  CHECK(product_of.is_right());
  CHECK_EQ(fixture::calls("library_find") - asked, 1u);
  CHECK_EQ(fixture::calls("library_call"), 3u);
}

TEST(calls_are_in_stream_order) {
  Product product_of;
  Stream& stream = device().pool_stream();
  const Executable executable = compile(product());
  {
    fixture::Pause pause(stream);
    product_of.run(executable, stream);  // does not wait for the device
    CHECK(!stream.query());
  }
  stream.synchronize();
  CHECK(product_of.is_right());
}

TEST(graphs_hold_calls) {
  Product product_of;
  Stream& stream = device().default_stream();
  const Executable executable = compile(product());
  Graph graph(device());
  product_of.run(executable, graph.begin(stream, 0));
  graph.end();
  CHECK(graph.text().find("library function aten::mm") != std::string::npos);
  graph.replay(stream);
  CHECK(product_of.is_right());
}

/// Of as many rows as the first input says.
PlanParts product_of_any_rows() {
  const PlanWriter::Code rows{{Expr::kSymbol, 0}};
  const auto view = [&](uint32_t buffer, const PlanWriter::Code& height, int64_t columns) {
    return PlanWriter(ViewSpec{buffer,
                               DType::kFloat32,
                               {wire::expression(height), wire::expression(wire::number(columns))},
                               {wire::expression(wire::number(columns)), wire::expression(wire::number(1))},
                               wire::expression(wire::number(0))});
  };
  PlanParts parts;
  parts.inputs = {Plan::kTensorInput, Plan::kTensorInput, Plan::kTensorInput};
  parts.symbols = {wire::symbol(Symbol::kSize, 0, 0)};
  parts.buffers = 3;
  parts.steps = {wire::call("driver::aten::mm",
                            {tensor_argument(view(0, rows, 1)), tensor_argument(view(1, wire::number(1), 1))},
                            {view(2, rows, 1)})};
  return parts;
}

TEST(what_the_library_does_not_do_for_some_sizes_the_host_does) {
  static int64_t on_host = 0;
  HostFunctions::get().add("aten::mm", [](HostCall& call) {
    CHECK(call.step.name == "aten::mm" && call.step.fallback && call.arguments.size() == 2);
    on_host = call.results[0].sizes[0];
  });
  const Executable executable = compile(product_of_any_rows());
  const Holder column = fixture::upload(std::vector<float>(2000, 3)), factor = fixture::upload({2});
  const Holder result = fixture::upload(std::vector<float>(2000, -1));
  const uint64_t asked = fixture::calls("library_find"), called = fixture::calls("library_call");
  for (const int64_t rows : {4, 2000, 5, 4, 2000}) {
    const int64_t one = 1;
    std::vector<Input> inputs;
    for (const Holder* each : {&column, &factor, &result}) {
      Input input;
      input.tensor = {each->get(), DType::kFloat32, 1, &rows, &one, 0};
      inputs.push_back(input);
    }
    std::vector<Scalar> symbols;
    CHECK(executable.bind(inputs.data(), symbols));
    ExecutionContext context{device().default_stream()};
    std::vector<Result> results;
    on_host = 0;
    executable.run(inputs.data(), symbols, context, results);
    CHECK_EQ(on_host, rows == 2000 ? 2000 : 0);  // more than the simulator's library takes
  }
  CHECK(fixture::download(*result, 6) == std::vector<float>({6, 6, 6, 6, 6, -1}));
  CHECK_EQ(fixture::calls("library_find") - asked, 3u);
  CHECK_EQ(fixture::calls("library_call") - called, 3u);
}

TEST(what_the_library_refuses_may_be_computed_on_the_device) {
  static const Allocation* place = nullptr;
  HostFunctions::get().add("device::aten::summon", [](HostCall& call) {
    CHECK(call.step.name == "aten::summon" && call.arguments[0].tensor.data == 0);
    CHECK_EQ(call.arguments[0].tensor.offset, 2 * sizeof(float));
    CHECK_EQ(call.results[0].sizes[1], kColumns);
    place = call.results[0].allocation;
  });
  Product product_of;
  product_of.a = fixture::upload(std::vector<float>(kRows * kInner + 2));
  product_of.run(compile(product("driver::aten::summon", 2)), device().default_stream());
  CHECK(place == product_of.c.get());
}

TEST(what_nobody_has_is_said) {
  Product product_of;
  try {
    product_of.run(compile(product("driver::aten::conjure")), device().default_stream());
    CHECK(false);
  } catch (const Error& error) {
    CHECK_EQ(error.status(), OB_UNSUPPORTED);
    CHECK(std::string(error.what()).find("no library provides 'aten::conjure'") != std::string::npos);
  }
}

TEST(a_plan_does_not_lead_out_of_memory) {
  Product product_of;
  const Executable executable = compile(product("driver::aten::mm", 1 << 20));
  CHECK_THROWS(product_of.run(executable, device().default_stream()), Error);
}

TEST(failures_of_the_library_are_told) {
  Product product_of;
  const Executable executable = compile(product());
  fixture::fail("library_find", 1, OB_INTERNAL);
  CHECK_THROWS(product_of.run(executable, device().default_stream()), Error);
  fixture::fail("library_call", 1, OB_OUT_OF_MEMORY);
  CHECK_THROWS((product_of.run(executable, device().default_stream()), device().synchronize()), Error);
  product_of.run(executable, device().default_stream());
  CHECK(product_of.is_right());
}

int main() { return fixture::run_all(); }
