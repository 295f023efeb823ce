# SPDX-License-Identifier: Apache-2.0
"""Cells of recurrent networks as pointwise graphs.

PyTorch calls these operators for every device but the CPU (``ATen/native/RNN.cpp``): the products of inputs and hidden
states with the weights are made before, and the cell is what remains. What a cell keeps for its backward pass, the
*workspace*, is known to the two functions here only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch

Tensors: TypeAlias = tuple[torch.Tensor | None, ...]


def _gates(*parts: torch.Tensor | None) -> torch.Tensor:
    """The sum of the parts that are there."""
    present = [part for part in parts if part is not None]
    total = present[0]
    for part in present[1:]:
        total = total + part
    return total


def _bias_gradient(gates: torch.Tensor, has_bias: bool) -> torch.Tensor | None:
    return gates.sum(0) if has_bias else None


def lstm_cell(
    input_gates: torch.Tensor,
    hidden_gates: torch.Tensor,
    cx: torch.Tensor,
    input_bias: torch.Tensor | None = None,
    hidden_bias: torch.Tensor | None = None,
) -> Tensors:
    """New hidden state and cell state (both batch x size), and the workspace (batch x 4 size): the gates, activated.

    Hochreiter and Schmidhuber 1997, with the gates in the order of ``torch.nn.LSTM``: input, forget, cell, output."""
    take, forget, fresh, show = _gates(input_gates, hidden_gates, input_bias, hidden_bias).chunk(4, 1)
    take, forget, fresh, show = take.sigmoid(), forget.sigmoid(), fresh.tanh(), show.sigmoid()
    cy = forget * cx + take * fresh
    return show * cy.tanh(), cy, torch.cat([take, forget, fresh, show], 1)


def lstm_cell_backward(
    grad_hy: torch.Tensor | None,
    grad_cy: torch.Tensor | None,
    cx: torch.Tensor,
    cy: torch.Tensor,
    workspace: torch.Tensor,
    has_bias: bool,
) -> Tensors:
    """Gradients of the gates before activation, of ``cx`` and of either bias."""
    if grad_hy is None and grad_cy is None:
        return None, None, None
    take, forget, fresh, show = workspace.chunk(4, 1)
    bent = cy.tanh()
    shown = torch.zeros_like(cx) if grad_hy is None else grad_hy
    cell = shown * show * (1 - bent * bent)
    if grad_cy is not None:
        cell = cell + grad_cy
    gates = torch.cat(
        [
            cell * fresh * take * (1 - take),
            cell * cx * forget * (1 - forget),
            cell * take * (1 - fresh * fresh),
            shown * bent * show * (1 - show),
        ],
        1,
    )
    return gates, cell * forget, _bias_gradient(gates, has_bias)


def gru_cell(
    input_gates: torch.Tensor,
    hidden_gates: torch.Tensor,
    hx: torch.Tensor,
    input_bias: torch.Tensor | None = None,
    hidden_bias: torch.Tensor | None = None,
) -> Tensors:
    """New hidden state (batch x size) and the workspace (batch x 5 size): the gates, activated, the old hidden state,
    and the hidden part of the new one.

    Cho et al. 2014, with the gates in the order of ``torch.nn.GRU``: reset, update, new."""
    input_reset, input_update, input_new = _gates(input_gates, input_bias).chunk(3, 1)
    hidden_reset, hidden_update, hidden_new = _gates(hidden_gates, hidden_bias).chunk(3, 1)
    reset = (input_reset + hidden_reset).sigmoid()
    update = (input_update + hidden_update).sigmoid()
    new = (input_new + reset * hidden_new).tanh()
    return new + update * (hx - new), torch.cat([reset, update, new, hx, hidden_new], 1)


def gru_cell_backward(grad_hy: torch.Tensor, workspace: torch.Tensor, has_bias: bool) -> Tensors:
    """Gradients of the input's gates, of the hidden state's gates, of ``hx``, and of the two biases."""
    reset, update, new, hx, hidden_new = workspace.chunk(5, 1)
    of_update = grad_hy * (hx - new) * (1 - update) * update
    of_new = grad_hy * (1 - update) * (1 - new * new)
    of_reset = of_new * hidden_new * (1 - reset) * reset
    of_input = torch.cat([of_reset, of_update, of_new], 1)
    of_hidden = torch.cat([of_reset, of_update, of_new * reset], 1)
    biases = _bias_gradient(of_input, has_bias), _bias_gradient(of_hidden, has_bias)
    return of_input, of_hidden, grad_hy * update, *biases


#: Operator -> its decomposition.
CELLS: dict[Any, Callable[..., Tensors]] = {
    torch.ops.aten._thnn_fused_lstm_cell.default: lstm_cell,
    torch.ops.aten._thnn_fused_lstm_cell_backward_impl.default: lstm_cell_backward,
    torch.ops.aten._thnn_fused_gru_cell.default: gru_cell,
    torch.ops.aten._thnn_fused_gru_cell_backward.default: gru_cell_backward,
}
