# SPDX-License-Identifier: Apache-2.0
"""What the extension module does, once each, for a sanitizer to watch: eager operators, backward, compiled graphs,
spilling, streams, threads, errors. Prints ``tour: done``; any wrong result raises."""

from __future__ import annotations

import copy
import threading

import torch
from torch import nn

DEVICE = torch._C._get_privateuse1_backend_name()
MODULE = torch.get_device_module(DEVICE)


def agree(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    """Raises AssertionError unless the results are the same, as far as rounding goes."""
    torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-3, atol=1e-4)


def eager() -> None:
    """Pointwise operators, views, reductions, products, indices, copies in both directions, random numbers."""
    x, y = torch.randn(40, 33), torch.randn(40, 33)
    a, b = x.to(DEVICE), y.to(DEVICE)
    agree((a * b + 1).relu(), (x * y + 1).relu())
    agree(a.t()[3:9, ::2].contiguous(), x.t()[3:9, ::2].contiguous())
    agree(a.softmax(1), x.softmax(1))
    agree(a @ b.t(), x @ y.t())
    agree(a.sort(1).values, x.sort(1).values)
    agree(a.index_select(0, torch.tensor([3, 1]).to(DEVICE)), x[[3, 1]])
    agree(a.half().float(), x.half().float())
    agree(torch.cat([a, b]).cumsum(0), torch.cat([x, y]).cumsum(0))
    a.add_(b).mul_(2)
    agree(a, (x + y) * 2)
    assert a.sum().item() == a.sum().item()
    assert torch.rand(1000, device=DEVICE).cpu().mean() > 0.3


def backward() -> None:
    """Two steps of training, by an optimizer that works on lists of tensors."""
    torch.manual_seed(1)
    ours = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5))
    theirs = copy.deepcopy(ours)
    ours.to(DEVICE)
    x, target = torch.randn(3, 2, 8, 8), torch.tensor([0, 4, 2])
    for model, place in ((ours, DEVICE), (theirs, "cpu")):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for _ in range(2):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x.to(place)), target.to(place)).backward()
            optimizer.step()
    for parameter, expected in zip(ours.parameters(), theirs.parameters(), strict=True):
        agree(parameter.detach(), expected.detach())


def compiled() -> None:
    """A graph forward and backward, twice."""
    linear = nn.Linear(16, 8)
    x = torch.randn(4, 16)
    expected = linear(x).tanh().sum(1)
    moved = copy.deepcopy(linear).to(DEVICE)
    graph = torch.compile(lambda value: moved(value).tanh().sum(1))
    for _ in range(2):
        agree(graph(x.to(DEVICE)).detach(), expected.detach())
    graph(x.to(DEVICE)).sum().backward()
    linear(x).tanh().sum(1).sum().backward()
    assert moved.weight.grad is not None and linear.weight.grad is not None
    agree(moved.weight.grad, linear.weight.grad)


def spilling() -> None:
    """More than the device may hold: tensors move to the host and come back."""
    limit = 4 << 20
    MODULE.set_per_process_memory_fraction(limit / MODULE.get_device_properties().total_memory)
    tensors = [torch.full((256, 1024), float(number), device=DEVICE) for number in range(12)]
    for _ in range(2):
        for number, tensor in enumerate(tensors):
            assert (tensor + 1)[0, 0].item() == number + 1
    assert MODULE.memory_stats()["lazy.spills.count"] > 0
    MODULE.set_per_process_memory_fraction(1.0)


def streams() -> None:
    """Work on two streams that wait for each other's events, and copies from pinned memory."""
    first, second = torch.Stream(DEVICE), torch.Stream(DEVICE)
    source = torch.arange(5000.0).pin_memory()
    with first:
        x = source.to(DEVICE, non_blocking=True) * 2
        event = first.record_event()
    second.wait_event(event)
    with second:
        y = x + 1
    second.synchronize()
    agree(y, torch.arange(5000.0) * 2 + 1)


def threads() -> None:
    """Four threads that allocate, compute, hand tensors over and differentiate."""
    kept: list[torch.Tensor] = []

    def work(seed: int) -> None:
        x = torch.full((3000,), float(seed), device=DEVICE, requires_grad=True)
        for _ in range(15):
            (x * x + seed).sum().backward()
        assert x.grad is not None
        kept.append(x.grad)

    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert sorted(gradient[0].item() for gradient in kept) == [0.0, 30.0, 60.0, 90.0]


def errors() -> None:
    """Calls that fail, at once and later."""
    x = torch.ones(4, 4, device=DEVICE)
    for call in (lambda: x @ torch.ones(3, 3, device=DEVICE), lambda: x[torch.tensor([9]).to(DEVICE)].cpu()):
        try:
            call()
        except (RuntimeError, IndexError):
            continue
        raise AssertionError("no error")


def main() -> None:
    """All stations, in an order in which each finds the device as the one before left it."""
    for station in (eager, backward, compiled, spilling, streams, threads, errors):
        print(f"tour: {station.__name__}", flush=True)
        station()
        torch.accelerator.synchronize()
    print("tour: done", flush=True)


if __name__ == "__main__":
    main()
