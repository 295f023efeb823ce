// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

#include "runtime/device.h"

namespace outboard::aten {

/// Statistics, limits, snapshots, raw memory and pins of device memory.
void bind_memory(pybind11::module_& m);

/// Gives every device's allocator what PYTORCH_ALLOC_CONF says. Throws c10::Error for what PyTorch does not accept.
void configure_allocators();

/// Gives the devices of a runtime that is being opened the settings that were read.
void apply_allocator_options(Runtime& runtime);

}  // namespace outboard::aten
