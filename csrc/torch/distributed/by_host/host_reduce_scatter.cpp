// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

#include "torch/distributed/by_host/host_collectives.h"
#include "torch/distributed/terms/reduction.h"

namespace outboard::distributed::on_host {
namespace {

using c10d::Backend;
using Part = HostRunner::Part;
using Parts = HostRunner::Parts;
using Works = HostRunner::Works;

/// Of each rank's `pieces` in turn, what belongs to this rank, reduced into `own`: each rank gets from all what belongs
/// to it, and reduces that in the order of the ranks. The CPU backend would have everybody get and reduce everything.
Part reduced_part(int ranks, Tensors own, TensorLists pieces, const c10d::ReduceScatterOptions& options) {
  const Reduction reduction(options.reduceOp);
  Tensors arrived;
  for (const at::Tensor& output : own) {
    std::vector<int64_t> shape{ranks};
    shape.insert(shape.end(), output.sizes().begin(), output.sizes().end());
    arrived.push_back(at::empty(shape, output.options()));
  }
  const auto issue = [ranks, own, pieces, arrived, timeout = options.timeout](Backend& cpu) {
    Works works;
    for (size_t i = 0; i < own.size(); ++i) {
      c10d::AllToAllOptions host_options;
      host_options.timeout = timeout;
      at::Tensor leaving = in_a_row(pieces[i]);
      at::Tensor arriving = flat(arrived[i]);
      std::vector<int64_t> received(ranks, own[i].numel());
      std::vector<int64_t> sent = pieces[i].size() == 1 ? received : counts_of(pieces[i]);
      works.push_back(cpu.alltoall_base(arriving, leaving, received, sent, host_options));
    }
    return works;
  };
  const auto after = [own, arrived, reduction] {
    for (size_t i = 0; i < own.size(); ++i) reduction.fold(own[i], arrived[i]);
  };
  return {issue, after};
}

/// `inputs`: of each output, a tensor for each rank.
Parts long_parts(int ranks, const Tensors& outputs, const TensorLists& inputs,
                 const c10d::ReduceScatterOptions& options) {
  Parts parts;
  for (size_t i = 0; i < outputs.size(); ++i) {
    uint64_t longest = 0;
    for (const at::Tensor& input : inputs[i]) longest = std::max<uint64_t>(longest, input.nbytes());
    const int64_t count = count_of_parts(longest);
    for (int64_t k = 0; k < count; ++k) {
      parts.push_back([ranks, options, some = part_of_each(inputs[i], k, count),
                       place = part_of(outputs[i], k, count)](Exchange& exchange) {
        Tensors pieces = flattened(exchange.numbers(some, Intent::kRead));
        return reduced_part(ranks, {flat(exchange.numbers(place, Intent::kWrite))}, {std::move(pieces)}, options);
      });
    }
  }
  return parts;
}

}  // namespace

WorkPointer reduce_scatter(HostRunner& runner, DueCall call, const at::Tensor& output, const Tensors& inputs,
                           const c10d::ReduceScatterOptions& options) {
  if (are_dense({output}) && are_dense(inputs) && any_is_long(inputs)) {
    const Tensors places = contiguous_places({output});
    Parts parts = long_parts(runner.size(), places, {contiguous(inputs)}, options);
    add_copies(parts, places, {output}, *call->parts);
    return runner.start_parts(std::move(call), std::move(parts));
  }
  Tensors own{call->exchange->numbers(output, Intent::kWrite)};
  Tensors pieces = call->exchange->numbers(inputs, Intent::kRead);
  Part whole = reduced_part(runner.size(), std::move(own), {std::move(pieces)}, options);
  return runner.start(std::move(call), std::move(whole.issue), std::move(whole.after));
}

WorkPointer reduce_scatter_bases(HostRunner& runner, DueCall call, const Tensors& outputs,
                                 const c10d::ReduceScatterOptions& options) {
  if (are_dense(call->inputs) && any_is_long(outputs)) {
    TensorLists lists;
    for (const at::Tensor& input : call->inputs) lists.push_back(places_of(input, runner.size()));
    return runner.start_parts(std::move(call), long_parts(runner.size(), outputs, lists, options));
  }
  TensorLists pieces;
  for (const at::Tensor& input : call->inputs) pieces.push_back({flat(call->exchange->numbers(input, Intent::kRead))});
  Tensors own = flattened(call->exchange->numbers(outputs, Intent::kWrite));
  Part whole = reduced_part(runner.size(), std::move(own), std::move(pieces), options);
  return runner.start(std::move(call), std::move(whole.issue), std::move(whole.after));
}

}  // namespace outboard::distributed::on_host
