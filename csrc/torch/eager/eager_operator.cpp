// SPDX-License-Identifier: Apache-2.0
#include "torch/eager/eager_operator.h"

#include <ATen/core/enum_tag.h>

#include <algorithm>
#include <memory>
#include <shared_mutex>
#include <unordered_map>
#include <unordered_set>

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

/// The role of an argument, by its type and, for integers, by what `run_time_numbers` says.
ArgumentRole role_of(const c10::Argument& argument, const std::vector<std::string>& numbers) {
  const bool is_number = std::find(numbers.begin(), numbers.end(), argument.name()) != numbers.end();
  if (!is_number) return role_of(argument.real_type());
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

bool has_base_name(const c10::FunctionSchema& schema, const std::unordered_set<std::string>& names) {
  std::string base = schema.name().substr(schema.name().find("::") + 2);
  if (!base.empty() && base.back() == '_' && base != "_") base.pop_back();
  return names.count(base) != 0;
}

/// Pointwise, with a result that lies as the arguments do, and no random numbers, which go by place.
bool coalesces(const Operator& op) {
  if (!op.pointwise || op.random || op.handle.schema().argumentIndexWithName("memory_format")) return false;
  return std::none_of(op.roles.begin(), op.roles.end(), [](ArgumentRole role) {
    return role == ArgumentRole::kTensorList || role == ArgumentRole::kGenerator;
  });
}

std::unique_ptr<Operator> describe(const c10::OperatorHandle& handle) {
  static const auto* const contiguous = new std::unordered_set<std::string>{"aten::masked_fill", "aten::mvlgamma"};
  static const auto* const cpu_indices = new std::unordered_set<std::string>{"index",
                                                                             "index_put",
                                                                             "_index_put_impl",
                                                                             "_unsafe_index",
                                                                             "_unsafe_index_put",
                                                                             "_unsafe_masked_index",
                                                                             "_unsafe_masked_index_put_accumulate"};
  static const auto* const cpu_tensors = new std::unordered_set<std::string>{
      "_pack_padded_sequence", "_pad_packed_sequence", "_ctc_loss", "_ctc_loss_backward", "ctc_loss", "_cudnn_rnn",
      "tensor_split"};

  const c10::FunctionSchema& schema = handle.schema();
  auto record = std::make_unique<Operator>(Operator{handle, c10::toString(schema.operator_name()), {}, {}, {}});
  const std::vector<std::string>& numbers = run_time_numbers(record->name);
  for (const c10::Argument& argument : schema.arguments()) {
    const bool written = argument.alias_info() != nullptr && argument.alias_info()->isWrite();
    record->roles.push_back(role_of(argument, numbers));
    record->written.push_back(written);
    record->writes = record->writes || written;
    record->out_variant = record->out_variant || (written && argument.kwarg_only());
  }
  for (const c10::Argument& result : schema.returns()) {
    record->aliased_argument.push_back(aliased_argument(schema, result));
  }
  record->pointwise = handle.hasTag(at::Tag::pointwise);
  record->wide_statistics =
      record->name == "aten::native_layer_norm_backward" || record->name == "aten::native_batch_norm_backward";
  record->idempotent = record->name.rfind("aten::threshold", 0) == 0;  // the one that PyTorch does not check
  record->random = handle.hasTag(at::Tag::nondeterministic_seeded);
  record->coalesces = coalesces(*record);
  record->contiguous = contiguous->count(schema.name()) != 0;
  record->accepts_cpu_indices = has_base_name(schema, *cpu_indices);
  record->accepts_cpu_tensors = has_base_name(schema, *cpu_tensors);
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

const std::vector<std::string>& run_time_numbers(const std::string& op) {
  static const auto* const all = new std::unordered_map<std::string, std::vector<std::string>>{
      {"aten::constant_pad_nd", {"pad"}},
      {"aten::embedding_dense_backward", {"num_weights"}},
      {"aten::native_dropout", {"p"}},
      {"aten::native_dropout_backward", {"scale"}},
      {"aten::native_group_norm", {"N", "C", "HxW"}},
      {"aten::native_group_norm_backward", {"N", "C", "HxW"}},
      {"aten::native_layer_norm", {"normalized_shape"}},
      {"aten::native_layer_norm_backward", {"normalized_shape"}},
      {"aten::reflection_pad1d", {"padding"}},
      {"aten::reflection_pad2d", {"padding"}},
      {"aten::repeat", {"repeats"}},
      {"aten::replication_pad1d", {"padding"}},
      {"aten::replication_pad2d", {"padding"}},
      {"aten::roll", {"shifts"}},
      {"aten::select_backward", {"input_sizes", "index"}},
      {"aten::slice_backward", {"input_sizes", "start", "end"}},
      {"aten::tril", {"diagonal"}},
      {"aten::triu", {"diagonal"}},
      {"aten::upsample_bilinear2d", {"output_size"}},
      {"aten::upsample_nearest2d", {"output_size"}},
      {"aten::bernoulli_.float", {"p"}},
      {"aten::cauchy_", {"median", "sigma"}},
      {"aten::exponential_", {"lambd"}},
      {"aten::geometric_", {"p"}},
      {"aten::log_normal_", {"mean", "std"}},
      {"aten::normal_", {"mean", "std"}},
      {"aten::random_.from", {"from", "to"}},
      {"aten::random_.to", {"to"}},
      {"aten::uniform_", {"from", "to"}},
      {"torchvision::_roi_align_backward", {"batch_size", "height", "width"}},
      {"torchvision::_roi_pool_backward", {"batch_size", "height", "width"}},
      {"torchvision::_ps_roi_align_backward", {"batch_size", "height", "width"}},
      {"torchvision::_ps_roi_pool_backward", {"batch_size", "height", "width"}},
  };
  static const auto* const none = new std::vector<std::string>;
  const auto found = all->find(op);
  return found == all->end() ? *none : found->second;
}

const Operator& find_operator(const char* name, const char* overload) {
  return operator_of(c10::Dispatcher::singleton().findSchemaOrThrow(name, overload));
}

}  // namespace outboard::aten
