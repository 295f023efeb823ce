// SPDX-License-Identifier: Apache-2.0
#include "torch/eager/foreach.h"

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "torch/bridge/deferred.h"
#include "torch/bridge/devices.h"
#include "torch/bridge/memory_ranges.h"
#include "torch/bridge/tensor.h"
#include "torch/eager/compiler.h"
#include "torch/eager/eager.h"

namespace outboard::aten {
namespace chains {

namespace {

using torch::jit::Stack;

/// More would make kernels with more arguments than some devices take.
constexpr size_t kMostSlots = 16;
constexpr size_t kMostSteps = 64;

/// What elements of lists are made of: the operators that are written down, named as they are for single tensors. What
/// each does is in compiler/adapter/optimizers/chains.py.
const std::unordered_set<std::string>& pointwise_names() {
  static const auto* const names = new std::unordered_set<std::string>{
      "abs",   "add",     "addcdiv", "addcmul", "clamp_max", "clamp_min", "copy",  "div",        "exp",
      "lerp",  "log",     "mul",     "maximum", "minimum",   "neg",       "pow",   "reciprocal", "round",
      "rsqrt", "sigmoid", "sign",    "sqrt",    "sub",       "tanh",      "trunc", "zero"};
  return *names;
}

/// What there is to know about one `_foreach_*` operator.
struct Rule {
  const Operator& op;
  std::string name;  ///< of the operator on one tensor
  bool in_place;
  bool has_factor;  ///< the last argument is a factor that changes nothing if it is 1
};

std::unordered_map<const c10::FunctionSchema*, Rule>& rules() {
  static auto* const all = new std::unordered_map<const c10::FunctionSchema*, Rule>;
  return *all;
}

/// One tensor of a list. The storage is held, the tensor is not: counting one that Python holds takes the GIL.
struct Place {
  c10::Storage storage;
  int64_t offset;  ///< elements
  bool single;     ///< no dimensions
};

/// A list of tensors that the chain reads or writes, numbered in the order of their appearance.
struct Slot {
  std::vector<Place> places;
  at::ScalarType dtype = at::kFloat;
  bool created = false;  ///< a result of the chain's own
  bool written = false;
  bool all_single = true;
  bool shared = false;  ///< the same tensor for all elements
};

/// A number of an operator: one for all elements, or one for each.
struct Number {
  std::vector<double> values;
  bool is_list;
  double of(size_t element) const { return values[is_list ? element : 0]; }
};

/// One operator of a chain.
struct Step {
  std::string text;  ///< in the program
  std::vector<size_t> operands;
  size_t target;
};

/// How the tensors of one element lie that are not single.
struct Pattern {
  c10::DimVector sizes, strides;
  int64_t count = -1;  ///< elements; -1: not known yet
};

/// An operand of an operator: a list, or one tensor for all elements.
struct Operand {
  c10::ArrayRef<c10::IValue> list;
  std::vector<c10::IValue> repeated;  ///< of one tensor: what `list` refers to
};

/// An operator's arguments, taken from the stack.
struct ForeachCall {
  std::vector<Operand> lists;
  std::vector<Number> numbers;
  std::string order;  ///< 't' for a list, 'n' for a number
};

std::optional<double> as_number(const c10::IValue& value) {
  if (value.isDouble()) return value.toDouble();
  if (value.isInt()) return static_cast<double>(value.toInt());
  if (value.isBool()) return value.toBool() ? 1.0 : 0.0;
  return std::nullopt;
}

/// One tensor for all elements: on the device an operand, on the CPU a number. False if it is neither.
bool add_tensor(const c10::IValue& value, ForeachCall& call) {
  const at::Tensor& tensor = value.toTensor();
  if (!tensor.defined() || tensor.dim() != 0 || call.lists.empty()) return false;
  if (tensor.is_cpu() && at::isFloatingType(tensor.scalar_type())) {
    call.numbers.push_back({{tensor.item<double>()}, false});
    call.order += 'n';
    return true;
  }
  Operand operand{{}, std::vector<c10::IValue>(call.lists.front().list.size(), value)};
  operand.list = operand.repeated;
  call.lists.push_back(std::move(operand));
  call.order += 't';
  return true;
}

std::optional<ForeachCall> parse(const Rule& rule, c10::ArrayRef<c10::IValue> arguments) {
  ForeachCall call;
  for (size_t i = 0; i < arguments.size(); ++i) {
    switch (rule.op.roles[i]) {
      case ArgumentRole::kTensorList:
        call.lists.push_back({arguments[i].toListRef(), {}});
        call.order += 't';
        break;
      case ArgumentRole::kTensor:
        if (!add_tensor(arguments[i], call)) return std::nullopt;
        break;
      case ArgumentRole::kScalar: {
        const std::optional<double> number = as_number(arguments[i]);
        if (!number) return std::nullopt;
        if (rule.has_factor && i + 1 == arguments.size() && *number == 1) break;
        call.numbers.push_back({{*number}, false});
        call.order += 'n';
        break;
      }
      case ArgumentRole::kScalarList: {
        Number& each = call.numbers.emplace_back(Number{{}, true});
        for (const c10::IValue& value : arguments[i].toListRef()) {
          const std::optional<double> number = as_number(value);
          if (!number) return std::nullopt;
          each.values.push_back(*number);
        }
        call.order += 'n';
        break;
      }
      case ArgumentRole::kBaked:
        break;  // non_blocking
      default:
        return std::nullopt;
    }
  }
  return call;
}

/// Whether all lists are as long as the first, which is not empty.
bool is_even(const ForeachCall& call) {
  const size_t count = call.lists.front().list.size();
  if (count == 0) return false;
  for (const Operand& operand : call.lists) {
    if (operand.list.size() != count) return false;
  }
  return std::all_of(call.numbers.begin(), call.numbers.end(),
                     [&](const Number& number) { return !number.is_list || number.values.size() == count; });
}

bool is_supported(at::ScalarType dtype, c10::DeviceIndex index) {
  if (!runs_programs(index)) return false;
  if (dtype == at::kDouble) return device(index).properties().has_fp64 != 0;
  return dtype == at::kFloat || dtype == at::kHalf || dtype == at::kBFloat16;
}

/// `lerp` has two formulas, one for weights up to a half: the suffix of its name, or nothing for weights of both kinds.
std::optional<std::string> lerp_suffix(const ForeachCall& call) {
  if (call.numbers.empty()) return "";
  const auto is_near = [](double weight) { return std::abs(weight) < 0.5; };
  const std::vector<double>& weights = call.numbers.front().values;
  const bool near = is_near(weights.front());
  if (std::any_of(weights.begin(), weights.end(), [&](double weight) { return is_near(weight) != near; }))
    return std::nullopt;
  return near ? "" : "_far";
}

/// Operators written down, and what they work on.
class Chain {
 public:
  Chain(size_t count, c10::DeviceIndex index) : count_(count), index_(index), patterns_(count) {}

  bool accepts(size_t count, c10::DeviceIndex index) const {
    return count == count_ && index == index_ && steps_.size() < kMostSteps;
  }

  /// Writes an operator down and returns its results, none if it is in place. Nothing: the operator does not fit, and
  /// the chain is to be run as it is.
  std::optional<std::vector<at::Tensor>> add(const Rule& rule, const ForeachCall& call, const std::string& name);

  /// Launches everything. Called once.
  void run();

 private:
  /// Plans by what a signature tells apart within a chain.
  using Kinds = std::unordered_map<std::string, KnownPlans>;

  std::shared_ptr<Kinds> known_kinds(const std::string& program) const;
  std::optional<size_t> slot_of(c10::ArrayRef<c10::IValue> list, bool shared);
  std::optional<size_t> find(c10::ArrayRef<c10::IValue> list, bool shared) const;
  std::optional<Slot> describe(c10::ArrayRef<c10::IValue> list);
  bool lies_like(size_t element, const at::Tensor& tensor);
  bool overlaps(const Slot& slot);
  std::optional<size_t> target_type(const std::vector<size_t>& operands) const;
  bool can_hold(const std::vector<size_t>& operands, size_t leader) const;
  std::vector<at::Tensor> create(const std::vector<size_t>& operands, at::ScalarType dtype);
  void write_down(const std::string& name, const std::string& order, const std::vector<size_t>& operands,
                  size_t target);

  bool is_wanted(const Slot& slot) const;
  void run(size_t element, const std::string& program, const std::string& roles, Batch& batch, Kinds& kinds) const;
  Stack arguments(size_t element, const std::string& program, const std::string& roles) const;
  std::string kind_of(size_t element, const std::string& roles) const;
  c10::SmallVector<Input, 32> inputs(size_t element, const std::string& roles) const;
  void launch(size_t element, const std::string& program, const std::string& roles) const;
  void launch_step_by_step(size_t element) const;
  bool is_one_kernel(size_t element) const;
  at::Tensor tensor_at(const Slot& slot, size_t element) const;

  size_t count_;
  c10::DeviceIndex index_;
  std::vector<Pattern> patterns_;
  std::vector<Slot> slots_;
  MemoryRanges memory_;  ///< of all places
  std::vector<Number> numbers_;
  std::vector<Step> steps_;
};

bool Chain::lies_like(size_t element, const at::Tensor& tensor) {
  Pattern& pattern = patterns_[element];
  if (pattern.count < 0) {
    if (!tensor.is_non_overlapping_and_dense()) return false;
    pattern.sizes = c10::DimVector(tensor.sizes());
    pattern.strides = c10::DimVector(tensor.strides());
    pattern.count = tensor.numel();
    return true;
  }
  return tensor.sizes() == pattern.sizes && tensor.strides() == pattern.strides;
}

/// The list as a new slot, if its tensors are such that a kernel can take them as vectors.
std::optional<Slot> Chain::describe(c10::ArrayRef<c10::IValue> list) {
  Slot slot;
  slot.places.reserve(count_);
  slot.dtype = list.front().toTensor().scalar_type();
  if (!is_supported(slot.dtype, index_)) return std::nullopt;
  for (size_t i = 0; i < count_; ++i) {
    const at::Tensor& tensor = list[i].toTensor();
    if (!tensor.defined() || !tensor.is_privateuseone() || tensor.get_device() != index_) return std::nullopt;
    if (tensor.layout() != c10::kStrided || tensor.scalar_type() != slot.dtype) return std::nullopt;
    if (tensor.is_conj() || tensor.is_neg() || !tensor.has_storage()) return std::nullopt;
    const bool single = tensor.dim() == 0;
    if (!single && !lies_like(i, tensor)) return std::nullopt;
    const c10::Storage& storage = tensor.storage();
    const size_t end = static_cast<size_t>(tensor.storage_offset() + tensor.numel()) * tensor.itemsize();
    if (tensor.numel() != 0 && end > storage.nbytes()) return std::nullopt;
    slot.all_single = slot.all_single && single;
    slot.places.push_back({storage, tensor.storage_offset(), single});
  }
  return slot;
}

/// The slot that the list is already.
std::optional<size_t> Chain::find(c10::ArrayRef<c10::IValue> list, bool shared) const {
  const auto is_at = [](const Place& place, const at::Tensor& tensor) {
    return tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl() ==
               place.storage.unsafeGetStorageImpl() &&
           tensor.storage_offset() == place.offset && (tensor.dim() == 0) == place.single;
  };
  for (size_t s = 0; s < slots_.size(); ++s) {
    const Slot& slot = slots_[s];
    const at::Tensor& first = list.front().toTensor();
    if (slot.shared != shared || !first.defined() || first.scalar_type() != slot.dtype ||
        !is_at(slot.places.front(), first))
      continue;
    for (size_t i = 0; i < count_; ++i) {
      const at::Tensor& tensor = list[i].toTensor();
      if (!tensor.defined() || tensor.scalar_type() != slot.dtype || !is_at(slot.places[i], tensor))
        return std::nullopt;
      const Pattern& pattern = patterns_[i];
      if (tensor.dim() != 0 && (tensor.sizes() != pattern.sizes || tensor.strides() != pattern.strides))
        return std::nullopt;
      if (tensor.is_conj() || tensor.is_neg()) return std::nullopt;
    }
    return s;
  }
  return std::nullopt;
}

/// Adds the slot's bytes to those of the others. True: some are used already, so that the order of operators and
/// elements matters.
bool Chain::overlaps(const Slot& slot) {
  std::vector<MemoryRanges::Range> ranges;
  const auto size = static_cast<int64_t>(c10::elementSize(slot.dtype));
  for (size_t i = 0; i < (slot.shared ? 1 : count_); ++i) {
    const Place& place = slot.places[i];
    const char* begin = static_cast<const char*>(place.storage.data()) + place.offset * size;
    ranges.push_back({begin, begin + (place.single ? 1 : patterns_[i].count) * size});
  }
  return !memory_.add(ranges);
}

std::optional<size_t> Chain::slot_of(c10::ArrayRef<c10::IValue> list, bool shared) {
  if (const std::optional<size_t> known = find(list, shared)) return known;
  std::optional<Slot> slot = describe(list);
  if (slot) slot->shared = shared;
  if (!slot || slots_.size() == kMostSlots || overlaps(*slot)) return std::nullopt;
  slots_.push_back(std::move(*slot));
  return slots_.size() - 1;
}

/// The operand whose type the result has: all have the same, numbers on the device aside.
std::optional<size_t> Chain::target_type(const std::vector<size_t>& operands) const {
  const auto leading = std::find_if(operands.begin(), operands.end(), [&](size_t s) { return !slots_[s].all_single; });
  const size_t leader = leading == operands.end() ? operands.front() : *leading;
  const bool has_singles = std::any_of(slots_[leader].places.begin(), slots_[leader].places.end(),
                                       [](const Place& place) { return place.single; });
  for (const size_t s : operands) {
    if (slots_[s].dtype == slots_[leader].dtype) continue;
    if (!slots_[s].all_single || has_singles) return std::nullopt;
  }
  return leader;
}

std::vector<at::Tensor> Chain::create(const std::vector<size_t>& operands, at::ScalarType dtype) {
  std::vector<at::Tensor> results;
  results.reserve(count_);
  Slot slot;
  slot.places.reserve(count_);
  slot.dtype = dtype;
  slot.created = slot.written = true;
  for (size_t i = 0; i < count_; ++i) {
    const bool single =
        std::all_of(operands.begin(), operands.end(), [&](size_t s) { return slots_[s].places[i].single; });
    const Pattern& pattern = patterns_[i];
    at::Tensor made =
        single ? empty_strided({}, {}, dtype, index_) : empty_strided(pattern.sizes, pattern.strides, dtype, index_);
    slot.all_single = slot.all_single && single;
    slot.places.push_back({made.storage(), 0, single});
    results.push_back(std::move(made));
  }
  slots_.push_back(std::move(slot));
  return results;
}

std::optional<std::vector<at::Tensor>> Chain::add(const Rule& rule, const ForeachCall& call, const std::string& name) {
  const size_t known = slots_.size();
  std::vector<size_t> operands;
  for (const Operand& operand : call.lists) {
    if (const std::optional<size_t> slot = slot_of(operand.list, !operand.repeated.empty())) operands.push_back(*slot);
  }
  const bool complete = operands.size() == call.lists.size();
  const std::optional<size_t> leader = complete ? target_type(operands) : std::nullopt;
  const bool full = !rule.in_place && slots_.size() == kMostSlots;
  if (!leader || full || (rule.in_place && !can_hold(operands, *leader))) {
    slots_.resize(known);
    return std::nullopt;
  }
  std::vector<at::Tensor> results;
  size_t target = operands.front();
  if (rule.in_place) {
    for (const c10::IValue& value : call.lists.front().list) value.toTensor().unsafeGetTensorImpl()->bump_version();
    slots_[target].written = true;
  } else {
    target = slots_.size();
    results = create(operands, slots_[*leader].dtype);
    overlaps(slots_[target]);  // a view of it may come as another list
  }
  write_down(name, call.order, operands, target);
  for (const Number& number : call.numbers) numbers_.push_back(number);
  return results;
}

/// Whether the first operand can take the result: it has the result's type, and dimensions where others have them.
bool Chain::can_hold(const std::vector<size_t>& operands, size_t leader) const {
  const Slot& target = slots_[operands.front()];
  if (target.dtype != slots_[leader].dtype) return false;
  for (size_t i = 0; i < count_; ++i) {
    if (!target.places[i].single) continue;
    const auto is_vector = [&](size_t s) { return !slots_[s].places[i].single; };
    if (std::any_of(operands.begin(), operands.end(), is_vector)) return false;
  }
  return true;
}

/// Adds a step whose text is, for instance, "|addcmul 3 1 1 #2 >3": an operator, slots and numbers, and where the
/// result goes.
void Chain::write_down(const std::string& name, const std::string& order, const std::vector<size_t>& operands,
                       size_t target) {
  std::string text = '|' + name;
  size_t next_list = 0, next_number = numbers_.size();
  for (const char kind : order) {
    text += kind == 't' ? ' ' + std::to_string(operands[next_list++]) : " #" + std::to_string(next_number++);
  }
  steps_.push_back({text + " >" + std::to_string(target), operands, target});
}

/// Whether a slot has to be written: nobody can see results of the chain's own that only the chain holds.
bool Chain::is_wanted(const Slot& slot) const {
  if (!slot.written) return false;
  if (!slot.created) return true;
  return std::any_of(slot.places.begin(), slot.places.end(),
                     [](const Place& place) { return place.storage.use_count() > 1; });
}

at::Tensor Chain::tensor_at(const Slot& slot, size_t element) const {
  const Place& place = slot.places[element];
  const int64_t one = 1, *count = &patterns_[element].count;
  const size_t dim = place.single ? 0 : 1;
  return view_of(place.storage, slot.dtype, {count, dim}, {&one, dim}, place.offset);
}

const Operator& chain_operator() {
  static const Operator& op = find_operator("outboard::chain_", "");
  return op;
}

Stack Chain::arguments(size_t element, const std::string& program, const std::string& roles) const {
  c10::List<at::Tensor> written, read;
  for (size_t s = 0; s < slots_.size(); ++s) {
    if (roles[s] == 'v') continue;
    (roles[s] == 'w' ? written : read).push_back(tensor_at(slots_[s], element));
  }
  c10::impl::GenericList numbers(c10::NumberType::get());
  for (const Number& number : numbers_) numbers.push_back(number.of(element));
  return {program, std::move(written), std::move(read), std::move(numbers)};
}

void Chain::launch(size_t element, const std::string& program, const std::string& roles) const {
  Stack stack = arguments(element, program, roles);
  eager_kernel(chain_operator().handle, {}, &stack);
}

/// What the signatures of elements differ in: their tensors are vectors without gaps, of no, one or more elements, or
/// have no dimensions.
std::string Chain::kind_of(size_t element, const std::string& roles) const {
  const int64_t count = patterns_[element].count;
  std::string kind(1, count > 1 ? 'n' : count == 1 ? '1' : '0');
  for (size_t s = 0; s < slots_.size(); ++s) {
    if (roles[s] != 'v') kind += slots_[s].places[element].single ? 's' : 'v';
  }
  return kind;
}

/// The inputs of an element's launch in the order of a signature: those of `arguments`, without making tensors.
c10::SmallVector<Input, 32> Chain::inputs(size_t element, const std::string& roles) const {
  c10::SmallVector<Input, 32> all;
  for (const char role : {'w', 'r'}) {
    for (size_t s = 0; s < slots_.size(); ++s) {
      if (roles[s] != role) continue;
      const Place& place = slots_[s].places[element];
      const int64_t* count = place.single ? nullptr : &patterns_[element].count;
      all.emplace_back().tensor = binding_of(place.storage, slots_[s].dtype, place.offset, count);
    }
  }
  for (const Number& number : numbers_) all.emplace_back().scalar.d = number.of(element);
  return all;
}

/// The plans that the calling thread has found for chains with this program and the same types.
std::shared_ptr<Chain::Kinds> Chain::known_kinds(const std::string& program) const {
  constexpr size_t kMostPrograms = 1024;
  thread_local std::unordered_map<std::string, std::shared_ptr<Kinds>> known;
  if (known.size() == kMostPrograms) known.clear();
  std::string key(1, static_cast<char>(index_));
  for (const Slot& slot : slots_) key += static_cast<char>(slot.dtype);
  std::shared_ptr<Kinds>& kinds = known[key + program];
  if (kinds == nullptr) kinds = std::make_shared<Kinds>();
  return kinds;
}

/// Elements of one kind share their plans, which are looked up once.
void Chain::run(size_t element, const std::string& program, const std::string& roles, Batch& batch,
                Kinds& kinds) const {
  const std::string kind = kind_of(element, roles);
  const auto known = kinds.find(kind);
  if (known != kinds.end() && known->second.run(inputs(element, roles), &batch)) return;
  launch(element, program, roles);
  Stack stack = arguments(element, program, roles);
  Arguments given(stack.data(), stack.size(), Arguments::kOwned);
  kinds.insert_or_assign(kind, KnownPlans(chain_operator(), given));
}

/// The elements share no memory (see `overlaps`), so their launches need not wait for one another.
void Chain::run() {
  std::string roles;
  for (const Slot& slot : slots_) roles += is_wanted(slot) ? 'w' : slot.created ? 'v' : 'r';
  if (roles.find('w') == std::string::npos) return;
  RECORD_FUNCTION("outboard::foreach_chain", c10::ArrayRef<const c10::IValue>{});
  std::string program = roles;
  for (const Step& step : steps_) program += step.text;
  Batch batch;
  const std::shared_ptr<Kinds> kinds = known_kinds(program);
  for (size_t i = 0; i < count_; ++i) {
    try {
      run(i, program, roles, batch, *kinds);
    } catch (const c10::OutOfMemoryError&) {
      if (!is_one_kernel(i)) throw;
      launch_step_by_step(i);
    }
  }
}

/// Whether an element's launch is all or nothing: tensors without dimensions may get a kernel of their own.
bool Chain::is_one_kernel(size_t element) const {
  return std::none_of(slots_.begin(), slots_.end(), [&](const Slot& slot) { return slot.places[element].single; });
}

/// For a device that cannot hold all tensors of an element at the same time.
void Chain::launch_step_by_step(size_t element) const {
  for (const Step& step : steps_) {
    std::string roles(slots_.size(), 'v');
    for (const size_t operand : step.operands) roles[operand] = 'r';
    roles[step.target] = 'w';
    launch(element, roles + step.text, roles);
  }
}

/// What a thread has written down.
struct Recorder {
  int depth = 0;
  std::unique_ptr<Chain> chain;
};
thread_local Recorder recorder;

c10::DeviceIndex device_of(const ForeachCall& call) {
  for (const c10::IValue& value : call.lists.front().list) {
    const at::Tensor& tensor = value.toTensor();
    if (tensor.defined() && tensor.is_privateuseone()) return tensor.get_device();
  }
  return -1;
}

/// Writes an operator down; nothing if it has to run as it is.
std::optional<std::vector<at::Tensor>> record(const Rule& rule, c10::ArrayRef<c10::IValue> arguments) {
  const std::optional<ForeachCall> call = parse(rule, arguments);
  if (!call || !is_even(*call)) return std::nullopt;
  const c10::DeviceIndex index = device_of(*call);
  if (index < 0) return std::nullopt;
  std::string name = rule.name;
  if (name == "lerp") {
    const std::optional<std::string> suffix = lerp_suffix(*call);
    if (!suffix) return std::nullopt;
    name += *suffix;
  }
  const size_t count = call->lists.front().list.size();
  if (recorder.chain != nullptr && recorder.chain->accepts(count, index)) {
    if (auto results = recorder.chain->add(rule, *call, name)) return results;
  }
  settle();
  auto chain = std::make_unique<Chain>(count, index);
  auto results = chain->add(rule, *call, name);
  if (!results) return std::nullopt;
  recorder.chain = std::move(chain);
  deferred::waiting.fetch_add(1, std::memory_order_relaxed);
  return results;
}

/// PyTorch's own kernel, one operator per tensor: what a device without `_foreach_*` kernels gets.
void run_one_by_one(const c10::OperatorHandle& op, Stack* stack) {
  settle();
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
}

void foreach_kernel(const c10::OperatorHandle& op, c10::DispatchKeySet /*keys*/, Stack* stack) {
  if (recorder.depth == 0) return run_one_by_one(op, stack);
  const Rule& rule = rules().at(&op.schema());
  const size_t count = rule.op.roles.size();
  auto results = record(rule, torch::jit::last(*stack, count));
  if (!results) return run_one_by_one(op, stack);
  torch::jit::drop(*stack, count);
  if (!rule.in_place) stack->push_back(c10::List<at::Tensor>(std::move(*results)));
}

/// The rule for a `_foreach_*` operator that can be part of a chain.
std::optional<Rule> rule_of(const c10::OperatorHandle& handle) {
  const Operator& op = operator_of(handle);
  const c10::FunctionSchema& schema = handle.schema();
  std::string name = schema.name().substr(std::string("aten::_foreach_").size());
  const bool in_place = name.back() == '_';
  if (in_place) name.pop_back();
  const bool fits = in_place || name != "copy";  // a copy has the type and shape of what it replaces
  if (op.out_variant || !fits || pointwise_names().count(name) == 0) return std::nullopt;
  const auto is_list = [](ArgumentRole role) { return role == ArgumentRole::kTensorList; };
  if (std::none_of(op.roles.begin(), op.roles.end(), is_list)) return std::nullopt;
  const std::string& last = schema.arguments().back().name();
  return Rule{op, name, in_place, last == "alpha" || last == "value"};
}

/// Runs the calling thread's chain, if it has one.
void run_waiting() {
  const std::unique_ptr<Chain> chain = std::move(recorder.chain);
  if (chain == nullptr) return;
  deferred::waiting.fetch_sub(1, std::memory_order_relaxed);
  chain->run();
}

}  // namespace

void begin() { ++recorder.depth; }

void end() {
  if (--recorder.depth == 0) settle();
}

void register_kernels() {
  deferred::submit.store(&run_waiting, std::memory_order_release);
  static torch::Library* const library =
      new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    if (name.name.rfind("aten::_foreach_", 0) != 0) continue;
    const auto handle = dispatcher.findSchema(name);
    if (!handle.has_value()) continue;
    const std::optional<Rule> rule = rule_of(*handle);
    if (!rule) continue;
    rules().emplace(&handle->schema(), *rule);
    library->impl(c10::toString(name).substr(6).c_str(), torch::CppFunction::makeFromBoxedFunction<&foreach_kernel>());
  }
}

namespace {

TORCH_LIBRARY_FRAGMENT(outboard, m) {
  m.def("chain_(str program, Tensor(a!)[] written, Tensor[] read, Scalar[] numbers) -> ()");
}

}  // namespace
}  // namespace chains
}  // namespace outboard::aten
