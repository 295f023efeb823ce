// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "outboard/driver.h"

namespace outboard::common {

/// A tensor's dimensions from the outermost to the innermost: by stride, and among equal ones by place.
inline std::vector<uint32_t> order_of(const ob_operand& tensor) {
  std::vector<uint32_t> order(tensor.count);
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return tensor.strides[a] > tensor.strides[b]; });
  return order;
}

/// What is the same of operands for which our drivers have one function: kinds, dtypes, dimensions, all that is no
/// tensor, the order of strides and which of them are 1. As a key.
std::string pattern_of(const std::vector<ob_operand>& operands);

/// Sizes and strides of all tensors, as a key for what a function prepares for them.
std::string shapes_of(const std::vector<ob_operand>& operands);

}  // namespace outboard::common
