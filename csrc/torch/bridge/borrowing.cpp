// SPDX-License-Identifier: Apache-2.0
#include "torch/bridge/borrowing.h"

#include <ATen/MemoryOverlap.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/GradMode.h>
#include <torch/library.h>

#include <memory>

#include "outboard/extension.h"
#include "runtime/streams/stream.h"
#include "torch/bridge/deferred.h"
#include "torch/bridge/devices.h"

namespace outboard::aten {
namespace {

/// Of tensors that others stand behind: Python's subclasses, those of functionalization and of vmap.
constexpr c10::DispatchKeySet kWrapperKeys{c10::DispatchKey::Python, c10::DispatchKey::Functionalize,
                                           c10::DispatchKey::FuncTorchBatched, c10::DispatchKey::FuncTorchGradWrapper};

/// The stream for tensors like this one.
Stream& stream_for(at::TensorList read, at::TensorList written) {
  TORCH_CHECK_VALUE(!read.empty() || !written.empty(), "There is nothing to borrow: give at least one tensor");
  const at::Tensor& first = read.empty() ? written.front() : read.front();
  plain_binding_of(first);
  Stream& stream = current_stream(first.device().index());
  TORCH_CHECK_NOT_IMPLEMENTED(
      stream.recording() == nullptr,
      "Tensors cannot be borrowed while a graph is captured, because what is submitted to the driver's stream is not "
      "recorded. Borrow before or after, or launch the kernel with outboard.RawKernel, which is recorded.");
  return stream.actual();
}

void refuse_write(const at::Tensor& tensor) {
  TORCH_CHECK(!c10::GradMode::is_enabled() || !tensor.requires_grad(),
              "A tensor that requires grad cannot be borrowed for writing, because autograd does not know the "
              "derivative of what writes it. Write under torch.no_grad(), or in the forward of a "
              "torch.autograd.Function.");
  at::assert_no_internal_overlap(tensor);
}

}  // namespace

TensorBinding plain_binding_of(const at::Tensor& tensor) {
  TORCH_CHECK_TYPE(tensor.defined(), "Expected a tensor, but got none");
  TORCH_CHECK(
      !tensor.unsafeGetTensorImpl()->key_set().has_any(kWrapperKeys),
      "A tensor of a subclass, or of a function transform (torch.func, torch.compile), has no memory of its own "
      "to give to other code. Make the code an operator (torch.library.custom_op), which is called with plain "
      "tensors.");
  TORCH_CHECK(tensor.is_privateuseone(), "Expected a tensor on a ", torch_device(-1), " device, but got one on ",
              tensor.device(), ". Move it there first, with .to(\"", torch_device(-1), "\").");
  TORCH_CHECK(tensor.layout() == at::kStrided && tensor.has_storage() && !tensor._is_zerotensor(),
              "Expected a strided tensor with memory, but got one of layout ", tensor.layout(),
              ". Give its parts, such as values() and indices(), or make it dense, with .to_dense() or .clone().");
  TORCH_CHECK(!tensor.is_conj() && !tensor.is_neg(), "The memory of this tensor holds other numbers than the tensor (",
              tensor.is_conj() ? "the conjugate" : "the negative", " bit is set). Call .",
              tensor.is_conj() ? "resolve_conj()" : "resolve_neg()", " first.");
  return binding_of(tensor);
}

Borrowed::Borrowed(at::TensorList read, at::TensorList written)
    : stream_(stream_for(read, written)), written_(written.vec()) {
  for (const at::Tensor& tensor : written) refuse_write(tensor);
  for (const at::Tensor& tensor : read) add(tensor);
  for (const at::Tensor& tensor : written) add(tensor);
  for (const at::Tensor& tensor : written) tensor.unsafeGetTensorImpl()->bump_version();
  stream_.lend();
  open_ = true;
}

void Borrowed::add(const at::Tensor& tensor) {
  const TensorBinding binding = plain_binding_of(tensor);
  const int index = stream_.device().index();
  TORCH_CHECK(tensor.device().index() == index, "Tensors of two devices, ", torch_device(index), " and ",
              tensor.device(),
              ", cannot be borrowed together: each device has a stream of its own. Borrow those of "
              "each by themselves.");
  translate_errors([&] { pins_.emplace_back(*binding.allocation, stream_); });
  const auto offset = static_cast<uint64_t>(binding.storage_offset) * tensor.itemsize();
  lent_.push_back({tensor, tensor.numel() == 0 ? 0 : pins_.back().pointer() + offset});
}

void Borrowed::end() noexcept {
  if (!open_) return;
  open_ = false;
  stream_.take_back();
  // Once more, for what was saved for backward meanwhile. Tensors of inference mode have no version.
  for (const at::Tensor& tensor : written_) {
    if (!tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
  }
  pins_.clear();
  lent_.clear();
  written_.clear();
}

void Borrowed::require_open() const {
  TORCH_CHECK(open_,
              "The tensors are not borrowed any more: use their addresses and the stream within the "
              "`with` block alone. Work that was submitted there goes on.");
}

ob_stream Borrowed::stream() {
  require_open();
  require_parent_process();
  settle();
  translate_errors([&] { stream_.flush(); });
  return stream_.handle();
}

ob_ptr Borrowed::address(const at::Tensor& tensor) const {
  require_open();
  for (const Lent& each : lent_) {
    if (each.tensor.is_same(tensor)) return each.address;
  }
  TORCH_CHECK_VALUE(false, "This tensor was not given to borrow(). A view is another tensor: give that.");
}

namespace {

const extension::Functions kFunctions{
    sizeof(extension::Functions),
    [](const at::Tensor* read, size_t read_count, const at::Tensor* written, size_t written_count) -> void* {
      return new Borrowed({read, read_count}, {written, written_count});
    },
    [](void* borrow) { delete static_cast<Borrowed*>(borrow); },
    [](void* borrow) { return static_cast<Borrowed*>(borrow)->stream(); },
    [](const void* borrow, const at::Tensor& tensor) { return static_cast<const Borrowed*>(borrow)->address(tensor); },
    [](const void* borrow) { return static_cast<const Borrowed*>(borrow)->device().handle(); },
    [](const void* borrow) -> const ob_driver* { return &static_cast<const Borrowed*>(borrow)->device().driver(); },
};

TORCH_LIBRARY_FRAGMENT(outboard, m) {
  m.def("extension_functions() -> int", [] { return reinterpret_cast<int64_t>(&kFunctions); });
}

}  // namespace
}  // namespace outboard::aten
