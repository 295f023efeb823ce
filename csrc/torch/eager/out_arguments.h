// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "torch/eager/eager_arguments.h"
#include "torch/eager/eager_operator.h"

namespace outboard::aten {

/// Gives `out=` tensors the form of the result. True if one changed. Also where wrong arguments are found: the meta
/// kernel raises PyTorch's own errors.
bool resize_outputs(const Operator& op, Arguments& arguments);

/// Gives a tensor that was resized these sizes and strides, which may leave gaps, and memory that holds them.
void lay_out(const at::Tensor& tensor, at::IntArrayRef sizes, at::IntArrayRef strides);

/// Writes a result to an `out=` tensor, which takes the result's form if it has to be resized.
void write_out(const at::Tensor& out, const at::Tensor& result);

}  // namespace outboard::aten
