# SPDX-License-Identifier: Apache-2.0
"""Capture and replay with ``torch.accelerator.Graph``: replays compute what the captured calls would."""

from __future__ import annotations

import gc
from pathlib import Path
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F
from torch import nn


def capture(function, warm_up: int = 2) -> tuple[torch.accelerator.Graph, object]:  # type: ignore[no-untyped-def]
    """A graph of one call, and what the call returned."""
    for _ in range(warm_up):
        function()
    graph = torch.accelerator.Graph()
    with graph:
        result = function()
    return graph, result


def test_nothing_runs_before_the_replay(device: str) -> None:
    x = torch.zeros(2000, device=device)
    graph = torch.accelerator.Graph()
    with torch.Stream(device=device), graph:
        x += 1
    assert x.sum().item() == 0
    for count in (1, 2, 3):
        graph.replay()
        torch.accelerator.synchronize()
        assert x.sum().item() == 2000 * count


def test_inputs_are_read_anew(device: str) -> None:
    x = torch.randn(64, 64, device=device)
    weight = torch.randn(64, 64, device=device)
    graph, result = capture(lambda: F.gelu(x @ weight).softmax(-1).sum(0))
    for _ in range(3):
        x.copy_(torch.randn(64, 64))
        graph.replay()
        torch.testing.assert_close(
            result.cpu(), F.gelu(x.cpu() @ weight.cpu()).softmax(-1).sum(0), rtol=1e-4, atol=1e-5
        )


def test_zeros_are_part_of_the_graph(device: str) -> None:
    x = torch.ones(100, device=device)
    kept = torch.zeros(100, device=device)  # before: replays add to it

    def step() -> torch.Tensor:
        fresh = torch.zeros(100, device=device)
        fresh += x
        kept.add_(fresh)
        return fresh

    graph, fresh = capture(step, warm_up=0)
    for count in range(1, 4):
        graph.replay()
        assert fresh.sum().item() == 100
        assert kept.sum().item() == 100 * count


def test_zeroing_inside_is_repeated(device: str) -> None:
    x = torch.ones(100, device=device)
    buffer = torch.ones(100, device=device)

    def step() -> None:
        buffer.zero_()
        buffer.add_(x)

    graph, _ = capture(step)
    for _ in range(3):
        graph.replay()
        assert buffer.sum().item() == 100


def test_zeroing_outside_reaches_the_graph(device: str) -> None:
    x = torch.ones(100, device=device)
    graph, result = capture(lambda: x * 2)
    graph.replay()
    x.zero_()
    graph.replay()
    assert result.sum().item() == 0
    result.zero_()
    x.fill_(3)
    graph.replay()
    assert result.sum().item() == 600


def test_memory_is_used_again_inside_but_not_outside(device: str, device_module: ModuleType) -> None:
    x = torch.randn(1 << 18, device=device)

    def chain() -> torch.Tensor:
        y = x
        for _ in range(20):
            y = y * 1.01 + 1
        return y

    expected = x.cpu()
    for _ in range(20):
        expected = expected * 1.01 + 1
    chain()
    torch.accelerator.synchronize()
    device_module.empty_cache()
    before = device_module.memory_reserved()
    graph, result = capture(chain, warm_up=0)
    assert device_module.memory_reserved() - before <= 24 << 20
    others = [torch.full((1 << 18,), float(i), device=device) for i in range(40)]
    for _ in range(3):
        graph.replay()
        torch.testing.assert_close(result.cpu(), expected)
    for i, other in enumerate(others):
        assert other.sum().item() == float(i) * (1 << 18)


def test_memory_comes_back(device: str, device_module: ModuleType) -> None:
    gc.collect()
    torch.accelerator.synchronize()
    before = device_module.memory_allocated()
    for _ in range(5):
        x = torch.randn(1 << 16, device=device)
        graph, result = capture(lambda x=x: (x * 2).exp())
        graph.replay()
        del x, result
        graph.reset()
        del graph
    gc.collect()
    torch.accelerator.synchronize()
    assert device_module.memory_allocated() == before
    device_module.empty_cache()
    first = device_module.memory_reserved()
    for _ in range(20):
        graph, result = capture(lambda: torch.ones(1 << 20, device=device) * 2)
        graph.replay()
        del graph, result
    gc.collect()
    torch.accelerator.synchronize()
    device_module.empty_cache()
    assert device_module.memory_reserved() <= first


def test_results_outlive_the_graph(device: str) -> None:
    x = torch.arange(1000.0, device=device)
    graph, result = capture(lambda: x + 1)
    graph.replay()
    del graph
    gc.collect()
    noise = [torch.randn(1000, device=device) for _ in range(10)]
    torch.testing.assert_close(result.cpu(), torch.arange(1000.0) + 1)
    assert len(noise) == 10


def test_inputs_live_as_long_as_the_graph(device: str) -> None:
    inputs = [torch.arange(1000.0, device=device)]
    graph, result = capture(lambda: inputs[0] + 1)
    inputs.clear()
    noise = [torch.randn(1000, device=device) for _ in range(10)]
    graph.replay()
    torch.testing.assert_close(result.cpu(), torch.arange(1000.0) + 1)
    assert len(noise) == 10


def test_random_numbers_differ_from_replay_to_replay(device: str) -> None:
    torch.manual_seed(5)
    x = torch.ones(10000, device=device)
    graph, result = capture(lambda: F.dropout(x, 0.5), warm_up=1)
    torch.manual_seed(7)
    graph.replay()
    first = result.cpu()
    graph.replay()
    second = result.cpu()
    assert not torch.equal(first, second)
    torch.manual_seed(7)
    torch.testing.assert_close(F.dropout(x, 0.5).cpu(), first)
    torch.testing.assert_close(F.dropout(x, 0.5).cpu(), second)


def test_a_training_step(device: str) -> None:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 10))
    twin = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 10))
    twin.load_state_dict(model.state_dict())
    model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    reference = torch.optim.SGD(twin.parameters(), lr=0.01, momentum=0.9)
    images = torch.randn(6, 4, 3, 8, 8)
    labels = torch.randint(0, 10, (6, 4))
    x, y = images[0].to(device), labels[0].to(device)

    def step(model, optimizer, x, y) -> torch.Tensor:  # type: ignore[no-untyped-def]
        optimizer.zero_grad(set_to_none=False)
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    for i in range(2):
        x.copy_(images[i])
        y.copy_(labels[i])
        step(model, optimizer, x, y)
        step(twin, reference, images[i], labels[i])
    graph = torch.accelerator.Graph()
    with graph:
        loss = step(model, optimizer, x, y)
    for i in range(2, 6):
        x.copy_(images[i])
        y.copy_(labels[i])
        graph.replay()
        expected = step(twin, reference, images[i], labels[i])
        torch.testing.assert_close(loss.cpu(), expected, rtol=1e-4, atol=1e-5)
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours.detach().cpu(), theirs.detach(), rtol=1e-3, atol=1e-4)


def test_compiled_models_are_captured_too(device: str) -> None:
    model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 8)).to(device).eval()
    compiled = torch.compile(model)
    x = torch.randn(5, 32, device=device)
    with torch.no_grad():
        graph, result = capture(lambda: compiled(x))
        x.copy_(torch.randn(5, 32))
        graph.replay()
        torch.testing.assert_close(result, model(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "call",
    [lambda x: x.sum().item(), lambda x: x.cpu(), lambda x: repr(x), lambda x: x + torch.ones(5).to(x.device)],
    ids=["item", "cpu", "print", "upload"],
)
def test_what_waits_is_refused_and_harmless(device: str, call) -> None:  # type: ignore[no-untyped-def]
    x = torch.ones(5, device=device)
    graph = torch.accelerator.Graph()
    with pytest.raises(RuntimeError, match="graph is captured"), graph:
        call(x)
    assert x.sum().item() == 5
    assert torch.accelerator.current_stream() == torch.get_device_module(device).default_stream()
    graph, result = capture(lambda: x * 2)
    graph.replay()
    assert result.sum().item() == 10


def test_wrong_uses(device: str) -> None:
    graph = torch.accelerator.Graph()
    with pytest.raises(RuntimeError, match="captured"):
        graph.replay()
    with pytest.raises(RuntimeError, match="captur"):
        graph.capture_end()
    x = torch.ones(5, device=device)
    with graph:
        x + 1
        with pytest.raises(RuntimeError, match="captured already"):
            torch.accelerator.Graph().capture_begin()
    with pytest.raises(RuntimeError, match="reset"):
        graph.capture_begin()
    graph.reset()
    with graph:
        x.add_(1)
    graph.replay()
    assert x.sum().item() == 10
    with pytest.raises(RuntimeError, match="pool"):
        torch.accelerator.Graph(pool=(0, 12345)).capture_begin()


def test_graphs_share_memory(device: str, device_module: ModuleType) -> None:
    x = torch.randn(1 << 20, device=device)
    first, _ = capture(lambda: (x * 2).sum(), warm_up=1)
    before = device_module.memory_reserved()
    second = torch.accelerator.Graph(pool=first.pool())
    with second:
        total = (x * 3).sum()
    assert device_module.memory_reserved() == before
    first.replay()
    second.replay()
    torch.testing.assert_close(total.cpu(), (x.cpu() * 3).sum(), rtol=1e-3, atol=1e-2)


def test_replays_on_several_streams_keep_their_order(device: str, device_module: ModuleType) -> None:
    x = torch.zeros(1 << 16, device=device)
    x += 0
    torch.accelerator.synchronize()

    def grow() -> None:
        for _ in range(8):
            x.mul_(1.0).add_(1.0)

    graph = torch.accelerator.Graph()
    with graph:
        grow()
    streams = [device_module.Stream() for _ in range(3)]
    for i in range(30):
        with device_module.stream(streams[i % 3]):
            graph.replay()
    torch.accelerator.synchronize()
    assert x[0].item() == 240
    assert x.sum().item() == 240 << 16


def test_models_larger_than_the_rest_of_the_memory_leave_graphs_alone(device: str, device_module: ModuleType) -> None:
    """What a graph uses does not move to the host, however full the device is."""
    x = torch.ones(1 << 20, device=device)
    graph, result = capture(lambda: x * 3 + 1)
    graph.replay()
    torch.accelerator.synchronize()
    total = device_module.mem_get_info()[1]
    fraction = (device_module.memory_reserved() + (24 << 20)) / total
    device_module.set_per_process_memory_fraction(min(fraction, 1.0))
    try:
        many = [torch.full((1 << 20,), float(i), device=device) for i in range(16)]
        for tensor in many:
            tensor.add_(1)
        graph.replay()
        assert result.sum().item() == 4 << 20
        assert [tensor[0].item() for tensor in many] == [float(i + 1) for i in range(16)]
    finally:
        device_module.set_per_process_memory_fraction(1.0)


def test_dump(device: str, tmp_path: Path) -> None:
    x = torch.ones(5, device=device)
    graph, _ = capture(lambda: x * 2)
    with pytest.raises(RuntimeError, match="enable_debug_mode"):
        graph.debug_dump(str(tmp_path / "graph.txt"))
    graph.enable_debug_mode()
    graph.debug_dump(str(tmp_path / "graph.txt"))
    assert "launch" in (tmp_path / "graph.txt").read_text()


def test_wrong_indices_are_reported_by_replays(device: str, device_module: ModuleType) -> None:
    table, place = torch.ones(3, 4, device=device), torch.zeros(2, dtype=torch.int64, device=device)
    graph, _ = capture(lambda: F.embedding(place, table))
    graph.replay()
    device_module.synchronize()
    place.fill_(3)
    graph.replay()
    with pytest.raises(IndexError):
        device_module.synchronize()


def test_reduce_overhead_mode(device: str) -> None:
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4)).to(device).eval()
    compiled = torch.compile(model, mode="reduce-overhead")
    with torch.no_grad():
        for _ in range(4):
            x = torch.randn(3, 16, device=device)
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
