// SPDX-License-Identifier: Apache-2.0
#include "runtime/plans/executor.h"

#include <algorithm>
#include <mutex>
#include <string_view>

#include "runtime/base/error.h"
#include "runtime/device.h"

namespace outboard {
namespace {

/// The buffers of one run of a plan. Each is an allocation that takes device memory when a step first uses it, and may
/// leave it between steps. Whatever was not handed out is released.
class Buffers {
 public:
  Buffers(const Plan& plan, const std::vector<uint8_t>& leaves, const Input* inputs, Device& device)
      : leaves_(leaves), device_(device), buffers_(plan.buffer_count) {
    for (size_t i = 0; i < plan.inputs.size(); ++i) {
      if (plan.inputs[i] != Plan::kTensorInput) continue;
      const TensorBinding& tensor = inputs[i].tensor;
      buffers_[i] = {tensor.allocation, offset_bytes(tensor), kInput};
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
    buffers_[number].owner = kRun;
  }

  /// Takes a reference over.
  void put(uint32_t number, Allocation* allocation) {
    free(number);
    buffers_[number].allocation = allocation;
    buffers_[number].owner = kRun;
  }

  void free(uint32_t number) {
    give_back(buffers_[number]);
    buffers_[number] = Buffer{};
  }

  /// `bytes` bytes that begin `offset` bytes into a buffer. Throws Error(OB_INVALID_ARGUMENT) if they are not all in
  /// its memory: what is written in a plan may not lead out of it.
  ob_ptr pointer(Work& work, uint32_t number, int64_t offset = 0, uint64_t bytes = 0,
                 Access access = Access::kKeep) const {
    const Buffer& buffer = buffers_[number];
    if (buffer.allocation == nullptr) return 0;
    const uint64_t begin = buffer.offset + static_cast<uint64_t>(offset);  // a negative one leads towards the beginning
    check_inside(*buffer.allocation, begin, bytes);
    return work.resolve(*buffer.allocation, access) + begin;
  }

  /// The same without a pointer. No bytes are in any memory.
  void check(uint32_t number, int64_t offset, uint64_t bytes) const {
    const Buffer& buffer = buffers_[number];
    if (buffer.allocation != nullptr && bytes != 0) {
      check_inside(*buffer.allocation, buffer.offset + static_cast<uint64_t>(offset), bytes);
    }
  }

  Allocation* allocation(uint32_t number) const { return buffers_[number].allocation; }

  /// The allocation of a buffer, and how far into it `offset` bytes into the buffer are.
  std::pair<Allocation*, uint64_t> place(uint32_t number, int64_t offset) const {
    return {buffers_[number].allocation, buffers_[number].offset + static_cast<uint64_t>(offset)};
  }

  /// One reference for the caller, or nullptr if the buffer belongs to an input.
  Allocation* share(uint32_t number) noexcept {
    Buffer& buffer = buffers_[number];
    if (buffer.owner == kInput) return nullptr;
    if (buffer.owner == kCaller) buffer.allocation->retain();
    buffer.owner = kCaller;  // the first caller takes the reference of the run
    return buffer.allocation;
  }

 private:
  /// What holds a reference of the allocation.
  enum Owner : uint8_t { kInput, kRun, kCaller };

  struct Buffer {
    Allocation* allocation = nullptr;
    uint64_t offset = 0;  // bytes
    Owner owner = kInput;
  };

  static void check_inside(const Allocation& allocation, uint64_t begin, uint64_t bytes) {
    if (begin <= allocation.size() && bytes <= allocation.size() - begin) return;
    throw Error(OB_INVALID_ARGUMENT, "a plan leads out of a buffer: " + std::to_string(bytes) + " bytes at " +
                                         std::to_string(static_cast<int64_t>(begin)) + " of " +
                                         std::to_string(allocation.size()));
  }

  static uint64_t offset_bytes(const TensorBinding& tensor) {
    if (tensor.storage_offset == 0) return 0;
    const uint64_t bytes = static_cast<uint64_t>(tensor.storage_offset) * element_size(tensor.dtype);
    if (tensor.allocation == nullptr || bytes <= tensor.allocation->size()) return bytes;
    // A tensor without elements may begin behind its memory: x[4:, 5:] of 4 x 5 elements. No pointer may lead there.
    const bool empty = std::find(tensor.sizes, tensor.sizes + tensor.dim, 0) != tensor.sizes + tensor.dim;
    return empty ? tensor.allocation->size() : bytes;
  }

  static void give_back(Buffer& buffer) noexcept {
    if (buffer.owner == kRun) buffer.allocation->release();
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

  ob_ptr pointer(Work& work, uint32_t number, int64_t offset, uint64_t bytes) {
    const ob_ptr pointer = buffers_.pointer(work, number, offset, bytes);
    Allocation* allocation = buffers_.allocation(number);
    if (allocation == nullptr) return pointer;
    pinned_.push_back(allocation);
    allocation->pin();
    return pointer;
  }
  std::pair<Allocation*, uint64_t> place(uint32_t number, int64_t offset) const {
    return buffers_.place(number, offset);
  }

 private:
  const Buffers& buffers_;
  std::vector<Allocation*> pinned_;
};

/// The same where only the places are wanted.
class CallPlaces {
 public:
  explicit CallPlaces(const Buffers& buffers) : buffers_(buffers) {}

  ob_ptr pointer(Work&, uint32_t number, int64_t offset, uint64_t bytes) const {
    buffers_.check(number, offset, bytes);
    return 0;
  }
  std::pair<Allocation*, uint64_t> place(uint32_t number, int64_t offset) const {
    return buffers_.place(number, offset);
  }

 private:
  const Buffers& buffers_;
};

/// The memory of an operand or a result of the driver's library: operands are only read.
class OperandMemory {
 public:
  OperandMemory(const Buffers& buffers, bool result)
      : buffers_(buffers), access_(result ? Access::kKeep : Access::kRead) {}

  ob_ptr pointer(Work& work, uint32_t number, int64_t offset, uint64_t bytes) const {
    return buffers_.pointer(work, number, offset, bytes, access_);
  }
  std::pair<Allocation*, uint64_t> place(uint32_t number, int64_t offset) const {
    return buffers_.place(number, offset);
  }

 private:
  const Buffers& buffers_;
  const Access access_;
};

Dims evaluate_all(const std::vector<Expr>& expressions, const Scalar* symbols) {
  Dims values(expressions.size());
  int64_t* value = values.data();
  for (const Expr& expression : expressions) *value++ = evaluate(expression, symbols);
  return values;
}

/// `Memory` has the pointers of buffers.
template <typename Memory>
TensorView make_view(const ViewSpec& spec, Work& work, Memory& memory, const Scalar* symbols) {
  Dims sizes = evaluate_all(spec.sizes, symbols), strides = evaluate_all(spec.strides, symbols);
  int64_t offset;
  if (__builtin_mul_overflow(evaluate(spec.offset, symbols), int64_t{element_size(spec.dtype)}, &offset)) {
    throw Error(OB_INVALID_ARGUMENT, "a plan's view begins where no memory is");
  }
  const uint64_t bytes = span_bytes(sizes.begin(), strides.begin(), sizes.size(), spec.dtype);
  // A view without elements may begin behind its memory: it is given the memory's beginning.
  const auto [allocation, begin] = memory.place(spec.buffer, bytes == 0 ? 0 : offset);
  const ob_ptr data = memory.pointer(work, spec.buffer, bytes == 0 ? 0 : offset, bytes);
  return {data, spec.dtype, std::move(sizes), std::move(strides), allocation, begin};
}

template <typename Memory>
HostArgument make_argument(const CallArgument& spec, Work& work, Memory& memory, const Scalar* symbols) {
  HostArgument argument;
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
      for (const CallArgument& item : spec.items) argument.list.push_back(make_argument(item, work, memory, symbols));
      break;
    default:
      argument.integer = spec.value;
  }
  return argument;
}

/// `value` is what the argument's expression amounts to.
void set_argument(Arguments& arguments, size_t number, const Argument& spec, int64_t value, const Buffers& buffers,
                  Work& work, const Scalar* symbols, ob_ptr word) {
  switch (spec.kind) {
    case Argument::kPointer:
      return arguments.set_pointer(number, buffers.pointer(work, spec.buffer, value));
    case Argument::kInt64:
      return arguments.set(number, value);
    case Argument::kInt32:
      return arguments.set(number, static_cast<int32_t>(value));
    case Argument::kFloat32:
      return arguments.set(number, static_cast<float>(symbols[spec.symbol].d));
    case Argument::kFloat64:
      return arguments.set(number, symbols[spec.symbol].d);
    case Argument::kAssertions:
      return arguments.set_pointer(number, word);
  }
  throw Error(OB_INTERNAL, "unknown kernel argument kind");
}

/// The rest of the name of a call of the driver's library, as `aten::mm` of `driver::aten::mm`; empty for others.
std::string drivers_name(const Step& step) {
  constexpr std::string_view kPrefix = "driver::";
  const bool is_drivers = step.kind == Step::kCall && step.name.compare(0, kPrefix.size(), kPrefix) == 0;
  return is_drivers ? step.name.substr(kPrefix.size()) : std::string();
}

/// Adds a view of a buffer, which is then where the view says until the work ends.
void add_view(LibraryWork& call, const ViewSpec& spec, const Buffers& buffers, Work& work, const Scalar* symbols,
              bool result) {
  const OperandMemory memory(buffers, result);
  const TensorView view = make_view(spec, work, memory, symbols);
  call.add_tensor(view.data, static_cast<uint32_t>(view.dtype), {view.sizes.begin(), view.sizes.end()},
                  {view.strides.begin(), view.strides.end()}, result);
}

/// Adds an argument in the form that drivers know.
void add_operand(LibraryWork& call, const CallArgument& spec, const Buffers& buffers, Work& work,
                 const Scalar* symbols) {
  switch (spec.kind) {
    case CallArgument::kNone:
      return call.add_nothing();
    case CallArgument::kTensor:
      return add_view(call, spec.tensor, buffers, work, symbols, false);
    case CallArgument::kInt:
      return call.add_integer(evaluate(spec.expr, symbols));
    case CallArgument::kBool:
      return call.add_integer(spec.value);
    case CallArgument::kFloat:
      return call.add_number(spec.number);
    case CallArgument::kFloatSymbol:
      return call.add_number(symbols[spec.value].d);
    case CallArgument::kList: {
      std::vector<int64_t> values;
      for (const CallArgument& item : spec.items) {
        if (item.kind != CallArgument::kInt && item.kind != CallArgument::kBool) break;
        values.push_back(item.kind == CallArgument::kInt ? evaluate(item.expr, symbols) : item.value);
      }
      if (values.size() == spec.items.size()) return call.add_integers(std::move(values));
      break;
    }
    default:
      break;
  }
  throw Error(OB_INVALID_ARGUMENT, "a plan gives " + call.name() + " of the driver's library what it cannot take");
}

class Run {
 public:
  Run(const Plan& plan, const std::vector<KernelUse>& kernels, const std::vector<const HostFunction*>& functions,
      const std::vector<std::unique_ptr<DriversFunction>>& drivers_functions,
      const std::vector<std::shared_ptr<const LoadedFunction>>& loaded_functions,
      const std::vector<std::shared_ptr<const MemoryLayout>>& layouts, ob_ptr assertions, const Input* inputs,
      const Scalar* symbols, const Evaluation& evaluation, Buffers& buffers, ExecutionContext& context)
      : plan_(plan),
        kernels_(kernels),
        functions_(functions),
        drivers_functions_(drivers_functions),
        loaded_functions_(loaded_functions),
        layouts_(layouts),
        assertions_(assertions),
        inputs_(inputs),
        symbols_(symbols),
        evaluation_(evaluation),
        context_(context),
        buffers_(buffers) {}

  void run(std::vector<Result>& results) {
    for (size_t i = 0; i < plan_.steps.size(); ++i) {
      execute(i);
      submitted(i);
    }
    finish(results);
  }

  /// The same without what the caller does about steps, which may need locks.
  void run_quietly(std::vector<Result>& results) {
    for (size_t i = 0; i < plan_.steps.size(); ++i) execute(i);
    finish(results);
  }

 private:
  void submitted(size_t step) const {
    if (context_.submitted) context_.submitted(step);
  }

  void finish(std::vector<Result>& results) const {
    results.resize(plan_.outputs.size());
    for (size_t i = 0; i < results.size(); ++i) describe(i, results[i]);
    for (size_t i = 0; i < results.size(); ++i) hand_over(plan_.outputs[i], results[i]);  // from here nothing throws
  }

  void execute(size_t number) {
    const Step& step = plan_.steps[number];
    const int64_t* values = evaluation_.step(number);
    switch (step.kind) {
      case Step::kAllocate:
        return buffers_.allocate(step.buffer, values[0]);
      case Step::kFree:
        return buffers_.free(step.buffer);
      case Step::kLaunch:
        return launch(step, values);
      case Step::kCall:
        if (drivers_functions_[number] == nullptr) return call(step, functions_[number]);
        if (!call_driver(step, *drivers_functions_[number])) call_without(*drivers_functions_[number]);
        return;
      case Step::kSeeds:
        return seed(step, values);
      case Step::kCopy:
        return copy(step, values);
      case Step::kFill:
        return fill(step, values);
      case Step::kExecute:
        return run_loaded(step, loaded_functions_[number]);
      case Step::kToLayout:
        return to_layout(step, values[0]);
      case Step::kFromLayout:
        return from_layout(step, values[0]);
    }
  }

  static uint64_t byte_count(int64_t bytes) {
    if (bytes < 0) throw Error(OB_INVALID_ARGUMENT, "a plan moves a negative number of bytes");
    return static_cast<uint64_t>(bytes);
  }

  void copy(const Step& step, const int64_t* values) {
    Work work(context_.stream);
    const uint64_t bytes = byte_count(values[0]);
    if (bytes == 0) return;  // no bytes are in any memory, wherever they would begin
    const ob_ptr from = buffers_.pointer(work, step.source, values[1], bytes);
    const ob_ptr to = buffers_.pointer(work, step.target, values[2], bytes);
    context_.stream.copy(OB_DEVICE_TO_DEVICE, to, from, bytes);
  }

  void fill(const Step& step, const int64_t* values) {
    Work work(context_.stream);
    const uint64_t bytes = byte_count(values[0]), size = step.pattern.size();
    if (bytes == 0) return;
    const ob_ptr to = buffers_.pointer(work, step.target, values[1], bytes);
    if (to % size != 0 || bytes % size != 0) {
      throw Error(OB_INVALID_ARGUMENT, "a plan fills memory with a part of a pattern");
    }
    context_.stream.fill(to, step.pattern.data(), static_cast<uint32_t>(size), bytes);
  }

  void to_layout(const Step& step, int64_t offset) {
    const std::shared_ptr<const MemoryLayout>& layout = layouts_[step.layout];
    Work work(context_.stream);
    const auto [allocation, begin] = strided(step.source, offset, *layout);
    buffers_.put(step.target, context_.stream.device().residency().to_layout(*allocation, begin, layout, work));
  }

  void from_layout(const Step& step, int64_t offset) {
    const std::shared_ptr<const MemoryLayout>& layout = layouts_[step.layout];
    Work work(context_.stream);
    const auto [allocation, begin] = strided(step.target, offset, *layout);
    Allocation* const arranged = buffers_.allocation(step.source);
    if (arranged == nullptr || arranged->size() != layout->bytes() || arranged == allocation) {
      throw Error(OB_INVALID_ARGUMENT, "a plan has no contents in the layout " + layout->name());
    }
    context_.stream.device().residency().from_layout(*arranged, *allocation, begin, layout, work);
  }

  /// Where a tensor is that a layout is of.
  std::pair<Allocation*, uint64_t> strided(uint32_t buffer, int64_t offset, const MemoryLayout& layout) const {
    buffers_.check(buffer, offset, layout.strided_bytes());
    const auto place = buffers_.place(buffer, offset);
    if (place.first != nullptr) return place;
    throw Error(OB_INVALID_ARGUMENT, "a plan lays out a tensor without memory");
  }

  void launch(const Step& step, const int64_t* values) {
    if (values[0] == 0) return;
    const size_t count = step.arguments.size();
    Launch launch{
        &*kernels_[step.kernel],
        {static_cast<uint64_t>(values[0]), static_cast<uint64_t>(values[1]), static_cast<uint64_t>(values[2])},
        {step.local_size[0], step.local_size[1], step.local_size[2]},
        0,
        Arguments(count)};
    bool asserts = false;
    {
      Work work(context_.stream);
      for (size_t i = 0; i < count; ++i) {
        const Argument& spec = step.arguments[i];
        set_argument(launch.arguments, i, spec, values[3 + i], buffers_, work, symbols_, assertions_);
        asserts = asserts || spec.kind == Argument::kAssertions;
      }
      launch.batch = batch();
      context_.stream.launch(launch);
    }
    if (asserts) context_.stream.expect_assertions();
  }

  /// Under the memory lock. A launch of a plan with other steps may depend on these.
  uint64_t batch() const {
    if (context_.batch == nullptr || plan_.steps.size() != 1) return 0;
    return context_.batch->number(context_.stream.device().residency().memory_given());
  }

  void call(const Step& step, const HostFunction* function) {
    if (function == nullptr) function = HostFunctions::get().find(step.name);
    if (function == nullptr) throw Error(OB_UNSUPPORTED, "no library provides '" + step.name + "' on this device");
    CallMemory memory(buffers_);
    HostCall call{step, context_.stream, {}, {}};
    describe(call, memory);
    (*function)(call);
  }

  template <typename Memory>
  void describe(HostCall& call, Memory& memory) const {
    Work work(context_.stream);
    call.arguments.reserve(call.step.call_arguments.size());
    for (const CallArgument& argument : call.step.call_arguments) {
      call.arguments.push_back(make_argument(argument, work, memory, symbols_));
    }
    for (const ViewSpec& view : call.step.results) call.results.push_back(make_view(view, work, memory, symbols_));
  }

  /// What the driver's library has refused.
  void call_without(const DriversFunction& function) {
    if (function.on_device() == nullptr) return call(function.without(), function.on_host());
    const CallPlaces places(buffers_);
    HostCall call{function.without(), context_.stream, {}, {}};
    describe(call, places);
    (*function.on_device())(call);
  }

  /// Hands a call to the driver's library, in stream order, as a launch is. False if that has no function for it.
  bool call_driver(const Step& step, DriversFunction& function) {
    const auto call = std::make_shared<LibraryWork>(function.name());
    Work work(context_.stream);
    add_operands(*call, step, work);
    if (!function.find(*call, context_.stream.device())) return false;
    context_.stream.call(call);
    return true;
  }

  /// The same of a function that was loaded.
  void run_loaded(const Step& step, const std::shared_ptr<const LoadedFunction>& function) {
    const auto call = std::make_shared<LibraryWork>(step.name);
    Work work(context_.stream);
    add_operands(*call, step, work);
    call->set_function(function);
    context_.stream.call(call);
  }

  void add_operands(LibraryWork& call, const Step& step, Work& work) const {
    for (const CallArgument& argument : step.call_arguments) add_operand(call, argument, buffers_, work, symbols_);
    for (const ViewSpec& view : step.results) add_view(call, view, buffers_, work, symbols_, true);
  }

  void seed(const Step& step, const int64_t* values) {
    buffers_.check(step.buffer, 0, byte_count(values[0]));
    SmallArray<int64_t, 8> seeds(byte_count(values[0]) / sizeof(int64_t));
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

  void describe(size_t number, Result& made) const {
    const Output& output = plan_.outputs[number];
    const int64_t* values = evaluation_.output(number);
    made.kind = output.kind;
    made.input = output.input;
    made.allocation = nullptr;
    made.new_allocation = false;
    if (output.kind == Output::kInt) made.scalar.i = values[0];
    if (output.kind == Output::kFloatSymbol) made.scalar = symbols_[output.symbol];
    if (output.kind != Output::kTensor) return;
    const size_t sizes = output.view.sizes.size(), strides = output.view.strides.size();
    made.dtype = output.view.dtype;
    made.sizes.assign(values, sizes);
    made.strides.assign(values + sizes, strides);
    made.storage_offset = values[sizes + strides];
    const auto bytes = static_cast<uint64_t>(values[sizes + strides + 1]);
    buffers_.check(output.view.buffer, made.storage_offset * element_size(made.dtype), bytes);
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
  const std::vector<KernelUse>& kernels_;
  const std::vector<const HostFunction*>& functions_;
  const std::vector<std::unique_ptr<DriversFunction>>& drivers_functions_;
  const std::vector<std::shared_ptr<const LoadedFunction>>& loaded_functions_;
  const std::vector<std::shared_ptr<const MemoryLayout>>& layouts_;
  ob_ptr assertions_;
  const Input* inputs_;
  const Scalar* symbols_;
  const Evaluation& evaluation_;
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

DenseTensor dense(DType dtype, const std::vector<int64_t>& sizes) {
  std::vector<int64_t> strides(sizes.size());
  int64_t stride = 1;
  for (size_t d = sizes.size(); d-- > 0;) {
    strides[d] = stride;
    if (__builtin_mul_overflow(stride, sizes[d], &stride)) throw Error(OB_INVALID_ARGUMENT, "a layout of no tensor");
  }
  return {static_cast<uint32_t>(dtype), sizes, span_bytes(sizes.data(), strides.data(), sizes.size(), dtype)};
}

std::shared_ptr<const MemoryLayout> make_layout(const LayoutSpec& spec, Device& device) {
  return std::make_shared<const MemoryLayout>(
      spec.name, dense(spec.dtype, spec.sizes), dense(spec.arranged_dtype, spec.arranged_sizes),
      MemoryLayout::Relayout{device.functions().load(spec.to_code), static_cast<uint64_t>(spec.to_scratch)},
      MemoryLayout::Relayout{device.functions().load(spec.from_code), static_cast<uint64_t>(spec.from_scratch)});
}

bool asks_for_seeds(const Plan& plan) {
  return std::any_of(plan.steps.begin(), plan.steps.end(), [](const Step& step) { return step.kind == Step::kSeeds; });
}

Scalar symbol_value(const Symbol& symbol, const ob_device_properties& device, const Input* inputs,
                    const Scalar* symbols) {
  Scalar value;
  if (symbol.source == Symbol::kDerived || symbol.source == Symbol::kComputeUnits) {
    value.i = symbol.source == Symbol::kDerived ? evaluate(symbol.derived, symbols) : device.compute_units;
    return value;
  }
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
    case Symbol::kFloatOrder:
      value.i = order_of(input.scalar.d);
      break;
    default:
      value = input.scalar;
  }
  return value;
}

}  // namespace

bool bind_symbols(const Plan& plan, const ob_device_properties& device, const Input* inputs,
                  std::vector<Scalar>& symbols) {
  symbols.resize(plan.symbols.size());
  for (size_t i = 0; i < plan.symbols.size(); ++i) {
    const Symbol& symbol = plan.symbols[i];
    const bool of_tensor = symbol.source == Symbol::kSize || symbol.source == Symbol::kStride;
    if (of_tensor && static_cast<int64_t>(symbol.dim) >= inputs[symbol.input].tensor.dim) return false;
    symbols[i] = symbol_value(symbol, device, inputs, symbols.data());
  }
  for (const Expr& guard : plan.guards) {
    if (evaluate(guard, symbols.data()) == 0) return false;
  }
  return true;
}

bool Executable::bind(const Input* inputs, std::vector<Scalar>& symbols) const {
  return bind_symbols(*plan_, device_.properties(), inputs, symbols);
}

Executable::Executable(std::shared_ptr<const Plan> plan, Device& device)
    : plan_(std::move(plan)),
      device_(device),
      leaves_(plan_->buffer_count, 0),
      launches_once_(launches_once(*plan_)),
      draws_(asks_for_seeds(*plan_)) {
  for (const KernelSpec& kernel : plan_->kernels) {
    const ProgramSpec& program = plan_->programs[kernel.program];
    kernels_.push_back(device.programs().kernel(program.source, program.options, kernel.entry));
  }
  for (const Step& step : plan_->steps) {
    const std::string drivers = drivers_name(step);
    const bool is_hosts = step.kind == Step::kCall && drivers.empty();
    functions_.push_back(is_hosts ? HostFunctions::get().find(step.name) : nullptr);
    drivers_functions_.push_back(drivers.empty() ? nullptr : std::make_unique<DriversFunction>(step, drivers));
    loaded_functions_.push_back(step.kind == Step::kExecute ? device.functions().load(step.code) : nullptr);
  }
  for (const LayoutSpec& layout : plan_->layouts) layouts_.push_back(make_layout(layout, device));
  for (const AssertionSpec& assertion : plan_->assertions) {
    device.assertions().add(assertion.code, static_cast<Assertions::Kind>(assertion.kind), assertion.text);
  }
  if (!plan_->assertions.empty()) assertions_ = device.assertions().word();
  for (const Output& output : plan_->outputs) {
    if (output.kind == Output::kTensor) leaves_[output.view.buffer] = 1;
  }
}

DriversFunction::DriversFunction(const Step& step, const std::string& name)
    : without_(step),
      on_device_(HostFunctions::get().find("device::" + name)),
      on_host_(HostFunctions::get().find(name)) {
  without_.name = name;
  without_.fallback = true;
}

bool DriversFunction::find(LibraryWork& call, const Device& device) {
  const uint64_t key = call.key();
  const std::lock_guard lock(mutex_);
  const auto known = known_.find(key);
  if (known != known_.end()) {
    call.set_function(known->second);
  } else {
    call.find(device.driver(), device.handle());
    if (known_.size() == kMost) known_.clear();
    known_.emplace(key, call.function());
  }
  return call.function() != nullptr;
}

void Executable::wait_until_built() const {
  for (const KernelUse& kernel : kernels_) kernel->get();
}

/// The evaluation for these symbols. The caller holds the device's memory lock.
const std::shared_ptr<Evaluation>& Executable::evaluated(const Scalar* symbols) const {
  if (evaluation_ != nullptr && evaluation_->is_of(symbols)) return evaluation_;
  // One that another thread runs by stays as it is.
  if (evaluation_ == nullptr || evaluation_->is_read()) evaluation_ = std::make_shared<Evaluation>(*plan_);
  evaluation_->update(*plan_, symbols);
  return evaluation_;
}

void Executable::run(const Input* inputs, const std::vector<Scalar>& symbols, ExecutionContext& context,
                     std::vector<Result>& results) const {
  refuse_if_unusable(device_.driver());  // the stream may be its successor's
  Buffers buffers(*plan_, leaves_, inputs, device_);
  const auto run_by = [&](const Evaluation& evaluation) {
    return Run(*plan_, kernels_, functions_, drivers_functions_, loaded_functions_, layouts_, assertions_, inputs,
               symbols.data(), evaluation, buffers, context);
  };
  if (!launches_once_) {
    std::unique_lock lock(device_.order().lock());
    const std::shared_ptr<const Evaluation> evaluation = evaluated(symbols.data());
    const Evaluation::Reader reader(*evaluation);
    lock.unlock();
    return run_by(*evaluation).run(results);
  }
  // Its memory, its place in the queue and its evaluation are taken under one lock.
  {
    const Work work(context.stream);
    run_by(*evaluated(symbols.data())).run_quietly(results);
  }
  if (!context.submitted) return;
  for (size_t i = 0; i < plan_->steps.size(); ++i) context.submitted(i);
}

}  // namespace outboard
