// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <deque>
#include <vector>

#include "runtime/memory/allocation.h"
#include "torch/bridge/tensor.h"

namespace outboard::aten {

/// The tensor as code of others gets it: as an address and strides. Throws c10::Error, and says what to do, for what is
/// more or less than its memory (subclasses, sparse tensors, pending conjugates) and what is not of a device of ours.
TensorBinding plain_binding_of(const at::Tensor& tensor);

/// Tensors of one device in the hands of code that submits to the driver's stream itself: what `outboard.borrow` and
/// include/outboard/extension.h are made of. Throws c10::Error for what cannot be borrowed.
class Borrowed {
 public:
  Borrowed(at::TensorList read, at::TensorList written);
  ~Borrowed() { end(); }
  Borrowed(const Borrowed&) = delete;
  Borrowed& operator=(const Borrowed&) = delete;

  /// Gives everything back. Once it has, the others throw.
  void end() noexcept;
  /// Waits until the driver has all that the stream was given. Throws what failed among that.
  ob_stream stream();
  ob_ptr address(const at::Tensor& tensor) const;
  Device& device() const { return stream_.device(); }

 private:
  struct Lent {
    at::Tensor tensor;
    ob_ptr address;
  };

  void add(const at::Tensor& tensor);
  void require_open() const;

  Stream& stream_;
  std::deque<Pin> pins_;
  std::vector<Lent> lent_;
  std::vector<at::Tensor> written_;
  bool open_ = false;
};

}  // namespace outboard::aten
