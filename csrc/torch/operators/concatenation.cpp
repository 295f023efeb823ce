// SPDX-License-Identifier: Apache-2.0
#include <ATen/WrapDimUtils.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/native/TypeProperties.h>
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <algorithm>
#include <iterator>
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

/// The tensors one behind the other along `dim`; undefined where their sizes do not fit.
at::Tensor in_parts(const std::vector<at::Tensor>& tensors, int64_t dim, at::ScalarType dtype,
                    at::MemoryFormat format) {
  const at::Tensor& first = tensors.front();
  std::vector<int64_t> sizes = first.sizes().vec();
  sizes[dim] = 0;
  for (const at::Tensor& tensor : tensors) {
    if (!fits(tensor, first, dim)) return {};
    sizes[dim] += tensor.size(dim);
  }
  at::Tensor result = at::empty(sizes, first.options().dtype(dtype).memory_format(format));
  if (result.numel() == 0) return result;
  int64_t begin = 0;
  size_t next = 0;
  for (size_t count = kMost; count > 0; count /= 2) {
    for (; tensors.size() - next >= count; next += count) {
      c10::List<at::Tensor> group;
      int64_t length = 0;
      for (size_t i = next; i < next + count; ++i) {
        group.push_back(tensors[i]);
        length += tensors[i].size(dim);
      }
      if (length > 0) write(group, dim, result.narrow(dim, begin, length));
      begin += length;
    }
  }
  return result;
}

at::ScalarType dtype_of(const c10::List<at::Tensor>& tensors) { return at::native::result_type(tensors.vec()); }

bool is_dimension(int64_t dim, int64_t of) { return dim >= -of && dim < of; }

at::Tensor long_cat(const c10::List<at::Tensor>& tensors, int64_t dim) {
  std::vector<at::Tensor> parts;
  std::copy_if(tensors.begin(), tensors.end(), std::back_inserter(parts),
               [](const at::Tensor& tensor) { return !is_left_out(tensor); });
  if (parts.empty()) parts.push_back(tensors.get(0));
  if (!is_dimension(dim, parts.front().dim())) return {};
  return in_parts(parts, at::maybe_wrap_dim(dim, parts.front().dim()), dtype_of(tensors), format_of(tensors));
}

at::Tensor long_stack(const c10::List<at::Tensor>& tensors, int64_t dim) {
  const at::Tensor first = tensors.get(0);
  if (!is_dimension(dim, first.dim() + 1)) return {};
  const int64_t along = at::maybe_wrap_dim(dim, first.dim() + 1);
  std::vector<at::Tensor> parts;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.sizes() != first.sizes()) return {};
    parts.push_back(tensor.unsqueeze(along));
  }
  return in_parts(parts, along, dtype_of(tensors), at::MemoryFormat::Contiguous);
}

template <at::Tensor (*kOfMany)(const c10::List<at::Tensor>&, int64_t)>
void joined(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const c10::List<at::Tensor> tensors = (*stack)[stack->size() - 2].toTensorList();
  if (tensors.size() <= kMost || !all_here(tensors)) return eager_kernel(op, keys, stack);
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const c10::DeviceGuard guard(static_cast<const at::Tensor&>(tensors[0]).device());
  at::Tensor result = kOfMany(tensors, stack->back().toInt());
  if (!result.defined()) return eager_kernel(op, keys, stack);  // it raises what the CPU does
  torch::jit::drop(*stack, 2);
  stack->emplace_back(std::move(result));
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("cat", torch::CppFunction::makeFromBoxedFunction<&joined<&long_cat>>());
  m.impl("stack", torch::CppFunction::makeFromBoxedFunction<&joined<&long_stack>>());
  m.impl("_stack", torch::CppFunction::makeFromBoxedFunction<&joined<&long_stack>>());
}

}  // namespace outboard::aten
