# SPDX-License-Identifier: Apache-2.0
"""What kernels find wrong with values is reported by whoever waits for the device next, as on CUDA."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F

from tests.conftest import RunPython


def _look_up_too_far(device: str) -> torch.Tensor:
    return F.embedding(torch.tensor([1, 3], device=device), torch.ones(3, 4, device=device))


def _works(device: str) -> None:
    torch.testing.assert_close(
        F.embedding(torch.tensor([2], device=device), torch.ones(3, 4, device=device)).cpu(), torch.ones(1, 4)
    )


@pytest.mark.parametrize("wait", ["synchronize", "cpu", "item", "print", "tolist", "stream", "event", "fallback"])
def test_every_wait_reports(device: str, device_module: ModuleType, wait: str) -> None:
    result = _look_up_too_far(device)
    event = device_module.Event()
    event.record()
    with pytest.raises(IndexError, match="OUTBOARD_LAUNCH_BLOCKING=1"):
        match wait:
            case "synchronize":
                device_module.synchronize()
            case "cpu":
                result.cpu()
            case "item":
                result.sum().item()
            case "print":
                repr(result)
            case "tolist":
                result.tolist()
            case "stream":
                device_module.current_stream().synchronize()
            case "event":
                event.synchronize()
            case _:
                result.nonzero()
    device_module.synchronize()  # reported once
    _works(device)


def test_results_that_went_to_another_stream(device: str, device_module: ModuleType) -> None:
    other = device_module.Stream()
    with device_module.stream(other):
        result = _look_up_too_far(device)
    device_module.current_stream().wait_stream(other)
    doubled = result * 2
    with pytest.raises(IndexError):
        doubled.cpu()
    device_module.synchronize()


def test_each_operator_has_its_own_exception(device: str, device_module: ModuleType) -> None:
    torch.ones(3, device=device).gather(0, torch.tensor([5], device=device))
    with pytest.raises(RuntimeError, match="out of bounds"):
        device_module.synchronize()
    torch.bernoulli(torch.tensor([0.5, 1.5], device=device))
    with pytest.raises(RuntimeError, match="p_in|probability|bernoulli"):
        device_module.synchronize()
    _works(device)


def test_compiled_graphs_report_too(device: str, device_module: ModuleType) -> None:
    @torch.compile
    def shifted(table: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        return table[places] * 2 + 1

    table = torch.ones(5, device=device)
    shifted(table, torch.tensor([0, 4], device=device)).cpu()
    result = shifted(table, torch.tensor([0, 5], device=device))
    with pytest.raises(IndexError):
        result.cpu()


def test_nothing_is_reported_twice_or_late(device: str, device_module: ModuleType) -> None:
    for _ in range(20):
        _look_up_too_far(device)
        with pytest.raises(IndexError):
            device_module.synchronize()
        _works(device)


def test_blocking_launches_raise_at_the_call(run_python: RunPython, device: str) -> None:
    source = f"""
        import torch
        table, place = torch.ones(3, 4, device="{device}"), torch.tensor([3], device="{device}")
        try:
            torch.nn.functional.embedding(place, table)
        except IndexError as error:
            print("at the call")
    """
    assert "at the call" in run_python(source, OUTBOARD_LAUNCH_BLOCKING="1")


def test_asking_does_not_wait(device: str, device_module: ModuleType) -> None:
    """Operators that check values do not synchronise: a wait inside would report the error at the call."""
    table = torch.ones(3, device=device)
    places = torch.tensor([7], device=device)
    for call in (
        lambda: table[places],
        lambda: table.index_select(0, places),
        lambda: table.scatter(0, places, torch.ones(1, device=device)),
        lambda: F.nll_loss(torch.ones(1, 3, device=device), places),
    ):
        call()
        with pytest.raises((IndexError, RuntimeError)):
            device_module.synchronize()


@pytest.mark.parametrize("wrong", [-0.1, 1.5, float("nan")])
def test_binary_cross_entropy_wants_probabilities(device: str, device_module: ModuleType, wrong: float) -> None:
    F.binary_cross_entropy(torch.tensor([0.5, wrong], device=device), torch.ones(2, device=device))
    with pytest.raises(RuntimeError, match="between 0 and 1"):
        device_module.synchronize()
    loss = F.binary_cross_entropy(torch.tensor([0.0, 1.0], device=device), torch.zeros(2, device=device))
    assert loss.item() == 50.0


def test_assertions_of_the_program(device: str, device_module: ModuleType) -> None:
    """``torch._assert_async`` is checked where the device gets to it; nobody waits, and the CPU has no part in it."""
    device_module.set_fallback_policy("error")
    try:
        device_module.set_sync_debug_mode("error")
        try:
            torch._assert_async(torch.ones(1, device=device))
            torch._assert_async(torch.zeros((), dtype=torch.bool, device=device), "not so")
        finally:
            device_module.set_sync_debug_mode("default")
        with pytest.raises(RuntimeError, match="not so"):
            device_module.synchronize()
        torch._assert_async(torch.zeros((), device=device))
        with pytest.raises(RuntimeError, match="Expected Tensor with single nonzero value, but got zero"):
            device_module.synchronize()
    finally:
        device_module.set_fallback_policy("allow")
    for count, what in ((0, "no values"), (2, "more than one value")):
        with pytest.raises(RuntimeError, match=f"Tensor with {what} is ambiguous"):
            torch._assert_async(torch.ones(count, device=device))


def _index_put(rows: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    return rows.index_put((index,), torch.ones(len(index), 1, device=rows.device))


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    "select",
    [lambda rows, index: F.embedding(index, rows), lambda rows, index: rows[-1 - index], _index_put],
    ids=["embedding", "negative", "index_put"],
)
def test_indices_that_a_graph_computes(
    device: str, device_module: ModuleType, select: Callable[..., torch.Tensor], dynamic: bool
) -> None:
    """Too long a sequence for its table of positions neither reads nor writes beside it."""

    def positions(x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return select(rows * 1, torch.arange(len(x), device=x.device))

    compiled = torch.compile(positions, dynamic=dynamic)
    rows = torch.arange(12.0).view(6, 2)
    for count in (4, 6):
        x = torch.ones(count)
        torch.testing.assert_close(compiled(x.to(device), rows.to(device)).cpu(), positions(x, rows))
    for count in (7, 3000):
        compiled(torch.ones(count, device=device), rows.to(device))
        with pytest.raises(IndexError):
            device_module.synchronize()


def test_one_index_that_is_outside(device: str, device_module: ModuleType) -> None:
    compiled = torch.compile(lambda x: x.gather(0, torch.full((1, 3), 1 << 40, device=x.device)))
    compiled(torch.ones(4, 5, device=device))
    with pytest.raises((IndexError, RuntimeError), match="index out of"):
        device_module.synchronize()


def test_standard_deviations_of_a_graph(device: str, device_module: ModuleType) -> None:
    compiled = torch.compile(torch.normal)
    assert bool((compiled(torch.ones(4, device=device), torch.zeros(4, device=device)) == 1).all())
    compiled(torch.ones(4, device=device), torch.tensor([1.0, 0.0, -1.0, 2.0], device=device))
    with pytest.raises(RuntimeError, match="std >= 0"):
        device_module.synchronize()


def test_graphs_report_wrong_indices_as_single_calls_do(device: str, device_module: ModuleType) -> None:
    x, wrong = torch.ones(3, 4, device=device), torch.tensor([[1, 9]], device=device)
    for function, error in (
        (lambda: x.gather(0, wrong), RuntimeError),
        (lambda: x.scatter(0, wrong, 1.5), RuntimeError),
        (lambda: torch.zeros(3, 4, device=device).scatter(1, wrong[:, 1:].expand(3, 1), 1.5), RuntimeError),
        (lambda: F.nll_loss(x, torch.tensor([0, 5, 0], device=device)), IndexError),
        (lambda: x[wrong] + 1, IndexError),
    ):
        torch._dynamo.reset()
        with pytest.raises(error, match="index out of"):
            torch.compile(function)().cpu()


def test_graphs_refuse_adaptive_maxima_of_integers(device: str) -> None:
    torch._dynamo.reset()
    with pytest.raises(Exception, match="adaptive_max_pool2d is not implemented for torch.int64"):
        torch.compile(F.adaptive_max_pool2d)(torch.ones(1, 2, 4, 4, dtype=torch.int64, device=device), 2)
