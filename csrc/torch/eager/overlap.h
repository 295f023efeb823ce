// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include "torch/eager/eager_arguments.h"
#include "torch/eager/eager_operator.h"

namespace outboard::aten {

/// Before a call that writes: exchanges arguments that are read and overlap what is written for copies, unless they are
/// the very same elements of a pointwise operator. Where the CPU raises for an overlap, its own kernel says so. False:
/// the CPU allows a target that overlaps itself, and only it knows in which order to write.
bool resolve_overlap(const Operator& op, Arguments& arguments);

/// Whether a tensor shares memory with one that the operator reads.
bool is_read(const Operator& op, Arguments& arguments, const at::Tensor& target);

}  // namespace outboard::aten
