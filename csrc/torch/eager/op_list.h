// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace outboard::aten {

/// Registers `eager_kernel` for the operators that PyTorch's composite kernels would otherwise take apart.
/// Call once, after all of aten is registered.
void register_operators();

}  // namespace outboard::aten
