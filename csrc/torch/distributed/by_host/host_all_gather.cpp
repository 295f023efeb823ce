// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "torch/distributed/by_host/host_collectives.h"

namespace outboard::distributed::on_host {
namespace {

using c10d::Backend;
using Part = HostRunner::Part;
using Parts = HostRunner::Parts;
using Works = HostRunner::Works;

WorkPointer all_gather_uneven_long(HostRunner& runner, DueCall call, const Tensors& outputs,
                                   std::chrono::milliseconds timeout) {
  Tensors places = contiguous_places(outputs);
  places[runner.rank()] = contiguous(call->inputs)[0];
  Parts parts;
  for (int root = 0; root < runner.size(); ++root) {
    const int64_t count = count_of_parts(outputs[root].nbytes());
    const Intent intent = root == runner.rank() ? Intent::kRead : Intent::kWrite;
    for (int64_t k = 0; k < count; ++k) {
      parts.push_back([intent, root, timeout, some = part_of(places[root], k, count)](Exchange& exchange) -> Part {
        const at::Tensor value = flat(exchange.elements(some, intent));
        return {[=](Backend& cpu) -> Works { return {broadcast_from(cpu, root, timeout, value)}; }, {}};
      });
    }
  }
  add_copies(parts, places, outputs, *call->parts);
  return runner.start_parts(std::move(call), std::move(parts));
}

/// `outputs`: of each input, a tensor for each rank.
WorkPointer all_gather_long(HostRunner& runner, DueCall call, const TensorLists& outputs,
                            const c10d::AllgatherOptions& options) {
  const Tensors inputs = contiguous(call->inputs);
  TensorLists places;
  for (const Tensors& list : outputs) places.push_back(contiguous_places(list));
  Parts parts;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const int64_t count = count_of_parts(inputs[i].nbytes());
    for (int64_t k = 0; k < count; ++k) {
      parts.push_back([options, own = part_of(inputs[i], k, count),
                       arriving = part_of_each(places[i], k, count)](Exchange& exchange) -> Part {
        Tensors leaving{flat(exchange.elements(own, Intent::kRead))};
        TensorLists values{flattened(exchange.elements(arriving, Intent::kWrite))};
        return {[leaving, values, options](Backend& cpu) mutable -> Works {
                  return {cpu.allgather(values, leaving, options)};
                },
                {}};
      });
    }
    add_copies(parts, places[i], outputs[i], *call->parts);
  }
  return runner.start_parts(std::move(call), std::move(parts));
}

}  // namespace

WorkPointer broadcast_from(Backend& cpu, int root, std::chrono::milliseconds timeout, const at::Tensor& value) {
  c10d::BroadcastOptions options;
  options.rootRank = root;
  options.timeout = timeout;
  Tensors one{value};
  return cpu.broadcast(one, options);
}

WorkPointer all_gather(HostRunner& runner, DueCall call, const Tensors& outputs,
                       const c10d::AllgatherOptions& options) {
  const at::Tensor& input = call->inputs[0];
  if (of_one_size(outputs[0], input) && is_long(input) && are_dense(outputs)) {
    return all_gather_long(runner, std::move(call), {outputs}, options);
  }
  const Tensors own{call->exchange->elements(input, Intent::kRead)};
  const Tensors values = call->exchange->elements(outputs, Intent::kWrite);
  const Tensors places = contiguous_places(values);
  const auto issue = [own, places, options](Backend& cpu) -> Works {
    Tensors leaving = contiguous(own);
    TensorLists arriving{places};
    return {cpu.allgather(arriving, leaving, options)};
  };
  return runner.start(std::move(call), issue, [places, values] { copy_back(places, values); });
}

/// Each rank sends its tensor to all: the CPU backend gathers tensors of one shape alone.
WorkPointer all_gather_uneven(HostRunner& runner, DueCall call, const Tensors& outputs,
                              const c10d::AllgatherOptions& options) {
  if (are_dense(call->inputs) && are_dense(outputs) && any_is_long(outputs)) {
    return all_gather_uneven_long(runner, std::move(call), outputs, options.timeout);
  }
  const at::Tensor own = call->exchange->elements(call->inputs[0], Intent::kRead);
  const Tensors values = call->exchange->elements(outputs, Intent::kWrite);
  const Tensors places = contiguous_places(values);
  const auto issue = [own, places, rank = runner.rank(), timeout = options.timeout](Backend& cpu) {
    places[rank].copy_(own);
    Works works;
    for (int root = 0; root < static_cast<int>(places.size()); ++root) {
      works.push_back(broadcast_from(cpu, root, timeout, flat(places[root])));
    }
    return works;
  };
  return runner.start(std::move(call), issue, [places, values] { copy_back(places, values); });
}

WorkPointer all_gather_bases(HostRunner& runner, DueCall call, const Tensors& outputs,
                             const c10d::AllgatherOptions& options) {
  if (are_dense(outputs) && any_is_long(call->inputs)) {
    // In the order of memory, as short ones.
    TensorLists places;
    for (const at::Tensor& output : outputs) places.push_back(places_of(output, runner.size()));
    for (at::Tensor& input : call->inputs) input = part_of(input, 0, 1);
    return all_gather_long(runner, std::move(call), places, options);
  }
  Tensors own = flattened(call->exchange->elements(call->inputs, Intent::kRead));
  Tensors values = flattened(call->exchange->elements(outputs, Intent::kWrite));
  return runner.start(std::move(call), [own, values, options](Backend& cpu) mutable {
    Works works;
    for (size_t i = 0; i < own.size(); ++i) works.push_back(cpu._allgather_base(values[i], own[i], options));
    return works;
  });
}

WorkPointer all_gather_coalesced(HostRunner& runner, DueCall call, const TensorLists& outputs,
                                 const c10d::AllgatherOptions& options) {
  if (any_is_long(call->inputs) && are_dense(call->inputs) && are_dense(joined(outputs))) {
    return all_gather_long(runner, std::move(call), outputs, options);
  }
  const Tensors own = call->exchange->elements(call->inputs, Intent::kRead);
  TensorLists values, places;
  for (const Tensors& list : outputs) {
    values.push_back(call->exchange->elements(list, Intent::kWrite));
    places.push_back(contiguous_places(values.back()));
  }
  const auto issue = [own, places, options](Backend& cpu) {
    Works works;
    for (size_t i = 0; i < own.size(); ++i) {
      Tensors leaving = contiguous({own[i]});
      TensorLists arriving{places[i]};
      works.push_back(cpu.allgather(arriving, leaving, options));
    }
    return works;
  };
  return runner.start(std::move(call), issue, [places, values] { copy_back(joined(places), joined(values)); });
}

}  // namespace outboard::distributed::on_host
