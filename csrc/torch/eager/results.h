// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include "runtime/plans/executor.h"

namespace outboard::aten {

/// The tensor of a result that is a new allocation, over which it takes its reference.
at::Tensor new_tensor(const Result& result);

/// Has a tensor count writes with another one, whose memory it shares: a backward pass refuses what it is to read and
/// what was written since.
void share_versions(const at::Tensor& view, const at::Tensor& base);

/// A plan's result as a value: a tensor over a new allocation, an input itself or a view of one, or a number.
/// `tensors[i]` is input number i or nullptr.
c10::IValue to_ivalue(const Result& result, c10::ArrayRef<const at::Tensor*> tensors);

}  // namespace outboard::aten
