// SPDX-License-Identifier: Apache-2.0
#include "runtime/executor.h"

#include <map>
#include <mutex>
#include <shared_mutex>

#include "runtime/device.h"
#include "runtime/error.h"

namespace outboard {
namespace {

struct LibraryTable {
  std::shared_mutex mutex;
  std::map<std::string, LibraryFunction> exact, prefix;
};

LibraryTable& table() {
  static LibraryTable* const instance = new LibraryTable;  // leaked: plans may run until the process ends
  return *instance;
}

/// The buffers of one run of a plan. Whatever was not handed out is returned to the allocator.
class Buffers {
 public:
  Buffers(const Plan& plan, const Input* inputs, Device& device, Stream& stream)
      : device_(device), stream_(stream), pointers_(plan.buffer_count, 0), allocations_(plan.buffer_count, nullptr) {
    for (size_t i = 0; i < plan.inputs.size(); ++i) {
      if (plan.inputs[i] != Plan::kTensorInput) continue;
      const TensorBinding& tensor = inputs[i].tensor;
      pointers_[i] = tensor.allocation->resolve(stream) + offset_bytes(tensor);
    }
  }
  Buffers(const Buffers&) = delete;
  Buffers& operator=(const Buffers&) = delete;
  ~Buffers() {
    for (Allocation* allocation : allocations_) {
      if (allocation != nullptr) allocation->release();
    }
  }

  static uint64_t offset_bytes(const TensorBinding& tensor) {
    return static_cast<uint64_t>(tensor.storage_offset) * element_size(tensor.dtype);
  }

  void allocate(uint32_t buffer, int64_t bytes) {
    if (bytes < 0) throw Error(OB_INVALID_ARGUMENT, "a plan asked for a negative number of bytes");
    free(buffer);
    allocations_[buffer] = Allocation::create(device_, static_cast<uint64_t>(bytes));
    pointers_[buffer] = allocations_[buffer]->resolve(stream_);
  }

  void free(uint32_t buffer) {
    if (allocations_[buffer] != nullptr) allocations_[buffer]->release();
    allocations_[buffer] = nullptr;
    pointers_[buffer] = 0;
  }

  ob_ptr pointer(uint32_t buffer) const { return pointers_[buffer]; }

  /// One reference for the caller, or nullptr if the buffer belongs to an input.
  Allocation* share(uint32_t buffer) const {
    Allocation* allocation = allocations_[buffer];
    if (allocation != nullptr) allocation->retain();
    return allocation;
  }

 private:
  Device& device_;
  Stream& stream_;
  std::vector<ob_ptr> pointers_;
  std::vector<Allocation*> allocations_;
};

std::vector<int64_t> evaluate_all(const std::vector<Expr>& expressions, const Scalar* symbols) {
  std::vector<int64_t> values;
  values.reserve(expressions.size());
  for (const Expr& expr : expressions) values.push_back(evaluate(expr, symbols));
  return values;
}

TensorView make_view(const ViewSpec& spec, const Buffers& buffers, const Scalar* symbols) {
  const auto offset = static_cast<uint64_t>(evaluate(spec.offset, symbols)) * element_size(spec.dtype);
  return {buffers.pointer(spec.buffer) + offset, spec.dtype, evaluate_all(spec.sizes, symbols),
          evaluate_all(spec.strides, symbols)};
}

LibraryArgument make_argument(const CallArgument& spec, const Buffers& buffers, const Scalar* symbols) {
  LibraryArgument argument;
  argument.kind = spec.kind;
  switch (spec.kind) {
    case CallArgument::kTensor:
      argument.tensor = make_view(spec.tensor, buffers, symbols);
      break;
    case CallArgument::kInt:
      argument.integer = evaluate(spec.expr, symbols);
      break;
    case CallArgument::kFloat:
      argument.number = spec.number;
      break;
    case CallArgument::kFloatSymbol:
      argument.number = symbols[spec.value].d;
      break;
    case CallArgument::kString:
      argument.text = spec.text;
      break;
    case CallArgument::kList:
      for (const CallArgument& item : spec.list) argument.list.push_back(make_argument(item, buffers, symbols));
      break;
    default:
      argument.integer = spec.value;
  }
  return argument;
}

/// One value of a kernel argument, in the form the driver reads.
union ArgumentValue {
  ob_ptr pointer;
  int64_t i64;
  int32_t i32;
  float f32;
  double f64;
};

ob_argument fill_argument(const Argument& spec, const Buffers& buffers, const Scalar* symbols, ArgumentValue& value) {
  switch (spec.kind) {
    case Argument::kPointer:
      value.pointer = buffers.pointer(spec.buffer) + static_cast<uint64_t>(evaluate(spec.expr, symbols));
      return {1, sizeof(ob_ptr), &value};
    case Argument::kInt64:
      value.i64 = evaluate(spec.expr, symbols);
      return {0, sizeof(int64_t), &value};
    case Argument::kInt32:
      value.i32 = static_cast<int32_t>(evaluate(spec.expr, symbols));
      return {0, sizeof(int32_t), &value};
    case Argument::kFloat32:
      value.f32 = static_cast<float>(symbols[spec.symbol].d);
      return {0, sizeof(float), &value};
    case Argument::kFloat64:
      value.f64 = symbols[spec.symbol].d;
      return {0, sizeof(double), &value};
  }
  throw Error(OB_INTERNAL, "unknown kernel argument kind");
}

class Run {
 public:
  Run(const Plan& plan, const std::vector<ob_kernel>& kernels, const Input* inputs, const Scalar* symbols,
      Device& device, ExecutionContext& context)
      : plan_(plan),
        kernels_(kernels),
        inputs_(inputs),
        symbols_(symbols),
        context_(context),
        buffers_(plan, inputs, device, context.stream) {}

  std::vector<Result> run() {
    for (const Step& step : plan_.steps) execute(step);
    std::vector<Result> results;
    results.reserve(plan_.outputs.size());
    for (const Output& output : plan_.outputs) results.push_back(result(output));
    return results;
  }

 private:
  void execute(const Step& step) {
    switch (step.kind) {
      case Step::kAllocate:
        return buffers_.allocate(step.buffer, evaluate(step.bytes, symbols_));
      case Step::kFree:
        return buffers_.free(step.buffer);
      case Step::kLaunch:
        return launch(step);
      case Step::kCall:
        return call(step);
      case Step::kSeeds:
        return seed(step);
      case Step::kCopy:
        return context_.stream.copy(OB_DEVICE_TO_DEVICE, buffers_.pointer(step.target) + offset(step.target_offset),
                                    buffers_.pointer(step.buffer) + offset(step.source_offset),
                                    static_cast<uint64_t>(evaluate(step.bytes, symbols_)));
    }
  }

  uint64_t offset(const Expr& expr) const { return static_cast<uint64_t>(evaluate(expr, symbols_)); }

  void launch(const Step& step) {
    uint64_t global[3];
    for (int i = 0; i < 3; ++i) {
      const int64_t size = step.global[i].code.empty() ? 1 : evaluate(step.global[i], symbols_);
      if (size <= 0) return;
      const uint64_t local = step.local[0] == 0 ? 1 : std::max<uint64_t>(step.local[i], 1);
      global[i] = (static_cast<uint64_t>(size) + local - 1) / local * local;
    }
    values_.resize(step.arguments.size());
    arguments_.resize(step.arguments.size());
    for (size_t i = 0; i < step.arguments.size(); ++i) {
      arguments_[i] = fill_argument(step.arguments[i], buffers_, symbols_, values_[i]);
    }
    context_.stream.launch(kernels_[step.kernel], global, step.local, arguments_.data(),
                           static_cast<uint32_t>(arguments_.size()));
  }

  void call(const Step& step) {
    const LibraryFunction* function = Library::get().find(step.name);
    if (function == nullptr) throw Error(OB_UNSUPPORTED, "no library provides '" + step.name + "' on this device");
    LibraryCall call{step, context_.stream, {}, {}};
    for (const CallArgument& argument : step.call_arguments) {
      call.arguments.push_back(make_argument(argument, buffers_, symbols_));
    }
    for (const ViewSpec& view : step.results) call.results.push_back(make_view(view, buffers_, symbols_));
    (*function)(call);
  }

  void seed(const Step& step) {
    std::vector<int64_t> seeds(static_cast<size_t>(evaluate(step.bytes, symbols_)) / sizeof(int64_t));
    if (seeds.empty()) return;
    context_.seeds(seeds.data(), static_cast<int64_t>(seeds.size()));
    context_.stream.copy(OB_HOST_TO_DEVICE, buffers_.pointer(step.buffer), reinterpret_cast<uint64_t>(seeds.data()),
                         seeds.size() * sizeof(int64_t));
    if (!context_.stream.device().host_accessible()) context_.stream.synchronize();  // `seeds` dies here
  }

  Result result(const Output& output) const {
    Result made;
    made.kind = output.kind;
    made.input = output.input;
    if (output.kind == Output::kInt) made.scalar.i = evaluate(output.expr, symbols_);
    if (output.kind == Output::kFloatSymbol) made.scalar = symbols_[output.symbol];
    if (output.kind != Output::kTensor) return made;
    made.dtype = output.view.dtype;
    made.sizes = evaluate_all(output.view.sizes, symbols_);
    made.strides = evaluate_all(output.view.strides, symbols_);
    made.storage_offset = evaluate(output.view.offset, symbols_);
    made.allocation = buffers_.share(output.view.buffer);
    made.new_allocation = made.allocation != nullptr;
    if (made.new_allocation) return made;
    made.input = output.view.buffer;
    if (made.input >= plan_.inputs.size()) throw Error(OB_INTERNAL, "a plan returns a buffer it never made");
    made.storage_offset += inputs_[made.input].tensor.storage_offset;
    return made;
  }

  const Plan& plan_;
  const std::vector<ob_kernel>& kernels_;
  const Input* inputs_;
  const Scalar* symbols_;
  ExecutionContext& context_;
  Buffers buffers_;
  std::vector<ArgumentValue> values_;
  std::vector<ob_argument> arguments_;
};

Scalar symbol_value(const Symbol& symbol, const Input* inputs, const Scalar* symbols) {
  Scalar value;
  const Input& input = inputs[symbol.input];
  switch (symbol.source) {
    case Symbol::kSize:
      value.i = input.tensor.sizes[symbol.dim];
      break;
    case Symbol::kStride:
      value.i = input.tensor.strides[symbol.dim];
      break;
    case Symbol::kStorageOffset:
      value.i = input.tensor.storage_offset;
      break;
    case Symbol::kDerived:
      value.i = evaluate(symbol.derived, symbols);
      break;
    default:
      value = input.scalar;
  }
  return value;
}

}  // namespace

Library& Library::get() {
  static Library* const instance = new Library;
  return *instance;
}

void Library::add(const std::string& name, LibraryFunction function) {
  std::unique_lock lock(table().mutex);
  const bool is_prefix = !name.empty() && name.back() == '*';
  if (is_prefix) {
    table().prefix[name.substr(0, name.size() - 1)] = std::move(function);
  } else {
    table().exact[name] = std::move(function);
  }
}

const LibraryFunction* Library::find(const std::string& name) const {
  std::shared_lock lock(table().mutex);
  const auto exact = table().exact.find(name);
  if (exact != table().exact.end()) return &exact->second;
  const LibraryFunction* best = nullptr;
  size_t longest = 0;
  for (const auto& [prefix, function] : table().prefix) {
    if (name.compare(0, prefix.size(), prefix) != 0 || (best != nullptr && prefix.size() < longest)) continue;
    best = &function;
    longest = prefix.size();
  }
  return best;
}

bool bind_symbols(const Plan& plan, const Input* inputs, std::vector<Scalar>& symbols) {
  symbols.resize(plan.symbols.size());
  for (size_t i = 0; i < plan.symbols.size(); ++i) {
    const Symbol& symbol = plan.symbols[i];
    const bool of_tensor = symbol.source == Symbol::kSize || symbol.source == Symbol::kStride;
    if (of_tensor && static_cast<int32_t>(symbol.dim) >= inputs[symbol.input].tensor.dim) return false;
    symbols[i] = symbol_value(symbol, inputs, symbols.data());
  }
  for (const Expr& guard : plan.guards) {
    if (evaluate(guard, symbols.data()) == 0) return false;
  }
  return true;
}

Executable::Executable(std::shared_ptr<const Plan> plan, Device& device) : plan_(std::move(plan)), device_(device) {
  for (const KernelSpec& kernel : plan_->kernels) {
    const ProgramSpec& program = plan_->programs[kernel.program];
    kernels_.push_back(device.programs().kernel(program.source, program.options, kernel.entry));
  }
}

std::vector<Result> Executable::run(const Input* inputs, const std::vector<Scalar>& symbols,
                                    ExecutionContext& context) const {
  return Run(*plan_, kernels_, inputs, symbols.data(), device_, context).run();
}

}  // namespace outboard
