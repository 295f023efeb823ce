// SPDX-License-Identifier: Apache-2.0
#include <ATen/Operators.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

/// torch.autocast for the device: PyTorch's own lists of what runs in lower precision, what in float32, and what in
/// the widest type of its arguments (ATen/autocast_mode.h), as on CUDA.
namespace {

// The lists of ATen/autocast_mode.h name these without qualification.
using at::IntArrayRef;
using at::Scalar;
using at::ScalarType;
using at::Tensor;

at::Tensor binary_cross_entropy_banned(const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&,
                                       int64_t) {
  TORCH_CHECK(false,
              "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast: their input may "
              "overflow in lower precision. Use torch.nn.functional.binary_cross_entropy_with_logits or "
              "torch.nn.BCEWithLogitsLoss instead.");
}

/// Runs an operator on lists, which computes in their dtypes, as CUDA's kernels do: nothing is cast of what it is taken
/// apart into.
void run_uncast(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard guard(c10::autocast_dispatch_keyset);
  op.callBoxed(stack);
}

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
#define OUTBOARD_LOWER_PRECISION(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
  AT_FORALL_LOWER_PRECISION_FP(OUTBOARD_LOWER_PRECISION)
#undef OUTBOARD_LOWER_PRECISION

#define OUTBOARD_FP32(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
  AT_FORALL_FP32(OUTBOARD_FP32)
#undef OUTBOARD_FP32

#define OUTBOARD_FP32_SET_OPT_DTYPE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32_set_opt_dtype)
  AT_FORALL_FP32_SET_OPT_DTYPE(OUTBOARD_FP32_SET_OPT_DTYPE)
#undef OUTBOARD_FP32_SET_OPT_DTYPE

  AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE(KERNEL_DIFFERENT_REDISPATCH_SIGNATURE_PRIVATEUSEONE)

#define OUTBOARD_PROMOTE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)
  AT_FORALL_PROMOTE(OUTBOARD_PROMOTE)
#undef OUTBOARD_PROMOTE

  m.impl("binary_cross_entropy", TORCH_FN(binary_cross_entropy_banned));
  for (const c10::OperatorName& op : c10::Dispatcher::singleton().getAllOpNames()) {
    if (op.name.rfind("aten::_foreach_", 0) != 0) continue;
    m.impl(toString(op).c_str(), torch::CppFunction::makeFromBoxedFunction<&run_uncast>());
  }
}

}  // namespace
