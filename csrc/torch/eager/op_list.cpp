// SPDX-License-Identifier: Apache-2.0
#include "torch/eager/op_list.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/RangeUtils.h>
#include <ATen/ops/all.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/linalg_pinv_native.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>

#include "torch/bridge/tensor.h"
#include "torch/eager/copy.h"
#include "torch/eager/eager.h"
#include "torch/eager/typed_kernels.h"

/// Which operators reach `eager_kernel`. The backend fallback takes every operator without a kernel of its own;
/// PyTorch's composite-explicit kernels would win over it, so the operators that are better compiled whole than
/// taken apart are registered one by one.
namespace outboard::aten {
namespace {

using Kernel = torch::CppFunction;

Kernel boxed() { return Kernel::makeFromBoxedFunction<&eager_kernel>(); }

at::Tensor& fill(at::Tensor& self, const at::Scalar& value) {
  if (try_fill(self, value)) return self;
  if (at::Tensor once = without_repeats(self); !once.is_same(self)) {
    fill(once, value);
    return self;
  }
  static const c10::OperatorHandle handle = c10::Dispatcher::singleton().findSchemaOrThrow("aten::fill_", "Scalar");
  torch::jit::Stack stack{self, value};
  eager_kernel(handle, c10::DispatchKeySet(), &stack);
  return self;
}

/// Makes the elements of a range in `out`, in order, whatever its shape and strides: it needs to have as many.
at::Tensor& number(const char* name, const char* overload, torch::jit::Stack arguments, int64_t size, at::Tensor& out) {
  const at::Tensor flat = out.is_contiguous() ? out.view(size) : at::empty(size, out.options());
  arguments.emplace_back(flat);
  eager_kernel(c10::Dispatcher::singleton().findSchemaOrThrow(name, overload), c10::DispatchKeySet(), &arguments);
  if (!flat.is_alias_of(out)) out.copy_(flat.view(out.sizes()));
  return out;
}

/// The size may be off by one where the step is rounded, so a wrong one is worth a warning.
at::Tensor& arange(const at::Scalar& start, const at::Scalar& end, const at::Scalar& step, at::Tensor& out) {
  const int64_t size = out.scalar_type() == at::kLong ? at::native::compute_arange_size<int64_t>(start, end, step)
                                                      : at::native::compute_arange_size<double>(start, end, step);
  if (out.numel() != size) {
    if (out.numel() > 0) {
      TORCH_WARN("The number of elements in the out tensor of shape ", out.sizes(), " is ", out.numel(),
                 " which does not match the computed number of elements ", size,
                 ". Note that this may occur as a result of rounding error. The out tensor will be resized to a tensor "
                 "of shape (",
                 size, ",).");
    }
    out.resize_(size);
  }
  return number("aten::arange", "start_out", {start, end, step}, size, out);
}

/// Deprecated, and with its end: a range up to half a step behind it.
at::Tensor& range(const at::Scalar& start, const at::Scalar& end, const at::Scalar& step, at::Tensor& out) {
  const double first = start.toDouble(), last = end.toDouble(), by = step.toDouble();
  TORCH_CHECK(by > 0 || by < 0, "step must be nonzero");
  TORCH_CHECK(std::isfinite(first) && std::isfinite(last), "unsupported range: ", first, " -> ", last);
  TORCH_CHECK((by > 0 && last >= first) || (by < 0 && last <= first),
              "upper bound and lower bound inconsistent with step sign");
  const auto size = static_cast<int64_t>((last - first) / by + 1);
  if (out.numel() != size) out.resize_(size);
  const at::Scalar behind = first + by * (static_cast<double>(size) - 0.5);
  return number("aten::arange", "start_out", {start, behind, step}, size, out);
}

at::Tensor& linspace(const at::Scalar& start, const at::Scalar& end, int64_t steps, at::Tensor& out) {
  TORCH_CHECK(steps >= 0, "number of steps must be non-negative");
  if (out.numel() != steps) out.resize_(steps);
  return number("aten::linspace", "out", {start, end, steps}, steps, out);
}

at::Tensor& logspace(const at::Scalar& start, const at::Scalar& end, int64_t steps, double base, at::Tensor& out) {
  TORCH_CHECK(steps >= 0, "number of steps must be non-negative");
  if (out.numel() != steps) out.resize_(steps);
  return number("aten::logspace", "out", {start, end, steps, base}, steps, out);
}

at::Tensor& zero(at::Tensor& self) { return fill(self, 0); }

bool equal(const at::Tensor& self, const at::Tensor& other) {
  check_same_device(self, other);
  TORCH_CHECK(self.scalar_type() == other.scalar_type(), "Expected all tensors to have the same dtype, but found ",
              self.scalar_type(), " and ", other.scalar_type());
  if (self.sizes() != other.sizes()) return false;
  return self.numel() == 0 || self.eq(other).all().item<bool>();
}

/// The compiled check takes any number of elements.
void assert_async(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const at::Tensor& condition = (*stack)[stack->size() - handle.schema().arguments().size()].toTensor();
  TORCH_CHECK(condition.numel() != 0, "Boolean value of Tensor with no values is ambiguous");
  TORCH_CHECK(condition.numel() == 1, "Boolean value of Tensor with more than one value is ambiguous");
  eager_kernel(handle, keys, stack);
}

/// Taken apart, as PyTorch has it: under autocast its products are cast.
at::Tensor pinv(const at::Tensor& self, const std::optional<at::Tensor>& atol, const std::optional<at::Tensor>& rtol,
                bool hermitian) {
  return at::native::linalg_pinv(self, atol, rtol, hermitian);
}

/// For operators of which PyTorch leaves to the kernel what zeros without memory are, which forward derivatives have.
void with_memory(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const size_t count = handle.schema().arguments().size();
  for (size_t i = 0; i < count; ++i) {
    c10::IValue& value = torch::jit::peek(*stack, i, count);
    if (value.isTensor() && value.toTensor()._is_zerotensor()) value = value.toTensor().clone();
  }
  eager_kernel(handle, keys, stack);
}

bool returns_view(const c10::FunctionSchema& schema) {
  for (const c10::Argument& result : schema.returns()) {
    if (result.alias_info() != nullptr && !result.alias_info()->isWrite()) return true;
  }
  return false;
}

bool wanted(const c10::OperatorHandle& op) {
  if (op.hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1)) return false;
  const OperatorFacts& facts = facts_of(op.schema());
  if (returns_view(op.schema()) || facts.sees_storage) return false;
  if (op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutogradNonFunctional)) return true;
  return std::find(facts.whole.begin(), facts.whole.end(), op.schema().overload_name()) != facts.whole.end();
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(boxed()); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("fill_.Scalar", TORCH_FN(fill));
  m.impl("zero_", TORCH_FN(zero));
  m.impl("equal", TORCH_FN(equal));
  m.impl("arange.start_out", TORCH_FN(arange));
  m.impl("range.out", TORCH_FN(range));
  m.impl("linspace.out", TORCH_FN(linspace));
  m.impl("logspace.out", TORCH_FN(logspace));
  m.impl("_assert_async", Kernel::makeFromBoxedFunction<&assert_async>());
  m.impl("_assert_async.msg", Kernel::makeFromBoxedFunction<&assert_async>());
  m.impl("linalg_pinv.atol_rtol_tensor", TORCH_FN(pinv));
  for (const char* name : {"add.Scalar", "mul.Scalar", "dot", "vdot"}) {
    m.impl(name, Kernel::makeFromBoxedFunction<&with_memory>());
  }
}

}  // namespace

void register_operators() {
  static torch::Library* const library =
      new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    if (name.name.rfind("aten::", 0) != 0) continue;
    const auto op = dispatcher.findSchema(name);
    if (!op.has_value() || !wanted(*op)) continue;
    std::optional<Kernel> typed = typed_kernel(operator_of(*op));
    library->impl(c10::toString(name).substr(6).c_str(), typed ? std::move(*typed) : boxed());
  }
}

}  // namespace outboard::aten
