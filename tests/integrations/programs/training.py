# SPDX-License-Identifier: Apache-2.0
"""A small training, and what one process gets from it on the CPU."""

from __future__ import annotations

import torch
from torch import nn

BATCH = 16  # of all processes together


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 1))


def numbers(rows: int = 64) -> torch.Tensor:
    return torch.linspace(-1, 1, rows * 8).reshape(rows, 8)


def loss_of(module: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    """How far the model is from a tenth of the sum of eight numbers."""
    return (module(batch) - batch.sum(1, keepdim=True) / 10).square().mean()


def expected(epochs: int, accumulated: int, norm: float = 0.0) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Losses of all batches, and weights after training with AdamW by one process. Each step takes the mean of so many
    batches, and clips gradients to ``norm`` if it is not 0."""
    alone = model()
    optimizer = torch.optim.AdamW(alone.parameters(), lr=0.01)
    losses = []
    for _ in range(epochs):
        for index, batch in enumerate(numbers().split(BATCH)):
            loss = loss_of(alone, batch)
            losses.append(loss.item())
            (loss / accumulated).backward()
            if (index + 1) % accumulated == 0:
                if norm:
                    nn.utils.clip_grad_norm_(alone.parameters(), norm)
                optimizer.step()
                optimizer.zero_grad()
    return losses, alone.state_dict()


def close(actual: list[float], wanted: list[float], tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(torch.tensor(actual), torch.tensor(wanted), rtol=tolerance, atol=tolerance)


def equal_to(module: nn.Module, wanted: dict[str, torch.Tensor], tolerance: float = 1e-4) -> None:
    """Weights are the wanted ones, also where each process has a part of them."""
    for name, parameter in module.state_dict().items():
        whole = parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter
        torch.testing.assert_close(whole.cpu(), wanted[name], rtol=tolerance, atol=tolerance)
