// SPDX-License-Identifier: Apache-2.0
// Nested tensors of the strided layout: a buffer on the device, and the shapes of the parts on the host. PyTorch's
// kernels for its own devices are made of dense operators on buffers and parts, so they serve this device, too. Those
// that read memory themselves are written again: sums over the last dimension, attention and layers of encoders in
// inference. Jagged tensors need nothing here, they are a class in Python (`adapter/graphs/jagged.py`).
#include <ATen/NestedTensorImpl.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/native/nested/NestedTensorUtils.h>
#include <ATen/ops/_native_multi_head_attention.h>
#include <ATen/ops/_nested_from_padded_and_nested_example.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/native_layer_norm_backward.h>

#include <array>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "torch/operators/shared_kernels.h"

namespace outboard::aten {
namespace {

using Three = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

/// The elements of all parts as (rows, dimensions that are normalized...).
at::Tensor rows_to_normalize(const at::Tensor& nested, at::IntArrayRef shape) {
  const auto* const impl = at::native::get_nested_tensor_impl(nested);
  TORCH_CHECK(impl->is_contiguous(), "layer_norm: expected a nested tensor that is contiguous");
  for (size_t i = 0; i < shape.size(); ++i) {
    const int64_t dim = nested.dim() - static_cast<int64_t>(shape.size() - i);
    TORCH_CHECK(dim > 0 && impl->opt_size(dim) == shape[i],
                "layer_norm: the last dimensions of a nested tensor must be regular and those of normalized_shape ",
                shape);
  }
  std::vector<int64_t> sizes{-1};
  sizes.insert(sizes.end(), shape.begin(), shape.end());
  return impl->get_unsafe_storage_as_tensor().view(sizes);
}

/// A nested tensor of these elements whose parts have the shapes of those of `like`.
at::Tensor nested_like(const at::Tensor& like, const at::Tensor& elements) {
  return at::native::wrap_buffer(elements.reshape(-1), at::native::get_nested_tensor_impl(like)->get_nested_sizes());
}

Three layer_norm(const at::Tensor& input, at::IntArrayRef shape, const std::optional<at::Tensor>& weight,
                 const std::optional<at::Tensor>& bias, double eps) {
  const auto [out, mean, rstd] = at::native_layer_norm(rows_to_normalize(input, shape), shape, weight, bias, eps);
  return {nested_like(input, out), mean, rstd};
}

Three layer_norm_backward(const at::Tensor& grad, const at::Tensor& input, at::IntArrayRef shape,
                          const at::Tensor& mean, const at::Tensor& rstd, const std::optional<at::Tensor>& weight,
                          const std::optional<at::Tensor>& bias, std::array<bool, 3> wanted) {
  const auto [of_input, of_weight, of_bias] = at::native_layer_norm_backward(
      rows_to_normalize(grad, shape), rows_to_normalize(input, shape), shape, mean, rstd, weight, bias, wanted);
  return {wanted[0] ? nested_like(input, of_input) : at::Tensor(), of_weight, of_bias};
}

/// The elements of parts, one part after the other.
at::Tensor joined(std::vector<at::Tensor> parts) {
  for (at::Tensor& part : parts) part = part.reshape(-1);
  return at::cat(parts);
}

at::Tensor sum_last_dim(const at::Tensor& self, at::OptionalIntArrayRef dims, bool keepdim,
                        std::optional<at::ScalarType> dtype) {
  TORCH_CHECK(dims.has_value() && dims->size() == 1,
              "NestedTensor only allows reduction of a single dimension for now.");
  const auto* const impl = at::native::get_nested_tensor_impl(self);
  const int64_t dim = at::maybe_wrap_dim(dims->front(), self.dim());
  TORCH_CHECK(dim == self.dim() - 1,
              "NestedTensor can only be reduced across the last dimension for now got dimension ", dim, " instead.");
  TORCH_CHECK(keepdim, "NestedTensor always requires keepdim=True for now.");
  TORCH_CHECK(!dtype.has_value(), "NestedTensor does not support dtype argument for now.");
  TORCH_CHECK(impl->is_contiguous(),
              "NestedTensor does not support reductions when the input is noncontiguous for now.");
  std::vector<at::Tensor> sums;
  for (const at::Tensor& part : self.unbind()) sums.push_back(part.sum(-1, /*keepdim=*/true, self.scalar_type()));
  if (sums.empty()) return self.clone();
  at::Tensor sizes = impl->get_nested_sizes().clone();
  sizes.select(1, -1).fill_(1);
  return at::native::wrap_buffer(joined(std::move(sums)), sizes);
}

at::Tensor nested_sum_backward(const at::Tensor& grad, const at::Tensor& self, at::OptionalIntArrayRef /*dims*/,
                               bool /*keepdim*/) {
  std::vector<at::Tensor> parts = grad.unbind();
  const std::vector<at::Tensor> inputs = self.unbind();
  if (parts.empty()) return self.clone();
  for (size_t i = 0; i < parts.size(); ++i) parts[i] = parts[i].expand(inputs[i].sizes());
  return nested_like(self, joined(std::move(parts)));
}

/// What stands beyond the parts when they are padded to `places` rows, as (parts, places), true there.
at::Tensor padding_of(const at::Tensor& nested, int64_t places) {
  const at::Tensor lengths = at::native::get_nested_tensor_impl(nested)->get_nested_sizes().select(1, 0).unsqueeze(1);
  return at::arange(places, lengths.options()).ge(lengths).to(nested.device());
}

/// Kind of a mask that says which keys of each sequence count.
constexpr int64_t of_keys = 1;

/// A layer of `nn.TransformerEncoder` in inference, for which no kernel takes nested tensors: on padded sequences, with
/// a mask of what is padding.
void padded_encoder_layer(const c10::OperatorHandle& handle, c10::DispatchKeySet /*keys*/, torch::jit::Stack* stack) {
  const size_t count = handle.schema().arguments().size();
  const size_t first = stack->size() - count;
  const at::Tensor nested = (*stack)[first].toTensor();
  c10::IValue& mask = (*stack)[first + count - 2];
  TORCH_CHECK(mask.isNone(), "_transformer_encoder_layer_fwd: a nested tensor has no mask");
  const at::Tensor padded = nested.to_padded_tensor(0.0);
  mask = padding_of(nested, padded.size(1));
  (*stack)[first + count - 1] = of_keys;
  (*stack)[first] = padded;
  handle.callBoxed(*stack);
  stack->back() = at::_nested_from_padded_and_nested_example(stack->back().toTensor(), nested);
}

void check_like(const at::Tensor& query, const at::Tensor& other) {
  if (other.is_same(query)) return;
  TORCH_CHECK(query.is_nested() && other.is_nested(), "cat(): expected each tensor in given list to be nested");
  TORCH_CHECK(at::native::get_nested_tensor_impl(query)->get_nested_sizes().equal(
                  at::native::get_nested_tensor_impl(other)->get_nested_sizes()),
              "cat(): expected all nested tensors to have matching ragged structures outside of the concatenated dim");
}

/// `nn.MultiheadAttention` in inference, alike. Of padding there are no weights.
std::tuple<at::Tensor, at::Tensor> padded_attention(const at::Tensor& query, const at::Tensor& key,
                                                    const at::Tensor& value, int64_t embed_dim, int64_t num_head,
                                                    const at::Tensor& qkv_weight, const at::Tensor& qkv_bias,
                                                    const at::Tensor& proj_weight, const at::Tensor& proj_bias,
                                                    const std::optional<at::Tensor>& mask, bool need_weights,
                                                    bool average_attn_weights, std::optional<int64_t> /*mask_type*/) {
  TORCH_CHECK(!mask.has_value(), "NestedTensor with mask is not supported yet");
  TORCH_CHECK(query.dim() == 3, "expected 3-D `query`, got ", query.dim(), "-D tensor");
  check_like(query, key);
  check_like(query, value);
  const at::Tensor padded = query.to_padded_tensor(0.0);
  const auto padded_like = [&](const at::Tensor& x) { return x.is_same(query) ? padded : x.to_padded_tensor(0.0); };
  const at::Tensor padding = padding_of(query, padded.size(1));
  auto [out, weights] = at::_native_multi_head_attention(padded, padded_like(key), padded_like(value), embed_dim,
                                                         num_head, qkv_weight, qkv_bias, proj_weight, proj_bias,
                                                         padding, need_weights, average_attn_weights, of_keys);
  if (weights.defined()) {
    const at::Tensor rows = padding.unsqueeze(-1);
    weights.masked_fill_(weights.dim() == 4 ? rows.unsqueeze(1) : rows, 0.0);
  }
  return {at::_nested_from_padded_and_nested_example(out, query), weights};
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  share_kernels<c10::DispatchKey::CPU>(
      m, {"_nested_from_padded", "_nested_tensor_from_mask", "_nested_tensor_from_mask_left_aligned"});
}

TORCH_LIBRARY_IMPL(aten, NestedTensorPrivateUse1, m) {
  m.impl("native_layer_norm", TORCH_FN(layer_norm));
  m.impl("native_layer_norm_backward", TORCH_FN(layer_norm_backward));
  m.impl("_native_multi_head_attention", TORCH_FN(padded_attention));
  m.impl("_transformer_encoder_layer_fwd", torch::CppFunction::makeFromBoxedFunction<&padded_encoder_layer>());
  m.impl("sum.dim_IntList", TORCH_FN(sum_last_dim));
  m.impl("_nested_sum_backward", TORCH_FN(nested_sum_backward));
  share_kernels<c10::DispatchKey::NestedTensorCPU>(m, {"_nested_from_padded_and_nested_example",
                                                       "_nested_select_backward",
                                                       "_nested_tensor_size",
                                                       "_nested_tensor_softmax_with_shape",
                                                       "_nested_tensor_storage_offsets",
                                                       "_nested_tensor_strides",
                                                       "_safe_softmax",
                                                       "_softmax",
                                                       "_softmax_backward_data",
                                                       "_to_copy",
                                                       "abs",
                                                       "abs_",
                                                       "add.Tensor",
                                                       "add_.Tensor",
                                                       "alias",
                                                       "all.dim",
                                                       "bmm",
                                                       "cat",
                                                       "chunk",
                                                       "clone",
                                                       "copy_",
                                                       "cos",
                                                       "detach",
                                                       "div.Scalar",
                                                       "div.Tensor",
                                                       "embedding",
                                                       "empty_like",
                                                       "eq.Scalar",
                                                       "eq.Tensor",
                                                       "fill_.Scalar",
                                                       "fill_.Tensor",
                                                       "ge.Scalar",
                                                       "gelu",
                                                       "gelu_",
                                                       "gelu_backward",
                                                       "gt.Scalar",
                                                       "is_same_size",
                                                       "isinf",
                                                       "isnan",
                                                       "isneginf",
                                                       "isposinf",
                                                       "linear",
                                                       "linear_backward",
                                                       "logical_not",
                                                       "logical_not_",
                                                       "masked_fill.Scalar",
                                                       "matmul",
                                                       "matmul.out",
                                                       "matmul_backward",
                                                       "mul.Scalar",
                                                       "mul.Tensor",
                                                       "mul_.Scalar",
                                                       "mul_.Tensor",
                                                       "narrow",
                                                       "native_dropout",
                                                       "native_dropout_backward",
                                                       "neg",
                                                       "neg_",
                                                       "normal_",
                                                       "ones_like",
                                                       "relu",
                                                       "relu_",
                                                       "select.int",
                                                       "sgn",
                                                       "sgn_",
                                                       "silu",
                                                       "silu_",
                                                       "silu_backward",
                                                       "sin",
                                                       "split_with_sizes",
                                                       "sqrt",
                                                       "squeeze",
                                                       "squeeze.dim",
                                                       "squeeze.dims",
                                                       "sub.Tensor",
                                                       "tanh",
                                                       "tanh_",
                                                       "threshold_backward",
                                                       "to_padded_tensor",
                                                       "transpose.int",
                                                       "unbind.int",
                                                       "unsqueeze",
                                                       "value_selecting_reduction_backward",
                                                       "values",
                                                       "view",
                                                       "where.self",
                                                       "where.self_out",
                                                       "zero_"});
}

}  // namespace outboard::aten
