// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "outboard/driver.h"

namespace outboard::strict {

/// Bytes of an element, by the number of its dtype (c10::ScalarType); 0 for one that no device has.
uint64_t element_bytes(uint32_t dtype);

/// Operands of a library function with all that they point to, and what driver.h asks of them.
class Operands {
 public:
  Operands(const ob_operand* operands, uint32_t count);

  std::vector<ob_operand>& list() { return list_; }
  /// What is wrong with them by themselves, or "".
  std::string problem() const;
  /// In what they are not like those that a function was found for, or "".
  std::string difference(const Operands& found) const;
  /// From a tensor's element 0 to the end of its last, in bytes; 0 of what is no tensor.
  static uint64_t bytes(const ob_operand& operand);

 private:
  std::vector<ob_operand> list_;
  std::deque<std::vector<int64_t>> numbers_;  // which stay where they are
};

}  // namespace outboard::strict
