// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace outboard::aten {

/// Makes PyTorch go as far as the dispatcher with a device type of its own that this build of it does not have, instead
/// of failing before with an error that does not help. There, a profile says what to write instead. No-op for a type
/// that is there. Throws c10::Error for a name that is no device type.
void admit_absent_device_type(const std::string& name);

}  // namespace outboard::aten
