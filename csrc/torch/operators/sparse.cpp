// SPDX-License-Identifier: Apache-2.0
// Sparse tensors in COO layout: indices (sparse dimensions, nnz) and values (nnz, dense dimensions...) are dense
// tensors of the device, and every kernel here is made of dense operators on the two. What only moves the pair around
// is PyTorch's own code.
#include <ATen/ExpandUtils.h>
#include <ATen/Functions.h>
#include <ATen/NativeFunctions.h>
#include <ATen/WrapDimUtilsMulti.h>
#include <ATen/native/Resize.h>
#include <ATen/native/SparseTensorUtils.h>
#include <torch/library.h>

#include <limits>

namespace outboard::aten {
namespace {

void require_same_device(const at::Tensor& a, const at::Tensor& b) {
  TORCH_CHECK(a.device() == b.device(),
              "Expected all tensors to be on the same device, but found at least two devices, ", a.device(), " and ",
              b.device(), "!");
}

/// The place of each entry among the rows that the sparse dimensions count: int64, (nnz).
at::Tensor places_of_entries(const at::Tensor& sparse) {
  const at::Tensor indices = sparse._indices();
  if (sparse.sparse_dim() == 0) return at::zeros({indices.size(1)}, indices.options());
  at::Tensor places = indices.select(0, 0);
  for (int64_t dim = 1; dim < sparse.sparse_dim(); ++dim)
    places = places.mul(sparse.size(dim)).add(indices.select(0, dim));
  return places;
}

/// The shape (rows that the sparse dimensions count, dense dimensions...) of a tensor with elements.
at::DimVector sizes_of_rows(const at::Tensor& sparse) {
  at::DimVector sizes{-1};
  for (const int64_t size : sparse.sizes().slice(static_cast<size_t>(sparse.sparse_dim()))) sizes.push_back(size);
  return sizes;
}

/// Adds `values` to the rows of `rows` at `places`, in place. Truth values are joined with "or".
void add_to_rows(const at::Tensor& rows, const at::Tensor& places, const at::Tensor& values) {
  if (rows.is_complex()) {
    at::view_as_real(rows).index_add_(0, places, at::view_as_real(values.resolve_conj()));
    return;
  }
  if (rows.scalar_type() != at::kBool) {
    rows.index_add_(0, places, values);
    return;
  }
  const at::Tensor counts = at::zeros(rows.sizes(), rows.options().dtype(at::kInt));
  rows.logical_or_(counts.index_add_(0, places, values.to(at::kInt)));
}

/// Makes `result` the sparse tensor with these parts.
at::Tensor& assign(at::Tensor& result, const at::Tensor& like, const at::Tensor& indices, const at::Tensor& values,
                   bool coalesced) {
  TORCH_CHECK(result.is_sparse(), "expected a sparse result, but got one of layout ", result.layout());
  require_same_device(result, like);
  TORCH_CHECK(at::canCast(values.scalar_type(), result.scalar_type()), "Can't convert result type ",
              values.scalar_type(), " to output ", result.scalar_type());
  at::SparseTensorImpl* const impl = at::sparse::get_sparse_impl(result);
  impl->raw_resize_(like.sparse_dim(), like.dense_dim(), like.sizes());
  impl->set_indices_and_values_unsafe(indices, values.to(result.scalar_type()));
  impl->set_coalesced(coalesced);
  return result;
}

at::Tensor coalesce(const at::Tensor& self) {
  if (self.is_coalesced()) return self;
  if (self._nnz() < 2) return self.clone()._coalesced_(true);
  const auto [places, order] = places_of_entries(self).sort(std::optional(true));
  const auto [distinct, runs, lengths] =
      at::unique_consecutive(places, /*return_inverse=*/true, /*return_counts=*/true);
  const at::Tensor firsts = order.index_select(0, lengths.cumsum(0).sub(lengths));
  const at::Tensor indices = self._indices().index_select(1, firsts);
  at::DimVector sizes(self._values().sizes());
  sizes[0] = distinct.size(0);
  const at::Tensor values = at::zeros(sizes, self._values().options());
  if (values.numel() > 0) add_to_rows(values, runs, self._values().index_select(0, order));
  return at::_sparse_coo_tensor_unsafe(indices, values, self.sizes(), values.options().layout(at::kSparse))
      ._coalesced_(true);
}

// ---- sums ----

at::Tensor& add_to_dense(const at::Tensor& dense, const at::Tensor& sparse, const at::Scalar& alpha,
                         at::Tensor& result) {
  TORCH_CHECK(sparse.is_sparse(), "add: expected 'other' to be sparse, but it is of layout ", sparse.layout());
  TORCH_CHECK(!result.is_sparse(), "add: expected a dense result for a dense 'self'");
  require_same_device(dense, sparse);
  require_same_device(dense, result);
  TORCH_CHECK(dense.sizes().equals(sparse.sizes()),
              "add: expected 'self' and 'other' to have same size, but self has size ", dense.sizes(),
              " while other has size ", sparse.sizes(),
              " (FYI: dense-sparse addition does not currently support broadcasting)");
  const at::ScalarType common = at::promoteTypes(dense.scalar_type(), sparse.scalar_type());
  TORCH_CHECK(at::canCast(common, result.scalar_type()), "Can't convert result type ", common, " to output ",
              result.scalar_type());
  if (!result.is_same(dense)) {
    at::native::resize_output(result, dense.sizes());
    result.copy_(dense);
  }
  if (sparse._nnz() == 0 || dense.numel() == 0) return result;
  const bool in_place = result.is_contiguous() && result.scalar_type() == common;
  const at::Tensor sum = in_place ? result : dense.to(common).clone(at::MemoryFormat::Contiguous);
  const at::Tensor values = sparse._values().to(common);
  add_to_rows(sum.view(sizes_of_rows(sparse)), places_of_entries(sparse), alpha.equal(1) ? values : values.mul(alpha));
  if (!in_place) result.copy_(sum);
  return result;
}

at::Tensor& add_out(const at::Tensor& self, const at::Tensor& other, const at::Scalar& alpha, at::Tensor& result) {
  if (!self.is_sparse()) return add_to_dense(self, other, alpha, result);
  TORCH_CHECK(other.is_sparse(), "add(sparse, dense) is not supported. Use add(dense, sparse) instead.");
  require_same_device(self, other);
  TORCH_CHECK(self.sizes().equals(other.sizes()), "add: expected sizes of 'self' and 'other' to match, but ",
              self.sizes(), " != ", other.sizes());
  TORCH_CHECK(self.sparse_dim() == other.sparse_dim(),
              "add: expected 'self' and 'other' to have same density, but 'self' has ", self.sparse_dim(),
              " sparse dimensions while 'other' has ", other.sparse_dim(), " sparse dimensions");
  const at::ScalarType common = at::promoteTypes(self.scalar_type(), other.scalar_type());
  const at::Tensor indices = at::cat({self._indices(), other._indices()}, 1);
  const at::Tensor added = other._values().to(common);
  const at::Tensor values = at::cat({self._values().to(common), alpha.equal(1) ? added : added.mul(alpha)}, 0);
  // As on the CPU, the sum of coalesced tensors is coalesced: a momentum buffer does not grow with every step.
  const bool merge = self.is_coalesced() && other.is_coalesced();
  assign(result, self, indices, values, false);
  if (!merge && values.size(0) <= result.numel()) return result;
  const at::Tensor merged = result.coalesce();
  return assign(result, merged, merged._indices(), merged._values(), true);
}

// ---- products ----

/// The elements of a dense tensor of the shape of `sparse` at the entries of `sparse`: (nnz, dense dimensions...).
at::Tensor gathered(const at::Tensor& dense, const at::Tensor& sparse) {
  if (dense.numel() == 0 || sparse._nnz() == 0) return at::zeros(sparse._values().sizes(), dense.options());
  return dense.reshape(sizes_of_rows(sparse)).index_select(0, places_of_entries(sparse));
}

/// For each entry of the first, which entry of the second is at the same place: (nnz) of each, of int64 and bool. The
/// places of the second are sorted and not empty; where the second has none, the first value means nothing.
std::pair<at::Tensor, at::Tensor> find(const at::Tensor& wanted, const at::Tensor& present) {
  const at::Tensor found = at::searchsorted(present, wanted.contiguous()).clamp_max(present.size(0) - 1);
  return {found, present.index_select(0, found).eq(wanted)};
}

at::Tensor& mul_sparse_by_sparse(const at::Tensor& a, const at::Tensor& b, at::Tensor& result) {
  TORCH_CHECK(a.sizes().equals(b.sizes()), "mul: expected 'self' and 'other' to have same sizes when both are sparse, ",
              a.sizes(), " != ", b.sizes());
  TORCH_CHECK_NOT_IMPLEMENTED(a.sparse_dim() == b.sparse_dim(),
                              "mul of sparse tensors with different numbers of sparse dimensions is not implemented");
  const at::Tensor left = a.coalesce(), right = b.coalesce();
  if (left._nnz() == 0 || right._nnz() == 0) {
    return assign(result, left, left._indices().narrow(1, 0, 0),
                  left._values().narrow(0, 0, 0).mul(right._values().narrow(0, 0, 0)), true);
  }
  const at::Tensor wanted = places_of_entries(left), present = places_of_entries(right).contiguous();
  const auto [found, is_there] = find(wanted, present);
  const at::Tensor common = is_there.nonzero().squeeze(1);
  const at::Tensor values =
      left._values().index_select(0, common).mul(right._values().index_select(0, found.index_select(0, common)));
  return assign(result, left, left._indices().index_select(1, common), values, true);
}

at::Tensor& mul_out(const at::Tensor& self, const at::Tensor& other, at::Tensor& result) {
  const bool both = self.is_sparse() && other.is_sparse();
  const at::Tensor& sparse = self.is_sparse() ? self : other;
  const at::Tensor& factor = self.is_sparse() ? other : self;
  if (both && self.dim() != other.dim() && (self.dim() == 0 || other.dim() == 0)) {
    const at::Tensor& entries = self.dim() == 0 ? other : self;
    return mul_out(entries, (self.dim() == 0 ? self : other).to_dense(), result);
  }
  if (!both && factor.dim() == 0) {
    return assign(result, sparse, sparse._indices(), sparse._values().mul(factor), sparse.is_coalesced());
  }
  require_same_device(self, other);
  if (both) return mul_sparse_by_sparse(self, other, result);
  TORCH_CHECK(factor.layout() == at::kStrided, "mul: unexpected layout ", factor.layout());
  const at::DimVector sizes = at::infer_size_dimvector(sparse.sizes(), factor.sizes());
  const at::Tensor entries = sparse.sizes().equals(sizes) ? sparse : at::_sparse_broadcast_to(sparse, sizes).coalesce();
  return assign(result, entries, entries._indices(), entries._values().mul(gathered(factor.expand(sizes), entries)),
                entries.is_coalesced());
}

at::Tensor& addmm_out(const at::Tensor& self, const at::Tensor& mat1, const at::Tensor& mat2, const at::Scalar& beta,
                      const at::Scalar& alpha, at::Tensor& result) {
  TORCH_CHECK_NOT_IMPLEMENTED(mat1.is_sparse() && mat2.layout() == at::kStrided && self.layout() == at::kStrided,
                              "addmm is implemented for a dense 'self', a sparse 'mat1' and a dense 'mat2', but got ",
                              self.layout(), ", ", mat1.layout(), " and ", mat2.layout());
  TORCH_CHECK(mat1.sparse_dim() == 2 && mat1.dense_dim() == 0, "addmm: matrices expected, got a tensor with ",
              mat1.sparse_dim(), " sparse and ", mat1.dense_dim(), " dense dimensions");
  TORCH_CHECK(mat2.dim() == 2, "addmm: matrices expected, got ", mat2.dim(), "D tensor");
  TORCH_CHECK(mat1.size(1) == mat2.size(0), "addmm: Argument #3 (dense): Expected dim 0 size ", mat1.size(1), ", got ",
              mat2.size(0));
  require_same_device(mat1, mat2);
  require_same_device(mat1, self);
  require_same_device(mat1, result);
  const at::ScalarType dtype = mat1.scalar_type();
  TORCH_CHECK(mat2.scalar_type() == dtype && self.scalar_type() == dtype && result.scalar_type() == dtype,
              "addmm: expected tensors of one dtype, but got ", self.scalar_type(), ", ", dtype, " and ",
              mat2.scalar_type());
  const at::Tensor start = self.expand({mat1.size(0), mat2.size(1)});
  // A factor of zero hides what is not a number.
  const at::Tensor sum = beta.equal(0) ? at::zeros(start.sizes(), start.options()) : start.mul(beta);
  if (mat1._nnz() > 0 && sum.numel() > 0) {
    const at::Tensor products = mat2.index_select(0, mat1._indices().select(0, 1)).mul(mat1._values().unsqueeze(1));
    add_to_rows(sum, mat1._indices().select(0, 0), alpha.equal(1) ? products : products.mul(alpha));
  }
  at::native::resize_output(result, sum.sizes());
  return result.copy_(sum);
}

at::Tensor addmm(const at::Tensor& self, const at::Tensor& mat1, const at::Tensor& mat2, const at::Scalar& beta,
                 const at::Scalar& alpha) {
  at::Tensor result = at::empty({0}, self.options().layout(at::kStrided));
  return addmm_out(self, mat1, mat2, beta, alpha, result);
}

at::Tensor& addmm_(at::Tensor& self, const at::Tensor& mat1, const at::Tensor& mat2, const at::Scalar& beta,
                   const at::Scalar& alpha) {
  return addmm_out(self, mat1, mat2, beta, alpha, self);
}

/// The product of a sparse and a dense matrix with one sparse dimension: the rows that have entries.
at::Tensor& hspmm_out(const at::Tensor& mat1, const at::Tensor& mat2, at::Tensor& result) {
  TORCH_CHECK(mat1.sparse_dim() == 2 && mat1.dense_dim() == 0, "hspmm: Argument #2: matrices expected, ",
              mat1.sparse_dim(), "D tensor given");
  TORCH_CHECK(mat2.dim() == 2, "hspmm: Argument #3: matrices expected, ", mat2.dim(), "D tensor given");
  TORCH_CHECK(mat1.size(1) == mat2.size(0), "hspmm: Argument #3: Expected dim 0 size ", mat1.size(1), ", got ",
              mat2.size(0));
  require_same_device(mat1, mat2);
  const at::Tensor merged = mat1.coalesce(), indices = merged._indices();
  const auto [rows, runs, counts] = at::unique_consecutive(indices.select(0, 0), /*return_inverse=*/true);
  const at::Tensor values = at::zeros({rows.size(0), mat2.size(1)}, mat2.options());
  if (merged._nnz() > 0) {
    add_to_rows(values, runs, mat2.index_select(0, indices.select(0, 1)).mul(merged._values().unsqueeze(1)));
  }
  at::sparse::get_sparse_impl(result)->raw_resize_(1, 1, {mat1.size(0), mat2.size(1)});
  at::sparse::get_sparse_impl(result)->set_indices_and_values_unsafe(rows.unsqueeze(0), values);
  return result;
}

at::Tensor hspmm(const at::Tensor& mat1, const at::Tensor& mat2) {
  at::Tensor result = at::empty({0, 0}, mat1.options());
  return hspmm_out(mat1, mat2, result);
}

// ---- along dimensions ----

/// The values of `sparse` at other places, with zeros where it has no entry: (places, dense dimensions...).
at::Tensor values_at(const at::Tensor& sparse, const at::Tensor& places) {
  const at::Tensor merged = sparse.coalesce(), values = merged._values();
  at::DimVector sizes(values.sizes());
  sizes[0] = places.size(0);
  if (merged._nnz() == 0) return at::zeros(sizes, values.options());
  const auto [found, is_there] = find(places, places_of_entries(merged).contiguous());
  at::DimVector column(sizes.size(), 1);
  column[0] = places.size(0);
  return values.index_select(0, found).masked_fill(is_there.logical_not().view(column), 0);
}

// ---- masks ----

/// Where `mask` has entries, the elements of `self`, which is dense or sparse.
at::Tensor sparse_mask(const at::Tensor& self, const at::Tensor& mask) {
  TORCH_CHECK(mask.is_sparse() && (self.layout() == at::kStrided || self.is_sparse()),
              "sparse_mask(): expected a dense or sparse tensor and a sparse mask, but got ", self.layout(), " and ",
              mask.layout());
  require_same_device(self, mask);
  TORCH_CHECK(self.sizes().equals(mask.sizes()), "sparse_mask(): operands have incompatible sizes; self has size ",
              self.sizes(), " but mask has size ", mask.sizes());
  if (self.is_same(mask)) return self;
  if (self.is_sparse()) {
    TORCH_CHECK(self.sparse_dim() == mask.sparse_dim(),
                "sparse_mask(): operands have incompatible sparse dimensions: ", self.sparse_dim(), " and ",
                mask.sparse_dim());
  }
  const at::Tensor kept = self.is_sparse() ? mask : mask.coalesce();
  const at::Tensor values = self.is_sparse() ? values_at(self, places_of_entries(kept)) : gathered(self, kept);
  return at::_sparse_coo_tensor_unsafe(kept._indices().clone(), values, self.sizes(),
                                       self.options().layout(at::kSparse))
      ._coalesced_(kept.is_coalesced());
}

/// The entries of `self`, with 0 for those where `mask` has none; times how many it has there, if matches accumulate.
at::Tensor mask_projection(const at::Tensor& self, const at::Tensor& mask, bool accumulate_matches) {
  TORCH_CHECK(self.is_sparse() && mask.is_sparse() && self.sizes().equals(mask.sizes()) &&
                  self.sparse_dim() == mask.sparse_dim(),
              "_sparse_mask_projection: expected two sparse tensors of one size and as many sparse dimensions");
  require_same_device(self, mask);
  const at::Tensor ones = at::ones({mask._nnz()}, mask._indices().options());
  const at::DimVector sizes(mask.sizes().slice(0, static_cast<size_t>(mask.sparse_dim())));
  const at::Tensor matches =
      at::_sparse_coo_tensor_unsafe(mask._indices(), ones, sizes, ones.options().layout(at::kSparse));
  const at::Tensor counts = values_at(matches, places_of_entries(self));
  const at::Tensor factors = accumulate_matches ? counts : counts.clamp_max(1);
  at::DimVector column(static_cast<size_t>(self._values().dim()), 1);
  column[0] = self._nnz();
  const at::Tensor weights = factors.view(column).to(self.scalar_type());
  return at::_sparse_coo_tensor_unsafe(self._indices().clone(), self._values().mul(weights), self.sizes(),
                                       self.options())
      ._coalesced_(self.is_coalesced());
}

// ---- products of two sparse matrices, and of batches ----

/// For each row of `wanted`, an int64 vector, all entries of the sorted int64 vector `rows`, of `count` rows, that are
/// in it: which element of `wanted`, and which entry.
std::pair<at::Tensor, at::Tensor> entries_of_rows(const at::Tensor& wanted, const at::Tensor& rows, int64_t count) {
  const at::Tensor ends = at::searchsorted(rows.contiguous(), at::arange(count + 1, rows.options()));
  const at::Tensor begins = ends.index_select(0, wanted), lengths = ends.index_select(0, wanted.add(1)).sub(begins);
  const at::Tensor element = at::arange(wanted.size(0), wanted.options()).repeat_interleave(lengths);
  const at::Tensor before = lengths.cumsum(0).sub(lengths);
  const at::Tensor number = at::arange(element.size(0), wanted.options()).sub(before.index_select(0, element));
  return {element, begins.index_select(0, element).add(number)};
}

at::Tensor sparse_sparse_matmul(const at::Tensor& mat1, const at::Tensor& mat2) {
  TORCH_CHECK(mat1.is_sparse() && mat2.is_sparse(), "sparse_matmul: expected two sparse tensors");
  TORCH_CHECK(mat1.dim() == 2 && mat2.dim() == 2 && mat1.dense_dim() == 0 && mat2.dense_dim() == 0,
              "sparse_matmul: scalar values expected, and matrices, got ", mat1.dim(), "D and ", mat2.dim(), "D");
  TORCH_CHECK(mat1.size(1) == mat2.size(0), "mat1 and mat2 shapes cannot be multiplied (", mat1.size(0), "x",
              mat1.size(1), " and ", mat2.size(0), "x", mat2.size(1), ")");
  TORCH_CHECK(mat1.scalar_type() == mat2.scalar_type(), "mat1 dtype ", mat1.scalar_type(),
              " does not match mat2 dtype ", mat2.scalar_type());
  TORCH_CHECK_NOT_IMPLEMENTED(at::isFloatingType(mat1.scalar_type()) || mat1.is_complex(),
                              "\"sparse_matmul\" not implemented for '", mat1.scalar_type(), "'");
  require_same_device(mat1, mat2);
  const at::Tensor left = mat1.coalesce(), right = mat2.coalesce();
  const auto options = left.options();
  if (left._nnz() == 0 || right._nnz() == 0) return at::zeros({mat1.size(0), mat2.size(1)}, options)._coalesced_(true);
  const auto [of_left, of_right] =
      entries_of_rows(left._indices().select(0, 1), right._indices().select(0, 0), right.size(0));
  const at::Tensor values = left._values().index_select(0, of_left).mul(right._values().index_select(0, of_right));
  const at::Tensor indices = at::stack(
      {left._indices().select(0, 0).index_select(0, of_left), right._indices().select(0, 1).index_select(0, of_right)});
  return at::_sparse_coo_tensor_unsafe(indices, values, {mat1.size(0), mat2.size(1)}, options).coalesce();
}

/// The products of a batch of sparse matrices with a batch of dense ones: one product, of matrices below each other.
at::Tensor& bmm_out(const at::Tensor& self, const at::Tensor& mat2, at::Tensor& result) {
  TORCH_CHECK_NOT_IMPLEMENTED(self.is_sparse() && mat2.layout() == at::kStrided,
                              "bmm is implemented for a sparse and a dense tensor, but got ", self.layout(), " and ",
                              mat2.layout());
  TORCH_CHECK(self.dense_dim() == 0 && self.dim() == 3 && mat2.dim() == 3, "bmm_sparse: Tensors must be 3-D");
  TORCH_CHECK(self.size(0) == mat2.size(0) && self.size(2) == mat2.size(1), "bmm_sparse: sizes ", self.sizes(), " and ",
              mat2.sizes(), " do not match");
  TORCH_CHECK(self.scalar_type() == mat2.scalar_type(), "expected tensors of one dtype, but got ", self.scalar_type(),
              " and ", mat2.scalar_type());
  require_same_device(self, mat2);
  const at::Tensor sums = at::zeros({self.size(0) * self.size(1), mat2.size(2)}, mat2.options());
  if (self._nnz() > 0 && sums.numel() > 0) {
    const at::Tensor batch = self._indices().select(0, 0);
    const at::Tensor rows = batch.mul(self.size(1)).add(self._indices().select(0, 1));
    const at::Tensor columns = batch.mul(self.size(2)).add(self._indices().select(0, 2));
    const at::Tensor factors = mat2.reshape({-1, mat2.size(2)}).index_select(0, columns);
    add_to_rows(sums, rows, factors.mul(self._values().unsqueeze(1)));
  }
  at::native::resize_output(result, {self.size(0), self.size(1), mat2.size(2)});
  return result.copy_(sums.view(result.sizes()));
}

at::Tensor bmm(const at::Tensor& self, const at::Tensor& mat2) {
  at::Tensor result = at::empty({0}, mat2.options());
  return bmm_out(self, mat2, result);
}

/// Which entries are alike but for the sparse dimension `dim`: the number of each one's group (nnz), and how many
/// groups.
std::pair<at::Tensor, int64_t> groups_across(const at::Tensor& sparse, int64_t dim) {
  at::Tensor places = at::zeros({sparse._nnz()}, sparse._indices().options());
  for (int64_t other = 0; other < sparse.sparse_dim(); ++other) {
    if (other != dim) places = places.mul(sparse.size(other)).add(sparse._indices().select(0, other));
  }
  const auto [distinct, groups] = at::_unique(places, /*sorted=*/false, /*return_inverse=*/true);
  return {groups, distinct.size(0)};
}

/// The sparse tensor with the entries of the coalesced tensor `like` and other values.
at::Tensor with_values(const at::Tensor& like, const at::Tensor& values) {
  return at::_sparse_coo_tensor_unsafe(like._indices().clone(), values, like.sizes(),
                                       values.options().layout(at::kSparse))
      ._coalesced_(true);
}

/// Softmax over the entries that are there, as PyTorch defines it: a place without an entry counts as minus infinity.
at::Tensor softmax_of_entries(const at::Tensor& self, int64_t dim, bool half_to_float, bool logarithm) {
  const char* const name = logarithm ? "log_softmax" : "softmax";
  TORCH_CHECK(!half_to_float, name, " with half to float conversion is not supported on sparse tensors");
  TORCH_CHECK_NOT_IMPLEMENTED(at::isFloatingType(self.scalar_type()), "\"", name, "\" not implemented for '",
                              self.scalar_type(), "'");
  dim = at::maybe_wrap_dim(dim, self.dim());
  const at::Tensor input = self.coalesce(), values = input._values();
  if (values.numel() == 0) return input.clone();
  if (dim >= input.sparse_dim()) {
    const int64_t dense = dim - input.sparse_dim() + 1;
    return with_values(input, logarithm ? values.log_softmax(dense) : values.softmax(dense));
  }
  const auto [groups, count] = groups_across(input, dim);
  at::DimVector sizes(values.sizes());
  sizes[0] = count;
  at::DimVector column(sizes.size(), 1);
  column[0] = values.size(0);
  const at::Tensor where = groups.view(column).expand_as(values);
  const at::Tensor largest = at::full(sizes, -std::numeric_limits<double>::infinity(), values.options())
                                 .scatter_reduce(0, where, values, "amax");
  const at::Tensor shifted = values.sub(largest.index_select(0, groups)), powers = shifted.exp();
  const at::Tensor sums = at::zeros(sizes, values.options()).index_add(0, groups, powers).index_select(0, groups);
  return with_values(input, logarithm ? shifted.sub(sums.log()) : powers.div(sums));
}

at::Tensor softmax(const at::Tensor& self, int64_t dim, bool half_to_float) {
  return softmax_of_entries(self, dim, half_to_float, /*logarithm=*/false);
}

at::Tensor log_softmax(const at::Tensor& self, int64_t dim, bool half_to_float) {
  return softmax_of_entries(self, dim, half_to_float, /*logarithm=*/true);
}

/// Of entries `y` and gradients `g`: y (g - sum(g y)) for softmax, g - exp(y) sum(g) for log_softmax.
at::Tensor softmax_gradient(const at::Tensor& grad, const at::Tensor& output, int64_t dim, bool logarithm) {
  TORCH_CHECK(grad.sizes().equals(output.sizes()), "expected a gradient of sizes ", output.sizes(), ", but got ",
              grad.sizes());
  require_same_device(grad, output);
  dim = at::maybe_wrap_dim(dim, output.dim());
  const at::Tensor result = output.coalesce(), y = result._values();
  const at::Tensor g = values_at(grad, places_of_entries(result));
  const at::Tensor terms = logarithm ? g : g.mul(y);
  at::Tensor sums;
  if (dim >= result.sparse_dim()) {
    sums = terms.sum(dim - result.sparse_dim() + 1, /*keepdim=*/true);
  } else {
    const auto [groups, count] = groups_across(result, dim);
    at::DimVector sizes(y.sizes());
    sizes[0] = count;
    sums = at::zeros(sizes, y.options()).index_add(0, groups, terms).index_select(0, groups);
  }
  return with_values(result, logarithm ? g.sub(y.exp().mul(sums)) : y.mul(g.sub(sums)));
}

at::Tensor softmax_backward(const at::Tensor& grad, const at::Tensor& output, int64_t dim, const at::Tensor&) {
  return softmax_gradient(grad, output, dim, /*logarithm=*/false);
}

at::Tensor log_softmax_backward(const at::Tensor& grad, const at::Tensor& output, int64_t dim, const at::Tensor&) {
  return softmax_gradient(grad, output, dim, /*logarithm=*/true);
}

/// The gradient of a sum over `dims`, at the entries of `self`.
at::Tensor sum_backward(const at::Tensor& grad, const at::Tensor& self, at::IntArrayRef dims) {
  require_same_device(grad, self);
  const auto is_summed = at::dim_list_to_bitset(dims, self.dim());
  const at::Tensor input = self.coalesce();
  if (input._nnz() == 0) return at::zeros_like(self);
  at::Tensor places = at::zeros({input._nnz()}, input._indices().options());
  bool is_kept = false;
  for (int64_t dim = 0; dim < input.sparse_dim(); ++dim) {
    if (is_summed[static_cast<size_t>(dim)]) continue;
    is_kept = true;
    places = places.mul(input.size(dim)).add(input._indices().select(0, dim));
  }
  TORCH_CHECK(grad.is_sparse() == is_kept, "_sparse_sum_backward: expected grad Tensor to be ",
              is_kept ? "sparse, but got dense" : "dense, but got sparse");
  at::Tensor values = is_kept ? values_at(grad, places) : grad.unsqueeze(0);
  for (int64_t dim = input.sparse_dim(); dim < input.dim(); ++dim) {
    if (is_summed[static_cast<size_t>(dim)]) values = values.unsqueeze(dim - input.sparse_dim() + 1);
  }
  return with_values(input, values.expand(input._values().sizes()).contiguous());
}

/// Rows `index` of dimension `dim`, which may repeat.
at::Tensor index_select(const at::Tensor& self, int64_t dim, const at::Tensor& index) {
  TORCH_CHECK_INDEX(
      index.dim() == 1 && index.layout() == at::kStrided && at::isIntegralType(index.scalar_type(), false),
      "index_select() argument index must be 1-D strided (non-sparse) tensor of integers.");
  require_same_device(self, index);
  dim = at::maybe_wrap_dim(dim, self.dim());
  at::DimVector sizes(self.sizes());
  sizes[static_cast<size_t>(dim)] = index.size(0);
  const auto options = self._values().options().layout(at::kSparse);
  if (dim >= self.sparse_dim()) {
    const at::Tensor values = self._values().index_select(dim - self.sparse_dim() + 1, index);
    return at::_sparse_coo_tensor_unsafe(self._indices().clone(), values, sizes, options);
  }
  const int64_t rows = self.size(dim);
  const at::Tensor wanted = index.to(at::kLong);
  TORCH_CHECK_INDEX(wanted.numel() == 0 || !wanted.lt(-rows).logical_or(wanted.ge(rows)).any().item<bool>(),
                    "index_select(): index contains an element that is out of range for a dimension of size ", rows);
  const at::Tensor place = wanted.remainder(std::max<int64_t>(rows, 1));
  const at::Tensor own = self._indices().select(0, dim), order = own.argsort(/*stable=*/true, 0, false);
  const auto [target, numbers] = entries_of_rows(place, own.index_select(0, order), rows);
  const at::Tensor entries = order.index_select(0, numbers);
  const at::Tensor indices = self._indices().index_select(1, entries);
  indices.select(0, dim).copy_(target);
  return at::_sparse_coo_tensor_unsafe(indices, self._values().index_select(0, entries), sizes, options);
}

// ---- functions of each entry, which keep zeros zeros ----

#define OUTBOARD_SPARSE_FUNCTION(name)                     \
  m.impl(#name, TORCH_FN(at::native::name##_sparse));      \
  m.impl(#name "_", TORCH_FN(at::native::name##_sparse_)); \
  m.impl(#name ".out", TORCH_FN(at::native::name##_sparse_out))

void implement_functions(torch::Library& m) {
  OUTBOARD_SPARSE_FUNCTION(abs);
  OUTBOARD_SPARSE_FUNCTION(asin);
  OUTBOARD_SPARSE_FUNCTION(asinh);
  OUTBOARD_SPARSE_FUNCTION(atan);
  OUTBOARD_SPARSE_FUNCTION(atanh);
  OUTBOARD_SPARSE_FUNCTION(ceil);
  OUTBOARD_SPARSE_FUNCTION(deg2rad);
  OUTBOARD_SPARSE_FUNCTION(erf);
  OUTBOARD_SPARSE_FUNCTION(erfinv);
  OUTBOARD_SPARSE_FUNCTION(expm1);
  OUTBOARD_SPARSE_FUNCTION(floor);
  OUTBOARD_SPARSE_FUNCTION(frac);
  OUTBOARD_SPARSE_FUNCTION(log1p);
  OUTBOARD_SPARSE_FUNCTION(nan_to_num);
  OUTBOARD_SPARSE_FUNCTION(rad2deg);
  OUTBOARD_SPARSE_FUNCTION(round);
  OUTBOARD_SPARSE_FUNCTION(sgn);
  OUTBOARD_SPARSE_FUNCTION(sign);
  OUTBOARD_SPARSE_FUNCTION(sin);
  OUTBOARD_SPARSE_FUNCTION(sinh);
  OUTBOARD_SPARSE_FUNCTION(sqrt);
  OUTBOARD_SPARSE_FUNCTION(tan);
  OUTBOARD_SPARSE_FUNCTION(tanh);
  OUTBOARD_SPARSE_FUNCTION(trunc);
  m.impl("any", TORCH_FN(at::native::any_sparse));
  m.impl("isinf", TORCH_FN(at::native::isinf_sparse));
  m.impl("isnan", TORCH_FN(at::native::isnan_sparse));
  m.impl("isneginf", TORCH_FN(at::native::isneginf_sparse));
  m.impl("isposinf", TORCH_FN(at::native::isposinf_sparse));
  m.impl("pow.Tensor_Scalar", TORCH_FN(at::native::pow_sparse_scalar));
  m.impl("pow.Tensor_Scalar_out", TORCH_FN(at::native::pow_out_sparse_scalar));
  m.impl("relu", TORCH_FN(at::native::relu_sparse));
  m.impl("relu_", TORCH_FN(at::native::relu_sparse_));
  m.impl("signbit", TORCH_FN(at::native::signbit_sparse));
  m.impl("threshold_backward", TORCH_FN(at::native::threshold_backward_sparse));
  m.impl("view_as_complex", TORCH_FN(at::native::view_as_complex_sparse));
  m.impl("view_as_real", TORCH_FN(at::native::view_as_real_sparse));
}

#undef OUTBOARD_SPARSE_FUNCTION

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_embedding_bag_backward", TORCH_FN(at::native::_embedding_bag_backward_symint));
  using Sizes = c10::OptionalArrayRef<int64_t>;
  m.impl("_to_sparse",
         static_cast<at::Tensor (*)(const at::Tensor&, std::optional<at::Layout>, Sizes, std::optional<int64_t>)>(
             &at::native::dense_to_sparse));
  m.impl("_to_sparse.sparse_dim",
         static_cast<at::Tensor (*)(const at::Tensor&, int64_t)>(&at::native::dense_to_sparse));
}

TORCH_LIBRARY_IMPL(aten, SparsePrivateUse1, m) {
  m.impl("empty.memory_format", TORCH_FN(at::native::empty_sparse));
  m.impl("empty_like", TORCH_FN(at::native::empty_like_sparse_coo));
  m.impl("zeros.out", TORCH_FN(at::native::zeros_sparse_out));
  m.impl("_sparse_coo_tensor_with_dims", TORCH_FN(at::native::new_with_dims_sparse));
  m.impl("_sparse_coo_tensor_with_dims_and_tensors", TORCH_FN(at::native::new_with_dims_and_tensor_sparse_symint));
  m.impl("_indices", TORCH_FN(at::native::_indices_sparse));
  m.impl("_values", TORCH_FN(at::native::_values_sparse));
  m.impl("indices", TORCH_FN(at::native::indices_sparse));
  m.impl("values", TORCH_FN(at::native::values_sparse));
  m.impl("_nnz", TORCH_FN(at::native::_nnz_sparse));
  m.impl("sparse_dim", TORCH_FN(at::native::sparse_dim_sparse));
  m.impl("_dimI", TORCH_FN(at::native::sparse_dim_sparse));
  m.impl("dense_dim", TORCH_FN(at::native::dense_dim_sparse));
  m.impl("_dimV", TORCH_FN(at::native::dense_dim_sparse));
  m.impl("is_coalesced", TORCH_FN(at::native::is_coalesced_sparse));
  m.impl("_coalesced_", TORCH_FN(at::native::_coalesced_sparse_));
  m.impl("_coalesce", TORCH_FN(coalesce));
  m.impl("clone", TORCH_FN(at::native::clone_sparse));
  m.impl("copy_", TORCH_FN(at::native::copy_sparse_wrapper_));
  m.impl("copy_sparse_to_sparse_", TORCH_FN(at::native::copy_sparse_));
  m.impl("zero_", TORCH_FN(at::native::zero_sparse_));
  m.impl("sparse_resize_", TORCH_FN(at::native::sparse_resize_));
  m.impl("sparse_resize_and_clear_", TORCH_FN(at::native::sparse_resize_and_clear_));
  m.impl("resize_as_sparse_", TORCH_FN(at::native::resize_as_sparse_));
  m.impl("_to_dense", TORCH_FN(at::native::sparse_to_dense));
  m.impl("sparse_mask", TORCH_FN(sparse_mask));
  m.impl("_sparse_mask_projection", TORCH_FN(mask_projection));
  m.impl("unsqueeze", TORCH_FN(at::native::unsqueeze_sparse));

  m.impl("add.Tensor", TORCH_FN(at::native::add_sparse));
  m.impl("add_.Tensor", TORCH_FN(at::native::add_sparse_));
  m.impl("add.out", TORCH_FN(add_out));
  m.impl("sub.Tensor", TORCH_FN(at::native::sub_sparse));
  m.impl("sub_.Tensor", TORCH_FN(at::native::sub_sparse_));
  m.impl("sub.out", TORCH_FN(at::native::sub_out_sparse));
  m.impl("neg", TORCH_FN(at::native::neg_sparse));
  m.impl("neg_", TORCH_FN(at::native::neg_sparse_));
  m.impl("neg.out", TORCH_FN(at::native::neg_out_sparse));
  m.impl("mul.Tensor", TORCH_FN(at::native::mul_sparse));
  m.impl("mul_.Tensor", TORCH_FN(at::native::mul_sparse_));
  m.impl("mul.out", TORCH_FN(mul_out));
  m.impl("sum", TORCH_FN(at::native::sum_coo));
  m.impl("sum.dim_IntList", TORCH_FN(at::native::sum_sparse_coo));
  using Sizes = at::IntArrayRef;
  using Power = const std::optional<at::Scalar>&;
  using Dtype = std::optional<at::ScalarType>;
  m.impl("native_norm", static_cast<at::Tensor (*)(const at::Tensor&, const at::Scalar&)>(&at::native::norm_sparse));
  m.impl("native_norm.ScalarOpt_dim_dtype",
         static_cast<at::Tensor (*)(const at::Tensor&, Power, Sizes, bool, Dtype)>(&at::native::norm_sparse));
  m.impl("norm.ScalarOpt_dim", TORCH_FN(at::native::sparse_norm));
  m.impl("norm.ScalarOpt_dim_dtype", TORCH_FN(at::native::sparse_dtype_norm));
  m.impl("cat", TORCH_FN(at::native::cat_sparse));
  m.impl("permute", TORCH_FN(at::native::permute_sparse_coo));
  m.impl("narrow_copy", TORCH_FN(at::native::narrow_copy_sparse));
  m.impl("_sparse_broadcast_to", TORCH_FN(at::native::sparse_broadcast_to));
  m.impl("mv", TORCH_FN(at::native::mv_sparse));
  m.impl("mm.out", TORCH_FN(at::native::_sparse_mm_out));
  using Rounding = std::optional<std::string_view>;
  m.impl("div.Tensor", static_cast<at::Tensor (*)(const at::Tensor&, const at::Tensor&)>(&at::native::div_sparse));
  m.impl("div_.Tensor", static_cast<at::Tensor& (*)(at::Tensor&, const at::Tensor&)>(&at::native::div_sparse_));
  m.impl("div.Tensor_mode",
         static_cast<at::Tensor (*)(const at::Tensor&, const at::Tensor&, Rounding)>(&at::native::div_sparse));
  m.impl("div_.Tensor_mode",
         static_cast<at::Tensor& (*)(at::Tensor&, const at::Tensor&, Rounding)>(&at::native::div_sparse_));
  m.impl("div.out", static_cast<at::Tensor& (*)(const at::Tensor&, const at::Tensor&, at::Tensor&)>(
                        &at::native::div_out_sparse_zerodim));
  m.impl("div.out_mode", static_cast<at::Tensor& (*)(const at::Tensor&, const at::Tensor&, Rounding, at::Tensor&)>(
                             &at::native::div_out_sparse_zerodim));
  m.impl("floor_divide", TORCH_FN(at::native::floor_divide_sparse));
  m.impl("floor_divide_.Tensor", TORCH_FN(at::native::floor_divide_sparse_));
  m.impl("floor_divide.out", TORCH_FN(at::native::floor_divide_out_sparse_zerodim));
  m.impl("index_select", TORCH_FN(index_select));
  m.impl("_sparse_sum_backward", TORCH_FN(sum_backward));
  m.impl("_sparse_softmax", TORCH_FN(softmax));
  m.impl("_sparse_softmax_backward_data", TORCH_FN(softmax_backward));
  m.impl("_sparse_log_softmax", TORCH_FN(log_softmax));
  m.impl("_sparse_log_softmax_backward_data", TORCH_FN(log_softmax_backward));
  implement_functions(m);
  m.impl("mm", static_cast<at::Tensor (*)(const at::Tensor&, const at::Tensor&)>(&at::native::_sparse_mm));
  m.impl("addmm", TORCH_FN(addmm));
  m.impl("addmm.out", TORCH_FN(addmm_out));
  m.impl("addmm_", TORCH_FN(addmm_));
  m.impl("_sparse_sparse_matmul", TORCH_FN(sparse_sparse_matmul));
  m.impl("bmm", TORCH_FN(bmm));
  m.impl("bmm.out", TORCH_FN(bmm_out));
  m.impl("hspmm", TORCH_FN(hspmm));
  m.impl("hspmm.out", TORCH_FN(hspmm_out));
}

}  // namespace
}  // namespace outboard::aten
