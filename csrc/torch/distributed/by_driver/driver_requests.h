// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <vector>

#include "outboard/driver.h"
#include "torch/distributed/terms/tensors.h"

namespace outboard::distributed {

class DriverTransport;

/// What a rank gives to a collective of the driver's and takes from it: dense elements in the order of memory.
struct DriverRequest {
  explicit DriverRequest(ob_collective_kind kind_) : kind(kind_) {}

  ob_collective_kind kind;
  at::ScalarType dtype = at::kByte;  ///< of what only moves: bytes
  ob_reduction reduction = OB_SUM;
  int root = 0;
  at::Tensor source, target;  ///< undefined: none
  uint64_t count = 0;         ///< elements of each rank
  std::vector<uint64_t> sent, received;
  /// Work of the same stream before and behind it.
  std::function<void()> before, after;
};
using DriverRequests = std::vector<DriverRequest>;

/// Requests for collectives of PyTorch; none where the driver does not reduce so, on any rank.
namespace requests {

DriverRequests broadcast(const Tensors& tensors, int root, int rank);
std::optional<DriverRequests> all_reduce(const DriverTransport& driver, const Tensors& tensors,
                                         const c10d::ReduceOp& reduction);
std::optional<DriverRequests> reduce(const DriverTransport& driver, const at::Tensor& tensor,
                                     const c10d::ReduceOp& reduction, int root, int rank);
/// Each output has the place of each rank one after the other.
DriverRequests all_gather(const Tensors& outputs, const Tensors& inputs);
/// The same to a tensor of the same shape for each rank.
DriverRequests all_gather_list(const Tensors& outputs, const at::Tensor& input);
std::optional<DriverRequests> reduce_scatter(const DriverTransport& driver, const Tensors& outputs,
                                             const Tensors& inputs, const c10d::ReduceOp& reduction);
std::optional<DriverRequests> reduce_scatter_list(const DriverTransport& driver, const at::Tensor& output,
                                                  const Tensors& inputs, const c10d::ReduceOp& reduction);
/// Bytes to and from each rank.
DriverRequests all_to_all(const at::Tensor& output, const at::Tensor& input, std::vector<uint64_t> sent,
                          std::vector<uint64_t> received);
DriverRequests all_to_all_list(const Tensors& outputs, const Tensors& inputs);

}  // namespace requests

}  // namespace outboard::distributed
