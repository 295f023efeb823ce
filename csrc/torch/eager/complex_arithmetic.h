// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/stack.h>

#include "torch/eager/eager_operator.h"

namespace outboard::aten {

/// Computes with complex numbers, of which PyTorch's compiler has no loops: by operators over pairs of real numbers,
/// which the device compiles (compiler/adapter/operators/complex_pairs.py), or over real and imaginary parts. The
/// arguments, on top of the stack, give way to the results. False, and nothing is done, for any other call.
bool compute_complex(const Operator& op, torch::jit::Stack* stack);

}  // namespace outboard::aten
