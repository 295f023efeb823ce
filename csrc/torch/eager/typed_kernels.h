// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/library.h>

#include <optional>

#include "torch/eager/eager_operator.h"

namespace outboard::aten {

/// The kernel of an operator with one of the commonest schemas, which PyTorch calls with its C++ types: no stack, no
/// counting of tensors. Does what `eager_kernel` does. Empty for all other schemas.
std::optional<torch::CppFunction> typed_kernel(const Operator& op);

}  // namespace outboard::aten
