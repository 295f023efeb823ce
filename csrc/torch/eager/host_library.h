// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace outboard::aten {

/// Gives plans the host's libraries: every "aten::..." call runs PyTorch's CPU kernel in stream order, in place
/// where the host can address device memory.
void register_host_library();

}  // namespace outboard::aten
