// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>
#include <random>

#include "check.h"
#include "plan_writer.h"
#include "runtime/base/error.h"
#include "runtime/base/sha256.h"
#include "runtime/base/small_array.h"
#include "runtime/plans/evaluation.h"
#include "runtime/plans/executor.h"
#include "runtime/plans/plan.h"
#include "runtime/plans/plan_inputs.h"

using namespace outboard;

namespace {

int64_t run(const std::vector<Expr::Code>& code, std::vector<int64_t> values = {}) {
  std::vector<Scalar> symbols;
  for (const int64_t value : values) {
    Scalar scalar;
    scalar.i = value;
    symbols.push_back(scalar);
  }
  return evaluate(Expr{code}, symbols.data());
}

int64_t apply(Expr::Op op, int64_t a, int64_t b) { return run({{Expr::kConst, a}, {Expr::kConst, b}, {op, 0}}); }

}  // namespace

TEST(sha256_matches_the_standard) {
  CHECK_EQ(sha256_hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK_EQ(sha256_hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK_EQ(sha256_hex("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
           "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
}

TEST(division_rounds_down_as_in_python) {
  CHECK_EQ(apply(Expr::kFloorDiv, 7, 2), 3);
  CHECK_EQ(apply(Expr::kFloorDiv, -7, 2), -4);
  CHECK_EQ(apply(Expr::kFloorDiv, 7, -2), -4);
  CHECK_EQ(apply(Expr::kMod, -7, 2), 1);
  CHECK_EQ(apply(Expr::kMod, 7, -2), -1);
  CHECK_EQ(apply(Expr::kCeilDiv, 7, 2), 4);
  CHECK_EQ(apply(Expr::kCeilDiv, -7, 2), -3);
  CHECK_THROWS(apply(Expr::kFloorDiv, 1, 0), Error);
}

TEST(expressions_use_symbols_and_select) {
  CHECK_EQ(run({{Expr::kSymbol, 1}, {Expr::kSymbol, 0}, {Expr::kSub, 0}}, {3, 10}), 7);
  CHECK_EQ(run({{Expr::kConst, 1}, {Expr::kConst, 5}, {Expr::kConst, 6}, {Expr::kSelect, 0}}), 5);
  CHECK_EQ(run({{Expr::kConst, 0}, {Expr::kConst, 5}, {Expr::kConst, 6}, {Expr::kSelect, 0}}), 6);
  CHECK_EQ(apply(Expr::kPow, 3, 4), 81);
  CHECK_EQ(apply(Expr::kMin, 3, 4), 3);
  CHECK_EQ(run({}), 0);
}

TEST(an_evaluation_is_of_the_integers_it_was_made_for) {
  const std::string bytes = scale_plan();
  const auto plan = Plan::parse(bytes.data(), bytes.size());
  Evaluation evaluation(*plan);
  Scalar symbols[2];
  symbols[0].i = 20;  // the size
  symbols[1].d = 0.5;
  CHECK(!evaluation.is_of(symbols));
  evaluation.update(*plan, symbols);
  CHECK(evaluation.is_of(symbols));
  CHECK_EQ(evaluation.step(0)[0], 80);  // bytes of the result
  const int64_t* launch = evaluation.step(1);
  CHECK_EQ(launch[0], 32);  // 20 items in groups of 16
  CHECK_EQ(launch[1], 1);
  CHECK_EQ(launch[3 + 2], 20);  // the third argument
  CHECK_EQ(evaluation.output(0)[0], 20);
  CHECK_EQ(evaluation.output(0)[1], 1);
  symbols[1].d = 0.25;  // no expression reads a float
  CHECK(evaluation.is_of(symbols));
  symbols[0].i = 0;
  CHECK(!evaluation.is_of(symbols));
  evaluation.update(*plan, symbols);
  CHECK_EQ(evaluation.step(1)[0], 0);  // nothing to launch
}

TEST(a_small_array_takes_new_contents) {
  const int64_t items[] = {1, 2, 3, 4};
  SmallArray<int64_t, 2> array;
  for (const size_t size : {1, 4, 3, 2, 4, 0}) {
    array.assign(items, size);
    CHECK_EQ(array.size(), size);
    CHECK(std::equal(array.begin(), array.end(), items));
  }
}

TEST(a_whole_plan_parses) {
  const std::string bytes = scale_plan();
  const auto plan = Plan::parse(bytes.data(), bytes.size());
  CHECK_EQ(plan->steps.size(), 2u);
  CHECK_EQ(plan->kernels[0].entry, "scale");
  CHECK_EQ(plan->buffer_count, 3u);
}

TEST(inputs_end_with_their_last_step_unless_they_are_results) {
  const auto copy = [](uint32_t from, uint32_t to) {
    Step step{};
    step.kind = Step::kCopy;
    step.source = from;
    step.target = to;
    return step;
  };
  Plan plan;
  plan.inputs = {Plan::kTensorInput, Plan::kTensorInput, Plan::kTensorInput, Plan::kTensorInput};
  plan.buffer_count = 5;
  plan.steps = {copy(0, 4), copy(1, 4), copy(0, 4), copy(2, 4)};
  Output output{};
  output.kind = Output::kInput;
  output.input = 2;
  plan.outputs = {output};
  const std::vector<std::vector<uint32_t>> expected = {{}, {1}, {0}, {}};
  CHECK(inputs_ending_at(plan) == expected);
}

TEST(every_truncation_is_rejected) {
  const std::string bytes = scale_plan();
  for (size_t length = 0; length < bytes.size(); ++length) CHECK_THROWS(Plan::parse(bytes.data(), length), Error);
}

TEST(every_flipped_byte_is_rejected) {
  const std::string whole = scale_plan();
  for (size_t i = 0; i < whole.size(); ++i) {
    std::string bytes = whole;
    bytes[i] = static_cast<char>(bytes[i] ^ 0x20);
    CHECK_THROWS(Plan::parse(bytes.data(), bytes.size()), Error);
  }
}

TEST(indices_out_of_range_are_rejected) {
  for (const uint32_t buffer : {3u, 1000u}) {
    PlanWriter w;
    w.u32(0).u32(0).u32(0).u32(3).u32(0).u32(0).u32(0).u32(1).u8(1).u32(buffer).u32(0);
    const std::string bytes = w.finish();
    CHECK_THROWS(Plan::parse(bytes.data(), bytes.size()), Error);
  }
}

TEST(unbalanced_expressions_are_rejected) {
  for (const PlanWriter::Code& code :
       std::vector<PlanWriter::Code>{{{Expr::kAdd, 0}}, {{Expr::kConst, 1}, {Expr::kConst, 2}}, {{Expr::kSymbol, 0}}}) {
    PlanWriter w;
    w.u32(0).u32(0).u32(1).expr(code).u32(0).u32(0).u32(0).u32(0).u32(0).u32(0);
    const std::string bytes = w.finish();
    CHECK_THROWS(Plan::parse(bytes.data(), bytes.size()), Error);
  }
}

TEST(arithmetic_never_traps) {
  constexpr int64_t kLeast = std::numeric_limits<int64_t>::min(), kMost = std::numeric_limits<int64_t>::max();
  CHECK_EQ(apply(Expr::kMod, kLeast, -1), 0);
  CHECK_EQ(apply(Expr::kPow, 1, kMost), 1);
  CHECK_EQ(apply(Expr::kPow, -2, 63), kLeast);
  CHECK_EQ(apply(Expr::kShiftLeft, 3, 4), 48);
  CHECK_EQ(apply(Expr::kShiftRight, -16, 2), -4);
  for (const int64_t bits : {int64_t{-1}, int64_t{64}}) {
    CHECK_THROWS(apply(Expr::kShiftLeft, 1, bits), Error);
    CHECK_THROWS(apply(Expr::kShiftRight, 1, bits), Error);
  }
  CHECK_THROWS(apply(Expr::kPow, 2, -1), Error);
}

TEST(values_beyond_64_bits_are_refused_where_they_are_results) {
  constexpr int64_t kLeast = std::numeric_limits<int64_t>::min(), kMost = std::numeric_limits<int64_t>::max();
  CHECK_THROWS(apply(Expr::kFloorDiv, kLeast, -1), Error);
  CHECK_THROWS(apply(Expr::kAdd, kMost, 1), Error);
  CHECK_THROWS(apply(Expr::kSub, kLeast, 1), Error);
  CHECK_THROWS(apply(Expr::kMul, kMost, 2), Error);
  CHECK_THROWS(apply(Expr::kPow, 2, 63), Error);
  CHECK_THROWS(apply(Expr::kPow, kMost, kMost), Error);
  CHECK_THROWS(apply(Expr::kShiftLeft, 1, 63), Error);
  const std::vector<Expr::Code> sum{{Expr::kConst, kMost}, {Expr::kConst, 1}, {Expr::kAdd, 0}};
  const auto then = [&](std::vector<Expr::Code> rest) {
    rest.insert(rest.begin(), sum.begin(), sum.end());
    return run(rest);
  };
  CHECK_EQ(then({{Expr::kConst, 7}, {Expr::kMin, 0}}), 7);
  CHECK_EQ(then({{Expr::kConst, 2}, {Expr::kSub, 0}}), kMost - 1);
  CHECK_EQ(then({{Expr::kConst, kMost}, {Expr::kLe, 0}}), 0);
}

TEST(comparisons_and_logic) {
  CHECK_EQ(apply(Expr::kEq, 2, 2) + apply(Expr::kNe, 2, 2), 1);
  CHECK_EQ(apply(Expr::kLt, 1, 2) + apply(Expr::kLe, 2, 2), 2);
  CHECK_EQ(apply(Expr::kAnd, 3, 0) + apply(Expr::kOr, 3, 0), 1);
  CHECK_EQ(run({{Expr::kConst, 0}, {Expr::kNot, 0}}), 1);
  CHECK_EQ(apply(Expr::kBitAnd, 12, 10), 8);
  CHECK_EQ(apply(Expr::kMax, -3, 4), 4);
}

TEST(buffers_must_exist_when_they_are_used) {
  const auto plan = [](std::vector<PlanWriter> steps, std::vector<PlanWriter> outputs) {
    PlanParts parts;
    parts.inputs = {Plan::kTensorInput, Plan::kIntInput};
    parts.buffers = 4;
    parts.source = "";
    parts.steps = std::move(steps);
    parts.outputs = std::move(outputs);
    return parts.bytes();
  };
  const auto rejected = [](const std::string& bytes) {
    try {
      Plan::parse(bytes.data(), bytes.size());
    } catch (const Error&) {
      return true;
    }
    return false;
  };
  const PlanWriter make = wire::allocate(2, wire::number(8)), drop = wire::free(2);
  CHECK(!rejected(plan({make, wire::copy(0, 0, 2, 0, 8), drop}, {})));
  CHECK(rejected(plan({wire::copy(0, 0, 2, 0, 8)}, {})));
  CHECK(rejected(plan({make, drop, wire::copy(0, 0, 2, 0, 8)}, {})));
  CHECK(rejected(plan({wire::copy(1, 0, 0, 0, 8)}, {})));  // the slot of a scalar input
  CHECK(rejected(plan({wire::seeds(3, 8)}, {})));
  CHECK(rejected(plan({wire::allocate(0, wire::number(8))}, {})));
  CHECK(rejected(plan({wire::free(0)}, {})));
  CHECK(rejected(plan({make, drop}, {wire::output(wire::view(2, wire::number(2)))})));
  CHECK(!rejected(plan({make}, {wire::output(wire::view(2, wire::number(2)))})));
  const PlanWriter tensor = PlanWriter().u8(CallArgument::kTensor).append(wire::view(3, wire::number(1)));
  CHECK(rejected(plan({wire::call("a::b", {PlanWriter().u8(CallArgument::kList).each({tensor})})}, {})));
}

TEST(places_of_floats_are_in_their_order) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const double floats[] = {-kInfinity, -1e308, -1, -0x1p-1074, -0.0, 0.0, 0x1p-1074, 1e-320, 1, 2, 1e308, kInfinity};
  for (size_t i = 1; i < std::size(floats); ++i) CHECK(order_of(floats[i - 1]) < order_of(floats[i]));
  CHECK_EQ(order_of(0.0), 0);
  CHECK_EQ(order_of(-0.0), -1);
}

TEST(guards_compare_floats_by_their_places) {
  PlanParts parts;
  parts.inputs = {Plan::kFloatInput};
  parts.symbols = {wire::symbol(Symbol::kFloatOrder, 0)};
  parts.guards = {PlanWriter().expr({{Expr::kConst, order_of(0.5)}, {Expr::kSymbol, 0}, {Expr::kLt, 0}})};  // 0.5 < x
  parts.buffers = 1;
  const std::string bytes = parts.bytes();
  for (const double value : {-1.0, 0.0, 0.5, 0.50000001, 1e300}) {
    Input input;
    input.scalar.d = value;
    std::vector<Scalar> symbols;
    CHECK_EQ(bind_symbols(*Plan::parse(bytes.data(), bytes.size()), ob_device_properties{}, &input, symbols),
             0.5 < value);
  }
}

TEST(symbols_come_from_inputs_of_their_kind) {
  for (const uint8_t source :
       {Symbol::kSize, Symbol::kStride, Symbol::kStorageOffset, Symbol::kInt, Symbol::kFloat, Symbol::kFloatOrder}) {
    for (const uint8_t kind : {Plan::kTensorInput, Plan::kIntInput, Plan::kFloatInput, Plan::kNoneInput}) {
      PlanParts parts;
      parts.inputs = {kind};
      parts.symbols = {wire::symbol(source, 0)};
      parts.buffers = 1;
      const std::string bytes = parts.bytes();
      const bool is_float = source == Symbol::kFloat || source == Symbol::kFloatOrder;
      const bool fits = source == Symbol::kInt ? kind == Plan::kIntInput
                        : is_float             ? kind == Plan::kFloatInput
                                               : kind == Plan::kTensorInput;
      if (fits) Plan::parse(bytes.data(), bytes.size());
      if (!fits) CHECK_THROWS(Plan::parse(bytes.data(), bytes.size()), Error);
    }
  }
}

TEST(expressions_use_symbols_that_there_are) {
  for (const int64_t number : {0, 1, 2, 3, 4}) {
    PlanParts parts;
    parts.inputs = {Plan::kIntInput};
    parts.symbols = {wire::symbol(Symbol::kInt, 0), wire::symbol(Symbol::kInt, 0)};
    parts.buffers = 1;
    parts.outputs = {PlanWriter().u8(Output::kInt).symbol(number)};
    const std::string bytes = parts.bytes();
    if (number < 2) Plan::parse(bytes.data(), bytes.size());
    if (number >= 2) CHECK_THROWS(Plan::parse(bytes.data(), bytes.size()), Error);
  }
}

TEST(dimensions_are_few) {
  PlanParts parts;
  parts.inputs = {Plan::kTensorInput};
  for (const uint32_t dim : {kMaximumRank - 1, kMaximumRank, UINT32_MAX}) {
    parts.symbols = {wire::symbol(Symbol::kSize, 0, dim)};
    parts.buffers = 1;
    const std::string bytes = parts.bytes();
    if (dim < kMaximumRank) {
      const int64_t sizes[1] = {3};
      Input input;
      input.tensor = {nullptr, DType::kFloat32, 1, sizes, sizes, 0};
      std::vector<Scalar> symbols;
      CHECK(!bind_symbols(*Plan::parse(bytes.data(), bytes.size()), ob_device_properties{}, &input, symbols));
    } else {
      CHECK_THROWS(Plan::parse(bytes.data(), bytes.size()), Error);
    }
  }
}

TEST(lists_may_not_be_nested_without_end) {
  PlanWriter argument = PlanWriter().u8(CallArgument::kNone);
  for (int i = 0; i < 100; ++i) argument = PlanWriter().u8(CallArgument::kList).each({argument});
  PlanParts parts;
  parts.steps = {wire::call("a::b", {argument})};
  const std::string bytes = parts.bytes();
  CHECK_THROWS(Plan::parse(bytes.data(), bytes.size()), Error);
}

TEST(damage_behind_a_right_checksum_never_crashes) {
  const std::string whole = scale_plan();
  std::mt19937 random(3);
  int accepted = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string payload = whole.substr(36);
    const unsigned changes = 1 + random() % 4;
    for (unsigned i = 0; i < changes; ++i) payload[random() % payload.size()] = static_cast<char>(random());
    if (random() % 4 == 0) payload.resize(random() % payload.size());
    const std::string bytes = PlanWriter().bytes(payload).finish();
    try {
      Plan::parse(bytes.data(), bytes.size());
      ++accepted;
    } catch (const Error&) {
    }
  }
  CHECK(accepted > 0);  // damage in a kernel's text cannot be seen
}

int main() { return check::run_all(); }
