// SPDX-License-Identifier: Apache-2.0
#include "torch/distributed/staging/exchange.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/view_as_real.h>
#include <c10/core/StreamGuard.h>

#include <torch/csrc/distributed/c10d/Types.hpp>

#include "torch/bridge/devices.h"
#include "torch/bridge/tensor.h"

namespace outboard::distributed {

c10::Stream torch_stream(const Stream& stream) {
  const auto index = static_cast<c10::DeviceIndex>(stream.device().index());
  return c10::Stream(c10::Stream::UNSAFE, aten::torch_device(index), stream.id());
}

namespace {

void require_usable(const at::Tensor& tensor, const Stream& stream) {
  const c10::Device device = aten::torch_device(static_cast<c10::DeviceIndex>(stream.device().index()));
  TORCH_CHECK_VALUE(tensor.device() == device, "Expected tensors on ", device, ", but got one on ", tensor.device());
  TORCH_CHECK_VALUE(tensor.layout() == at::kStrided, "Tensors must be dense");
  TORCH_CHECK_VALUE(tensor.is_non_overlapping_and_dense(), "Tensors must be contiguous");
}

/// The dtype that stands for elements of so many bytes where they are only moved.
at::ScalarType carrier(size_t bytes) {
  switch (bytes) {
    case 1:
      return at::kByte;
    case 2:
      return at::kHalf;
    case 4:
      return at::kInt;
    default:
      return at::kLong;
  }
}

}  // namespace

Exchange::Exchange(Stream& transfers, Role role)
    : transfers_(transfers),
      role_(role),
      current_(role == Role::kPart ? transfers
                                   : aten::current_stream(static_cast<c10::DeviceIndex>(transfers.device().index()))) {
  TORCH_CHECK(current_.recording() == nullptr, "A collective is not possible while a graph is captured");
}

at::Tensor Exchange::numbers(const at::Tensor& tensor, Intent intent) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  require_usable(tensor, transfers_);
  const bool in_place = transfers_.device().host_accessible();
  // What brings contents in, as zeros that are not written yet, is among what `wait` waits for.
  c10::OptionalStreamGuard guard;
  if (role_ == Role::kPart) guard.reset_stream(torch_stream(transfers_));
  const at::Tensor host = in_place ? aten::host_alias(tensor) : fetched(tensor, intent);
  return host.is_complex() ? at::view_as_real(host) : host;
}

at::Tensor Exchange::elements(const at::Tensor& tensor, Intent intent) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const at::Tensor host = numbers(tensor, intent);
  // Halves of complex numbers stay numbers: only these have a dimension more.
  if (tensor.is_complex()) return host;
  return host.view(carrier(host.itemsize()));
}

std::vector<at::Tensor> Exchange::numbers(const std::vector<at::Tensor>& tensors, Intent intent) {
  std::vector<at::Tensor> host;
  for (const at::Tensor& tensor : tensors) host.push_back(numbers(tensor, intent));
  return host;
}

std::vector<at::Tensor> Exchange::elements(const std::vector<at::Tensor>& tensors, Intent intent) {
  std::vector<at::Tensor> host;
  for (const at::Tensor& tensor : tensors) host.push_back(elements(tensor, intent));
  return host;
}

at::Tensor Exchange::fetched(const at::Tensor& tensor, Intent intent) {
  const at::TensorOptions options =
      at::TensorOptions().dtype(tensor.scalar_type()).device(at::kCPU).pinned_memory(true);
  const at::Tensor host = at::empty_strided(tensor.sizes(), tensor.strides(), options);
  if (tensor.is_conj()) host._set_conj(true);
  if (tensor.is_neg()) host._set_neg(true);
  if (intent != Intent::kWrite) {
    if (role_ == Role::kAll) aten::translate_errors([&] { transfers_.follow(current_); });
    const c10::StreamGuard guard(torch_stream(transfers_));
    host.copy_(tensor, /*non_blocking=*/true);
  }
  if (intent != Intent::kRead) copied_.push_back({tensor, host});
  return host;
}

void Exchange::seal() {
  aten::translate_errors([&] {
    const bool copies = role_ == Role::kAll && !transfers_.device().host_accessible();
    // What is brought back comes behind what the current stream still does with it.
    if (copies) transfers_.follow(current_);
    Stream& stream = copies ? transfers_ : current_;
    if (stream.query()) return;
    begun_ = std::make_unique<Event>(transfers_.device());
    begun_->record(stream);
  });
}

bool Exchange::ready() {
  return begun_ == nullptr || aten::translate_errors([&] { return begun_->query(); });
}

void Exchange::wait() {
  if (begun_ != nullptr) aten::translate_errors([&] { begun_->finish(); });
}

void Exchange::give_back() {
  if (copied_.empty()) return;
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const c10::StreamGuard guard(torch_stream(transfers_));
  for (const Copied& copy : copied_) copy.tensor.copy_(copy.host, /*non_blocking=*/true);
  copied_.clear();
  record_return();
}

void Exchange::give_back_behind(Stream& parts) {
  if (aten::translate_errors([&] { return parts.query(); })) return;
  aten::translate_errors([&] { transfers_.follow(parts); });
  record_return();
}

void Exchange::record_return() {
  returned_ = std::make_unique<Event>(transfers_.device());
  aten::translate_errors([&] { returned_->record(transfers_); });
}

void Exchange::wait_until_given_back() {
  if (returned_ != nullptr) aten::translate_errors([&] { returned_->finish(); });
}

void Exchange::order_current_stream() const {
  if (returned_ == nullptr) return;
  const auto index = static_cast<c10::DeviceIndex>(transfers_.device().index());
  aten::translate_errors([&] { aten::current_stream(index).wait(*returned_); });
}

}  // namespace outboard::distributed
