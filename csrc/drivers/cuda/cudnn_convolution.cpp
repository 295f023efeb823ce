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
/// The id of what is between a convolution and its bias. Others have the numbers of their operands.
constexpr int64_t kBetween = 100;

using Operands = std::vector<ob_operand>;

/// What is computed of y = x * w, where x is an image, w are weights and y is what a convolution makes of them: y, or
/// the gradient of x, of which a transposed convolution is one, or that of w.
enum class Made { kY, kX, kW };

/// Which operand has what part.
struct Roles {
  Made made;
  size_t x, w, y, stride, padding, dilation;
  size_t bias = 0;  // 0: none
  size_t target() const { return made == Made::kY ? y : made == Made::kX ? x : w; }
};

/// Of input, weight, bias, stride, padding, dilation, transposed, output_padding, groups, and the result.
std::optional<Roles> roles_of_convolution(const Operands& operands) {
  if (operands.size() != 10) return std::nullopt;
  const size_t bias = is_tensor(operands[2]) ? 2 : 0;
  if (operands[6].integer != 0) return Roles{Made::kX, 9, 1, 0, 3, 4, 5, bias};
  return Roles{Made::kY, 0, 1, 9, 3, 4, 5, bias};
}

/// Of grad_output, input, weight, bias_sizes, stride, padding, dilation, transposed, output_padding, groups,
/// output_mask, and one result. That of the bias is a sum, which is no convolution.
std::optional<Roles> roles_of_gradient(const Operands& operands) {
  if (operands.size() != 12 || operands[10].kind != OB_OPERAND_INTEGERS || operands[10].count != 3) return std::nullopt;
  const int64_t* const mask = operands[10].sizes;
  if (mask[2] != 0 || (mask[0] != 0) == (mask[1] != 0)) return std::nullopt;
  const bool transposed = operands[7].integer != 0;
  const size_t image = transposed ? 0 : 1, made = transposed ? 1 : 0;
  if (mask[1] != 0) return Roles{Made::kW, image, 11, made, 4, 5, 6};
  if (transposed) return Roles{Made::kY, 0, 2, 11, 4, 5, 6};
  return Roles{Made::kX, 11, 2, 0, 4, 5, 6};
}

/// Dimensions and strides of a tensor, as cuDNN is to see them: batch, channels, and two dimensions or three.
struct View {
  size_t operand;
  std::vector<int64_t> dims, strides;

  static View of(const Operands& operands, size_t operand) {
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

/// What is computed, and a number that is added to each channel.
struct Problem {
  Roles roles;
  int type, compute_type;
  View x, w, y;
  std::optional<View> bias;
  std::vector<int64_t> stride, padding, dilation;

  const View& target() const { return roles.made == Made::kY ? y : roles.made == Made::kX ? x : w; }
};

bool are_numbers(const ob_operand& operand, size_t count, int64_t least) {
  return operand.kind == OB_OPERAND_INTEGERS && operand.count == count &&
         std::all_of(operand.sizes, operand.sizes + count, [=](int64_t each) { return each >= least; });
}

/// Whether the operands are of a convolution as cuDNN knows them, all of one dtype.
bool are_usable(const Operands& operands, const Roles& roles) {
  const ob_operand& target = operands[roles.target()];
  for (const size_t each : {roles.x, roles.w, roles.y}) {
    if (!is_tensor(operands[each]) || operands[each].count != target.count) return false;
  }
  for (const ob_operand& each : operands) {
    if (is_tensor(each) && each.dtype != target.dtype) return false;
  }
  if (target.count < 3 || target.count > 5) return false;
  const ob_operand& bias = operands[roles.bias];
  if (roles.bias != 0 && (bias.count != 1 || (bias.strides[0] != 1 && bias.sizes[0] != 1))) return false;
  const size_t rank = target.count - 2;
  return are_numbers(operands[roles.stride], rank, 1) && are_numbers(operands[roles.padding], rank, 0) &&
         are_numbers(operands[roles.dilation], rank, 1);
}

/// Numbers of a convolution's dimensions; `neutral` is that of one that was added.
std::vector<int64_t> numbers_of(const ob_operand& operand, int64_t neutral) {
  std::vector<int64_t> made(operand.sizes, operand.sizes + operand.count);
  if (made.size() == 1) made.insert(made.begin(), neutral);
  return made;
}

/// A number for each channel, as a view that lies as `target` does.
View bias_view(const View& target, size_t operand, bool channels_last) {
  View made{operand, std::vector<int64_t>(target.dims.size(), 1), {}};
  made.dims[1] = target.dims[1];
  made.strides = made.packed(channels_last);
  return made;
}

std::optional<Problem> problem_of(const Operands& operands, const Roles& roles) {
  if (!are_usable(operands, roles)) return std::nullopt;
  const std::optional<int> type = type_of(operands[roles.target()].dtype);
  if (!type) return std::nullopt;
  Problem made{roles,
               *type,
               *type == kDouble ? kDouble : kFloat,
               View::of(operands, roles.x),
               View::of(operands, roles.w),
               View::of(operands, roles.y),
               std::nullopt,
               numbers_of(operands[roles.stride], 1),
               numbers_of(operands[roles.padding], 0),
               numbers_of(operands[roles.dilation], 1)};
  bool first = true, last = true;
  for (const View* view : {&made.x, &made.w, &made.y}) {
    first = first && view->lies(false);
    last = last && view->lies(true);
  }
  const bool channels_last = last && !first;
  for (View* view : {&made.x, &made.w, &made.y}) view->settle(channels_last);
  if (roles.bias != 0) made.bias = bias_view(made.target(), roles.bias, channels_last);
  return made;
}

/// One graph, of a convolution and the sum with its bias. There is none for a sum alone, or behind a gradient.
class ConvolutionPlan : public cudnn::Plan {
 public:
  ConvolutionPlan(const CudnnHandle& handle, Problem problem_, const Operands& operands, size_t most_workspace)
      : Plan(handle, problem_.type, most_workspace), problem(std::move(problem_)) {
    for (const ob_operand& each : operands) alignments.push_back(alignment_of(each.data, kVector));
  }

  bool make() {
    const View& view = problem.target();
    const Descriptor& target = tensor(view, id_of(view));
    std::vector<int64_t> ids{id_of(problem.x), id_of(problem.w), id_of(problem.y)};
    if (!problem.bias) return graphs.add({&convolution(target)}, std::move(ids));
    const Descriptor& bias = tensor(*problem.bias, id_of(*problem.bias));
    const Descriptor& between = tensor(view, kBetween);
    ids.push_back(id_of(*problem.bias));
    return graphs.add({&convolution(between), &addition(between, bias, target)}, std::move(ids));
  }

 private:
  static int64_t id_of(const View& view) { return static_cast<int64_t>(view.operand); }

  const Descriptor& tensor(const View& view, int64_t id) {
    const bool between = id == kBetween;  // never in memory, so as exact as sums are
    const int type = between ? problem.compute_type : problem.type;
    return graphs.tensor({id, type, view.dims, view.strides, alignments[view.operand], between});
  }

  /// The operand, or what is made in its place.
  const Descriptor& part(Made made, const View& view, const Descriptor& target) {
    return made == problem.roles.made ? target : tensor(view, id_of(view));
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
    const ConvolutionNames& names = names_of(problem.roles.made);
    Descriptor& made = graphs.part(names.kind);
    made.set(names.convolution, how)
        .set(names.x, part(Made::kX, problem.x, target))
        .set(names.w, part(Made::kW, problem.w, target))
        .set(names.y, part(Made::kY, problem.y, target));
    if (problem.compute_type == kDouble) {
      made.set(names.alpha, kTypeDouble, 1.0).set(names.beta, kTypeDouble, 0.0);
    } else {
      made.set(names.alpha, kTypeFloat, 1.0F).set(names.beta, kTypeFloat, 0.0F);
    }
    return made.finalize();
  }

  static const ConvolutionNames& names_of(Made made) {
    return made == Made::kY ? kForwardNames : made == Made::kX ? kDataNames : kFilterNames;
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

std::unique_ptr<cudnn::Plan> Convolution::make(const std::vector<ob_operand>& operands, size_t most_workspace) {
  const std::optional<Roles> roles = is_gradient_ ? roles_of_gradient(operands) : roles_of_convolution(operands);
  std::optional<Problem> problem = roles ? problem_of(operands, *roles) : std::nullopt;
  if (!problem) return nullptr;
  auto made = std::make_unique<ConvolutionPlan>(handle(), std::move(*problem), operands, most_workspace);
  return made->make() ? std::move(made) : nullptr;
}

}  // namespace outboard::cuda
