// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/plans/plan.h"

namespace outboard {

/// For each step the inputs, tensors all, that neither a later step nor an output uses. A caller that owns its inputs
/// may give their memory back when that step was submitted.
std::vector<std::vector<uint32_t>> inputs_ending_at(const Plan& plan);

}  // namespace outboard
