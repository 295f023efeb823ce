// SPDX-License-Identifier: Apache-2.0
#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>
#include <torch/library.h>

#include <array>
#include <optional>

#include "torch/bridge/devices.h"
#include "torch/eager/compiler.h"

/// How `scaled_dot_product_attention` is computed: by one operator, as on the CPU, or taken apart into products and a
/// softmax. It is decided while a call is eager or traced, so that compiled graphs hold the same operators.
namespace outboard::aten {
namespace {

/// Widest heads that the kernels take; `compiler/kernels/attention` refuses more.
constexpr int64_t kMostWidth = 256;

bool neighbours_adjoin(const at::Tensor& tensor) { return TORCH_GUARD_OR_FALSE(tensor.sym_stride(-1).sym_eq(1)); }

/// The operator has no derivative in forward mode, but its parts have.
bool has_tangent(const at::Tensor& tensor) { return tensor._fw_grad(0).defined(); }

/// Other devices have a kernel, too, but none that was measured to be faster than products and a softmax.
bool has_fast_kernel(c10::Device where) { return device(where.index()).properties().execution == OB_EXECUTION_VECTOR; }

/// What PyTorch demands of its own fused kernel for CPUs, and what ours do.
bool fits(const sdp::sdp_params& call) {
  constexpr bool kGroupedHeads = true;
  if (!sdp::check_nested_tensor(call, false) || !sdp::check_for_dropout(call, false)) return false;
  if (!sdp::check_tensor_shapes(call, false) || !sdp::check_attn_mask_shape(call, false)) return false;
  if (!sdp::check_batch_size_and_num_heads_dense<kGroupedHeads>(call, false)) return false;
  if (!sdp::check_nonzero_sequence_lengths_dense(call, false)) return false;
  constexpr std::array kTypes{at::kFloat, at::kDouble, at::kHalf, at::kBFloat16};
  if (!sdp::check_tensor_dtype(call, kTypes, false)) return false;
  if (has_tangent(call.query) || has_tangent(call.key) || has_tangent(call.value)) return false;
  const c10::SymInt width = call.query.sym_size(-1);
  if (!TORCH_GUARD_OR_FALSE(width.sym_eq(call.value.sym_size(-1))) || !TORCH_GUARD_OR_FALSE(width.sym_le(kMostWidth))) {
    return false;
  }
  return neighbours_adjoin(call.query) && neighbours_adjoin(call.key) && neighbours_adjoin(call.value);
}

/// The driver's library has attention without masks, forward only. Gradients of products and a softmax are theirs.
bool is_plain(const sdp::sdp_params& call) {
  if (call.attn_mask.has_value()) return false;
  for (const at::Tensor* each : {&call.query, &call.key, &call.value}) {
    if (at::GradMode::is_enabled() && each->requires_grad()) return false;
  }
  return true;
}

/// Units for matrices take heads up to this width, a multiple of `kUnit`, in halves.
constexpr int64_t kMostUnits = 128;
constexpr int64_t kUnit = 16;

/// Whether our kernels for matrix units take a call that fits.
bool suits_matrix_units(const sdp::sdp_params& call) {
  const at::ScalarType dtype = call.query.scalar_type();
  if (device(call.query.device().index()).properties().matrix_units == 0) return false;
  if (dtype != at::kHalf && dtype != at::kBFloat16) return false;
  const c10::SymInt width = call.query.sym_size(-1);
  if (!TORCH_GUARD_OR_FALSE(width.sym_le(kMostUnits))) return false;
  return TORCH_GUARD_OR_FALSE((width % kUnit).sym_eq(0));
}

/// Whether a call that fits is one operator on a device whose kernel for any is no faster than products and a softmax:
/// for the sake of its library, if that has attention, or else of its matrix units.
bool is_one_operator(const sdp::sdp_params& call, std::optional<double> scale) {
  const bool plain = is_plain(call), suits = suits_matrix_units(call);
  if (!plain && !suits) return false;
  return library_attends(call.query, call.key, call.value, call.is_causal, scale, plain).value_or(suits);
}

int64_t choose(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
               const std::optional<at::Tensor>& mask, double dropout, bool causal, std::optional<double> scale,
               bool grouped) {
  const at::Context& context = at::globalContext();
  const bool wanted = context.userEnabledFlashSDP() || context.userEnabledOverrideableSDP();
  const bool can_be_apart = context.userEnabledMathSDP();
  const sdp::sdp_params call{query, key, value, mask, dropout, causal, grouped};
  const bool fast = has_fast_kernel(query.device()) || !can_be_apart;
  if (wanted && fits(call) && (fast || is_one_operator(call, scale))) {
    return static_cast<int64_t>(at::SDPBackend::flash_attention);
  }
  TORCH_CHECK(can_be_apart, "No viable backend for scaled_dot_product_attention was found.");
  return static_cast<int64_t>(at::SDPBackend::math);
}

}  // namespace

/// Attention over sequences that lie one behind the other (`adapter/graphs/jagged.py`): `query` (queries of all
/// sequences, heads, width), `key` and `value` alike, and where each sequence begins and the last ends. The second
/// result is the logarithm of each query's sum, (heads, queries).
TORCH_LIBRARY_FRAGMENT(outboard, m) {
  m.def(
      "attend_packed(Tensor query, Tensor key, Tensor value, Tensor query_starts, Tensor key_starts, SymInt "
      "most_queries, SymInt most_keys, bool is_causal, float? scale) -> (Tensor, Tensor)");
  m.def(
      "attend_packed_backward(Tensor grad_out, Tensor query, Tensor key, Tensor value, Tensor out, Tensor logsumexp, "
      "Tensor query_starts, Tensor key_starts, SymInt most_queries, SymInt most_keys, bool is_causal, float? scale) "
      "-> (Tensor, Tensor, Tensor)");
}

}  // namespace outboard::aten

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &outboard::aten::choose)
}
