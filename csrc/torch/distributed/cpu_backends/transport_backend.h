// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

#include <atomic>
#include <functional>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "torch/distributed/staging/message.h"
#include "torch/distributed/terms/tensors.h"

namespace outboard::distributed {

/// A backend for CPU tensors by an object of Python's, a transport (`outboard.distributed.mpi` has one). It has a
/// method for each collective, which begins it and returns. Its last arguments are the most seconds that it may take,
/// and a function to be called at the end, from any thread, with an error's text or None, and who sent what was
/// received.
class TransportBackend : public c10d::Backend {
 public:
  TransportBackend(std::string name, pybind11::object transport, int rank, int size, std::chrono::milliseconds timeout);
  ~TransportBackend() override;

  const std::string getBackendName() const override { return name_; }
  void setTimeout(std::chrono::milliseconds timeout) override { timeout_ = timeout; }
  void abort() override;

  WorkPointer broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPointer allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPointer reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  WorkPointer allgather(TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override;
  WorkPointer _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) override;
  WorkPointer alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                            std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& options) override;
  WorkPointer gather(TensorLists& outputs, Tensors& inputs, const c10d::GatherOptions& options) override;
  WorkPointer scatter(Tensors& outputs, TensorLists& inputs, const c10d::ScatterOptions& options) override;
  WorkPointer send(Tensors& tensors, int target, int tag) override;
  WorkPointer recv(Tensors& tensors, int source, int tag) override;
  WorkPointer recvAnysource(Tensors& tensors, int tag) override;
  WorkPointer barrier(const c10d::BarrierOptions& options) override;
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) override;
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return number_; }

 private:
  /// Calls a method with what `arguments` makes while the GIL is held.
  WorkPointer run(c10d::OpType kind, const char* method, std::chrono::milliseconds timeout,
                  const std::function<pybind11::tuple()>& arguments);
  double seconds(std::chrono::milliseconds timeout) const;

  const std::string name_;
  pybind11::object transport_;
  std::chrono::milliseconds timeout_;
  std::atomic<uint64_t> number_{0};
};

}  // namespace outboard::distributed
