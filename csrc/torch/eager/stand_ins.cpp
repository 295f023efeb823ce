// SPDX-License-Identifier: Apache-2.0
#include "torch/eager/stand_ins.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "torch/eager/map_tensors.h"

namespace outboard::aten {
namespace {

/// Spans begin at a multiple of this many bytes, the largest element.
constexpr int64_t kAlignment = 16;

bool is_ours(const at::Tensor& tensor) { return tensor.defined() && tensor.is_privateuseone(); }

/// Bytes up to the end of a tensor of this geometry, with room for its elements one after the other.
int64_t bytes_with_room(at::IntArrayRef sizes, at::IntArrayRef strides, int64_t item, int64_t offset) {
  const auto own = static_cast<int64_t>(
      at::detail::computeStorageNbytes(sizes, strides, static_cast<size_t>(item), static_cast<size_t>(offset)));
  return std::max(own, (offset + c10::multiply_integers(sizes)) * item);
}

}  // namespace

at::Tensor empty_with_room(at::IntArrayRef sizes, at::IntArrayRef strides, const at::TensorOptions& options) {
  const auto item = static_cast<int64_t>(options.dtype().itemsize());
  return at::empty({bytes_with_room(sizes, strides, item, 0) / item}, options).as_strided(sizes, strides);
}

StandIns::StandIns(c10::Device device, c10::ArrayRef<c10::IValue> arguments) : device_(device) {
  for (const c10::IValue& value : arguments) {
    map_tensors(value, [&](const at::Tensor& tensor) {
      look(tensor);
      return tensor;
    });
  }
}

c10::IValue StandIns::of(const c10::IValue& value) {
  if (value.isDevice()) return device_;
  return map_tensors(value, [&](const at::Tensor& tensor) { return is_ours(tensor) ? stand_in(tensor) : tensor; });
}

void StandIns::look(const at::Tensor& tensor) {
  if (!is_ours(tensor) || !tensor.has_storage()) return;
  const auto begin = static_cast<int64_t>(tensor.storage_offset() * tensor.itemsize()) / kAlignment * kAlignment;
  const int64_t end = bytes_with_room(tensor.sizes(), tensor.strides(), static_cast<int64_t>(tensor.itemsize()),
                                      tensor.storage_offset());
  Span& span = spans_[tensor.storage().unsafeGetStorageImpl()];
  span.begin = span.tensors == 0 ? begin : std::min(span.begin, begin);
  span.end = std::max(span.end, end);
  ++span.tensors;
}

const at::Tensor& StandIns::stand_in(const at::Tensor& tensor) {
  at::Tensor& known = tensors_[tensor.unsafeGetTensorImpl()];
  if (!known.defined()) known = made(tensor);
  return known;
}

at::Tensor StandIns::made(const at::Tensor& tensor) {
  const at::TensorOptions options = tensor.options().device(device_);
  if (!tensor.has_storage()) return at::zeros(tensor.sizes(), options);
  Span& span = spans_.at(tensor.storage().unsafeGetStorageImpl());
  if (span.tensors == 1) return empty_with_room(tensor.sizes(), tensor.strides(), options).zero_();
  if (!span.memory.defined()) {
    span.memory = at::zeros({std::max<int64_t>(span.end - span.begin, 0)}, options.dtype(at::kByte));
  }
  const int64_t offset = tensor.storage_offset() - span.begin / static_cast<int64_t>(tensor.itemsize());
  return at::empty({0}, options).set_(span.memory.storage(), offset, tensor.sizes(), tensor.strides());
}

}  // namespace outboard::aten
