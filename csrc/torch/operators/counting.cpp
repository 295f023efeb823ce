// SPDX-License-Identifier: Apache-2.0
#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "torch/eager/copy.h"

/// Histograms: bincount and histc.
namespace outboard::aten {
namespace {

/// The least and the greatest element, as one transfer. Doubles are exact for what bins are numbered by.
std::pair<at::Scalar, at::Scalar> extremes(const at::Tensor& values, at::ScalarType dtype) {
  const at::Tensor known = at::stack({values.amin(), values.amax()}).to(dtype).cpu();
  return {known[0].item(), known[1].item()};
}

at::Tensor bincount(const at::Tensor& self, const std::optional<at::Tensor>& weights, int64_t minlength) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const c10::DeviceGuard guard(self.device());
  TORCH_CHECK_NOT_IMPLEMENTED(at::isIntegralType(self.scalar_type(), /*includeBool=*/false),
                              "bincount is not implemented for ", self.scalar_type());
  TORCH_CHECK(minlength >= 0, "minlength should be >= 0");
  TORCH_CHECK(self.dim() == 1, "bincount only supports 1-d non-negative integral inputs.");
  const bool weighted = weights.has_value() && weights->defined();
  const at::TensorOptions longs = self.options().dtype(at::kLong);
  if (self.numel() == 0) return at::zeros({minlength}, longs);
  TORCH_CHECK(!weighted || (weights->dim() == 1 && weights->size(0) == self.size(0)),
              "weights should be 1-d and have the same length as input");
  const auto [least, greatest] = extremes(self, at::kLong);
  TORCH_CHECK(least.toLong() >= 0, "bincount only supports 1-d non-negative integral inputs.");
  const int64_t size = std::max(greatest.toLong() + 1, minlength);
  const at::Tensor bins = self.to(at::kLong);
  if (!weighted) return at::zeros({size}, longs).scatter_add_(0, bins, at::ones_like(bins));
  const at::ScalarType dtype = weights->scalar_type() == at::kFloat ? at::kFloat : at::kDouble;
  return at::zeros({size}, self.options().dtype(dtype)).scatter_add_(0, bins, weights->to(dtype).contiguous());
}

/// The edges of a histogram: those given or, if they are equal, those of the data.
std::pair<double, double> edges(const at::Tensor& self, double low, double high) {
  if (low == high && self.numel() > 0) {
    const auto [least, greatest] = extremes(self, at::kDouble);
    low = least.toDouble();
    high = greatest.toDouble();
  }
  if (low == high) {
    low -= 1;
    high += 1;
  }
  TORCH_CHECK(std::isfinite(low) && std::isfinite(high), "histc: range of [", low, ", ", high, "] is not finite");
  TORCH_CHECK(low < high, "torch.histc: max must be larger than min");
  return {low, high};
}

/// Integers, too, as on CUDA: experts of a mixture are counted so.
at::Tensor histogram(const at::Tensor& self, int64_t bins, const at::Scalar& min, const at::Scalar& max) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const c10::DeviceGuard guard(self.device());
  TORCH_CHECK_NOT_IMPLEMENTED(!self.is_complex() && self.scalar_type() != at::kBool, "histc is not implemented for ",
                              self.scalar_type());
  TORCH_CHECK(bins > 0, "histc: bins must be > 0");
  const auto [low, high] = edges(self, min.toDouble(), max.toDouble());
  const bool integral = at::isIntegralType(self.scalar_type(), /*includeBool=*/false);
  const bool wide = self.scalar_type() == at::kDouble;
  const at::ScalarType dtype = integral ? at::kLong : wide ? at::kDouble : at::kFloat;
  const at::Tensor values = self.reshape(-1).to(dtype);
  const at::Scalar from = integral ? at::Scalar(static_cast<int64_t>(low)) : at::Scalar(low);
  const at::Scalar span = integral ? at::Scalar(static_cast<int64_t>(high - low)) : at::Scalar(high - low);
  const at::Tensor inside = values.ge(low).logical_and_(values.le(high));
  const at::Tensor places = values.sub(from).mul(bins).div(span, "trunc").to(at::kLong).clamp_(0, bins - 1);
  const at::Tensor counts = at::zeros({bins}, self.options().dtype(at::kLong));
  counts.scatter_add_(0, at::where(inside, places, 0), inside.to(at::kLong));
  return counts.to(self.scalar_type());
}

at::Tensor& histc_out(const at::Tensor& self, int64_t bins, const at::Scalar& min, const at::Scalar& max,
                      at::Tensor& out) {
  check_same_device(self, out);
  TORCH_CHECK(out.dtype() == self.dtype(),
              "torch.histogram: input tensor and hist tensor should have the same dtype, but got input ", self.dtype(),
              " and hist ", out.dtype());
  const at::Tensor result = histogram(self, bins, min, max);
  return copy_to_out(out, result);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("bincount", TORCH_FN(bincount));
  m.impl("histc", TORCH_FN(histogram));
  m.impl("histc.out", TORCH_FN(histc_out));
}

}  // namespace outboard::aten
