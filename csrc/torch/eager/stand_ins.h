// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <unordered_map>

namespace outboard::aten {

/// A tensor of these sizes and strides in memory for all of its elements also where they share some: PyTorch has
/// kernels that take any strides for contiguous ones.
at::Tensor empty_with_room(at::IntArrayRef sizes, at::IntArrayRef strides, const at::TensorOptions& options);

/// Tensors of zeros on another device (the CPU, or `meta`, where they have no memory) that lie as the tensors of a call
/// do. What is one tensor in the call, or shares memory, does so here: PyTorch's own checks of aliasing work on them.
class StandIns {
 public:
  StandIns(c10::Device device, c10::ArrayRef<c10::IValue> arguments);

  /// The stand-in for an argument; what is no tensor of our device, nor a device, stands for itself.
  c10::IValue of(const c10::IValue& value);

 private:
  /// The part of a storage that the call's tensors see, in bytes.
  struct Span {
    int64_t begin = 0;
    int64_t end = 0;
    int64_t tensors = 0;
    at::Tensor memory;
  };

  void look(const at::Tensor& tensor);
  const at::Tensor& stand_in(const at::Tensor& tensor);
  at::Tensor made(const at::Tensor& tensor);

  c10::Device device_;
  std::unordered_map<const c10::StorageImpl*, Span> spans_;
  std::unordered_map<const c10::TensorImpl*, at::Tensor> tensors_;
};

}  // namespace outboard::aten
