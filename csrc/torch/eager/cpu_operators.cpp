// SPDX-License-Identifier: Apache-2.0
#include "torch/eager/cpu_operators.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>

#include <utility>
#include <vector>

#include "torch/bridge/tensor.h"
#include "torch/eager/fallback.h"

namespace outboard::aten {
namespace {

/// Turns one library call into a call of the ATen operator of that name, on CPU tensors over the same memory
/// (or, where the host cannot address it, over copies).
class OperatorCall {
 public:
  explicit OperatorCall(HostCall& call) : call_(call), in_place_(call.stream.device().host_accessible()) {}

  void run() {
    const c10::OperatorHandle op = find();
    const c10::FunctionSchema& schema = op.schema();
    call_.stream.synchronize();
    torch::jit::Stack stack = defaults(schema);
    for (size_t i = 0; i < call_.arguments.size(); ++i) {
      const size_t position = position_of(schema, i);
      const c10::Argument& declared = schema.arguments()[position];
      written_ = declared.alias_info() != nullptr && declared.alias_info()->isWrite();
      stack[position] = value(call_.arguments[i], declared.real_type());
    }
    op.callBoxed(&stack);
    store_results(stack);
    for (const auto& [view, cpu] : written_back_) copy_to_device(view, cpu);
  }

 private:
  c10::OperatorHandle find() const {
    const std::string& full = call_.step.name;
    const size_t scope = full.find("::");
    const size_t dot = full.find('.', scope == std::string::npos ? 0 : scope);
    const std::string overload = dot == std::string::npos ? "" : full.substr(dot + 1);
    return c10::Dispatcher::singleton().findSchemaOrThrow(full.substr(0, dot).c_str(),
                                                          overload == "default" ? "" : overload.c_str());
  }

  static torch::jit::Stack defaults(const c10::FunctionSchema& schema) {
    torch::jit::Stack stack;
    for (const c10::Argument& argument : schema.arguments()) {
      stack.push_back(argument.default_value().value_or(c10::IValue()));
    }
    return stack;
  }

  size_t position_of(const c10::FunctionSchema& schema, size_t i) const {
    const std::string& name = call_.step.argument_names.empty() ? std::string() : call_.step.argument_names[i];
    if (name.empty()) return i;
    const std::optional<int> position = schema.argumentIndexWithName(name);
    TORCH_CHECK(position.has_value(), call_.step.name, " has no argument '", name, "'");
    return static_cast<size_t>(*position);
  }

  static at::TensorOptions options_of(const TensorView& view) {
    return at::TensorOptions().dtype(static_cast<at::ScalarType>(view.dtype)).device(c10::kCPU);
  }

  /// The view's own memory as a CPU tensor.
  static at::Tensor in_place(const TensorView& view) {
    return at::from_blob(reinterpret_cast<void*>(view.data), view.sizes, view.strides, options_of(view));
  }

  at::Tensor tensor(const TensorView& view) {
    if (in_place_) return in_place(view);
    at::Tensor cpu = at::empty_strided(view.sizes, view.strides, options_of(view));
    lending(call_.stream, cpu, [&] {
      call_.stream.copy(OB_DEVICE_TO_HOST, reinterpret_cast<uint64_t>(cpu.mutable_data_ptr()), view.data, extent(cpu));
      call_.stream.synchronize();
    });
    if (written_) written_back_.emplace_back(view, cpu);
    return cpu;
  }

  /// Bytes from the first to the last element.
  static uint64_t extent(const at::Tensor& tensor) { return tensor.numel() == 0 ? 0 : tensor.storage().nbytes(); }

  void copy_to_device(const TensorView& view, const at::Tensor& cpu) {
    lending(call_.stream, cpu, [&] {
      call_.stream.copy(OB_HOST_TO_DEVICE, view.data, reinterpret_cast<uint64_t>(cpu.const_data_ptr()), extent(cpu));
      call_.stream.synchronize();
    });
  }

  c10::IValue value(const HostArgument& argument, const c10::TypePtr& declared) {
    c10::TypePtr type = declared;
    if (const auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
    switch (argument.kind) {
      case CallArgument::kNone:
        return {};
      case CallArgument::kTensor:
        return tensor(argument.tensor);
      case CallArgument::kInt:
      case CallArgument::kDtype:
      case CallArgument::kLayout:
      case CallArgument::kMemoryFormat:
        return type->kind() == c10::TypeKind::FloatType ? c10::IValue(static_cast<double>(argument.integer))
                                                        : c10::IValue(argument.integer);
      case CallArgument::kFloat:
      case CallArgument::kFloatSymbol:
        return argument.number;
      case CallArgument::kBool:
        return argument.integer != 0;
      case CallArgument::kString:
        return argument.text;
      case CallArgument::kDevice:
        return c10::Device(c10::kCPU);
      case CallArgument::kList:
        return list(argument, type);
    }
    TORCH_CHECK(false, "unknown argument kind in a call of ", call_.step.name);
    return {};
  }

  c10::IValue list(const HostArgument& argument, const c10::TypePtr& type) {
    const auto list_type = type->cast<c10::ListType>();
    TORCH_CHECK(list_type, call_.step.name, " got a list where its schema has ", type->str());
    c10::impl::GenericList items(list_type->getElementType()->kind() == c10::TypeKind::SymIntType
                                     ? c10::IntType::get()
                                     : list_type->getElementType());
    for (const HostArgument& item : argument.list) items.push_back(value(item, list_type->getElementType()));
    return items;
  }

  void store_results(const torch::jit::Stack& stack) {
    std::vector<at::Tensor> made;
    for (const c10::IValue& item : stack) {
      // What an output mask leaves out has no result in the plan either.
      if (item.isTensor() && item.toTensor().defined()) made.push_back(item.toTensor());
      if (item.isTensorList()) {
        for (const at::Tensor& tensor : item.toTensorVector()) made.push_back(tensor);
      }
    }
    if (call_.results.empty()) return;
    TORCH_CHECK(made.size() >= call_.results.size(), call_.step.name, " returned ", made.size(), " tensors, expected ",
                call_.results.size());
    for (size_t i = 0; i < call_.results.size(); ++i) {
      store(call_.results[i], made[i]);
    }
  }

  void store(const TensorView& view, const at::Tensor& made) {
    TORCH_CHECK(made.sizes() == at::IntArrayRef(view.sizes), call_.step.name, " returned a tensor of shape ",
                made.sizes(), ", the plan expects ", at::IntArrayRef(view.sizes));
    if (in_place_) {
      in_place(view).copy_(made);
      return;
    }
    at::Tensor laid_out = at::empty_strided(view.sizes, view.strides, options_of(view));
    laid_out.copy_(made);
    copy_to_device(view, laid_out);
  }

  HostCall& call_;
  bool in_place_;
  bool written_ = false;
  std::vector<std::pair<TensorView, at::Tensor>> written_back_;
};

void run_operator(HostCall& call) {
  if (call.step.fallback) note_fallback(call.step.name);
  OperatorCall(call).run();
}

}  // namespace

void register_cpu_operators() {
  HostFunctions::get().add("aten::*", run_operator);
  HostFunctions::get().add("mkldnn::*", run_operator);
  HostFunctions::get().add("prims::*", run_operator);
}

}  // namespace outboard::aten
