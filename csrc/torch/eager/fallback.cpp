// SPDX-License-Identifier: Apache-2.0
#include "torch/eager/fallback.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "torch/bridge/device_type.h"
#include "torch/bridge/devices.h"
#include "torch/bridge/generator.h"
#include "torch/bridge/hidden_costs.h"
#include "torch/bridge/sync_debug.h"
#include "torch/bridge/tensor.h"
#include "torch/eager/complex_arithmetic.h"
#include "torch/eager/complex_moves.h"
#include "torch/eager/copy.h"
#include "torch/eager/map_tensors.h"
#include "torch/eager/out_arguments.h"
#include "torch/eager/recurrent_cells.h"
#include "torch/eager/stand_ins.h"
#include "torch/eager/unheard.h"

namespace outboard::aten {
namespace {

struct Counters {
  std::mutex mutex;
  std::map<std::string, int64_t> counts;
  std::set<std::string> logged;
  FallbackPolicy policy = FallbackPolicy::kAllow;
  std::vector<std::shared_ptr<const FallbackCheck>> checks;
};

Counters& counters() {
  static Counters* const instance = new Counters;
  return *instance;
}

/// Gives a call's arguments a CPU generator that continues the device's random sequence, so that seeding the device
/// seeds what the CPU draws for it; raises for the generator of another device, as PyTorch does.
void seed_generator(const Operator& op, c10::DeviceIndex device, c10::IValue* arguments) {
  if (!op.random) return;
  for (size_t i = 0; i < op.roles.size(); ++i) {
    if (op.roles[i] != ArgumentRole::kGenerator) continue;
    int64_t seed = 0;
    next_seeds(arguments[i].isNone() ? std::nullopt : std::optional<at::Generator>(arguments[i].toGenerator()), device,
               &seed, 1);
    arguments[i] = at::detail::createCPUGenerator(static_cast<uint64_t>(seed));
  }
}

/// The CPU stand-ins of one call's device tensors.
class CpuCall {
 public:
  CpuCall(const Operator& op, c10::DeviceIndex device, torch::jit::Stack* stack)
      : op_(op), device_(device), stack_(stack), in_place_(Runtime::get().device(device).host_accessible()) {}

  void run() {
    note_wait("'" + op_.name + "' on the CPU", std::nullopt);
    const WaitsUnnoticed noted;
    if (in_place_) translate_errors([&] { current_stream(device_).synchronize(); });
    const size_t first = stack_->size() - op_.roles.size();
    std::vector<c10::IValue> originals(stack_->begin() + static_cast<std::ptrdiff_t>(first), stack_->end());
    for (size_t i = 0; i < originals.size(); ++i) (*stack_)[first + i] = to_cpu(i, originals[i]);
    seed_generator(op_, device_, stack_->data() + first);
    op_.handle.callBoxed(stack_);
    write_back();
    const size_t returns = op_.aliased_argument.size();
    const size_t first_result = stack_->size() - returns;
    for (size_t k = 0; k < returns; ++k) {
      c10::IValue& result = (*stack_)[first_result + k];
      const int alias = op_.aliased_argument[k];
      result = alias >= 0 ? originals[static_cast<size_t>(alias)]
                          : map_tensors(result, [&](const at::Tensor& tensor) { return device_tensor(tensor); });
    }
  }

 private:
  struct Pair {
    at::Tensor device, cpu;
    bool written;
    bool fresh;  ///< an `out=` tensor: what it holds is of no use
  };

  c10::IValue to_cpu(size_t i, const c10::IValue& value) {
    if (value.isDevice() && value.toDevice().type() == kOurs) return c10::Device(c10::kCPU);
    return map_tensors(value, [&](const at::Tensor& tensor) { return stand_in(tensor, is_written(i), op_.is_out[i]); });
  }

  bool is_written(size_t i) const {
    const std::vector<std::string>& more = op_.facts.writes;
    return op_.written[i] ||
           std::find(more.begin(), more.end(), op_.handle.schema().arguments()[i].name()) != more.end();
  }

  at::Tensor stand_in(const at::Tensor& tensor, bool written, bool fresh) {
    if (!tensor.defined() || tensor.device().type() != kOurs) return tensor;
    for (Pair& pair : pairs_) {
      if (!pair.device.is_same(tensor)) continue;
      if (written) make_written(pair);  // read before, as in maximum(a, b, out=a)
      return pair.cpu;
    }
    at::Tensor cpu;
    if (fresh) {
      cpu = result_on_cpu(tensor);
    } else {
      cpu = in_place_ ? host_view(tensor) : written ? tensor.cpu() : copy_laid_out(tensor);
    }
    pairs_.push_back({tensor, cpu, false, fresh});
    if (written) make_written(pairs_.back());
    return cpu;
  }

  /// Memory for what an `out=` tensor is to hold, one element after the other: some kernels leave results alone that
  /// lie otherwise. Where elements share memory it does as the tensor does, which kernels refuse.
  static at::Tensor result_on_cpu(const at::Tensor& tensor) {
    const at::TensorOptions options = tensor.options().device(c10::kCPU);
    if (at::has_internal_overlap(tensor) != at::MemOverlap::Yes) return at::empty(tensor.sizes(), options);
    return empty_with_room(tensor.sizes(), tensor.strides(), options);
  }

  /// A kernel may resize what it writes, such as an observer's statistics, which are empty before the first call.
  static void make_written(Pair& pair) {
    pair.written = true;
    pair.cpu.storage().unsafeGetStorageImpl()->set_resizable(true);
  }

  /// A copy whose elements lie as the tensor's, expanded dimensions included: they decide how the kernel lays out what
  /// it makes.
  static at::Tensor copy_laid_out(const at::Tensor& tensor) {
    const at::Tensor once = without_repeats(tensor);
    return once.is_same(tensor) ? tensor.cpu() : once.cpu().expand(tensor.sizes());
  }

  void write_back() {
    for (const Pair& pair : pairs_) {
      const bool resized = pair.device.sizes() != pair.cpu.sizes();
      if (!pair.written || (in_place_ && !pair.fresh && !resized)) continue;
      if (resized) lay_out(pair.device, pair.cpu.sizes(), pair.cpu.strides());
      pair.device.copy_(pair.cpu);
    }
  }

  /// The result on the device: a view of an argument where the CPU kernel returned one, else a copy.
  at::Tensor device_tensor(const at::Tensor& cpu) const {
    if (!cpu.defined() || !cpu.is_cpu()) return cpu;
    for (const Pair& pair : pairs_) {
      if (!cpu.has_storage() || !pair.cpu.has_storage() ||
          cpu.storage().unsafeGetStorageImpl() != pair.cpu.storage().unsafeGetStorageImpl())
        continue;
      if (cpu.scalar_type() != pair.device.scalar_type()) continue;
      const int64_t offset = pair.device.storage_offset() + cpu.storage_offset() - pair.cpu.storage_offset();
      return pair.device.as_strided(cpu.sizes(), cpu.strides(), offset);
    }
    return cpu.to(c10::Device(kOurs, device_));
  }

  const Operator& op_;
  c10::DeviceIndex device_;
  torch::jit::Stack* stack_;
  bool in_place_;
  std::vector<Pair> pairs_;
};

/// A rehearsal is for the checks: beyond this many elements the meta kernel's shape checks have to do.
constexpr int64_t kRehearsalElements = int64_t{1} << 16;

/// A tensor of zeros on the CPU with one element for each dimension that has any.
at::Tensor element_on_cpu(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.device().type() != kOurs) return tensor;
  c10::SmallVector<int64_t, 8> sizes;
  for (const int64_t size : tensor.sizes()) sizes.push_back(std::min<int64_t>(size, 1));
  return at::zeros(sizes, tensor.options().device(c10::kCPU));
}

int64_t elements(const c10::IValue& value) {
  if (value.isTensor()) return value.toTensor().defined() ? value.toTensor().numel() : 0;
  int64_t total = 0;
  if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) total += tensor.numel();
  }
  return total;
}

/// Whether the CPU's kernel says only that the zeros of a rehearsal are no divisors of integers. This text is all that
/// tells.
bool is_division_by_zero(const c10::Error& error) {
  return std::string_view(error.what_without_backtrace()) == "ZeroDivisionError";
}

/// The type for which the CPU has a kernel where it has none for a shorter or an unsigned one.
at::ScalarType common_type(at::ScalarType type) {
  if (at::isReducedFloatingType(type)) return at::kFloat;
  if (at::isBarebonesUnsignedType(type)) return at::kLong;
  return type == at::kComplexHalf ? at::kComplexFloat : type;
}

bool is_dtype(const c10::Argument& argument) {
  c10::TypePtr type = argument.real_type();
  if (const auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
  return type->kind() == c10::TypeKind::ScalarTypeType;
}

/// Gives a call's tensors and dtypes common types. False: they have such.
bool take_common_types(const Operator& op, torch::jit::Stack& stack) {
  bool changed = false;
  for (size_t i = 0; i < stack.size(); ++i) {
    stack[i] = map_tensors(stack[i], [&](const at::Tensor& tensor) {
      if (!tensor.defined() || common_type(tensor.scalar_type()) == tensor.scalar_type()) return tensor;
      changed = true;
      return tensor.to(common_type(tensor.scalar_type()));
    });
    if (!stack[i].isInt() || !is_dtype(op.handle.schema().arguments()[i])) continue;
    const at::ScalarType type = stack[i].toScalarType();
    changed = changed || common_type(type) != type;
    stack[i] = common_type(type);
  }
  return changed;
}

/// Whether an operator that the CPU has no kernel for lacks it for these types only: devices compute with more.
bool lacks_types_only(const Operator& op, torch::jit::Stack stack) {
  if (!take_common_types(op, stack)) return false;
  try {
    op.handle.callBoxed(&stack);
  } catch (const c10::NotImplementedError&) {
    return false;
  } catch (const c10::Error&) {  // of something else
  }
  return true;
}

/// Whether the CPU knows the operator: those that PyTorch calls on other devices only it does not.
bool runs_on_cpu(const Operator& op) { return op.handle.hasComputedKernelForDispatchKey(c10::DispatchKey::CPU); }

/// Leaves the program's generator on the CPU as it was. Operators that draw and take no generator draw from that one.
class CpuGeneratorKept {
 public:
  explicit CpuGeneratorKept(const Operator& op) {
    if (!op.random) return;
    const std::lock_guard lock(generator().mutex());
    before_ = generator().get_state();
  }
  ~CpuGeneratorKept() {
    if (!before_.defined()) return;
    const std::lock_guard lock(generator().mutex());
    generator().set_state(before_);
  }
  CpuGeneratorKept(const CpuGeneratorKept&) = delete;
  CpuGeneratorKept& operator=(const CpuGeneratorKept&) = delete;

 private:
  static at::Generator generator() { return at::detail::getDefaultCPUGenerator(); }

  at::Tensor before_;
};

/// Runs an operator on what `stand_in` makes of its arguments, and raises what PyTorch finds wrong with them. True if
/// the CPU's kernel accepts them.
template <typename StandIn>
bool try_on_cpu(const Operator& op, c10::ArrayRef<c10::IValue> arguments, StandIn&& stand_in,
                Heard heard = Heard::kNone) {
  if (!runs_on_cpu(op) || op.facts.judges_values) return false;
  torch::jit::Stack stack;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const bool generator = op.random && op.roles[i] == ArgumentRole::kGenerator;
    stack.push_back(generator ? c10::IValue(at::detail::createCPUGenerator(0)) : c10::IValue(stand_in(arguments[i])));
  }
  const torch::jit::Stack given = stack;
  const CpuGeneratorKept kept(op);
  Unheard unheard(heard);
  const bool is_resized = heard == Heard::kResizing;  // before the kernel looks at values
  try {
    op.handle.callBoxed(&stack);
  } catch (const c10::LinAlgError&) {
    return is_resized;  // a matrix of zeros has no inverse
  } catch (const c10::NotImplementedError&) {
    if (lacks_types_only(op, given)) return false;
    unheard.give_out();
    throw;
  } catch (const c10::Error& error) {
    if (is_division_by_zero(error)) return is_resized;
    unheard.give_out();
    throw;
  }
  return true;
}

}  // namespace

void set_fallback_policy(FallbackPolicy policy) {
  std::lock_guard lock(counters().mutex);
  counters().policy = policy;
}

void add_fallback_check(FallbackCheck check) {
  std::lock_guard lock(counters().mutex);
  counters().checks.push_back(std::make_shared<const FallbackCheck>(std::move(check)));
}

namespace {

FallbackPolicy fallback_policy() {
  std::lock_guard lock(counters().mutex);
  return counters().policy;
}

/// Asks the checks, without the lock of the counters.
void ask_checks(const std::string& name, FallbackCause cause) {
  std::vector<std::shared_ptr<const FallbackCheck>> checks;
  {
    std::lock_guard lock(counters().mutex);
    checks = counters().checks;
  }
  for (const auto& check : checks) {
    const std::string refusal = (*check)(name, cause);
    TORCH_CHECK_NOT_IMPLEMENTED(refusal.empty(), refusal);
  }
}

}  // namespace

const char* word_for(FallbackCause cause) {
  return cause == FallbackCause::kCompiler ? "compiler" : cause == FallbackCause::kCopy ? "copy" : "unsupported";
}

void admit_fallback(const std::string& name, FallbackCause cause) {
  ask_checks(name, cause);
  TORCH_CHECK_NOT_IMPLEMENTED(fallback_policy() != FallbackPolicy::kError, "The operator '", name,
                              "' has no kernel for this device and OUTBOARD_FALLBACK=error forbids running it on the "
                              "CPU. Set OUTBOARD_FALLBACK=allow to permit it.");
}

void note_fallback(const std::string& name, FallbackCause cause) {
  note_cost(HiddenCost::kFallback, name, word_for(cause));
  Counters& all = counters();
  bool first;
  {
    std::lock_guard lock(all.mutex);
    ++all.counts[name];
    first = all.logged.insert(name).second;
  }
  if (first || fallback_policy() == FallbackPolicy::kWarn) {
    TORCH_WARN("The operator '", name, "' runs on the CPU: it has no kernel for this device. ",
               "Set OUTBOARD_FALLBACK=error to forbid this.");
  }
}

std::map<std::string, int64_t> fallback_counts() {
  std::lock_guard lock(counters().mutex);
  return counters().counts;
}

void reset_fallback_counts() {
  std::lock_guard lock(counters().mutex);
  counters().counts.clear();
}

void run_on_cpu(const Operator& op, c10::DeviceIndex device, torch::jit::Stack* stack, FallbackCause cause) {
  require_parent_process();
  if (move_complex(op, stack) || compute_complex(op, stack) || compute_cell(op, stack)) return;
  TORCH_CHECK_NOT_IMPLEMENTED(runs_on_cpu(op), "'", op.name, "' has no kernel for ", torch_device(device),
                              " that takes these arguments, and the CPU has none to fall back to");
  const bool copies = op.name == "aten::copy_" || op.name == "aten::_copy_from";
  if (copies) cause = FallbackCause::kCopy;
  // What PyTorch refuses is no fallback: its own error comes first, and nothing is counted.
  if (fallback_policy() == FallbackPolicy::kError) {
    rehearse_large_on_cpu(op, torch::jit::last(*stack, op.roles.size()));
  }
  admit_fallback(op.name, cause);
  CpuCall(op, device, stack).run();
  note_fallback(op.name, cause);
}

namespace {

/// The only tensor of the device among the arguments, if the call writes all of it and it has no contents yet; else an
/// undefined one.
at::Tensor sole_new_tensor(const Operator& op, const c10::IValue* arguments) {
  at::Tensor found;
  for (size_t i = 0; i < op.roles.size(); ++i) {
    if (has_tensors(arguments[i])) return {};
    if (!arguments[i].isTensor() || !arguments[i].toTensor().defined()) continue;
    const at::Tensor& tensor = arguments[i].toTensor();
    if (!op.written[i] || tensor.device().type() != kOurs || found.defined()) return {};
    found = tensor;
  }
  if (!found.defined() || found.numel() == 0 || !covers_storage(found)) return {};
  return allocation_of(found).state() == State::kUnbacked ? found : at::Tensor();
}

/// Whether all that an operator returns are arguments of its.
bool returns_arguments(const Operator& op) {
  return std::all_of(op.aliased_argument.begin(), op.aliased_argument.end(), [](int alias) { return alias >= 0; });
}

}  // namespace

bool make_on_host(const Operator& op, torch::jit::Stack* stack) {
  if (!contents_wait() || !is_lazy() || !returns_arguments(op) || !runs_on_cpu(op)) return false;
  const size_t first = stack->size() - op.roles.size();
  const at::Tensor made = sole_new_tensor(op, stack->data() + first);
  if (!made.defined()) return false;
  Allocation& allocation = allocation_of(made);
  std::shared_ptr<HostBuffer> buffer =
      translate_errors([&] { return allocation.device().residency().host_buffer(allocation.size()); });
  torch::jit::Stack call(stack->begin() + static_cast<std::ptrdiff_t>(first), stack->end());
  for (c10::IValue& value : call) {
    if (value.isTensor() && value.toTensor().is_same(made)) value = over_host_copy(*buffer, made);
  }
  seed_generator(op, made.device().index(), call.data());
  op.handle.callBoxed(&call);
  if (!allocation.adopt(std::move(buffer))) return false;
  torch::jit::Stack results;
  for (const int alias : op.aliased_argument) results.push_back((*stack)[first + static_cast<size_t>(alias)]);
  torch::jit::drop(*stack, op.roles.size());
  stack->insert(stack->end(), results.begin(), results.end());
  return true;
}

bool rehearse_on_cpu(const Operator& op, c10::ArrayRef<c10::IValue> arguments, Heard heard) {
  int64_t total = 0;
  for (const c10::IValue& value : arguments) total += elements(value);
  return total <= kRehearsalElements && rehearse_large_on_cpu(op, arguments, heard);
}

bool rehearse_large_on_cpu(const Operator& op, c10::ArrayRef<c10::IValue> arguments, Heard heard) {
  StandIns stand_ins(c10::kCPU, arguments);
  return try_on_cpu(op, arguments, [&](const c10::IValue& value) { return stand_ins.of(value); }, heard);
}

void rehearse_numbers_on_cpu(const Operator& op, c10::ArrayRef<c10::IValue> arguments) {
  if (op.pointwise) {
    try_on_cpu(op, arguments, [](const c10::IValue& value) {
      return value.isDevice() ? c10::IValue(c10::Device(c10::kCPU)) : map_tensors(value, element_on_cpu);
    });
    return;
  }
  rehearse_large_on_cpu(op, arguments);
}

}  // namespace outboard::aten
