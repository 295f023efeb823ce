// SPDX-License-Identifier: Apache-2.0
#include "torch/distributed/terms/reduction.h"

#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>

namespace outboard::distributed {

Reduction::Reduction(const c10d::ReduceOp& asked) : op_(asked) {
  if (asked != c10d::ReduceOp::PREMUL_SUM) return;
  const auto* scale = dynamic_cast<c10d::PreMulSumSupplement*>(asked.supplement_.get());
  TORCH_CHECK_VALUE(scale != nullptr, "ReduceOp.PREMUL_SUM needs a factor");
  op_ = c10d::ReduceOp(c10d::ReduceOp::SUM);
  factor_ = scale->tensor_factor.defined() ? scale->tensor_factor.item<double>() : scale->double_factor;
}

c10d::ReduceOp Reduction::of(at::ScalarType dtype) const {
  if (is_mean_of_integers(dtype)) return c10d::ReduceOp(c10d::ReduceOp::SUM);
  if (dtype != at::kBool) return op_;
  if (op_ == c10d::ReduceOp::SUM) return c10d::ReduceOp(c10d::ReduceOp::MAX);
  if (op_ == c10d::ReduceOp::PRODUCT) return c10d::ReduceOp(c10d::ReduceOp::MIN);
  return op_;
}

void Reduction::require(const at::Tensor& tensor) const {
  TORCH_CHECK_TYPE(tensor.scalar_type() != at::kBool || op_ != c10d::ReduceOp::AVG,
                   "Cannot use ReduceOp.AVG with Boolean inputs");
  TORCH_CHECK_VALUE(!tensor.is_complex() || c10d::isComplexViewAsRealAllowed(op_),
                    "this reduction is not defined for complex tensors");
  switch (c10::toRealValueType(tensor.scalar_type())) {
    case at::kFloat:
    case at::kDouble:
    case at::kHalf:
    case at::kBFloat16:
    case at::kChar:
    case at::kByte:
    case at::kBool:
    case at::kInt:
    case at::kLong:
      return;
    default:
      TORCH_CHECK_TYPE(false, "Reductions across ranks are not there for ", tensor.scalar_type(),
                       ": convert the tensor to another dtype");
  }
}

void Reduction::scale(const at::Tensor& tensor) const {
  if (factor_.has_value()) tensor.mul_(*factor_);
}

void Reduction::finish(const at::Tensor& tensor, int ranks) const {
  if (is_mean_of_integers(tensor.scalar_type())) tensor.div_(ranks, "trunc");
}

void Reduction::fold(const at::Tensor& result, const at::Tensor& all) const {
  scale(all);
  result.copy_(all[0]);
  for (int64_t row = 1; row < all.size(0); ++row) add(result, all[row]);
  const auto ranks = static_cast<int>(all.size(0));
  finish(result, ranks);
  if (op_ == c10d::ReduceOp::AVG && !is_mean_of_integers(result.scalar_type())) result.div_(ranks);
}

bool Reduction::is_mean_of_integers(at::ScalarType dtype) const {
  return op_ == c10d::ReduceOp::AVG && c10::isIntegralType(dtype, /*includeBool=*/false);
}

void Reduction::add(const at::Tensor& result, const at::Tensor& other) const {
  at::Tensor target = result;
  switch (op_.op_) {
    case c10d::ReduceOp::SUM:
    case c10d::ReduceOp::AVG:
      target.add_(other);
      return;
    case c10d::ReduceOp::PRODUCT:
      target.mul_(other);
      return;
    case c10d::ReduceOp::MIN:
      at::minimum_out(target, target, other);
      return;
    case c10d::ReduceOp::MAX:
      at::maximum_out(target, target, other);
      return;
    case c10d::ReduceOp::BAND:
      target.bitwise_and_(other);
      return;
    case c10d::ReduceOp::BOR:
      target.bitwise_or_(other);
      return;
    case c10d::ReduceOp::BXOR:
      target.bitwise_xor_(other);
      return;
    default:
      TORCH_CHECK(false, "Unhandled ReduceOp");
  }
}

}  // namespace outboard::distributed
