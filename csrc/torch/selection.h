// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

namespace outboard::aten {

/// Places of the true elements of a mask (bool, on the device, of any shape) in row-major order: int64, [how many].
/// Waits for the device, which alone knows how many.
at::Tensor places_of(const at::Tensor& mask);

/// Arguments of the operators that index with tensors: masks become the places of their true elements, as PyTorch has
/// it on every device. Throws IndexError for a mask whose shape is not that of the dimensions it stands for.
c10::List<std::optional<at::Tensor>> places_for_masks(const at::Tensor& self,
                                                      const c10::List<std::optional<at::Tensor>>& indices);

}  // namespace outboard::aten
