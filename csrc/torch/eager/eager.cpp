// SPDX-License-Identifier: Apache-2.0
#include "torch/eager/eager.h"

#include <atomic>
#include <iterator>
#include <utility>

#include "torch/bridge/devices.h"
#include "torch/bridge/tensor.h"
#include "torch/eager/cpu_operators.h"
#include "torch/eager/eager_call.h"
#include "torch/eager/eager_signature.h"
#include "torch/eager/fallback.h"
#include "torch/eager/plan_table.h"

namespace outboard::aten {
namespace {

/// The arguments on top of a stack, for an operator.
Arguments arguments_on(torch::jit::Stack& stack, const Operator& op) {
  const size_t count = op.roles.size();
  return Arguments(stack.data() + (stack.size() - count), count, Arguments::kOwned);
}

void call_on_stack(const Operator& op, torch::jit::Stack* stack, bool library) {
  c10::SmallVector<c10::IValue, 4> results;
  {
    Arguments arguments = arguments_on(*stack, op);
    EagerCall call(op, arguments, nullptr, library);
    if (!call.run()) return run_on_cpu(op, call.device(), stack, call.cause());
    results = call.values();
  }
  torch::jit::drop(*stack, op.roles.size());
  for (c10::IValue& value : results) stack->push_back(std::move(value));
}

}  // namespace

void eager_kernel(const c10::OperatorHandle& handle, c10::DispatchKeySet /*keys*/, torch::jit::Stack* stack) {
  require_parent_process();
  const Operator& op = operator_of(handle);
  if (contents_wait() && make_on_host(op, stack)) return;
  call_on_stack(op, stack, /*library=*/true);
}

void eager_without_library(const Operator& op, torch::jit::Stack* stack) {
  call_on_stack(op, stack, /*library=*/false);
}

at::Tensor eager_tensor(const Operator& op, Arguments& arguments) {
  EagerCall call(op, arguments);
  if (call.run()) return call.tensor();
  torch::jit::Stack stack(arguments.begin(), arguments.end());
  run_on_cpu(op, call.device(), &stack, call.cause());
  return stack.front().toTensor();
}

void eager_write(const Operator& op, Arguments& arguments, Batch* batch) {
  EagerCall call(op, arguments, batch);
  if (call.run()) return;
  torch::jit::Stack stack(arguments.begin(), arguments.end());
  run_on_cpu(op, call.device(), &stack, call.cause());
}

KnownPlans::KnownPlans(const Operator& op, Arguments& arguments) : device_(unify_devices(op, arguments)) {
  PerThread& mine = per_thread();
  const Reclaimer::Section reading(mine.plans.reader);
  CallSignature signature;
  if (!make_signature(op, arguments, /*bake=*/false, signature)) return;
  const PlanEntry& entry = mine.plans.entry_of(op, device_, signature.bytes);
  const bool bakes = entry.bake.load(std::memory_order_acquire);  // its plans are elsewhere, by the values of scalars
  const bool has_plans = entry.on_cpu.load(std::memory_order_acquire) == FallbackCause::kNone;
  if (!bakes && has_plans) entry_ = &entry;
  generation_ = mine.plans.generation();
}

bool KnownPlans::run(const c10::SmallVectorImpl<Input>& inputs, Batch* batch) const {
  if (entry_ == nullptr) return false;
  PerThread& mine = per_thread();
  const Reclaimer::Section reading(mine.plans.reader);
  if (generation_ != PlanTable::instance().generation()) return false;
  Lent<Scalar> symbols(mine.symbols);
  Lent<Result> results(mine.results);
  const Executable* executable = find_plan(*entry_, inputs.data(), *symbols);
  if (executable == nullptr || executable->draws()) return false;
  mine.hits.add();
  ExecutionContext context{current_stream(device_)};
  context.batch = batch;
  translate_errors([&] { executable->run(inputs.data(), *symbols, context, *results); });
  return true;
}

void compiled_copy(const at::Tensor& dst, const at::Tensor& src) {
  static const Operator& copy = find_operator("aten::copy_", "");
  c10::IValue values[] = {lend(dst), lend(src), false};
  Arguments arguments(values, std::size(values), Arguments::kLent);
  eager_write(copy, arguments);
}

}  // namespace outboard::aten
