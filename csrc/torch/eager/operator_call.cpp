// SPDX-License-Identifier: Apache-2.0
#include "torch/eager/operator_call.h"

#include <ATen/ScalarOps.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "torch/bridge/tensor.h"

namespace outboard::aten {
namespace {

torch::jit::Stack defaults(const c10::FunctionSchema& schema) {
  torch::jit::Stack stack;
  for (const c10::Argument& argument : schema.arguments()) {
    stack.push_back(argument.default_value().value_or(c10::IValue()));
  }
  return stack;
}

}  // namespace

void OperatorCall::run() {
  const c10::OperatorHandle op = find();
  const c10::FunctionSchema& schema = op.schema();
  torch::jit::Stack stack = defaults(schema);
  for (size_t i = 0; i < call_.arguments.size(); ++i) {
    const size_t position = position_of(schema, i);
    const c10::Argument& declared = schema.arguments()[position];
    const bool written = declared.alias_info() != nullptr && declared.alias_info()->isWrite();
    stack[position] = value(call_.arguments[i], declared.real_type(), written);
  }
  carry_out(op, stack);
  store_results(stack);
}

void OperatorCall::copy(const at::Tensor& made, const at::Tensor& target) {
  const at::Tensor once = without_repeats(target);
  once.copy_(made.as_strided(once.sizes(), made.strides()));
}

c10::OperatorHandle OperatorCall::find() const {
  constexpr std::string_view kOnDevice = "device::";
  const std::string& name = call_.step.name;
  const std::string full = name.substr(name.rfind(kOnDevice, 0) == 0 ? kOnDevice.size() : 0);
  const size_t scope = full.find("::");
  const size_t dot = full.find('.', scope == std::string::npos ? 0 : scope);
  const std::string overload = dot == std::string::npos ? "" : full.substr(dot + 1);
  return c10::Dispatcher::singleton().findSchemaOrThrow(full.substr(0, dot).c_str(),
                                                        overload == "default" ? "" : overload.c_str());
}

size_t OperatorCall::position_of(const c10::FunctionSchema& schema, size_t i) const {
  const std::string& name = call_.step.argument_names.empty() ? std::string() : call_.step.argument_names[i];
  if (name.empty()) return i;
  const std::optional<int> position = schema.argumentIndexWithName(name);
  TORCH_CHECK(position.has_value(), call_.step.name, " has no argument '", name, "'");
  return static_cast<size_t>(*position);
}

c10::IValue OperatorCall::value(const HostArgument& argument, const c10::TypePtr& declared, bool written) {
  const c10::IValue given = value_of_kind(argument, declared, written);
  const bool is_number = given.isScalar() && declared->kind() == c10::TypeKind::TensorType;
  return is_number ? c10::IValue(at::native::wrapped_scalar_tensor(given.toScalar())) : given;
}

c10::IValue OperatorCall::value_of_kind(const HostArgument& argument, const c10::TypePtr& declared, bool written) {
  c10::TypePtr type = declared;
  if (const auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
  switch (argument.kind) {
    case CallArgument::kNone:
      return {};
    case CallArgument::kTensor:
      return tensor(argument.tensor, written);
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
      return device();
    case CallArgument::kList:
      return list(argument, type, written);
  }
  TORCH_CHECK(false, "unknown argument kind in a call of ", call_.step.name);
  return {};
}

c10::IValue OperatorCall::list(const HostArgument& argument, const c10::TypePtr& type, bool written) {
  const auto list_type = type->cast<c10::ListType>();
  TORCH_CHECK(list_type, call_.step.name, " got a list where its schema has ", type->str());
  c10::impl::GenericList items(list_type->getElementType()->kind() == c10::TypeKind::SymIntType
                                   ? c10::IntType::get()
                                   : list_type->getElementType());
  for (const HostArgument& item : argument.list) {
    items.push_back(value(item, list_type->getElementType(), written));
  }
  return items;
}

void OperatorCall::store_results(const torch::jit::Stack& stack) {
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
    const TensorView& view = call_.results[i];
    TORCH_CHECK(made[i].sizes() == at::IntArrayRef(view.sizes), call_.step.name, " returned a tensor of shape ",
                made[i].sizes(), ", the plan expects ", at::IntArrayRef(view.sizes));
    store(view, made[i]);
  }
}

}  // namespace outboard::aten
