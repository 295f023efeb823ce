# SPDX-License-Identifier: Apache-2.0
"""Recurrent networks: cells are operators of their own on every device but the CPU."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

NETWORKS = {
    "lstm": lambda: nn.LSTM(8, 16, 2),
    "lstm bidirectional": lambda: nn.LSTM(8, 16, bidirectional=True, batch_first=True),
    "lstm without bias": lambda: nn.LSTM(8, 16, bias=False),
    "lstm with projection": lambda: nn.LSTM(8, 16, proj_size=5),
    "gru": lambda: nn.GRU(8, 16, 2),
    "gru without bias": lambda: nn.GRU(8, 16, bias=False),
    "rnn": lambda: nn.RNN(8, 16, nonlinearity="relu"),
}


def check_gradients(ours: nn.Module, theirs: nn.Module) -> None:
    for actual, expected in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert actual.grad is not None and expected.grad is not None
        torch.testing.assert_close(actual.grad.cpu(), expected.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", NETWORKS)
def test_network(name: str, device: str) -> None:
    theirs = NETWORKS[name]()
    ours = copy.deepcopy(theirs).to(device)
    x = torch.randn(5, 3, 8)
    mine, its = x.to(device).requires_grad_(), x.clone().requires_grad_()
    for network, source in ((ours, mine), (theirs, its)):
        out, state = network(source)
        states = state if isinstance(state, tuple) else (state,)
        (out.square().sum() + sum(s.sum() for s in states)).backward()
    torch.testing.assert_close(ours(mine)[0].cpu(), theirs(its)[0], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(mine.grad.cpu(), its.grad, rtol=1e-4, atol=1e-5)
    check_gradients(ours, theirs)


@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell])
@pytest.mark.parametrize("last_only", [False, True])
def test_cell(kind: type[nn.LSTMCell], last_only: bool, device: str) -> None:
    """Gradients through the cell state alone, through the hidden state alone, and through both."""
    theirs = kind(6, 10)
    ours = copy.deepcopy(theirs).to(device)
    x = torch.randn(3, 4, 6)
    for network, source in ((ours, x.to(device)), (theirs, x)):
        state = None
        for step in source:
            state = network(step, state)
        parts = state if isinstance(state, tuple) else (state,)
        sum(part.square().sum() for part in (parts[-1:] if last_only else parts)).backward()
    check_gradients(ours, theirs)


def test_packed_sequences(device: str) -> None:
    theirs = nn.LSTM(4, 8)
    ours = copy.deepcopy(theirs).to(device)
    lengths = torch.tensor([5, 3, 2])
    x = torch.randn(5, 3, 4)
    expected, _ = theirs(nn.utils.rnn.pack_padded_sequence(x, lengths))
    actual, _ = ours(nn.utils.rnn.pack_padded_sequence(x.to(device), lengths))
    torch.testing.assert_close(actual.data.cpu(), expected.data, rtol=1e-4, atol=1e-5)


def test_compiled_cell(device: str) -> None:
    cell = nn.LSTMCell(6, 10).to(device)
    x = torch.randn(4, 6, device=device)
    expected = cell(x)
    actual = torch.compile(cell)(x)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_dtypes(dtype: torch.dtype, device: str) -> None:
    theirs = nn.LSTM(8, 16).to(dtype)
    x = torch.randn(5, 3, 8, dtype=dtype)
    expected = copy.deepcopy(theirs).double()(x.double())[0]
    tolerance = 1e-6 if dtype == torch.float64 else 4e-2
    actual = theirs.to(device)(x.to(device))[0].cpu().double()
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)
