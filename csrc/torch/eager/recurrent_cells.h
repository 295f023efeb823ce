// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/stack.h>

#include "torch/eager/eager_operator.h"

namespace outboard::aten {

/// Takes a cell of a recurrent network apart. PyTorch calls these operators on every device but the CPU, which has no
/// kernels for them. The arguments, on top of the stack, give way to the results. False, and nothing is done, for any
/// other operator.
bool compute_cell(const Operator& op, torch::jit::Stack* stack);

}  // namespace outboard::aten
