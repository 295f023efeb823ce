# SPDX-License-Identifier: Apache-2.0
"""Optimizers that use ``_foreach_*`` operators do what they do on the CPU, in one launch for each parameter."""

from __future__ import annotations

import contextlib
import copy
import importlib
import threading
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import NAdam, RAdam, RMSprop, Rprop
from torch.utils._python_dispatch import TorchDispatchMode

from outboard import _C
from outboard.compiler import eager

#: Name -> optimizer. Each option that changes the operators occurs.
WAYS: dict[str, tuple[type[torch.optim.Optimizer], dict[str, Any]]] = {
    "adam": (torch.optim.Adam, {"lr": 1e-2}),
    "adam, decay, maximize": (torch.optim.Adam, {"lr": 1e-2, "weight_decay": 0.1, "maximize": True}),
    "adam, amsgrad": (torch.optim.Adam, {"lr": 1e-2, "amsgrad": True, "betas": (0.3, 0.99)}),
    "adam, capturable": (torch.optim.Adam, {"lr": 1e-2, "capturable": True, "amsgrad": True}),
    "adamw": (torch.optim.AdamW, {"lr": 1e-2}),
    "sgd": (torch.optim.SGD, {"lr": 1e-2}),
    "sgd, decay, maximize": (torch.optim.SGD, {"lr": 1e-2, "weight_decay": 0.1, "maximize": True}),
    "sgd, momentum": (torch.optim.SGD, {"lr": 1e-2, "momentum": 0.9, "dampening": 0.3}),
    "sgd, nesterov": (torch.optim.SGD, {"lr": 1e-2, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    "rmsprop": (RMSprop, {"lr": 1e-2, "weight_decay": 0.1}),
    "rmsprop, centered": (RMSprop, {"lr": 1e-2, "centered": True, "momentum": 0.9}),
    "rmsprop, capturable": (RMSprop, {"lr": 1e-2, "capturable": True}),
    "adagrad": (torch.optim.Adagrad, {"lr": 1e-2, "lr_decay": 0.1, "weight_decay": 0.1}),
    "adadelta": (torch.optim.Adadelta, {"lr": 1.0, "weight_decay": 0.1, "maximize": True}),
    "adadelta, capturable": (torch.optim.Adadelta, {"lr": 1.0, "capturable": True}),
    "nadam": (NAdam, {"lr": 1e-2, "weight_decay": 0.1}),
    "nadam, decoupled": (NAdam, {"lr": 1e-2, "weight_decay": 0.1, "decoupled_weight_decay": True}),
    "nadam, capturable": (NAdam, {"lr": 1e-2, "capturable": True}),
    "radam": (RAdam, {"lr": 1e-2, "betas": (0.5, 0.7)}),
    "radam, capturable": (RAdam, {"lr": 1e-2, "betas": (0.5, 0.7), "capturable": True}),
    "adamax": (torch.optim.Adamax, {"lr": 1e-2, "weight_decay": 0.1}),
    "adamax, capturable": (torch.optim.Adamax, {"lr": 1e-2, "capturable": True}),
    "asgd": (torch.optim.ASGD, {"lr": 1e-2, "t0": 1, "weight_decay": 0.1}),
    "asgd, capturable": (torch.optim.ASGD, {"lr": 1e-2, "t0": 1, "capturable": True}),
    "rprop": (Rprop, {"lr": 1e-2}),
    "rprop, capturable": (Rprop, {"lr": 1e-2, "capturable": True}),
}
SHAPES = ((), (5,), (64, 33), (4, 3, 3, 3), (0, 4), (1,))
STEPS = 6


def make_parameters(device: str, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """The same values on each device; one of them lies in another order than its shape says."""
    generator = torch.Generator().manual_seed(3)
    values = [torch.randn(shape, generator=generator).to(dtype) for shape in SHAPES]
    values.append(values[3].contiguous(memory_format=torch.channels_last))
    return [value.to(device).requires_grad_() for value in values]


def set_gradients(parameters: list[Tensor], step: int) -> None:
    generator = torch.Generator().manual_seed(step)
    for parameter in parameters:
        value = torch.randn(parameter.shape, generator=generator).to(parameter.device, parameter.dtype)
        parameter.grad = torch.empty_like(parameter).copy_(value)


def everything(parameters: list[Tensor], optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Parameters, gradients, and the optimizer's state, as float64 on the CPU."""
    states = [optimizer.state[p][key] for p in parameters for key in sorted(optimizer.state[p])]
    found = [x for x in (*parameters, *(p.grad for p in parameters), *states) if isinstance(x, Tensor)]
    return [x.detach().cpu().double() for x in found]


def trained(way: str, device: str, dtype: torch.dtype = torch.float32, **options: Any) -> list[Tensor]:
    """What some steps make, with a step size that changes."""
    kind, given = WAYS[way]
    if device == "cpu":
        given = {name: value for name, value in given.items() if name != "capturable"}
    parameters = make_parameters(device, dtype)
    optimizer = kind(parameters, **given | options)
    for step in range(STEPS):
        set_gradients(parameters, step)
        optimizer.step()
        optimizer.param_groups[0]["lr"] *= 0.9
    return everything(parameters, optimizer)


@contextlib.contextmanager
def together() -> Iterator[None]:
    """Inside, operators on lists are written down."""
    _C.foreach_begin()
    try:
        yield
    finally:
        _C.foreach_end()


@pytest.fixture
def launches(device_module: ModuleType) -> Callable[[Callable[[], object]], int]:
    """Counts the plans that a function runs, after a first time that may compile some."""

    def count(function: Callable[[], object]) -> int:
        function()
        device_module.reset_compile_stats()
        function()
        stats = device_module.compile_stats()
        assert stats["misses"] == 0
        return int(stats["hits"])

    return count


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("way", WAYS)
def test_steps_are_those_of_the_cpu(device: str, way: str, dtype: torch.dtype) -> None:
    expected, found = trained(way, "cpu", dtype, foreach=True), trained(way, device, dtype, foreach=True)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-12
    if "capturable" in way and dtype == torch.float64:
        tolerance = 1e-6  # counts of steps, and what is computed from them, are float32 then
    for one, other in zip(expected, found, strict=True):
        torch.testing.assert_close(other, one, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("way", WAYS)
def test_steps_are_those_of_one_parameter_at_a_time(device: str, way: str) -> None:
    for one, other in zip(trained(way, device, foreach=False), trained(way, device, foreach=True), strict=True):
        torch.testing.assert_close(other, one, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("way", ["adam", "sgd, nesterov", "rmsprop, centered"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_halves_are_computed_in_single_precision(device: str, way: str, dtype: torch.dtype) -> None:
    limit = 16 * torch.finfo(dtype).eps
    options = {"foreach": True} | ({"eps": 1e-3} if "sgd" not in way else {})
    expected, found = trained(way, "cpu", **options), trained(way, device, dtype, **options)
    for one, other in zip(expected, found, strict=True):
        torch.testing.assert_close(other, one, rtol=limit, atol=limit)


@pytest.mark.parametrize("way", ["adam", "adam, amsgrad", "sgd, momentum", "adagrad", "rmsprop, centered"])
def test_complex_parameters(device: str, way: str) -> None:
    kind, options = WAYS[way]
    values = torch.randn(4, 3, dtype=torch.complex64)
    results = []
    for where in ("cpu", device):
        parameter = values.to(where, copy=True).requires_grad_()
        optimizer = kind([parameter], **options, foreach=True)
        for _ in range(3):
            parameter.grad = parameter.detach() * (1 + 2j)
            optimizer.step()
        results.append(parameter.detach().cpu())
    torch.testing.assert_close(results[1], results[0])


# One plan for each parameter, those without elements included. (Adagrad, ASGD and Rprop run some operators alone.)
@pytest.mark.parametrize(
    "way", ["adam", "adam, amsgrad", "adamw", "sgd", "sgd, nesterov", "rmsprop, centered", "adamax"]
)
def test_a_step_is_one_launch_for_each_parameter(
    device: str, way: str, launches: Callable[[Callable[[], object]], int]
) -> None:
    kind, options = WAYS[way]
    parameters = [torch.ones(8, 8 + i, device=device, requires_grad=True) for i in range(20)]
    set_gradients(parameters, 0)
    optimizer = kind(parameters, **options)  # PyTorch chooses foreach
    optimizer.step()
    assert launches(optimizer.step) == len(parameters)


@pytest.mark.parametrize("way", WAYS)
def test_steps_compile_nothing_new(device: str, device_module: ModuleType, way: str) -> None:
    kind, options = WAYS[way]
    parameters = make_parameters(device)
    optimizer = kind(parameters, **options, foreach=True)
    for step in range(12):
        set_gradients(parameters, step)
        optimizer.step()
        optimizer.param_groups[0]["lr"] *= 0.9
        if step == 7:  # RAdam's fifth step and later ones are others than the first
            device_module.reset_compile_stats()
    assert device_module.compile_stats()["misses"] == 0


def test_results_that_nobody_holds_take_no_memory(device: str, device_module: ModuleType) -> None:
    size = 1 << 20
    parameters = [torch.ones(size, device=device, requires_grad=True) for _ in range(2)]
    set_gradients(parameters, 0)
    optimizer = torch.optim.Adam(parameters, maximize=True, weight_decay=0.1)
    optimizer.step()
    device_module.synchronize()
    device_module.reset_peak_memory_stats()
    before = device_module.memory_allocated()
    optimizer.step()
    assert device_module.max_memory_allocated() - before < 4 * size


def test_results_that_somebody_holds_are_written(device: str) -> None:
    xs = [torch.tensor([4.0, 9.0], device=device), torch.tensor(16.0, device=device)]
    with together():
        roots = torch._foreach_sqrt(xs)
        torch._foreach_add_(xs, roots)
        view = torch._foreach_mul(roots, 2.0)[0][1:]
    assert [r.tolist() for r in roots] == [[2, 3], 4]
    assert [x.tolist() for x in xs] == [[6, 12], 20]
    assert view.tolist() == [6]


def test_numbers_may_differ_from_tensor_to_tensor(device: str) -> None:
    values = [torch.rand(3) + 0.5, torch.rand(()) + 0.5, torch.rand(2, 2) + 0.5]
    results = []
    for where in ("cpu", device):
        xs, ys = ([v.to(where, copy=True) for v in values] for _ in range(2))
        with together():
            torch._foreach_mul_(xs, [0.5, 2.0, 3.0])
            torch._foreach_addcdiv_(xs, ys, xs, [1.0, 2.0, -1.0])
            torch._foreach_pow_(ys, [2, 0.5, 3])
            torch._foreach_lerp_(xs, ys, [0.1, 0.2, 0.4])
            torch._foreach_lerp_(xs, ys, [0.1, 0.9, 0.4])
            torch._foreach_lerp_(xs, ys, 0.75)
            torch._foreach_lerp_(xs, ys, xs)
            torch._foreach_maximum_(ys, [0.6, 0.7, 0.8])
            torch._foreach_clamp_max_(xs, 1.5)
            zs = torch._foreach_pow(1.5, xs)
            torch._foreach_sub_(zs, ys, alpha=0.5)
            torch._foreach_copy_(xs, zs)
            torch._foreach_zero_(zs)
        results.append([x.cpu() for x in (*xs, *ys, *zs)])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(other, one)


UNARY = ["abs", "exp", "log", "neg", "reciprocal", "round", "rsqrt", "sigmoid", "sign", "sqrt", "tanh", "trunc"]


@pytest.mark.parametrize("name", UNARY)
def test_functions_of_one_tensor(device: str, name: str, launches: Callable[[Callable[[], object]], int]) -> None:
    function, in_place = getattr(torch, f"_foreach_{name}"), getattr(torch, f"_foreach_{name}_")
    values = [torch.rand(5) + 1.1, torch.rand(2, 3) + 1.1]
    expected = function(function(values))

    def on_device() -> list[Tensor]:
        results = [value.to(device) for value in values]
        with together():
            in_place(results)
            return list(function(results))

    for one, other in zip(expected, on_device(), strict=True):
        torch.testing.assert_close(other.cpu(), one)
    assert launches(on_device) == len(values)


def test_one_tensor_for_all(device: str, launches: Callable[[Callable[[], object]], int]) -> None:
    """Where an operator takes a tensor instead of a number."""
    values = [torch.rand(5), torch.rand(()), torch.rand(2, 3)]

    def run(where: str) -> list[Tensor]:
        xs, rate = [value.to(where, copy=True) for value in values], torch.tensor(0.5, device=where)
        with together():
            torch._foreach_mul_(xs, rate)
            torch._foreach_add_(xs, rate, alpha=2.0)
            torch._foreach_div_(xs, torch.tensor(0.75))
            torch._foreach_div_(xs, rate)
        return xs

    for one, other in zip(run("cpu"), run(device), strict=True):
        torch.testing.assert_close(other.cpu(), one)
    assert launches(lambda: run(device)) == len(values)


def test_one_tensor_for_all_may_be_written(device: str) -> None:
    results = []
    for where in ("cpu", device):
        rate = torch.tensor(0.5, device=where)
        xs = [torch.ones(3, device=where), rate, torch.ones((), device=where)]
        with together():
            torch._foreach_mul_([xs[0], xs[2]], rate)
            torch._foreach_add_([rate, rate], 1.0)
            torch._foreach_mul_([xs[0], xs[2]], rate)
            torch._foreach_mul_(xs, rate)
            rate.add_(1)
            torch._foreach_add_([xs[0], xs[2]], rate)
        results.append([x.cpu() for x in xs])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(other, one)


def test_a_chain_that_is_refused_runs_on_the_cpu(
    device: str, device_module: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = []
    device_module.reset_fallbacks()

    def refuse(*_: object) -> tuple[str, bytes]:
        importlib.import_module("outboard.compiler.adapter.optimizers.chains")  # as the compiler does
        return "cpu", b""

    monkeypatch.setattr(eager, "compile_operator", refuse)
    for where in ("cpu", device):
        xs = [torch.arange(3.0).to(where), torch.tensor(3.0).to(where)]
        with together():
            torch._foreach_add_(xs, 1.0)
            roots = torch._foreach_sqrt(xs)
            torch._foreach_sigmoid_(xs)
            torch._foreach_sub_(xs, roots)
        results.append([x.cpu() for x in (*xs, *roots)])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(other, one)
    assert device_module.fallbacks() == {"outboard::chain_": 2}


def test_memory_for_two_tensors_is_enough(device: str) -> None:
    size = 1 << 20
    results = []
    limit = _C.memory_limit(0)
    for where in ("cpu", device):
        parameter = torch.ones(size).to(where).requires_grad_()
        optimizer = torch.optim.SGD([parameter], lr=0.1, momentum=0.9)
        for step in range(3):
            parameter.grad = torch.full((size,), float(step)).to(where)
            _C.set_memory_limit(0, 11 * size if where != "cpu" else limit)
            try:
                optimizer.step()
            finally:
                _C.set_memory_limit(0, limit)
        results.append(parameter.detach().cpu())
    torch.testing.assert_close(results[1], results[0])


def strided(x: Tensor) -> list[Tensor]:
    return [x[:, 0], x[:, 1], x[:, 2]]


#: Lists over one matrix whose tensors share memory in ways that make the order of operators and elements matter.
ALIASES: dict[str, Callable[[Tensor], tuple[list[Tensor], list[Tensor]]]] = {
    "the same lists": lambda x: ([x[0], x[1]], [x[0], x[1]]),
    "the same tensor twice": lambda x: ([x[0], x[0]], [x[1], x[2]]),
    "exchanged": lambda x: ([x[0], x[1]], [x[1], x[0]]),
    "shifted": lambda x: ([x[0], x[1]], [x[1], x[2]]),
    "one source": lambda x: ([x[0], x[1]], [x[2], x[2]]),
    "overlapping": lambda x: ([x[0, :3], x[1, :3]], [x[0, 1:], x[2, 1:]]),
    "the same bytes, another shape": lambda x: ([x[0], x[1]], [x[0:1].view(4), x[1:2].view(2, 2).view(4)]),
    "columns": lambda x: (strided(x), strided(x)),
    "rows and columns": lambda x: ([x[0, :3], x[1, :3]], [x[:, 0], x[:, 1]]),
    "broadcast": lambda x: ([x[0], x[1]], [x[2, 0], x[2, 1]]),
    "number and vector": lambda x: ([x[0], x[1, 0]], [x[2], x[2, 1]]),
}


@pytest.mark.parametrize("way", ALIASES)
def test_shared_memory(device: str, way: str) -> None:
    start = torch.rand(3, 4) + 1
    results = []
    for where in ("cpu", device):
        x = start.to(where, copy=True)
        left, right = ALIASES[way](x)
        errors = 0
        with together():
            for operator in (torch._foreach_add_, torch._foreach_mul_, torch._foreach_maximum_, torch._foreach_div_):
                try:
                    operator(left, right)
                except RuntimeError:  # overlap within an element, as on the CPU
                    errors += 1
            made = torch._foreach_add(left, right)
            torch._foreach_mul_(left, 2.0)
        results.append([x.cpu(), *(m.cpu() for m in made), torch.tensor(errors)])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(other, one)


def test_types_and_devices_that_differ(device: str) -> None:
    results = []
    for where in ("cpu", device):
        xs = [torch.ones(3, device=where), torch.ones(3, device=where)]
        doubles = [x.double() / 3 for x in xs]
        numbers = [torch.tensor(0.5, device=where, dtype=torch.float64), torch.tensor(3.0, device=where)]
        integers = [torch.arange(3, device=where), torch.arange(3, device=where)]
        with together():
            torch._foreach_add_(xs, doubles)
            torch._foreach_mul_(xs, numbers)
            sums = torch._foreach_add(xs, integers)
            torch._foreach_add_(integers, 2)
            promoted = torch._foreach_mul(xs, doubles)
            hosted = torch._foreach_mul(xs, [torch.tensor(2.0), torch.tensor(3.0)])
            scaled = torch._foreach_mul(xs, torch.tensor(2.0, device=where))
        results.append([x.cpu() for x in (*xs, *sums, *integers, *promoted, *hosted, *scaled)])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(other, one)


def _add(value: Tensor) -> float:
    return float((value + 1).sum()) - value.numel()


#: What looks at a tensor, or orders work, and has to find everything done. Each returns the sum.
LOOKS: dict[str, Callable[[Tensor, ModuleType], float]] = {
    "cpu": lambda x, _: float(x.cpu().sum()),
    "item": lambda x, _: x[0].item() + x[1].item(),
    "an operator": lambda x, _: _add(x),
    "a copy": lambda x, _: float(torch.zeros_like(x).copy_(x).sum()),
    "a view": lambda x, _: float(x.view(2, 1).t().sum()),
    "tolist": lambda x, _: float(sum(x.tolist())),
    "a graph": lambda x, _: float(torch.compile(lambda v: v.sum(), dynamic=False)(x)),
    "a storage": lambda x, _: float(x.untyped_storage().clone().cpu().nbytes() * 0 + x.cpu().sum()),
    "matmul": lambda x, _: float(x @ torch.ones(2, device=x.device)),
}


@pytest.mark.parametrize("way", LOOKS)
def test_whoever_looks_finds_everything_done(device: str, device_module: ModuleType, way: str) -> None:
    xs = [torch.tensor([1.0, 2.0], device=device), torch.tensor([3.0, 4.0], device=device)]
    with together():
        torch._foreach_add_(xs, 1.0)
        torch._foreach_mul_(xs, 2.0)
        assert LOOKS[way](xs[0], device_module) == 10.0
        torch._foreach_mul_(xs, 2.0)
    assert xs[0].tolist() == [8, 12]
    assert xs[1].tolist() == [16, 20]


@pytest.mark.parametrize("way", ["adam", "adamw", "sgd", "rmsprop", "adagrad", "asgd"])
def test_a_gradient_of_what_a_step_has_overwritten_is_an_error(device: str, way: str) -> None:
    parameter = nn.Parameter(torch.tensor([1.0, 2.0], device=device))
    parameter.grad = torch.ones_like(parameter)
    cls, options = WAYS[way]
    optimizer = cls([parameter], **options)
    loss = (parameter * parameter).sum()
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_inference_tensors_are_written_in_inference_mode_only(device: str) -> None:
    with torch.inference_mode():
        xs = [torch.ones(2, device=device)]
        with together():
            torch._foreach_add_(xs, 1.0)
    with together(), pytest.raises(RuntimeError, match="Inplace update to inference tensor"):
        torch._foreach_add_(xs, 1.0)
    assert xs[0].tolist() == [2, 2]


def test_writes_come_after_what_was_written_down(device: str) -> None:
    results = []
    for where in ("cpu", device):
        xs = [torch.full((4,), float(i + 1), device=where) for i in range(6)]
        with together():
            doubled = torch._foreach_mul(xs, 2.0)
            xs[0].zero_()
            torch._foreach_add_(xs, 1.0)
            xs[1].copy_(torch.arange(4.0))
            torch._foreach_add_(xs, 1.0)
            xs[2].fill_(7)
            torch._foreach_add_(xs, 1.0)
            xs[3].untyped_storage().resize_(0)
            xs[3].untyped_storage().resize_(16)
            xs[3].fill_(1)
            torch._foreach_add_(xs, 1.0)
            xs[4].data = torch.ones(4, device=where)
            torch._foreach_add_(xs, 1.0)
            xs[5].resize_(8)[4:] = 3
        results.append([x.cpu() for x in (*xs, *doubled)])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(other, one)


def test_streams_and_events(device: str, device_module: ModuleType) -> None:
    xs = [torch.ones(1000, device=device) for _ in range(4)]
    stream = device_module.Stream()
    with together():
        torch._foreach_add_(xs, 1.0)
        event = torch.Event(device=device)
        event.record()
        stream.wait_event(event)
        with stream:
            torch._foreach_mul_(xs, 3.0)
            stream.synchronize()
        assert xs[0].sum().item() == 6000
        torch._foreach_add_(xs, 1.0)
        device_module.synchronize()
    assert all(x.sum().item() == 7000 for x in xs)


def test_errors_leave_nothing_waiting(device: str) -> None:
    xs = [torch.ones(2, device=device) for _ in range(2)]
    wrong: list[Callable[[], object]] = [
        lambda: torch._foreach_add_(xs, xs[:1]),
        lambda: torch._foreach_add_(xs, [1.0]),
        lambda: torch._foreach_add_(xs, [torch.ones(3, device=device)] * 2),
        lambda: torch._foreach_mul_([xs[0].view(2)[0], xs[1][0]], xs),
        lambda: [][0],
    ]
    for number, function in enumerate(wrong):
        with pytest.raises((RuntimeError, IndexError)), together():
            torch._foreach_add_(xs, 1.0)
            function()
        assert [x.tolist() for x in xs] == [[2.0 + number] * 2] * 2
        torch._foreach_sqrt(xs)  # outside: not written down


def test_scopes_nest_and_belong_to_their_thread(device: str) -> None:
    xs = [torch.ones(2, device=device) for _ in range(2)]
    ys = [torch.ones(2, device=device) for _ in range(2)]

    def other() -> None:
        torch._foreach_add_(ys, 1.0)
        seen.append(ys[0].tolist())

    seen: list[list[float]] = []
    with together():
        torch._foreach_add_(xs, 1.0)
        with together():
            torch._foreach_mul_(xs, 3.0)
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        torch._foreach_add_(xs, 1.0)
    assert seen == [[2, 2]]
    assert xs[0].tolist() == [7, 7]


def test_a_dispatch_mode_sees_the_operators(device: str) -> None:
    class Names(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.seen: list[str] = []

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.seen.append(func._schema.name)
            return func(*args, **kwargs or {})

    parameters = make_parameters(device)
    optimizer = torch.optim.Adam(parameters, foreach=True)
    set_gradients(parameters, 0)
    with Names() as names:
        optimizer.step()
    assert "aten::_foreach_addcdiv_" in names.seen
    reference = make_parameters(device)
    optimizer = torch.optim.Adam(reference, foreach=True)
    set_gradients(reference, 0)
    optimizer.step()
    for one, other in zip(reference, parameters, strict=True):
        assert torch.equal(one, other)


def test_a_captured_step_is_replayed(device: str) -> None:
    parameters = [torch.ones(5, device=device, requires_grad=True) for _ in range(3)]
    set_gradients(parameters, 0)
    optimizer = torch.optim.Adam(parameters, lr=0.1, capturable=True)
    reference = copy.deepcopy(parameters)
    set_gradients(reference, 0)
    expected = torch.optim.Adam(reference, lr=0.1, capturable=True)
    optimizer.step()
    graph = torch.accelerator.Graph()
    with graph:
        optimizer.step()
    for _ in range(3):
        graph.replay()
    for _ in range(int(optimizer.state[parameters[0]]["step"].item())):
        expected.step()
    for one, other in zip(reference, parameters, strict=True):
        torch.testing.assert_close(other, one)


def test_gradient_scaling(device: str) -> None:
    results = []
    for where in ("cpu", device):
        parameters = make_parameters(where)
        optimizer = torch.optim.Adam(parameters, lr=1e-2, foreach=True)
        scaler = torch.amp.GradScaler(where, init_scale=8.0, growth_interval=2)
        scaler.scale(torch.ones((), device=where))
        for step in range(4):
            set_gradients(parameters, step)
            for parameter in parameters:
                assert parameter.grad is not None
                parameter.grad.mul_(float("inf") if step == 1 else scaler.get_scale())
            scaler.step(optimizer)
            scaler.update()
        results.append([p.detach().cpu() for p in parameters] + [torch.tensor(scaler.get_scale())])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("way", ["adam", "sgd, momentum"])
def test_the_step_size_may_be_a_tensor(device: str, way: str) -> None:
    kind, options = WAYS[way]
    results = []
    for where in ("cpu", device):
        parameters = make_parameters(where)
        rate = torch.tensor(1e-2, device=where)
        extra = {"capturable": where != "cpu"} if "adam" in way else {}
        optimizer = kind(parameters, **options | {"lr": rate}, **extra, foreach=where != "cpu")
        for step in range(STEPS):
            set_gradients(parameters, step)
            optimizer.step()
            rate.mul_(0.5)
        results.append([p.detach().cpu() for p in parameters])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-5, atol=1e-5)


def test_a_model_learns_the_same(device: str) -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 2))
    x, y = torch.randn(32, 8), torch.randint(2, (32,))
    losses = []
    for where in ("cpu", device):
        own = copy.deepcopy(model).to(where)
        optimizer = torch.optim.AdamW(own.parameters(), lr=1e-2)
        for _ in range(10):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(own(x.to(where)), y.to(where))
            loss.backward()
            torch.nn.utils.clip_grad_norm_(own.parameters(), 1.0)
            optimizer.step()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
