// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace outboard::aten {

/// Has plans find what computes on the device where the driver's library refuses a call: a plan of kernels of ours,
/// made when it is first needed.
void register_refused_calls();

}  // namespace outboard::aten
