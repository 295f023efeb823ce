# SPDX-License-Identifier: Apache-2.0
"""Captured work under the names of ``torch.cuda``: ``Graph``, ``graph``, ``make_graphed_callables``, and ranges."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch
from torch import nn


def test_a_graph_shares_the_memory_of_a_handle(device: str, device_module: ModuleType) -> None:
    x = torch.ones(8, device=device)
    pool = device_module.graph_pool_handle()
    assert pool != device_module.graph_pool_handle()
    first, second = device_module.Graph(), device_module.Graph()
    x * 2 + 1  # compiled before it is captured
    assert not device_module.is_current_stream_capturing()
    with device_module.graph(first, pool=pool):
        assert device_module.is_current_stream_capturing()
        y = x * 2
    with device_module.graph(second, pool=pool):
        z = y + 1
    assert not device_module.is_current_stream_capturing()
    assert first.pool() == second.pool()
    assert device_module.memory_snapshot(first.pool())
    x.fill_(3)
    first.replay()
    second.replay()
    assert z.cpu().tolist() == [7.0] * 8


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 3))


def test_a_graphed_module_trains_as_without(device: str, device_module: ModuleType) -> None:
    plain, model = _model(), _model().to(device)
    sample = torch.randn(4, 6, device=device, requires_grad=True)
    graphed = device_module.make_graphed_callables(model, (sample,))
    assert graphed is model
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (plain, model)]
    for _ in range(3):
        values = torch.randn(4, 6)
        given = [values.clone().requires_grad_(), values.to(device).requires_grad_()]
        for module, optimizer, value in zip((plain, model), optimizers, given, strict=True):
            optimizer.zero_grad()
            module(value).square().sum().backward()
            optimizer.step()
        torch.testing.assert_close(given[1].grad.cpu(), given[0].grad)  # type: ignore[union-attr]
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.detach().cpu(), theirs.detach())


def test_a_graphed_module_runs_as_it_is_in_the_other_mode(device: str, device_module: ModuleType) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)).to(device).eval()
    values = torch.randn(2, 4, device=device)
    expected = model(values).detach().cpu()
    device_module.make_graphed_callables(model, (values.clone(),))
    torch.testing.assert_close(model(values).cpu(), expected)
    torch.manual_seed(0)
    dropped = {float(model.train()(values).cpu().eq(0).sum()) for _ in range(20)}
    assert len(dropped) > 1


def test_functions_with_structured_results(device: str, device_module: ModuleType) -> None:
    def both(a: torch.Tensor, b: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"sum": a + b, "product": a * b}

    def double(a: torch.Tensor) -> torch.Tensor:
        return a * 2

    a, b = (torch.randn(5, device=device, requires_grad=True) for _ in range(2))
    first, second = device_module.make_graphed_callables((both, double), ((a, b), (a,)))
    x, y = (torch.randn(5, device=device, requires_grad=True) for _ in range(2))
    results = first(x, y)
    (results["sum"].sum() + (results["product"] * 3).sum() + second(x).sum()).backward()
    torch.testing.assert_close(results["product"], (x * y).detach())
    torch.testing.assert_close(x.grad, (1 + 3 * y + 2).detach())
    torch.testing.assert_close(y.grad, (1 + 3 * x).detach())


def test_what_cannot_be_graphed_is_refused(device: str, device_module: ModuleType) -> None:
    x = torch.randn(3, device=device)
    hooked = nn.Linear(3, 3).to(device)
    hooked.register_forward_hook(lambda *_: None)
    with pytest.raises(RuntimeError, match="hooks"):
        device_module.make_graphed_callables(hooked, (x,))
    with pytest.raises(TypeError, match="tensors"):
        device_module.make_graphed_callables(lambda a, b: a * b, (x, 2.0))
    with pytest.raises(RuntimeError, match=r"cache_enabled=False"):
        with torch.autocast(device, dtype=torch.bfloat16):
            device_module.make_graphed_callables(lambda a: a * 2, (x,))
    graphed = device_module.make_graphed_callables(lambda a: a * 2, (x,))
    with pytest.raises(TypeError, match="not of the form"):
        graphed(x, x)


def test_ranges_are_in_the_profile(device_module: ModuleType) -> None:
    nvtx = device_module.nvtx
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        assert nvtx.range_push("outer") == 0
        with nvtx.range("inner {}", 7):
            nvtx.mark("here")
        assert nvtx.range_pop() == 0
        nvtx.range_end(nvtx.range_start("by number"))
    assert nvtx.range_pop() == -1
    assert {"outer", "inner 7", "here", "by number"} <= {event.name for event in profile.events()}
