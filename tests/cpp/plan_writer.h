// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "runtime/base/sha256.h"
#include "runtime/plans/plan.h"
#include "runtime/plans/wire_fields.h"

/// Writes the plan wire format (see wire_fields.h) for tests, of whole parts or byte by byte.
class PlanWriter {
 public:
  using Code = std::vector<outboard::Expr::Code>;

  PlanWriter() = default;
  /// A part of a plan.
  template <typename Part>
  explicit PlanWriter(Part part) {
    record(part);
  }

  // ---- encodings of the schema ----

  template <typename T>
  void choice(T& value, int) {
    u8(static_cast<uint8_t>(value));
  }
  template <typename T>
  void record(T& value) {
    outboard::plan_wire::fields(*this, value);
  }
  template <typename T, typename Write>
  void each(std::vector<T>& items, Write&& write) {
    u32(static_cast<uint32_t>(items.size()));
    for (T& item : items) write(item);
  }
  void call_arguments(std::vector<outboard::CallArgument>& value) {
    each(value, [&](outboard::CallArgument& item) { record(item); });
  }
  void expr(outboard::Expr& value) { expr(value.code); }
  void i32(int32_t value) { raw(value); }
  void i64(int64_t value) { raw(value); }
  void f64(double value) { raw(value); }
  void blob(const std::string& value) { text(value); }
  void boolean(bool value) { u8(value ? 1 : 0); }
  void dtype(outboard::DType value) { u8(static_cast<uint8_t>(value)); }
  void buffer(uint32_t value) { u32(value); }
  void kernel(uint32_t value) { u32(value); }
  void layout(uint32_t value) { u32(value); }
  void program(uint32_t value) { u32(value); }
  void input(uint32_t value) { u32(value); }
  void dimension(uint32_t value) { u32(value); }
  void float_symbol(uint32_t value) { u32(value); }
  void buffer_count(uint32_t value) { u32(value); }

  // ---- piece by piece ----

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
  /// Puts items in the place of an empty list at the end.
  PlanWriter& in_place_of_empty_list(const std::vector<PlanWriter>& items) {
    payload_.resize(payload_.size() - sizeof(uint32_t));
    return each(items);
  }
  PlanWriter& constant(int64_t value) { return expr({{outboard::Expr::kConst, value}}); }
  PlanWriter& symbol(int64_t number) { return expr({{outboard::Expr::kSymbol, number}}); }

  const std::string& payload() const { return payload_; }

  std::string finish() const {
    std::string bytes("OBPLAN\0\0", 8);
    const uint32_t version = outboard::plan_wire::kVersion;
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
  std::vector<PlanWriter> assertions, layouts;
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
    return w.each(assertions).each(layouts).each(steps).each(outputs).finish();
  }
};

namespace wire {

using Code = PlanWriter::Code;

inline Code number(int64_t value) { return {{outboard::Expr::kConst, value}}; }
inline outboard::Expr expression(const Code& code) {
  outboard::Expr made;
  made.code = code;
  return made;
}
inline PlanWriter symbol(uint8_t source, uint32_t input, uint32_t dim = 0, const Code& derived = {}) {
  outboard::Symbol made{static_cast<outboard::Symbol::Source>(source), input, dim, expression(derived)};
  return PlanWriter(made);
}
inline outboard::Step step(outboard::Step::Kind kind, uint32_t buffer, const Code& bytes = {}) {
  outboard::Step made;
  made.kind = kind;
  made.buffer = buffer;
  made.nbytes = expression(bytes);
  return made;
}
inline PlanWriter allocate(uint32_t buffer, const Code& bytes) {
  return PlanWriter(step(outboard::Step::kAllocate, buffer, bytes));
}
inline PlanWriter free(uint32_t buffer) { return PlanWriter(step(outboard::Step::kFree, buffer)); }
inline outboard::Argument argument(outboard::Argument::Kind kind, uint32_t buffer, const Code& code,
                                   uint32_t symbol = 0) {
  return {kind, buffer, symbol, expression(code)};
}
inline PlanWriter pointer(uint32_t buffer, int64_t offset = 0) {
  return PlanWriter(argument(outboard::Argument::kPointer, buffer, number(offset)));
}
inline PlanWriter assertion(int32_t code, uint8_t kind, const std::string& text) {
  return PlanWriter(outboard::AssertionSpec{code, kind, text});
}
inline PlanWriter assertions() { return PlanWriter(argument(outboard::Argument::kAssertions, 0, number(0))); }
inline PlanWriter int64(const Code& value) { return PlanWriter(argument(outboard::Argument::kInt64, 0, value)); }
/// One work-item per item of `items`, groups of one. The arguments are written already.
inline PlanWriter launch(uint32_t kernel, const Code& items, const std::vector<PlanWriter>& arguments) {
  outboard::Step made = step(outboard::Step::kLaunch, 0);
  made.kernel = kernel;
  made.global_size[0] = expression(items);
  made.global_size[1] = made.global_size[2] = expression(number(1));
  std::fill_n(made.local_size, 3, 1u);
  return PlanWriter(made).in_place_of_empty_list(arguments);
}
/// A one-dimensional view of floats.
inline outboard::ViewSpec view_spec(uint32_t buffer, const Code& size, int64_t stride, int64_t offset,
                                    outboard::DType dtype) {
  return {buffer, dtype, {expression(size)}, {expression(number(stride))}, expression(number(offset))};
}
inline PlanWriter view(uint32_t buffer, const Code& size, int64_t stride = 1, int64_t offset = 0,
                       outboard::DType dtype = outboard::DType::kFloat32) {
  return PlanWriter(view_spec(buffer, size, stride, offset, dtype));
}
/// Arguments and results are written already.
inline PlanWriter call(const std::string& name, const std::vector<PlanWriter>& arguments,
                       const std::vector<PlanWriter>& results = {}) {
  PlanWriter w;
  w.u8(outboard::Step::kCall).text(name).each(arguments).u32(0).each(results).u8(0);
  return w;
}
/// The same of an executable.
inline PlanWriter execute(const std::string& code, const std::vector<PlanWriter>& arguments,
                          const std::vector<PlanWriter>& results) {
  PlanWriter w;
  w.u8(outboard::Step::kExecute).text("graph").text(code).each(arguments).each(results);
  return w;
}
inline PlanWriter seeds(uint32_t buffer, int64_t bytes) {
  return PlanWriter(step(outboard::Step::kSeeds, buffer, number(bytes)));
}
inline PlanWriter copy(uint32_t source, int64_t from, uint32_t target, int64_t to, int64_t bytes) {
  outboard::Step made = step(outboard::Step::kCopy, 0, number(bytes));
  made.source = source;
  made.source_offset = expression(number(from));
  made.target = target;
  made.target_offset = expression(number(to));
  return PlanWriter(made);
}
inline PlanWriter fill(uint32_t target, int64_t offset, int64_t bytes, const std::string& pattern) {
  outboard::Step made = step(outboard::Step::kFill, 0, number(bytes));
  made.target = target;
  made.target_offset = expression(number(offset));
  made.pattern = pattern;
  return PlanWriter(made);
}
inline PlanWriter to_layout(uint32_t source, int64_t from, uint32_t target, uint32_t layout = 0) {
  outboard::Step made = step(outboard::Step::kToLayout, 0);
  made.source = source;
  made.source_offset = expression(number(from));
  made.target = target;
  made.layout = layout;
  return PlanWriter(made);
}
inline PlanWriter from_layout(uint32_t source, uint32_t target, int64_t to, uint32_t layout = 0) {
  outboard::Step made = step(outboard::Step::kFromLayout, 0);
  made.source = source;
  made.target = target;
  made.target_offset = expression(number(to));
  made.layout = layout;
  return PlanWriter(made);
}
inline PlanWriter output(const PlanWriter& view) { return PlanWriter().u8(outboard::Output::kTensor).append(view); }

}  // namespace wire

/// y = a * x + 1 over n floats: input 0 is x (n = its size), input 1 is the float a, buffer 2 is y.
inline std::string scale_plan() {
  using namespace outboard;
  const PlanWriter::Code n{{Expr::kSymbol, 0}}, bytes{{Expr::kSymbol, 0}, {Expr::kConst, 4}, {Expr::kMul, 0}};
  Plan plan;
  plan.inputs = {Plan::kTensorInput, Plan::kFloatInput};
  plan.symbols = {{Symbol::kSize, 0, 0, {}}, {Symbol::kFloat, 1, 0, {}}};
  plan.guards = {wire::expression({{Expr::kSymbol, 0}, {Expr::kConst, 1}, {Expr::kNe, 0}})};  // n != 1
  plan.buffer_count = 3;
  plan.programs = {
      {"__kernel void scale(__global const float* x, __global float* y, long n, float a) {"
       " long i = get_global_id(0); if (i < n) y[i] = a * x[i] + 1.0f; }",
       ""}};
  plan.kernels = {{0, "scale"}};
  Step launch = wire::step(Step::kLaunch, 0);
  launch.global_size[0] = wire::expression(n);
  launch.global_size[1] = launch.global_size[2] = wire::expression(wire::number(1));
  launch.local_size[0] = 16;
  launch.local_size[1] = launch.local_size[2] = 1;
  launch.arguments = {wire::argument(Argument::kPointer, 0, wire::number(0)),
                      wire::argument(Argument::kPointer, 2, wire::number(0)), wire::argument(Argument::kInt64, 0, n),
                      wire::argument(Argument::kFloat32, 0, {}, 1)};
  plan.steps = {wire::step(Step::kAllocate, 2, bytes), launch};
  Output output;
  output.kind = Output::kTensor;
  output.view = wire::view_spec(2, n, 1, 0, DType::kFloat32);
  plan.outputs = {output};
  return PlanWriter(plan).finish();
}
