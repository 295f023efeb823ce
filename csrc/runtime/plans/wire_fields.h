// SPDX-License-Identifier: Apache-2.0
// Made by tools/wire_schema.py of src/outboard/compiler/plans/schema.py: change that, and run it.
#pragma once

#include "runtime/plans/plan.h"
#include "runtime/streams/assertions.h"

/// The fields of a plan in the order in which they are written. `Wire` reads or writes: it has a method for each
/// encoding, which takes the field.
namespace outboard::plan_wire {

constexpr uint32_t kVersion = 4;

static_assert(Expr::kConst == 0);
static_assert(Expr::kSymbol == 1);
static_assert(Expr::kAdd == 2);
static_assert(Expr::kSub == 3);
static_assert(Expr::kMul == 4);
static_assert(Expr::kFloorDiv == 5);
static_assert(Expr::kMod == 6);
static_assert(Expr::kCeilDiv == 7);
static_assert(Expr::kMin == 8);
static_assert(Expr::kMax == 9);
static_assert(Expr::kEq == 10);
static_assert(Expr::kNe == 11);
static_assert(Expr::kLt == 12);
static_assert(Expr::kLe == 13);
static_assert(Expr::kAnd == 14);
static_assert(Expr::kOr == 15);
static_assert(Expr::kNot == 16);
static_assert(Expr::kSelect == 17);
static_assert(Expr::kPow == 18);
static_assert(Expr::kShiftLeft == 19);
static_assert(Expr::kShiftRight == 20);
static_assert(Expr::kBitAnd == 21);
static_assert(Symbol::kSize == 0);
static_assert(Symbol::kStride == 1);
static_assert(Symbol::kStorageOffset == 2);
static_assert(Symbol::kInt == 3);
static_assert(Symbol::kFloat == 4);
static_assert(Symbol::kDerived == 5);
static_assert(Symbol::kComputeUnits == 6);
static_assert(Symbol::kFloatOrder == 7);
static_assert(Argument::kPointer == 0);
static_assert(Argument::kInt64 == 1);
static_assert(Argument::kInt32 == 2);
static_assert(Argument::kFloat32 == 3);
static_assert(Argument::kFloat64 == 4);
static_assert(Argument::kAssertions == 5);
static_assert(CallArgument::kNone == 0);
static_assert(CallArgument::kTensor == 1);
static_assert(CallArgument::kInt == 2);
static_assert(CallArgument::kFloat == 3);
static_assert(CallArgument::kFloatSymbol == 4);
static_assert(CallArgument::kBool == 5);
static_assert(CallArgument::kString == 6);
static_assert(CallArgument::kList == 7);
static_assert(CallArgument::kDtype == 8);
static_assert(CallArgument::kDevice == 9);
static_assert(CallArgument::kLayout == 10);
static_assert(CallArgument::kMemoryFormat == 11);
static_assert(Output::kTensor == 0);
static_assert(Output::kInput == 1);
static_assert(Output::kInt == 2);
static_assert(Output::kNone == 3);
static_assert(Output::kFloatSymbol == 4);
static_assert(Assertions::kRuntimeError == 0);
static_assert(Assertions::kIndexError == 1);
static_assert(Plan::kTensorInput == 0);
static_assert(Plan::kIntInput == 1);
static_assert(Plan::kFloatInput == 2);
static_assert(Plan::kNoneInput == 3);
static_assert(Step::kAllocate == 0);
static_assert(Step::kFree == 1);
static_assert(Step::kLaunch == 2);
static_assert(Step::kCall == 3);
static_assert(Step::kSeeds == 4);
static_assert(Step::kCopy == 5);
static_assert(Step::kExecute == 6);
static_assert(Step::kFill == 7);
static_assert(Step::kToLayout == 8);
static_assert(Step::kFromLayout == 9);

template <typename Wire>
void fields(Wire& wire, Symbol& x) {
  wire.choice(x.source, Symbol::kFloatOrder);
  wire.u32(x.input);
  wire.dimension(x.dim);
  wire.expr(x.derived);
}

template <typename Wire>
void fields(Wire& wire, ViewSpec& x) {
  wire.buffer(x.buffer);
  wire.dtype(x.dtype);
  wire.each(x.sizes, [&](auto& item) { wire.expr(item); });
  wire.each(x.strides, [&](auto& item) { wire.expr(item); });
  wire.expr(x.offset);
}

template <typename Wire>
void fields(Wire& wire, Argument& x) {
  wire.choice(x.kind, Argument::kAssertions);
  wire.u32(x.buffer);
  wire.u32(x.symbol);
  wire.expr(x.expr);
}

template <typename Wire>
void fields(Wire& wire, CallArgument& x) {
  wire.choice(x.kind, CallArgument::kMemoryFormat);
  switch (x.kind) {
    case CallArgument::kTensor:
      wire.record(x.tensor);
      return;
    case CallArgument::kInt:
      wire.expr(x.expr);
      return;
    case CallArgument::kFloat:
      wire.f64(x.number);
      return;
    case CallArgument::kString:
      wire.text(x.text);
      return;
    case CallArgument::kList:
      wire.call_arguments(x.items);
      return;
    case CallArgument::kFloatSymbol:
    case CallArgument::kBool:
    case CallArgument::kDtype:
    case CallArgument::kLayout:
    case CallArgument::kMemoryFormat:
      wire.i64(x.value);
      return;
    default:
      return;
  }
}

template <typename Wire>
void fields(Wire& wire, Step& x) {
  wire.choice(x.kind, Step::kFromLayout);
  switch (x.kind) {
    case Step::kAllocate:
      wire.buffer(x.buffer);
      wire.expr(x.nbytes);
      return;
    case Step::kFree:
      wire.buffer(x.buffer);
      return;
    case Step::kLaunch:
      wire.kernel(x.kernel);
      for (auto& item : x.global_size) wire.expr(item);
      for (auto& item : x.local_size) wire.u32(item);
      wire.each(x.arguments, [&](auto& item) { wire.record(item); });
      return;
    case Step::kCall:
      wire.text(x.name);
      wire.each(x.call_arguments, [&](auto& item) { wire.record(item); });
      wire.each(x.argument_names, [&](auto& item) { wire.text(item); });
      wire.each(x.results, [&](auto& item) { wire.record(item); });
      wire.boolean(x.fallback);
      return;
    case Step::kSeeds:
      wire.buffer(x.buffer);
      wire.expr(x.nbytes);
      return;
    case Step::kCopy:
      wire.buffer(x.source);
      wire.expr(x.source_offset);
      wire.buffer(x.target);
      wire.expr(x.target_offset);
      wire.expr(x.nbytes);
      return;
    case Step::kExecute:
      wire.text(x.name);
      wire.blob(x.code);
      wire.each(x.call_arguments, [&](auto& item) { wire.record(item); });
      wire.each(x.results, [&](auto& item) { wire.record(item); });
      return;
    case Step::kFill:
      wire.buffer(x.target);
      wire.expr(x.target_offset);
      wire.expr(x.nbytes);
      wire.blob(x.pattern);
      return;
    case Step::kToLayout:
      wire.buffer(x.source);
      wire.expr(x.source_offset);
      wire.buffer(x.target);
      wire.layout(x.layout);
      return;
    case Step::kFromLayout:
      wire.buffer(x.source);
      wire.buffer(x.target);
      wire.expr(x.target_offset);
      wire.layout(x.layout);
      return;
  }
}

template <typename Wire>
void fields(Wire& wire, Output& x) {
  wire.choice(x.kind, Output::kFloatSymbol);
  switch (x.kind) {
    case Output::kTensor:
      wire.record(x.view);
      return;
    case Output::kInput:
      wire.input(x.input);
      return;
    case Output::kInt:
      wire.expr(x.expr);
      return;
    case Output::kFloatSymbol:
      wire.float_symbol(x.symbol);
      return;
    default:
      return;
  }
}

template <typename Wire>
void fields(Wire& wire, ProgramSpec& x) {
  wire.text(x.source);
  wire.text(x.options);
}

template <typename Wire>
void fields(Wire& wire, KernelSpec& x) {
  wire.program(x.program);
  wire.text(x.entry);
}

template <typename Wire>
void fields(Wire& wire, AssertionSpec& x) {
  wire.i32(x.code);
  wire.choice(x.kind, Assertions::kIndexError);
  wire.text(x.text);
}

template <typename Wire>
void fields(Wire& wire, LayoutSpec& x) {
  wire.text(x.name);
  wire.dtype(x.dtype);
  wire.each(x.sizes, [&](auto& item) { wire.i64(item); });
  wire.dtype(x.arranged_dtype);
  wire.each(x.arranged_sizes, [&](auto& item) { wire.i64(item); });
  wire.blob(x.to_code);
  wire.i64(x.to_scratch);
  wire.blob(x.from_code);
  wire.i64(x.from_scratch);
}

template <typename Wire>
void fields(Wire& wire, Plan& x) {
  wire.each(x.inputs, [&](auto& item) { wire.choice(item, Plan::kNoneInput); });
  wire.each(x.symbols, [&](auto& item) { wire.record(item); });
  wire.each(x.guards, [&](auto& item) { wire.expr(item); });
  wire.buffer_count(x.buffer_count);
  wire.each(x.programs, [&](auto& item) { wire.record(item); });
  wire.each(x.kernels, [&](auto& item) { wire.record(item); });
  wire.each(x.assertions, [&](auto& item) { wire.record(item); });
  wire.each(x.layouts, [&](auto& item) { wire.record(item); });
  wire.each(x.steps, [&](auto& item) { wire.record(item); });
  wire.each(x.outputs, [&](auto& item) { wire.record(item); });
}

}  // namespace outboard::plan_wire
