// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <cstdint>

#include "runtime/plans/executor.h"
#include "torch/eager/eager_arguments.h"
#include "torch/eager/eager_operator.h"

namespace outboard::aten {

/// The boxed kernel of every operator on the device: signature -> plan -> results, with the CPU as last resort.
void eager_kernel(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, torch::jit::Stack* stack);

/// The same by kernels of our own, for who was refused by the driver's library.
void eager_without_library(const Operator& op, torch::jit::Stack* stack);

/// The same for typed kernels (typed_kernels.h), without a stack: the result of an operator that returns one new
/// tensor.
at::Tensor eager_tensor(const Operator& op, Arguments& arguments);

/// The same for an operator that only writes to its arguments. `batch`, if there is one: see ExecutionContext.
void eager_write(const Operator& op, Arguments& arguments, Batch* batch = nullptr);

struct PlanEntry;

/// The plans of one signature, for callers that run one operator, which only writes to its arguments, many times with
/// arguments of one signature. It forgets its plans when plans are evicted.
class KnownPlans {
 public:
  KnownPlans(const Operator& op, Arguments& arguments);
  /// Makes a call with these inputs: those that a signature would have. False: nothing was done, because no plan is
  /// known that accepts them.
  bool run(const c10::SmallVectorImpl<Input>& inputs, Batch* batch) const;

 private:
  c10::DeviceIndex device_;
  const PlanEntry* entry_ = nullptr;
  uint64_t generation_ = 0;
};

/// Copies `src` to `dst` on one device: any strides, any dtype conversion, broadcast of `src`.
void compiled_copy(const at::Tensor& dst, const at::Tensor& src);

}  // namespace outboard::aten
