// SPDX-License-Identifier: Apache-2.0
#include "torch/distributed/backend.h"

#include <algorithm>
#include <set>
#include <utility>

#include "torch/bridge/devices.h"
#include "torch/bridge/tensor.h"
#include "torch/distributed/by_host/host_collectives.h"
#include "torch/distributed/terms/reduction.h"
#include "torch/distributed/terms/terms.h"
#include "torch/distributed/terms/without_python.h"

namespace outboard::distributed {
namespace {

using c10d::OpType;

/// The same text with a place that lasts.
const char* lasting(const std::string& text) {
  static std::mutex mutex;
  static std::set<std::string>* const texts = new std::set<std::string>();
  const std::lock_guard lock(mutex);
  return texts->insert(text).first->c_str();
}

}  // namespace

DeviceOptions::DeviceOptions(const Group& group) : Options(group.backend, group.timeout) {
  group_name = group.name;
  global_ranks_in_group = group.global_ranks;
}

DeviceBackend::DeviceBackend(Group group, c10::intrusive_ptr<c10d::Backend> cpu_backend,
                             MakeCpuBackend make_cpu_backend, std::unique_ptr<DriverTransport> driver)
    : Backend(group.rank, group.size),
      group_(std::move(group)),
      options_(c10::make_intrusive<DeviceOptions>(group_)),
      make_cpu_backend_(std::move(make_cpu_backend)),
      cpu_backend_(c10::str(group_.backend, ": group '", group_.name, "'"), std::move(cpu_backend)),
      driver_(std::move(driver)),
      order_(rank_),
      runner_(cpu_backend_, order_, rank_, size_),
      messages_(cpu_backend_, order_, rank_) {}

DeviceBackend::~DeviceBackend() { shutdown(); }

void DeviceBackend::shutdown() {
  const WithoutPython released;
  drain();
  cpu_backend_.take_at_shutdown();
}

void DeviceBackend::drain() {
  runner_.drain();
  messages_.drain();
  if (driver_ != nullptr) driver_->drain();
}

void DeviceBackend::abort() {
  const WithoutPython released;
  error_ = c10d::ErrorType::COMM_ERROR;
  c10::intrusive_ptr<c10d::Backend> cpu_backend = cpu_backend_.take_at_abort();
  order_.abort();
  if (driver_ != nullptr) driver_->abort();
  if (cpu_backend != nullptr) cpu_backend->abort();
  // Leaked: the CPU backend would wait for its own operations, up to their timeout, and cannot close connections that
  // break meanwhile without ending the process.
  cpu_backend.release();
}

void DeviceBackend::setTimeout(std::chrono::milliseconds timeout) {
  options_->timeout = timeout;
  if (driver_ != nullptr) driver_->set_timeout(timeout);
  cpu_backend_.get()->setTimeout(timeout);
}

c10::intrusive_ptr<c10d::Backend> DeviceBackend::split(const c10::intrusive_ptr<c10d::Store>& store,
                                                       const std::vector<int>& ranks,
                                                       const c10::intrusive_ptr<Options>& options) {
  const auto place = std::find(ranks.begin(), ranks.end(), rank_);
  if (place == ranks.end()) return nullptr;
  Group part{group_.backend,
             options->group_name,
             static_cast<int>(place - ranks.begin()),
             static_cast<int>(ranks.size()),
             options->timeout,
             {}};
  for (const int rank : ranks) {
    part.global_ranks.push_back(group_.global_ranks.empty() ? rank : group_.global_ranks.at(rank));
  }
  return remade(store, std::move(part));
}

c10::intrusive_ptr<c10d::Backend> DeviceBackend::remade(const c10::intrusive_ptr<c10d::Store>& store, Group group) {
  auto made = make_cpu_backend_(store, group.rank, group.size, group.timeout, group.global_ranks);
  std::unique_ptr<DriverTransport> driver;
  if (driver_ != nullptr) driver = DriverTransport::make(store, *made, group.timeout);
  return c10::make_intrusive<DeviceBackend>(std::move(group), std::move(made), make_cpu_backend_, std::move(driver));
}

c10::intrusive_ptr<c10d::Backend> DeviceBackend::merge(const c10::intrusive_ptr<c10d::Store>& store,
                                                       const c10::intrusive_ptr<Options>& options, const int& rank,
                                                       const int& size) {
  Group whole{group_.backend, options->group_name, rank, size, options->timeout, options->global_ranks_in_group};
  return remade(store, std::move(whole));
}

DeviceBackend::Streams DeviceBackend::streams(c10::DeviceIndex index) {
  const auto place = static_cast<size_t>(index < 0 ? aten::current_device() : index);
  const std::lock_guard lock(mutex_);
  if (streams_.size() <= place) streams_.resize(place + 1);
  Streams& here = streams_[place];
  if (here.transfers == nullptr) {
    aten::translate_errors([&] {
      here.transfers = &aten::device(static_cast<c10::DeviceIndex>(place)).pool_stream();
      here.parts = &aten::device(static_cast<c10::DeviceIndex>(place)).pool_stream();
    });
  }
  return here;
}

CollectiveCall DeviceBackend::begin(OpType kind, const char* name, Tensors inputs, TensorLists results) {
  const uint64_t number = ++number_;
  c10::DeviceIndex index = -1;
  for (const Tensors& tensors : {inputs, joined(results)}) {
    if (!tensors.empty() && tensors[0].is_privateuseone()) index = tensors[0].device().index();
  }
  Label label{kind, lasting(group_.backend + ":" + name),
              c10::str(group_.backend, ": ", name, ", number ", number, " of group '", group_.name, "', on rank ",
                       rank_, " of ", size_),
              number};
  const Streams own = streams(index);
  return {std::move(label), std::make_shared<Exchange>(*own.transfers), std::move(inputs), std::move(results),
          own.parts};
}

bool DeviceBackend::may_be_the_drivers(const CollectiveCall& call) {
  if (driver_ == nullptr) return false;
  cpu_backend_.get();  // throws once the group is destroyed
  bool is_there = false;
  with_label(call.label, [&] { is_there = driver_->is_there(call.exchange->transfers()); });
  return is_there;
}

WorkPointer DeviceBackend::carry_out(CollectiveCall call, std::chrono::milliseconds timeout, const ByDriver& by_driver,
                                     const ByHost& by_host) {
  std::optional<DriverRequests> requests;
  if (by_driver && may_be_the_drivers(call)) requests = by_driver(*driver_);
  DueCall due = order_.behind_others(std::move(call), requests.has_value());
  if (!requests.has_value()) return by_host(std::move(due));
  auto work = order_.work_of(std::move(due));
  with_label(work->label(), [&] { driver_->start(work, std::move(*requests), timeout); });
  return work;
}

WorkPointer DeviceBackend::carry_out(CollectiveCall call, const ByHost& by_host) {
  return carry_out(std::move(call), kNoTimeout, {}, by_host);
}

WorkPointer DeviceBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  only(tensors);
  return carry_out(
      begin(OpType::BROADCAST, "broadcast", tensors, {tensors}), options.timeout,
      [&](const DriverTransport&) { return requests::broadcast(tensors, static_cast<int>(options.rootRank), rank_); },
      [&](DueCall due) { return on_host::broadcast(runner_, std::move(due), options); });
}

WorkPointer DeviceBackend::all_reduce(CollectiveCall call, const Tensors& tensors,
                                      const c10d::AllreduceOptions& options) {
  const Reduction reduction(options.reduceOp);
  for (const at::Tensor& tensor : tensors) reduction.require(tensor);
  return carry_out(
      std::move(call), options.timeout,
      [&](const DriverTransport& driver) { return requests::all_reduce(driver, tensors, options.reduceOp); },
      [&](DueCall due) { return on_host::all_reduce(runner_, std::move(due), options); });
}

WorkPointer DeviceBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  if (only(tensors).is_sparse()) return allreduce_sparse(tensors, options);
  return all_reduce(begin(OpType::ALLREDUCE, "all_reduce", tensors, {tensors}), tensors, options);
}

WorkPointer DeviceBackend::allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) {
  const at::Tensor& tensor = only(tensors);
  TORCH_CHECK_VALUE(tensor.is_sparse(), "all_reduce: expected a sparse tensor, but got one of layout ",
                    tensor.layout());
  TORCH_CHECK_VALUE(options.reduceOp == c10d::ReduceOp::SUM, "all_reduce of sparse tensors knows only ReduceOp.SUM");
  const at::Tensor own = tensor.coalesce();
  CollectiveCall call =
      begin(OpType::_ALLREDUCE_SPARSE, "all_reduce_sparse", contiguous({own._indices(), own._values()}), {tensors});
  return carry_out(std::move(call),
                   [&](DueCall due) { return on_host::all_reduce_sparse(runner_, std::move(due), tensor, options); });
}

WorkPointer DeviceBackend::allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  return all_reduce(begin(OpType::ALLREDUCE_COALESCED, "all_reduce_coalesced", tensors, {tensors}), tensors, options);
}

WorkPointer DeviceBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  CollectiveCall call = begin(OpType::REDUCE, "reduce", tensors, {tensors});
  Reduction(options.reduceOp).require(only(tensors));
  return carry_out(
      std::move(call), options.timeout,
      [&](const DriverTransport& driver) {
        return requests::reduce(driver, tensors[0], options.reduceOp, static_cast<int>(options.rootRank), rank_);
      },
      [&](DueCall due) { return on_host::reduce(runner_, std::move(due), options); });
}

WorkPointer DeviceBackend::allgather(TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  CollectiveCall call = begin(OpType::ALLGATHER, "all_gather", inputs, outputs);
  const at::Tensor& input = only(inputs);
  TORCH_CHECK_VALUE(outputs.size() == 1 && static_cast<int>(outputs[0].size()) == size_,
                    "all_gather: the output must have a tensor for each of the ", size_, " ranks");
  const Tensors& places = outputs[0];
  if (!of_one_shape(places)) {
    TORCH_CHECK_VALUE(places[rank_].sizes() == input.sizes() && places[rank_].scalar_type() == input.scalar_type(),
                      "all_gather: this rank's place in the output has shape ", places[rank_].sizes(),
                      " and its input ", input.sizes());
    return carry_out(std::move(call),
                     [&](DueCall due) { return on_host::all_gather_uneven(runner_, std::move(due), places, options); });
  }
  const ByHost by_host = [&](DueCall due) { return on_host::all_gather(runner_, std::move(due), places, options); };
  if (!of_one_size(places[0], input)) return carry_out(std::move(call), by_host);
  return carry_out(
      std::move(call), options.timeout,
      [&](const DriverTransport&) { return requests::all_gather_list(places, input); }, by_host);
}

WorkPointer DeviceBackend::all_gather_bases(CollectiveCall call, const Tensors& outputs, const Tensors& inputs,
                                            const c10d::AllgatherOptions& options) {
  TORCH_CHECK_VALUE(outputs.size() == inputs.size(), "all_gather: ", outputs.size(), " outputs for ", inputs.size(),
                    " inputs");
  for (size_t i = 0; i < outputs.size(); ++i) {
    TORCH_CHECK_TYPE(outputs[i].scalar_type() == inputs[i].scalar_type(),
                     "output tensor must have the same type as input tensor");
    TORCH_CHECK_VALUE(outputs[i].numel() == inputs[i].numel() * size_,
                      "output tensor size must be equal to world_size times input tensor size");
  }
  return carry_out(
      std::move(call), options.timeout, [&](const DriverTransport&) { return requests::all_gather(outputs, inputs); },
      [&](DueCall due) { return on_host::all_gather_bases(runner_, std::move(due), outputs, options); });
}

WorkPointer DeviceBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                           const c10d::AllgatherOptions& options) {
  return all_gather_bases(begin(OpType::_ALLGATHER_BASE, "all_gather_into_tensor", {input}, {{output}}), {output},
                          {input}, options);
}

WorkPointer DeviceBackend::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                           const c10d::AllgatherOptions& options) {
  return all_gather_bases(begin(OpType::COALESCED, "all_gather_into_tensor_coalesced", inputs, {outputs}), outputs,
                          inputs, options);
}

WorkPointer DeviceBackend::allgather_coalesced(TensorLists& outputs, Tensors& inputs,
                                               const c10d::AllgatherOptions& options) {
  CollectiveCall call = begin(OpType::ALLGATHER_COALESCED, "all_gather_coalesced", inputs, outputs);
  TORCH_CHECK_VALUE(static_cast<int>(outputs.size()) == size_, "all_gather_coalesced: ", outputs.size(),
                    " lists of outputs for ", size_, " ranks");
  TensorLists by_input(inputs.size());
  for (const Tensors& list : outputs) {
    TORCH_CHECK_VALUE(list.size() == inputs.size(), "all_gather_coalesced: ", list.size(), " outputs for ",
                      inputs.size(), " inputs");
    for (size_t i = 0; i < inputs.size(); ++i) {
      TORCH_CHECK_VALUE(list[i].nbytes() == inputs[i].nbytes(), "all_gather_coalesced: an output has shape ",
                        list[i].sizes(), " and the input ", inputs[i].sizes());
      by_input[i].push_back(list[i]);
    }
  }
  return carry_out(std::move(call), [&](DueCall due) {
    return on_host::all_gather_coalesced(runner_, std::move(due), by_input, options);
  });
}

WorkPointer DeviceBackend::gather(TensorLists& outputs, Tensors& inputs, const c10d::GatherOptions& options) {
  CollectiveCall call = begin(OpType::GATHER, "gather", inputs, outputs);
  only(inputs);
  return carry_out(std::move(call),
                   [&](DueCall due) { return on_host::gather(runner_, std::move(due), outputs, options); });
}

WorkPointer DeviceBackend::gather_single(at::Tensor& output, at::Tensor& input, const c10d::GatherOptions& options) {
  TensorLists outputs;
  if (options.rootRank == rank_) {
    TORCH_CHECK_TYPE(output.scalar_type() == input.scalar_type(), "Tensors must have identical type");
    TORCH_CHECK_VALUE(output.numel() == input.numel() * size_,
                      "output tensor size must be equal to world_size times input tensor size");
    TORCH_CHECK_VALUE(output.is_non_overlapping_and_dense(), "Tensors must be contiguous");
    outputs.push_back(places_of(output, size_));
  }
  TORCH_CHECK_VALUE(input.is_non_overlapping_and_dense(), "Tensors must be contiguous");
  CollectiveCall call = begin(OpType::GATHER, "gather_single", {flat(input)}, outputs);
  return carry_out(std::move(call),
                   [&](DueCall due) { return on_host::gather(runner_, std::move(due), outputs, options); });
}

WorkPointer DeviceBackend::scatter(Tensors& outputs, TensorLists& inputs, const c10d::ScatterOptions& options) {
  CollectiveCall call = begin(OpType::SCATTER, "scatter", joined(inputs), {outputs});
  const at::Tensor& output = only(outputs);
  return carry_out(std::move(call),
                   [&](DueCall due) { return on_host::scatter(runner_, std::move(due), output, inputs, options); });
}

WorkPointer DeviceBackend::reduce_scatter(Tensors& outputs, TensorLists& inputs,
                                          const c10d::ReduceScatterOptions& options) {
  CollectiveCall call = begin(OpType::REDUCE_SCATTER, "reduce_scatter", joined(inputs), {outputs});
  TORCH_CHECK_VALUE(inputs.size() == 1 && static_cast<int>(inputs[0].size()) == size_,
                    "reduce_scatter: the input must have a tensor for each of the ", size_, " ranks");
  const at::Tensor& output = only(outputs);
  const Tensors& pieces = inputs[0];
  for (const at::Tensor& piece : pieces) {
    TORCH_CHECK_TYPE(piece.scalar_type() == output.scalar_type(), "Tensors must have identical type");
  }
  TORCH_CHECK_VALUE(pieces[rank_].sizes() == output.sizes(), "reduce_scatter: the output has shape ", output.sizes(),
                    " and this rank's place in the input ", pieces[rank_].sizes());
  Reduction(options.reduceOp).require(output);
  const ByHost by_host = [&](DueCall due) {
    return on_host::reduce_scatter(runner_, std::move(due), output, pieces, options);
  };
  if (!of_one_shape(pieces)) return carry_out(std::move(call), by_host);
  return carry_out(
      std::move(call), options.timeout,
      [&](const DriverTransport& driver) {
        return requests::reduce_scatter_list(driver, output, pieces, options.reduceOp);
      },
      by_host);
}

WorkPointer DeviceBackend::reduce_scatter_bases(CollectiveCall call, const Tensors& outputs, const Tensors& inputs,
                                                const c10d::ReduceScatterOptions& options) {
  TORCH_CHECK_VALUE(outputs.size() == inputs.size(), "reduce_scatter: ", outputs.size(), " outputs for ", inputs.size(),
                    " inputs");
  const Reduction reduction(options.reduceOp);
  for (size_t i = 0; i < outputs.size(); ++i) {
    reduction.require(outputs[i]);
    TORCH_CHECK_TYPE(outputs[i].scalar_type() == inputs[i].scalar_type(),
                     "input tensor must be the same type as the output tensor.");
    TORCH_CHECK_VALUE(inputs[i].numel() == outputs[i].numel() * size_,
                      "input tensor must be the same size as output size times world size");
  }
  return carry_out(
      std::move(call), options.timeout,
      [&](const DriverTransport& driver) {
        return requests::reduce_scatter(driver, outputs, inputs, options.reduceOp);
      },
      [&](DueCall due) { return on_host::reduce_scatter_bases(runner_, std::move(due), outputs, options); });
}

WorkPointer DeviceBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                const c10d::ReduceScatterOptions& options) {
  return reduce_scatter_bases(begin(OpType::_REDUCE_SCATTER_BASE, "reduce_scatter_tensor", {input}, {{output}}),
                              {output}, {input}, options);
}

WorkPointer DeviceBackend::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                           const c10d::ReduceScatterOptions& options) {
  return reduce_scatter_bases(
      begin(OpType::REDUCE_SCATTER_TENSOR_COALESCED, "reduce_scatter_tensor_coalesced", inputs, {outputs}), outputs,
      inputs, options);
}

WorkPointer DeviceBackend::alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                                         std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& options) {
  CollectiveCall call = begin(OpType::ALLTOALL_BASE, "all_to_all_single", {input}, {{output}});
  TORCH_CHECK_TYPE(output.scalar_type() == input.scalar_type(), "Tensors must have identical type");
  return carry_out(
      std::move(call), options.timeout,
      [&](const DriverTransport&) {
        return requests::all_to_all(output, input, bytes_of_parts(input, input_splits, size_),
                                    bytes_of_parts(output, output_splits, size_));
      },
      [&](DueCall due) {
        return on_host::all_to_all_single(runner_, std::move(due), output, input, output_splits, input_splits, options);
      });
}

WorkPointer DeviceBackend::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) {
  CollectiveCall call = begin(OpType::ALLTOALL, "all_to_all", inputs, {outputs});
  const auto ranks = static_cast<size_t>(size_);
  TORCH_CHECK_VALUE(outputs.size() == ranks && inputs.size() == ranks, "all_to_all: ", outputs.size(), " outputs and ",
                    inputs.size(), " inputs for ", size_, " ranks");
  for (const Tensors* tensors : {&outputs, &inputs}) {
    for (const at::Tensor& tensor : *tensors) {
      TORCH_CHECK_TYPE(tensor.scalar_type() == inputs[0].scalar_type(), "Tensors must have identical type");
    }
  }
  return carry_out(
      std::move(call), options.timeout,
      [&](const DriverTransport&) { return requests::all_to_all_list(outputs, inputs); },
      [&](DueCall due) { return on_host::all_to_all(runner_, std::move(due), outputs, inputs, options); });
}

WorkPointer DeviceBackend::send(Tensors& tensors, int target, int tag) {
  messages_.require(target, tag);
  return messages_.send(begin(OpType::SEND, "send", tensors, {}), target, tag);
}

WorkPointer DeviceBackend::recv(Tensors& tensors, int source, int tag) {
  messages_.require(source, tag);
  return messages_.recv(begin(OpType::RECV, "recv", tensors, {}), source, tag);
}

WorkPointer DeviceBackend::recvAnysource(Tensors& tensors, int tag) {
  messages_.require(std::nullopt, tag);
  return messages_.recv(begin(OpType::RECVANYSOURCE, "recvAnySource", tensors, {}), std::nullopt, tag);
}

WorkPointer DeviceBackend::barrier(const c10d::BarrierOptions& options) {
  return carry_out(begin(OpType::BARRIER, "barrier", {}, {}),
                   [&](DueCall due) { return on_host::barrier(runner_, std::move(due), options); });
}

void DeviceBackend::monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) {
  drain();
  cpu_backend_.get()->monitoredBarrier(options, wait_all_ranks);
}

void DeviceBackend::setSequenceNumberForGroup() { cpu_backend_.get()->setSequenceNumberForGroup(); }

uint64_t DeviceBackend::getSequenceNumberForGroup() { return cpu_backend_.get()->getSequenceNumberForGroup(); }

}  // namespace outboard::distributed
