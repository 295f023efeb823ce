// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace outboard::aten {

/// Gives `torch.accelerator.Graph` its implementation for the device. PyTorch finds it by the device's name: call this
/// after the device was renamed. Repeated calls do nothing.
void register_graphs();

}  // namespace outboard::aten
