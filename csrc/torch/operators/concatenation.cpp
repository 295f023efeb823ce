// SPDX-License-Identifier: Apache-2.0
#include <ATen/MemoryOverlap.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/native/TypeProperties.h>
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>
#include <vector>

#include "torch/bridge/device_type.h"
#include "torch/eager/eager.h"

/// `cat` and `stack` of many tensors. A plan is for as many tensors as it was compiled with, so longer lists are
/// written a few at a time into their part of the result: by plans that there are after a few calls, whatever the
/// length.
namespace outboard::aten {
namespace {

/// How many tensors one plan takes at most: as many as one kernel does. Longer lists need plans for so many, half of
/// it, and so on.
constexpr size_t kMost = 8;

bool all_here(const c10::List<at::Tensor>& tensors) {
  return std::all_of(tensors.begin(), tensors.end(), [](const at::Tensor& t) { return t.device().type() == kOurs; });
}

/// A vector without elements, which `cat` leaves out whatever dimensions the others have.
bool is_left_out(const at::Tensor& tensor) { return tensor.dim() == 1 && tensor.size(0) == 0; }

void write(const c10::List<at::Tensor>& tensors, int64_t dim, at::Tensor part) {
  static const c10::OperatorHandle handle = c10::Dispatcher::singleton().findSchemaOrThrow("aten::cat", "out");
  torch::jit::Stack stack{tensors, dim, std::move(part)};
  eager_kernel(handle, c10::DispatchKeySet(), &stack);
}

/// How the result lies in memory: as all tensors do, if they agree.
at::MemoryFormat format_of(const c10::List<at::Tensor>& tensors) {
  const at::MemoryFormat first = static_cast<const at::Tensor&>(tensors[0]).suggest_memory_format();
  const bool agree = std::all_of(tensors.begin(), tensors.end(),
                                 [first](const at::Tensor& tensor) { return tensor.suggest_memory_format() == first; });
  return agree ? first : at::MemoryFormat::Contiguous;
}

/// Whether sizes are the same but for those along `dim`.
bool fits(const at::Tensor& tensor, const at::Tensor& first, int64_t dim) {
  if (tensor.dim() != first.dim()) return false;
  for (int64_t i = 0; i < first.dim(); ++i) {
    if (i != dim && tensor.size(i) != first.size(i)) return false;
  }
  return true;
}

/// Tensors to be written one behind the other along `dim`, into a result of these sizes.
struct Join {
  std::vector<at::Tensor> parts;
  int64_t dim;
  at::MemoryFormat format;
  std::vector<int64_t> sizes;
};

/// None where the sizes of the parts do not fit.
std::optional<Join> join_of(std::vector<at::Tensor> parts, int64_t dim, at::MemoryFormat format) {
  const at::Tensor& first = parts.front();
  std::vector<int64_t> sizes = first.sizes().vec();
  sizes[dim] = 0;
  for (const at::Tensor& part : parts) {
    if (!fits(part, first, dim)) return std::nullopt;
    sizes[dim] += part.size(dim);
  }
  return Join{std::move(parts), dim, format, std::move(sizes)};
}

void write_parts(const Join& join, const at::Tensor& result) {
  if (result.numel() == 0) return;
  int64_t begin = 0;
  size_t next = 0;
  for (size_t count = kMost; count > 0; count /= 2) {
    for (; join.parts.size() - next >= count; next += count) {
      c10::List<at::Tensor> group;
      int64_t length = 0;
      for (size_t i = next; i < next + count; ++i) {
        group.push_back(join.parts[i]);
        length += join.parts[i].size(join.dim);
      }
      if (length > 0) write(group, join.dim, result.narrow(join.dim, begin, length));
      begin += length;
    }
  }
}

at::ScalarType dtype_of(const c10::List<at::Tensor>& tensors) { return at::native::result_type(tensors.vec()); }

bool is_dimension(int64_t dim, int64_t of) { return dim >= -of && dim < of; }

std::optional<Join> cat_of(const c10::List<at::Tensor>& tensors, int64_t dim) {
  std::vector<at::Tensor> parts;
  std::copy_if(tensors.begin(), tensors.end(), std::back_inserter(parts),
               [](const at::Tensor& tensor) { return !is_left_out(tensor); });
  if (parts.empty()) parts.push_back(tensors.get(0));
  if (!is_dimension(dim, parts.front().dim())) return std::nullopt;
  const int64_t along = at::maybe_wrap_dim(dim, parts.front().dim());
  return join_of(std::move(parts), along, format_of(tensors));
}

std::optional<Join> stack_of(const c10::List<at::Tensor>& tensors, int64_t dim) {
  const at::Tensor first = tensors.get(0);
  if (!is_dimension(dim, first.dim() + 1)) return std::nullopt;
  const int64_t along = at::maybe_wrap_dim(dim, first.dim() + 1);
  std::vector<at::Tensor> parts;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.sizes() != first.sizes()) return std::nullopt;
    parts.push_back(tensor.unsqueeze(along));
  }
  return join_of(std::move(parts), along, at::MemoryFormat::Contiguous);
}

/// Whether the parts can be written to `out` one by one: it is as large as it has to be, or empty, and shares no memory
/// with them. Other calls go the usual way, which resizes, warns or raises as the CPU does.
bool can_be_written(const Join& join, at::ScalarType dtype, const at::Tensor& out) {
  if (out.device() != join.parts.front().device() || !c10::canCast(dtype, out.scalar_type())) return false;
  if (out.sizes() != at::IntArrayRef(join.sizes) && out.numel() != 0) return false;
  if (at::has_internal_overlap(out) != at::MemOverlap::No) return false;
  return std::all_of(join.parts.begin(), join.parts.end(), [&out](const at::Tensor& part) {
    return at::get_overlap_status(out, part) == at::MemOverlapStatus::No;
  });
}

using JoinOf = std::optional<Join> (*)(const c10::List<at::Tensor>&, int64_t);

template <JoinOf kJoinOf>
void joined(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const c10::List<at::Tensor> tensors = (*stack)[stack->size() - 2].toTensorList();
  if (tensors.size() <= kMost || !all_here(tensors)) return eager_kernel(op, keys, stack);
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const at::Tensor& first = static_cast<const at::Tensor&>(tensors[0]);
  const c10::DeviceGuard guard(first.device());
  const std::optional<Join> join = kJoinOf(tensors, stack->back().toInt());
  if (!join) return eager_kernel(op, keys, stack);  // it raises what the CPU does
  at::Tensor result = at::empty(join->sizes, first.options().dtype(dtype_of(tensors)).memory_format(join->format));
  write_parts(*join, result);
  torch::jit::drop(*stack, 2);
  stack->emplace_back(std::move(result));
}

template <JoinOf kJoinOf>
void joined_in(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const c10::List<at::Tensor> tensors = (*stack)[stack->size() - 3].toTensorList();
  if (tensors.size() <= kMost || !all_here(tensors)) return eager_kernel(op, keys, stack);
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  at::Tensor out = stack->back().toTensor();
  const c10::DeviceGuard guard(static_cast<const at::Tensor&>(tensors[0]).device());
  const std::optional<Join> join = kJoinOf(tensors, (*stack)[stack->size() - 2].toInt());
  if (!join || !can_be_written(*join, dtype_of(tensors), out)) return eager_kernel(op, keys, stack);
  if (out.sizes() != at::IntArrayRef(join->sizes)) out.resize_(join->sizes, join->format);
  write_parts(*join, out);
  torch::jit::drop(*stack, 3);
  stack->emplace_back(std::move(out));
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("cat", torch::CppFunction::makeFromBoxedFunction<&joined<&cat_of>>());
  m.impl("stack", torch::CppFunction::makeFromBoxedFunction<&joined<&stack_of>>());
  m.impl("_stack", torch::CppFunction::makeFromBoxedFunction<&joined<&stack_of>>());
  m.impl("cat.out", torch::CppFunction::makeFromBoxedFunction<&joined_in<&cat_of>>());
  m.impl("stack.out", torch::CppFunction::makeFromBoxedFunction<&joined_in<&stack_of>>());
  m.impl("_stack.out", torch::CppFunction::makeFromBoxedFunction<&joined_in<&stack_of>>());
}

}  // namespace outboard::aten
