// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "outboard/driver.h"

namespace outboard::host {

struct OneDnnApi;

/// Functions of oneDNN (version 3, its C interface), which is opened when the driver starts: products of matrices and
/// convolutions. Without oneDNN there are no functions.
class OneDnn {
 public:
  /// The library that OUTBOARD_HOST_ONEDNN names, else `libdnnl.so.3`; nullptr if it cannot be opened or is of another
  /// version. Never deleted: its threads go on.
  static OneDnn* load();

  /// Name and version.
  const std::string& name() const { return name_; }

  /// A function for operands like these, ready for their sizes.
  class Function;
  /// nullptr if there is none. The same for all that it serves; never deleted.
  Function* find(const std::string& name, const std::vector<ob_operand>& operands, unsigned threads);

 private:
  explicit OneDnn(std::unique_ptr<OneDnnApi> api);
  ~OneDnn() = delete;

  std::unique_ptr<OneDnnApi> api_;
  std::string name_;
  std::mutex mutex_;
  std::unordered_map<std::string, std::unique_ptr<Function>> functions_;
};

/// One operator, with a primitive for each set of sizes. Thread-safe; calls wait for one another.
class OneDnn::Function {
 public:
  Function(const OneDnnApi& api, std::string name, unsigned threads);
  Function(const Function&) = delete;
  Function& operator=(const Function&) = delete;

  /// False if oneDNN cannot do it for these sizes and strides.
  bool prepare(const std::vector<ob_operand>& operands);
  /// Computes, and returns when it is done. Throws std::runtime_error with oneDNN's status if it cannot.
  void run(const std::vector<ob_operand>& operands);

 private:
  struct Primitive;

  Primitive* primitive_for(const std::vector<ob_operand>& operands);

  const OneDnnApi& api_;
  const std::string name_;
  const unsigned threads_;
  std::mutex mutex_;
  std::unordered_map<std::string, std::unique_ptr<Primitive>> primitives_;  // by sizes and strides
};

}  // namespace outboard::host
