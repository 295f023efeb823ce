// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

namespace outboard {

/// Element types, numbered as c10::ScalarType so that no table is needed between the two.
enum class DType : int8_t {
  kUInt8 = 0,
  kInt8 = 1,
  kInt16 = 2,
  kInt32 = 3,
  kInt64 = 4,
  kFloat16 = 5,
  kFloat32 = 6,
  kFloat64 = 7,
  kComplex32 = 8,
  kComplex64 = 9,
  kComplex128 = 10,
  kBool = 11,
  kBFloat16 = 15,
  kFloat8_e5m2 = 23,
  kFloat8_e4m3fn = 24,
  kFloat8_e5m2fnuz = 25,
  kFloat8_e4m3fnuz = 26,
  kUInt16 = 27,
  kUInt32 = 28,
  kUInt64 = 29,
  kFloat8_e8m0fnu = 44
};
/// Bytes of one element. Throws Error(OB_INVALID_ARGUMENT) for an unknown type.
uint32_t element_size(DType dtype);

/// Bytes from the first element of a strided tensor to the end of its last. Throws Error(OB_INVALID_ARGUMENT) if that
/// is no number of bytes, or if a size or stride is negative.
uint64_t span_bytes(const int64_t* sizes, const int64_t* strides, size_t rank, DType dtype);

/// Tensors in plans and model files have no more dimensions.
constexpr uint32_t kMaximumRank = 64;

/// An int64 expression over the plan's symbols: postfix code. Division and modulo round to minus infinity
/// (Python's // and %).
struct Expr {
  enum Op : uint8_t {
    kConst = 0,   ///< push immediate
    kSymbol = 1,  ///< push symbols[immediate]
    kAdd = 2,
    kSub = 3,
    kMul = 4,
    kFloorDiv = 5,
    kMod = 6,
    kCeilDiv = 7,
    kMin = 8,
    kMax = 9,
    kEq = 10,
    kNe = 11,
    kLt = 12,
    kLe = 13,
    kAnd = 14,
    kOr = 15,
    kNot = 16,
    kSelect = 17,  ///< cond, a, b -> cond ? a : b
    kPow = 18,
    kShiftLeft = 19,
    kShiftRight = 20,
    kBitAnd = 21
  };
  struct Code {
    Op op;
    int64_t immediate;
  };
  std::vector<Code> code;
};

/// A run-time value: an int64 or a double. Whether it is one or the other is fixed by where it comes from.
union Scalar {
  int64_t i;
  double d;
};

int64_t evaluate_code(const Expr& expr, const Scalar* symbols);

/// Value of an expression (0 if it is empty). Integer symbols only. Throws Error(OB_INVALID_ARGUMENT) for a value that
/// does not fit 64 bits, a division by zero, and a power or shift out of range.
inline int64_t evaluate(const Expr& expr, const Scalar* symbols) {
  if (expr.code.size() != 1) return evaluate_code(expr, symbols);
  const Expr::Code& code = expr.code.front();
  return code.op == Expr::kConst ? code.immediate : symbols[code.immediate].i;
}

/// The place of a float among all floats: guards compare integers. -0.0 is next below 0.0, and NaN beyond an infinity.
/// `plans/ordering.py` has the same.
inline int64_t order_of(double value) {
  int64_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  return bits < 0 ? bits ^ std::numeric_limits<int64_t>::max() : bits;
}

/// Where a symbol's value comes from, in terms of the plan's inputs and its device.
struct Symbol {
  enum Source : uint8_t {
    kSize = 0,
    kStride = 1,
    kStorageOffset = 2,
    kInt = 3,
    kFloat = 4,
    kDerived = 5,
    kComputeUnits = 6,  ///< how many the device has
    kFloatOrder = 7     ///< `order_of` a float
  };
  Source source;
  uint32_t input;  ///< input number (kSize, kStride, kStorageOffset, kInt, kFloat, kFloatOrder)
  uint32_t dim;    ///< kSize, kStride; below kMaximumRank
  Expr derived;    ///< kDerived: over the symbols before this one
};

/// A strided view of a buffer. Offset and strides are in elements of `dtype`.
struct ViewSpec {
  uint32_t buffer;
  DType dtype;
  std::vector<Expr> sizes, strides;
  Expr offset;
};

struct Argument {
  enum Kind : uint8_t {
    kPointer = 0,  ///< device pointer of `buffer` plus `expr` bytes
    kInt64 = 1,    ///< value of `expr`
    kInt32 = 2,    ///< value of `expr`, narrowed
    kFloat32 = 3,  ///< float symbol `symbol`
    kFloat64 = 4,
    kAssertions = 5  ///< pointer to where the kernel tells of failed assertions (runtime/streams/assertions.h)
  };
  Kind kind;
  uint32_t buffer = 0;
  uint32_t symbol = 0;
  Expr expr;
};

/// An argument of a library call: what a PyTorch schema can hold.
struct CallArgument {
  enum Kind : uint8_t {
    kNone = 0,
    kTensor = 1,
    kInt = 2,
    kFloat = 3,
    kFloatSymbol = 4,
    kBool = 5,
    kString = 6,
    kList = 7,
    kDtype = 8,
    kDevice = 9,
    kLayout = 10,
    kMemoryFormat = 11
  };
  Kind kind;
  ViewSpec tensor;                  // kTensor
  Expr expr;                        // kInt
  double number = 0;                // kFloat
  int64_t value = 0;                // kBool, kFloatSymbol (symbol number), kDtype, kLayout, kMemoryFormat
  std::string text;                 // kString
  std::vector<CallArgument> items;  // kList
};

struct Step {
  enum Kind : uint8_t {
    kAllocate = 0,
    kFree = 1,
    kLaunch = 2,
    kCall = 3,
    kSeeds = 4,
    kCopy = 5,
    kExecute = 6,
    kFill = 7,
    kToLayout = 8,
    kFromLayout = 9
  };
  Kind kind;
  // kAllocate, kFree: `buffer`; kAllocate: `nbytes`. kSeeds: fills `buffer` with `nbytes`/8 int64 seeds from the
  // generator in force.
  uint32_t buffer = 0;
  Expr nbytes;
  // kLaunch
  uint32_t kernel = 0;
  Expr global_size[3];
  uint32_t local_size[3] = {0, 0, 0};
  std::vector<Argument> arguments;
  // kCall: `name` is "aten::mm.out" or another function of the host's, or `driver::aten::mm` of the driver's library.
  // Results of functional calls are written into `results`; out-variants take their outputs as ordinary arguments and
  // leave `results` empty. `fallback` marks calls that are counted as CPU fallbacks.
  std::string name;
  std::vector<CallArgument> call_arguments;
  std::vector<std::string> argument_names;  ///< "" for positional, else the schema's keyword
  std::vector<ViewSpec> results;
  bool fallback = false;
  // kExecute: the driver's function that is loaded from `code`, on `call_arguments` and `results`. `name` is what users
  // see of it.
  std::string code;
  // kCopy: `nbytes` contiguous bytes from `source` + `source_offset` to `target` + `target_offset`
  uint32_t source = 0, target = 0;
  Expr source_offset, target_offset;
  // kToLayout: has buffer `target` hold in layout `layout` what lies in `source` from `source_offset` bytes on.
  // kFromLayout: has what lies in `target` from `target_offset` bytes on be what `source` holds in the layout. No step
  // writes into what holds contents in a layout after that.
  uint32_t layout = 0;
  // kFill: `nbytes` bytes of `target` from `target_offset` on, with a pattern of 1, 2, 4, 8 or 16 bytes
  std::string pattern;
};

struct Output {
  enum Kind : uint8_t { kTensor = 0, kInput = 1, kInt = 2, kNone = 3, kFloatSymbol = 4 };
  Kind kind;
  ViewSpec view;       // kTensor: a view of any buffer, an input's included
  uint32_t input = 0;  // kInput: the input tensor itself
  Expr expr;           // kInt
  uint32_t symbol = 0;
};

struct KernelSpec {
  uint32_t program;
  std::string entry;
};
struct ProgramSpec {
  std::string source, options;
};

/// How contents lie that the driver is to have in a way of its own (runtime/memory/memory_layout.h): a tensor, as which
/// they lie in order, another, as which they lie in the layout, and executables that make one of the other.
struct LayoutSpec {
  std::string name;
  DType dtype;
  std::vector<int64_t> sizes;
  DType arranged_dtype;
  std::vector<int64_t> arranged_sizes;
  std::string to_code, from_code;  ///< executables
  int64_t to_scratch = 0, from_scratch = 0;
};

/// What a kernel means by a code that it writes when it fails an assertion.
struct AssertionSpec {
  int32_t code;
  uint8_t kind;  ///< Assertions::Kind
  std::string text;
};

/// What the compiler emits and the runtime executes. Buffers 0 .. inputs-1 are the inputs (slots of scalar inputs
/// stay empty); then come intermediates made by kAllocate.
/// A buffer that an Output views and that is not an input must not be freed by a step.
struct Plan {
  enum InputKind : uint8_t { kTensorInput = 0, kIntInput = 1, kFloatInput = 2, kNoneInput = 3 };
  std::vector<uint8_t> inputs;
  std::vector<Symbol> symbols;
  std::vector<Expr> guards;  ///< all must be non-zero for the plan to apply
  uint32_t buffer_count = 0;
  std::vector<ProgramSpec> programs;
  std::vector<KernelSpec> kernels;
  std::vector<AssertionSpec> assertions;
  std::vector<LayoutSpec> layouts;
  std::vector<Step> steps;
  std::vector<Output> outputs;

  /// Reads the format written by outboard.compiler.plans.plan. Throws Error(OB_INVALID_ARGUMENT) for anything that is
  /// not a whole, valid plan of this version (magic, version, length, checksum, every index in range).
  static std::shared_ptr<const Plan> parse(const void* data, size_t bytes);
};

}  // namespace outboard
