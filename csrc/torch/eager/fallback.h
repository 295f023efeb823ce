// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <functional>
#include <map>
#include <string>

#include "torch/eager/eager_operator.h"
#include "torch/eager/unheard.h"

namespace outboard::aten {

/// What happens when an operator can only run on the CPU.
enum class FallbackPolicy : int {
  kAllow,  ///< run; one log line per operator
  kWarn,   ///< run; a warning each time
  kError   ///< raise NotImplementedError
};

void set_fallback_policy(FallbackPolicy policy);

/// Why an operator runs on the CPU.
enum class FallbackCause : uint8_t {
  kNone,         ///< it does not
  kUnsupported,  ///< the device has no kernel for it, or not for such arguments
  kCompiler,     ///< it has one, which could not be compiled
  kCopy          ///< it moves elements of one tensor to places in another
};

/// The word for a cause: "unsupported", "compiler" or "copy".
const char* word_for(FallbackCause cause);

/// Told of each fallback before it runs, beside the checks that were added before. Returns why it must not; an empty
/// text lets it.
using FallbackCheck = std::function<std::string(const std::string& name, FallbackCause cause)>;
void add_fallback_check(FallbackCheck check);

/// Throws c10::NotImplementedError under kError, and if a check forbids a fallback of `name`.
void admit_fallback(const std::string& name, FallbackCause cause = FallbackCause::kUnsupported);

/// Counts one fallback of `name`, which the CPU's kernel accepted, tells who looks for costs, and warns as the policy
/// says.
void note_fallback(const std::string& name, FallbackCause cause = FallbackCause::kUnsupported);

/// Fallbacks so far, by operator.
std::map<std::string, int64_t> fallback_counts();
void reset_fallback_counts();

/// Runs `op`, which the compiler has no plan for, with PyTorch's CPU kernel on the arguments on top of the stack and
/// leaves its results there, on `device`. Where the host can address device memory the tensors are used in place, else
/// they are copied to the CPU and what was written is copied back. Counted as a fallback. What only moves complex
/// numbers stays on the device (`move_complex`).
void run_on_cpu(const Operator& op, c10::DeviceIndex device, torch::jit::Stack* stack,
                FallbackCause cause = FallbackCause::kUnsupported);

/// Where contents wait on the host (`contents_wait`): makes those of a new tensor there, if `op` writes all of it and
/// reads no other one of the device, as factories and random fills do. The results are on the stack then. False, and
/// nothing is done, in any other case. No fallback: what has never been on the device need not leave it.
bool make_on_host(const Operator& op, torch::jit::Stack* stack);

/// Runs `op` on CPU tensors of zeros shaped like the arguments, for its checks alone: whatever PyTorch finds wrong with
/// the call on the CPU is raised. Does nothing for large arguments, and accepts element types that only the CPU lacks.
/// True if the CPU's kernel ran.
bool rehearse_on_cpu(const Operator& op, c10::ArrayRef<c10::IValue> arguments, Heard heard = Heard::kNone);

/// As `rehearse_on_cpu`, for large arguments also.
bool rehearse_large_on_cpu(const Operator& op, c10::ArrayRef<c10::IValue> arguments, Heard heard = Heard::kNone);

/// As `rehearse_on_cpu`, for what PyTorch says of the numbers among the arguments, however large the tensors are: of
/// a pointwise operator one element tells.
void rehearse_numbers_on_cpu(const Operator& op, c10::ArrayRef<c10::IValue> arguments);

}  // namespace outboard::aten
