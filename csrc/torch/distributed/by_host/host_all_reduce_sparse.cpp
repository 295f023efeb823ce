// SPDX-License-Identifier: Apache-2.0
// The sum of sparse tensors of several ranks: each rank sends its entries to all, since they have different ones, and
// every rank adds up those of all. So does gloo for CPU tensors.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sparse_coo_tensor.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/view_as_complex.h>
#include <c10/core/StreamGuard.h>

#include <functional>
#include <string>
#include <utility>

#include "torch/distributed/by_host/host_collectives.h"

namespace outboard::distributed::on_host {
namespace {

using c10d::Backend;
using Works = HostRunner::Works;

/// Entries of a sparse tensor as CPU tensors.
struct Entries {
  at::Tensor indices;  ///< int64, (sparse dimensions, entries)
  at::Tensor values;   ///< (entries, dense dimensions...), as Exchange::elements
};

/// What each rank's tensor must have in common with the others', as a number.
int64_t shape_and_dtype(const at::Tensor& tensor) {
  const std::string text = c10::str(tensor.sizes(), tensor.sparse_dim(), tensor.scalar_type());
  return static_cast<int64_t>(std::hash<std::string>{}(text));
}

/// How many entries each rank has. Throws c10::ValueError where ranks have tensors of different shapes or dtypes.
std::vector<int64_t> counts_of_ranks(HostRunner& runner, Backend& cpu, CollectiveWork& work, int64_t own,
                                     int64_t shape) {
  Tensors leaving{at::tensor({own, shape}, at::kLong)};
  TensorLists arriving{Tensors()};
  for (int rank = 0; rank < runner.size(); ++rank) arriving[0].push_back(at::empty({2}, at::kLong));
  wait_for({cpu.allgather(arriving, leaving, {})}, work);
  std::vector<int64_t> counts;
  for (const at::Tensor& theirs : arriving[0]) {
    TORCH_CHECK_VALUE(theirs[1].item<int64_t>() == shape,
                      "all_reduce: ranks have sparse tensors of different shapes or dtypes");
    counts.push_back(theirs[0].item<int64_t>());
  }
  return counts;
}

/// Uninitialized entries, as many as `count`, of the shape and dtype of these.
Entries like(const Entries& own, int64_t count) {
  at::DimVector sizes(own.values.sizes());
  sizes[0] = count;
  return {at::empty({own.indices.size(0), count}, own.indices.options()), at::empty(sizes, own.values.options())};
}

/// Adds up the entries of all ranks, as a sparse CPU tensor of the shape and dtype of `shaped`.
at::Tensor sum_of(const std::vector<Entries>& ranks, const at::Tensor& shaped) {
  Tensors indices, values;
  for (const Entries& entries : ranks) {
    indices.push_back(entries.indices);
    values.push_back(entries.values);
  }
  at::Tensor all = at::cat(values, 0);
  all = shaped.is_complex() ? at::view_as_complex(all) : all.view(shaped.scalar_type());
  return at::sparse_coo_tensor(at::cat(indices, 1), all, shaped.sizes(), all.options().layout(at::kSparse)).coalesce();
}

}  // namespace

WorkPointer all_reduce_sparse(HostRunner& runner, DueCall call, const at::Tensor& tensor,
                              const c10d::AllreduceOptions& options) {
  const Entries own{call->exchange->elements(call->inputs[0], Intent::kRead),
                    call->exchange->elements(call->inputs[1], Intent::kRead)};
  const std::shared_ptr<Exchange> exchange = call->exchange;
  const auto ranks = std::make_shared<std::vector<Entries>>();
  const auto issue = [&runner, own, ranks, shape = shape_and_dtype(tensor), timeout = options.timeout](
                         Backend& cpu, CollectiveWork& work) {
    Works works;
    const auto counts = counts_of_ranks(runner, cpu, work, own.values.size(0), shape);
    for (int rank = 0; rank < runner.size(); ++rank) {
      const int64_t count = counts[static_cast<size_t>(rank)];
      ranks->push_back(rank == runner.rank() ? own : like(own, count));
      if (count == 0) continue;
      for (const at::Tensor& part : {ranks->back().indices, ranks->back().values}) {
        works.push_back(broadcast_from(cpu, rank, timeout, flat(part)));
      }
    }
    return works;
  };
  // The caller's stream owns what is allocated here, and has its later work behind these copies.
  const auto bring_back = [tensor, ranks, exchange] {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const c10::StreamGuard guard(torch_stream(exchange->current()));
    tensor.copy_(sum_of(*ranks, tensor));
    exchange->give_back_behind(exchange->current());
  };
  return runner.start_agreed(std::move(call), issue, bring_back, /*may_be_at_once=*/false);
}

}  // namespace outboard::distributed::on_host
