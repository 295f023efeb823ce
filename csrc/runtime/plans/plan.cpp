// SPDX-License-Identifier: Apache-2.0
#include "runtime/plans/plan.h"

#include <algorithm>
#include <cstring>

#include "runtime/base/error.h"
#include "runtime/base/sha256.h"
#include "runtime/base/wire_reader.h"
#include "runtime/plans/wire_fields.h"

namespace outboard {
namespace {

constexpr char kMagic[8] = {'O', 'B', 'P', 'L', 'A', 'N', '\0', '\0'};
constexpr size_t kDigestBytes = 16;
constexpr int kMaximumStack = 64;
constexpr int kMaximumNesting = 8;

[[noreturn]] void invalid(const std::string& what) {
  throw Error(OB_INVALID_ARGUMENT, "not a valid plan: " + what + ". Delete the plan cache and run again.");
}

/// Integers of Python's have no limit. Where a value that does not fit 64 bits is an intermediate one, or of a branch
/// that is not taken, it is computed nevertheless.
__extension__ using Wide = __int128;

[[noreturn]] void overflow() {
  throw Error(OB_INVALID_ARGUMENT, "an integer that the program computes does not fit 64 bits");
}

Wide add(Wide a, Wide b) {
  Wide sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) overflow();
  return sum;
}

Wide multiply(Wide a, Wide b) {
  Wide product = 0;
  if (__builtin_mul_overflow(a, b, &product)) overflow();
  return product;
}

Wide subtract(Wide a, Wide b) { return add(a, multiply(-1, b)); }

Wide floor_div(Wide a, Wide b) {
  if (b == 0) throw Error(OB_INVALID_ARGUMENT, "division by zero in a plan's size expression");
  if (b == -1) return subtract(0, a);  // the least integer has no opposite: the processor would trap
  const Wide quotient = a / b;
  return (a % b != 0 && ((a < 0) != (b < 0))) ? quotient - 1 : quotient;
}

Wide modulo(Wide a, Wide b) { return b == -1 ? 0 : subtract(a, multiply(floor_div(a, b), b)); }

Wide power(Wide base, Wide exponent) {
  if (exponent < 0) throw Error(OB_INVALID_ARGUMENT, "negative power in a plan's size expression");
  Wide result = 1;
  for (;; base = multiply(base, base)) {
    if ((exponent & 1) != 0) result = multiply(result, base);
    exponent >>= 1;
    if (exponent == 0) return result;
  }
}

int shift_amount(Wide bits) {
  if (bits < 0 || bits > 63) throw Error(OB_INVALID_ARGUMENT, "shift out of range in a plan's size expression");
  return static_cast<int>(bits);
}

Wide binary(Expr::Op op, Wide a, Wide b) {
  switch (op) {
    case Expr::kAdd:
      return add(a, b);
    case Expr::kSub:
      return subtract(a, b);
    case Expr::kMul:
      return multiply(a, b);
    case Expr::kFloorDiv:
      return floor_div(a, b);
    case Expr::kMod:
      return modulo(a, b);
    case Expr::kCeilDiv:
      return subtract(0, floor_div(subtract(0, a), b));
    case Expr::kMin:
      return std::min(a, b);
    case Expr::kMax:
      return std::max(a, b);
    case Expr::kEq:
      return a == b;
    case Expr::kNe:
      return a != b;
    case Expr::kLt:
      return a < b;
    case Expr::kLe:
      return a <= b;
    case Expr::kAnd:
      return a != 0 && b != 0;
    case Expr::kOr:
      return a != 0 || b != 0;
    case Expr::kPow:
      return power(a, b);
    case Expr::kShiftLeft:
      return multiply(a, Wide{1} << shift_amount(b));
    case Expr::kShiftRight:
      return a >> shift_amount(b);
    case Expr::kBitAnd:
      return a & b;
    default:
      throw Error(OB_INTERNAL, "unknown instruction in a plan's expression");
  }
}

/// Operands an instruction takes.
int arity(Expr::Op op) {
  if (op == Expr::kConst || op == Expr::kSymbol) return 0;
  if (op == Expr::kNot) return 1;
  return op == Expr::kSelect ? 3 : 2;
}

/// Reads the wire format (wire_fields.h), checking every length and index.
class Reader : private WireReader {
 public:
  Reader(const uint8_t* data, size_t bytes, Plan& plan) : WireReader(data, bytes, invalid), plan_(plan) {}

  void read() {
    plan_wire::fields(*this, plan_);
    if (left() != 0) invalid("trailing bytes");
  }

  // ---- encodings ----

  using WireReader::choice;
  using WireReader::each;
  template <typename T>
  void record(T& value) {
    plan_wire::fields(*this, value);
    check(value);
  }
  void u32(uint32_t& value) { value = WireReader::u32(); }
  void i32(int32_t& value) { value = fixed<int32_t>(); }
  void i64(int64_t& value) { value = fixed<int64_t>(); }
  void f64(double& value) { value = fixed<double>(); }
  void text(std::string& value) { value = WireReader::text(); }
  void blob(std::string& value) { value = WireReader::text(); }
  void boolean(bool& value) { value = u8() != 0; }
  void buffer(uint32_t& value) { value = bounded(WireReader::u32(), plan_.buffer_count, "buffer number"); }
  void kernel(uint32_t& value) { value = bounded(WireReader::u32(), plan_.kernels.size(), "kernel number"); }
  void layout(uint32_t& value) { value = bounded(WireReader::u32(), plan_.layouts.size(), "layout number"); }
  void program(uint32_t& value) { value = bounded(WireReader::u32(), plan_.programs.size(), "program number"); }
  void input(uint32_t& value) { value = bounded(WireReader::u32(), plan_.inputs.size(), "input number"); }
  void dimension(uint32_t& value) { value = bounded(WireReader::u32(), kMaximumRank, "dimension"); }
  void float_symbol(uint32_t& value) {
    value = WireReader::u32();
    check_symbol(value, false);
  }
  void dtype(DType& value) {
    value = static_cast<DType>(u8());
    element_size(value);
  }
  void buffer_count(uint32_t& value) {
    value = WireReader::u32();
    if (value < plan_.inputs.size() || value > (1u << 20)) invalid("buffer count");
  }
  void expr(Expr& value) {
    int depth = 0, deepest = 0;
    each(value.code, [&](Expr::Code& code) {
      choice(code.op, Expr::kBitAnd);
      code.immediate = fixed<int64_t>();
      if (code.op == Expr::kSymbol) check_symbol(code.immediate, true);
      depth -= arity(code.op);
      if (depth < 0) invalid("expression takes more than it has");
      deepest = std::max(deepest, ++depth);
    });
    if (!value.code.empty() && depth != 1) invalid("expression leaves more than one value");
    if (deepest > kMaximumStack) invalid("expression too deep");
  }
  void call_arguments(std::vector<CallArgument>& value) {
    if (++nesting_ > kMaximumNesting) invalid("lists nested too deeply");
    each(value, [&](CallArgument& item) { record(item); });
    --nesting_;
  }

 private:
  // ---- what a record must be as a whole ----

  void check(const Symbol& symbol) {
    if (!has_source(symbol)) invalid("symbol");
    integer_.push_back(symbol.source != Symbol::kFloat);
  }
  void check(const ViewSpec& view) const {
    bounded(view.sizes.size(), kMaximumRank + 1, "rank");
    if (view.sizes.size() != view.strides.size()) invalid("view with unequal ranks");
  }
  void check(const Argument& argument) const {
    if (argument.kind == Argument::kPointer && argument.buffer >= plan_.buffer_count) {
      invalid("buffer number out of range");
    }
    if (argument.kind == Argument::kFloat32 || argument.kind == Argument::kFloat64) {
      check_symbol(argument.symbol, false);
    }
  }
  void check(const CallArgument& argument) const {
    if (argument.kind == CallArgument::kFloatSymbol) check_symbol(argument.value, false);
  }
  void check(const AssertionSpec& assertion) const {
    if (assertion.code == 0) invalid("assertion without a code");
  }
  void check(const LayoutSpec& layout) const {
    bounded(std::max(layout.sizes.size(), layout.arranged_sizes.size()), kMaximumRank + 1, "rank");
    if (layout.to_scratch < 0 || layout.from_scratch < 0) invalid("scratch of a layout");
  }
  /// How many work-items a group may have depends on the device; here their number must be one.
  void check(const Step& step) const {
    uint64_t items = 1;
    for (const uint32_t local : step.local_size) {
      items *= std::max<uint32_t>(local, 1);
      if (items > (1u << 31)) invalid("work-groups too large");
    }
    if (!step.argument_names.empty() && step.argument_names.size() != step.call_arguments.size()) {
      invalid("argument names");
    }
    const size_t pattern = step.pattern.size();
    if (step.kind == Step::kFill && (pattern == 0 || pattern > 16 || (pattern & (pattern - 1)) != 0)) {
      invalid("a pattern of a size that no fill takes");
    }
  }
  template <typename T>
  void check(const T&) const {}

  void check_symbol(int64_t number, bool integer) const {
    if (number < 0 || static_cast<size_t>(number) >= integer_.size()) invalid("symbol number out of range");
    if (integer_[static_cast<size_t>(number)] != integer) invalid("symbol of the wrong type");
  }

  bool has_source(const Symbol& s) const {
    if (s.source == Symbol::kComputeUnits) return true;
    if (s.source == Symbol::kDerived) return !s.derived.code.empty();
    const bool is_float = s.source == Symbol::kFloat || s.source == Symbol::kFloatOrder;
    const uint8_t expected = s.source == Symbol::kInt ? Plan::kIntInput
                             : is_float               ? Plan::kFloatInput
                                                      : Plan::kTensorInput;
    return s.input < plan_.inputs.size() && plan_.inputs[s.input] == expected;
  }

  Plan& plan_;                 // so far
  std::vector<bool> integer_;  // by symbol, of those read so far
  int nesting_ = 0;
};

/// Follows the buffers through the steps: whatever a step or an output touches must exist by then, because a kernel
/// given no memory would take the process down.
class Lifetimes {
 public:
  explicit Lifetimes(const Plan& plan) : plan_(plan), exists_(plan.buffer_count, false) {
    for (size_t i = 0; i < plan.inputs.size(); ++i) exists_[i] = plan.inputs[i] == Plan::kTensorInput;
  }

  void check() {
    for (const Step& step : plan_.steps) follow(step);
    for (const Output& output : plan_.outputs) {
      if (output.kind == Output::kTensor) need(output.view.buffer);
    }
  }

 private:
  void follow(const Step& step) {
    switch (step.kind) {
      case Step::kAllocate:
        need_intermediate(step.buffer);
        exists_[step.buffer] = true;
        return;
      case Step::kFree:
        need_intermediate(step.buffer);
        exists_[step.buffer] = false;
        return;
      case Step::kLaunch:
        for (const Argument& argument : step.arguments) {
          if (argument.kind == Argument::kPointer) need(argument.buffer);
          if (argument.kind == Argument::kAssertions && plan_.assertions.empty()) invalid("assertions without a text");
        }
        return;
      case Step::kCall:
      case Step::kExecute:
        for (const CallArgument& argument : step.call_arguments) need(argument);
        for (const ViewSpec& view : step.results) need(view.buffer);
        return;
      case Step::kSeeds:
        return need(step.buffer);
      case Step::kCopy:
        need(step.source);
        need(step.target);
        return;
      case Step::kFill:
        return need(step.target);
      case Step::kToLayout:
        need(step.source);
        need_intermediate(step.target);
        exists_[step.target] = true;
        return;
      case Step::kFromLayout:
        need_intermediate(step.source);
        need(step.source);
        return need(step.target);
    }
  }

  void need(uint32_t buffer) const {
    if (!exists_[buffer]) invalid("buffer " + std::to_string(buffer) + " is used while it does not exist");
  }
  void need(const CallArgument& argument) const {
    if (argument.kind == CallArgument::kTensor) need(argument.tensor.buffer);
    for (const CallArgument& item : argument.items) need(item);
  }
  void need_intermediate(uint32_t buffer) const {
    if (buffer < plan_.inputs.size()) invalid("an input is allocated or freed");
  }

  const Plan& plan_;
  std::vector<bool> exists_;
};

}  // namespace

uint32_t element_size(DType dtype) {
  switch (dtype) {
    case DType::kUInt8:
    case DType::kInt8:
    case DType::kBool:
    case DType::kFloat8_e5m2:
    case DType::kFloat8_e4m3fn:
    case DType::kFloat8_e5m2fnuz:
    case DType::kFloat8_e4m3fnuz:
    case DType::kFloat8_e8m0fnu:
      return 1;
    case DType::kInt16:
    case DType::kUInt16:
    case DType::kFloat16:
    case DType::kBFloat16:
      return 2;
    case DType::kInt32:
    case DType::kUInt32:
    case DType::kFloat32:
    case DType::kComplex32:
      return 4;
    case DType::kInt64:
    case DType::kUInt64:
    case DType::kFloat64:
    case DType::kComplex64:
      return 8;
    case DType::kComplex128:
      return 16;
  }
  throw Error(OB_INVALID_ARGUMENT, "element type " + std::to_string(static_cast<int>(dtype)) + " is not supported");
}

uint64_t span_bytes(const int64_t* sizes, const int64_t* strides, size_t rank, DType dtype) {
  bool empty = false;
  for (size_t d = 0; d < rank; ++d) {
    if (sizes[d] < 0 || strides[d] < 0) throw Error(OB_INVALID_ARGUMENT, "a tensor has a negative size or stride");
    empty |= sizes[d] == 0;
  }
  if (empty) return 0;
  uint64_t last = 0, bytes;
  bool wraps = false;
  for (size_t d = 0; d < rank; ++d) {
    uint64_t step;
    wraps |= __builtin_mul_overflow(static_cast<uint64_t>(sizes[d] - 1), static_cast<uint64_t>(strides[d]), &step);
    wraps |= __builtin_add_overflow(last, step, &last);
  }
  wraps |= __builtin_add_overflow(last, uint64_t{1}, &last);
  wraps |= __builtin_mul_overflow(last, uint64_t{element_size(dtype)}, &bytes);
  if (wraps) throw Error(OB_INVALID_ARGUMENT, "a tensor is larger than any memory");
  return bytes;
}

int64_t evaluate_code(const Expr& expr, const Scalar* symbols) {
  Wide stack[kMaximumStack];
  int top = -1;
  for (const Expr::Code& code : expr.code) {
    switch (code.op) {
      case Expr::kConst:
        stack[++top] = code.immediate;
        break;
      case Expr::kSymbol:
        stack[++top] = symbols[code.immediate].i;
        break;
      case Expr::kNot:
        stack[top] = stack[top] == 0;
        break;
      case Expr::kSelect:
        top -= 2;
        stack[top] = stack[top] != 0 ? stack[top + 1] : stack[top + 2];
        break;
      default:
        --top;
        stack[top] = binary(code.op, stack[top], stack[top + 1]);
    }
  }
  if (top < 0) return 0;
  const auto value = static_cast<int64_t>(stack[top]);
  if (value != stack[top]) overflow();
  return value;
}

std::shared_ptr<const Plan> Plan::parse(const void* data, size_t bytes) {
  const auto* cursor = static_cast<const uint8_t*>(data);
  constexpr size_t kHeader = sizeof(kMagic) + sizeof(uint32_t) + sizeof(uint64_t) + kDigestBytes;
  if (bytes < kHeader || std::memcmp(cursor, kMagic, sizeof(kMagic)) != 0) invalid("no plan header");
  uint32_t version;
  std::memcpy(&version, cursor + 8, sizeof(version));
  if (version != plan_wire::kVersion) invalid("version " + std::to_string(version));
  uint64_t length;
  std::memcpy(&length, cursor + 12, sizeof(length));
  if (length != bytes - kHeader) invalid("wrong length");
  const auto digest = sha256(cursor + kHeader, length);
  if (std::memcmp(digest.data(), cursor + 20, kDigestBytes) != 0) invalid("wrong checksum");
  auto plan = std::make_shared<Plan>();
  Reader(cursor + kHeader, length, *plan).read();
  Lifetimes(*plan).check();
  return plan;
}

}  // namespace outboard
