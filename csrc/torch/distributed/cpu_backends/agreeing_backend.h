// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "torch/distributed/cpu_backends/forwarding_backend.h"

namespace outboard::distributed {

/// A backend for CPU tensors that compares what ranks ask for before the backend under it, which does not, moves
/// anything: gloo ends the process of a rank that gets more than it expects. A small all-gather precedes each
/// collective. Where ranks differ, all are told, nothing is moved, and the group goes on. Messages are left to the
/// backend under it.
class AgreeingBackend : public ForwardingBackend {
 public:
  /// `under` with comparisons if it is gloo's, of several ranks, and OUTBOARD_COMPARE_COLLECTIVES=1; else `under`. It
  /// is the same on all ranks.
  static c10::intrusive_ptr<c10d::Backend> over(c10::intrusive_ptr<c10d::Backend> under);

  using ForwardingBackend::ForwardingBackend;
  ~AgreeingBackend() override;

  WorkPointer broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPointer allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPointer reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  WorkPointer allgather(TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override;
  WorkPointer _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) override;
  WorkPointer alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                            std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& options) override;
  WorkPointer gather(TensorLists& outputs, Tensors& inputs, const c10d::GatherOptions& options) override;
  WorkPointer scatter(Tensors& outputs, TensorLists& inputs, const c10d::ScatterOptions& options) override;
  WorkPointer barrier(const c10d::BarrierOptions& options) override;

 private:
  /// Has the backend under this one begin the collective; may return nothing, where there is no more to do.
  using Issue = std::function<WorkPointer(c10d::Backend& under)>;
  struct Call;

  WorkPointer run(c10d::OpType kind, const std::string& terms, std::chrono::milliseconds timeout, Issue issue,
                  const std::vector<uint64_t>& bytes = {});
  /// The comparison of the first call in the queue begins.
  void compare_next();
  /// All ranks' texts are there, or an error.
  void compared(const std::shared_ptr<Call>& call, const std::exception_ptr& error);
  /// The same of numbers of bytes, where a call has any.
  void bytes_compared(const std::shared_ptr<Call>& call, const std::exception_ptr& error);
  /// The end of the comparison: without an error the collective begins. Later calls are taken up.
  void proceed(const std::shared_ptr<Call>& call, std::exception_ptr error);
  void gather_from_all(const std::shared_ptr<Call>& call, at::Tensor& all, at::Tensor& own,
                       void (AgreeingBackend::*then)(const std::shared_ptr<Call>&, const std::exception_ptr&));

  std::mutex mutex_;
  std::condition_variable changed_;
  /// Guarded by mutex_. One after the other, so that all ranks begin everything in one order.
  std::deque<std::shared_ptr<Call>> calls_;
};

}  // namespace outboard::distributed
