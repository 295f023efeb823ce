// SPDX-License-Identifier: Apache-2.0
#include "torch/eager/eager_operator.h"

#include <ATen/core/enum_tag.h>

#include <algorithm>
#include <memory>
#include <shared_mutex>
#include <unordered_map>

#include "torch/eager/operator_facts.h"

namespace outboard::aten {
namespace {

ArgumentRole role_of(const c10::TypePtr& declared) {
  c10::TypePtr type = declared;
  if (const auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
  if (type->kind() == c10::TypeKind::TensorType) return ArgumentRole::kTensor;
  if (type->kind() == c10::TypeKind::NumberType) return ArgumentRole::kScalar;
  if (type->kind() == c10::TypeKind::GeneratorType) return ArgumentRole::kGenerator;
  const auto list = type->cast<c10::ListType>();
  if (!list) return ArgumentRole::kBaked;
  const ArgumentRole element = role_of(list->getElementType());
  if (element == ArgumentRole::kTensor) return ArgumentRole::kTensorList;
  if (element == ArgumentRole::kScalar) return ArgumentRole::kScalarList;
  return ArgumentRole::kBaked;
}

/// Whether an argument is a number, or a list of numbers, of which plans take any value.
bool is_run_time_number(const c10::Argument& argument, const OperatorFacts& facts) {
  if (std::find(facts.run_time.begin(), facts.run_time.end(), argument.name()) == facts.run_time.end()) return false;
  return role_of(argument.real_type()) == ArgumentRole::kBaked;
}

/// The role of an argument, by its type and, for numbers, by what the operator's facts say.
ArgumentRole role_of(const c10::Argument& argument, const OperatorFacts& facts) {
  if (!is_run_time_number(argument, facts)) return role_of(argument.real_type());
  return argument.type()->cast<c10::ListType>() ? ArgumentRole::kNumberList : ArgumentRole::kNumber;
}

/// The argument that a return aliases for writing, or -1.
int aliased_argument(const c10::FunctionSchema& schema, const c10::Argument& result) {
  if (result.alias_info() == nullptr || !result.alias_info()->isWrite()) return -1;
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const auto* info = schema.arguments()[i].alias_info();
    if (info != nullptr && info->beforeSets() == result.alias_info()->beforeSets()) return static_cast<int>(i);
  }
  return -1;
}

/// Pointwise, with a result that lies as the arguments do, and no random numbers, which go by place.
bool coalesces(const Operator& op) {
  if (!op.pointwise || op.random || op.handle.schema().argumentIndexWithName("memory_format")) return false;
  return std::none_of(op.roles.begin(), op.roles.end(), [](ArgumentRole role) {
    return role == ArgumentRole::kTensorList || role == ArgumentRole::kGenerator;
  });
}

std::unique_ptr<Operator> describe(const c10::OperatorHandle& handle) {
  const c10::FunctionSchema& schema = handle.schema();
  auto record = std::make_unique<Operator>(
      Operator{handle, facts_of(schema), c10::toString(schema.operator_name()), {}, {}, {}, {}});
  for (const c10::Argument& argument : schema.arguments()) {
    const bool written = argument.alias_info() != nullptr && argument.alias_info()->isWrite();
    record->written.push_back(written);
    record->writes = record->writes || written;
    record->is_out.push_back(written && argument.kwarg_only());
    record->out_variant = record->out_variant || record->is_out.back();
  }
  for (const c10::Argument& argument : schema.arguments()) {
    record->roles.push_back(record->out_variant ? role_of(argument.real_type()) : role_of(argument, record->facts));
  }
  for (const c10::Argument& result : schema.returns()) {
    record->aliased_argument.push_back(aliased_argument(schema, result));
  }
  record->pointwise = handle.hasTag(at::Tag::pointwise);
  record->random = handle.hasTag(at::Tag::nondeterministic_seeded);
  record->coalesces = coalesces(*record);
  return record;
}

struct Registry {
  std::shared_mutex mutex;
  std::unordered_map<const c10::FunctionSchema*, std::unique_ptr<Operator>> records;
};

Registry& registry() {
  static Registry* const instance = new Registry;  // leaked: operators run until the process ends
  return *instance;
}

const Operator& registered(const c10::FunctionSchema* key, const c10::OperatorHandle& handle) {
  Registry& all = registry();
  {
    std::shared_lock lock(all.mutex);
    const auto found = all.records.find(key);
    if (found != all.records.end()) return *found->second;
  }
  auto record = describe(handle);
  std::unique_lock lock(all.mutex);
  return *all.records.emplace(key, std::move(record)).first->second;
}

/// What this thread looked up last, by schema: every call needs its record.
struct RecentOperator {
  const c10::FunctionSchema* schema = nullptr;
  const Operator* op = nullptr;
};
constexpr size_t kRecentOperators = 256;
thread_local std::array<RecentOperator, kRecentOperators> recent_operators;

}  // namespace

const Operator& operator_of(const c10::OperatorHandle& handle) {
  const c10::FunctionSchema* key = &handle.schema();
  RecentOperator& recent = recent_operators[(reinterpret_cast<uintptr_t>(key) >> 6) % kRecentOperators];
  if (recent.schema != key) recent = {key, &registered(key, handle)};
  return *recent.op;
}

const OperatorFacts& facts_of(const c10::FunctionSchema& schema) {
  static const auto* const usual = new OperatorFacts;
  const auto& all = operator_facts();
  const auto found = all.find(schema.name());
  return found == all.end() ? *usual : found->second;
}

const Operator& find_operator(const char* name, const char* overload) {
  return operator_of(c10::Dispatcher::singleton().findSchemaOrThrow(name, overload));
}

}  // namespace outboard::aten
