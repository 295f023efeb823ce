// SPDX-License-Identifier: Apache-2.0
#include <ATen/TensorOperators.h>
#include <ATen/TensorUtils.h>
#include <ATen/ops/norm.h>
#include <ATen/ops/where.h>
#include <torch/library.h>

/// Tables of embeddings, changed where they are looked at.
namespace outboard::aten {
namespace {

/// Rows that are looked at are scaled to `max_norm` where they are longer. A row that is there twice is written twice,
/// with the same numbers, so nobody has to wait for how many there are.
at::Tensor& renormalized(at::Tensor& self, const at::Tensor& indices, double max_norm, double norm_type) {
  const char* const name = "embedding_renorm_";
  at::checkDim(name, at::TensorArg(self, "self", 1), 2);
  at::checkScalarTypes(name, at::TensorArg(indices, "indices", 2), {at::kLong, at::kInt});
  if (indices.numel() == 0) return self;
  const at::Tensor places = indices.reshape(-1).to(at::kLong);  // as writing by places wants them
  const at::Tensor rows = self.index_select(0, places);
  at::Tensor norms = at::norm(rows, norm_type, {1}, /*keepdim=*/true);
  if (at::isReducedFloatingType(norms.scalar_type())) norms = norms.to(at::kFloat);
  const at::Tensor factors = at::where(norms.gt(max_norm), norms.add(1e-7).reciprocal().mul(max_norm), 1);
  return self.index_copy_(0, places, rows.mul(factors).to(self.scalar_type()));
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) { m.impl("embedding_renorm_", TORCH_FN(renormalized)); }

}  // namespace
}  // namespace outboard::aten
