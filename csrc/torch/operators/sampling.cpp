// SPDX-License-Identifier: Apache-2.0
#include <ATen/ExpandUtils.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/nextafter.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/view_as_real.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <cmath>
#include <optional>

#include "torch/bridge/tensor.h"
#include "torch/eager/copy.h"
#include "torch/eager/eager.h"

/// Random numbers whose distribution is a tensor: multinomial, and normal with tensors for its parameters.
namespace outboard::aten {
namespace {

using Generator = std::optional<at::Generator>;

/// What is wrong with weights to draw by: 0 nothing, 1 one that is infinite, NaN or negative, 2 a row without any.
at::Tensor problem_of_weights(const at::Tensor& weights) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("outboard::problem_of_weights", "")
                             .typed<at::Tensor(const at::Tensor&)>();
  return op.call(weights);
}

void check_weights(const at::Tensor& weights, int64_t draws, bool replacement) {
  TORCH_CHECK(weights.dim() == 1 || weights.dim() == 2, "prob_dist must be 1 or 2 dim");
  TORCH_CHECK(at::isFloatingType(weights.scalar_type()),
              "multinomial only supports floating-point dtypes for input, got: ", weights.scalar_type());
  TORCH_CHECK(draws > 0, "cannot sample n_sample <= 0 samples");
  TORCH_CHECK(replacement || draws <= weights.size(-1),
              "cannot sample n_sample > prob_dist.size(-1) samples without replacement");
  constexpr int64_t kMostCategories = int64_t{1} << 24;
  TORCH_CHECK(weights.size(-1) <= kMostCategories, "number of categories cannot exceed 2^24");
  if (weights.numel() == 0) return;
  const int64_t problem = problem_of_weights(weights).item<int64_t>();
  TORCH_CHECK(problem != 1, "probability tensor contains either `inf`, `nan` or element < 0");
  TORCH_CHECK(problem != 2, "invalid multinomial distribution (sum of probabilities <= 0)");
}

/// Weights in the dtype to draw in: that of halves has so few numbers that equal ones would decide.
at::Tensor widened(const at::Tensor& weights) {
  return at::isReducedFloatingType(weights.scalar_type()) ? weights.to(at::kFloat) : weights;
}

/// By where uniform numbers fall among the running sums; never on a category without weight.
at::Tensor drawn_with_replacement(const at::Tensor& weights, int64_t draws, const Generator& generator) {
  const at::Tensor sums = widened(weights).cumsum(-1);
  const at::Tensor total = sums.narrow(-1, sums.size(-1) - 1, 1);
  at::DimVector sizes(weights.sizes());
  sizes.back() = draws;
  const at::Tensor uniform = at::empty(sizes, sums.options()).uniform_(0, 1, generator);
  const at::Tensor below = at::nextafter(total, at::zeros_like(total));  // a product may round up to the total
  return at::searchsorted(sums, at::minimum(uniform * total, below).contiguous(), /*out_int32=*/false, /*right=*/true);
}

/// The first to happen of events that happen at these rates (the exponential race, by which PyTorch draws, too).
at::Tensor drawn_without_replacement(const at::Tensor& weights, int64_t draws, const Generator& generator) {
  const at::Tensor wide = widened(weights), race = wide / at::empty_like(wide).exponential_(1, generator);
  return draws == 1 ? race.argmax(-1, /*keepdim=*/true) : std::get<1>(race.topk(draws));
}

at::Tensor drawn(const at::Tensor& self, int64_t draws, bool replacement, Generator generator) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const c10::DeviceGuard guard(self.device());
  check_weights(self, draws, replacement);
  if (self.numel() == 0) {
    at::DimVector sizes(self.sizes());
    sizes.back() = draws;
    return at::empty(sizes, self.options().dtype(at::kLong));
  }
  if (replacement && draws > 1) return drawn_with_replacement(self, draws, generator);
  return drawn_without_replacement(self, draws, generator);
}

at::Tensor& multinomial_out(const at::Tensor& self, int64_t draws, bool replacement, Generator generator,
                            at::Tensor& out) {
  TORCH_CHECK(out.scalar_type() == at::kLong, "multinomial expects Long tensor out, got: ", out.scalar_type());
  TORCH_CHECK(out.device() == self.device(), "multinomial arguments must have the same device");
  const at::Tensor result = drawn(self, draws, replacement, std::move(generator));
  return out.resize_(result.sizes()).copy_(result);
}

// ---- normal ----

void check_deviations(const at::Tensor& std) {
  TORCH_CHECK(!std.is_complex(), "normal expects standard deviation to be non-complex");
  TORCH_CHECK(std.numel() == 0 || std.min().ge(0).item<bool>(), "normal expects all elements of std >= 0.0");
}

at::Tensor standard_normal(at::IntArrayRef sizes, const at::Tensor& like, const Generator& generator) {
  return at::empty(sizes, like.options()).normal_(0, 1, generator);
}

at::Tensor normal_of_means(const at::Tensor& mean, double std, Generator generator) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const c10::DeviceGuard guard(mean.device());
  TORCH_CHECK(std >= 0.0, "normal expects std >= 0.0, but found std ", std);
  return standard_normal(mean.sizes(), mean, generator).mul_(std).add_(mean);
}

at::Tensor normal_of_deviations(double mean, const at::Tensor& std, Generator generator) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const c10::DeviceGuard guard(std.device());
  check_deviations(std);
  return standard_normal(std.sizes(), std, generator).mul_(std).add_(mean);
}

at::Tensor normal_of_both(const at::Tensor& mean, const at::Tensor& std, Generator generator) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const c10::DeviceGuard guard(mean.device());
  check_deviations(std);
  return standard_normal(at::infer_size(mean.sizes(), std.sizes()), mean, generator).mul_(std).add_(mean);
}

/// Gives normal numbers to `out`. Throws NotImplementedError for integers, as PyTorch's kernels do.
at::Tensor& normal_into(at::Tensor& out, const at::Tensor& drawn) {
  check_same_device(out, drawn);
  TORCH_CHECK_NOT_IMPLEMENTED(!at::isIntegralType(out.scalar_type(), /*includeBool=*/true),
                              "\"normal_kernel_cpu\" not implemented for '", out.scalar_type(), "'");
  return copy_to_out(out, drawn);
}

at::Tensor& normal_of_means_out(const at::Tensor& mean, double std, Generator generator, at::Tensor& out) {
  const at::Tensor broadcast = mean.expand(at::infer_size(mean.sizes(), out.sizes()));  // as PyTorch's kernels
  return normal_into(out, normal_of_means(broadcast, std, std::move(generator)));
}

at::Tensor& normal_of_deviations_out(double mean, const at::Tensor& std, Generator generator, at::Tensor& out) {
  return normal_into(out, normal_of_deviations(mean, std, std::move(generator)));
}

at::Tensor& normal_of_both_out(const at::Tensor& mean, const at::Tensor& std, Generator generator, at::Tensor& out) {
  return normal_into(out, normal_of_both(mean, std, std::move(generator)));
}

/// Fills a tensor with random numbers of a distribution whose parameters are run-time values of the plan: PyTorch's
/// kernel for the CPU, asked for no number, says each time what it has to say of them. The stack holds the tensor, the
/// parameters and the generator.
void random_fill(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  torch::jit::Stack on_cpu(stack->end() - static_cast<ptrdiff_t>(op.schema().arguments().size()), stack->end());
  on_cpu.front() = at::empty({0}, on_cpu.front().toTensor().options().device(at::kCPU));
  on_cpu.back() = c10::IValue();
  op.callBoxed(on_cpu);
  renew(torch::jit::peek(*stack, 0, op.schema().arguments().size()).toTensor());
  eager_kernel(op, keys, stack);
}

/// The same for ``uniform_`` and ``normal_``, which fill complex tensors, too: real and imaginary parts alike. A normal
/// number's variance is the sum of theirs.
void random_fill_of_complex(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  c10::IValue& self = *(stack->end() - static_cast<ptrdiff_t>(op.schema().arguments().size()));
  const at::Tensor whole = self.toTensor();
  if (!whole.is_complex()) return random_fill(op, keys, stack);
  self = at::view_as_real(whole);
  if (op.schema().name() == "aten::normal_") {
    c10::IValue& std = *(stack->end() - 2);
    std = std.toDouble() / std::sqrt(2.0);
  }
  random_fill(op, keys, stack);
  stack->back() = whole;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(outboard, m) { m.def("problem_of_weights(Tensor weights) -> Tensor"); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  for (const char* fill : {"bernoulli_.float", "cauchy_", "exponential_", "geometric_", "log_normal_", "random_",
                           "random_.from", "random_.to"}) {
    m.impl(fill, torch::CppFunction::makeFromBoxedFunction<&random_fill>());
  }
  for (const char* fill : {"normal_", "uniform_"}) {
    m.impl(fill, torch::CppFunction::makeFromBoxedFunction<&random_fill_of_complex>());
  }
  m.impl("multinomial", TORCH_FN(drawn));
  m.impl("multinomial.out", TORCH_FN(multinomial_out));
  m.impl("normal.Tensor_float", TORCH_FN(normal_of_means));
  m.impl("normal.float_Tensor", TORCH_FN(normal_of_deviations));
  m.impl("normal.Tensor_Tensor", TORCH_FN(normal_of_both));
  m.impl("normal.Tensor_float_out", TORCH_FN(normal_of_means_out));
  m.impl("normal.float_Tensor_out", TORCH_FN(normal_of_deviations_out));
  m.impl("normal.Tensor_Tensor_out", TORCH_FN(normal_of_both_out));
}

}  // namespace outboard::aten
