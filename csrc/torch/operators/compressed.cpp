// SPDX-License-Identifier: Apache-2.0
// Compressed sparse layouts (CSR, CSC, BSR, BSC). Where PyTorch's kernels are made of dense operators on the indices
// and values, they serve this device, too; products and sums go through the COO layout, whose kernels are in
// `sparse.cpp`.
#include <ATen/Functions.h>
#include <ATen/NativeFunctions.h>
#include <ATen/SparseCsrTensorUtils.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/native/Resize.h>

#include <optional>
#include <vector>

#include "torch/operators/shared_kernels.h"

namespace outboard::aten {
namespace {

bool is_compressed(const at::Tensor& tensor) { return at::sparse_csr::is_sparse_compressed(tensor); }

at::Tensor without_compression(const at::Tensor& tensor) {
  return is_compressed(tensor) ? tensor.to_sparse(tensor.dim() - tensor.dense_dim()) : tensor;
}

/// Makes `result` a tensor of its own layout, and block size, with the elements of a sparse or dense one.
at::Tensor& assign(at::Tensor& result, const at::Tensor& elements) {
  if (!is_compressed(result)) {
    const at::Tensor dense = elements.layout() == at::kStrided ? elements : elements.to_dense();
    at::native::resize_output(result, dense.sizes());
    return result.copy_(dense);
  }
  const bool has_blocks = result.layout() == at::kSparseBsr || result.layout() == at::kSparseBsc;
  const at::DimVector block = has_blocks ? at::sparse_csr::getBlockSize(result) : at::DimVector();
  const auto blocks = has_blocks ? at::OptionalArrayRef<int64_t>(block) : std::nullopt;
  const at::Tensor made = elements.to_sparse(result.layout(), blocks).to(result.scalar_type());
  const auto [compressed, plain] = at::sparse_csr::getCompressedPlainIndices(made);
  at::sparse_csr::get_sparse_csr_impl(result)->set_member_tensors(compressed, plain, made.values(), made.sizes());
  return result;
}

// ---- indices ----

/// As PyTorch checks them for its devices; what is wrong with them must be known at once.
void validate_indices(bool by_rows, const at::Tensor& compressed, const at::Tensor& plain, int64_t compressed_size,
                      int64_t plain_size, int64_t entries) {
  at::_validate_compressed_sparse_indices(by_rows, compressed.cpu(), plain.cpu(), compressed_size, plain_size, entries);
}

/// How many of the ascending `rows` are less than 0, 1, ... `size`.
at::Tensor coo_to_csr(const at::Tensor& rows, int64_t size, bool out_int32) {
  TORCH_CHECK(rows.dim() <= 1, "Input is supposed to be a vector, but got ", rows.dim(), " dimensional tensor.");
  return at::searchsorted(rows.contiguous(), at::arange(size + 1, rows.options()), out_int32);
}

/// Row and column of each entry, behind the places in the batch where there is one: int64 or int32, (2 + batch
/// dimensions, entries of all).
at::Tensor csr_to_coo(const at::Tensor& compressed, const at::Tensor& plain, bool out_int32, bool transpose) {
  const at::Tensor numbers = at::arange(plain.size(-1), compressed.options()).expand(plain.sizes()).contiguous();
  const at::Tensor rows =
      at::searchsorted(compressed.contiguous(), numbers, /*out_int32=*/false, /*right=*/true).sub(1);
  std::vector<at::Tensor> places;
  for (int64_t dim = 0; dim + 1 < plain.dim(); ++dim) {
    at::DimVector shape(static_cast<size_t>(plain.dim()), 1);
    shape[static_cast<size_t>(dim)] = plain.size(dim);
    places.push_back(at::arange(plain.size(dim), rows.options()).view(shape).expand(plain.sizes()).reshape(-1));
  }
  places.push_back((transpose ? plain : rows).reshape(-1));
  places.push_back((transpose ? rows : plain).reshape(-1));
  for (at::Tensor& place : places) place = place.to(out_int32 ? at::kInt : at::kLong);
  return at::stack(places);
}

// ---- from one compressed layout to another ----

/// Whether a layout compresses rows, and not columns.
bool is_by_rows(at::Layout layout) { return layout == at::kSparseCsr || layout == at::kSparseBsr; }

/// From rows to columns, or back.
at::Tensor flipped(const at::Tensor& self, at::Layout layout, at::OptionalIntArrayRef blocks) {
  TORCH_CHECK_NOT_IMPLEMENTED(self.dim() - self.dense_dim() == 2, "conversion of batches from ", self.layout(), " to ",
                              layout, " is not implemented");
  return without_compression(self).to_sparse(layout, blocks);
}

at::Tensor to_csr(const at::Tensor& self, std::optional<int64_t> dense_dim) {
  if (!is_by_rows(self.layout())) return flipped(self, at::kSparseCsr, std::nullopt);
  return at::native::sparse_compressed_to_sparse_csr(self, dense_dim);
}

at::Tensor to_csc(const at::Tensor& self, std::optional<int64_t> dense_dim) {
  if (is_by_rows(self.layout())) return flipped(self, at::kSparseCsc, std::nullopt);
  return at::native::sparse_compressed_to_sparse_csc(self, dense_dim);
}

at::Tensor to_bsr(const at::Tensor& self, at::IntArrayRef blocks, std::optional<int64_t> dense_dim) {
  if (!is_by_rows(self.layout())) return flipped(self, at::kSparseBsr, blocks);
  return at::native::sparse_compressed_to_sparse_bsr(self, blocks, dense_dim);
}

at::Tensor to_bsc(const at::Tensor& self, at::IntArrayRef blocks, std::optional<int64_t> dense_dim) {
  if (is_by_rows(self.layout())) return flipped(self, at::kSparseBsc, blocks);
  return at::native::sparse_compressed_to_sparse_bsc(self, blocks, dense_dim);
}

// ---- sums and products ----

at::Tensor& add_out(const at::Tensor& self, const at::Tensor& other, const at::Scalar& alpha, at::Tensor& result) {
  if (other.layout() == at::kStrided) {
    TORCH_CHECK(!is_compressed(result), "add: expected a dense result for a dense 'other'");
    return assign(result, at::add(other.mul(alpha), without_compression(self)));
  }
  TORCH_CHECK(self.layout() == at::kStrided || is_compressed(other),
              "add(sparse, dense) is not supported. Use add(dense, sparse) instead.");
  return assign(result, at::add(without_compression(self), without_compression(other), alpha));
}

/// A matrix in CSR layout, reduced along dimensions: an entry where there was any.
template <bool kMultiplies>
at::Tensor reduced_csr(const at::Tensor& self, at::IntArrayRef dims, bool keepdim,
                       std::optional<at::ScalarType> dtype) {
  TORCH_CHECK(self.layout() == at::kSparseCsr && self.dim() == 2 && keepdim,
              "reduction operations on CSR tensors with keepdim=False is unsupported");
  const at::Tensor places = csr_to_coo(self.crow_indices(), self.col_indices(), false, false);
  at::DimVector sizes(self.sizes());
  for (const int64_t dim : dims) {
    const int64_t wrapped = at::maybe_wrap_dim(dim, 2);
    places.select(0, wrapped).zero_();
    sizes[static_cast<size_t>(wrapped)] = 1;
  }
  const auto [distinct, groups, counts] =
      at::_unique2(places[0].mul(sizes[1]).add(places[1]), /*sorted=*/true, /*return_inverse=*/true);
  const at::Tensor terms = self.values().to(dtype.value_or(self.scalar_type()));
  const at::Tensor values = kMultiplies
                                ? at::ones(distinct.sizes(), terms.options()).scatter_reduce(0, groups, terms, "prod")
                                : at::zeros(distinct.sizes(), terms.options()).index_add(0, groups, terms);
  const at::Tensor indices = at::stack({distinct.div(sizes[1], "floor"), distinct.remainder(sizes[1])});
  return at::_sparse_coo_tensor_unsafe(indices, values, sizes, terms.options().layout(at::kSparse))
      ._coalesced_(true)
      .to_sparse_csr();
}

/// The product of matrices, of which one is sparse: dense, or in COO layout if both are.
at::Tensor product(const at::Tensor& mat1, const at::Tensor& mat2) {
  if (mat1.layout() != at::kStrided) return mat1.is_sparse() && mat2.is_sparse() ? mat1.matmul(mat2) : mat1.mm(mat2);
  return mat2.t().mm(mat1.t()).t();
}

at::Tensor& addmm_out(const at::Tensor& self, const at::Tensor& mat1, const at::Tensor& mat2, const at::Scalar& beta,
                      const at::Scalar& alpha, at::Tensor& result) {
  TORCH_CHECK(mat1.dim() == 2 && mat2.dim() == 2, "addmm: matrices expected, got ", mat1.dim(), "D and ", mat2.dim(),
              "D tensors");
  TORCH_CHECK(mat1.size(1) == mat2.size(0), "mat1 and mat2 shapes cannot be multiplied (", mat1.size(0), "x",
              mat1.size(1), " and ", mat2.size(0), "x", mat2.size(1), ")");
  at::Tensor sum = product(without_compression(mat1), without_compression(mat2));
  if (!alpha.equal(1)) sum = sum.mul(alpha);
  if (!beta.equal(0)) {
    const at::Tensor added = without_compression(self.layout() == at::kStrided ? self.expand(sum.sizes()) : self);
    const at::Tensor scaled = beta.equal(1) ? added : added.mul(beta);
    sum = added.is_sparse() && !sum.is_sparse() ? sum.add(scaled) : scaled.add(sum);
  }
  return assign(result, sum);
}

at::Tensor& addmv_out(const at::Tensor& self, const at::Tensor& mat, const at::Tensor& vec, const at::Scalar& beta,
                      const at::Scalar& alpha, at::Tensor& result) {
  TORCH_CHECK(mat.dim() == 2 && vec.dim() == 1 && mat.size(1) == vec.size(0), "size mismatch, got input (",
              self.sizes(), "), mat (", mat.sizes(), "), vec (", vec.sizes(), ")");
  const at::Tensor sum = product(without_compression(mat), vec.unsqueeze(1)).squeeze(1).mul(alpha);
  return assign(result, beta.equal(0) ? sum : sum.add(self, beta));
}

/// Of the product of two dense matrices the elements where `self`, in CSR layout, has entries.
at::Tensor& sampled_addmm_out(const at::Tensor& self, const at::Tensor& mat1, const at::Tensor& mat2,
                              const at::Scalar& beta, const at::Scalar& alpha, at::Tensor& result) {
  TORCH_CHECK_NOT_IMPLEMENTED(self.layout() == at::kSparseCsr && self.dim() == 2,
                              "sampled_addmm is implemented for one matrix in CSR layout");
  TORCH_CHECK(mat1.size(0) == self.size(0) && mat2.size(1) == self.size(1) && mat1.size(1) == mat2.size(0),
              "sampled_addmm: sizes ", self.sizes(), ", ", mat1.sizes(), " and ", mat2.sizes(), " do not match");
  const at::Tensor places = csr_to_coo(self.crow_indices(), self.col_indices(), false, false);
  const at::Tensor rows = mat1.index_select(0, places[0]), columns = mat2.t().index_select(0, places[1]);
  const at::Tensor products = rows.mul(columns).sum(1).mul(alpha);
  const at::Tensor values = beta.equal(0) ? products : products.add(self.values(), beta);
  at::sparse_csr::get_sparse_csr_impl(result)->set_member_tensors(self.crow_indices().clone(),
                                                                  self.col_indices().clone(), values, self.sizes());
  return result;
}

at::Tensor sampled_addmm(const at::Tensor& self, const at::Tensor& mat1, const at::Tensor& mat2, const at::Scalar& beta,
                         const at::Scalar& alpha) {
  at::Tensor result = at::empty({0, 0}, self.options());
  return sampled_addmm_out(self, mat1, mat2, beta, alpha, result);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_validate_compressed_sparse_indices", TORCH_FN(validate_indices));
  m.impl("_convert_indices_from_coo_to_csr", TORCH_FN(coo_to_csr));
  m.impl("_convert_indices_from_csr_to_coo", TORCH_FN(csr_to_coo));
  share_kernels<c10::DispatchKey::CPU>(m, {"_to_sparse_csr", "_to_sparse_csc", "_to_sparse_bsr", "_to_sparse_bsc"});
}

TORCH_LIBRARY_IMPL(aten, SparsePrivateUse1, m) {
  share_kernels<c10::DispatchKey::SparseCPU>(
      m, {"conj_physical.out", "_to_sparse_csr", "_to_sparse_csc", "_to_sparse_bsr", "_to_sparse_bsc", "_to_sparse",
          "_to_sparse.sparse_dim"});
}

TORCH_LIBRARY_IMPL(aten, SparseCsrPrivateUse1, m) {
  m.impl("_to_sparse_csr", TORCH_FN(to_csr));
  m.impl("_to_sparse_csc", TORCH_FN(to_csc));
  m.impl("_to_sparse_bsr", TORCH_FN(to_bsr));
  m.impl("_to_sparse_bsc", TORCH_FN(to_bsc));
  m.impl("add.out", TORCH_FN(add_out));
  m.impl("addmm.out", TORCH_FN(addmm_out));
  m.impl("addmv.out", TORCH_FN(addmv_out));
  m.impl("_sparse_csr_sum.dim_dtype", TORCH_FN(reduced_csr<false>));
  m.impl("_sparse_csr_prod.dim_dtype", TORCH_FN(reduced_csr<true>));
  m.impl("sparse_sampled_addmm", TORCH_FN(sampled_addmm));
  m.impl("sparse_sampled_addmm.out", TORCH_FN(sampled_addmm_out));
  share_kernels<c10::DispatchKey::SparseCsrCPU>(m, {"abs",
                                                    "abs_",
                                                    "abs.out",
                                                    "angle",
                                                    "angle.out",
                                                    "sgn",
                                                    "sgn_",
                                                    "sgn.out",
                                                    "_conj_physical",
                                                    "conj_physical.out",
                                                    "conj_physical_",
                                                    "add.Tensor",
                                                    "add_.Tensor",
                                                    "asinh",
                                                    "asinh_",
                                                    "asinh.out",
                                                    "atanh",
                                                    "atanh_",
                                                    "atanh.out",
                                                    "asin",
                                                    "asin_",
                                                    "asin.out",
                                                    "atan",
                                                    "atan_",
                                                    "atan.out",
                                                    "ceil",
                                                    "ceil_",
                                                    "ceil.out",
                                                    "copy_",
                                                    "empty.memory_format",
                                                    "resize_",
                                                    "empty_like",
                                                    "erf",
                                                    "erf_",
                                                    "erf.out",
                                                    "expm1",
                                                    "expm1_",
                                                    "expm1.out",
                                                    "fill_.Scalar",
                                                    "floor",
                                                    "floor_",
                                                    "floor.out",
                                                    "frac",
                                                    "frac_",
                                                    "frac.out",
                                                    "isnan",
                                                    "log1p",
                                                    "log1p_",
                                                    "log1p.out",
                                                    "mm",
                                                    "mm.out",
                                                    "mul.Tensor",
                                                    "mul_.Tensor",
                                                    "mul.out",
                                                    "mul.Scalar",
                                                    "mul_.Scalar",
                                                    "rad2deg",
                                                    "rad2deg_",
                                                    "rad2deg.out",
                                                    "deg2rad",
                                                    "deg2rad_",
                                                    "deg2rad.out",
                                                    "neg",
                                                    "neg_",
                                                    "neg.out",
                                                    "round",
                                                    "round_",
                                                    "round.out",
                                                    "relu",
                                                    "relu_",
                                                    "select.int",
                                                    "sin",
                                                    "sin_",
                                                    "sin.out",
                                                    "sinh",
                                                    "sinh_",
                                                    "sinh.out",
                                                    "sum",
                                                    "sum.dim_IntList",
                                                    "sqrt",
                                                    "sqrt_",
                                                    "sqrt.out",
                                                    "tan",
                                                    "tan_",
                                                    "tan.out",
                                                    "tanh",
                                                    "tanh_",
                                                    "tanh.out",
                                                    "threshold_backward.grad_input",
                                                    "threshold_backward",
                                                    "trunc",
                                                    "trunc_",
                                                    "trunc.out",
                                                    "clone",
                                                    "resize_as_sparse_",
                                                    "zero_",
                                                    "addmm",
                                                    "sparse_mask",
                                                    "_to_dense",
                                                    "sparse_dim",
                                                    "dense_dim",
                                                    "_nnz",
                                                    "values",
                                                    "crow_indices",
                                                    "col_indices",
                                                    "ccol_indices",
                                                    "row_indices",
                                                    "_to_sparse.sparse_dim",
                                                    "_to_sparse",
                                                    "erfinv",
                                                    "erfinv_",
                                                    "erfinv.out",
                                                    "sign",
                                                    "sign_",
                                                    "sign.out",
                                                    "signbit",
                                                    "signbit.out",
                                                    "normal_",
                                                    "isinf",
                                                    "isposinf",
                                                    "isposinf.out",
                                                    "isneginf",
                                                    "isneginf.out",
                                                    "select_copy.int"});
}

}  // namespace outboard::aten
