// SPDX-License-Identifier: Apache-2.0
#include "torch/eager/copy.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_local_scalar_dense.h>
#include <ATen/ops/any.h>
#include <ATen/ops/copy_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/ne.h>
#include <ATen/ops/neg.h>
#include <ATen/ops/view_as_real.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "runtime/base/interruption.h"
#include "torch/bridge/devices.h"
#include "torch/bridge/hidden_costs.h"
#include "torch/bridge/host_allocator.h"
#include "torch/bridge/sync_debug.h"
#include "torch/bridge/tensor.h"
#include "torch/eager/compiler.h"
#include "torch/eager/eager.h"

/// Copies between CPU and device, between devices, and on one device.
///
/// Lazy conjugates and negatives reach us with their bits set. Below, the *raw* tensor is the one without bits: what
/// is in memory. Two tensors of equal bits are copied raw; else the difference is applied on the CPU side or, on one
/// device, by negating what was copied.
namespace outboard::aten {
namespace {

/// A transfer may carry this many times the bytes it needs before the device gathers or scatters them: moving a few
/// bytes more costs less than a kernel.
constexpr int64_t kSpanFactor = 4;

/// Set while this thread gathers or scatters on the device for a transfer. If the device cannot do that after all, the
/// CPU does, and asks for a transfer again: that one must not ask the device.
thread_local bool rearranging = false;

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  return a.is_conj() == b.is_conj() && a.is_neg() == b.is_neg();
}

void set_bits(const at::Tensor& tensor, const at::Tensor& like) {
  if (like.is_conj()) tensor._set_conj(true);
  if (like.is_neg()) tensor._set_neg(true);
}

at::Tensor raw(const at::Tensor& tensor) {
  if (!tensor.is_conj() && !tensor.is_neg()) return tensor;
  at::Tensor alias(tensor.unsafeGetTensorImpl()->shallow_copy_and_detach(c10::VariableVersion(0), true));
  alias._set_conj(false);
  alias._set_neg(false);
  return alias;
}

bool is_dense(const at::Tensor& tensor) { return tensor.is_non_overlapping_and_dense(); }

/// Equal strides wherever they matter.
bool same_strides(const at::Tensor& a, const at::Tensor& b) {
  for (int64_t dim = 0; dim < a.dim(); ++dim) {
    if (a.size(dim) != 1 && a.stride(dim) != b.stride(dim)) return false;
  }
  return true;
}

/// Whether the bytes of one are the bytes of the other.
bool same_memory_layout(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && same_bits(a, b) && is_dense(a) && is_dense(b) && same_strides(a, b);
}

Stream& stream_of(const at::Tensor& tensor) { return current_stream(tensor.device().index()); }

/// Device pointer of element 0.
ob_ptr pointer(const at::Tensor& tensor, Work& work, Access access = Access::kKeep) {
  const TensorBinding binding = binding_of(tensor);
  return work.resolve(*binding.allocation, access) + binding.storage_offset * tensor.itemsize();
}

/// What work needs of a tensor that it writes whole.
Access written_whole(const at::Tensor& tensor) { return covers_storage(tensor) ? Access::kOverwrite : Access::kKeep; }

at::Tensor cpu_like(const at::Tensor& like, at::IntArrayRef strides) {
  at::Tensor made =
      at::empty_strided(like.sizes(), strides, at::TensorOptions().dtype(like.scalar_type()).device(at::kCPU));
  set_bits(made, like);
  return made;
}

at::Tensor device_contiguous_like(const at::Tensor& like) {
  at::DimVector strides(like.dim());
  int64_t next = 1;
  for (int64_t dim = like.dim() - 1; dim >= 0; --dim) {
    strides[dim] = next;
    next *= std::max<int64_t>(like.size(dim), 1);
  }
  return empty_strided(like.sizes(), strides, like.scalar_type(), like.device().index());
}

// ---- on one device ----

/// The same bits as integers, where a dtype is one that kernels may not know.
at::Tensor as_known_dtype(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kFloat8_e5m2:
    case at::kFloat8_e4m3fn:
    case at::kFloat8_e5m2fnuz:
    case at::kFloat8_e4m3fnuz:
    case at::kFloat8_e8m0fnu:
      return tensor.view(at::kByte);
    case at::kUInt16:
      return tensor.view(at::kShort);
    case at::kUInt32:
      return tensor.view(at::kInt);
    case at::kUInt64:
      return tensor.view(at::kLong);
    default:
      return tensor;
  }
}

/// Copies or converts raw elements; complex tensors as pairs of reals, which every device has.
void copy_elements(const at::Tensor& dst, const at::Tensor& src) {
  if (dst.scalar_type() == src.scalar_type() && !dst.is_complex()) {
    return compiled_copy(as_known_dtype(dst), as_known_dtype(src));
  }
  if (!dst.is_complex()) return compiled_copy(dst, src);
  const at::Tensor parts = at::view_as_real(dst);
  if (src.is_complex()) return compiled_copy(parts, at::view_as_real(src));
  compiled_copy(parts.select(-1, 0), src);
  parts.select(-1, 1).zero_();
}

void copy_on_device(const at::Tensor& dst, const at::Tensor& src) {
  if (same_memory_layout(dst, src)) {
    Stream& stream = stream_of(dst);
    Work work(stream);
    const ob_ptr from = pointer(src, work), to = pointer(dst, work, written_whole(dst));
    if (to != from) stream.copy(OB_DEVICE_TO_DEVICE, to, from, dst.nbytes());
    return;
  }
  const bool negate = dst.is_neg() != src.is_neg();
  const bool conjugate = dst.is_conj() != src.is_conj() && dst.is_complex() && src.is_complex();
  const at::Tensor target = raw(dst);
  at::Tensor values = raw(src);
  if (values.is_complex() && target.scalar_type() == at::kBool) {
    return copy_elements(target, at::view_as_real(values).ne(0).any(-1));
  }
  if (values.is_complex() && !dst.is_complex()) {
    TORCH_WARN_ONCE("Casting complex values to real discards the imaginary part");
    values = at::view_as_real(values).select(-1, 0);
  }
  if (negate && !values.is_complex()) values = at::neg(values);
  copy_elements(target, values);
  if (negate && values.is_complex()) at::view_as_real(target).neg_();
  if (conjugate) at::view_as_real(target).select(-1, 1).neg_();
}

// ---- strided transfers, where the host cannot address device memory ----

/// Elements from the first to the last that the tensor addresses.
int64_t span(const at::Tensor& tensor) {
  int64_t last = 0;
  for (int64_t dim = 0; dim < tensor.dim(); ++dim) last += (tensor.size(dim) - 1) * tensor.stride(dim);
  return last + 1;
}

/// Whether to transfer a strided tensor with its gaps, instead of through a contiguous one on the device.
bool with_gaps(const at::Tensor& tensor) {
  return rearranging || !runs_programs(tensor.device().index()) || span(tensor) <= kSpanFactor * tensor.numel();
}

void rearrange(const at::Tensor& dst, const at::Tensor& src) {
  rearranging = true;
  try {
    copy_on_device(dst, src);
  } catch (...) {
    rearranging = false;
    throw;
  }
  rearranging = false;
}

/// All elements from the first to the last that the tensor addresses, on the device.
at::Tensor spanned(const at::Tensor& tensor) { return raw(tensor).as_strided({span(tensor)}, {1}); }

void download_bytes(const at::Tensor& host, const at::Tensor& src, bool asynchronous);

/// The tensor's memory, gaps included, as a CPU tensor of the same geometry.
at::Tensor download_with_gaps(const at::Tensor& src) {
  const at::Tensor flat = at::empty({span(src)}, at::TensorOptions().dtype(src.scalar_type()).device(at::kCPU));
  download_bytes(flat, spanned(src), false);
  const at::Tensor host = flat.as_strided(src.sizes(), src.strides(), 0);
  set_bits(host, src);
  return host;
}

/// Whether a transfer between CPU and device can be queued: the caller asked for it, and no detour is needed.
bool can_be_queued(const at::Tensor& dst, const at::Tensor& src, bool non_blocking) {
  const at::Tensor& host = src.is_cpu() ? src : dst;
  return non_blocking && same_memory_layout(dst, src) && is_pinned(host.const_data_ptr());
}

}  // namespace

at::Tensor over_host_copy(const HostBuffer& copy, const at::Tensor& like) {
  auto* first = static_cast<char*>(copy.memory) + binding_of(like).storage_offset * like.itemsize();
  at::Tensor view = at::from_blob(first, like.sizes(), like.strides(),
                                  at::TensorOptions().dtype(like.scalar_type()).device(at::kCPU));
  set_bits(view, like);
  return view;
}

namespace {

// ---- CPU to device ----

/// The user may interrupt the wait for earlier work, but not the one for the copy: its memory on the host has to stay.
void finish_earlier_work(Stream& stream) {
  if (may_be_interrupted()) stream.finish();
}

/// `dst` and `host` have the same memory layout. Waits unless the caller may reuse `host` only after the copy.
void upload_bytes(const at::Tensor& dst, const at::Tensor& host, bool asynchronous) {
  Stream& stream = stream_of(dst);
  if (!asynchronous) finish_earlier_work(stream);
  const Uninterrupted whole;
  lending(stream, host, [&] {
    {
      Work work(stream);
      stream.copy(OB_HOST_TO_DEVICE, pointer(dst, work, written_whole(dst)),
                  reinterpret_cast<uint64_t>(host.const_data_ptr()), host.nbytes());
    }
    if (asynchronous) {
      record_pinned_use(host.const_data_ptr(), stream);
    } else {
      stream.synchronize();
    }
  });
}

/// Where the host addresses the device's memory, contents that wait elsewhere take as much of the same memory and are
/// copied twice. Not so if they had to wait for queued work, or others had to make room for them.
bool better_there_at_once(const Allocation& allocation, Stream& stream) {
  Device& device = allocation.device();
  if (contents_wait() || !device.host_accessible()) return false;
  return stream.query() && device.allocator().has_room(allocation.size());
}

/// Lets the new contents of a whole storage that is not on the device wait on the host, until the device needs them.
bool try_keep_on_host(const at::Tensor& dst, const at::Tensor& src) {
  Allocation& allocation = allocation_of(dst);
  if (!is_lazy() || allocation.state() == State::kDevice || !covers_storage(dst)) return false;
  if (better_there_at_once(allocation, stream_of(dst))) return false;
  std::shared_ptr<HostBuffer> copy = allocation.device().residency().host_buffer(allocation.size());
  over_host_copy(*copy, dst).copy_(src);
  return allocation.adopt(std::move(copy));
}

void upload(const at::Tensor& dst, const at::Tensor& src, bool non_blocking) {
  if (can_be_queued(dst, src, non_blocking)) return upload_bytes(dst, src, true);
  if (try_keep_on_host(dst, src)) return;

  Stream& stream = stream_of(dst);
  if (stream.device().host_accessible()) {
    const at::Tensor view = host_view(dst, written_whole(dst));
    return stream.run_on_host([&] { view.copy_(src); });
  }
  if (same_memory_layout(dst, src)) return upload_bytes(dst, src, false);
  if (is_dense(dst)) {
    const at::Tensor host = cpu_like(dst, dst.strides());
    host.copy_(src);
    return upload_bytes(dst, host, false);
  }
  if (with_gaps(dst)) {
    const at::Tensor host = download_with_gaps(dst);
    host.copy_(src);
    return upload_bytes(spanned(dst), host.as_strided({span(dst)}, {1}, 0), false);
  }
  const at::Tensor staging = device_contiguous_like(dst);
  set_bits(staging, dst);
  upload(staging, src, false);
  rearrange(dst, staging);
}

// ---- device to CPU ----

void download_bytes(const at::Tensor& host, const at::Tensor& src, bool asynchronous) {
  Stream& stream = stream_of(src);
  if (!asynchronous) finish_earlier_work(stream);
  const Uninterrupted whole;
  lending(stream, host, [&] {
    {
      Work work(stream);
      stream.copy(OB_DEVICE_TO_HOST, reinterpret_cast<uint64_t>(host.data_ptr()), pointer(src, work), host.nbytes());
    }
    if (asynchronous) {
      record_pinned_use(host.const_data_ptr(), stream);
    } else {
      stream.synchronize();
    }
  });
}

/// Reads what is not on the device without bringing it there. False if it is.
bool try_read_on_host(const at::Tensor& dst, const at::Tensor& src) {
  Allocation& allocation = allocation_of(src);
  if (allocation.state() == State::kZero && !src.is_conj() && !src.is_neg()) {
    dst.zero_();
    return true;
  }
  const std::shared_ptr<const HostBuffer> contents = allocation.host_contents();
  if (contents == nullptr) return false;
  dst.copy_(over_host_copy(*contents, src));
  return true;
}

void download(const at::Tensor& dst, const at::Tensor& src, bool non_blocking) {
  if (try_read_on_host(dst, src)) return;
  if (can_be_queued(dst, src, non_blocking)) return download_bytes(dst, src, true);

  Stream& stream = stream_of(src);
  if (stream.device().host_accessible()) {
    const at::Tensor view = host_view(src);
    return stream.run_on_host([&] { dst.copy_(view); });
  }
  if (same_memory_layout(dst, src)) return download_bytes(dst, src, false);
  if (with_gaps(src)) {
    dst.copy_(download_with_gaps(src));
    return;
  }
  const at::Tensor staging = device_contiguous_like(src);
  set_bits(staging, src);
  rearrange(staging, src);
  download(dst, staging, false);
}

// ---- between devices ----

/// Both ends of a copy between devices: no Work has arguments of two.
struct Pins {
  Pins(Allocation& from, Stream& stream, Allocation& to, Stream& other, Access access)
      : source(from, stream), target(to, other, access) {}
  const Pin source, target;
};

void copy_between_devices(const at::Tensor& dst, const at::Tensor& src) {
  const c10::DeviceGuard guard(src.device());
  Stream& stream = stream_of(src);
  Device& to = device(dst.device().index());
  Device& from = stream.device();
  if (from.driver().copy_peer != nullptr && from.shares_driver_with(to) && same_memory_layout(dst, src)) {
    const TensorBinding source = binding_of(src), target = binding_of(dst);
    const auto pins =
        std::make_shared<Pins>(*source.allocation, stream, *target.allocation, stream_of(dst), written_whole(dst));
    stream_of(dst).synchronize();
    return lending(stream, pins, [&] {
      stream.copy_peer(to, pins->target.pointer() + target.storage_offset * dst.itemsize(),
                       pins->source.pointer() + source.storage_offset * src.itemsize(), dst.nbytes());
      stream.synchronize();
    });
  }
  const at::Tensor host = cpu_like(src, src.strides());
  download(host, src, false);
  upload(dst, host, false);
}

bool all_bits_zero(const at::Tensor& scalar) {
  const auto* bytes = static_cast<const unsigned char*>(scalar.const_data_ptr());
  return std::all_of(bytes, bytes + scalar.itemsize(), [](unsigned char byte) { return byte == 0; });
}

/// Whether both are the same elements, of which a copy changes nothing, overlapping or not.
bool same_data(const at::Tensor& a, const at::Tensor& b) {
  return a.is_alias_of(b) && a.storage_offset() == b.storage_offset() && a.sizes() == b.sizes() &&
         a.strides() == b.strides() && a.scalar_type() == b.scalar_type() && same_bits(a, b);
}

void check_overlap(const at::Tensor& dst, const at::Tensor& src) {
  at::assert_no_internal_overlap(dst);
  if (dst.device() == src.device()) at::assert_no_partial_overlap(dst, src);
}

/// The rule is CUDA's, and does not ask where the contents are at the moment: what is found in one run is found in all.
void note_copy(const at::Tensor& dst, const at::Tensor& src, bool non_blocking) {
  if (!waits_are_noticed() || dst.device() == src.device()) return;
  if ((src.is_cpu() || dst.is_cpu()) && can_be_queued(dst, src, non_blocking)) return;
  note_wait("a copy from " + src.device().str() + " to " + dst.device().str(), HiddenCost::kCopy);
}

void note_conversion(const at::Tensor& dst, const at::Tensor& src) {
  if (!costs_are_observed() || dst.scalar_type() == src.scalar_type()) return;
  note_cost(HiddenCost::kConversion,
            std::string(c10::toString(src.scalar_type())) + " to " + c10::toString(dst.scalar_type()));
}

at::Tensor copy_from(const at::Tensor& source, const at::Tensor& dst, bool non_blocking) {
  require_parent_process();
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const at::Tensor src = source.expand(dst.sizes());
  if (dst.numel() == 0) return dst;
  if (src._is_zerotensor()) return raw(dst).zero_();
  if (same_data(dst, source)) return dst;
  check_overlap(dst, src);
  note_copy(dst, src, non_blocking);

  if (!dst.is_alias_of(src)) renew(dst);
  const c10::DeviceGuard guard(dst.is_privateuseone() ? dst.device() : src.device());
  translate_errors([&] {
    if (src.is_cpu()) return upload(dst, src, non_blocking);
    if (dst.is_cpu()) return download(dst, src, non_blocking);
    TORCH_CHECK(src.is_privateuseone() && dst.is_privateuseone(), "Cannot copy from ", src.device(), " to ",
                dst.device(), ": go through the CPU");
    if (src.device() != dst.device()) return copy_between_devices(dst, src);
    note_conversion(dst, src);
    copy_on_device(dst, src);
  });
  return dst;
}

at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& dst) {
  dst.resize_(self.sizes());
  return copy_from(self, dst, /*non_blocking=*/false);
}

at::Scalar local_scalar_dense(const at::Tensor& self) {
  note_wait("reading a number (item(), bool(), int())");
  const WaitsUnnoticed noted;
  const at::Tensor host = at::empty(self.sizes(), at::TensorOptions().dtype(self.scalar_type()).device(at::kCPU));
  copy_from(self, host, /*non_blocking=*/false);
  return at::_local_scalar_dense(host);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_copy_from", TORCH_FN(copy_from));
  // Composite, and as PyTorch has it: what it makes lies as what it would have written to.
  m.impl("copy", TORCH_FN(at::native::copy));
  m.impl("_copy_from_and_resize", TORCH_FN(copy_from_and_resize));
  m.impl("_local_scalar_dense", TORCH_FN(local_scalar_dense));
}

// The copy itself applies the bits: PyTorch's fallback for them would call the copy again to materialise them.
#define OUTBOARD_COPY_FALLS_THROUGH(KEY) \
  TORCH_LIBRARY_IMPL(aten, KEY, m) { m.impl("_copy_from", torch::CppFunction::makeFallthrough()); }
OUTBOARD_COPY_FALLS_THROUGH(Conjugate)
OUTBOARD_COPY_FALLS_THROUGH(Negative)
OUTBOARD_COPY_FALLS_THROUGH(ZeroTensor)
#undef OUTBOARD_COPY_FALLS_THROUGH

/// Lets one value, for all of a storage that is not on the device, wait on the host. False unless contents do.
bool try_keep_fill_on_host(const at::Tensor& self, const at::Tensor& pattern) {
  if (!contents_wait() || !covers_storage(self)) return false;
  return try_keep_on_host(self, pattern.expand(self.sizes()));
}

/// Raises for a number that a half cannot be. PyTorch fills one element with infinity there, and refuses for several.
void require_fit(const at::Tensor& self, const at::Scalar& value) {
  if (self.scalar_type() == at::kHalf) value.to<at::Half>();
  if (self.scalar_type() == at::kBFloat16) value.to<at::BFloat16>();
}

}  // namespace

bool try_fill(const at::Tensor& self, const at::Scalar& value) {
  require_parent_process();
  if (self.is_conj() || self.is_neg() || !is_dense(self)) return false;
  if (self.numel() == 0) return true;
  if (self.numel() > 1) require_fit(self, value);
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const at::Tensor pattern = at::empty({}, at::TensorOptions().dtype(self.scalar_type()).device(at::kCPU));
  pattern.fill_(value);
  renew(self);
  translate_errors([&] {
    const Access access = written_whole(self);
    if (access == Access::kOverwrite && all_bits_zero(pattern) && allocation_of(self).mark_zero()) return;
    if (try_keep_fill_on_host(self, pattern)) return;
    Stream& stream = stream_of(self);
    Work work(stream);
    stream.fill(pointer(self, work, access), pattern.const_data_ptr(), static_cast<uint32_t>(self.itemsize()),
                self.nbytes());
  });
  return true;
}

void check_same_device(const at::Tensor& a, const at::Tensor& b) {
  TORCH_CHECK(a.device() == b.device(),
              "Expected all tensors to be on the same device, but found at least two devices, ", a.device(), " and ",
              b.device(), "!");
}

at::Tensor& copy_to_out(at::Tensor& out, const at::Tensor& result) {
  at::native::resize_output(out, result.sizes());
  return out.copy_(result);
}

}  // namespace outboard::aten
