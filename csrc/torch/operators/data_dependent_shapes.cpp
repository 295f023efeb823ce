// SPDX-License-Identifier: Apache-2.0
#include <ATen/ExpandUtils.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/native/Resize.h>
#include <ATen/native/TensorAdvancedIndexingUtils.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/diff.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/WrapDimMinimal.h>
#include <torch/library.h>

#include <algorithm>
#include <optional>
#include <tuple>

#include "torch/bridge/devices.h"
#include "torch/eager/copy.h"
#include "torch/eager/eager.h"
#include "torch/eager/map_tensors.h"
#include "torch/eager/own_operator.h"

/// Operators whose results are as large as their data say: nonzero, masked_select, masks as indices, unique,
/// repeat_interleave. The device counts, the host reads the count and makes the result, the device fills it.
namespace outboard::aten {
namespace {

/// For each block of a mask, how many elements are true up to its end.
at::Tensor running_counts(const at::Tensor& mask) {
  static const auto op = own_operator<at::Tensor(const at::Tensor&)>("outboard::running_counts");
  return op.call(mask);
}

/// Places of the true elements of a flat mask. `like` has the shape of the result, and need not have memory.
at::Tensor compact(const at::Tensor& mask, const at::Tensor& counts, const at::Tensor& like) {
  static const auto op =
      own_operator<at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&)>("outboard::compact");
  return op.call(mask, counts, like);
}

/// Places in row-major order as indices into each dimension of `like`: [dimensions, places].
at::Tensor coordinates(const at::Tensor& places, const at::Tensor& like) {
  static const auto op = own_operator<at::Tensor(const at::Tensor&, const at::Tensor&)>("outboard::coordinates");
  return op.call(places, like);
}

at::TensorOptions longs(const at::Tensor& like) { return like.options().dtype(at::kLong); }

/// Places of the true elements of a mask (bool, of any shape) in row-major order: int64, [how many]. Waits for the
/// device, which alone knows how many.
at::Tensor places_of(const at::Tensor& mask) {
  const at::Tensor flat = mask.reshape(-1);
  if (flat.numel() == 0) return at::empty({0}, longs(mask));
  const at::Tensor dense = flat.contiguous();
  const at::Tensor counts = running_counts(dense);
  const int64_t total = counts.select(0, counts.numel() - 1).item<int64_t>();
  return compact(dense, counts, at::empty({total}, longs(mask)));
}

at::Tensor nonzero_of(const at::Tensor& self) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const c10::DeviceGuard guard(self.device());
  const at::Tensor places = places_of(self.scalar_type() == at::kBool ? self : self.ne(0));
  if (self.dim() == 0 || places.numel() == 0) {
    return at::empty({0}, places.options()).as_strided({places.numel(), self.dim()}, {1, places.numel()});
  }
  return (self.dim() == 1 ? places.unsqueeze(0) : coordinates(places, self)).t();
}

/// Gives a result to `out`, which may have another shape. Throws as PyTorch does for another dtype or device.
at::Tensor& into(at::Tensor& out, const at::Tensor& result, const char* name) {
  check_same_device(out, result);
  TORCH_CHECK(out.scalar_type() == result.scalar_type(), name, ": Expected out tensor to have scalar type ",
              result.scalar_type(), " but got scalar type", out.scalar_type());  // so spelt by PyTorch
  return copy_to_out(out, result);
}

/// Column by column where it is made, as on the CPU.
at::Tensor& nonzero_out(const at::Tensor& self, at::Tensor& out) {
  at::assert_no_internal_overlap(out);
  at::assert_no_overlap(out, self);
  const at::Tensor result = nonzero_of(self);
  if (out.sizes() != result.sizes() && out.scalar_type() == result.scalar_type()) {
    at::native::resize_output(out, result.sizes());
    out.resize_({self.dim(), result.size(0)}).t_();
  }
  return into(out, result, "nonzero");
}

at::Tensor selected_by(const at::Tensor& self, const at::Tensor& mask) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const c10::DeviceGuard guard(self.device());
  TORCH_CHECK(mask.scalar_type() == at::kBool, "masked_select: expected BoolTensor for mask");
  check_same_device(self, mask);
  const auto [wide_mask, wide_self] = at::expand_outplace(mask, self);
  return wide_self->reshape(-1).index_select(0, places_of(*wide_mask));
}

at::Tensor& masked_select_out(const at::Tensor& self, const at::Tensor& mask, at::Tensor& out) {
  TORCH_CHECK(self.scalar_type() == out.scalar_type(),
              "masked_select(): self and result must have the same scalar type");
  at::assert_no_internal_overlap(out);
  at::assert_no_overlap(out, self);
  at::assert_no_overlap(out, mask);
  return into(out, selected_by(self, mask), "masked_select");
}

bool is_mask(const std::optional<at::Tensor>& index) {
  return index.has_value() && index->defined() &&
         (index->scalar_type() == at::kBool || index->scalar_type() == at::kByte);
}

using Indices = c10::List<std::optional<at::Tensor>>;

/// Throws IndexError for a mask whose shape is not that of the dimensions from `dim` on.
void check_mask(const at::Tensor& self, const at::Tensor& mask, int64_t dim) {
  for (int64_t j = 0; j < mask.dim(); ++j) {
    TORCH_CHECK_INDEX(dim + j < self.dim() && mask.size(j) == self.size(dim + j), "The shape of the mask ",
                      mask.sizes(), " at index ", j, " does not match the shape of the indexed tensor ", self.sizes(),
                      " at index ", dim + j);
  }
}

/// Masks become the places of their true elements, as PyTorch has it on every device. Throws IndexError for a mask
/// whose shape is not that of the dimensions it stands for.
Indices places_for_masks(const at::Tensor& self, const Indices& indices) {
  Indices places;
  for (const std::optional<at::Tensor>& index : indices) {
    if (!is_mask(index)) {
      places.push_back(index);
      continue;
    }
    if (index->scalar_type() == at::kByte) {
      TORCH_WARN("indexing with dtype torch.uint8 is now deprecated, please use a dtype torch.bool instead.");
    }
    const auto dim = static_cast<int64_t>(places.size());
    check_mask(self, *index, dim);
    const at::Tensor found = nonzero_of(index->to(self.device()));
    for (int64_t j = 0; j < index->dim(); ++j) places.push_back(found.select(1, j));
  }
  return places;
}

/// The shape of what `indices` pick: theirs, broadcast, where the first of them is, or in front if there are dimensions
/// between them; and the dimensions without index. Throws IndexError if they do not fit one another.
at::DimVector shape_of_picked(const at::Tensor& self, const Indices& indices) {
  at::DimVector before, picked, after;
  bool begun = false, adjacent = true;
  for (int64_t dim = 0; dim < self.dim(); ++dim) {
    const auto at = static_cast<size_t>(dim);
    const std::optional<at::Tensor> index = at < indices.size() ? std::optional(indices.get(at)) : std::nullopt;
    if (!index.has_value() || !index->defined()) {
      (begun ? after : before).push_back(self.size(dim));
      continue;
    }
    TORCH_CHECK_INDEX(!begun || at::are_expandable(picked, index->sizes()),
                      "shape mismatch: indexing tensors could not be broadcast together with shapes ",
                      at::IntArrayRef(picked), ", ", index->sizes());
    picked = begun ? at::infer_size_dimvector(picked, index->sizes()) : at::DimVector(index->sizes());
    adjacent = adjacent && after.empty();
    begun = true;
  }
  at::DimVector shape = adjacent ? before : picked;
  const at::DimVector& second = adjacent ? picked : before;
  shape.append(second.begin(), second.end());
  shape.append(after.begin(), after.end());
  return shape;
}

/// The compiler takes values as they come: what is not as large as what the indices pick would be read past its end.
void check_values(const at::Tensor& self, const Indices& indices, const at::Tensor& values) {
  const at::DimVector shape = shape_of_picked(self, indices);
  TORCH_CHECK(at::is_expandable_to(values.sizes(), shape), "shape mismatch: value tensor of shape ", values.sizes(),
              " cannot be broadcast to indexing result of shape ", at::IntArrayRef(shape));
}

/// Writes one number where a mask, the only index, is true: nobody has to know how often that is. False for anything
/// else.
bool try_masked_fill(at::Tensor self, const Indices& indices, const at::Tensor& values, bool accumulate) {
  int64_t dim = -1;
  for (size_t i = 0; i < indices.size(); ++i) {
    const std::optional<at::Tensor> index = indices.get(i);
    if (!index.has_value() || !index->defined()) continue;
    if (dim >= 0 || !is_mask(index) || index->dim() == 0) return false;
    dim = static_cast<int64_t>(i);
  }
  if (dim < 0 || accumulate || values.numel() != 1) return false;
  const at::Tensor mask = *indices.get(static_cast<size_t>(dim));
  check_mask(self, mask, dim);
  at::DimVector sizes(mask.sizes());
  sizes.resize(static_cast<size_t>(self.dim() - dim), 1);
  const at::Tensor here = mask.to(self.device()).view(sizes);
  self.masked_fill_(here, values.reshape({}));
  return true;
}

/// The operators `index`, `index_put` and their relatives: argument 0 is the tensor, argument 1 the indices, and 2,
/// where they write, the values.
void with_places(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const c10::FunctionSchema& schema = handle.schema();
  const size_t first = stack->size() - schema.arguments().size();
  const at::Tensor self = (*stack)[first].toTensor();
  Indices indices = optional_tensors((*stack)[first + 1]);
  TORCH_CHECK_INDEX(indices.size() <= static_cast<size_t>(self.dim()), "too many indices for tensor of dimension ",
                    self.dim(), " (got ", indices.size(), ")");
  const bool puts = schema.arguments().size() > 2 && schema.arguments()[2].name() == "values";
  if (puts && try_masked_fill(self, indices, (*stack)[first + 2].toTensor(), (*stack)[first + 3].toBool())) {
    torch::jit::drop(*stack, schema.arguments().size());
    return torch::jit::push(*stack, self);
  }
  if (std::any_of(indices.begin(), indices.end(), is_mask)) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const c10::DeviceGuard guard(self.device());
    indices = places_for_masks(self, indices);
    (*stack)[first + 1] = indices;
  }
  if (puts) check_values(self, indices, (*stack)[first + 2].toTensor());
  eager_kernel(handle, keys, stack);
}

/// `masked_fill` with a tensor. One number on the CPU is as good as a scalar, and refused if it does not fit the dtype.
void filled_by_tensor(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const size_t first = stack->size() - 3;
  const at::Tensor value = (*stack)[first + 2].toTensor();
  if (!value.is_cpu() || value.dim() != 0) return eager_kernel(handle, keys, stack);
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  at::Tensor self = (*stack)[first].toTensor();
  const at::Tensor mask = (*stack)[first + 1].toTensor();
  const bool in_place = handle.schema().name().back() == '_';
  const at::Tensor result = in_place ? self.masked_fill_(mask, value.item()) : self.masked_fill(mask, value.item());
  torch::jit::drop(*stack, 3);
  torch::jit::push(*stack, result);
}

// ---- equal elements ----

/// Of sorted or ordered values: where a run of equal ones begins. A NaN is equal to none.
at::Tensor begins_run(const at::Tensor& values) {
  const int64_t count = values.numel();
  return at::cat({at::ones({1}, values.options().dtype(at::kBool)),
                  values.narrow(0, 1, count - 1).ne(values.narrow(0, 0, count - 1))});
}

/// How long the runs are that begin at `places` among `count` elements.
at::Tensor run_lengths(const at::Tensor& places, int64_t count) {
  return at::cat({places, at::full({1}, count, places.options())}).diff();
}

using Three = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

at::DimVector sizes_of_inverse(const at::Tensor& self, bool wanted) {
  return wanted ? at::DimVector(self.sizes()) : at::DimVector{0};
}

Three nothing_unique(const at::Tensor& self, at::IntArrayRef inverse_sizes) {
  return {at::empty({0}, self.options()), at::empty(inverse_sizes, longs(self)), at::empty({0}, longs(self))};
}

/// The first of each run of equal values, the run that each element belongs to, and how long they are. The elements lay
/// in `order` before they were sorted, or as they lie if it is not defined.
Three runs_of(const at::Tensor& values, const at::Tensor& order, at::IntArrayRef inverse_sizes, bool return_inverse,
              bool return_counts) {
  const at::Tensor begins = begins_run(values);
  const at::Tensor places = places_of(begins);
  at::Tensor inverse = at::empty({0}, longs(values)), counts = at::empty({0}, longs(values));
  if (return_inverse) {
    const at::Tensor runs = begins.cumsum(0).sub(1);
    inverse = (order.defined() ? at::empty_like(order).scatter_(0, order, runs) : runs).view(inverse_sizes);
  }
  if (return_counts) counts = run_lengths(places, values.numel());
  return {values.index_select(0, places), inverse, counts};
}

Three unique(const at::Tensor& self, bool /*sorted*/, bool return_inverse, bool return_counts) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const c10::DeviceGuard guard(self.device());
  const at::DimVector inverse_sizes = sizes_of_inverse(self, return_inverse);
  if (self.numel() == 0) return nothing_unique(self, inverse_sizes);
  const auto [values, order] = self.reshape(-1).sort();
  return runs_of(values, order, inverse_sizes, return_inverse, return_counts);
}

std::tuple<at::Tensor, at::Tensor> unique_of_old(const at::Tensor& self, bool sorted, bool return_inverse) {
  auto [values, inverse, counts] = unique(self, sorted, return_inverse, false);
  return {values, inverse};
}

// ---- equal rows ----

/// Of vectors (dimension 0), the rank of each element (dimension 1) among the different ones of its vector.
at::Tensor ranks_of(const at::Tensor& vectors) {
  const auto [values, order] = vectors.sort(std::optional(true), /*dim=*/1);
  const int64_t count = vectors.size(1);
  const at::Tensor differs = values.narrow(1, 1, count - 1).ne(values.narrow(1, 0, count - 1));
  const at::Tensor first = at::zeros({vectors.size(0), 1}, differs.options());
  return at::empty_like(order).scatter_(1, order, at::cat({first, differs}, 1).cumsum(1));
}

/// Of `columns`, the columns of a matrix that is not empty, one below the other: for each row of the matrix, its place
/// among the different rows in lexicographic order. Neighbours are merged until one column is left, so that there are
/// as many sorts as the logarithm of the number of columns.
at::Tensor ranks_of_rows(const at::Tensor& columns) {
  const int64_t rows = columns.size(1);
  at::Tensor ranks = ranks_of(columns);
  while (ranks.size(0) > 1) {
    const int64_t paired = ranks.size(0) / 2 * 2;
    const at::Tensor pairs = ranks.slice(0, 0, paired, 2).mul(rows).add(ranks.slice(0, 1, paired, 2));
    const at::Tensor merged = ranks_of(pairs), rest = ranks.narrow(0, paired, ranks.size(0) - paired);
    ranks = rest.size(0) == 0 ? merged : at::cat({merged, rest});
  }
  return ranks.select(0, 0);
}

/// What is compared along a dimension: (its size, everything else). Nothing if there are no slices. Throws for slices
/// without elements.
std::optional<at::Tensor> slices_along(const at::Tensor& self, int64_t dim) {
  const auto empty = std::count(self.sizes().begin(), self.sizes().end(), int64_t{0});
  if (self.size(dim) == 0) {
    TORCH_CHECK(empty == 1, "Number of zero sized dimensions is more than one, so unique cannot be applied ");
    return std::nullopt;
  }
  TORCH_CHECK(empty == 0, "There are 0 sized dimensions, and they aren't selected, so unique cannot be applied");
  return self.movedim(dim, 0).reshape({self.size(dim), -1});
}

/// What is unique where there are no slices.
Three no_slices(const at::Tensor& self) {
  return {at::empty(self.sizes(), self.options()), at::empty({0}, longs(self)), at::empty({0}, longs(self))};
}

/// The slices of `self` along a dimension at `places`, which lie in memory as the CPU has them.
at::Tensor slices_at(const at::Tensor& self, int64_t dim, const at::Tensor& places) {
  return self.movedim(dim, 0).contiguous().index_select(0, places).movedim(0, dim);
}

Three unique_rows(const at::Tensor& self, int64_t dim, bool /*sorted*/, bool /*return_inverse*/,
                  bool /*return_counts*/) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const c10::DeviceGuard guard(self.device());
  const std::optional<at::Tensor> slices = slices_along(self, dim);
  if (!slices) return no_slices(self);
  const at::Tensor ranks = ranks_of_rows(slices->t().contiguous());
  const auto [sorted, order] = ranks.sort(std::optional(true));
  const at::Tensor places = places_of(begins_run(sorted));
  return {slices_at(self, dim, order.index_select(0, places)), ranks, run_lengths(places, ranks.numel())};
}

Three unique_consecutive_rows(const at::Tensor& self, int64_t dim, bool /*return_inverse*/, bool /*return_counts*/) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const c10::DeviceGuard guard(self.device());
  const std::optional<at::Tensor> slices = slices_along(self, dim);
  if (!slices) return no_slices(self);
  const int64_t count = slices->size(0);
  const at::Tensor differs = slices->narrow(0, 1, count - 1).ne(slices->narrow(0, 0, count - 1)).any(1);
  const at::Tensor begins = at::cat({at::ones({1}, differs.options()), differs});
  const at::Tensor places = places_of(begins);
  return {slices_at(self, dim, places), begins.cumsum(0).sub(1), run_lengths(places, count)};
}

Three unique_consecutive(const at::Tensor& self, bool return_inverse, bool return_counts, std::optional<int64_t> dim) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const c10::DeviceGuard guard(self.device());
  if (dim.has_value()) c10::maybe_wrap_dim(*dim, self.dim());
  if (dim.has_value() && self.dim() != 1) return unique_consecutive_rows(self, *dim, return_inverse, return_counts);
  const at::DimVector inverse_sizes = sizes_of_inverse(self, return_inverse);
  if (self.numel() == 0) return nothing_unique(self, inverse_sizes);
  return runs_of(self.reshape(-1), {}, inverse_sizes, return_inverse, return_counts);
}

// ---- repeats ----

at::Tensor repeat_interleave(const at::Tensor& repeats, std::optional<int64_t> output_size) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const c10::DeviceGuard guard(repeats.device());
  TORCH_CHECK(repeats.dim() == 1, "repeat_interleave only accept 1D vector as repeat");
  TORCH_CHECK_NOT_IMPLEMENTED(repeats.scalar_type() == at::kLong || repeats.scalar_type() == at::kInt,
                              "repeat_interleave is not implemented for repeats of dtype ", repeats.scalar_type());
  if (repeats.numel() == 0) return at::empty({0}, repeats.options());
  const at::Tensor ends = repeats.cumsum(0);  // int64
  const at::Tensor known = at::stack({ends.select(0, -1), repeats.amin().to(at::kLong)}).cpu();
  const int64_t total = known[0].item<int64_t>();
  TORCH_CHECK(known[1].item<int64_t>() >= 0, "repeats can not be negative");
  TORCH_CHECK(!output_size.has_value() || *output_size == total, "allocated size does not match required size");
  return at::searchsorted(ends, at::arange(total, ends.options()), /*out_int32=*/false, /*right=*/true)
      .to(repeats.scalar_type());
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(outboard, m) {
  m.def("running_counts(Tensor mask) -> Tensor");
  m.def("compact(Tensor mask, Tensor counts, Tensor like) -> Tensor");
  m.def("coordinates(Tensor places, Tensor like) -> Tensor");
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("nonzero", TORCH_FN(nonzero_of));
  m.impl("nonzero.out", TORCH_FN(nonzero_out));
  m.impl("masked_select", TORCH_FN(selected_by));
  m.impl("masked_select.out", TORCH_FN(masked_select_out));
  m.impl("_unique2", TORCH_FN(unique));
  m.impl("_unique", TORCH_FN(unique_of_old));
  m.impl("unique_consecutive", TORCH_FN(unique_consecutive));
  m.impl("unique_dim", TORCH_FN(unique_rows));
  m.impl("unique_dim_consecutive", TORCH_FN(unique_consecutive_rows));
  m.impl("repeat_interleave.Tensor", TORCH_FN(repeat_interleave));
  for (const char* name : {"index.Tensor", "index.Tensor_out", "_index_put_impl_"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&with_places>());
  }
  for (const char* name : {"masked_fill.Tensor", "masked_fill_.Tensor"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&filled_by_tensor>());
  }
}

}  // namespace outboard::aten
