// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace outboard::aten {

/// Registers the device with PyTorch's accelerator hooks. Call once.
void register_hooks();

}  // namespace outboard::aten
