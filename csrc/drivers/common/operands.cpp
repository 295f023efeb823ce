// SPDX-License-Identifier: Apache-2.0
#include "common/operands.h"

namespace outboard::common {
namespace {

template <typename T>
void add(std::string& key, const T* values, size_t count = 1) {
  key.append(reinterpret_cast<const char*>(values), count * sizeof(T));
}

void add_layout(std::string& key, const ob_operand& tensor) {
  const std::vector<uint32_t> order = order_of(tensor);
  add(key, order.data(), order.size());
  for (uint32_t i = 0; i < tensor.count; ++i) key += tensor.strides[i] == 1 ? '1' : 'n';
}

}  // namespace

std::string pattern_of(const std::vector<ob_operand>& operands) {
  std::string key;
  for (const ob_operand& operand : operands) {
    add(key, &operand.kind);
    add(key, &operand.dtype);
    add(key, &operand.count);
    add(key, &operand.is_result);
    add(key, &operand.integer);
    add(key, &operand.number);
    if (operand.kind == OB_OPERAND_INTEGERS) add(key, operand.sizes, operand.count);
    if (operand.kind == OB_OPERAND_TENSOR) add_layout(key, operand);
  }
  return key;
}

std::string shapes_of(const std::vector<ob_operand>& operands) {
  std::string key;
  for (const ob_operand& operand : operands) {
    if (operand.kind != OB_OPERAND_TENSOR) continue;
    add(key, operand.sizes, operand.count);
    add(key, operand.strides, operand.count);
  }
  return key;
}

}  // namespace outboard::common
