// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/ivalue.h>

#include <atomic>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

namespace outboard::distributed {

/// Done when somebody says so.
class SimpleWork : public c10d::Work {
 public:
  SimpleWork(int rank, c10d::OpType kind)
      : Work(rank, kind),
        future_(c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()))) {}

  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }
  /// Who sent what has arrived; -1 where that is nobody in particular.
  int sourceRank() const override { return source_; }
  void abort() override { end(std::make_exception_ptr(std::runtime_error("aborted"))); }

  /// Ends it, with an error or without. No-op once it has ended.
  void end(const std::exception_ptr& error, int source = -1) {
    if (ended_.exchange(true)) return;
    source_ = source;
    if (error != nullptr) {
      future_->setError(error);
    } else {
      future_->markCompleted(std::vector<at::Tensor>());
    }
    finish(error);
  }

 private:
  const c10::intrusive_ptr<c10::ivalue::Future> future_;
  std::atomic<bool> ended_{false};
  int source_ = -1;
};

}  // namespace outboard::distributed
