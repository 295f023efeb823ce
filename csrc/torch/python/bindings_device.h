// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

namespace outboard::aten {

/// Adds devices, memory and programs to the module: what `outboard.device` is made of.
void bind_device(pybind11::module_& m);

}  // namespace outboard::aten
