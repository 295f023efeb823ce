// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace outboard::aten {

/// Has plans find PyTorch's CPU operators among the host's functions: every "aten::..." call runs PyTorch's CPU kernel
/// in stream order, in place where the host can address device memory.
void register_cpu_operators();

}  // namespace outboard::aten
