# SPDX-License-Identifier: Apache-2.0
"""Programs of TorchScript, and operators under its interpreter and the transformations of ``torch.func``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor
from torch.testing._internal.common_methods_invocations import op_db

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
import opinfo_case


def _rows(x: Tensor, i: Tensor) -> Tensor:
    return x[i]


def _columns_and_masks(x: Tensor, i: Tensor) -> Tensor:
    return x[:, i].sum() + x[x > 0].sum() + x[None, i, 1:].sum()


def _written(x: Tensor, i: Tensor) -> Tensor:
    y = x.clone()
    y[i] = x[0] * 2
    y[:, i] += 1
    y[y > 2] = -1.0
    return y.index_put((i, i), x[0, :2], accumulate=True)


def _with_lists(x: Tensor, i: Tensor) -> Tensor:
    return torch.ops.aten.index(x, [None, i]).sum() + torch.ops.aten._unsafe_index(x, [i, i.flip(0)]).sum()


@pytest.mark.parametrize("way", ["script", "trace"])
@pytest.mark.parametrize("function", [_rows, _columns_and_masks, _written, _with_lists])
def test_indexing(function: Callable[[Tensor, Tensor], Tensor], way: str, device: str) -> None:
    x, i = torch.randn(3, 4), torch.tensor([2, 0])
    expected = function(x, i)
    for indices in (i, i.to(device)):  # those of the CPU come along, as elsewhere
        arguments = (x.to(device).requires_grad_(), indices)
        graph = torch.jit.script(function) if way == "script" else torch.jit.trace(function, arguments)
        for _ in range(3):  # the first runs are watched, those after them optimised
            torch.testing.assert_close(graph(*arguments).detach().cpu(), expected)


#: A few of those that ``tools/opinfo.py --way`` runs.
@pytest.mark.parametrize(
    ("way", "name"),
    [
        ("traced", "index_put"),
        ("traced", "cat"),
        ("scripted", "nn.functional.conv2d"),
        ("scripted", "gather"),
        ("vmap", "index_select"),
        ("vmap", "nn.functional.layer_norm"),
        ("vjp", "logsumexp"),
        ("jvp", "nn.functional.softplus"),
        ("jacrev", "cumsum"),
        ("hessian", "nn.functional.mse_loss"),
    ],
)
def test_ways_to_run(way: str, name: str, device: str) -> None:
    op = next(op for op in op_db if op.name == name)
    outcome = opinfo_case.run(op, torch.float32, device, 1, way)
    assert outcome.kind == "native", outcome.detail


def test_zeros_without_memory(device: str, device_module: ModuleType) -> None:
    """The tangents of what does not depend on an input."""
    before = dict(device_module.fallbacks())
    zeros = torch._efficientzerotensor((2, 3), device=device)
    assert zeros._is_zerotensor() and zeros.device.type == device
    assert (zeros + torch.ones(3, device=device)).tolist() == [[1, 1, 1], [1, 1, 1]]
    assert (zeros * 2)._is_zerotensor() and zeros.t().clone().cpu().tolist() == [[0, 0]] * 3
    x = torch.randn(3, device=device)
    jacobian = torch.autograd.functional.jacobian(lambda x: x.exp(), x, strategy="forward-mode", vectorize=True)
    torch.testing.assert_close(jacobian.cpu(), x.exp().diag().cpu())
    assert dict(device_module.fallbacks()) == before
