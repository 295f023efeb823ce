// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/DeviceType.h>

namespace outboard::aten {

/// What PyTorch calls our kind of devices, whatever name users give it.
inline constexpr auto kOurs = c10::DeviceType::PrivateUse1;

}  // namespace outboard::aten
