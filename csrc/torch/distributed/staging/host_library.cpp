// SPDX-License-Identifier: Apache-2.0
#include "torch/distributed/staging/host_library.h"

#include <utility>

namespace outboard::distributed {

HostLibrary::HostLibrary(std::string group, c10::intrusive_ptr<c10d::Backend> backend)
    : group_(std::move(group)), backend_(std::move(backend)) {}

c10::intrusive_ptr<c10d::Backend> HostLibrary::get() {
  const std::lock_guard lock(mutex_);
  TORCH_CHECK_WITH(DistBackendError, backend_ != nullptr, group_, " was ", aborted_ ? "aborted" : "destroyed");
  return backend_;
}

c10::intrusive_ptr<c10d::Backend> HostLibrary::take_at_shutdown() {
  const std::lock_guard lock(mutex_);
  return std::move(backend_);
}

c10::intrusive_ptr<c10d::Backend> HostLibrary::take_at_abort() {
  const std::lock_guard lock(mutex_);
  aborted_ = true;
  return std::move(backend_);
}

}  // namespace outboard::distributed
