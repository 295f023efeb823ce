// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/empty.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <utility>

#include "runtime/device.h"
#include "torch/distributed/by_host/host_collectives.h"
#include "torch/distributed/terms/terms.h"

namespace outboard::distributed::on_host {
namespace {

using c10d::Backend;
using MakePart = HostRunner::MakePart;
using Part = HostRunner::Part;
using Parts = HostRunner::Parts;
using Works = HostRunner::Works;

/// Tensors without gaps from and for each rank, in the order of rows.
struct Lists {
  Tensors outputs, inputs;
};

/// What belongs to each rank of a dense tensor, in the order of memory.
Tensors rows_of(const at::Tensor& tensor, const std::vector<uint64_t>& bytes) {
  Tensors rows;
  int64_t begin = 0;
  for (const uint64_t part : bytes) {
    const auto end = begin + static_cast<int64_t>(part) / tensor.itemsize();
    rows.push_back(some_of(tensor, begin, end));
    begin = end;
  }
  return rows;
}

/// One tensor of all: the CPU backend takes lists of tensors of one shape alone.
MakePart part_of_lists(const Lists& lists, const c10d::AllToAllOptions& options) {
  return [lists, options](Exchange& exchange) -> Part {
    const Tensors own = exchange.elements(lists.inputs, Intent::kRead);
    const Tensors values = exchange.elements(lists.outputs, Intent::kWrite);
    auto sent = counts_of(own), received = counts_of(values);
    const at::Tensor arrived =
        at::empty({std::accumulate(received.begin(), received.end(), int64_t{0})}, own[0].options());
    const auto issue = [own, arrived, sent, received, options](Backend& cpu) mutable -> Works {
      at::Tensor all = in_a_row(own), place = arrived;
      return {cpu.alltoall_base(place, all, received, sent, options)};
    };
    const auto after = [values, arrived, received] {
      int64_t begin = 0;
      for (size_t i = 0; i < values.size(); begin += received[i++]) {
        values[i].copy_(arrived.slice(0, begin, begin + received[i]).view(values[i].sizes()));
      }
    };
    return {issue, after};
  };
}

/// Makes the parts of which ranks agree on the number: no rank knows how much the others have for each other. `last`:
/// what comes behind them.
HostRunner::MakeParts agreed_parts(HostRunner& runner, const Lists& lists, bool stages,
                                   const c10d::AllToAllOptions& options, const Parts& last) {
  const uint64_t longest = std::max(bytes_of_all(lists.inputs), bytes_of_all(lists.outputs));
  return [&runner, lists, longest, stages, options, last](CollectiveWork& work) {
    const int64_t count = runner.greatest(stages ? count_of_parts(longest) : 1, work);
    Parts parts;
    for (int64_t k = 0; k < count; ++k) {
      const Lists some{part_of_each(lists.outputs, k, count), part_of_each(lists.inputs, k, count)};
      parts.push_back(part_of_lists(some, options));
    }
    parts.insert(parts.end(), last.begin(), last.end());
    return parts;
  };
}

/// `whole`: all of it in one piece. Ranks agree once on whether parts are needed at all.
WorkPointer start(HostRunner& runner, DueCall call, const MakePart& whole, const Lists& lists,
                  const c10d::AllToAllOptions& options, const Parts& last) {
  const bool stages = !call->exchange->transfers().device().host_accessible();
  const HostRunner::MakeParts make = agreed_parts(runner, lists, stages, options, last);
  if (stages) {
    return runner.start_parts(std::move(call), [&runner, make](CollectiveWork& work) {
      runner.someone_stages(true, work);
      return make(work);
    });
  }
  const Part at_once = whole(*call->exchange);
  const auto is_whole = std::make_shared<bool>(false);
  const auto issue = [&runner, at_once, is_whole, make, exchange = call->exchange, copies = call->parts](
                         Backend& cpu, CollectiveWork& work) -> Works {
    *is_whole = !runner.someone_stages(false, work);
    if (*is_whole) return at_once.issue(cpu);
    runner.run_parts(work, make(work), *copies);
    exchange->give_back_behind(*copies);
    return {};
  };
  return runner.start_agreed(std::move(call), issue, [at_once, is_whole] {
    if (*is_whole && at_once.after) at_once.after();
  });
}

}  // namespace

WorkPointer all_to_all_single(HostRunner& runner, DueCall call, const at::Tensor& output, const at::Tensor& input,
                              const std::vector<int64_t>& output_splits, const std::vector<int64_t>& input_splits,
                              const c10d::AllToAllOptions& options) {
  const auto sent = bytes_of_parts(input, input_splits, runner.size());
  const auto received = bytes_of_parts(output, output_splits, runner.size());
  const MakePart whole = [input, output, input_splits, output_splits, options](Exchange& exchange) -> Part {
    const at::Tensor own = exchange.elements(input, Intent::kRead), values = exchange.elements(output, Intent::kWrite);
    const at::Tensor arriving = contiguous_places({values})[0];
    const auto issue = [own, arriving, received = output_splits, sent = input_splits,
                        options](Backend& cpu) mutable -> Works {
      at::Tensor leaving = own.contiguous(), place = arriving;
      return {cpu.alltoall_base(place, leaving, received, sent, options)};
    };
    return {issue, [values, arriving] { copy_back({arriving}, {values}); }};
  };
  TORCH_CHECK_VALUE(are_dense({input, output}), "Tensors must be contiguous");
  const Tensors places = contiguous_places({output}), own = contiguous({input});
  Parts last;
  add_copies(last, places, {output}, *call->parts);
  const Lists lists{rows_of(places[0], received), rows_of(own[0], sent)};
  return start(runner, std::move(call), whole, lists, options, last);
}

WorkPointer all_to_all(HostRunner& runner, DueCall call, const Tensors& outputs, const Tensors& inputs,
                       const c10d::AllToAllOptions& options) {
  for (const Tensors* tensors : {&outputs, &inputs}) {
    TORCH_CHECK_VALUE(are_dense(*tensors), "Tensors must be contiguous");
  }
  const MakePart whole = part_of_lists({outputs, inputs}, options);
  const Tensors places = contiguous_places(outputs);
  Parts last;
  add_copies(last, places, outputs, *call->parts);
  return start(runner, std::move(call), whole, {places, contiguous(inputs)}, options, last);
}

}  // namespace outboard::distributed::on_host
