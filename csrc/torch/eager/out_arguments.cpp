// SPDX-License-Identifier: Apache-2.0
#include "torch/eager/out_arguments.h"

#include <ATen/EmptyTensor.h>
#include <ATen/TensorIterator.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/empty.h>
#include <pybind11/pybind11.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <unordered_map>

#include "torch/eager/compiler.h"
#include "torch/eager/fallback.h"
#include "torch/eager/overlap.h"
#include "torch/eager/result_layouts.h"
#include "torch/eager/stand_ins.h"
#include "torch/eager/unheard.h"

namespace outboard::aten {
namespace {

/// Whether a schema has an operator's arguments but for those of `out=`, and writes to none.
bool has_other_arguments(const c10::FunctionSchema& schema, const Operator& op) {
  if (schema.is_mutable()) return false;
  const auto& all = op.handle.schema().arguments();
  size_t next = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    if (op.is_out[i]) continue;
    if (next == schema.arguments().size()) return false;
    const c10::Argument& other = schema.arguments()[next++];
    if (other.name() != all[i].name() || *other.type() != *all[i].type()) return false;
  }
  return next == schema.arguments().size();
}

std::optional<c10::OperatorHandle> find_functional(const Operator& op) {
  c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    if (name.name != op.handle.operator_name().name) continue;
    const std::optional<c10::OperatorHandle> found = dispatcher.findSchema(name);
    if (found && has_other_arguments(found->schema(), op)) return found;
  }
  return std::nullopt;
}

/// The overload of an operator that returns what it writes to `out=`. Looks through all operators once for each.
std::optional<c10::OperatorHandle> functional_of(const Operator& op) {
  static std::mutex mutex;
  static auto* const known = new std::unordered_map<const Operator*, std::optional<c10::OperatorHandle>>;
  const std::lock_guard lock(mutex);
  const auto [entry, is_new] = known->try_emplace(&op);
  if (is_new) entry->second = find_functional(op);
  return entry->second;
}

/// The `out=` tensors of one call.
class OutArguments {
 public:
  OutArguments(const Operator& op, Arguments& arguments) : op_(op), arguments_(arguments) {}

  /// See `resize_outputs`.
  bool resize() {
    torch::jit::Stack results;
    if (!form_results(results)) return false;
    if (changed_by(results).empty()) return false;
    take_form_of_returned(results);
    const c10::SmallVector<size_t, 2> changed = changed_by(results);
    if (changed.empty()) return false;
    const bool is_announced = announce_resizing(changed);
    for (const size_t i : changed) {
      const at::Tensor& out = arguments_[i].toTensor();
      const at::Tensor form = as_facts_say(results[i].toTensor(), results);
      TORCH_CHECK(out.numel() == 0 || !is_read(op_, arguments_, out), "output with shape ", out.sizes(),
                  " doesn't match the broadcast shape ", form.sizes());
      is_announced ? void(out.resize_(form.sizes())) : void(at::native::resize_output(out, form.sizes()));
      lay_out(out, form.sizes(), form.strides());
    }
    return true;
  }

 private:
  /// The `out=` tensors that have other sizes than these results.
  c10::SmallVector<size_t, 2> changed_by(const torch::jit::Stack& results) const {
    c10::SmallVector<size_t, 2> changed;
    for (size_t i = 0; i < op_.roles.size(); ++i) {
      const bool is_formed = op_.is_out[i] && results[i].isTensor();
      if (is_formed && arguments_[i].toTensor().sizes() != results[i].toTensor().sizes()) changed.push_back(i);
    }
    return changed;
  }

  /// Before `out=` tensors that are not empty are resized: the CPU's kernel warns, where it does, or refuses. False:
  /// the call is too large to be tried there, or the CPU has no say.
  bool announce_resizing(c10::ArrayRef<size_t> changed) {
    const bool are_empty =
        std::all_of(changed.begin(), changed.end(), [&](size_t i) { return arguments_[i].toTensor().numel() == 0; });
    return are_empty || rehearse_on_cpu(op_, arguments_, Heard::kResizing);
  }

  /// The arguments on `meta`, where `out=` tensors were empty and have got the form of the results; on the CPU, and
  /// zero, if PyTorch has no shape function. False: there is one that is stricter than the operator, or the call is too
  /// large to be tried on the CPU; then the compiler's tracing decides.
  bool form_results(torch::jit::Stack& stack) {
    try {
      const bool has_shapes = op_.handle.hasComputedKernelForDispatchKey(at::DispatchKey::Meta);
      if (has_shapes) {
        form_results_on(c10::kMeta, stack);
        return true;
      }
    } catch (const c10::NotImplementedError&) {
      stack.clear();
    } catch (const pybind11::error_already_set& error) {
      if (!is_left_to_cpu(op_, arguments_, error.type().ptr())) throw;
      return false;
    }
    if (!rehearse_on_cpu(op_, arguments_)) return false;
    form_results_on(c10::kCPU, stack);
    return true;
  }

  void form_results_on(c10::Device device, torch::jit::Stack& stack) {
    StandIns stand_ins(device, arguments_);
    for (size_t i = 0; i < op_.roles.size(); ++i) {
      const c10::IValue& value = arguments_[i];
      const bool is_out = op_.is_out[i] && value.isTensor() && value.toTensor().defined();
      stack.push_back(is_out ? c10::IValue(at::empty({0}, value.toTensor().options().device(device)))
                             : stand_ins.of(value));
    }
    torch::jit::Stack called = stack;
    const Unheard unheard;
    op_.handle.callBoxed(&called);
  }

  /// The forms of what the overload without `out=` returns for these stand-ins, in place of `out=` tensors: shape
  /// functions that are written in Python lay the latter out contiguously, or leave them as they are.
  void take_form_of_returned(torch::jit::Stack& stand_ins) {
    const std::optional<c10::OperatorHandle> functional = functional_of(op_);
    if (!functional || !functional->hasComputedKernelForDispatchKey(at::DispatchKey::Meta)) return;
    torch::jit::Stack returned;
    for (size_t i = 0; i < op_.roles.size(); ++i) {
      if (!op_.is_out[i]) returned.push_back(stand_ins[i]);
    }
    const Unheard unheard;
    functional->callBoxed(&returned);
    size_t next = 0;
    for (size_t i = 0; i < op_.roles.size() && next < returned.size(); ++i) {
      if (op_.is_out[i] && returned[next].isTensor()) stand_ins[i] = returned[next++];
    }
  }

  /// A result as the operator's row of facts says that it lies, made from these stand-ins.
  at::Tensor as_facts_say(const at::Tensor& result, const torch::jit::Stack& stand_ins) const {
    const auto found = result_layouts().find(op_.handle.schema().name());
    if (found == result_layouts().end()) return result;
    const ResultLayout& layout = found->second;
    if (layout.kind == ResultLayout::kContiguous) return result.contiguous();
    if (layout.kind == ResultLayout::kContiguousOfComplex) {
      return stand_ins[0].toTensor().is_complex() ? result.contiguous() : result;
    }
    if (layout.kind == ResultLayout::kOfFirstOperand) return iterated(result, stand_ins, stand_ins.size());
    if (layout.kind == ResultLayout::kOfFirstAlone) return iterated(result, stand_ins, 1);
    const at::Tensor& pattern = stand_ins[layout.argument].toTensor();
    return result.dim() == pattern.dim() ? result.contiguous(pattern.suggest_memory_format()) : result;
  }

  /// The result of a `TensorIterator` over the tensors among the first `count` arguments, the first of which decides.
  at::Tensor iterated(const at::Tensor& result, const torch::jit::Stack& stand_ins, size_t count) const {
    at::TensorIteratorConfig config;
    config.check_all_same_dtype(false).allow_cpu_scalars(true);
    config.declare_static_dtype_and_device(result.scalar_type(), result.device());
    config.add_owned_output(at::Tensor());
    for (size_t i = 0; i < count; ++i) {
      if (op_.is_out[i] || !stand_ins[i].isTensor()) continue;
      const at::Tensor& operand = stand_ins[i].toTensor();
      const bool says_nothing = operand.dim() == 0 && count > 1;  // alone it has to have the sizes
      config.add_owned_const_input(says_nothing ? operand : operand.expand(result.sizes()));
    }
    return config.build().output();
  }

  const Operator& op_;
  Arguments& arguments_;
};

}  // namespace

bool resize_outputs(const Operator& op, Arguments& arguments) { return OutArguments(op, arguments).resize(); }

void lay_out(const at::Tensor& tensor, at::IntArrayRef sizes, at::IntArrayRef strides) {
  const size_t room = at::detail::computeStorageNbytes(sizes, strides, 1);
  tensor.resize_({static_cast<int64_t>(room)});
  tensor.as_strided_(sizes, strides);
}

void write_out(const at::Tensor& out, const at::Tensor& result) {
  if (at::native::resize_output(out, result.sizes())) lay_out(out, result.sizes(), result.strides());
  out.copy_(result);
}

}  // namespace outboard::aten
