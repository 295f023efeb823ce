// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include "runtime/memory/host_buffers.h"

namespace outboard::aten {

/// A CPU tensor with the geometry of `like` over a host copy of its whole storage.
at::Tensor over_host_copy(const HostBuffer& copy, const at::Tensor& like);

/// Writes `value` into every element of a dense tensor through the driver's fill, and returns true; false if the
/// tensor has gaps, overlaps itself or is a lazy conjugate or negative (then nothing is done). Raises as PyTorch on
/// the CPU for a value that the dtype cannot hold.
bool try_fill(const at::Tensor& self, const at::Scalar& value);

/// Raises as PyTorch does for tensors of two devices.
void check_same_device(const at::Tensor& a, const at::Tensor& b);

/// Gives a result to the `out` of an operator, which may have had another shape. Returns `out`.
at::Tensor& copy_to_out(at::Tensor& out, const at::Tensor& result);

}  // namespace outboard::aten
