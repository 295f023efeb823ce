// SPDX-License-Identifier: Apache-2.0
#include "torch/distributed/terms/terms.h"

#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>

#include <numeric>

#include "torch/distributed/terms/combinations.h"

namespace outboard::distributed {
namespace {

using Tensors = std::vector<at::Tensor>;

std::string described(const char* name, const at::Tensor& tensor) {
  return std::string(name) + " of " + std::to_string(tensor.numel()) + " elements of " +
         c10::toString(tensor.scalar_type());
}

/// The root of a gather or a scatter has a tensor for each rank, alike.
void require_parts(const Tensors& parts, const at::Tensor& own, int count) {
  TORCH_CHECK_VALUE(static_cast<int>(parts.size()) == count, "Expected ", count, " tensors, one for each rank at the ",
                    "root and none elsewhere, but got ", parts.size());
  for (const at::Tensor& part : parts) {
    TORCH_CHECK_TYPE(part.scalar_type() == own.scalar_type(), "Tensors must have identical type");
    TORCH_CHECK_VALUE(part.numel() == own.numel(), "Tensors must have identical sizes: ", part.sizes(), " and ",
                      own.sizes());
  }
}

std::string reduced(const char* name, const at::Tensor& tensor, const c10d::ReduceOp& reduction) {
  combination(reduction, tensor.scalar_type());  // throws where there is none
  return described(name, tensor) + " with " + name_of(reduction);
}

}  // namespace

namespace terms_of {

std::string broadcast(const at::Tensor& tensor, int root) {
  return described("broadcast", tensor) + " from " + std::to_string(root);
}

std::string all_reduce(const at::Tensor& tensor, const c10d::ReduceOp& reduction) {
  return reduced("all_reduce", tensor, reduction);
}

std::string reduce(const at::Tensor& tensor, const c10d::ReduceOp& reduction, int root) {
  return reduced("reduce", tensor, reduction) + " to " + std::to_string(root);
}

std::string all_gather(const at::Tensor& input, const Tensors& outputs) {
  for (const at::Tensor& output : outputs) {
    TORCH_CHECK_VALUE(output.nbytes() == input.nbytes(), "all_gather: an output has shape ", output.sizes(),
                      " and the input ", input.sizes());
  }
  return described("all_gather", input);
}

std::string all_gather_into_tensor(const at::Tensor& input) { return described("all_gather_into_tensor", input); }

std::string all_to_all(const at::Tensor& input) {
  return std::string("all_to_all of ") + c10::toString(input.scalar_type());
}

std::string gather(const at::Tensor& input, const Tensors& parts, int root, int rank, int ranks) {
  require_parts(parts, input, root == rank ? ranks : 0);
  return described("gather", input) + " to " + std::to_string(root);
}

std::string scatter(const at::Tensor& output, const Tensors& parts, int root, int rank, int ranks) {
  require_parts(parts, output, root == rank ? ranks : 0);
  return described("scatter", output) + " from " + std::to_string(root);
}

std::string barrier() { return "barrier"; }

}  // namespace terms_of

std::vector<uint64_t> bytes_of_parts(const at::Tensor& tensor, const std::vector<int64_t>& splits, int ranks) {
  const int64_t rows = tensor.dim() == 0 ? 1 : tensor.size(0);
  const uint64_t row = rows == 0 ? 0 : tensor.nbytes() / rows;
  if (splits.empty()) {
    TORCH_CHECK_VALUE(rows % ranks == 0, "Tensor's dim 0 does not divide equally across group size");
    return std::vector<uint64_t>(ranks, row * (rows / ranks));
  }
  TORCH_CHECK_VALUE(static_cast<int>(splits.size()) == ranks, "Number of tensor splits not equal to group size");
  TORCH_CHECK_VALUE(std::accumulate(splits.begin(), splits.end(), int64_t{0}) == rows,
                    "Split sizes doesn't match total dim 0 size");
  std::vector<uint64_t> bytes;
  for (const int64_t split : splits) bytes.push_back(row * split);
  return bytes;
}

}  // namespace outboard::distributed
