// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "cuda/cudnn_graph.h"

namespace outboard::cuda {

using namespace cudnn;

namespace {

constexpr int kCrossCorrelation = 1;  // what PyTorch calls a convolution
constexpr int kAdd = 0;               // of pointwise modes
/// Operands of the operator.
enum Operand : size_t { kSource, kWeights, kBias, kStride, kPadding, kDilation, kTransposed, kOutputPadding, kGroups };
constexpr size_t kTarget = 9, kOperands = 10;
/// The id of what is between a convolution and its bias. Others have the numbers of their operands.
constexpr int64_t kBetween = 100;

/// Dimensions and strides of a tensor, as cuDNN is to see them: batch, channels, and two dimensions or three.
struct View {
  size_t operand;
  std::vector<int64_t> dims, strides;

  static View of(const std::vector<ob_operand>& operands, size_t operand) {
    const ob_operand& tensor = operands[operand];
    View made{operand, {tensor.sizes, tensor.sizes + tensor.count}, {tensor.strides, tensor.strides + tensor.count}};
    if (made.dims.size() == 3) {  // in one dimension: lines are images of one row
      made.strides.insert(made.strides.begin() + 2, made.dims[2] * made.strides[2]);
      made.dims.insert(made.dims.begin() + 2, 1);
    }
    return made;
  }

  /// Strides of elements without gaps, with channels before all other dimensions or behind them.
  std::vector<int64_t> packed(bool channels_last) const {
    std::vector<size_t> order(dims.size());
    std::iota(order.begin(), order.end(), size_t{0});
    if (channels_last) std::rotate(order.begin() + 1, order.begin() + 2, order.end());
    std::vector<int64_t> made(dims.size());
    int64_t stride = 1;
    for (auto each = order.rbegin(); each != order.rend(); ++each) {
      made[*each] = stride;
      stride *= dims[*each];
    }
    return made;
  }

  bool lies(bool channels_last) const {
    const std::vector<int64_t> wanted = packed(channels_last);
    for (size_t i = 0; i < dims.size(); ++i) {
      if (dims[i] != 1 && strides[i] != wanted[i]) return false;
    }
    return true;
  }

  /// PyTorch gives dimensions of 1 any strides; cuDNN tells layouts by them.
  void settle(bool channels_last) {
    if (lies(channels_last)) strides = packed(channels_last);
    for (int64_t& stride : strides) stride = std::max<int64_t>(stride, 1);
  }
};

/// What is computed: target = source * weights, and a number added to each channel.
struct Problem {
  int type, compute_type;
  View source, weights, target;
  std::optional<View> bias;
  std::vector<int64_t> stride, padding, dilation;
};

bool are_numbers(const ob_operand& operand, size_t count, int64_t least) {
  return operand.kind == OB_OPERAND_INTEGERS && operand.count == count &&
         std::all_of(operand.sizes, operand.sizes + count, [=](int64_t each) { return each >= least; });
}

/// Whether the operands are those of a convolution that is not transposed, all of one dtype.
bool are_usable(const std::vector<ob_operand>& operands) {
  if (operands.size() != kOperands || operands[kTransposed].integer != 0) return false;
  const ob_operand& target = operands[kTarget];
  for (const size_t each : {size_t{kSource}, size_t{kWeights}, kTarget}) {
    if (!is_tensor(operands[each]) || operands[each].count != target.count) return false;
  }
  for (const ob_operand& each : operands) {
    if (is_tensor(each) && each.dtype != target.dtype) return false;
  }
  if (target.count < 3 || target.count > 5) return false;
  const ob_operand& bias = operands[kBias];
  if (is_tensor(bias) && (bias.count != 1 || (bias.strides[0] != 1 && bias.sizes[0] != 1))) return false;
  const size_t rank = target.count - 2;
  return are_numbers(operands[kStride], rank, 1) && are_numbers(operands[kPadding], rank, 0) &&
         are_numbers(operands[kDilation], rank, 1);
}

/// Numbers of a convolution's dimensions; `neutral` is that of one that was added.
std::vector<int64_t> numbers_of(const ob_operand& operand, int64_t neutral) {
  std::vector<int64_t> made(operand.sizes, operand.sizes + operand.count);
  if (made.size() == 1) made.insert(made.begin(), neutral);
  return made;
}

View bias_view(const View& target) {
  View made{kBias, std::vector<int64_t>(target.dims.size(), 1), {}};
  made.dims[1] = target.dims[1];
  return made;
}

std::optional<Problem> problem_of(const std::vector<ob_operand>& operands) {
  if (!are_usable(operands)) return std::nullopt;
  const std::optional<int> type = type_of(operands[kTarget].dtype);
  if (!type) return std::nullopt;
  Problem made{*type,
               *type == kDouble ? kDouble : kFloat,
               View::of(operands, kSource),
               View::of(operands, kWeights),
               View::of(operands, kTarget),
               std::nullopt,
               numbers_of(operands[kStride], 1),
               numbers_of(operands[kPadding], 0),
               numbers_of(operands[kDilation], 1)};
  bool first = true, last = true;
  for (const View* view : {&made.source, &made.weights, &made.target}) {
    first = first && view->lies(false);
    last = last && view->lies(true);
  }
  const bool channels_last = last && !first;
  for (View* view : {&made.source, &made.weights, &made.target}) view->settle(channels_last);
  if (is_tensor(operands[kBias])) {
    made.bias = bias_view(made.target);
    made.bias->strides = made.bias->packed(channels_last);
  }
  return made;
}

/// One step for a convolution with its bias, or two where no engine has both.
class ConvolutionPlan : public cudnn::Plan {
 public:
  ConvolutionPlan(const CudnnHandle& handle, Problem problem_, const std::vector<ob_operand>& operands)
      : Plan(handle, problem_.type), problem(std::move(problem_)) {
    for (const ob_operand& each : operands) alignments.push_back(alignment_of(each.data, kVector));
  }

  bool make() {
    const Descriptor& target = tensor(problem.target, kTarget);
    const std::vector<int64_t> factors{kSource, kWeights, kTarget};
    if (!problem.bias) return graphs.add({&convolution(target)}, factors);
    const Descriptor& bias = tensor(*problem.bias, kBias);
    const Descriptor& between = tensor(problem.target, kBetween);
    if (graphs.add({&convolution(between), &addition(between, bias, target)}, {kSource, kWeights, kBias, kTarget}))
      return true;
    // cuDNN allows a result in an operand's place in graphs of one operation.
    return graphs.add({&convolution(target)}, factors) &&
           graphs.add({&addition(target, bias, target)}, {kBias, kTarget});
  }

 private:
  const Descriptor& tensor(const View& view, int64_t id) {
    const bool between = id == kBetween;  // never in memory, so as exact as sums are
    const int type = between ? problem.compute_type : problem.type;
    return graphs.tensor({id, type, view.dims, view.strides, alignments[view.operand], between});
  }

  const Descriptor& convolution(const Descriptor& target) {
    const auto rank = static_cast<int64_t>(problem.stride.size());
    const Descriptor& how = graphs.part(kConvolution)
                                .set(kConvolutionPrecision, kTypeDataType, problem.compute_type)
                                .set(kConvolutionMode, kTypeConvolutionMode, kCrossCorrelation)
                                .set(kConvolutionSpatialDimensions, kTypeInt64, rank)
                                .set(kConvolutionDilations, kTypeInt64, problem.dilation)
                                .set(kConvolutionStrides, kTypeInt64, problem.stride)
                                .set(kConvolutionPrePaddings, kTypeInt64, problem.padding)
                                .set(kConvolutionPostPaddings, kTypeInt64, problem.padding)
                                .finalize();
    Descriptor& made = graphs.part(kConvolutionForward);
    made.set(kForwardConvolution, how)
        .set(kForwardX, tensor(problem.source, kSource))
        .set(kForwardW, tensor(problem.weights, kWeights))
        .set(kForwardY, target);
    if (problem.compute_type == kDouble) {
      made.set(kForwardAlpha, kTypeDouble, 1.0).set(kForwardBeta, kTypeDouble, 0.0);
    } else {
      made.set(kForwardAlpha, kTypeFloat, 1.0F).set(kForwardBeta, kTypeFloat, 0.0F);
    }
    return made.finalize();
  }

  const Descriptor& addition(const Descriptor& source, const Descriptor& bias, const Descriptor& target) {
    const Descriptor& how = graphs.part(kPointwise)
                                .set(kPointwiseMode, kTypePointwiseMode, kAdd)
                                .set(kPointwisePrecision, kTypeDataType, problem.compute_type)
                                .finalize();
    return graphs.part(kPointwiseOperation)
        .set(kOperationPointwise, how)
        .set(kOperationX, source)
        .set(kOperationB, bias)
        .set(kOperationY, target)
        .finalize();
  }

  const Problem problem;
  std::vector<int64_t> alignments;  // of operands
};

}  // namespace

std::unique_ptr<cudnn::Plan> Convolution::make(const std::vector<ob_operand>& operands) {
  std::optional<Problem> problem = problem_of(operands);
  if (!problem) return nullptr;
  auto made = std::make_unique<ConvolutionPlan>(handle(), std::move(*problem), operands);
  return made->make() ? std::move(made) : nullptr;
}

}  // namespace outboard::cuda
