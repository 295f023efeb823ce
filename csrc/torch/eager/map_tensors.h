// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <algorithm>
#include <optional>

namespace outboard::aten {

/// Whether the value is a list with a tensor in it.
inline bool has_tensors(const c10::IValue& value) {
  if (!value.isList()) return false;
  const auto items = value.toListRef();
  return std::any_of(items.begin(), items.end(), [](const c10::IValue& item) { return item.isTensor(); });
}

/// A Tensor?[] as a list of C++'s type. TorchScript's lists have a type of elements of their own, which PyTorch does
/// not take for the same.
inline c10::List<std::optional<at::Tensor>> optional_tensors(const c10::IValue& value) {
  if (value.isOptionalTensorList()) return value.toOptionalTensorList();
  c10::List<std::optional<at::Tensor>> list;
  for (const c10::IValue& item : value.toListRef()) list.push_back(item.toOptional<at::Tensor>());
  return list;
}

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
  if (!has_tensors(value)) return value;
  c10::List<std::optional<at::Tensor>> list = optional_tensors(value).copy();
  for (size_t i = 0; i < list.size(); ++i) {
    const std::optional<at::Tensor> tensor = list.get(i);
    if (tensor.has_value()) list.set(i, function(*tensor));
  }
  return list;
}

}  // namespace outboard::aten
