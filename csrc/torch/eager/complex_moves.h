// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/stack.h>

#include "torch/eager/eager_operator.h"

namespace outboard::aten {

/// Carries out an operator that only moves elements (`OperatorFacts::moves`) on complex ones, of which the compiler has
/// none: on integers as wide, or, where there are none as wide, on real and imaginary parts one after the other. The
/// arguments, on top of the stack, give way to the results. False, and nothing is done, for any other call.
bool move_complex(const Operator& op, torch::jit::Stack* stack);

}  // namespace outboard::aten
