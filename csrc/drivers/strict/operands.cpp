// SPDX-License-Identifier: Apache-2.0
#include "strict/operands.h"

#include <algorithm>

namespace outboard::strict {

uint64_t element_bytes(uint32_t dtype) {
  constexpr uint8_t kBytes[] = {1, 1, 2, 4, 8, 2, 4, 8, 4, 8, 16, 1, 0, 0, 0,
                                2, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0,  0, 2, 4, 8};
  return dtype < sizeof(kBytes) ? kBytes[dtype] : 0;
}

namespace {

using common::order_of;

std::string problem_of(const ob_operand& tensor) {
  if (element_bytes(tensor.dtype) == 0) return "has an unknown dtype";
  for (uint32_t i = 0; i < tensor.count; ++i) {
    if (tensor.sizes[i] <= 0 || tensor.strides[i] < 0) return "has a size of 0, or a negative size or stride";
  }
  int64_t reach = 1;  // elements that the dimensions further in span
  const std::vector<uint32_t> order = order_of(tensor);
  for (auto place = order.rbegin(); place != order.rend(); ++place) {
    if (tensor.sizes[*place] <= 1) continue;
    if (tensor.strides[*place] < reach) return "has elements that share memory";
    reach = tensor.strides[*place] * tensor.sizes[*place];
  }
  return "";
}

std::string difference_of(const ob_operand& given, const ob_operand& found) {
  if (given.kind != found.kind || given.is_result != found.is_result) return "is of another kind";
  if (given.kind == OB_OPERAND_INTEGER && given.integer != found.integer) return "is another integer";
  if (given.kind == OB_OPERAND_NUMBER && !(given.number == found.number)) return "is another number";
  if (given.count != found.count || given.dtype != found.dtype) return "has another dtype or rank";
  if (given.kind == OB_OPERAND_INTEGERS && !std::equal(given.sizes, given.sizes + given.count, found.sizes)) {
    return "has other integers";
  }
  if (given.kind != OB_OPERAND_TENSOR) return "";
  if (!std::equal(given.sizes, given.sizes + given.count, found.sizes)) return "has other sizes";
  if (!std::equal(given.strides, given.strides + given.count, found.strides)) return "has other strides";
  if (found.data != 0 && given.data % found.data != 0) return "is not aligned as it was said to be";
  return "";
}

}  // namespace

std::string Operands::problem() const {
  for (size_t i = 0; i < list().size(); ++i) {
    const std::string found = list()[i].kind == OB_OPERAND_TENSOR ? problem_of(list()[i]) : "";
    if (!found.empty()) return "operand " + std::to_string(i) + " " + found;
  }
  return "";
}

std::string Operands::difference(const Operands& found) const {
  if (list().size() != found.list().size()) return "another number of operands than it was found for";
  for (size_t i = 0; i < list().size(); ++i) {
    const std::string other = difference_of(list()[i], found.list()[i]);
    if (!other.empty()) return "operand " + std::to_string(i) + " " + other;
  }
  return "";
}

std::string Operands::overlap() const {
  const auto end = [](const ob_operand& operand) { return operand.data + bytes(operand); };
  for (size_t i = 0; i < list().size(); ++i) {
    const ob_operand& result = list()[i];
    for (size_t j = 0; result.is_result != 0 && j < i; ++j) {
      const ob_operand& other = list()[j];
      const bool apart = other.kind != OB_OPERAND_TENSOR || result.data >= end(other) || other.data >= end(result);
      if (!apart) return "result " + std::to_string(i) + " shares memory with operand " + std::to_string(j);
    }
  }
  return "";
}

uint64_t Operands::bytes(const ob_operand& operand) {
  if (operand.kind != OB_OPERAND_TENSOR) return 0;
  uint64_t last = 0;
  for (uint32_t i = 0; i < operand.count; ++i) {
    last += static_cast<uint64_t>((operand.sizes[i] - 1) * operand.strides[i]);
  }
  return (last + 1) * element_bytes(operand.dtype);
}

}  // namespace outboard::strict
