// SPDX-License-Identifier: Apache-2.0
#include "runtime/plans/plan_inputs.h"

#include <limits>

namespace outboard {
namespace {

constexpr size_t kNever = std::numeric_limits<size_t>::max();

void add(const CallArgument& argument, std::vector<uint32_t>& buffers) {
  if (argument.kind == CallArgument::kTensor) buffers.push_back(argument.tensor.buffer);
  for (const CallArgument& item : argument.items) add(item, buffers);
}

std::vector<uint32_t> buffers_of(const Step& step) {
  std::vector<uint32_t> buffers;
  switch (step.kind) {
    case Step::kLaunch:
      for (const Argument& argument : step.arguments) {
        if (argument.kind == Argument::kPointer) buffers.push_back(argument.buffer);
      }
      break;
    case Step::kCall:
    case Step::kExecute:
      for (const CallArgument& argument : step.call_arguments) add(argument, buffers);
      for (const ViewSpec& view : step.results) buffers.push_back(view.buffer);
      break;
    case Step::kCopy:
    case Step::kToLayout:
    case Step::kFromLayout:
      buffers = {step.source, step.target};
      break;
    case Step::kFill:
      buffers = {step.target};
      break;
    default:
      buffers = {step.buffer};
  }
  return buffers;
}

}  // namespace

std::vector<std::vector<uint32_t>> inputs_ending_at(const Plan& plan) {
  std::vector<size_t> last(plan.inputs.size(), kNever);
  for (size_t i = 0; i < plan.steps.size(); ++i) {
    for (const uint32_t buffer : buffers_of(plan.steps[i])) {
      if (buffer < last.size()) last[buffer] = i;
    }
  }
  for (const Output& output : plan.outputs) {
    if (output.kind == Output::kInput) last[output.input] = kNever;
    if (output.kind == Output::kTensor && output.view.buffer < last.size()) last[output.view.buffer] = kNever;
  }
  std::vector<std::vector<uint32_t>> ending(plan.steps.size());
  for (size_t input = 0; input < last.size(); ++input) {
    if (last[input] != kNever) ending[last[input]].push_back(static_cast<uint32_t>(input));
  }
  return ending;
}

}  // namespace outboard
