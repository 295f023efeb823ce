// SPDX-License-Identifier: Apache-2.0
#include "torch/bridge/tensor.h"

#include <ATen/EmptyTensor.h>
#include <c10/core/CPUAllocator.h>

#include <memory>

#include "torch/bridge/deferred.h"
#include "torch/bridge/devices.h"
#include "torch/bridge/storage.h"

namespace outboard::aten {
namespace {

constexpr c10::DispatchKeySet kDeviceKeys{c10::DispatchKey::PrivateUse1};
constexpr c10::DispatchKeySet kHostKeys{c10::DispatchKey::CPU};

void release_pin(void* context) { delete static_cast<Pin*>(context); }

at::Tensor over_storage(c10::Storage storage, c10::DispatchKeySet keys, at::ScalarType dtype, at::IntArrayRef sizes,
                        at::IntArrayRef strides, int64_t storage_offset) {
  auto impl = c10::make_intrusive<c10::TensorImpl>(std::move(storage), keys, c10::scalarTypeToTypeMeta(dtype));
  impl->set_sizes_and_strides(sizes, strides, storage_offset);
  return at::Tensor(std::move(impl));
}

/// Elements that the geometry spans from element 0 of the storage; 0 for an empty tensor.
int64_t extent(const c10::TensorImpl& impl) {
  if (impl.numel() == 0) return 0;
  if (impl.is_contiguous()) return impl.storage_offset() + impl.numel();
  int64_t last = impl.storage_offset();
  for (int64_t dim = 0; dim < impl.dim(); ++dim) last += (impl.sizes()[dim] - 1) * impl.strides()[dim];
  return last + 1;
}

}  // namespace

Allocation& allocation_of(const c10::Storage& storage) {
  require_parent_process();
  settle();
  Allocation* allocation = allocation_in(storage.data_ptr());
  // PyTorch wraps addresses of ours again in places (at::from_blob when it pickles a storage).
  if (allocation == nullptr) allocation = translate_errors([&] { return Allocation::find(storage.data()); });
  TORCH_CHECK(allocation != nullptr, "Expected a storage that was allocated on ",
              torch_device(storage.device().index()), ", but got one over foreign memory");
  return *allocation;
}

Allocation& allocation_of(const at::Tensor& tensor) {
  TORCH_CHECK(tensor.is_privateuseone(), "Expected a tensor on a ", torch_device(-1), " device, but got one on ",
              tensor.device());
  TORCH_CHECK(tensor.has_storage(), "Expected a tensor with storage");
  return allocation_of(tensor.storage());
}

at::Tensor make_tensor(Allocation* allocation, at::ScalarType dtype, at::IntArrayRef sizes, at::IntArrayRef strides,
                       int64_t storage_offset) {
  c10::Storage storage(c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), allocation->size(),
                                                             data_ptr_of(allocation), storage_allocator(),
                                                             /*resizable=*/true));
  return view_of(std::move(storage), dtype, sizes, strides, storage_offset);
}

at::Tensor view_of(c10::Storage storage, at::ScalarType dtype, at::IntArrayRef sizes, at::IntArrayRef strides,
                   int64_t storage_offset) {
  return over_storage(std::move(storage), kDeviceKeys, dtype, sizes, strides, storage_offset);
}

at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType dtype,
                         c10::DeviceIndex device_index) {
  Device& target = device(device_index);
  const size_t bytes = at::detail::computeStorageNbytes(sizes, strides, c10::elementSize(dtype));
  return translate_errors(
      [&] { return make_tensor(Allocation::create(target, bytes), dtype, sizes, strides, /*storage_offset=*/0); });
}

TensorBinding binding_of(const c10::Storage& storage, at::ScalarType dtype, int64_t offset, const int64_t* count) {
  static constexpr int64_t kStep = 1;
  TensorBinding binding;
  binding.allocation = &allocation_of(storage);
  const auto item = static_cast<int64_t>(c10::elementSize(dtype));
  const int64_t start = static_cast<const char*>(storage.data()) - static_cast<char*>(binding.allocation->address());
  const int64_t elements = count == nullptr ? 1 : *count;
  TORCH_CHECK(elements == 0 || start + (offset + elements) * item <= static_cast<int64_t>(binding.allocation->size()),
              "The storage of a tensor holds only ", binding.allocation->size(), " bytes, but the tensor has ",
              elements, " elements from ", offset, " on. Was its storage resized?");
  binding.dtype = static_cast<DType>(dtype);
  binding.dim = count == nullptr ? 0 : 1;
  binding.sizes = count;
  binding.strides = &kStep;
  binding.storage_offset = offset + start / item;
  return binding;
}

TensorBinding binding_of(const at::Tensor& tensor) {
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  TensorBinding binding;
  binding.allocation = &allocation_of(tensor);
  const char* storage = static_cast<const char*>(impl.unsafe_storage().data());
  const uint64_t start = storage - static_cast<const char*>(binding.allocation->address());
  // A storage may have been resized below what its tensors address (`untyped_storage().resize_(0)`).
  TORCH_CHECK(start + static_cast<uint64_t>(extent(impl)) * impl.itemsize() <= binding.allocation->size(),
              "The tensor has a non-zero number of elements, but its storage holds only ", binding.allocation->size(),
              " bytes: sizes ", impl.sizes(), ", strides ", impl.strides(), ", storage offset ", impl.storage_offset(),
              ". Was its storage resized?");
  binding.dtype = static_cast<DType>(tensor.scalar_type());
  binding.dim = static_cast<int32_t>(impl.dim());
  binding.sizes = impl.sizes().data();
  binding.strides = impl.strides().data();
  binding.storage_offset = impl.storage_offset() + static_cast<int64_t>(start / impl.itemsize());
  return binding;
}

at::Tensor without_repeats(const at::Tensor& tensor) {
  at::Tensor once = tensor;
  for (int64_t dim = 0; dim < tensor.dim(); ++dim) {
    if (tensor.stride(dim) == 0 && tensor.size(dim) > 1) once = once.narrow(dim, 0, 1);
  }
  return once;
}

bool covers_storage(const at::Tensor& tensor) {
  const TensorBinding binding = binding_of(tensor);
  return binding.storage_offset == 0 && tensor.nbytes() == binding.allocation->size() &&
         tensor.is_non_overlapping_and_dense();
}

bool renew(const at::Tensor& tensor) {
  if (!tensor.is_privateuseone()) return false;
  const Allocation& lost = allocation_of(tensor);
  c10::StorageImpl& storage = *tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
  if (!lost.device().was_reset() || allocation_in(storage.data_ptr()) != &lost || !covers_storage(tensor)) return false;
  Device& now = device(static_cast<c10::DeviceIndex>(lost.device().index()));
  storage.set_data_ptr_noswap(translate_errors([&] { return data_ptr_of(Allocation::create(now, lost.size())); }));
  return true;
}

at::Tensor host_alias(const at::Tensor& tensor, Access access) {
  const TensorBinding binding = binding_of(tensor);
  Allocation& allocation = *binding.allocation;
  TORCH_CHECK(allocation.device().host_accessible(), "The host cannot address the memory of ", tensor.device());
  auto pin = translate_errors(
      [&] { return std::make_unique<Pin>(allocation, current_stream(tensor.device().index()), access); });
  void* memory = reinterpret_cast<void*>(pin->pointer());
  c10::DataPtr data(memory, pin.release(), &release_pin, c10::Device(c10::DeviceType::CPU));
  c10::Storage storage(c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), allocation.size(),
                                                             std::move(data), c10::GetCPUAllocator(),
                                                             /*resizable=*/false));
  at::Tensor view = over_storage(std::move(storage), kHostKeys, tensor.scalar_type(), tensor.sizes(), tensor.strides(),
                                 binding.storage_offset);
  if (tensor.is_conj()) view._set_conj(true);
  if (tensor.is_neg()) view._set_neg(true);
  return view;
}

at::Tensor host_view(const at::Tensor& tensor, Access access) {
  at::Tensor view = host_alias(tensor, access);
  // Bringing the contents in may have queued work.
  translate_errors([&] { current_stream(tensor.device().index()).synchronize(); });
  return view;
}

Stream& current_stream(c10::DeviceIndex index) {
  settle();
  if (index < 0) index = current_device();
  return translate_errors([&]() -> Stream& { return opened_runtime().current_stream(index); });
}

void rethrow(const Error& error) {
  const std::string text = error.what();
  if (dynamic_cast<const ForkError*>(&error) != nullptr) {
    const std::string name = c10::DeviceTypeName(c10::DeviceType::PrivateUse1, /*lower_case=*/true);
    TORCH_CHECK(false, "Cannot re-initialize ", name, " in forked subprocess. To use ", name,
                " with multiprocessing, you must use the 'spawn' start method");
  }
  if (dynamic_cast<const IndexError*>(&error) != nullptr) TORCH_CHECK_INDEX(false, text);
  if (error.status() == OB_OUT_OF_MEMORY) TORCH_CHECK_WITH(OutOfMemoryError, false, text);
  if (error.status() == OB_DEVICE_LOST && !Runtime::get().forked()) {
    throw c10::AcceleratorError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, OB_DEVICE_LOST, text);
  }
  if (error.status() == OB_UNSUPPORTED) TORCH_CHECK_NOT_IMPLEMENTED(false, text);
  TORCH_CHECK(false, text);
}

}  // namespace outboard::aten
