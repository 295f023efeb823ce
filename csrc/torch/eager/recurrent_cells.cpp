// SPDX-License-Identifier: Apache-2.0
#include "torch/eager/recurrent_cells.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

/// The mathematics of `compiler/adapter/operators/recurrent.py`, where the cells are described, by operators that the
/// CPU has.
namespace outboard::aten {
namespace {

using Tensors = std::vector<at::Tensor>;

at::Tensor optional_tensor(const c10::IValue& value) { return value.isTensor() ? value.toTensor() : at::Tensor(); }

at::Tensor sum_of(const at::Tensor& gates, const at::Tensor& bias) { return bias.defined() ? gates + bias : gates; }

at::Tensor bias_gradient(const at::Tensor& gates, const c10::IValue& has_bias) {
  return has_bias.toBool() ? gates.sum(0) : at::Tensor();
}

Tensors lstm_cell(const c10::IValue* given) {
  const at::Tensor hidden_gates = sum_of(given[1].toTensor(), optional_tensor(given[4]));
  const Tensors gates = (sum_of(given[0].toTensor(), optional_tensor(given[3])) + hidden_gates).chunk(4, 1);
  const at::Tensor take = gates[0].sigmoid(), forget = gates[1].sigmoid(), fresh = gates[2].tanh();
  const at::Tensor show = gates[3].sigmoid();
  const at::Tensor cy = forget * given[2].toTensor() + take * fresh;
  return {show * cy.tanh(), cy, at::cat({take, forget, fresh, show}, 1)};
}

Tensors lstm_cell_backward(const c10::IValue* given) {
  const at::Tensor grad_hy = optional_tensor(given[0]), grad_cy = optional_tensor(given[1]);
  if (!grad_hy.defined() && !grad_cy.defined()) return Tensors(3);
  const at::Tensor cx = given[2].toTensor();
  const Tensors gates = given[4].toTensor().chunk(4, 1);
  const at::Tensor &take = gates[0], &forget = gates[1], &fresh = gates[2], &show = gates[3];
  const at::Tensor bent = given[3].toTensor().tanh();
  const at::Tensor shown = grad_hy.defined() ? grad_hy : at::zeros_like(cx);
  at::Tensor cell = shown * show * (1 - bent * bent);
  if (grad_cy.defined()) cell = cell + grad_cy;
  const at::Tensor of_gates = at::cat({cell * fresh * take * (1 - take), cell * cx * forget * (1 - forget),
                                       cell * take * (1 - fresh * fresh), shown * bent * show * (1 - show)},
                                      1);
  return {of_gates, cell * forget, bias_gradient(of_gates, given[5])};
}

Tensors gru_cell(const c10::IValue* given) {
  const at::Tensor hx = given[2].toTensor();
  const Tensors input = sum_of(given[0].toTensor(), optional_tensor(given[3])).chunk(3, 1);
  const Tensors hidden = sum_of(given[1].toTensor(), optional_tensor(given[4])).chunk(3, 1);
  const at::Tensor reset = (input[0] + hidden[0]).sigmoid(), update = (input[1] + hidden[1]).sigmoid();
  const at::Tensor fresh = (input[2] + reset * hidden[2]).tanh();
  return {fresh + update * (hx - fresh), at::cat({reset, update, fresh, hx, hidden[2]}, 1)};
}

Tensors gru_cell_backward(const c10::IValue* given) {
  const at::Tensor grad_hy = given[0].toTensor();
  const Tensors kept = given[1].toTensor().chunk(5, 1);
  const at::Tensor &reset = kept[0], &update = kept[1], &fresh = kept[2], &hx = kept[3], &hidden = kept[4];
  const at::Tensor of_update = grad_hy * (hx - fresh) * (1 - update) * update;
  const at::Tensor of_fresh = grad_hy * (1 - update) * (1 - fresh * fresh);
  const at::Tensor of_reset = of_fresh * hidden * (1 - reset) * reset;
  const at::Tensor of_input = at::cat({of_reset, of_update, of_fresh}, 1);
  const at::Tensor of_hidden = at::cat({of_reset, of_update, of_fresh * reset}, 1);
  return {of_input, of_hidden, grad_hy * update, bias_gradient(of_input, given[2]), bias_gradient(of_hidden, given[2])};
}

using Cell = Tensors (*)(const c10::IValue* given);

const std::unordered_map<std::string, Cell>& cells() {
  static const auto* const all = new std::unordered_map<std::string, Cell>{
      {"aten::_thnn_fused_lstm_cell", lstm_cell},
      {"aten::_thnn_fused_lstm_cell_backward_impl", lstm_cell_backward},
      {"aten::_thnn_fused_gru_cell", gru_cell},
      {"aten::_thnn_fused_gru_cell_backward", gru_cell_backward},
  };
  return *all;
}

}  // namespace

bool compute_cell(const Operator& op, torch::jit::Stack* stack) {
  const auto found = cells().find(op.name);
  if (found == cells().end()) return false;
  // The cell is one operator to autocast; what it is made of is on its lists.
  const c10::impl::ExcludeDispatchKeyGuard guard(c10::autocast_dispatch_keyset);
  const size_t count = op.roles.size();
  Tensors results = found->second(stack->data() + (stack->size() - count));
  torch::jit::drop(*stack, count);
  for (at::Tensor& result : results) stack->emplace_back(std::move(result));
  return true;
}

}  // namespace outboard::aten
