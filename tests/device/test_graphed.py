# SPDX-License-Identifier: Apache-2.0
"""``outboard.graphed``: calls that repeat are replayed, and give what they would give without."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

import outboard


class Model(nn.Module):
    """Two layers with what replays could get wrong around them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))
        self.register_buffer("shift", torch.ones(4))
        self.settings = {"scale": 2.0}

    def forward(self, x: Tensor, factor: float = 1.0) -> dict[str, Tensor]:
        """(batch, 8) -> (batch, 4)."""
        y = self.layers(x) * self.settings["scale"] + self.shift
        return {"result": y * factor, "norm": y.norm(dim=-1)}


@pytest.fixture
def model(device: str) -> Model:
    return Model().to(device).eval()


Count = Callable[[], int]


@pytest.fixture
def replays(device_module: ModuleType) -> Count:
    """How many replays there have been since the last time."""
    before = [device_module.compile_stats().get("replays", 0)]

    def count() -> int:
        now = device_module.compile_stats().get("replays", 0)
        found, before[0] = now - before[0], now
        return int(found)

    return count


@torch.no_grad()
def check(model: nn.Module, reference: nn.Module, device: str, times: int, rows: int = 3, **keywords: float) -> None:
    for _ in range(times):
        x = torch.randn(rows, 8, device=device)
        found, expected = model(x, **keywords), reference(x, **keywords)
        assert list(found) == list(expected)
        torch.testing.assert_close(found, expected)
        del found  # while somebody holds results, a capture of theirs is not replayed


def test_calls_that_repeat_are_replayed(model: Model, device: str, replays: Count) -> None:
    reference = copy.copy(model)
    assert outboard.graphed(model) is model
    check(model, reference, device, times=5)
    assert replays() == 4
    check(model, reference, device, times=3, rows=5)
    assert replays() == 2
    check(model, reference, device, times=3, factor=0.5)
    assert replays() == 2
    check(model, reference, device, times=2)
    assert replays() == 2


def test_results_stay_what_they_are(model: Model, device: str) -> None:
    reference = copy.copy(model)
    outboard.graphed(model)
    inputs = [torch.randn(3, 8, device=device) for _ in range(8)]
    with torch.no_grad():
        held = [model(x) for x in inputs]
        torch.testing.assert_close(held, [reference(x) for x in inputs])


def test_gradients_are_not_replayed(model: Model, device: str, replays: Count) -> None:
    outboard.graphed(model)
    for _ in range(4):
        model(torch.randn(3, 8, device=device))["result"].sum().backward()
    assert replays() == 0
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize("when", ["before", "after"])
def test_new_values_in_place_are_seen(model: Model, device: str, replays: Count, when: str) -> None:
    reference = copy.copy(model)
    outboard.graphed(model)
    check(model, reference, device, times=1 if when == "before" else 3)
    with torch.no_grad():
        model.shift.add_(1)
        model.layers[0].weight.mul_(2)
        model.load_state_dict({**model.state_dict(), "layers.2.bias": torch.full((4,), 3.0)})
    check(model, reference, device, times=3)
    assert replays() == 3 if when == "before" else 5


def replace_parameter(model: Model) -> None:
    model.layers[0].weight = nn.Parameter(torch.randn_like(model.layers[0].weight))


def replace_data(model: Model) -> None:
    model.layers[0].weight.data = torch.randn_like(model.layers[0].weight)


def replace_buffer(model: Model) -> None:
    model.shift = torch.full_like(model.shift, 7)


def replace_layer(model: Model) -> None:
    model.layers[1] = nn.Tanh()


def add_layer(model: Model) -> None:
    model.layers.append(nn.Tanh())


def add_hook(model: Model) -> None:
    model.layers[1].register_forward_hook(lambda module, args, result: result + 1)


def set_number(model: Model) -> None:
    model.settings["scale"] = 3.0


def set_training(model: Model) -> None:
    model.layers.insert(1, nn.Dropout(1.0))
    model.layers[1].train()


@pytest.mark.parametrize(
    "replace",
    [replace_parameter, replace_data, replace_buffer, replace_layer, add_layer, add_hook, set_number, set_training],
)
def test_what_is_replaced_is_seen(model: Model, device: str, replays: Count, replace: Callable[[Model], None]) -> None:
    reference = copy.copy(model)
    outboard.graphed(model)
    check(model, reference, device, times=3)
    replays()
    replace(model)
    reference.shift = model.shift  # a copy of a module has its own dictionary of attributes, not its own children
    check(model, reference, device, times=3)
    assert replays() == 2


def test_moved_models(model: Model, device: str) -> None:
    outboard.graphed(model)
    check(model, Model().to(device), device, times=0)
    x = torch.randn(3, 8)
    with torch.no_grad():
        found = [model(x.to(device))["result"] for _ in range(3)]
        model.cpu()
        torch.testing.assert_close(model(x)["result"], found[2].cpu())
        model.to(device, torch.float64)
        for _ in range(3):
            result = model(x.to(device, torch.float64))["result"]
            assert result.dtype == torch.float64
            torch.testing.assert_close(result.float(), found[2], rtol=1e-4, atol=1e-5)


class Counting(nn.Module):
    """Does something else at each call."""

    calls = 0

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        """x, times the number of the call."""
        self.calls += 1
        return x * self.calls


def test_calls_that_change_python_are_not_replayed(
    device: str, replays: Count, device_module: ModuleType, caplog: pytest.LogCaptureFixture
) -> None:
    module, x = outboard.graphed(Counting()), torch.ones(3, device=device)
    refused = device_module.compile_stats().get("capture_refusals", 0)
    with torch.no_grad():
        for call in range(600):
            assert module(x)[0].item() == call + 1
    assert replays() == 0
    assert caplog.text.count("it changes 'calls' of a Counting") == 1
    assert device_module.compile_stats()["capture_refusals"] == refused + 1


class Waiting(nn.Module):
    """Asks for a number in the middle."""

    def forward(self, x: Tensor) -> Tensor:
        """|sum of x| * x."""
        return x * (2 if x.sum().item() > 0 else 3)


def test_calls_that_wait_are_not_replayed(device: str, replays: Count, caplog: pytest.LogCaptureFixture) -> None:
    module, x = outboard.graphed(Waiting()), torch.ones(3, device=device)
    with torch.no_grad():
        for _ in range(4):
            assert module(x).tolist() == [2, 2, 2]
            assert module(-x).tolist() == [-3, -3, -3]
    assert replays() == 0
    assert "a call of Waiting is not replayed" in caplog.text


class Writing(nn.Module):
    """Writes to its input."""

    def forward(self, x: Tensor) -> Tensor:
        """x + 1, in place."""
        return x.add_(1)


class Updating(nn.Module):
    """Writes its buffer and its input."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        self.calls.add_(1)
        x.mul_(2)
        return x + self.calls


def test_what_a_replay_writes_counts_as_written(device: str, replays: Count) -> None:
    model = outboard.graphed(Updating().to(device))
    x, weight = torch.ones(3, device=device), torch.ones(3, device=device, requires_grad=True)
    for _ in range(4):
        before = x._version, model.calls._version
        with torch.no_grad():
            model(x)
        assert x._version > before[0] and model.calls._version > before[1]
    loss = (model.calls * weight).sum()
    with torch.no_grad():
        model(x)
    assert replays() > 0
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_inputs_that_are_written_to(device: str) -> None:
    module = outboard.graphed(Writing())
    with torch.no_grad():
        for number in range(5):
            x = torch.full((3,), float(number), device=device)
            assert module(x).tolist() == x.tolist() == [number + 1] * 3
        same = torch.zeros(3, device=device)
        for number in range(5):
            assert module(same).tolist() == same.tolist() == [number + 1] * 3


class Cache:
    """What a call keeps, in place."""

    def __init__(self, device: str) -> None:
        self.kept = [torch.zeros(3, device=device)]


class Accumulating(nn.Module):
    """Adds up in a cache."""

    def forward(self, x: Tensor, cache: Cache) -> tuple[Tensor, Cache]:
        """The sum of all x so far, (3,)."""
        cache.kept[0].add_(x)
        return cache.kept[0] * 1, cache


def test_objects_among_the_arguments(device: str, replays: Count) -> None:
    module, x = outboard.graphed(Accumulating()), torch.ones(3, device=device)
    caches = [Cache(device), Cache(device)]
    with torch.no_grad():
        for call in range(4):
            for cache in caches:
                total, same = module(x.clone(), cache=cache)
                assert same is cache and total.tolist() == [call + 1] * 3
        assert replays() == 6
        caches[0].kept[0] = torch.full((3,), 10.0, device=device)
        for call in range(3):
            assert module(x.clone(), cache=caches[0])[0].tolist() == [11 + call] * 3


def test_objects_that_are_gone_leave_no_memory(device: str, device_module: ModuleType) -> None:
    module, x = outboard.graphed(Accumulating()), torch.ones(3, device=device)
    sizes = []
    with torch.no_grad():
        for _ in range(6):
            cache = Cache(device)
            for _ in range(3):
                module(x.clone(), cache=cache)
            del cache
            sizes.append(device_module.memory_allocated())
    assert len(set(sizes)) == 1


class Passing(nn.Module):
    """Returns what it was given."""

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x itself, a row of y, and their sum."""
        return x, y[1], x + y


def test_inputs_among_the_results(device: str) -> None:
    module = outboard.graphed(Passing())
    with torch.no_grad():
        for _ in range(4):
            x, y = torch.randn(2, 3, device=device), torch.randn(2, 3, device=device)
            same, row, total = module(x, y)
            assert same is x and row.data_ptr() == y[1].data_ptr()
            torch.testing.assert_close(total, x + y)
            torch.testing.assert_close(module(x, x)[2], x + x)


def test_random_numbers_are_new(device: str) -> None:
    module, x = outboard.graphed(nn.Dropout(0.5)), torch.ones(1000, device=device)
    with torch.no_grad():
        torch.manual_seed(5)
        found = [module(x) for _ in range(4)]
        torch.manual_seed(5)
        assert torch.equal(module(x), found[0])
    assert len({tuple(value.tolist()) for value in found}) == 4


def test_modes_are_kinds_of_their_own(model: Model, device: str) -> None:
    outboard.graphed(model)
    x = torch.randn(3, 8, device=device)
    for _ in range(3):
        with torch.no_grad():
            plain = model(x)["result"]
            with torch.autocast(device, dtype=torch.bfloat16):
                half = model.layers(x), model(x)["result"]
        with torch.inference_mode():
            inference = model(x)["result"]
        assert plain.dtype == torch.float32 and half[0].dtype == torch.bfloat16
        torch.testing.assert_close(half[1], half[0] * 2 + 1, check_dtype=False)
        assert not torch.equal(half[1].float(), plain)
        torch.testing.assert_close(inference, plain)
    assert model(x)["result"].requires_grad


class Making(nn.Module):
    """Makes a tensor where the default is."""

    def forward(self, x: Tensor) -> Tensor:
        """x + 1."""
        return x + torch.ones(3).to(x.device)


def test_default_devices(model: Model, device: str, replays: Count) -> None:
    """A default device, once it was set, is a Python mode around every call, also after it was set to the CPU."""
    reference = copy.copy(model)
    outboard.graphed(model)
    making, x = outboard.graphed(Making()), torch.zeros(3, device=device)
    with torch.device(device):
        check(model, reference, device, times=4)
        assert replays() == 3
        with torch.no_grad():
            assert all(making(x.clone()).tolist() == [1, 1, 1] for _ in range(3))
        assert replays() == 2
    with torch.no_grad():
        assert all(making(x.clone()).tolist() == [1, 1, 1] for _ in range(3))


class Observer(TorchFunctionMode):
    """Counts calls."""

    calls = 0

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls += 1
        return function(*args, **(kwargs or {}))


def test_who_watches_sees_each_call(model: Model, device: str, replays: Count) -> None:
    outboard.graphed(model)
    check(model, copy.deepcopy(model), device, times=3)
    replays()
    x = torch.randn(3, 8, device=device)
    with torch.no_grad(), Observer() as observer:
        model(x)
    assert observer.calls > 4 and replays() == 0


def test_wrong_calls_raise_what_they_raise_without(model: Model, device: str) -> None:
    outboard.graphed(model)
    with torch.no_grad():
        for _ in range(3):
            with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
                model(torch.randn(3, 7, device=device))
            with pytest.raises(TypeError, match="unexpected keyword"):
                model(torch.randn(3, 8, device=device), no_such=1)
    check(model, copy.deepcopy(model), device, times=3)


def test_a_second_stream(model: Model, device: str) -> None:
    reference = copy.copy(model)
    outboard.graphed(model)
    check(model, reference, device, times=3)
    with torch.Stream(device):
        check(model, reference, device, times=3)
    check(model, reference, device, times=3)


def test_threads(model: Model, device: str) -> None:
    reference = copy.copy(model)
    outboard.graphed(model)
    errors: list[BaseException] = []

    def work(rows: int) -> None:
        try:
            check(model, reference, device, times=20, rows=rows)
        except BaseException as error:  # reported by the test, below
            errors.append(error)

    threads = [threading.Thread(target=work, args=(1 + number % 2,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


def test_a_captured_call_within_a_capture(model: Model, device: str) -> None:
    reference = copy.copy(model)
    outboard.graphed(model)
    check(model, reference, device, times=2)
    x = torch.randn(3, 8, device=device)
    graph = torch.accelerator.Graph()
    with torch.no_grad():
        with graph:
            result = model(x)["result"]
        x.copy_(torch.randn(3, 8))
        graph.replay()
        torch.testing.assert_close(result, reference(x)["result"])


def test_graphed_within_graphed(model: Model, device: str, replays: Count) -> None:
    reference = copy.deepcopy(model)
    outboard.graphed(model.layers)
    outboard.graphed(model)
    check(model, reference, device, times=4)
    assert replays() >= 3


def test_a_compiled_module(model: Model, device: str, replays: Count) -> None:
    reference = copy.copy(model)
    model.compile()
    outboard.graphed(model)
    check(model, reference, device, times=5)
    assert replays() >= 3, outboard.graphed_refusals(
        model
    )  # the first call, which compiles, may leave something behind in Python


def test_copies_are_ordinary_modules(model: Model, device: str, replays: Count) -> None:
    outboard.graphed(model)
    check(model, copy.deepcopy(model), device, times=3)
    replays()
    again = pickle.loads(pickle.dumps(model))
    check(again, copy.copy(model), device, times=3)
    assert replays() == 0


def test_what_is_no_module() -> None:
    with pytest.raises(TypeError, match=r"expects a torch.nn.Module, not function"):
        outboard.graphed(lambda x: x)  # type: ignore[type-var]


def test_models_on_the_cpu_run_as_they_did(replays: Count) -> None:
    model = outboard.graphed(Model().eval())
    check(model, copy.copy(model), "cpu", times=3)
    assert replays() == 0
