// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "outboard/driver.h"

namespace outboard::common {

/// What must be the same of operands for which one library function serves (`library_call` in driver.h): kinds, dtypes,
/// dimensions, all that is no tensor, the order of strides and which of them are 1. As a key.
std::string pattern_of(const std::vector<ob_operand>& operands);

/// Sizes and strides of all tensors, as a key for what a function prepares for them.
std::string shapes_of(const std::vector<ob_operand>& operands);

}  // namespace outboard::common
