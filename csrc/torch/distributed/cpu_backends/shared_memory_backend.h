// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "distributed/shared_memory.h"
#include "torch/distributed/cpu_backends/forwarding_backend.h"
#include "torch/distributed/staging/issuer.h"

namespace outboard::distributed {

/// A backend for CPU tensors that runs collectives through memory which the ranks of a group share, and leaves the
/// rest to the backend under it. What need not be asynchronous runs on the calling thread, the rest on one of its own,
/// all in the order of the calls. Tensors have the order of rows.
class SharedMemoryBackend : public ForwardingBackend {
 public:
  /// `under` with shared memory, if all ranks of the group can reach the same; else `under`. All ranks of the group
  /// call this. OUTBOARD_SHARED_MEMORY=0 on any of them says no, and who asked for another transport than gloo gets it.
  static c10::intrusive_ptr<c10d::Backend> over(c10::intrusive_ptr<c10d::Backend> under,
                                                std::chrono::milliseconds timeout);

  SharedMemoryBackend(c10::intrusive_ptr<c10d::Backend> under, std::unique_ptr<SharedMemory> memory,
                      std::chrono::milliseconds timeout);
  ~SharedMemoryBackend() override;

  const std::string getBackendName() const override { return "shared memory"; }
  void setTimeout(std::chrono::milliseconds timeout) override;
  void abort() override;

  WorkPointer broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPointer allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPointer reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  WorkPointer allgather(TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override;
  WorkPointer _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) override;
  WorkPointer alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                            std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& options) override;
  WorkPointer barrier(const c10d::BarrierOptions& options) override;

  WorkPointer gather(TensorLists& outputs, Tensors& inputs, const c10d::GatherOptions& options) override;
  WorkPointer scatter(Tensors& outputs, TensorLists& inputs, const c10d::ScatterOptions& options) override;

 private:
  /// Runs now or later.
  WorkPointer run(c10d::OpType kind, bool asynchronous, std::function<void()> body);
  Terms terms(std::string text, std::chrono::milliseconds timeout) const;

  const std::unique_ptr<SharedMemory> memory_;
  std::chrono::milliseconds timeout_;
  Issuer issuer_;
};

}  // namespace outboard::distributed
