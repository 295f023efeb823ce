// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <mutex>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace outboard::distributed {

/// A group's backend for CPU tensors, which is there until the group is shut down.
class CpuBackend {
 public:
  /// `group`: what errors call the group.
  CpuBackend(std::string group, c10::intrusive_ptr<c10d::Backend> backend);

  /// Throws c10::DistBackendError once the group is shut down.
  c10::intrusive_ptr<c10d::Backend> get();
  /// From now on there is none. Null if that was so before.
  c10::intrusive_ptr<c10d::Backend> take_at_shutdown();
  c10::intrusive_ptr<c10d::Backend> take_at_abort();

 private:
  const std::string group_;
  std::mutex mutex_;
  c10::intrusive_ptr<c10d::Backend> backend_;  ///< guarded by mutex_
  bool aborted_ = false;                       ///< guarded by mutex_
};

}  // namespace outboard::distributed
