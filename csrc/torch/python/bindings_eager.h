// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

namespace outboard::aten {

/// Registers the eager kernels with PyTorch and adds to the module what Python needs of them: set_compiler, Plan,
/// fallbacks, eager_stats and their resets, set_fallback_policy.
void bind_eager(pybind11::module_& m);

}  // namespace outboard::aten
