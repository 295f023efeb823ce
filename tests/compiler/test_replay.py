# SPDX-License-Identifier: Apache-2.0
"""``torch.compile(mode="reduce-overhead")``: captured, replayed, and as right as without."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._dynamo.utils import counters

MODE = "reduce-overhead"


@pytest.fixture(autouse=True)
def counted(device_module: ModuleType) -> None:
    torch._dynamo.reset()
    device_module.reset_compile_stats()
    counters.clear()


def stats(module: ModuleType) -> tuple[int, int, int]:
    """Captures, replays, refusals."""
    found = module.compile_stats()
    return found["captures"], found["replays"], found["capture_refusals"]


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 40), nn.GELU(), nn.LayerNorm(40), nn.Linear(40, 5))


def test_new_inputs_give_new_results(device: str, device_module: ModuleType) -> None:
    reference = model()
    compiled = torch.compile(copy.deepcopy(reference).to(device), mode=MODE)
    with torch.no_grad():
        for _ in range(6):
            x = torch.randn(7, 12)
            torch.testing.assert_close(compiled(x.to(device)).cpu(), reference(x), rtol=1e-4, atol=1e-5)
    assert stats(device_module) == (1, 5, 0)


def test_sizes_have_captures_of_their_own(device: str, device_module: ModuleType) -> None:
    reference = model()
    compiled = torch.compile(copy.deepcopy(reference).to(device), mode=MODE, dynamic=True)
    with torch.no_grad():
        for batch in (3, 8, 3, 8, 5, 3, 8):
            x = torch.randn(batch, 12)
            torch.testing.assert_close(compiled(x.to(device)).cpu(), reference(x), rtol=1e-4, atol=1e-5)
    assert stats(device_module) == (2, 4, 0)


def test_results_stay_while_they_are_held(device: str, device_module: ModuleType) -> None:
    compiled = torch.compile(lambda x: (x * 2).sin(), mode=MODE)
    inputs = [torch.randn(50) for _ in range(12)]
    results = [compiled(x.to(device)) for x in inputs]
    views = [result[10:] for result in results]
    for x, result in zip(inputs, results, strict=True):
        torch.testing.assert_close(result.cpu(), (x * 2).sin())
    del results, result
    for x in inputs:  # the first 12 results are still seen
        torch.testing.assert_close(compiled(x.to(device)).cpu(), (x * 2).sin())
    for x, view in zip(inputs, views, strict=True):
        torch.testing.assert_close(view.cpu(), (x * 2).sin()[10:])
    captures, replays, refusals = stats(device_module)
    assert captures >= 3 and replays > captures and refusals == 0


def test_a_loop_that_holds_its_last_result_replays(device: str, device_module: ModuleType) -> None:
    compiled = torch.compile(lambda x: (x + 1).cos(), mode=MODE)
    result = x = torch.randn(50, device=device)
    for _ in range(20):
        result = compiled(x)
    torch.testing.assert_close(result.cpu(), (x.cpu() + 1).cos())
    captures, replays, _ = stats(device_module)
    assert captures == 2 and replays >= 17


def test_results_as_inputs(device: str) -> None:
    compiled = torch.compile(lambda x: x * 1.5 + 1, mode=MODE)
    x, expected = torch.randn(30), None
    result, expected = x.to(device), x
    for _ in range(10):
        result, expected = compiled(result), expected * 1.5 + 1
        torch.testing.assert_close(result.cpu(), expected)


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_training(device: str, device_module: ModuleType, set_to_none: bool, accumulate: int) -> None:
    reference = model()
    ours = copy.deepcopy(reference).to(device)
    compiled = torch.compile(ours, mode=MODE)
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.05, momentum=0.9) for each in (reference, ours)]
    for step in range(8):
        x, y = torch.randn(16, 12), torch.randint(5, (16,))
        losses = []
        for network, optimizer, where in ((reference, optimizers[0], "cpu"), (compiled, optimizers[1], device)):
            loss = F.cross_entropy(network(x.to(where)), y.to(where))
            loss.backward()
            losses.append(loss.detach().cpu())
            if (step + 1) % accumulate == 0:
                optimizer.step()
                optimizer.zero_grad(set_to_none=set_to_none)
        torch.testing.assert_close(losses[1], losses[0], rtol=1e-4, atol=1e-5)
    for a, b in zip(ours.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(a.detach().cpu(), b.detach(), rtol=1e-3, atol=1e-5)
    captures, replays, refusals = stats(device_module)
    assert captures >= 2 and replays >= 8 and refusals == 0


def test_two_forwards_before_their_backwards(device: str) -> None:
    reference = model()
    ours = copy.deepcopy(reference).to(device)
    compiled = torch.compile(ours, mode=MODE)
    for _ in range(5):
        x = [torch.randn(4, 12), torch.randn(4, 12)]
        for network, where in ((reference, "cpu"), (compiled, device)):
            first, second = (network(each.to(where)).square().sum() for each in x)
            second.backward()
            first.backward()
    for a, b in zip(ours.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(a.grad.cpu(), b.grad, rtol=1e-3, atol=1e-4)


def test_random_numbers_are_fresh_and_follow_the_seed(device: str, device_module: ModuleType) -> None:
    dropout = torch.compile(lambda x: F.dropout(x, 0.5), mode=MODE)
    x = torch.ones(1000, device=device)
    for _ in range(3):
        dropout(x)
    torch.manual_seed(1)
    first, second = dropout(x).cpu(), dropout(x).cpu()
    torch.manual_seed(1)
    assert torch.equal(dropout(x).cpu(), first)
    assert not torch.equal(first, second)
    assert stats(device_module)[0] >= 1


def test_statistics_of_a_batch_norm_go_on(device: str, device_module: ModuleType) -> None:
    reference = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
    ours = copy.deepcopy(reference).to(device)
    compiled = torch.compile(ours, mode=MODE)
    with torch.no_grad():
        for _ in range(6):
            x = torch.randn(2, 3, 8, 8)
            torch.testing.assert_close(compiled(x.to(device)).cpu(), reference(x), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ours[1].running_var.cpu(), reference[1].running_var)
    assert int(ours[1].num_batches_tracked) == 6
    assert stats(device_module)[1] >= 4


def test_new_parameters_are_seen(device: str) -> None:
    ours = nn.Linear(6, 6).to(device)
    compiled = torch.compile(ours, mode=MODE)
    x = torch.randn(3, 6, device=device)
    with torch.no_grad():
        for turn in range(8):
            if turn == 4:
                ours.weight.data = torch.randn(6, 6, device=device)
            ours.bias.add_(1)
            torch.testing.assert_close(compiled(x), F.linear(x, ours.weight, ours.bias))


def test_numbers_of_the_host_are_arguments(device: str) -> None:
    compiled = torch.compile(lambda x, n, s: x * n + s, mode=MODE)
    x = torch.randn(9)
    for number in (2.5, 3.5, 4.5, 4.5, 4.5, 5.5):
        result = compiled(x.to(device), number, torch.tensor(number / 2))
        torch.testing.assert_close(result.cpu(), x * number + number / 2)


def with_host_work(x: Tensor) -> Tensor:
    return torch.linalg.det(x.cpu()).to(x.device) * x


def with_a_branch(x: Tensor) -> Tensor:
    result: Tensor = torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,))
    return result


@pytest.mark.parametrize("function", [with_host_work, with_a_branch])
def test_what_cannot_be_captured_is_told_and_runs(
    device: str, device_module: ModuleType, function: Callable[[Tensor], Tensor]
) -> None:
    compiled = torch.compile(function, mode=MODE)
    for _ in range(4):
        x = torch.randn(4, 4)
        torch.testing.assert_close(compiled(x.to(device)).cpu(), function(x), rtol=1e-4, atol=1e-5)
    assert stats(device_module) == (0, 0, 1)
    assert counters["inductor"]["cudagraph_skips"] == 1


def test_inside_a_capture_of_the_users(device: str) -> None:
    compiled = torch.compile(lambda x: x.exp() + 1, mode=MODE)
    x = torch.randn(20, device=device)
    for _ in range(3):
        compiled(x)
    for _ in range(3):
        graph = torch.accelerator.Graph()
        with graph:
            result = compiled(x)
        x.copy_(torch.randn(20))
        graph.replay()
        torch.testing.assert_close(result, x.exp() + 1)


def test_memory_comes_back_and_is_shared(device: str, device_module: ModuleType) -> None:
    def chain(x: Tensor) -> Tensor:
        y = x[:, None] * x  # 1 MiB
        for _ in range(4):
            y = y.softmax(0) @ y
        return y.sum(0)

    x = torch.randn(512, device=device)
    torch._dynamo.reset()  # what other tests left, frozen weights for instance, lies in the middle of segments
    gc.collect()
    torch.accelerator.synchronize()
    device_module.empty_cache()
    before = device_module.memory_allocated()
    chains = [torch.compile(lambda x, n=n: chain(x) + n, mode=MODE) for n in range(4)]
    reserved = []
    for function in chains:
        for _ in range(3):
            function(x)
        reserved.append(device_module.memory_reserved())
    assert stats(device_module) == (4, 8, 0)
    assert reserved[-1] == reserved[1] <= reserved[0] + (4 << 20)  # one more segment, whatever there are pieces of
    del chains, function
    torch._dynamo.reset()
    gc.collect()
    torch.accelerator.synchronize()
    assert device_module.memory_allocated() == before
