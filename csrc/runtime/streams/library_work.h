// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "outboard/driver.h"

namespace outboard {

class LoadedFunction;

/// A call of a function of the driver's library, or of one that was loaded from bytes, with everything that it is
/// given: what plans make, queues and graphs keep, and drivers are handed. Operands point into it: it is made once, and
/// stays where it is.
class LibraryWork {
 public:
  explicit LibraryWork(std::string name) : name_(std::move(name)) {}
  LibraryWork(const LibraryWork&) = delete;
  LibraryWork& operator=(const LibraryWork&) = delete;

  /// The operator that it carries out.
  const std::string& name() const { return name_; }
  ob_function function() const { return function_; }
  /// Whether the function was loaded from bytes.
  bool is_loaded() const { return loaded_ != nullptr; }
  const std::vector<ob_operand>& operands() const { return operands_; }

  void add_nothing() { operands_.push_back({}); }
  void add_integer(int64_t value) {
    ob_operand& operand = operands_.emplace_back();
    operand.kind = OB_OPERAND_INTEGER;
    operand.integer = value;
  }
  void add_number(double value) {
    ob_operand& operand = operands_.emplace_back();
    operand.kind = OB_OPERAND_NUMBER;
    operand.number = value;
  }
  void add_integers(std::vector<int64_t> values) {
    ob_operand& operand = operands_.emplace_back();
    operand.kind = OB_OPERAND_INTEGERS;
    operand.count = static_cast<uint32_t>(values.size());
    operand.sizes = keep(std::move(values));
  }
  void add_tensor(ob_ptr data, uint32_t dtype, std::vector<int64_t> sizes, std::vector<int64_t> strides, bool result) {
    ob_operand& operand = operands_.emplace_back();
    operand.kind = OB_OPERAND_TENSOR;
    operand.dtype = dtype;
    operand.count = static_cast<uint32_t>(sizes.size());
    operand.is_result = result ? 1 : 0;
    operand.data = data;
    operand.sizes = keep(std::move(sizes));
    operand.strides = keep(std::move(strides));
  }

  /// A number for all that the driver may go by when it is asked for a function: equal for equal operands, and of
  /// others almost never.
  uint64_t key() const;
  /// Asks the driver for the function. False if it has none for such operands. Throws Error for what it reports.
  bool find(const ob_driver& driver, ob_device device);
  /// Where `find` was asked before.
  void set_function(ob_function function) { function_ = function; }
  /// The same of one that was loaded, and stays so while there is a call of it.
  void set_function(std::shared_ptr<const LoadedFunction> loaded);

 private:
  const int64_t* keep(std::vector<int64_t> numbers) { return numbers_.emplace_back(std::move(numbers)).data(); }

  const std::string name_;
  ob_function function_ = nullptr;
  std::shared_ptr<const LoadedFunction> loaded_;
  std::vector<ob_operand> operands_;
  std::deque<std::vector<int64_t>> numbers_;  // which stay where they are
};

}  // namespace outboard
