// SPDX-License-Identifier: Apache-2.0
#include "torch/distributed/by_driver/driver_requests.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>

#include <utility>

#include "torch/distributed/by_driver/driver_transport.h"

namespace outboard::distributed {

namespace requests {
namespace {

/// What a driver may take as bytes.
const at::Tensor& usable(const at::Tensor& tensor) {
  TORCH_CHECK_VALUE(tensor.layout() == at::kStrided, "Tensors must be dense");
  TORCH_CHECK_VALUE(tensor.is_non_overlapping_and_dense(), "Tensors must be contiguous");
  TORCH_CHECK_VALUE(!tensor.is_conj() && !tensor.is_neg(), "Tensors must not be views that conjugate or negate");
  return tensor;
}

std::optional<ob_reduction> reduction_of(const c10d::ReduceOp& reduction, at::ScalarType dtype) {
  const bool truth = dtype == at::kBool;
  switch (reduction.op_) {
    case c10d::ReduceOp::SUM:
      return truth ? OB_MAX : OB_SUM;
    case c10d::ReduceOp::PRODUCT:
      return truth ? OB_MIN : OB_PRODUCT;
    case c10d::ReduceOp::MIN:
      return OB_MIN;
    case c10d::ReduceOp::MAX:
      return OB_MAX;
    case c10d::ReduceOp::BAND:
      return OB_BIT_AND;
    case c10d::ReduceOp::BOR:
      return OB_BIT_OR;
    case c10d::ReduceOp::BXOR:
      return OB_BIT_XOR;
    case c10d::ReduceOp::AVG:
      return OB_MEAN;
    default:
      return std::nullopt;
  }
}

/// A request that reduces, without tensors, if the driver does so.
std::optional<DriverRequest> reducing(const DriverTransport& driver, ob_collective_kind kind, at::ScalarType dtype,
                                      const c10d::ReduceOp& asked) {
  const std::optional<ob_reduction> reduction = reduction_of(asked, dtype);
  DriverRequest request(kind);
  request.dtype = dtype == at::kBool ? at::kByte : dtype;
  if (!reduction.has_value() || !driver.reduces(kind, request.dtype, *reduction)) return std::nullopt;
  request.reduction = *reduction;
  return request;
}

void add(DriverRequests& requests, DriverRequest request) {
  if (request.count != 0) requests.push_back(std::move(request));
}

/// New memory for the elements of `list`, one after the other.
at::Tensor memory_for(const Tensors& list) {
  int64_t count = 0;
  for (const at::Tensor& tensor : list) count += usable(tensor).numel();
  return at::empty({count}, list[0].options());
}

/// Copies between the parts of `whole`, which have the order of rows, and the tensors.
std::function<void()> moving(at::Tensor whole, Tensors list, bool into_whole) {
  return [whole, list, into_whole] {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    int64_t begin = 0;
    for (const at::Tensor& tensor : list) {
      const at::Tensor part = whole.slice(0, begin, begin + tensor.numel()).view(tensor.sizes());
      begin += tensor.numel();
      into_whole ? part.copy_(tensor, /*non_blocking=*/true) : tensor.copy_(part, /*non_blocking=*/true);
    }
  };
}

/// Sends elements in the order of rows.
void send_rows(DriverRequest& request) {
  if (request.source.is_contiguous()) return;
  const Tensors own{request.source};
  request.source = memory_for(own);
  request.before = moving(request.source, own, /*into_whole=*/true);
}

std::vector<uint64_t> bytes_of_each(const Tensors& list) {
  std::vector<uint64_t> bytes;
  for (const at::Tensor& tensor : list) bytes.push_back(tensor.nbytes());
  return bytes;
}

}  // namespace

DriverRequests broadcast(const Tensors& tensors, int root, int rank) {
  DriverRequests made;
  for (const at::Tensor& tensor : tensors) {
    DriverRequest request(OB_BROADCAST);
    request.root = root;
    request.target = usable(tensor);
    if (rank == root) request.source = tensor;
    request.count = tensor.nbytes();
    add(made, std::move(request));
  }
  return made;
}

std::optional<DriverRequests> all_reduce(const DriverTransport& driver, const Tensors& tensors,
                                         const c10d::ReduceOp& reduction) {
  DriverRequests made;
  for (const at::Tensor& tensor : tensors) {
    auto request = reducing(driver, OB_ALL_REDUCE, tensor.scalar_type(), reduction);
    if (!request.has_value()) return std::nullopt;
    request->source = request->target = usable(tensor);
    request->count = tensor.numel();
    add(made, std::move(*request));
  }
  return made;
}

std::optional<DriverRequests> reduce(const DriverTransport& driver, const at::Tensor& tensor,
                                     const c10d::ReduceOp& reduction, int root, int rank) {
  auto request = reducing(driver, OB_REDUCE, tensor.scalar_type(), reduction);
  if (!request.has_value()) return std::nullopt;
  request->source = usable(tensor);
  if (rank == root) request->target = tensor;
  request->root = root;
  request->count = tensor.numel();
  DriverRequests made;
  add(made, std::move(*request));
  return made;
}

DriverRequests all_gather(const Tensors& outputs, const Tensors& inputs) {
  DriverRequests made;
  for (size_t i = 0; i < outputs.size(); ++i) {
    DriverRequest request(OB_ALL_GATHER);
    request.source = usable(inputs[i]);
    request.target = usable(outputs[i]);
    request.count = inputs[i].nbytes();
    add(made, std::move(request));
  }
  return made;
}

DriverRequests all_gather_list(const Tensors& outputs, const at::Tensor& input) {
  DriverRequests made = all_gather({memory_for(outputs)}, {input});
  if (made.empty()) return made;
  send_rows(made[0]);
  made[0].after = moving(made[0].target, outputs, /*into_whole=*/false);
  return made;
}

std::optional<DriverRequests> reduce_scatter(const DriverTransport& driver, const Tensors& outputs,
                                             const Tensors& inputs, const c10d::ReduceOp& reduction) {
  DriverRequests made;
  for (size_t i = 0; i < outputs.size(); ++i) {
    auto request = reducing(driver, OB_REDUCE_SCATTER, outputs[i].scalar_type(), reduction);
    if (!request.has_value()) return std::nullopt;
    request->source = usable(inputs[i]);
    request->target = usable(outputs[i]);
    request->count = outputs[i].numel();
    add(made, std::move(*request));
  }
  return made;
}

std::optional<DriverRequests> reduce_scatter_list(const DriverTransport& driver, const at::Tensor& output,
                                                  const Tensors& inputs, const c10d::ReduceOp& reduction) {
  const at::Tensor whole = memory_for(inputs);
  const at::Tensor part = output.is_contiguous() ? output : memory_for({output});
  auto made = reduce_scatter(driver, {part}, {whole}, reduction);
  if (!made.has_value() || made->empty()) return made;
  made->front().before = moving(whole, inputs, /*into_whole=*/true);
  if (!part.is_same(output)) made->front().after = moving(part, {output}, /*into_whole=*/false);
  return made;
}

DriverRequests all_to_all(const at::Tensor& output, const at::Tensor& input, std::vector<uint64_t> sent,
                          std::vector<uint64_t> received) {
  DriverRequest request(OB_ALL_TO_ALL);
  request.source = usable(input);
  request.target = usable(output);
  request.sent = std::move(sent);
  request.received = std::move(received);
  send_rows(request);
  if (!output.is_contiguous()) {
    request.target = memory_for({output});
    request.after = moving(request.target, {output}, /*into_whole=*/false);
  }
  return {std::move(request)};
}

DriverRequests all_to_all_list(const Tensors& outputs, const Tensors& inputs) {
  DriverRequests made =
      all_to_all(memory_for(outputs), memory_for(inputs), bytes_of_each(inputs), bytes_of_each(outputs));
  made[0].before = moving(made[0].source, inputs, /*into_whole=*/true);
  made[0].after = moving(made[0].target, outputs, /*into_whole=*/false);
  return made;
}

}  // namespace requests

}  // namespace outboard::distributed
