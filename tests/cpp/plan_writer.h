// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "runtime/base/sha256.h"
#include "runtime/plans/plan.h"

/// Writes the plan wire format (see outboard.compiler.plans.plan) for tests.
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
  PlanWriter& bytes(const std::string& value) {
    payload_ += value;
    return *this;
  }
  PlanWriter& append(const PlanWriter& other) {
    payload_ += other.payload_;
    return *this;
  }
  PlanWriter& each(const std::vector<PlanWriter>& items) {
    u32(static_cast<uint32_t>(items.size()));
    for (const PlanWriter& item : items) append(item);
    return *this;
  }
  PlanWriter& constant(int64_t value) { return expr({{outboard::Expr::kConst, value}}); }
  PlanWriter& symbol(int64_t number) { return expr({{outboard::Expr::kSymbol, number}}); }

  const std::string& payload() const { return payload_; }

  std::string finish() const {
    std::string bytes("OBPLAN\0\0", 8);
    const uint32_t version = 2;
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

/// The parts of a plan, each item already in the wire format.
struct PlanParts {
  std::vector<uint8_t> inputs;  ///< Plan::InputKind
  std::vector<PlanWriter> symbols, guards;
  uint32_t buffers = 0;
  std::string source;  ///< of the one program; empty: none
  std::vector<std::string> entries;
  std::vector<PlanWriter> assertions;
  std::vector<PlanWriter> steps, outputs;

  std::string bytes() const {
    PlanWriter w;
    w.u32(static_cast<uint32_t>(inputs.size()));
    for (const uint8_t kind : inputs) w.u8(kind);
    w.each(symbols).each(guards).u32(buffers);
    w.u32(source.empty() ? 0 : 1);
    if (!source.empty()) w.text(source).text("");
    w.u32(static_cast<uint32_t>(entries.size()));
    for (const std::string& entry : entries) w.u32(0).text(entry);
    return w.each(assertions).each(steps).each(outputs).finish();
  }
};

namespace wire {

using Code = PlanWriter::Code;

inline Code number(int64_t value) { return {{outboard::Expr::kConst, value}}; }
inline PlanWriter symbol(uint8_t source, uint32_t input, uint32_t dim = 0, const Code& derived = {}) {
  return PlanWriter().u8(source).u32(input).u32(dim).expr(derived);
}
inline PlanWriter allocate(uint32_t buffer, const Code& bytes) { return PlanWriter().u8(0).u32(buffer).expr(bytes); }
inline PlanWriter free(uint32_t buffer) { return PlanWriter().u8(1).u32(buffer); }
inline PlanWriter pointer(uint32_t buffer, int64_t offset = 0) {
  return PlanWriter().u8(outboard::Argument::kPointer).u32(buffer).u32(0).constant(offset);
}
inline PlanWriter assertion(int32_t code, uint8_t kind, const std::string& text) {
  return PlanWriter().u32(static_cast<uint32_t>(code)).u8(kind).text(text);
}
inline PlanWriter assertions() { return PlanWriter().u8(outboard::Argument::kAssertions).u32(0).u32(0).constant(0); }
inline PlanWriter int64(const Code& value) {
  return PlanWriter().u8(outboard::Argument::kInt64).u32(0).u32(0).expr(value);
}
/// One work-item per item of `items`, groups of one.
inline PlanWriter launch(uint32_t kernel, const Code& items, const std::vector<PlanWriter>& arguments) {
  PlanWriter w;
  w.u8(2).u32(kernel).expr(items).constant(1).constant(1).u32(1).u32(1).u32(1);
  return w.each(arguments);
}
/// A one-dimensional view of floats.
inline PlanWriter view(uint32_t buffer, const Code& size, int64_t stride = 1, int64_t offset = 0,
                       outboard::DType dtype = outboard::DType::kFloat32) {
  PlanWriter w;
  w.u32(buffer).u8(static_cast<uint8_t>(dtype)).u32(1).expr(size).u32(1).constant(stride).constant(offset);
  return w;
}
inline PlanWriter call(const std::string& name, const std::vector<PlanWriter>& arguments,
                       const std::vector<PlanWriter>& results = {}) {
  PlanWriter w;
  w.u8(3).text(name).each(arguments).u32(0).each(results).u8(0);
  return w;
}
inline PlanWriter seeds(uint32_t buffer, int64_t bytes) { return PlanWriter().u8(4).u32(buffer).constant(bytes); }
inline PlanWriter copy(uint32_t source, int64_t from, uint32_t target, int64_t to, int64_t bytes) {
  return PlanWriter().u8(5).u32(source).constant(from).u32(target).constant(to).constant(bytes);
}
inline PlanWriter output(const PlanWriter& view) { return PlanWriter().u8(0).append(view); }

}  // namespace wire

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
  w.u32(0);  // assertions
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
