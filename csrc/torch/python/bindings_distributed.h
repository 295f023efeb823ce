// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

namespace outboard::distributed {

/// Adds to the module what makes process groups.
void bind(pybind11::module_& m);

}  // namespace outboard::distributed
