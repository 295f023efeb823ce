// SPDX-License-Identifier: Apache-2.0
#include "check.h"
#include "plan_writer.h"
#include "runtime/error.h"
#include "runtime/plan.h"
#include "runtime/sha256.h"

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

TEST(a_whole_plan_parses) {
  const std::string bytes = scale_plan();
  const auto plan = Plan::parse(bytes.data(), bytes.size());
  CHECK_EQ(plan->steps.size(), 2u);
  CHECK_EQ(plan->kernels[0].entry, "scale");
  CHECK_EQ(plan->buffer_count, 3u);
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
    w.u32(0).u32(0).u32(0).u32(3).u32(0).u32(0).u32(1).u8(1).u32(buffer).u32(0);
    const std::string bytes = w.finish();
    CHECK_THROWS(Plan::parse(bytes.data(), bytes.size()), Error);
  }
}

TEST(unbalanced_expressions_are_rejected) {
  for (const PlanWriter::Code& code :
       std::vector<PlanWriter::Code>{{{Expr::kAdd, 0}}, {{Expr::kConst, 1}, {Expr::kConst, 2}}, {{Expr::kSymbol, 0}}}) {
    PlanWriter w;
    w.u32(0).u32(0).u32(1).expr(code).u32(0).u32(0).u32(0).u32(0).u32(0);
    const std::string bytes = w.finish();
    CHECK_THROWS(Plan::parse(bytes.data(), bytes.size()), Error);
  }
}

int main() { return check::run_all(); }
