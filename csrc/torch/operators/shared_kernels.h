// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <initializer_list>

namespace outboard::aten {

template <c10::DispatchKey kKey>
void run_kernel_of(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  op.redispatchBoxed(c10::DispatchKeySet(kKey), stack);
}

/// Has operators run PyTorch's kernels for another dispatch key, which it has for several kinds of devices: they are
/// made of operators, and look at no memory themselves.
template <c10::DispatchKey kKey>
void share_kernels(torch::Library& m, std::initializer_list<const char*> names) {
  for (const char* name : names) m.impl(name, torch::CppFunction::makeFromBoxedFunction<&run_kernel_of<kKey>>());
}

}  // namespace outboard::aten
