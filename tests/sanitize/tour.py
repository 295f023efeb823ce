# SPDX-License-Identifier: Apache-2.0
"""What the extension module does, once each, for a sanitizer to watch: eager operators, training, compiled graphs,
spilling, streams, threads, captured graphs, exchange with other libraries, errors. Prints ``tour: done``; any wrong
result raises. ``python -m tests.sanitize.tour [STATION ...]`` runs only some of them."""

from __future__ import annotations

import copy
import os
import sys
import threading
from collections.abc import Callable

# The runtime of the sanitizer is loaded by now. Programs that are started from here have their own, or need none.
os.environ.pop("LD_PRELOAD", None)

import torch  # noqa: E402
from torch import nn  # noqa: E402

DEVICE = torch._C._get_privateuse1_backend_name()
MODULE = torch.get_device_module(DEVICE)


def agree(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    """Raises AssertionError unless the results are the same, as far as rounding goes."""
    torch.testing.assert_close(ours.detach().cpu(), theirs.detach(), rtol=1e-3, atol=1e-4)


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
    agree(a[a > 0], x[x > 0])
    agree(a.half().float(), x.half().float())
    agree(torch.cat([a, b]).cumsum(0), torch.cat([x, y]).cumsum(0))
    agree(torch.linalg.inv(a[:5, :5] + 9 * torch.eye(5, device=DEVICE)), torch.linalg.inv(x[:5, :5] + 9 * torch.eye(5)))
    a.add_(b).mul_(2)
    a[:, 3:5] = 7
    expected = (x + y) * 2
    expected[:, 3:5] = 7
    agree(a, expected)
    agree(torch.zeros(0, 3, device=DEVICE).sum(0), torch.zeros(3))
    assert torch.rand(1000, device=DEVICE).mean().item() > 0.3


def training() -> None:
    """Two steps each of optimizers that work on lists of tensors, and one with scaled gradients of half precision."""
    torch.manual_seed(1)
    x, target = torch.randn(3, 2, 8, 8), torch.tensor([0, 4, 2])
    # No bias before the norm, which takes it away: its gradient is rounding, of which Adam makes whole steps.
    convolution = nn.Conv2d(2, 4, 3, bias=False)
    start = nn.Sequential(convolution, nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5))
    for kind in (torch.optim.SGD, torch.optim.AdamW):
        results = []
        for place in (DEVICE, "cpu"):
            model = copy.deepcopy(start).to(place)
            optimizer = kind(model.parameters(), lr=0.01)
            for _ in range(2):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x.to(place)), target.to(place)).backward()
                optimizer.step()
            results.append(list(model.parameters()))
        for ours, theirs in zip(*results, strict=True):
            torch.testing.assert_close(ours.detach().cpu(), theirs.detach(), rtol=1e-2, atol=1e-2)
    model = copy.deepcopy(start).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler(DEVICE)
    with torch.autocast(DEVICE, torch.float16):
        loss = nn.functional.cross_entropy(model(x.to(DEVICE)), target.to(DEVICE))
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    assert loss.isfinite().item()


def compiled() -> None:
    """A graph forward and backward, twice, and one whose sizes change."""
    linear = nn.Linear(16, 8)
    x = torch.randn(4, 16)
    expected = linear(x).tanh().sum(1)
    moved = copy.deepcopy(linear).to(DEVICE)
    graph = torch.compile(lambda value: moved(value).tanh().sum(1))
    for _ in range(2):
        agree(graph(x.to(DEVICE)), expected)
    graph(x.to(DEVICE)).sum().backward()
    expected.sum().backward()
    assert moved.weight.grad is not None and linear.weight.grad is not None
    agree(moved.weight.grad, linear.weight.grad)
    sized = torch.compile(lambda value: (value * 2).cumsum(0).softmax(0), dynamic=True)
    for size in (5, 9, 1000):
        agree(sized(torch.arange(size, device=DEVICE) / size), (torch.arange(size) / size * 2).cumsum(0).softmax(0))


def spilling() -> None:
    """More than the device may hold: tensors move to the host and come back, also while gradients are computed."""
    limit = 4 << 20
    MODULE.set_per_process_memory_fraction(limit / MODULE.get_device_properties().total_memory)
    tensors = [torch.full((256, 1024), float(number), device=DEVICE) for number in range(12)]
    for _ in range(2):
        for number, tensor in enumerate(tensors):
            assert (tensor + 1)[0, 0].item() == number + 1
    weights = [torch.ones(128, 1024, device=DEVICE, requires_grad=True) for _ in range(8)]
    product = torch.ones(128, 1024, device=DEVICE)
    for weight in weights:
        product = product * weight
    product.sum().backward()
    assert all(weight.grad is not None and weight.grad.sum().item() == 128 * 1024 for weight in weights)
    assert MODULE.memory_stats()["lazy.spills.count"] > 0
    MODULE.set_per_process_memory_fraction(1.0)


def streams() -> None:
    """Work on two streams that wait for each other's events, and copies from and to pinned memory."""
    first, second = torch.Stream(DEVICE), torch.Stream(DEVICE)
    source = torch.arange(5000.0).pin_memory()
    back = torch.empty(5000).pin_memory()
    for _ in range(3):
        with first:
            x = source.to(DEVICE, non_blocking=True) * 2
            event = first.record_event()
        second.wait_event(event)
        with second:
            y = x + 1
            back.copy_(y, non_blocking=True)
        x.record_stream(second)
        del x
        second.synchronize()
        agree(y, torch.arange(5000.0) * 2 + 1)
        assert torch.equal(back, torch.arange(5000.0) * 2 + 1)


def in_threads(work: Callable[[int], None]) -> None:
    """Runs ``work(number)`` in four threads. Raises what the first of them that failed has raised."""
    failures: list[BaseException] = []

    def guarded(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            failures.append(error)

    workers = [threading.Thread(target=guarded, args=(number,)) for number in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if failures:
        raise failures[0]


def threads() -> None:
    """Threads that allocate, compute, differentiate, hand tensors over and free those of others."""
    kept: list[torch.Tensor] = []

    def work(seed: int) -> None:
        x = torch.full((3000,), float(seed), device=DEVICE, requires_grad=True)
        for _ in range(15):
            (x * x + seed).sum().backward()
        assert x.grad is not None
        kept.append(x.grad)

    in_threads(work)
    assert sorted(gradient[0].item() for gradient in kept) == [0.0, 30.0, 60.0, 90.0]
    handed = [torch.full((2000,), float(number), device=DEVICE) for number in range(40)]

    def take(number: int) -> None:
        while handed:
            try:
                tensor = handed.pop()
            except IndexError:  # another thread took the last one
                return
            assert (tensor - tensor.cpu().to(DEVICE)).abs().sum().item() == 0

    in_threads(take)


def threads_with_streams() -> None:
    """Threads with a stream each, short of memory, of which one asks for statistics and frees what is cached."""
    MODULE.set_per_process_memory_fraction((8 << 20) / MODULE.get_device_properties().total_memory)
    shared = torch.arange(2000.0, device=DEVICE)
    torch.accelerator.synchronize()

    def work(number: int) -> None:
        with torch.Stream(DEVICE) as stream:
            mine = [torch.full((200, 1000), float(number), device=DEVICE) for _ in range(4)]
            for round_number in range(5):
                for tensor in mine:
                    tensor.add_(1)
                assert (shared + number).sum().item() == 1999000 + 2000 * number
                event = stream.record_event()
                event.query()
                if number == 0:
                    MODULE.memory_stats()
                    torch.accelerator.empty_cache()
                assert mine[round_number % 4][3, 3].item() == number + round_number + 1
            stream.synchronize()

    in_threads(work)
    MODULE.set_per_process_memory_fraction(1.0)


def threads_that_compile() -> None:
    """Threads that meet operators which nobody has used before, the same ones at once."""
    x = torch.linspace(0.1, 0.9, 50)
    a = x.to(DEVICE)

    def work(number: int) -> None:
        for name in ("asin", "atanh", "logit", "erfinv", "expm1"):
            agree(getattr(torch, name)(a + 0), getattr(torch, name)(x))

    in_threads(work)


def captured() -> None:
    """A graph that is captured, replayed with other contents, and freed while it may still run."""
    x = torch.ones(64, 64, device=DEVICE)
    weight = torch.randn(64, 64)
    moved = weight.to(DEVICE)

    def step() -> torch.Tensor:
        return (x @ moved).relu().sum(0)

    step()
    torch.accelerator.synchronize()
    graph = torch.accelerator.Graph()
    with graph:
        result = step()
    for _ in range(3):
        fresh = torch.randn(64, 64)
        x.copy_(fresh)
        graph.replay()
        agree(result, (fresh @ weight).relu().sum(0))
    graph.replay()
    del graph, result
    torch.accelerator.empty_cache()


def exchange() -> None:
    """Tensors that other libraries share, files, and a library's tensors on their way to the device."""
    x = torch.arange(100.0)
    a = x.to(DEVICE)
    agree(torch.from_dlpack(a), x)
    agree(torch.from_numpy(x.numpy() * 2).to(DEVICE), x * 2)
    agree(copy.deepcopy(a), x)
    assert a.tolist() == x.tolist() and "tensor" in repr(a)
    for batch in torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x), batch_size=30, pin_memory=True):
        agree(batch[0].to(DEVICE, non_blocking=True).sqrt(), batch[0].sqrt())


def errors() -> None:
    """Calls that fail, at once and later."""
    x = torch.ones(4, 4, device=DEVICE)
    calls: list[Callable[[], object]] = [
        lambda: x @ torch.ones(3, 3, device=DEVICE),
        lambda: x[torch.tensor([9]).to(DEVICE)].cpu(),
        lambda: torch.empty(1 << 50, device=DEVICE),
        lambda: torch.masked_select(x, torch.ones(3, dtype=torch.bool, device=DEVICE)),
    ]
    for call in calls:
        try:
            call()
        except (RuntimeError, IndexError):
            continue
        raise AssertionError("no error")
    agree(x + 1, torch.full((4, 4), 2.0))


STATIONS = [
    eager,
    training,
    compiled,
    spilling,
    streams,
    threads,
    threads_with_streams,
    threads_that_compile,
    captured,
    exchange,
    errors,
]


def main() -> None:
    """All stations, in an order in which each finds the device as the one before left it."""
    for station in STATIONS:
        if sys.argv[1:] and station.__name__ not in sys.argv[1:]:
            continue
        print(f"tour: {station.__name__}", flush=True)
        station()
        torch.accelerator.synchronize()
    print("tour: done", flush=True)


if __name__ == "__main__":
    main()
