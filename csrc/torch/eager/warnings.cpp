// SPDX-License-Identifier: Apache-2.0
#include "torch/eager/warnings.h"

#include <ATen/WrapDimUtils.h>
#include <ATen/core/Tensor.h>

#include <string>

#include "torch/eager/eager_operator.h"

namespace outboard::aten {
namespace {

/// The operator's name without its namespace and overload.
std::string short_name(const Operator& op) { return op.handle.schema().name().substr(6); }

/// Elements that each result is made of; 0 if there are no results.
int64_t reduced(const at::Tensor& self, const c10::IValue& dims) {
  if (dims.isNone() || dims.toIntVector().empty()) return self.numel();
  int64_t count = 1;
  at::DimVector rest(self.sizes());
  for (const int64_t dim : dims.toIntVector()) {
    const int64_t place = at::maybe_wrap_dim(dim, self.dim());
    if (self.dim() == 0) break;
    count *= self.size(place);
    rest[static_cast<size_t>(place)] = 1;
  }
  return c10::multiply_integers(rest) == 0 ? 0 : count;
}

}  // namespace

void degrees_of_freedom(const Operator& op, c10::ArrayRef<c10::IValue> arguments) {
  const double correction = arguments[2].isNone() ? 1 : arguments[2].toScalar().toDouble();
  if (static_cast<double>(reduced(arguments[0].toTensor(), arguments[1])) > correction) return;
  TORCH_WARN(
      short_name(op),
      "(): degrees of freedom is <= 0. Correction should be strictly less than the reduction factor (input numel "
      "divided by output numel).");
}

void byte_condition(const Operator& /*op*/, c10::ArrayRef<c10::IValue> arguments) {
  if (arguments[0].toTensor().scalar_type() != at::kByte) return;
  TORCH_WARN_ONCE(
      "where received a uint8 condition tensor. This behavior is deprecated and will be removed in a future version of "
      "PyTorch. Use a boolean condition instead.");
}

void scatter_reduction(const Operator& op, c10::ArrayRef<c10::IValue> /*arguments*/) {
  const std::string& overload = op.handle.schema().overload_name();
  if (overload != "reduce" && overload != "reduce_out") return;
  TORCH_WARN_ONCE(
      "The reduce argument of torch.scatter with Tensor src is deprecated and will be removed in a future PyTorch "
      "release. Use torch.scatter_reduce instead for more reduction options.");
}

void beta(const Operator& op, c10::ArrayRef<c10::IValue> /*arguments*/) {
  TORCH_WARN_ONCE(short_name(op), "() is in beta and the API may change at any time.");
}

}  // namespace outboard::aten
