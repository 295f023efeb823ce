// SPDX-License-Identifier: Apache-2.0
#include "torch/distributed/by_host/host_collectives.h"

#include <utility>

#include "torch/distributed/terms/reduction.h"

namespace outboard::distributed::on_host {
namespace {

using c10d::Backend;
using Part = HostRunner::Part;
using Parts = HostRunner::Parts;
using Works = HostRunner::Works;

WorkPointer gather_long(HostRunner& runner, DueCall call, const TensorLists& outputs,
                        const c10d::GatherOptions& options) {
  const Tensors places = contiguous_places(joined(outputs));
  const at::Tensor own = contiguous(call->inputs)[0];
  const int64_t count = count_of_parts(own.nbytes());
  Parts parts;
  for (int64_t k = 0; k < count; ++k) {
    parts.push_back([options, is_root = !outputs.empty(), some = part_of(own, k, count),
                     arriving = part_of_each(places, k, count)](Exchange& exchange) -> Part {
      Tensors leaving{flat(exchange.elements(some, Intent::kRead))};
      TensorLists values;
      if (is_root) values.push_back(flattened(exchange.elements(arriving, Intent::kWrite)));
      return {[=](Backend& cpu) mutable -> Works { return {cpu.gather(values, leaving, options)}; }, {}};
    });
  }
  add_copies(parts, places, joined(outputs), *call->parts);
  return runner.start_parts(std::move(call), std::move(parts));
}

WorkPointer scatter_long(HostRunner& runner, DueCall call, const at::Tensor& output, const TensorLists& inputs,
                         const c10d::ScatterOptions& options) {
  const Tensors places = contiguous_places({output});
  const Tensors own = contiguous(joined(inputs));
  const int64_t count = count_of_parts(places[0].nbytes());
  Parts parts;
  for (int64_t k = 0; k < count; ++k) {
    parts.push_back([options, is_root = !inputs.empty(), place = part_of(places[0], k, count),
                     some = part_of_each(own, k, count)](Exchange& exchange) -> Part {
      Tensors arriving{flat(exchange.elements(place, Intent::kWrite))};
      TensorLists leaving;
      if (is_root) leaving.push_back(flattened(exchange.elements(some, Intent::kRead)));
      return {[=](Backend& cpu) mutable -> Works { return {cpu.scatter(arriving, leaving, options)}; }, {}};
    });
  }
  add_copies(parts, places, {output}, *call->parts);
  return runner.start_parts(std::move(call), std::move(parts));
}

/// What a reduction does to some numbers: `collective` is the CPU backend's.
template <typename Options>
HostRunner::IssueSome reducing(const Reduction& reduction, Options options,
                               WorkPointer (Backend::*collective)(Tensors&, const Options&)) {
  return [=](Backend& cpu, at::Tensor& some) mutable {
    reduction.scale(some);
    options.reduceOp = reduction.of(some.scalar_type());
    Tensors values{some};
    return (cpu.*collective)(values, options);
  };
}

}  // namespace

WorkPointer broadcast(HostRunner& runner, DueCall call, const c10d::BroadcastOptions& options) {
  const Intent intent = options.rootRank == runner.rank() ? Intent::kRead : Intent::kWrite;
  return runner.start_alike(std::move(call), intent, [options](Backend& cpu, at::Tensor& some) {
    Tensors values{some};
    return cpu.broadcast(values, options);
  });
}

WorkPointer all_reduce(HostRunner& runner, DueCall call, const c10d::AllreduceOptions& options) {
  const Reduction reduction(options.reduceOp);
  return runner.start_alike(
      std::move(call), Intent::kReadWrite, reducing(reduction, options, &Backend::allreduce),
      [reduction, ranks = runner.size()](const at::Tensor& some) { reduction.finish(some, ranks); });
}

WorkPointer reduce(HostRunner& runner, DueCall call, const c10d::ReduceOptions& options) {
  const Reduction reduction(options.reduceOp);
  const bool is_root = options.rootRank == runner.rank();
  return runner.start_alike(std::move(call), Intent::kReadWrite, reducing(reduction, options, &Backend::reduce),
                            [reduction, is_root, ranks = runner.size()](const at::Tensor& some) {
                              if (is_root) reduction.finish(some, ranks);
                            });
}

WorkPointer barrier(HostRunner& runner, DueCall call, const c10d::BarrierOptions& options) {
  return runner.start(std::move(call), [options](Backend& cpu) -> Works { return {cpu.barrier(options)}; });
}

WorkPointer gather(HostRunner& runner, DueCall call, const TensorLists& outputs, const c10d::GatherOptions& options) {
  const at::Tensor& input = call->inputs[0];
  if (is_long(input) && are_dense(joined(outputs))) return gather_long(runner, std::move(call), outputs, options);
  const Tensors own{call->exchange->elements(input, Intent::kRead)};
  TensorLists values, places;
  for (const Tensors& list : outputs) {
    values.push_back(call->exchange->elements(list, Intent::kWrite));
    places.push_back(contiguous_places(values.back()));
  }
  const auto issue = [own, places, options](Backend& cpu) -> Works {
    Tensors leaving = contiguous(own);
    TensorLists arriving = places;
    return {cpu.gather(arriving, leaving, options)};
  };
  return runner.start(std::move(call), issue, [places, values] { copy_back(joined(places), joined(values)); });
}

WorkPointer scatter(HostRunner& runner, DueCall call, const at::Tensor& output, const TensorLists& inputs,
                    const c10d::ScatterOptions& options) {
  if (is_long(output) && are_dense(joined(inputs))) {
    return scatter_long(runner, std::move(call), output, inputs, options);
  }
  const Tensors own{call->exchange->elements(output, Intent::kWrite)};
  const Tensors places = contiguous_places(own);
  TensorLists values;
  for (const Tensors& list : inputs) values.push_back(call->exchange->elements(list, Intent::kRead));
  const auto issue = [places, values, options](Backend& cpu) -> Works {
    Tensors arriving = places;
    TensorLists leaving;
    for (const Tensors& list : values) leaving.push_back(contiguous(list));
    return {cpu.scatter(arriving, leaving, options)};
  };
  return runner.start(std::move(call), issue, [places, own] { copy_back(places, own); });
}

}  // namespace outboard::distributed::on_host
