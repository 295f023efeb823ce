// SPDX-License-Identifier: Apache-2.0
#include "torch/distributed/staging/cpu_backend.h"

#include <utility>

namespace outboard::distributed {

CpuBackend::CpuBackend(std::string group, c10::intrusive_ptr<c10d::Backend> backend)
    : group_(std::move(group)), backend_(std::move(backend)) {}

c10::intrusive_ptr<c10d::Backend> CpuBackend::get() {
  const std::lock_guard lock(mutex_);
  TORCH_CHECK_WITH(DistBackendError, backend_ != nullptr, group_, " was ", aborted_ ? "aborted" : "destroyed");
  return backend_;
}

c10::intrusive_ptr<c10d::Backend> CpuBackend::take_at_shutdown() {
  const std::lock_guard lock(mutex_);
  return std::move(backend_);
}

c10::intrusive_ptr<c10d::Backend> CpuBackend::take_at_abort() {
  const std::lock_guard lock(mutex_);
  aborted_ = true;
  return std::move(backend_);
}

}  // namespace outboard::distributed
