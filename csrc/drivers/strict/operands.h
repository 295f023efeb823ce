// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "common/operands.h"
#include "outboard/driver.h"

namespace outboard::strict {

/// Bytes of an element, by the number of its dtype (c10::ScalarType); 0 for one that no device has.
uint64_t element_bytes(uint32_t dtype);

/// Operands of a library function, and what driver.h asks of them.
class Operands : public common::KeptOperands {
 public:
  using KeptOperands::KeptOperands;
  /// What is wrong with them by themselves, or "".
  std::string problem() const;
  /// In what they are not like those that a function was found for, or "".
  std::string difference(const Operands& found) const;
  /// Which result shares memory with another operand, or "".
  std::string overlap() const;
  /// From a tensor's element 0 to the end of its last, in bytes; 0 of what is no tensor.
  static uint64_t bytes(const ob_operand& operand);
};

}  // namespace outboard::strict
