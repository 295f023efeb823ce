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

#include "torch/distributed/driver_transport.h"
#include "torch/distributed/issuer.h"
#include "torch/distributed/work.h"

namespace outboard::distributed {

/// Makes the host library's backend for a group: store, rank, size, timeout, and which ranks of the world it has.
using MakeHost = std::function<c10::intrusive_ptr<c10d::Backend>(
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
/// for that.
class DeviceBackend : public c10d::Backend {
 public:
  /// `driver`: null where collectives are not to be the driver's.
  DeviceBackend(Group group, c10::intrusive_ptr<c10d::Backend> host, MakeHost make_host,
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

  using Tensors = std::vector<at::Tensor>;
  using TensorLists = std::vector<std::vector<at::Tensor>>;

  WorkPointer broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPointer allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPointer allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override;
  WorkPointer reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  WorkPointer allgather(TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override;
  WorkPointer _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) override;
  WorkPointer allgather_coalesced(TensorLists& outputs, Tensors& inputs,
                                  const c10d::AllgatherOptions& options) override;
  WorkPointer allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                              const c10d::AllgatherOptions& options) override;
  WorkPointer gather(TensorLists& outputs, Tensors& inputs, const c10d::GatherOptions& options) override;
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
  using Works = std::vector<WorkPointer>;
  /// A part of this group, or several of them in one. `store`: of its ranks.
  c10::intrusive_ptr<c10d::Backend> remade(const c10::intrusive_ptr<c10d::Store>& store, Group group);
  /// A collective of the host library's on CPU tensors.
  using Issue = std::function<Works(c10d::Backend& host)>;

  /// A collective in preparation.
  struct Call {
    Label label;
    std::shared_ptr<Exchange> exchange;
    Tensors inputs;
    TensorLists results;
    Stream* parts;  ///< for copies of parts
  };

  Call begin(c10d::OpType kind, const char* name, Tensors inputs, TensorLists results);
  /// What the host library does, and what is done to its results on the host.
  struct Part {
    Issue issue;
    std::function<void()> after;
  };
  /// Makes a part of a collective, with its tensors by an exchange of its own.
  using MakePart = std::function<Part(Exchange& exchange)>;
  /// What a collective that treats all elements alike does to some of them.
  using IssueSome = std::function<WorkPointer(c10d::Backend& host, at::Tensor& some)>;

  /// What the driver is to do, or nothing where the host library has to.
  using MakeRequests = std::function<std::optional<DriverRequests>()>;
  /// Null where the host library has to.
  WorkPointer start_on_driver(Call& call, std::chrono::milliseconds timeout, const MakeRequests& make);
  /// `after` runs on the host when the host library is done.
  WorkPointer start(Call call, Issue issue, std::function<void()> after = {});
  WorkPointer start(Call call, std::function<Works(c10d::Backend& host, CollectiveWork& work)> issue,
                    std::function<void()> after);
  /// The same in parts: while the host library has one of them, the next one is on its way to the host and the last
  /// one on its way back, and no others are. `plan` is called when the device is done with what comes before.
  using Plan = std::function<std::vector<MakePart>(CollectiveWork& work)>;
  WorkPointer start_parts(Call call, Plan plan);
  void run_parts(CollectiveWork& work, const std::vector<MakePart>& parts, Stream& copies);
  /// Starts what treats the elements of the call's tensors alike, long tensors in parts.
  WorkPointer start_alike(Call call, Use use, IssueSome issue, std::function<void(const at::Tensor& some)> after = {});
  /// Starts a message: `make` makes it of its contents.
  WorkPointer start_peer(Call call, Use use, const std::function<std::unique_ptr<Message>(Content content)>& make);
  WorkPointer all_reduce(Call call, const c10d::AllreduceOptions& options);
  WorkPointer all_gather_uneven(Call call, const Tensors& outputs, const at::Tensor& input,
                                const c10d::AllgatherOptions& options);
  WorkPointer all_gather_bases(Call call, const Tensors& outputs, const c10d::AllgatherOptions& options);
  /// `outputs`: of each input, a tensor for each rank.
  WorkPointer all_gather_long(Call call, const TensorLists& outputs, const c10d::AllgatherOptions& options);
  WorkPointer gather_long(Call call, const TensorLists& outputs, const c10d::GatherOptions& options);
  WorkPointer scatter_long(Call call, const Tensors& outputs, const TensorLists& inputs,
                           const c10d::ScatterOptions& options);
  /// Of each rank's `pieces` in turn, what belongs to this rank, reduced into `own`.
  Part reduced_part(Tensors own, std::vector<Tensors> pieces, const c10d::ReduceScatterOptions& options);
  WorkPointer reduce_scatter_bases(Call call, const Tensors& outputs, const c10d::ReduceScatterOptions& options);
  /// `inputs`: of each output, a tensor for each rank.
  WorkPointer reduce_scatter_long(Call call, const Tensors& outputs, const TensorLists& inputs,
                                  const c10d::ReduceScatterOptions& options, const std::vector<MakePart>& last);
  /// `whole`: all of it in one piece. `outputs` and `inputs`: tensors without gaps from and for each rank. `last`: what
  /// comes behind parts.
  WorkPointer start_all_to_all(Call call, const MakePart& whole, Tensors outputs, Tensors inputs,
                               const c10d::AllToAllOptions& options, std::vector<MakePart> last = {});
  MakePart part_of_all_to_all(const Tensors& outputs, const Tensors& inputs, const c10d::AllToAllOptions& options);
  /// The greatest of all ranks' numbers. All ranks call this, in the order of collectives.
  int64_t greatest(int64_t number, CollectiveWork& work);
  /// Whether the host cannot address the memory of some rank's device: all ranks call this in their first all_to_all.
  bool someone_stages(bool own, CollectiveWork& work);
  /// Throws c10::DistBackendError once the group is destroyed.
  c10::intrusive_ptr<c10d::Backend> host();
  void remember(const WorkPointer& work);
  /// Waits for earlier collectives that write what this one uses, or use what it writes: the host library works on
  /// several at a time, while programs for CUDA know that one stream has them all. `on_driver`: this one is the
  /// driver's.
  void come_behind_others(const Call& call, bool on_driver);
  /// Waits until everything is issued.
  void drain();
  /// Streams beside those that compute, for a device (-1: the current one): for copies at the call of a collective, and
  /// for those of parts, which wait for no other stream.
  struct Streams {
    Stream* transfers = nullptr;
    Stream* parts = nullptr;
  };
  Streams streams(c10::DeviceIndex index);

  const Group group_;
  const c10::intrusive_ptr<DeviceOptions> options_;
  const MakeHost make_host_;
  std::mutex mutex_;
  c10::intrusive_ptr<c10d::Backend> host_;                        ///< null once it is shut down
  const std::unique_ptr<DriverTransport> driver_;                 ///< null: none is to be used
  std::vector<Streams> streams_;                                  ///< by device; guarded by mutex_
  std::vector<c10::weak_intrusive_ptr<c10d::Work>> outstanding_;  ///< guarded by mutex_
  const std::shared_ptr<Row> row_ = std::make_shared<Row>();
  std::atomic<uint64_t> number_{0};
  std::atomic<uint32_t> messages_{0};   ///< sent by this rank
  std::optional<bool> someone_stages_;  ///< once that is known; for who issues collectives
  std::atomic<c10d::ErrorType> error_{c10d::ErrorType::SUCCESS};
  std::unique_ptr<Issuer> issuer_;
  /// Of messages between two ranks, which take no part in the order of collectives.
  std::unique_ptr<Issuer> peer_issuer_;
};

}  // namespace outboard::distributed
