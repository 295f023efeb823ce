// SPDX-License-Identifier: Apache-2.0
// torch.distributed asks PyTorch's dispatcher for the backend of a tensor's device, and PyTorch knows none for sparse
// tensors of a device from outside: the same one.
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

namespace outboard::distributed {
namespace {

void as_dense_tensors(const c10::OperatorHandle& op, c10::Stack* stack) {
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), stack);
}

}  // namespace

TORCH_LIBRARY_IMPL(c10d, SparsePrivateUse1, m) {
  m.impl("allreduce_", torch::CppFunction::makeFromBoxedFunction<&as_dense_tensors>());
}

}  // namespace outboard::distributed
