// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <map>
#include <string>

#include "torch/eager_operator.h"

namespace outboard::aten {

/// What happens when an operator can only run on the CPU.
enum class FallbackPolicy : int {
  kAllow,  ///< run; one log line per operator
  kWarn,   ///< run; a warning each time
  kError   ///< raise NotImplementedError
};

void set_fallback_policy(FallbackPolicy policy);

/// Counts one fallback of `name` and applies the policy. Throws c10::NotImplementedError under kError.
void note_fallback(const std::string& name);

/// Fallbacks so far, by operator.
std::map<std::string, int64_t> fallback_counts();
void reset_fallback_counts();

/// Runs `op` with PyTorch's CPU kernel on the arguments on top of the stack and leaves its results there, on
/// `device`. Where the host can address device memory the tensors are used in place, else they are copied to the CPU
/// and what was written is copied back. Counted as a fallback.
void run_on_cpu(const Operator& op, c10::DeviceIndex device, torch::jit::Stack* stack);

/// Runs `op` on CPU tensors of zeros shaped like the arguments, for its checks alone: whatever PyTorch finds wrong with
/// the call on the CPU is raised. Does nothing for large arguments, and accepts element types that only the CPU lacks.
/// True if the CPU's kernel ran.
bool rehearse_on_cpu(const Operator& op, c10::ArrayRef<c10::IValue> arguments);

/// As `rehearse_on_cpu`, for large arguments also.
bool rehearse_large_on_cpu(const Operator& op, c10::ArrayRef<c10::IValue> arguments);

/// As `rehearse_on_cpu`, for what PyTorch says of the numbers among the arguments, however large the tensors are: of
/// a pointwise operator one element tells.
void rehearse_numbers_on_cpu(const Operator& op, c10::ArrayRef<c10::IValue> arguments);

}  // namespace outboard::aten
