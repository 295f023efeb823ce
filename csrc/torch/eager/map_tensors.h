// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <optional>

namespace outboard::aten {

/// The value with `function` applied to each tensor in it: a Tensor, Tensor[] or Tensor?[]. Any other value, an absent
/// tensor included, comes back as it is.
template <typename Function>
c10::IValue map_tensors(const c10::IValue& value, Function&& function) {
  if (value.isTensor()) return function(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(function(tensor));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
      list.push_back(tensor.has_value() ? std::optional<at::Tensor>(function(*tensor)) : std::nullopt);
    }
    return list;
  }
  return value;
}

}  // namespace outboard::aten
