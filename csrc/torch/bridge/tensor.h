// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>

#include "runtime/base/error.h"
#include "runtime/device.h"
#include "runtime/memory/allocation.h"
#include "runtime/plans/executor.h"

/// The bridge between ATen tensors and the runtime's records. Nothing here knows an operator.
namespace outboard::aten {

/// The Allocation behind a tensor's (or storage's) DataPtr. Throws c10::Error for a tensor of another device and
/// for a storage whose memory is not ours (a foreign pointer).
Allocation& allocation_of(const at::Tensor& tensor);
Allocation& allocation_of(const c10::Storage& storage);

/// A new tensor over `allocation`, taking over one reference of it. Requires sizes.size() == strides.size().
at::Tensor make_tensor(Allocation* allocation, at::ScalarType dtype, at::IntArrayRef sizes, at::IntArrayRef strides,
                       int64_t storage_offset);

/// A new tensor over a storage of ours. Requires sizes.size() == strides.size().
at::Tensor view_of(c10::Storage storage, at::ScalarType dtype, at::IntArrayRef sizes, at::IntArrayRef strides,
                   int64_t storage_offset);

/// A new, unbacked tensor on the device with this index.
at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType dtype, c10::DeviceIndex device);

/// The tensor as a plan's input. Borrows the tensor's geometry: valid while the tensor lives unchanged.
TensorBinding binding_of(const at::Tensor& tensor);
/// Elements of a storage, from `offset` on, as a plan's input: a vector of `*count`, which is borrowed, or without a
/// count a tensor without dimensions.
TensorBinding binding_of(const c10::Storage& storage, at::ScalarType dtype, int64_t offset, const int64_t* count);

/// One of each set of indices that expansion has made one element; `tensor` if there are none.
at::Tensor without_repeats(const at::Tensor& tensor);

/// Whether the tensor's elements are exactly the bytes of its storage: writing all of them replaces its contents.
bool covers_storage(const at::Tensor& tensor);

/// To be called before a tensor is written whole, if nothing of it is read: a storage that a reset took its contents
/// gets memory of the device as it is now. False, and nothing is done, if it was not lost, more is in the storage, or
/// it is on another device.
bool renew(const at::Tensor& tensor);

/// A CPU tensor over the same memory, which it keeps in place. Only on host-accessible devices; the caller submits no
/// work that uses the memory while the view is in use. Waits for the current stream. With kOverwrite the caller writes
/// every byte of the storage.
at::Tensor host_view(const at::Tensor& tensor, Access access = Access::kKeep);
/// The same without waiting: the contents are there when the current stream has done what it was given so far.
at::Tensor host_alias(const at::Tensor& tensor, Access access = Access::kKeep);

/// The calling thread's current stream on a device of ours.
Stream& current_stream(c10::DeviceIndex device);

/// Rethrows the runtime's exceptions as PyTorch's: OutOfMemoryError as c10::OutOfMemoryError
/// (torch.OutOfMemoryError), OB_DEVICE_LOST as c10::AcceleratorError (torch.AcceleratorError), everything else as
/// c10::Error (RuntimeError).
[[noreturn]] void rethrow(const Error& error);

/// Calls `function()` with the runtime's exceptions translated.
template <typename Function>
auto translate_errors(Function&& function) -> decltype(function()) {
  try {
    return std::forward<Function>(function)();
  } catch (const Error& error) {
    rethrow(error);
  }
}

}  // namespace outboard::aten
