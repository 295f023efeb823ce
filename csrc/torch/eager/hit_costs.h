// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace outboard::aten {

/// Nanoseconds of the parts of a call that finds its plan, each a median.
struct HitCosts {
  double device;     ///< which device the arguments are on
  double signature;  ///< the bytes that tell plans apart, and the bindings of tensors
  double lookup;     ///< from these bytes to the plans
  double symbols;    ///< sizes and scalars into symbols, guards
  double plan;       ///< outputs' records and memory, arguments, submission; and memory given back
  double kernel;     ///< the whole kernel, results as tensors included, which are deleted
  double call;       ///< the same through PyTorch's dispatcher, autograd's layer included
};

/// Measures an addition of two tensors of a device of ours on `bursts` series of calls, between which the device comes
/// to rest.
HitCosts hit_costs(const at::Tensor& left, const at::Tensor& right, int64_t bursts);

}  // namespace outboard::aten
