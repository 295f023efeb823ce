// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "runtime/plan.h"
#include "runtime/sha256.h"

/// Writes the plan wire format (see outboard.compiler.plan) for tests.
class PlanWriter {
 public:
  using Code = std::vector<outboard::Expr::Code>;

  PlanWriter& u8(uint8_t value) { return raw(value); }
  PlanWriter& u32(uint32_t value) { return raw(value); }
  PlanWriter& text(const std::string& value) {
    u32(static_cast<uint32_t>(value.size()));
    payload_ += value;
    return *this;
  }
  PlanWriter& expr(const Code& code) {
    u32(static_cast<uint32_t>(code.size()));
    for (const auto& item : code) u8(item.op).raw(item.immediate);
    return *this;
  }
  PlanWriter& constant(int64_t value) { return expr({{outboard::Expr::kConst, value}}); }
  PlanWriter& symbol(int64_t number) { return expr({{outboard::Expr::kSymbol, number}}); }

  std::string finish() const {
    std::string bytes("OBPLAN\0\0", 8);
    const uint32_t version = 1;
    const uint64_t length = payload_.size();
    bytes.append(reinterpret_cast<const char*>(&version), sizeof(version));
    bytes.append(reinterpret_cast<const char*>(&length), sizeof(length));
    const auto digest = outboard::sha256(payload_.data(), payload_.size());
    bytes.append(reinterpret_cast<const char*>(digest.data()), 16);
    return bytes + payload_;
  }

 private:
  template <typename T>
  PlanWriter& raw(T value) {
    payload_.append(reinterpret_cast<const char*>(&value), sizeof(T));
    return *this;
  }

  std::string payload_;
};

/// y = a * x + 1 over n floats: input 0 is x (n = its size), input 1 is the float a, buffer 2 is y.
inline std::string scale_plan() {
  using outboard::Argument;
  using outboard::Expr;
  PlanWriter w;
  w.u32(2).u8(0).u8(2);                                                    // inputs: tensor, float
  w.u32(2).u8(0).u32(0).u32(0).expr({}).u8(4).u32(1).u32(0).expr({});      // symbols: size(0, 0), float(1)
  w.u32(1).expr({{Expr::kSymbol, 0}, {Expr::kConst, 1}, {Expr::kNe, 0}});  // guard: n != 1
  w.u32(3);                                                                // buffers
  w.u32(1)
      .text(
          "__kernel void scale(__global const float* x, __global float* y, long n, float a) {"
          " long i = get_global_id(0); if (i < n) y[i] = a * x[i] + 1.0f; }")
      .text("");
  w.u32(1).u32(0).text("scale");
  w.u32(2);
  w.u8(0).u32(2).expr({{Expr::kSymbol, 0}, {Expr::kConst, 4}, {Expr::kMul, 0}});
  w.u8(2).u32(0).symbol(0).constant(1).constant(1).u32(16).u32(1).u32(1);
  w.u32(4);
  w.u8(Argument::kPointer).u32(0).u32(0).constant(0);
  w.u8(Argument::kPointer).u32(2).u32(0).constant(0);
  w.u8(Argument::kInt64).u32(0).u32(0).symbol(0);
  w.u8(Argument::kFloat32).u32(0).u32(1).expr({});
  w.u32(1).u8(0).u32(2).u8(6).u32(1).symbol(0).u32(1).constant(1).constant(0);
  return w.finish();
}
