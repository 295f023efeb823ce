// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

namespace outboard::aten {

/// Statistics, limits, snapshots, raw memory and pins of device memory.
void bind_memory(pybind11::module_& m);

/// Gives every device's allocator what PYTORCH_ALLOC_CONF says. Throws c10::Error for what PyTorch does not accept.
void configure_allocators();

}  // namespace outboard::aten
