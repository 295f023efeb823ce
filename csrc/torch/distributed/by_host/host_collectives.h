// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "torch/distributed/by_host/host_runner.h"

/// Collectives on tensors of the device by a CPU backend, which takes CPU tensors. Arguments are checked before.
namespace outboard::distributed::on_host {

WorkPointer broadcast(HostRunner& runner, DueCall call, const c10d::BroadcastOptions& options);
/// One tensor, or several at once.
WorkPointer all_reduce(HostRunner& runner, DueCall call, const c10d::AllreduceOptions& options);
/// The sum of the ranks' sparse tensors. `tensor`: takes it; the call's inputs: its indices and values, coalesced.
WorkPointer all_reduce_sparse(HostRunner& runner, DueCall call, const at::Tensor& tensor,
                              const c10d::AllreduceOptions& options);
WorkPointer reduce(HostRunner& runner, DueCall call, const c10d::ReduceOptions& options);
WorkPointer barrier(HostRunner& runner, DueCall call, const c10d::BarrierOptions& options);

/// `outputs`: at the root, a list of a tensor for each rank; elsewhere none.
WorkPointer gather(HostRunner& runner, DueCall call, const TensorLists& outputs, const c10d::GatherOptions& options);
/// `inputs`: at the root, a list of a tensor for each rank; elsewhere none.
WorkPointer scatter(HostRunner& runner, DueCall call, const at::Tensor& output, const TensorLists& inputs,
                    const c10d::ScatterOptions& options);

/// `outputs`: a tensor for each rank, alike.
WorkPointer all_gather(HostRunner& runner, DueCall call, const Tensors& outputs, const c10d::AllgatherOptions& options);
/// The same where ranks have tensors of unlike shapes.
WorkPointer all_gather_uneven(HostRunner& runner, DueCall call, const Tensors& outputs,
                              const c10d::AllgatherOptions& options);
/// Each output has the place of each rank one after the other.
WorkPointer all_gather_bases(HostRunner& runner, DueCall call, const Tensors& outputs,
                             const c10d::AllgatherOptions& options);
/// `outputs`: of each input, a tensor for each rank.
WorkPointer all_gather_coalesced(HostRunner& runner, DueCall call, const TensorLists& outputs,
                                 const c10d::AllgatherOptions& options);

/// `inputs`: a tensor for each rank.
WorkPointer reduce_scatter(HostRunner& runner, DueCall call, const at::Tensor& output, const Tensors& inputs,
                           const c10d::ReduceScatterOptions& options);
/// Each of the call's inputs has what belongs to each rank one after the other.
WorkPointer reduce_scatter_bases(HostRunner& runner, DueCall call, const Tensors& outputs,
                                 const c10d::ReduceScatterOptions& options);

/// A tensor from and for each rank.
WorkPointer all_to_all(HostRunner& runner, DueCall call, const Tensors& outputs, const Tensors& inputs,
                       const c10d::AllToAllOptions& options);
/// Numbers of rows from and for each rank; none where they are equal.
WorkPointer all_to_all_single(HostRunner& runner, DueCall call, const at::Tensor& output, const at::Tensor& input,
                              const std::vector<int64_t>& output_splits, const std::vector<int64_t>& input_splits,
                              const c10d::AllToAllOptions& options);

/// A step of a collective in which each rank sends to all what only it has.
WorkPointer broadcast_from(c10d::Backend& cpu, int root, std::chrono::milliseconds timeout, const at::Tensor& value);

}  // namespace outboard::distributed::on_host
