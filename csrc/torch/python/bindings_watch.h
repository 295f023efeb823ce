// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

namespace outboard::aten {

/// Adds to the module `Watch`, which tells whether Python objects and tensors are still what and where they were.
void bind_watch(pybind11::module_& m);

}  // namespace outboard::aten
