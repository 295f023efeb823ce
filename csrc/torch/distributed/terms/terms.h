// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <vector>

/// What all ranks of a group must agree on in a collective on CPU tensors, as text. Each of these throws
/// c10::ValueError, c10::TypeError or c10::Error for what one rank's arguments alone show to be wrong.
namespace outboard::distributed::terms_of {

std::string broadcast(const at::Tensor& tensor, int root);
std::string all_reduce(const at::Tensor& tensor, const c10d::ReduceOp& reduction);
std::string reduce(const at::Tensor& tensor, const c10d::ReduceOp& reduction, int root);
std::string all_gather(const at::Tensor& input, const std::vector<at::Tensor>& outputs);
std::string all_gather_into_tensor(const at::Tensor& input);
std::string all_to_all(const at::Tensor& input);
/// `parts`: what the root has for each of `ranks` ranks; none elsewhere.
std::string gather(const at::Tensor& input, const std::vector<at::Tensor>& parts, int root, int rank, int ranks);
std::string scatter(const at::Tensor& output, const std::vector<at::Tensor>& parts, int root, int rank, int ranks);
std::string barrier();

}  // namespace outboard::distributed::terms_of

namespace outboard::distributed {

/// Bytes to or from each rank: `splits` of the first dimension, or equal parts of it.
std::vector<uint64_t> bytes_of_parts(const at::Tensor& tensor, const std::vector<int64_t>& splits, int ranks);

}  // namespace outboard::distributed
