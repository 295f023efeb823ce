// SPDX-License-Identifier: Apache-2.0
#include "runtime/plans/plan.h"

#include <algorithm>
#include <cstring>

#include "runtime/base/error.h"
#include "runtime/base/sha256.h"
#include "runtime/base/wire_reader.h"
#include "runtime/streams/assertions.h"

namespace outboard {
namespace {

constexpr char kMagic[8] = {'O', 'B', 'P', 'L', 'A', 'N', '\0', '\0'};
constexpr uint32_t kVersion = 2;
constexpr size_t kDigestBytes = 16;
constexpr int kMaximumStack = 64;
constexpr int kMaximumNesting = 8;

[[noreturn]] void invalid(const std::string& what) {
  throw Error(OB_INVALID_ARGUMENT, "not a valid plan: " + what + ". Delete the plan cache and run again.");
}

// Sizes come from tensors that exist, so wrapping around is never met in a plan that makes sense; in one that does not,
// it must only not be undefined.
int64_t wrap(uint64_t value) { return static_cast<int64_t>(value); }
int64_t add(int64_t a, int64_t b) { return wrap(static_cast<uint64_t>(a) + static_cast<uint64_t>(b)); }
int64_t subtract(int64_t a, int64_t b) { return wrap(static_cast<uint64_t>(a) - static_cast<uint64_t>(b)); }
int64_t multiply(int64_t a, int64_t b) { return wrap(static_cast<uint64_t>(a) * static_cast<uint64_t>(b)); }

int64_t floor_div(int64_t a, int64_t b) {
  if (b == 0) throw Error(OB_INVALID_ARGUMENT, "division by zero in a plan's size expression");
  if (b == -1) return subtract(0, a);  // the smallest integer has no opposite: the processor would trap
  const int64_t quotient = a / b;
  return (a % b != 0 && ((a < 0) != (b < 0))) ? quotient - 1 : quotient;
}

int64_t modulo(int64_t a, int64_t b) { return subtract(a, multiply(floor_div(a, b), b)); }

int64_t power(int64_t base, int64_t exponent) {
  if (exponent < 0) throw Error(OB_INVALID_ARGUMENT, "negative power in a plan's size expression");
  int64_t result = 1;
  for (; exponent != 0; exponent >>= 1, base = multiply(base, base)) {
    if ((exponent & 1) != 0) result = multiply(result, base);
  }
  return result;
}

int64_t shift_amount(int64_t bits) {
  if (bits < 0 || bits > 63) throw Error(OB_INVALID_ARGUMENT, "shift out of range in a plan's size expression");
  return bits;
}

int64_t binary(Expr::Op op, int64_t a, int64_t b) {
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
      return wrap(static_cast<uint64_t>(a) << shift_amount(b));
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

/// Reads the wire format, checking every length and index.
class Reader : private WireReader {
 public:
  Reader(const uint8_t* data, size_t bytes) : WireReader(data, bytes, invalid) {}

  void plan(Plan& plan) {
    each(plan.inputs, [&] { return bounded(u8(), 4u, "input kind"); });
    each(plan.symbols, [&] { return symbol(plan); });
    each(plan.guards, [&] { return expr(); });
    plan.buffer_count = u32();
    if (plan.buffer_count < plan.inputs.size() || plan.buffer_count > (1u << 20)) invalid("buffer count");
    buffers_ = plan.buffer_count;
    each(plan.programs, [&] {
      ProgramSpec p;
      p.source = text();
      p.options = text();
      return p;
    });
    each(plan.kernels, [&] {
      KernelSpec k;
      k.program = bounded(u32(), plan.programs.size(), "program number");
      k.entry = text();
      return k;
    });
    each(plan.assertions, [&] {
      AssertionSpec a;
      a.code = fixed<int32_t>();
      a.kind = bounded(u8(), Assertions::kIndexError + 1u, "kind of assertion");
      a.text = text();
      if (a.code == 0) invalid("assertion without a code");
      return a;
    });
    each(plan.steps, [&] { return step(plan); });
    each(plan.outputs, [&] { return output(plan); });
    if (left() != 0) invalid("trailing bytes");
  }

 private:
  Expr expr() {
    Expr result;
    int depth = 0, deepest = 0;
    each(result.code, [&] {
      Expr::Code code;
      code.op = static_cast<Expr::Op>(bounded(u8(), Expr::kBitAnd + 1u, "instruction"));
      code.immediate = fixed<int64_t>();
      if (code.op == Expr::kSymbol) check_symbol(code.immediate, true);
      depth -= arity(code.op);
      if (depth < 0) invalid("expression takes more than it has");
      deepest = std::max(deepest, ++depth);
      return code;
    });
    if (!result.code.empty() && depth != 1) invalid("expression leaves more than one value");
    if (deepest > kMaximumStack) invalid("expression too deep");
    return result;
  }

  void check_symbol(int64_t number, bool integer) const {
    if (number < 0 || static_cast<size_t>(number) >= integer_.size()) invalid("symbol number out of range");
    if (integer_[static_cast<size_t>(number)] != integer) invalid("symbol of the wrong type");
  }

  Symbol symbol(const Plan& plan) {
    Symbol s;
    s.source = static_cast<Symbol::Source>(bounded(u8(), Symbol::kComputeUnits + 1u, "symbol source"));
    s.input = u32();
    s.dim = bounded(u32(), kMaximumRank, "dimension");
    s.derived = expr();
    if (!has_source(plan, s)) invalid("symbol");
    integer_.push_back(s.source != Symbol::kFloat);
    return s;
  }

  static bool has_source(const Plan& plan, const Symbol& s) {
    if (s.source == Symbol::kComputeUnits) return true;
    if (s.source == Symbol::kDerived) return !s.derived.code.empty();
    const uint8_t expected = s.source == Symbol::kInt     ? Plan::kIntInput
                             : s.source == Symbol::kFloat ? Plan::kFloatInput
                                                          : Plan::kTensorInput;
    return s.input < plan.inputs.size() && plan.inputs[s.input] == expected;
  }

  uint32_t buffer() { return bounded(u32(), buffers_, "buffer number"); }

  ViewSpec view() {
    ViewSpec v;
    v.buffer = buffer();
    v.dtype = static_cast<DType>(u8());
    element_size(v.dtype);
    each(v.sizes, [&] { return expr(); });
    bounded(v.sizes.size(), kMaximumRank + 1, "rank");
    each(v.strides, [&] { return expr(); });
    v.offset = expr();
    if (v.sizes.size() != v.strides.size()) invalid("view with unequal ranks");
    return v;
  }

  Argument argument() {
    Argument a;
    a.kind = static_cast<Argument::Kind>(bounded(u8(), Argument::kAssertions + 1u, "argument kind"));
    a.buffer = u32();
    a.symbol = u32();
    a.expr = expr();
    if (a.kind == Argument::kPointer && a.buffer >= buffers_) invalid("buffer number out of range");
    if (a.kind == Argument::kFloat32 || a.kind == Argument::kFloat64) check_symbol(a.symbol, false);
    return a;
  }

  CallArgument call_argument(int depth = 0) {
    if (depth > kMaximumNesting) invalid("lists nested too deeply");
    CallArgument a;
    a.kind = static_cast<CallArgument::Kind>(bounded(u8(), CallArgument::kMemoryFormat + 1u, "call argument kind"));
    switch (a.kind) {
      case CallArgument::kNone:
      case CallArgument::kDevice:
        break;
      case CallArgument::kTensor:
        a.tensor = view();
        break;
      case CallArgument::kInt:
        a.expr = expr();
        break;
      case CallArgument::kFloat:
        a.number = fixed<double>();
        break;
      case CallArgument::kString:
        a.text = text();
        break;
      case CallArgument::kList:
        each(a.list, [&] { return call_argument(depth + 1); });
        break;
      default:
        a.value = fixed<int64_t>();
        if (a.kind == CallArgument::kFloatSymbol) check_symbol(a.value, false);
    }
    return a;
  }

  /// How many work-items a group may have depends on the device; here their number must be one.
  static void check_group(const uint32_t local[3]) {
    uint64_t items = 1;
    for (int i = 0; i < 3; ++i) {
      items *= std::max<uint32_t>(local[i], 1);
      if (items > (1u << 31)) invalid("work-groups too large");
    }
  }

  Step step(const Plan& plan) {
    Step s;
    s.kind = static_cast<Step::Kind>(bounded(u8(), Step::kCopy + 1u, "step kind"));
    switch (s.kind) {
      case Step::kAllocate:
      case Step::kSeeds:
        s.buffer = buffer();
        s.bytes = expr();
        break;
      case Step::kFree:
        s.buffer = buffer();
        break;
      case Step::kLaunch:
        s.kernel = bounded(u32(), plan.kernels.size(), "kernel number");
        for (Expr& size : s.global) size = expr();
        for (uint32_t& local : s.local) local = u32();
        check_group(s.local);
        each(s.arguments, [&] { return argument(); });
        break;
      case Step::kCall:
        s.name = text();
        each(s.call_arguments, [&] { return call_argument(); });
        each(s.argument_names, [&] { return text(); });
        each(s.results, [&] { return view(); });
        s.fallback = u8() != 0;
        if (!s.argument_names.empty() && s.argument_names.size() != s.call_arguments.size()) invalid("argument names");
        break;
      case Step::kCopy:
        s.buffer = buffer();
        s.source_offset = expr();
        s.target = buffer();
        s.target_offset = expr();
        s.bytes = expr();
        break;
    }
    return s;
  }

  Output output(const Plan& plan) {
    Output o;
    o.kind = static_cast<Output::Kind>(bounded(u8(), Output::kFloatSymbol + 1u, "output kind"));
    if (o.kind == Output::kTensor) o.view = view();
    if (o.kind == Output::kInput) o.input = bounded(u32(), plan.inputs.size(), "input number");
    if (o.kind == Output::kInt) o.expr = expr();
    if (o.kind == Output::kFloatSymbol) check_symbol(o.symbol = u32(), false);
    return o;
  }

  size_t buffers_ = 0;
  std::vector<bool> integer_;  // by symbol, of those read so far
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
        for (const CallArgument& argument : step.call_arguments) need(argument);
        for (const ViewSpec& view : step.results) need(view.buffer);
        return;
      case Step::kSeeds:
        return need(step.buffer);
      case Step::kCopy:
        need(step.buffer);
        need(step.target);
        return;
    }
  }

  void need(uint32_t buffer) const {
    if (!exists_[buffer]) invalid("buffer " + std::to_string(buffer) + " is used while it does not exist");
  }
  void need(const CallArgument& argument) const {
    if (argument.kind == CallArgument::kTensor) need(argument.tensor.buffer);
    for (const CallArgument& item : argument.list) need(item);
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
  int64_t stack[kMaximumStack];
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
  return top < 0 ? 0 : stack[top];
}

std::shared_ptr<const Plan> Plan::parse(const void* data, size_t bytes) {
  const auto* cursor = static_cast<const uint8_t*>(data);
  constexpr size_t kHeader = sizeof(kMagic) + sizeof(uint32_t) + sizeof(uint64_t) + kDigestBytes;
  if (bytes < kHeader || std::memcmp(cursor, kMagic, sizeof(kMagic)) != 0) invalid("no plan header");
  uint32_t version;
  std::memcpy(&version, cursor + 8, sizeof(version));
  if (version != kVersion) invalid("version " + std::to_string(version));
  uint64_t length;
  std::memcpy(&length, cursor + 12, sizeof(length));
  if (length != bytes - kHeader) invalid("wrong length");
  const auto digest = sha256(cursor + kHeader, length);
  if (std::memcmp(digest.data(), cursor + 20, kDigestBytes) != 0) invalid("wrong checksum");
  auto plan = std::make_shared<Plan>();
  Reader(cursor + kHeader, length).plan(*plan);
  Lifetimes(*plan).check();
  return plan;
}

}  // namespace outboard
