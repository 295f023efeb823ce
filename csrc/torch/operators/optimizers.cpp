// SPDX-License-Identifier: Apache-2.0
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <cmath>
#include <initializer_list>
#include <string>
#include <vector>

#include "torch/bridge/devices.h"
#include "torch/bridge/memory_ranges.h"
#include "torch/eager/compiler.h"
#include "torch/eager/eager.h"

/// PyTorch's fused optimizers, and what GradScaler does to gradients: one launch for each parameter. The operator that
/// works on one parameter is compiled like any other, from its decomposition in compiler/adapter/optimizers/fused.py,
/// and one plan serves all parameters of a rank.
namespace outboard::aten {
namespace {

using torch::jit::Stack;

/// Positions of arguments in PyTorch's schemas.
namespace adam {
enum {
  kSelf,
  kGrads,
  kMeans,
  kSquares,
  kLargest,
  kSteps,
  kRate,
  kBeta1,
  kBeta2,
  kDecay,
  kEps,
  kAmsgrad,
  kMaximize,
  kGradScale,
  kFoundInf,
  kCount
};
}
namespace adagrad {
enum { kSelf, kGrads, kSums, kSteps, kRate, kRateDecay, kDecay, kEps, kMaximize, kGradScale, kFoundInf, kCount };
}
namespace sgd {
enum {
  kSelf,
  kGrads,
  kBuffers,
  kDecay,
  kMomentum,
  kRate,
  kDampening,
  kNesterov,
  kMaximize,
  kFirstStep,
  kGradScale,
  kFoundInf,
  kCount
};
}

bool is_empty(const c10::IValue& list) { return list.toListRef().empty(); }

/// Whether each list has an element for each parameter, or may be empty and is, and the device runs programs.
bool is_ordinary(const c10::IValue* arguments, std::initializer_list<int> lists, int may_be_empty) {
  const c10::ArrayRef<c10::IValue> parameters = arguments[0].toListRef();
  if (parameters.empty() || !runs_programs(parameters[0].toTensor().device().index())) return false;
  for (const int list : lists) {
    const size_t length = arguments[list].toListRef().size();
    if (length != parameters.size() && !(list == may_be_empty && length == 0)) return false;
  }
  return true;
}

/// The step size as a number and, where it is on the device, as a tensor.
struct Rate {
  explicit Rate(const c10::IValue& given) {
    if (!given.isTensor()) {
      number = given.toDouble();
    } else if (given.toTensor().is_cpu()) {
      number = given.toTensor().item<double>();
    } else {
      tensor = given;
    }
  }
  c10::IValue tensor;
  double number = 0;
};

c10::IValue lend(const c10::IValue& value) { return value.isTensor() ? aten::lend(value.toTensor()) : value; }

/// The memory that holds a tensor's elements, or more.
MemoryRanges::Range memory_of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage()) return {};
  const auto* begin = static_cast<const char*>(tensor.storage().data());
  if (!tensor.is_non_overlapping_and_dense()) return {begin, begin + tensor.storage().nbytes()};
  begin += tensor.storage_offset() * static_cast<int64_t>(tensor.itemsize());
  return {begin, begin + tensor.nbytes()};
}

/// The launches of one call, one for each parameter.
class Updates {
 public:
  /// `lists`: arguments that are lists, of which launches write elements; `shared`: what all launches read.
  Updates(const char* name, const c10::IValue* arguments, std::initializer_list<int> lists,
          std::initializer_list<c10::IValue> shared)
      : op_(find_operator(name, "")) {
    std::vector<MemoryRanges::Range> ranges;
    for (const int list : lists) {
      for (const c10::IValue& tensor : arguments[list].toListRef()) ranges.push_back(memory_of(tensor.toTensor()));
    }
    for (const c10::IValue& value : shared) {
      if (value.isTensor() && value.toTensor().is_privateuseone()) ranges.push_back(memory_of(value.toTensor()));
    }
    apart_ = MemoryRanges().add(ranges);
  }

  /// `values` are arguments, their tensors lent: they are given back.
  template <size_t count>
  void launch(c10::IValue (&values)[count]) {
    Arguments arguments(values, count, Arguments::kLent);
    eager_write(op_, arguments, apart_ ? &batch_ : nullptr);
  }

 private:
  const Operator& op_;
  Batch batch_;
  bool apart_;  // no two launches share memory, unless they only read it
};

/// `_fused_adam_` and `_fused_adamw_`. Kingma and Ba 2014; Loshchilov and Hutter 2017.
template <bool decoupled>
void fused_adam(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  using namespace adam;
  const c10::IValue* a = stack->data() + stack->size() - kCount;
  if (!is_ordinary(a, {kGrads, kMeans, kSquares, kLargest, kSteps}, kLargest)) return eager_kernel(op, keys, stack);
  const bool amsgrad = a[kAmsgrad].toBool();
  if (amsgrad && is_empty(a[kLargest])) return eager_kernel(op, keys, stack);
  const Rate rate(a[kRate]);
  const double beta1 = a[kBeta1].toDouble(), beta2 = a[kBeta2].toDouble(), decay = a[kDecay].toDouble();
  const size_t count = a[kSelf].toListRef().size();
  Updates updates("outboard::adam_step_", a, {kSelf, kGrads, kMeans, kSquares, kLargest, kSteps},
                  {rate.tensor, a[kGradScale], a[kFoundInf]});
  for (size_t i = 0; i < count; ++i) {
    const auto element = [&](int list) { return lend(a[list].toListRef()[i]); };
    c10::IValue values[] = {element(kSelf),
                            element(kGrads),
                            element(kMeans),
                            element(kSquares),
                            amsgrad ? element(kLargest) : c10::IValue(),
                            element(kSteps),
                            lend(rate.tensor),
                            lend(a[kGradScale]),
                            lend(a[kFoundInf]),
                            rate.number,
                            beta1,
                            1 - beta1,
                            std::log(beta1),
                            beta2,
                            1 - beta2,
                            std::log(beta2),
                            decay,
                            a[kEps].toDouble(),
                            decay != 0,
                            decoupled,
                            a[kMaximize]};
    updates.launch(values);
  }
  torch::jit::drop(*stack, kCount);
}

/// `_fused_adagrad_`. Duchi, Hazan and Singer 2011.
void fused_adagrad(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  using namespace adagrad;
  const c10::IValue* a = stack->data() + stack->size() - kCount;
  if (!is_ordinary(a, {kGrads, kSums, kSteps}, -1)) return eager_kernel(op, keys, stack);
  const Rate rate(a[kRate]);
  const double decay = a[kDecay].toDouble();
  const size_t count = a[kSelf].toListRef().size();
  Updates updates("outboard::adagrad_step_", a, {kSelf, kGrads, kSums, kSteps},
                  {rate.tensor, a[kGradScale], a[kFoundInf]});
  for (size_t i = 0; i < count; ++i) {
    const auto element = [&](int list) { return lend(a[list].toListRef()[i]); };
    c10::IValue values[] = {
        element(kSelf),      element(kGrads),    element(kSums), element(kSteps),          lend(rate.tensor),
        lend(a[kGradScale]), lend(a[kFoundInf]), rate.number,    a[kRateDecay].toDouble(), decay,
        a[kEps].toDouble(),  decay != 0,         a[kMaximize]};
    updates.launch(values);
  }
  torch::jit::drop(*stack, kCount);
}

void fused_sgd(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  using namespace sgd;
  const c10::IValue* a = stack->data() + stack->size() - kCount;
  if (!is_ordinary(a, {kGrads, kBuffers}, kBuffers)) return eager_kernel(op, keys, stack);
  const Rate rate(a[kRate]);
  const double decay = a[kDecay].toDouble();
  const bool has_buffers = !is_empty(a[kBuffers]);
  const size_t count = a[kSelf].toListRef().size();
  Updates updates("outboard::sgd_step_", a, {kSelf, kGrads, kBuffers}, {rate.tensor, a[kGradScale], a[kFoundInf]});
  for (size_t i = 0; i < count; ++i) {
    const auto element = [&](int list) { return lend(a[list].toListRef()[i]); };
    c10::IValue values[] = {element(kSelf),
                            element(kGrads),
                            has_buffers ? element(kBuffers) : c10::IValue(),
                            lend(rate.tensor),
                            lend(a[kGradScale]),
                            lend(a[kFoundInf]),
                            rate.number,
                            decay,
                            a[kMomentum].toDouble(),
                            1 - a[kDampening].toDouble(),
                            decay != 0,
                            a[kNesterov],
                            a[kMaximize],
                            a[kFirstStep]};
    updates.launch(values);
  }
  torch::jit::drop(*stack, kCount);
}

/// `_amp_foreach_non_finite_check_and_unscale_`. Each gradient has a flag of its own, so that no launch waits for
/// another; and two launches, since a kernel that sums is not shared among cores where it also writes.
void unscale(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  enum { kGrads, kFoundInf, kFactor, kCount };
  const c10::IValue* a = stack->data() + stack->size() - kCount;
  if (!is_empty(a[kGrads]) && !is_ordinary(a, {}, -1)) return eager_kernel(op, keys, stack);
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const at::Tensor found_inf = a[kFoundInf].toTensor(), factor = a[kFactor].toTensor();
  TORCH_CHECK(factor.numel() == 1, "inv_scale must be a 1-element tensor.");
  TORCH_CHECK(found_inf.numel() == 1, "found_inf must be a 1-element tensor.");
  TORCH_CHECK(factor.scalar_type() == at::kFloat, "inv_scale must be a float tensor.");
  TORCH_CHECK(found_inf.scalar_type() == at::kFloat, "found_inf must be a float tensor.");
  const c10::ArrayRef<c10::IValue> grads = a[kGrads].toListRef();
  if (!grads.empty()) {
    const c10::DeviceGuard guard(found_inf.device());
    const at::Tensor flags = at::zeros({static_cast<int64_t>(grads.size())}, found_inf.options());
    Updates checks("outboard::flag_nonfinite_", a, {kGrads}, {flags});
    for (size_t i = 0; i < grads.size(); ++i) {
      const at::Tensor flag = flags.select(0, static_cast<int64_t>(i));
      c10::IValue values[] = {aten::lend(flag), lend(grads[i])};
      checks.launch(values);
    }
    Updates products("outboard::unscale_", a, {kGrads}, {factor});
    for (const c10::IValue& grad : grads) {
      c10::IValue values[] = {lend(grad), aten::lend(factor)};
      products.launch(values);
    }
    found_inf.clamp_min_(flags.amax());
  }
  torch::jit::drop(*stack, kCount);
}

}  // namespace

TORCH_LIBRARY(outboard, m) {
  m.def(
      "adam_step_(Tensor(a!) self, Tensor(b!) grad, Tensor(c!) mean, Tensor(d!) square, Tensor(e!)? largest, Tensor "
      "step, Tensor? lr, Tensor? grad_scale, Tensor? found_inf, Scalar rate, Scalar beta1, Scalar rest1, Scalar log1, "
      "Scalar beta2, Scalar rest2, Scalar log2, Scalar decay, Scalar eps, bool decays, bool decoupled, bool maximize) "
      "-> ()");
  m.def(
      "adagrad_step_(Tensor(a!) self, Tensor(b!) grad, Tensor(c!) sum, Tensor step, Tensor? lr, Tensor? grad_scale, "
      "Tensor? found_inf, Scalar rate, Scalar rate_decay, Scalar decay, Scalar eps, bool decays, bool maximize) -> ()");
  m.def(
      "sgd_step_(Tensor(a!) self, Tensor(b!) grad, Tensor(c!)? buffer, Tensor? lr, Tensor? grad_scale, Tensor? "
      "found_inf, Scalar rate, Scalar decay, Scalar momentum, Scalar rest, bool decays, bool nesterov, bool maximize, "
      "bool is_first_step) -> ()");
  m.def("flag_nonfinite_(Tensor(a!) flag, Tensor grad) -> ()");
  m.def("unscale_(Tensor(a!) grad, Tensor factor) -> ()");
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_amp_foreach_non_finite_check_and_unscale_", torch::CppFunction::makeFromBoxedFunction<&unscale>());
  for (const char* overload : {"", ".tensor_lr"}) {
    const std::string suffix = overload;
    m.impl(("_fused_adam_" + suffix).c_str(), torch::CppFunction::makeFromBoxedFunction<&fused_adam<false>>());
    m.impl(("_fused_adamw_" + suffix).c_str(), torch::CppFunction::makeFromBoxedFunction<&fused_adam<true>>());
    m.impl(("_fused_adagrad_" + suffix).c_str(), torch::CppFunction::makeFromBoxedFunction<&fused_adagrad>());
    m.impl(("_fused_sgd_" + suffix).c_str(), torch::CppFunction::makeFromBoxedFunction<&fused_sgd>());
  }
}

}  // namespace outboard::aten
