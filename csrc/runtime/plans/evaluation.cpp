// SPDX-License-Identifier: Apache-2.0
#include "runtime/plans/evaluation.h"

#include <algorithm>

#include "runtime/base/error.h"

namespace outboard {
namespace {

uint32_t value_count(const Step& step) {
  switch (step.kind) {
    case Step::kAllocate:
    case Step::kSeeds:
    case Step::kToLayout:
    case Step::kFromLayout:
      return 1;
    case Step::kCopy:
      return 3;
    case Step::kFill:
      return 2;
    case Step::kLaunch:
      return 3 + static_cast<uint32_t>(step.arguments.size());
    case Step::kFree:
    case Step::kCall:
    case Step::kExecute:
      break;
  }
  return 0;
}

uint32_t value_count(const Output& output) {
  if (output.kind == Output::kInt) return 1;
  if (output.kind != Output::kTensor) return 0;
  return static_cast<uint32_t>(output.view.sizes.size() + output.view.strides.size()) + 2;
}

template <typename Item>
void lay_out(const std::vector<Item>& items, std::vector<uint32_t>& places, uint32_t& end) {
  for (const Item& item : items) {
    places.push_back(end);
    end += value_count(item);
  }
}

/// More work-items than any launch has, and fewer than arithmetic on their number could wrap around.
constexpr int64_t kMostItems = int64_t{1} << 48;
/// Elements; the same of views.
constexpr int64_t kFarthest = int64_t{1} << 56;

void evaluate_launch(const Step& step, const Scalar* symbols, int64_t* values) {
  int64_t items = 1;
  for (int i = 0; i < 3; ++i) {
    const int64_t size = step.global_size[i].code.empty() ? 1 : evaluate(step.global_size[i], symbols);
    if (size <= 0) {
      values[0] = 0;
      return;
    }
    const auto local = static_cast<int64_t>(step.local_size[0] == 0 ? 1 : std::max<uint32_t>(step.local_size[i], 1));
    if (size > kMostItems) throw Error(OB_INVALID_ARGUMENT, "a plan launches more work-items than there can be");
    values[i] = (size + local - 1) / local * local;
    if (__builtin_mul_overflow(items, values[i], &items) || items > kMostItems) {
      throw Error(OB_INVALID_ARGUMENT, "a plan launches more work-items than there can be");
    }
  }
  values += 3;
  for (const Argument& argument : step.arguments) *values++ = evaluate(argument.expr, symbols);
}

void evaluate_step(const Step& step, const Scalar* symbols, int64_t* values) {
  if (step.kind == Step::kLaunch) return evaluate_launch(step, symbols, values);
  if (value_count(step) == 0) return;
  if (step.kind == Step::kToLayout || step.kind == Step::kFromLayout) {
    values[0] = evaluate(step.kind == Step::kToLayout ? step.source_offset : step.target_offset, symbols);
    return;
  }
  values[0] = evaluate(step.nbytes, symbols);
  if (step.kind == Step::kFill) values[1] = evaluate(step.target_offset, symbols);
  if (step.kind != Step::kCopy) return;
  values[1] = evaluate(step.source_offset, symbols);
  values[2] = evaluate(step.target_offset, symbols);
}

int64_t checked_offset(int64_t elements) {
  if (elements < -kFarthest || elements > kFarthest) {
    throw Error(OB_INVALID_ARGUMENT, "a plan's view begins where no memory is");
  }
  return elements;
}

void evaluate_output(const Output& output, const Scalar* symbols, int64_t* values) {
  if (output.kind == Output::kInt) *values = evaluate(output.expr, symbols);
  if (output.kind != Output::kTensor) return;
  const ViewSpec& view = output.view;
  const int64_t* const sizes = values;
  for (const Expr& size : view.sizes) *values++ = evaluate(size, symbols);
  const int64_t* const strides = values;
  for (const Expr& stride : view.strides) *values++ = evaluate(stride, symbols);
  *values++ = checked_offset(evaluate(view.offset, symbols));
  *values = static_cast<int64_t>(span_bytes(sizes, strides, view.sizes.size(), view.dtype));
}

}  // namespace

Evaluation::Evaluation(const Plan& plan) {
  uint32_t end = 0;
  lay_out(plan.steps, steps_, end);
  lay_out(plan.outputs, outputs_, end);
  values_.resize(end);
  for (uint32_t i = 0; i < plan.symbols.size(); ++i) {
    if (plan.symbols[i].source != Symbol::kFloat) integers_.push_back(i);
  }
  of_.resize(integers_.size());
}

bool Evaluation::is_of(const Scalar* symbols) const {
  if (!known_) return false;
  for (size_t i = 0; i < integers_.size(); ++i) {
    if (symbols[integers_[i]].i != of_[i]) return false;
  }
  return true;
}

void Evaluation::update(const Plan& plan, const Scalar* symbols) {
  known_ = false;
  for (size_t i = 0; i < plan.steps.size(); ++i) evaluate_step(plan.steps[i], symbols, values_.data() + steps_[i]);
  for (size_t i = 0; i < plan.outputs.size(); ++i) {
    evaluate_output(plan.outputs[i], symbols, values_.data() + outputs_[i]);
  }
  for (size_t i = 0; i < integers_.size(); ++i) of_[i] = symbols[integers_[i]].i;
  known_ = true;
}

}  // namespace outboard
