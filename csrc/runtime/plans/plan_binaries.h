// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "runtime/plans/plan.h"

namespace outboard {

class Device;

/// Hands binaries of a plan's programs, in order and made by a device of the same cache key, to a device's program
/// cache. None, or one for each program. Throws Error(OB_INVALID_ARGUMENT) for another number.
void offer_binaries(const Plan& plan, Device& device, const std::vector<std::string>& binaries);

/// The binaries of a plan's programs, in order, as a device made them for an Executable of the plan. Empty where its
/// driver gives none.
std::vector<std::string> take_binaries(const Plan& plan, Device& device);

}  // namespace outboard
