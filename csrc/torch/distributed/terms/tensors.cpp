// SPDX-License-Identifier: Apache-2.0
#include "torch/distributed/terms/tensors.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <algorithm>

#include "torch/distributed/staging/message.h"

namespace outboard::distributed {

Tensors joined(const TensorLists& lists) {
  Tensors all;
  for (const Tensors& list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}

const at::Tensor& only(const Tensors& tensors) {
  TORCH_CHECK_VALUE(tensors.size() == 1, "Expected one tensor, but got ", tensors.size());
  return tensors[0];
}

bool of_one_shape(const Tensors& tensors) {
  return std::all_of(tensors.begin(), tensors.end(), [&](const at::Tensor& tensor) {
    return tensor.sizes() == tensors[0].sizes() && tensor.scalar_type() == tensors[0].scalar_type();
  });
}

bool of_one_size(const at::Tensor& one, const at::Tensor& other) {
  return one.numel() == other.numel() && one.scalar_type() == other.scalar_type();
}

bool are_dense(const Tensors& tensors) {
  return std::all_of(tensors.begin(), tensors.end(),
                     [](const at::Tensor& tensor) { return tensor.is_non_overlapping_and_dense(); });
}

bool is_long(const at::Tensor& tensor) { return tensor.nbytes() > kWhole && tensor.is_non_overlapping_and_dense(); }

bool any_is_long(const Tensors& tensors) { return std::any_of(tensors.begin(), tensors.end(), is_long); }

int64_t count_of_parts(uint64_t bytes) {
  return std::max<int64_t>(1, static_cast<int64_t>((bytes + kWhole - 1) / kWhole));
}

at::Tensor flat(const at::Tensor& tensor) { return tensor.as_strided({tensor.numel()}, {1}); }

Tensors flattened(const Tensors& tensors) {
  Tensors result;
  for (const at::Tensor& tensor : tensors) result.push_back(flat(tensor));
  return result;
}

std::vector<int64_t> counts_of(const Tensors& tensors) {
  std::vector<int64_t> counts;
  for (const at::Tensor& tensor : tensors) counts.push_back(tensor.numel());
  return counts;
}

uint64_t bytes_of_all(const Tensors& tensors) {
  uint64_t bytes = 0;
  for (const at::Tensor& tensor : tensors) bytes += tensor.nbytes();
  return bytes;
}

at::Tensor in_a_row(const Tensors& tensors) {
  Tensors rows;
  for (const at::Tensor& tensor : tensors) rows.push_back(tensor.reshape({-1}));
  return rows.size() == 1 ? rows[0] : at::cat(rows);
}

at::Tensor some_of(const at::Tensor& tensor, int64_t begin, int64_t end) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  return tensor.as_strided({end - begin}, {1}, tensor.storage_offset() + begin);
}

at::Tensor part_of(const at::Tensor& tensor, int64_t part, int64_t parts) {
  return some_of(tensor, tensor.numel() * part / parts, tensor.numel() * (part + 1) / parts);
}

Tensors part_of_each(const Tensors& tensors, int64_t part, int64_t parts) {
  Tensors result;
  for (const at::Tensor& tensor : tensors) result.push_back(part_of(tensor, part, parts));
  return result;
}

Tensors places_of(const at::Tensor& tensor, int ranks) {
  Tensors places;
  for (int rank = 0; rank < ranks; ++rank) places.push_back(part_of(tensor, rank, ranks));
  return places;
}

Tensors contiguous(const Tensors& tensors) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  Tensors result;
  for (const at::Tensor& tensor : tensors) result.push_back(tensor.contiguous());
  return result;
}

Tensors contiguous_places(const Tensors& tensors) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  Tensors result;
  for (const at::Tensor& tensor : tensors) {
    result.push_back(tensor.is_contiguous() ? tensor : at::empty(tensor.sizes(), tensor.options()));
  }
  return result;
}

void copy_back(const Tensors& from, const Tensors& to) {
  for (size_t i = 0; i < from.size(); ++i) {
    if (!from[i].is_same(to[i])) to[i].copy_(from[i]);
  }
}

}  // namespace outboard::distributed
