// SPDX-License-Identifier: Apache-2.0
#include "runtime/executor.h"

#include <algorithm>
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

/// The buffers of one run of a plan. Each is an allocation that takes device memory when a step first uses it, and may
/// leave it between steps. Whatever was not handed out is released.
class Buffers {
 public:
  Buffers(const Plan& plan, const std::vector<uint8_t>& leaves, const Input* inputs, Device& device)
      : leaves_(leaves), device_(device), buffers_(plan.buffer_count) {
    for (size_t i = 0; i < plan.inputs.size(); ++i) {
      if (plan.inputs[i] != Plan::kTensorInput) continue;
      const TensorBinding& tensor = inputs[i].tensor;
      buffers_[i] = {tensor.allocation, offset_bytes(tensor), /*owned=*/false};
    }
  }
  Buffers(const Buffers&) = delete;
  Buffers& operator=(const Buffers&) = delete;
  ~Buffers() {
    for (Buffer& buffer : buffers_) give_back(buffer);
  }

  void allocate(uint32_t number, int64_t bytes) {
    if (bytes < 0) throw Error(OB_INVALID_ARGUMENT, "a plan asked for a negative number of bytes");
    free(number);
    const auto size = static_cast<uint64_t>(bytes);
    buffers_[number].allocation = leaves_[number] != 0 ? Allocation::create(device_, size)  // becomes a tensor
                                                       : Allocation::create_internal(device_, size);
    buffers_[number].owned = true;
  }

  void free(uint32_t number) {
    give_back(buffers_[number]);
    buffers_[number] = Buffer{};
  }

  ob_ptr pointer(Work& work, uint32_t number) const {
    const Buffer& buffer = buffers_[number];
    return buffer.allocation == nullptr ? 0 : work.resolve(*buffer.allocation) + buffer.offset;
  }

  Allocation* allocation(uint32_t number) const { return buffers_[number].allocation; }

  /// One reference for the caller, or nullptr if the buffer belongs to an input.
  Allocation* share(uint32_t number) const noexcept {
    const Buffer& buffer = buffers_[number];
    if (!buffer.owned) return nullptr;
    buffer.allocation->retain();
    return buffer.allocation;
  }

 private:
  struct Buffer {
    Allocation* allocation = nullptr;
    uint64_t offset = 0;  // bytes
    bool owned = false;
  };

  static uint64_t offset_bytes(const TensorBinding& tensor) {
    return static_cast<uint64_t>(tensor.storage_offset) * element_size(tensor.dtype);
  }

  static void give_back(Buffer& buffer) noexcept {
    if (buffer.owned) buffer.allocation->release();
  }

  const std::vector<uint8_t>& leaves_;
  Device& device_;
  SmallArray<Buffer, 24> buffers_;
};

/// The memory of one library call: it stays where it is until the call is over.
class CallMemory {
 public:
  explicit CallMemory(const Buffers& buffers) : buffers_(buffers) {}
  CallMemory(const CallMemory&) = delete;
  CallMemory& operator=(const CallMemory&) = delete;
  ~CallMemory() {
    for (Allocation* allocation : pinned_) allocation->unpin();
  }

  ob_ptr pointer(Work& work, uint32_t number) {
    const ob_ptr pointer = buffers_.pointer(work, number);
    Allocation* allocation = buffers_.allocation(number);
    if (allocation == nullptr) return pointer;
    pinned_.push_back(allocation);
    allocation->pin();
    return pointer;
  }

 private:
  const Buffers& buffers_;
  std::vector<Allocation*> pinned_;
};

Dims evaluate_all(const std::vector<Expr>& expressions, const Scalar* symbols) {
  Dims values(expressions.size());
  int64_t* value = values.data();
  for (const Expr& expression : expressions) *value++ = evaluate(expression, symbols);
  return values;
}

TensorView make_view(const ViewSpec& spec, Work& work, CallMemory& memory, const Scalar* symbols) {
  const auto offset = static_cast<uint64_t>(evaluate(spec.offset, symbols)) * element_size(spec.dtype);
  return {memory.pointer(work, spec.buffer) + offset, spec.dtype, evaluate_all(spec.sizes, symbols),
          evaluate_all(spec.strides, symbols)};
}

LibraryArgument make_argument(const CallArgument& spec, Work& work, CallMemory& memory, const Scalar* symbols) {
  LibraryArgument argument;
  argument.kind = spec.kind;
  switch (spec.kind) {
    case CallArgument::kTensor:
      argument.tensor = make_view(spec.tensor, work, memory, symbols);
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
      for (const CallArgument& item : spec.list) argument.list.push_back(make_argument(item, work, memory, symbols));
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

ob_argument fill_argument(const Argument& spec, const Buffers& buffers, Work& work, const Scalar* symbols, ob_ptr word,
                          ArgumentValue& value) {
  switch (spec.kind) {
    case Argument::kPointer:
      value.pointer = buffers.pointer(work, spec.buffer) + static_cast<uint64_t>(evaluate(spec.expr, symbols));
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
    case Argument::kAssertions:
      value.pointer = word;
      return {1, sizeof(ob_ptr), &value};
  }
  throw Error(OB_INTERNAL, "unknown kernel argument kind");
}

class Run {
 public:
  Run(const Plan& plan, const std::vector<Kernel*>& kernels, const std::vector<const LibraryFunction*>& functions,
      ob_ptr assertions, const Input* inputs, const Scalar* symbols, Buffers& buffers, ExecutionContext& context)
      : plan_(plan),
        kernels_(kernels),
        functions_(functions),
        assertions_(assertions),
        inputs_(inputs),
        symbols_(symbols),
        context_(context),
        buffers_(buffers) {}

  void run(std::vector<Result>& results) {
    for (size_t i = 0; i < plan_.steps.size(); ++i) {
      execute(i);
      submitted(i);
    }
    finish(results);
  }

  /// The same for a plan of one launch: its memory and its place in the queue are taken under one lock, and what the
  /// caller does about steps, which may need other locks, is done after it.
  void run_at_once(std::vector<Result>& results) {
    {
      const Work work(context_.stream);
      for (size_t i = 0; i < plan_.steps.size(); ++i) execute(i);
    }
    for (size_t i = 0; i < plan_.steps.size(); ++i) submitted(i);
    finish(results);
  }

 private:
  void submitted(size_t step) const {
    if (context_.submitted) context_.submitted(step);
  }

  void finish(std::vector<Result>& results) const {
    results.clear();
    results.reserve(plan_.outputs.size());
    for (const Output& output : plan_.outputs) describe(output, results.emplace_back());
    for (size_t i = 0; i < results.size(); ++i) hand_over(plan_.outputs[i], results[i]);  // from here nothing throws
  }

  void execute(size_t number) {
    const Step& step = plan_.steps[number];
    switch (step.kind) {
      case Step::kAllocate:
        return buffers_.allocate(step.buffer, evaluate(step.bytes, symbols_));
      case Step::kFree:
        return buffers_.free(step.buffer);
      case Step::kLaunch:
        return launch(step);
      case Step::kCall:
        return call(step, functions_[number]);
      case Step::kSeeds:
        return seed(step);
      case Step::kCopy:
        return copy(step);
    }
  }

  uint64_t offset(const Expr& expr) const { return static_cast<uint64_t>(evaluate(expr, symbols_)); }

  uint64_t bytes_of(const Step& step) const {
    const int64_t bytes = evaluate(step.bytes, symbols_);
    if (bytes < 0) throw Error(OB_INVALID_ARGUMENT, "a plan moves a negative number of bytes");
    return static_cast<uint64_t>(bytes);
  }

  void copy(const Step& step) {
    Work work(context_.stream);
    const ob_ptr from = buffers_.pointer(work, step.buffer) + offset(step.source_offset);
    const ob_ptr to = buffers_.pointer(work, step.target) + offset(step.target_offset);
    context_.stream.copy(OB_DEVICE_TO_DEVICE, to, from, bytes_of(step));
  }

  void launch(const Step& step) {
    uint64_t global[3];
    for (int i = 0; i < 3; ++i) {
      const int64_t size = step.global[i].code.empty() ? 1 : evaluate(step.global[i], symbols_);
      if (size <= 0) return;
      const uint64_t local = step.local[0] == 0 ? 1 : std::max<uint64_t>(step.local[i], 1);
      global[i] = (static_cast<uint64_t>(size) + local - 1) / local * local;
    }
    const size_t count = step.arguments.size();
    SmallArray<ArgumentValue, 32> values(count);
    SmallArray<ob_argument, 32> arguments(count);
    bool asserts = false;
    {
      Work work(context_.stream);
      for (size_t i = 0; i < count; ++i) {
        arguments[i] = fill_argument(step.arguments[i], buffers_, work, symbols_, assertions_, values[i]);
        asserts = asserts || step.arguments[i].kind == Argument::kAssertions;
      }
      context_.stream.launch(*kernels_[step.kernel], global, step.local, arguments.data(),
                             static_cast<uint32_t>(count));
    }
    if (asserts) context_.stream.expect_assertions();
  }

  void call(const Step& step, const LibraryFunction* function) {
    if (function == nullptr) function = Library::get().find(step.name);
    if (function == nullptr) throw Error(OB_UNSUPPORTED, "no library provides '" + step.name + "' on this device");
    LibraryCall call{step, context_.stream, {}, {}};
    call.arguments.reserve(step.call_arguments.size());
    CallMemory memory(buffers_);
    {
      Work work(context_.stream);
      for (const CallArgument& argument : step.call_arguments) {
        call.arguments.push_back(make_argument(argument, work, memory, symbols_));
      }
      for (const ViewSpec& view : step.results) call.results.push_back(make_view(view, work, memory, symbols_));
    }
    (*function)(call);
  }

  void seed(const Step& step) {
    SmallArray<int64_t, 8> seeds(bytes_of(step) / sizeof(int64_t));
    if (seeds.empty()) return;
    if (Recording* recording = context_.stream.recording()) {
      Work work(context_.stream);
      const ob_ptr to = buffers_.pointer(work, step.buffer);
      return recording->seeds(to, static_cast<int64_t>(seeds.size()), context_.later_seeds());
    }
    context_.seeds(seeds.data(), static_cast<int64_t>(seeds.size()));
    Work work(context_.stream);
    const ob_ptr to = buffers_.pointer(work, step.buffer);
    fill_seeds(context_.stream, to, seeds.data(), static_cast<int64_t>(seeds.size()));
  }

  void describe(const Output& output, Result& made) const {
    made.kind = output.kind;
    made.input = output.input;
    if (output.kind == Output::kInt) made.scalar.i = evaluate(output.expr, symbols_);
    if (output.kind == Output::kFloatSymbol) made.scalar = symbols_[output.symbol];
    if (output.kind != Output::kTensor) return;
    made.dtype = output.view.dtype;
    made.sizes = evaluate_all(output.view.sizes, symbols_);
    made.strides = evaluate_all(output.view.strides, symbols_);
    made.storage_offset = evaluate(output.view.offset, symbols_);
  }

  void hand_over(const Output& output, Result& made) const noexcept {
    if (output.kind != Output::kTensor) return;
    made.allocation = buffers_.share(output.view.buffer);
    made.new_allocation = made.allocation != nullptr;
    if (made.new_allocation) return;
    made.input = output.view.buffer;
    const TensorBinding& input = inputs_[made.input].tensor;
    made.storage_offset += input.storage_offset * element_size(input.dtype) / element_size(made.dtype);
  }

  const Plan& plan_;
  const std::vector<Kernel*>& kernels_;
  const std::vector<const LibraryFunction*>& functions_;
  ob_ptr assertions_;
  const Input* inputs_;
  const Scalar* symbols_;
  ExecutionContext& context_;
  Buffers& buffers_;
};

/// Whether all that a plan does is to launch a kernel.
bool launches_once(const Plan& plan) {
  size_t launches = 0;
  for (const Step& step : plan.steps) {
    if (step.kind == Step::kLaunch) ++launches;
    if (step.kind != Step::kLaunch && step.kind != Step::kAllocate && step.kind != Step::kFree) return false;
  }
  return launches == 1;
}

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

Executable::Executable(std::shared_ptr<const Plan> plan, Device& device)
    : plan_(std::move(plan)), device_(device), leaves_(plan_->buffer_count, 0), launches_once_(launches_once(*plan_)) {
  for (const KernelSpec& kernel : plan_->kernels) {
    const ProgramSpec& program = plan_->programs[kernel.program];
    kernels_.push_back(&device.programs().kernel(program.source, program.options, kernel.entry));
  }
  for (const Step& step : plan_->steps) {
    functions_.push_back(step.kind == Step::kCall ? Library::get().find(step.name) : nullptr);
  }
  for (const AssertionSpec& assertion : plan_->assertions) {
    device.assertions().add(assertion.code, static_cast<Assertions::Kind>(assertion.kind), assertion.text);
  }
  if (!plan_->assertions.empty()) assertions_ = device.assertions().word();
  for (const Output& output : plan_->outputs) {
    if (output.kind == Output::kTensor) leaves_[output.view.buffer] = 1;
  }
}

void Executable::wait_until_built() const {
  for (Kernel* kernel : kernels_) kernel->get();
}

void Executable::run(const Input* inputs, const std::vector<Scalar>& symbols, ExecutionContext& context,
                     std::vector<Result>& results) const {
  Buffers buffers(*plan_, leaves_, inputs, device_);
  Run run(*plan_, kernels_, functions_, assertions_, inputs, symbols.data(), buffers, context);
  launches_once_ ? run.run_at_once(results) : run.run(results);
}

}  // namespace outboard
