// SPDX-License-Identifier: Apache-2.0
#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/native/Resize.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/is_set_to_native.h>
#include <ATen/ops/new_empty_strided_native.h>
#include <ATen/ops/randint_native.h>
#include <ATen/ops/randperm_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <torch/library.h>

#include "torch/bridge/devices.h"
#include "torch/bridge/storage.h"
#include "torch/bridge/tensor.h"
#include "torch/eager/results.h"

/// Operators that make tensors or change their geometry and storage, without touching elements.
namespace outboard::aten {
namespace {

constexpr c10::DispatchKeySet kKeys{c10::DispatchKey::PrivateUse1};

/// Checks what a factory was asked for and returns the device to make the tensor on.
c10::DeviceIndex check_factory(std::optional<at::Layout> layout, std::optional<at::Device> device,
                               std::optional<bool> pin_memory) {
  TORCH_CHECK_NOT_IMPLEMENTED(c10::layout_or_default(layout) == at::Layout::Strided, "Expected a strided layout, got ",
                              c10::layout_or_default(layout));
  TORCH_CHECK(!c10::pinned_memory_or_default(pin_memory), "Only dense CPU tensors can be pinned");
  return device.has_value() ? device->index() : c10::DeviceIndex(-1);
}

at::Tensor filled_if_deterministic(at::Tensor tensor) {
  if (at::globalContext().deterministicAlgorithms() && at::globalContext().deterministicFillUninitializedMemory()) {
    at::native::fill_empty_deterministic_(tensor);
  }
  return tensor;
}

at::Tensor empty(at::IntArrayRef sizes, std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                 std::optional<at::Device> on, std::optional<bool> pin_memory,
                 std::optional<at::MemoryFormat> memory_format) {
  const c10::DeviceIndex index = check_factory(layout, on, pin_memory);
  const c10::DeviceGuard guard(torch_device(static_cast<c10::DeviceIndex>(device(index).index())));
  return filled_if_deterministic(
      at::detail::empty_generic(sizes, storage_allocator(), kKeys, c10::dtype_or_default(dtype), memory_format));
}

at::Tensor empty_with_strides(at::IntArrayRef sizes, at::IntArrayRef strides, std::optional<at::ScalarType> dtype,
                              std::optional<at::Layout> layout, std::optional<at::Device> on,
                              std::optional<bool> pin_memory) {
  const c10::DeviceIndex index = check_factory(layout, on, pin_memory);
  const c10::DeviceGuard guard(torch_device(static_cast<c10::DeviceIndex>(device(index).index())));
  return filled_if_deterministic(
      at::detail::empty_strided_generic(sizes, strides, storage_allocator(), kKeys, c10::dtype_or_default(dtype)));
}

/// Zeros without memory, as forward derivatives have them: PyTorch knows them by their key.
at::Tensor zeros_without_memory(at::IntArrayRef sizes, std::optional<at::ScalarType> dtype,
                                std::optional<at::Layout> layout, std::optional<at::Device> on,
                                std::optional<bool> pin_memory) {
  const c10::DeviceIndex index = check_factory(layout, on, pin_memory);
  at::native::ZeroTensorAllocator allocator(torch_device(static_cast<c10::DeviceIndex>(device(index).index())));
  const c10::DispatchKeySet keys = kKeys | c10::DispatchKeySet(c10::DispatchKey::ZeroTensor);
  return at::detail::empty_generic(sizes, &allocator, keys, c10::dtype_or_default(dtype), std::nullopt);
}

/// Grows the tensor's storage to hold its geometry; never shrinks it.
void ensure_storage(at::TensorImpl& impl) {
  if (impl.numel() == 0) return;
  const size_t needed =
      at::detail::computeStorageNbytes(impl.sizes(), impl.strides(), impl.itemsize(), impl.storage_offset());
  c10::StorageImpl& storage = *impl.unsafe_storage().unsafeGetStorageImpl();
  if (needed > storage.nbytes()) resize_storage(storage, needed);
}

const at::Tensor& resize_(const at::Tensor& self, at::IntArrayRef sizes,
                          std::optional<at::MemoryFormat> memory_format) {
  at::TensorImpl& impl = *self.unsafeGetTensorImpl();
  const size_t old_bytes = impl.unsafe_storage().nbytes();
  if (impl.sizes() != sizes) {
    at::native::check_size_nonnegative(sizes);
    impl.set_sizes_contiguous(sizes);
    ensure_storage(impl);
  }
  if (memory_format.has_value()) {
    TORCH_CHECK(*memory_format != at::MemoryFormat::Preserve, "Unsupported memory format", *memory_format);
    impl.empty_tensor_restride(*memory_format);
  }
  if (at::globalContext().deterministicAlgorithms() && at::globalContext().deterministicFillUninitializedMemory()) {
    at::native::fill_resize_deterministic_(self, static_cast<int64_t>(old_bytes));
  }
  return self;
}

at::Tensor& set_source_geometry(at::Tensor& self, at::Storage source, int64_t storage_offset, at::IntArrayRef sizes,
                                at::IntArrayRef strides) {
  at::native::checkSetStorage(self, std::move(source), storage_offset, sizes, strides);
  at::TensorImpl& impl = *self.unsafeGetTensorImpl();
  impl.set_storage_offset(storage_offset);
  if (strides.data() == nullptr) {
    impl.set_sizes_contiguous(sizes);
  } else {
    impl.set_sizes_and_strides(sizes, strides);
  }
  ensure_storage(impl);
  return self;
}

at::Tensor& set_source_storage(at::Tensor& self, at::Storage source) {
  const auto elements = static_cast<int64_t>(source.nbytes() / self.itemsize());
  return set_source_geometry(self, std::move(source), 0, elements, {});
}

at::Tensor& set_empty(at::Tensor& self) {
  const c10::DeviceGuard guard(self.device());
  c10::Storage storage(c10::Storage::use_byte_size_t(), 0, storage_allocator(), /*resizable=*/true);
  return set_source_geometry(self, std::move(storage), 0, {0}, {});
}

/// Whether `self` can become what `from` is (`self.data = from`, by which modules move) and stay the object it is.
/// PyTorch's answer for the dense backends of its own tree, with this one among them.
bool has_compatible_shallow_copy_type(const at::Tensor& self, const at::Tensor& from) {
  constexpr c10::DispatchKeySet kDense{c10::DispatchKey::Dense};
  constexpr c10::DispatchKeySet kBackends{c10::BackendComponent::CPUBit, c10::BackendComponent::PrivateUse1Bit};
  const auto is_dense = [&](c10::DispatchKeySet keys) { return keys.has_any(kDense) && keys.has_any(kBackends); };
  return self.key_set() == from.key_set() || (is_dense(self.key_set()) && is_dense(from.key_set()));
}

void record_stream(at::Tensor& self, c10::Stream stream) {
  TORCH_CHECK(stream.device_type() == c10::DeviceType::PrivateUse1, "Expected a stream on a ", torch_device(-1),
              " device, but got one on ", stream.device());
  storage_allocator()->recordStream(self.storage().data_ptr(), stream);
}

// ---- indices drawn at random ----
// A sampler of torch.utils.data draws them with a generator of the CPU also where the default device is another. They
// are then those that the CPU draws.

using Dtype = std::optional<at::ScalarType>;
using Generator = std::optional<at::Generator>;
using OptionalDevice = std::optional<at::Device>;

/// A view that PyTorch takes for memory of its own. What compiled graphs return goes through it: a backward pass has to
/// notice writes to what it is to read.
at::Tensor unsafe_view(const at::Tensor& self, at::IntArrayRef sizes) {
  at::Tensor view = at::native::view(self, sizes);
  share_versions(view, self);
  return view;
}

/// The order of as many random numbers; that two of 2^63 are equal does not happen.
at::Tensor& randperm_with(int64_t n, Generator generator, at::Tensor& out) {
  TORCH_CHECK(n >= 0, "n must be non-negative, got ", n);
  at::native::check_supported_max_int_with_precision(n, out);
  out.resize_({n});
  const at::Tensor keys = at::empty({n}, out.options().dtype(at::kLong)).random_(std::move(generator));
  return out.copy_(std::get<1>(keys.sort()));
}

at::Tensor& randperm_out(int64_t n, at::Tensor& out) { return randperm_with(n, std::nullopt, out); }

bool is_of_cpu(const Generator& generator) {
  return generator.has_value() && generator->defined() && generator->device().is_cpu();
}

at::Tensor randperm(int64_t n, Generator generator, Dtype dtype, std::optional<at::Layout> layout, OptionalDevice on,
                    std::optional<bool> pin_memory) {
  const auto draw = [&](OptionalDevice device) {
    return at::native::randperm(n, generator, dtype, layout, device, pin_memory);
  };
  return is_of_cpu(generator) ? draw(c10::kCPU).to(torch_device(check_factory(layout, on, pin_memory))) : draw(on);
}

at::Tensor randint_between(int64_t low, int64_t high, at::IntArrayRef sizes, Generator generator, Dtype dtype,
                           std::optional<at::Layout> layout, OptionalDevice on, std::optional<bool> pin_memory) {
  const auto draw = [&](OptionalDevice device) {
    return at::native::randint(low, high, sizes, generator, dtype, layout, device, pin_memory);
  };
  return is_of_cpu(generator) ? draw(c10::kCPU).to(torch_device(check_factory(layout, on, pin_memory))) : draw(on);
}

at::Tensor randint(int64_t high, at::IntArrayRef sizes, Generator generator, Dtype dtype,
                   std::optional<at::Layout> layout, OptionalDevice on, std::optional<bool> pin_memory) {
  return randint_between(0, high, sizes, std::move(generator), dtype, layout, on, pin_memory);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("randperm.out", TORCH_FN(randperm_out));
  m.impl("randperm.generator_out", TORCH_FN(randperm_with));
  m.impl("randperm.generator", TORCH_FN(randperm));
  m.impl("randint.generator", TORCH_FN(randint));
  m.impl("randint.low_generator", TORCH_FN(randint_between));
  m.impl("empty.memory_format", TORCH_FN(empty));
  m.impl("empty_strided", TORCH_FN(empty_with_strides));
  m.impl("_efficientzerotensor", TORCH_FN(zeros_without_memory));
  // Composite, but for PyTorch none that it would take before a backend's fallback.
  m.impl("new_empty_strided", TORCH_FN(at::native::new_empty_strided_symint));
  m.impl("resize_", TORCH_FN(resize_));
  m.impl("set_", TORCH_FN(set_empty));
  m.impl("set_.source_Storage", TORCH_FN(set_source_storage));
  m.impl("set_.source_Storage_storage_offset", TORCH_FN(set_source_geometry));
  m.impl("set_.source_Tensor", TORCH_FN(at::native::set_tensor_));
  m.impl("is_set_to", TORCH_FN(at::native::is_set_to));
  m.impl("_has_compatible_shallow_copy_type", TORCH_FN(has_compatible_shallow_copy_type));
  m.impl("record_stream", TORCH_FN(record_stream));

  m.impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
  // squeeze_, unsqueeze_, t_ and transpose_ come down to this: it changes the tensor's geometry, never its data.
  m.impl("as_strided_", TORCH_FN(at::native::as_strided__symint));
  m.impl("view", TORCH_FN(at::native::view));
  m.impl("_unsafe_view", TORCH_FN(unsafe_view));
  m.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  m.impl("unfold", TORCH_FN(at::native::unfold));
  m.impl("view_as_real", TORCH_FN(at::native::view_as_real));
  m.impl("view_as_complex", TORCH_FN(at::native::view_as_complex));
}

}  // namespace
}  // namespace outboard::aten
