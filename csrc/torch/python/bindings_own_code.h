// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

namespace outboard::aten {

/// What code of users' and vendors' own is given: borrowed tensors, and launches of kernels that they bring.
void bind_own_code(pybind11::module_& m);

}  // namespace outboard::aten
