// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "cuda/cudnn_graph.h"

namespace outboard::cuda {

using namespace cudnn;

namespace {

/// Operands of the operator, and their ids.
enum Operand : size_t { kQuery, kKey, kValue, kDropout, kCausal, kMask, kScale, kOut, kLogarithms, kOperands };
/// Ids of what is no operand: numbers by value, and what is between operations.
enum Id : int64_t { kFactor = 100, kNothing, kScoresBefore, kScoresAfter, kSoftmaxBefore, kSoftmaxAfter };
constexpr uint32_t kFloatDtype = 6;         // PyTorch's number
constexpr int kRowIsNotBeforeColumn = 303;  // CUDNN_POINTWISE_CMP_GE: which places stay

/// What is computed: softmax(query * key^T * scale) * value, and logarithms of the sums of exponentials.
struct Problem {
  int type;
  bool causal;
  float scale;
  std::vector<TensorView> tensors;  // by id: query, key, value, out, logarithms
  std::vector<int64_t> scores;      // their sizes
};

/// A tensor's sizes and strides, with a stride that disturbs nobody in dimensions of 1, where PyTorch has any.
TensorView view_of(const std::vector<ob_operand>& operands, size_t operand, int type) {
  const ob_operand& tensor = operands[operand];
  TensorView made{static_cast<int64_t>(operand), type, {}, {}};
  made.dims.assign(tensor.sizes, tensor.sizes + tensor.count);
  made.strides.assign(tensor.strides, tensor.strides + tensor.count);
  made.alignment = alignment_of(tensor.data, kVector);
  int64_t reach = 1;
  for (size_t i = 0; i < made.dims.size(); ++i) {
    if (made.dims[i] != 1) reach = std::max(reach, made.dims[i] * made.strides[i]);
  }
  for (size_t i = 0; i < made.dims.size(); ++i) {
    if (made.dims[i] == 1) made.strides[i] = reach;
  }
  return made;
}

/// Whether a tensor of heads may be read in vectors, at which cuDNN does not look: rows of numbers side by side, whole
/// vectors apart.
bool has_vectors(const TensorView& view) {
  constexpr int64_t kNumbers = kVector / 2;  // of the types that there are
  if (view.strides[3] != 1 || view.dims[3] % kNumbers != 0 || view.alignment != kVector) return false;
  return std::all_of(view.strides.begin(), view.strides.begin() + 3,
                     [](int64_t stride) { return stride % kNumbers == 0; });
}

bool is_heads(const ob_operand& operand, uint32_t dtype) {
  return is_tensor(operand) && operand.count == 4 && operand.dtype == dtype;
}

/// Whether the operands are those of the operator without dropout and mask, of sizes that fit together.
bool are_usable(const std::vector<ob_operand>& operands) {
  if (operands.size() != kOperands || operands[kDropout].number != 0 || operands[kMask].kind != OB_OPERAND_NONE)
    return false;
  const uint32_t dtype = operands[kOut].dtype;
  for (const size_t each : {kQuery, kKey, kValue, kOut}) {
    if (!is_heads(operands[each], dtype)) return false;
  }
  const ob_operand& logarithms = operands[kLogarithms];
  if (!is_tensor(logarithms) || logarithms.count != 3 || logarithms.dtype != kFloatDtype) return false;
  const int64_t *query = operands[kQuery].sizes, *key = operands[kKey].sizes, *value = operands[kValue].sizes;
  const int64_t* out = operands[kOut].sizes;
  return query[0] == key[0] && query[1] % key[1] == 0 && query[3] == key[3] && std::equal(key, key + 3, value) &&
         std::equal(query, query + 3, out) && value[3] == out[3] && std::equal(query, query + 3, logarithms.sizes);
}

std::optional<Problem> problem_of(const std::vector<ob_operand>& operands) {
  if (!are_usable(operands)) return std::nullopt;
  const std::optional<int> type = type_of(operands[kOut].dtype);
  if (type != kHalf && type != kBfloat16) return std::nullopt;
  const int64_t* const query = operands[kQuery].sizes;
  const ob_operand& scale = operands[kScale];
  const double factor = scale.kind == OB_OPERAND_NUMBER ? scale.number : 1 / std::sqrt(static_cast<double>(query[3]));
  Problem made{*type, operands[kCausal].integer != 0, static_cast<float>(factor), {}, {}};
  for (const size_t each : {kQuery, kKey, kValue, kOut}) {
    made.tensors.push_back(view_of(operands, each, *type));
    if (!has_vectors(made.tensors.back())) return std::nullopt;
  }
  TensorView logarithms = view_of(operands, kLogarithms, kFloat);
  logarithms.dims.push_back(1);
  logarithms.strides.push_back(1);
  made.tensors.push_back(std::move(logarithms));
  made.scores = {query[0], query[1], query[2], operands[kKey].sizes[2]};
  return made;
}

class AttentionPlan : public cudnn::Plan {
 public:
  AttentionPlan(const CudnnHandle& handle, Problem problem_, size_t most_workspace)
      : Plan(handle, problem_.type, most_workspace), problem(std::move(problem_)) {}

  void* address_of(int64_t id, const std::vector<ob_operand>& operands) override {
    if (id == kFactor) return &problem.scale;
    if (id == kNothing) return &nothing;
    return Plan::address_of(id, operands);
  }

  bool make() {
    std::vector<int64_t> ids{kFactor};
    Descriptor& whole = graphs.part(kAttentionForward);
    constexpr int kPlaces[] = {kAttentionQuery, kAttentionKey, kAttentionValue, kAttentionOut};
    for (size_t i = 0; i < std::size(kPlaces); ++i) whole.set(kPlaces[i], graphs.tensor(problem.tensors[i]));
    for (const TensorView& each : problem.tensors) ids.push_back(each.id);
    whole.set(kAttentionScale, number(kFactor)).set(kAttentionSoftmax, softmax());
    if (problem.causal) {
      ids.push_back(kNothing);
      whole.set(kAttentionScores, graphs.graph({&band()}, false))
          .set(kAttentionScoresIn, kTypeInt64, int64_t{kScoresBefore})
          .set(kAttentionScoresOut, kTypeInt64, int64_t{kScoresAfter});
    }
    return graphs.add({&whole.finalize()}, std::move(ids));
  }

 private:
  const Descriptor& number(int64_t id) {
    TensorView view{id, kFloat, {1, 1, 1, 1}, {1, 1, 1, 1}};
    view.is_by_value = true;
    return graphs.tensor(view);
  }

  /// Scores, or what a softmax makes of them: as exact as sums are.
  const Descriptor& scores(int64_t id) {
    const std::vector<int64_t>& size = problem.scores;
    TensorView view{id, kFloat, size, {size[1] * size[2] * size[3], size[2] * size[3], size[3], 1}};
    view.is_virtual = true;
    return graphs.tensor(view);
  }

  const Descriptor& softmax() {
    return graphs.part(cudnn::kSoftmax)
        .set(kSoftmaxX, scores(kSoftmaxBefore))
        .set(kSoftmaxY, scores(kSoftmaxAfter))
        .set(kSoftmaxStatistics, graphs.tensor(problem.tensors.back()))
        .finalize();
  }

  /// Scores of keys that come after their query are -inf.
  const Descriptor& band() {
    return graphs.part(kDiagonalBandMask)
        .set(kBandX, scores(kScoresBefore))
        .set(kBandOther, number(kNothing))
        .set(kBandY, scores(kScoresAfter))
        .set(kBandComparison, kTypePointwiseMode, kRowIsNotBeforeColumn)
        .finalize();
  }

  Problem problem;
  float nothing = -std::numeric_limits<float>::infinity();
};

}  // namespace

std::unique_ptr<cudnn::Plan> Attention::make(const std::vector<ob_operand>& operands, size_t most_workspace) {
  std::optional<Problem> problem = problem_of(operands);
  if (!problem) return nullptr;
  auto made = std::make_unique<AttentionPlan>(handle(), std::move(*problem), most_workspace);
  return made->make() ? std::move(made) : nullptr;
}

}  // namespace outboard::cuda
