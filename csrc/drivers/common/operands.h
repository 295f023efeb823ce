// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
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

/// Operands with all that they point to but tensors' elements, for who runs later.
class KeptOperands {
 public:
  KeptOperands(const ob_operand* operands, uint32_t count) : list_(operands, operands + count) {
    const auto keep = [this](const int64_t* values, uint32_t number) {
      return numbers_.emplace_back(values, values + number).data();
    };
    for (ob_operand& operand : list_) {
      const bool tensor = operand.kind == OB_OPERAND_TENSOR;
      if (tensor || operand.kind == OB_OPERAND_INTEGERS) operand.sizes = keep(operand.sizes, operand.count);
      if (tensor) operand.strides = keep(operand.strides, operand.count);
    }
  }
  KeptOperands(KeptOperands&&) = default;

  std::vector<ob_operand>& list() { return list_; }
  const std::vector<ob_operand>& list() const { return list_; }

 private:
  std::vector<ob_operand> list_;
  std::deque<std::vector<int64_t>> numbers_;  // which stay where they are
};

/// What is the same of operands for which our drivers have one function: kinds, dtypes, dimensions, all that is no
/// tensor, the order of strides and which of them are 1. As a key.
std::string pattern_of(const std::vector<ob_operand>& operands);

/// Sizes and strides of all tensors, as a key for what a function prepares for them.
std::string shapes_of(const std::vector<ob_operand>& operands);

}  // namespace outboard::common
