// SPDX-License-Identifier: Apache-2.0
#include <ATen/Functions.h>
#include <torch/library.h>

#include <tuple>

/// What PyTorch makes of other operators, or for all devices alike, with kernels that read memory or share it, as only
/// the CPU's may.
namespace outboard::aten {
namespace {

/// Two numbers, on the CPU, from all elements.
std::tuple<at::Tensor, at::Tensor> choose_qparams(const at::Tensor& input, int64_t numel, int64_t n_bins, double ratio,
                                                  int64_t bit_width) {
  return at::choose_qparams_optimized(input.cpu(), numel, n_bins, ratio, bit_width);
}

/// A copy at once of all that the storage holds: a device's allocation cannot be shared until somebody writes.
at::Tensor lazy_clone(const at::Tensor& self) {
  const auto elements = static_cast<int64_t>(self.storage().nbytes() / self.element_size());
  const at::Tensor whole = self.as_strided({elements}, {1}, 0).clone();
  return whole.as_strided(self.sizes(), self.strides(), self.storage_offset());
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("choose_qparams_optimized", TORCH_FN(choose_qparams));
  m.impl("_lazy_clone", TORCH_FN(lazy_clone));
}

}  // namespace outboard::aten
