// SPDX-License-Identifier: Apache-2.0
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <algorithm>
#include <tuple>
#include <vector>

#include "torch/eager/own_operator.h"

/// Connectionist temporal classification (Graves et al. 2006). Lengths come as numbers of the host's, which would make
/// a plan for each of them: they go to the device, and operators of our own do the rest.
namespace outboard::aten {
namespace {

using Two = std::tuple<at::Tensor, at::Tensor>;

/// Throws as PyTorch does for lengths that do not fit the tensors.
void check_lengths(const at::Tensor& log_probs, const at::Tensor& targets, at::IntArrayRef inputs,
                   at::IntArrayRef labels, int64_t blank) {
  TORCH_CHECK(log_probs.numel() > 0, "log_probs tensor must not be empty");
  const int64_t most = log_probs.size(0), batch = log_probs.size(1);
  TORCH_CHECK(blank >= 0 && blank < log_probs.size(2), "blank must be in label range");
  TORCH_CHECK(static_cast<int64_t>(inputs.size()) == batch, "input_lengths must be of size batch_size");
  TORCH_CHECK(static_cast<int64_t>(labels.size()) == batch, "target_lengths must be of size batch_size");
  int64_t all = 0, longest = 0;
  for (const int64_t length : labels) {
    TORCH_CHECK(length >= 0, "Expected target_lengths to have value at least 0, but got value ", length);
    all += length;
    longest = std::max(longest, length);
  }
  for (const int64_t length : inputs) {
    TORCH_CHECK(length >= 0, "Expected input_lengths to have value at least 0, but got value ", length);
    TORCH_CHECK(length <= most, "Expected input_lengths to have value at most ", most, ", but got value ", length);
  }
  const bool fits = targets.dim() == 1 ? targets.size(0) == all
                                       : targets.dim() == 2 && targets.size(0) == batch && targets.size(1) >= longest;
  TORCH_CHECK(fits, "Expected targets of shape (", all, ") or (", batch, ", ", longest, " or more), but got ",
              targets.sizes());
}

/// For each sequence the length of its input, the number of its labels, and where they begin in `targets`, which is
/// contiguous: int64, [3, batch].
at::Tensor lengths_on_device(const at::Tensor& targets, at::IntArrayRef inputs, at::IntArrayRef labels) {
  const auto batch = static_cast<int64_t>(inputs.size());
  const at::Tensor lengths = at::empty({3, batch}, at::TensorOptions().dtype(at::kLong));
  int64_t* const numbers = lengths.mutable_data_ptr<int64_t>();
  int64_t begin = 0;
  for (int64_t i = 0; i < batch; ++i) {
    const auto at = static_cast<size_t>(i);
    numbers[i] = inputs[at];
    numbers[batch + i] = labels[at];
    numbers[2 * batch + i] = begin;
    begin += targets.dim() == 1 ? labels[at] : targets.size(1);
  }
  return lengths.to(targets.device());
}

Two loss(const at::Tensor& log_probs, const at::Tensor& targets, at::IntArrayRef inputs, at::IntArrayRef labels,
         int64_t blank, bool /*zero_infinity*/) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const c10::DeviceGuard guard(log_probs.device());
  TORCH_CHECK_NOT_IMPLEMENTED(log_probs.scalar_type() == at::kFloat || log_probs.scalar_type() == at::kDouble,
                              "ctc_loss is not implemented for ", log_probs.scalar_type());
  TORCH_CHECK(targets.scalar_type() == at::kLong || targets.scalar_type() == at::kInt,
              "Expected targets of int or long, but got ", targets.scalar_type());
  check_lengths(log_probs, targets, inputs, labels, blank);
  const int64_t states = 2 * *std::max_element(labels.begin(), labels.end()) + 1;
  const at::Tensor like = at::empty({log_probs.size(1), log_probs.size(0), states}, log_probs.options());
  const at::Tensor dense = targets.contiguous();
  static const auto op =
      own_operator<Two(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&, int64_t)>(
          "outboard::ctc_loss");
  return op.call(log_probs, dense, lengths_on_device(dense, inputs, labels), like, blank);
}

at::Tensor gradient(const at::Tensor& grad, const at::Tensor& log_probs, const at::Tensor& targets,
                    at::IntArrayRef inputs, at::IntArrayRef labels, const at::Tensor& losses,
                    const at::Tensor& log_alpha, int64_t blank, bool zero_infinity) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const c10::DeviceGuard guard(log_probs.device());
  const at::Tensor dense = targets.contiguous();
  static const auto op =
      own_operator<at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                              const at::Tensor&, const at::Tensor&, int64_t, bool)>("outboard::ctc_loss_backward");
  return op.call(grad, log_probs, dense, lengths_on_device(dense, inputs, labels), losses, log_alpha, blank,
                 zero_infinity);
}

std::vector<int64_t> numbers_of(const at::Tensor& lengths) {
  const at::Tensor host = lengths.cpu().to(at::kLong).contiguous();
  const int64_t* const first = host.const_data_ptr<int64_t>();
  return {first, first + host.numel()};
}

Two loss_of_tensors(const at::Tensor& log_probs, const at::Tensor& targets, const at::Tensor& inputs,
                    const at::Tensor& labels, int64_t blank, bool zero_infinity) {
  return loss(log_probs, targets, numbers_of(inputs), numbers_of(labels), blank, zero_infinity);
}

at::Tensor gradient_of_tensors(const at::Tensor& grad, const at::Tensor& log_probs, const at::Tensor& targets,
                               const at::Tensor& inputs, const at::Tensor& labels, const at::Tensor& losses,
                               const at::Tensor& log_alpha, int64_t blank, bool zero_infinity) {
  return gradient(grad, log_probs, targets, numbers_of(inputs), numbers_of(labels), losses, log_alpha, blank,
                  zero_infinity);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(outboard, m) {
  m.def("ctc_loss(Tensor log_probs, Tensor targets, Tensor lengths, Tensor like, int blank) -> (Tensor, Tensor)");
  m.def("ctc_sums(Tensor log_probs, Tensor targets, Tensor lengths, Tensor log_alpha, int blank) -> Tensor");
  m.def(
      "ctc_loss_backward(Tensor grad, Tensor log_probs, Tensor targets, Tensor lengths, Tensor losses, Tensor "
      "log_alpha, int blank, bool zero_infinity) -> Tensor");
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_ctc_loss", TORCH_FN(loss));
  m.impl("_ctc_loss.Tensor", TORCH_FN(loss_of_tensors));
  m.impl("_ctc_loss_backward", TORCH_FN(gradient));
  m.impl("_ctc_loss_backward.Tensor", TORCH_FN(gradient_of_tensors));
}

}  // namespace outboard::aten
