// SPDX-License-Identifier: Apache-2.0
#include "torch/eager/eager_call.h"

#include <ATen/record_function.h>
#include <torch/csrc/Exceptions.h>

#include <cstddef>

#include "torch/bridge/devices.h"
#include "torch/bridge/generator.h"
#include "torch/bridge/hidden_costs.h"
#include "torch/bridge/tensor.h"
#include "torch/eager/out_arguments.h"
#include "torch/eager/overlap.h"
#include "torch/eager/results.h"
#include "torch/eager/unheard.h"

namespace outboard::aten {
namespace {

/// A last word that signatures of calls have which the driver's library is not for.
constexpr uint64_t kWithoutLibrary = 0x7972617262696c2d;

}  // namespace

PerThread& per_thread() {
  thread_local PerThread instance;
  return instance;
}

EagerCall::EagerCall(const Operator& op, Arguments& arguments, Batch* batch, bool library)
    : op_(op),
      arguments_(arguments),
      batch_(batch),
      library_(library),
      mine_(per_thread()),
      reading_(mine_.plans.reader),
      symbols_(mine_.symbols),
      results_(mine_.results) {}

bool EagerCall::run() {
  require_parent_process();
  device_ = unify_devices(op_, arguments_);
  if (op_.writes && !resolve_overlap(op_, arguments_)) return false;
  if (!select()) return false;
  if (op_.out_variant && renew_outputs() && !select()) return false;
  if (op_.facts.warning != nullptr) op_.facts.warning(op_, arguments_);
  run_plan();
  if (signature_.pattern != nullptr) lay_out(*results_);
  return true;
}

at::Tensor EagerCall::tensor() {
  const Result& result = (*results_).front();
  const bool is_new = result.kind == Output::kTensor && result.new_allocation;
  return is_new ? new_tensor(result) : fresh(result).toTensor();
}

c10::SmallVector<c10::IValue, 4> EagerCall::values() {
  const std::vector<Result>& results = *results_;
  c10::SmallVector<c10::IValue, 4> returned;
  const size_t returns = op_.aliased_argument.size();
  size_t next = 0;
  for (size_t k = 0; k < returns; ++k) {
    const bool is_list = op_.handle.schema().returns()[k].real_type()->kind() == c10::TypeKind::ListType;
    if (op_.aliased_argument[k] >= 0) {
      returned.push_back(arguments_[static_cast<size_t>(op_.aliased_argument[k])]);
      if (!is_list) ++next;
      continue;
    }
    if (!is_list) {
      returned.push_back(fresh(results.at(next++)));
      continue;
    }
    c10::List<at::Tensor> list;
    while (results.size() - next > returns - 1 - k) list.push_back(fresh(results[next++]).toTensor());
    returned.push_back(list);
  }
  return returned;
}

/// Finds or makes the plan. False: the call has none and belongs on the CPU.
bool EagerCall::select() {
  if (!sign(false)) return false;
  if (entry_->bake.load(std::memory_order_acquire) && !sign(true)) return false;
  if (runs_on_cpu()) return false;
  executable_ = find_plan(*entry_, signature_.inputs.data(), *symbols_);
  if (executable_ == nullptr) return compile();
  mine_.hits.add();
  return true;
}

/// Gives `out=` tensors that are not read, too, and that a reset took their contents, new memory. False: none was lost.
bool EagerCall::renew_outputs() {
  bool any = false;
  for (size_t i = 0; i < op_.roles.size(); ++i) {
    if (!op_.is_out[i] || !arguments_[i].isTensor()) continue;
    const at::Tensor& out = arguments_[i].toTensor();
    const bool is_lost = out.is_privateuseone() && out.has_storage() && allocation_of(out).device().was_reset();
    any = (is_lost && !is_read(op_, arguments_, out) && renew(out)) || any;
  }
  return any;
}

bool EagerCall::runs_on_cpu() {
  const FallbackCause cause = entry_->on_cpu.load(std::memory_order_acquire);
  if (cause == FallbackCause::kNone) return false;
  cause_ = cause;
  return true;
}

bool EagerCall::sign(bool bake) {
  bake_ = bake;
  signature_.clear();
  if (!make_signature(op_, arguments_, bake, signature_)) return false;
  if (!library_) signature_.bytes.push_raw(kWithoutLibrary);
  if (has_static_sizes(device_)) sign_sizes();
  entry_ = &mine_.plans.entry_of(op_, device_, signature_.bytes);
  return true;
}

/// Adds all sizes and strides: executables of the device are for one set of them.
void EagerCall::sign_sizes() {
  for (const Input& input : signature_.inputs) {
    for (int32_t d = 0; d < input.tensor.dim; ++d) {
      signature_.bytes.push_raw(input.tensor.sizes[d]);
      signature_.bytes.push_raw(input.tensor.strides[d]);
    }
  }
}

/// The slow path: asks for a plan, from the disk cache or the compiler.
bool EagerCall::compile() {
  RECORD_FUNCTION("outboard::compile", c10::ArrayRef<const c10::IValue>{});
  note_cost(HiddenCost::kCompilation, op_.name);
  const at::DisableRecordFunctionGuard whole;  // profilers show one piece, not what the compiler calls
  if (the_compiler().has_ended()) return false;
  if (signature_.overflows) rehearse_numbers_on_cpu(op_, arguments_);
  bool cache = entry_->variants.load(std::memory_order_acquire) == nullptr;
  if (op_.out_variant) {
    if (cache && take_kept(ask(/*cache=*/true, /*compiler=*/false))) {
      count_miss();
      return executable_ != nullptr || select();
    }
    cache = false;
    // Shapes are asked for only now: that may import half of PyTorch's compiler.
    if (resize_outputs(op_, arguments_)) return select();
  }
  count_miss();
  PlanAnswer answer = ask(cache, /*compiler=*/true);
  if (take_kept(answer)) return executable_ != nullptr || select();
  if (answer.kept) answer = ask(/*cache=*/false, /*compiler=*/true);
  return take_made(answer);
}

/// What tracing refuses, the CPU's kernel refuses in PyTorch's own words, if it does. If it does not, PyTorch's
/// shape functions are stricter than its kernels, and the call belongs there.
PlanAnswer EagerCall::ask(bool cache, bool compiler) {
  try {
    const Unheard unheard;
    return the_compiler().plan_for(key(), signed_arguments(arguments_, signature_), {cache, compiler, library_});
  } catch (const python_error& error) {
    if (!is_left_to_cpu(op_, arguments_, error.type)) throw;
  }
  return {PlanAnswer::kRefused};
}

/// Takes an answer of the disk cache: plans, or that scalar values must be part of the signature. False: there is no
/// answer, or no plan accepts the call.
bool EagerCall::take_kept(const PlanAnswer& answer) {
  if (!answer.kept) return false;
  if (answer.verdict == PlanAnswer::kBake) {
    entry_->bake.store(true, std::memory_order_release);
    return true;
  }
  for (const std::string& plan : answer.plans) {
    const Executable* const executable = translate_errors([&] { return load_kept(plan); });
    if (executable == nullptr || executable_ != nullptr) continue;
    if (executable->bind(signature_.inputs.data(), *symbols_)) executable_ = executable;
  }
  return executable_ != nullptr;
}

/// A plan of the disk cache, or nullptr if the driver refuses an executable in it, such as one that was made for
/// another version: then there is none, and it is made again.
const Executable* EagerCall::load_kept(const std::string& plan) {
  try {
    return &PlanTable::instance().add(*entry_, plan, device_);
  } catch (const Error& error) {
    if (error.status() != OB_BUILD_FAILED) throw;
    return nullptr;
  }
}

/// Takes what the compiler made. False: the call belongs on the CPU.
bool EagerCall::take_made(const PlanAnswer& answer) {
  if (answer.verdict == PlanAnswer::kCpu || answer.verdict == PlanAnswer::kRefused) {
    const bool refused = answer.verdict == PlanAnswer::kRefused;
    entry_->on_cpu.store(refused ? FallbackCause::kCompiler : FallbackCause::kUnsupported, std::memory_order_release);
    return !runs_on_cpu();
  }
  if (!op_.facts.float_statistics) rehearse_on_cpu(op_, arguments_);  // a wrong value says nothing about others
  if (answer.verdict == PlanAnswer::kPlan) {
    adopt(answer.plans.at(0));
    the_compiler().keep_plan(key(), answer.plans[0]);  // last: the next process takes a plan that is kept as it is
    return true;
  }
  TORCH_INTERNAL_ASSERT(answer.verdict == PlanAnswer::kBake && !bake_, "the compiler has no answer for ", op_.name);
  entry_->bake.store(true, std::memory_order_release);
  the_compiler().keep_bake(key());
  return select();
}

/// Takes a new plan for this call and those like it. Raises if the plan is damaged or does not accept the call.
void EagerCall::adopt(const std::string& plan) {
  executable_ = translate_errors([&] { return &PlanTable::instance().add(*entry_, plan, device_); });
  TORCH_INTERNAL_ASSERT(executable_->bind(signature_.inputs.data(), *symbols_), "the plan made for this call of ",
                        op_.name, " does not accept it");
}

void EagerCall::run_plan() {
  ExecutionContext context{current_stream(device_)};
  context.batch = batch_;
  if (executable_->draws()) {
    context.seeds = [this](int64_t* seeds, int64_t count) { next_seeds(signature_.generator, device_, seeds, count); };
    context.later_seeds = [this] { return seeds_of(signature_.generator, device_); };
  }
  translate_errors([&] { executable_->run(signature_.inputs.data(), *symbols_, context, *results_); });
}

/// Results of a call signed as one on vectors lie as its tensors do.
void EagerCall::lay_out(std::vector<Result>& results) const {
  const at::Tensor& pattern = *signature_.pattern;
  for (Result& result : results) {
    if (result.kind != Output::kTensor) continue;
    result.sizes = Dims(pattern.sizes().data(), pattern.sizes().size());
    result.strides = Dims(pattern.strides().data(), pattern.strides().size());
  }
}

/// A functional operator's result is never an argument or a view of one.
c10::IValue EagerCall::fresh(const Result& result) const {
  if (result.kind == Output::kNone) return at::Tensor();
  const c10::IValue value = to_ivalue(result, signature_.tensors);
  const bool aliases = result.kind == Output::kInput || (result.kind == Output::kTensor && !result.new_allocation);
  return aliases ? c10::IValue(value.toTensor().clone()) : value;
}

}  // namespace outboard::aten
