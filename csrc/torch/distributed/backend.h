// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "torch/distributed/by_driver/driver_transport.h"
#include "torch/distributed/by_host/host_runner.h"
#include "torch/distributed/point_to_point.h"
#include "torch/distributed/staging/cpu_backend.h"
#include "torch/distributed/works/collective_order.h"

namespace outboard::distributed {

/// Makes the CPU backend's backend for a group: store, rank, size, timeout, and which ranks of the world it has.
using MakeCpuBackend = std::function<c10::intrusive_ptr<c10d::Backend>(
    const c10::intrusive_ptr<c10d::Store>&, int, int, std::chrono::milliseconds, const std::vector<uint64_t>&)>;

/// What a group is made of.
struct Group {
  std::string backend;  ///< the profile's name for it
  std::string name;
  int rank;
  int size;
  std::chrono::milliseconds timeout;
  std::vector<uint64_t> global_ranks;
};

/// A group's options, of a class of ours so that Python can copy them.
struct DeviceOptions : c10d::Backend::Options {
  explicit DeviceOptions(const Group& group);
};

/// torch.distributed for tensors of the device. Collectives are run by the device's driver, where it has some, else by
/// PyTorch's own backend for CPU tensors (gloo), on the device's memory itself where the host can address it. They
/// begin when the current stream has done what it was given before them, in the order of the calls, and nobody waits
/// for that. This class checks arguments as PyTorch does, and decides who carries a collective out.
class DeviceBackend : public c10d::Backend {
 public:
  /// `driver`: null where collectives are not to be the driver's.
  DeviceBackend(Group group, c10::intrusive_ptr<c10d::Backend> cpu_backend, MakeCpuBackend make_cpu_backend,
                std::unique_ptr<DriverTransport> driver);
  ~DeviceBackend() override;

  const std::string getBackendName() const override { return group_.backend; }
  c10::intrusive_ptr<Options> getBackendOptions() override { return options_; }
  const c10::intrusive_ptr<DeviceOptions>& options() const { return options_; }
  void setTimeout(std::chrono::milliseconds timeout) override;
  c10d::ErrorType getError() override { return error_; }

  bool supportsSplitting() const override { return true; }
  c10::intrusive_ptr<c10d::Backend> split(const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
                                          const c10::intrusive_ptr<Options>& options) override;
  c10::intrusive_ptr<c10d::Backend> merge(const c10::intrusive_ptr<c10d::Store>& store,
                                          const c10::intrusive_ptr<Options>& options, const int& rank,
                                          const int& size) override;
  /// Ends everybody's wait with an error; later collectives are refused. Threads and connections stay to the process's
  /// end.
  void abort() override;
  /// Gives threads and connections back, after what was begun.
  void shutdown() override;

  WorkPointer broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPointer allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPointer allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPointer allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override;
  WorkPointer reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  WorkPointer allgather(TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override;
  WorkPointer _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) override;
  WorkPointer allgather_coalesced(TensorLists& outputs, Tensors& inputs,
                                  const c10d::AllgatherOptions& options) override;
  WorkPointer allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                              const c10d::AllgatherOptions& options) override;
  WorkPointer gather(TensorLists& outputs, Tensors& inputs, const c10d::GatherOptions& options) override;
  /// Overrides what PyTorch's class has from 2.14 on. `output`: at the root, the place of each rank in turn.
  WorkPointer gather_single(at::Tensor& output, at::Tensor& input, const c10d::GatherOptions& options);
  WorkPointer scatter(Tensors& outputs, TensorLists& inputs, const c10d::ScatterOptions& options) override;
  WorkPointer reduce_scatter(Tensors& outputs, TensorLists& inputs, const c10d::ReduceScatterOptions& options) override;
  WorkPointer _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                   const c10d::ReduceScatterOptions& options) override;
  WorkPointer reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                              const c10d::ReduceScatterOptions& options) override;
  WorkPointer alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                            std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& options) override;
  WorkPointer alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override;
  WorkPointer send(Tensors& tensors, int target, int tag) override;
  WorkPointer recv(Tensors& tensors, int source, int tag) override;
  WorkPointer recvAnysource(Tensors& tensors, int tag) override;
  WorkPointer barrier(const c10d::BarrierOptions& options) override;
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) override;
  void setSequenceNumberForGroup() override;
  uint64_t getSequenceNumberForGroup() override;

 private:
  /// What the driver is to do, or nothing where the CPU backend has to.
  using ByDriver = std::function<std::optional<DriverRequests>(const DriverTransport& driver)>;
  using ByHost = std::function<WorkPointer(DueCall call)>;
  /// Streams beside those that compute: for copies at the call of a collective, and for those of parts, which wait for
  /// no other stream.
  struct Streams {
    Stream* transfers = nullptr;
    Stream* parts = nullptr;
  };

  /// A part of this group, or several of them in one. `store`: of its ranks.
  c10::intrusive_ptr<c10d::Backend> remade(const c10::intrusive_ptr<c10d::Store>& store, Group group);
  /// Waits until everything is issued.
  void drain();
  /// Of a device; -1: the current one.
  Streams streams(c10::DeviceIndex index);

  CollectiveCall begin(c10d::OpType kind, const char* name, Tensors inputs, TensorLists results);
  /// Has the driver carry a collective out, or else the CPU backend, behind the earlier ones that it must come behind.
  WorkPointer carry_out(CollectiveCall call, std::chrono::milliseconds timeout, const ByDriver& by_driver,
                        const ByHost& by_host);
  /// The same for what no driver does.
  WorkPointer carry_out(CollectiveCall call, const ByHost& by_host);
  /// Whether the driver may be asked for it. Throws as DriverTransport::is_there.
  bool may_be_the_drivers(const CollectiveCall& call);

  WorkPointer all_reduce(CollectiveCall call, const Tensors& tensors, const c10d::AllreduceOptions& options);
  WorkPointer all_gather_bases(CollectiveCall call, const Tensors& outputs, const Tensors& inputs,
                               const c10d::AllgatherOptions& options);
  WorkPointer reduce_scatter_bases(CollectiveCall call, const Tensors& outputs, const Tensors& inputs,
                                   const c10d::ReduceScatterOptions& options);

  const Group group_;
  const c10::intrusive_ptr<DeviceOptions> options_;
  const MakeCpuBackend make_cpu_backend_;
  CpuBackend cpu_backend_;
  const std::unique_ptr<DriverTransport> driver_;  ///< null: none is to be used
  std::mutex mutex_;
  std::vector<Streams> streams_;  ///< by device; guarded by mutex_
  std::atomic<uint64_t> number_{0};
  std::atomic<c10d::ErrorType> error_{c10d::ErrorType::SUCCESS};
  CollectiveOrder order_;
  HostRunner runner_;
  PointToPoint messages_;
};

}  // namespace outboard::distributed
