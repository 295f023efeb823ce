# SPDX-License-Identifier: Apache-2.0
"""Small models that train on the device, eager and compiled, beside the same on the CPU."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Sequence
from typing import Any

from outboard_conformance.bench import Bench
from outboard_conformance.clause import clause, expect
from outboard_conformance.clauses.operators import counted, pytorch


def _perceptron(torch: Any) -> tuple[Any, Any]:
    nn = torch.nn
    return nn.Sequential(nn.Linear(20, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 5)), torch.randn(16, 20)


def _convolutions(torch: Any) -> tuple[Any, Any]:
    nn = torch.nn
    layers = [
        # No bias before a normalisation: its gradient is 0 but for rounding, of which AdamW makes whole steps.
        nn.Conv2d(3, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3, groups=8),
    ]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)), torch.randn(4, 3, 16, 16)


def _transformer(torch: Any) -> tuple[Any, Any]:
    nn = torch.nn
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
    return nn.Sequential(layer, nn.Linear(32, 5)), torch.randn(2, 9, 32)


def are_below(bound: float, numbers: Sequence[float]) -> bool:
    """Whether all numbers are below a bound, which NaN is not; the largest of some may hide one."""
    return all(each < bound for each in numbers)


def trains(bench: Bench, make: Callable[[Any], tuple[Any, Any]], *, compiled: bool) -> str:
    """Trains a model for three steps on the CPU and on the device, and compares losses and weights."""
    torch, device = pytorch(bench)
    torch.manual_seed(0)
    model, x = make(torch)
    losses, weights = [], []
    for where in ("cpu", device):
        mine = copy.deepcopy(model).to(where)
        run = torch.compile(mine) if compiled and where != "cpu" else mine
        optimizer = torch.optim.AdamW(mine.parameters(), lr=0.01)
        for _ in range(3):
            optimizer.zero_grad()
            loss = run(x.to(where)).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        weights.append([each.detach().cpu() for each in mine.parameters()])
    half = len(losses) // 2
    off = [abs(a - b) / max(abs(a), 1e-6) for a, b in zip(losses[:half], losses[half:], strict=True)]
    expect(are_below(1e-3, off), f"losses {losses[half:]} for {losses[:half]}")
    off = [(one - other).abs().max().item() for one, other in zip(*weights, strict=True)]
    expect(are_below(5e-3, off), f"weights are off by {off} after three steps")
    return counted(torch, device, 3)


@clause("models", "A perceptron trains as on the CPU.")
def a_perceptron_trains(bench: Bench) -> str:
    return trains(bench, _perceptron, compiled=False)


@clause("models", "A perceptron trains as on the CPU, compiled.")
def a_compiled_perceptron_trains(bench: Bench) -> str:
    return trains(bench, _perceptron, compiled=True)


@clause("models", "A convolutional net trains as on the CPU.")
def convolutions_train(bench: Bench) -> str:
    return trains(bench, _convolutions, compiled=False)


@clause("models", "A convolutional net trains as on the CPU, compiled.")
def compiled_convolutions_train(bench: Bench) -> str:
    return trains(bench, _convolutions, compiled=True)


@clause("models", "A transformer trains as on the CPU.")
def a_transformer_trains(bench: Bench) -> str:
    return trains(bench, _transformer, compiled=False)


@clause("models", "A transformer trains as on the CPU, compiled.")
def a_compiled_transformer_trains(bench: Bench) -> str:
    return trains(bench, _transformer, compiled=True)


@clause("models", "Weights are saved on the device and loaded on the CPU, and back.")
def weights_are_saved(bench: Bench) -> None:
    torch, device = pytorch(bench)
    model, x = _perceptron(torch)
    file = io.BytesIO()
    torch.save(model.to(device).state_dict(), file)
    file.seek(0)
    loaded = _perceptron(torch)[0]
    loaded.load_state_dict(torch.load(file, map_location="cpu"))
    torch.testing.assert_close(loaded(x), model(x.to(device)).cpu(), rtol=1e-4, atol=1e-4)


@clause("models", "Two streams with an event between them give the result of one.")
def streams_of_models_are_in_order(bench: Bench) -> None:
    torch, device = pytorch(bench)
    api = getattr(torch, device)
    model, x = _perceptron(torch)
    wanted = model(model(x)[:, :1].expand(16, 20))
    model.to(device)
    first, second = api.Stream(), api.Stream()
    x = x.to(device)
    first.wait_stream(api.current_stream())
    second.wait_stream(api.current_stream())
    with api.stream(first):
        inner = model(x)[:, :1].expand(16, 20)
        event = first.record_event()
    with api.stream(second):
        second.wait_event(event)
        found = model(inner)
    second.synchronize()
    torch.testing.assert_close(found.cpu(), wanted, rtol=1e-4, atol=1e-4)
