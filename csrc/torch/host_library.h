// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "torch/eager_operator.h"

namespace outboard::aten {

/// Gives plans the host's libraries: every "aten::..." call runs PyTorch's CPU kernel in stream order, in place
/// where the host can address device memory; and "outboard::check_status", which turns a kernel's status word into
/// IndexError (RuntimeError for gather and scatter, as PyTorch on CPU does).
void register_host_library();

/// The eager operator that the calling thread runs, while in scope; library functions use it to word errors.
class CurrentOperator {
 public:
  explicit CurrentOperator(const Operator& op);
  ~CurrentOperator();
  CurrentOperator(const CurrentOperator&) = delete;
  CurrentOperator& operator=(const CurrentOperator&) = delete;
  /// nullptr outside eager operators.
  static const Operator* get();

 private:
  const Operator* previous_;
};

}  // namespace outboard::aten
