// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <torch/csrc/distributed/c10d/Types.hpp>

namespace outboard::distributed {

/// A reduction as the CPU backend knows it, and what is done to numbers before and behind that.
class Reduction {
 public:
  /// Throws c10::ValueError for a PREMUL_SUM without a factor.
  explicit Reduction(const c10d::ReduceOp& asked);

  /// The same for numbers of this dtype: a sum of truth values is their "or", and must not be two. The CPU backend has
  /// no mean of integers.
  c10d::ReduceOp of(at::ScalarType dtype) const;
  /// Throws c10::ValueError for what is not defined, c10::TypeError for what cannot be computed.
  void require(const at::Tensor& tensor) const;

  /// What is done to a rank's numbers before the reduction.
  void scale(const at::Tensor& tensor) const;
  /// What is done to the numbers that the CPU backend has reduced over so many ranks: a mean of integers is their sum,
  /// divided without a remainder, as with NCCL.
  void finish(const at::Tensor& tensor, int ranks) const;
  /// Reduces the rows of `all`, which serve as scratch memory, into `result`.
  void fold(const at::Tensor& result, const at::Tensor& all) const;

 private:
  bool is_mean_of_integers(at::ScalarType dtype) const;
  void add(const at::Tensor& result, const at::Tensor& other) const;

  c10d::ReduceOp op_;
  std::optional<double> factor_;
};

}  // namespace outboard::distributed
