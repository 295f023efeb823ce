# SPDX-License-Identifier: Apache-2.0
"""State of PyTorch's beside the arguments of a call: what a plan is made under is no other call's (docs/state.md)."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.attention
from torch import Tensor
from torch.overrides import TorchFunctionMode

import outboard
from outboard.compiler.plans import cache
from tests.conftest import RunPython
from tools import snapshot

ROOT = Path(__file__).resolve().parents[2]

DTYPES = (torch.float64, torch.bfloat16, torch.float16, torch.float32)

#: Calls whose results have the default dtype, by what computes it: promotion, a factory, or a decomposition.
CALLS: dict[str, Callable[[str], Tensor]] = {
    "quotient": lambda device: torch.arange(8, device=device) / 8,
    "quotient_by_tensor": lambda device: torch.arange(8, device=device) / torch.full((8,), 3, device=device),
    "times_number": lambda device: torch.ones(7, dtype=torch.int32, device=device) * 1.5,
    "function": lambda device: torch.arange(5, device=device).sigmoid(),
    "arange": lambda device: torch.arange(0.0, 4.0, device=device),
    "linspace": lambda device: torch.linspace(0, 3, 7, device=device),
    "full": lambda device: torch.full((3,), 1.5, device=device),
    "where": lambda device: torch.where(torch.arange(4, device=device) > 1, 1.5, 0.25),
    "eye": lambda device: torch.eye(3, device=device),
    "of_bools": lambda device: (torch.arange(4, device=device) > 1) * 0.5,
}


@pytest.fixture
def default_dtype() -> Iterator[None]:
    """Has the default dtype be as before when the test ends."""
    before = torch.get_default_dtype()
    yield
    torch.set_default_dtype(before)


@pytest.mark.usefixtures("default_dtype")
@pytest.mark.parametrize("name", CALLS)
def test_results_follow_the_default_dtype(device: str, name: str) -> None:
    """There and back, so that no plan serves under another default than its own."""
    for dtype in (*DTYPES, *DTYPES):
        torch.set_default_dtype(dtype)
        result, expected = CALLS[name](device).cpu(), CALLS[name]("cpu")
        assert result.dtype == expected.dtype
        torch.testing.assert_close(result, expected)


@pytest.mark.usefixtures("default_dtype")
def test_compiled_results_follow_the_default_dtype(device: str) -> None:
    torch._dynamo.reset()

    @torch.compile
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        return x / 8, torch.ones(3, device=x.device) + x.sum()

    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float32):
        torch.set_default_dtype(dtype)
        x = torch.arange(8)
        for result, expected in zip(function(x.to(device)), (x / 8, torch.ones(3) + x.sum()), strict=True):
            assert result.dtype == expected.dtype == dtype
            torch.testing.assert_close(result.cpu(), expected)


PROCESS = """
import sys
import torch

device = torch._C._get_privateuse1_backend_name()
torch.set_default_dtype(getattr(torch, sys.argv[1]))
compiled = torch.compile(lambda x: (x / 8, x * 0.5))
x = torch.arange(8, device=device)
print(*(each.dtype for each in (x / 8, x * 1.5, torch.linspace(0, 1, 5, device=device), *compiled(x))))
"""


def test_processes_share_a_cache_and_no_default(run_python: RunPython, tmp_path: Path) -> None:
    """A process with another default fills the caches of plans, of graphs and of traces; others read them."""
    folders = {"OUTBOARD_CACHE_DIR": str(tmp_path / "ours"), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor")}
    for dtype in ("float64", "float32"):
        program = PROCESS.replace("sys.argv[1]", repr(dtype))
        assert run_python(program, **folders).split() == [f"torch.{dtype}"] * 5


@pytest.fixture
def deterministic() -> Iterator[Callable[[bool], None]]:
    """Turns deterministic algorithms on and off; off when the test ends."""
    yield torch.use_deterministic_algorithms
    torch.use_deterministic_algorithms(False)


ADDITIONS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "index_put": lambda target, index, values: target.index_put((index,), values, accumulate=True),
    "scatter_add": lambda target, index, values: target.scatter_add(0, index, values),
    "index_add": lambda target, index, values: target.index_add(0, index, values),
    "scatter_last": lambda target, index, values: target.scatter(0, index, values),
    "index_put_last": lambda target, index, values: target.index_put((index,), values),
}


@pytest.mark.parametrize("name", ADDITIONS)
def test_deterministic_algorithms_are_no_others(device: str, deterministic: Callable[[bool], None], name: str) -> None:
    """The plan of the fast algorithm, whose sums depend on who comes first, is there already."""
    generator = torch.Generator().manual_seed(0)
    index = torch.randint(0, 5, (100_000,), generator=generator)
    values = torch.randn(100_000, generator=generator) * torch.logspace(-3, 3, 100_000)
    given = [each.to(device) for each in (torch.zeros(5), index, values)]
    operation = ADDITIONS[name]
    operation(*given)
    deterministic(True)
    first = operation(*given).cpu()
    assert all(torch.equal(operation(*given).cpu(), first) for _ in range(8))
    if "last" in name:  # the last one wins, as it does on the CPU
        assert torch.equal(first, operation(torch.zeros(5), index, values))


class Sums(torch.nn.Module):
    """Adds values at places, many of them at the same."""

    def forward(self, index: Tensor, values: Tensor) -> Tensor:
        return torch.zeros(5, device=values.device).index_add(0, index, values)


def test_captured_calls_are_told_apart(device: str, deterministic: Callable[[bool], None]) -> None:
    """What was captured before deterministic algorithms were asked for is not replayed then."""
    generator = torch.Generator().manual_seed(0)
    index = torch.randint(0, 5, (100_000,), generator=generator).to(device)
    values = (torch.randn(100_000, generator=generator) * torch.logspace(-3, 3, 100_000)).to(device)
    graphed = outboard.graphed(Sums())
    with torch.no_grad():
        for _ in range(3):
            graphed(index, values)
        deterministic(True)
        first = graphed(index, values).cpu()
        assert all(torch.equal(graphed(index, values).cpu(), first) for _ in range(8))


FLUSHING = """
import torch

torch.set_flush_denormal(True)  # before the device's threads begin
device = torch._C._get_privateuse1_backend_name()
x = torch.full((64, 64), 2.0**-70, device=device)
results = (x @ x, x * x)
torch.set_flush_denormal(False)
print(*(bool((result.cpu() != 0).all()) for result in results))
"""


def test_denormal_numbers_are_the_device_s(run_python: RunPython) -> None:
    assert run_python(FLUSHING).split() == ["True"] * 2


# ---- state of no effect on what is compiled


class Watching(TorchFunctionMode):
    """Notes what is called while it is active."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(getattr(function, "__name__", str(function)))
        return function(*args, **(kwargs or {}))


@contextlib.contextmanager
def switched(switch: Callable[[Any], object], on: object, off: object) -> Iterator[None]:
    """Inside, a switch of PyTorch's is as said."""
    switch(on)
    try:
        yield
    finally:
        switch(off)


def _flag(owner: Any, name: str, value: object) -> Callable[[str], contextlib.AbstractContextManager[None]]:
    return lambda device: switched(lambda to: setattr(owner, name, to), value, getattr(owner, name))


STATES: dict[str, Callable[[str], contextlib.AbstractContextManager[Any]]] = {
    "autocast": lambda device: torch.autocast(device, dtype=torch.bfloat16),
    "inference": lambda device: torch.inference_mode(),
    "gradients": lambda device: torch.enable_grad(),
    "products": lambda device: switched(torch.set_float32_matmul_precision, "medium", "highest"),
    "precision": _flag(torch.backends.mkldnn.matmul, "fp32_precision", "bf16"),
    "denormals": lambda device: switched(torch.set_flush_denormal, True, False),
    "threads": lambda device: switched(torch.set_num_threads, 1, torch.get_num_threads()),
    "attention": lambda device: torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH),
    "function_mode": lambda device: Watching(),
    "default_device": lambda device: torch.device("meta"),
    "anomalies": lambda device: torch.autograd.set_detect_anomaly(True),
    "benchmark": lambda device: torch.backends.cudnn.flags(enabled=True, benchmark=True),
    "mkldnn": lambda device: torch.backends.mkldnn.flags(enabled=False),
    "reduced_sums": _flag(torch.backends.cuda.matmul, "allow_bf16_reduced_precision_reduction", False),
    "warnings": lambda device: switched(torch.set_warn_always, True, False),
}


@torch.jit.script
def _operators(x: Tensor) -> list[Tensor]:
    """In TorchScript operators are called while modes of Python are active."""
    return [torch.sigmoid(x), x.var(1)]


@pytest.mark.parametrize("name", STATES)
def test_nothing_else_decides_what_is_compiled(device: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each state has a layout to itself, so that the operators are compiled under it."""
    monkeypatch.setattr(cache, "load", lambda signature: (False, []))
    monkeypatch.setattr(cache, "store", lambda signature, bake, plan: None)
    order = list(itertools.permutations(range(4)))[list(STATES).index(name) + 1]
    x = torch.linspace(-3, 3, 2 * 3 * 4 * 10).view(2, 3, 4, 10)[..., ::2].permute(order)
    given = _like(x, device)
    expected = _operators(x)
    compiled = torch.get_device_module(device).compile_stats()["compiled"]
    with STATES[name](device) as active:
        before = snapshot.snapshot()
        watched = active.seen if isinstance(active, Watching) else []
        watched.clear()
        results = _operators(given)
        assert watched == []
        after = snapshot.snapshot()
    assert snapshot.differences(before, after) == {}
    assert torch.get_device_module(device).compile_stats()["compiled"] > compiled
    for result, wanted in zip(results, expected, strict=True):
        assert result.dtype == wanted.dtype
        torch.testing.assert_close(result.cpu(), wanted)


def _like(x: Tensor, device: str) -> Tensor:
    """The tensor on the device, with gaps and order of dimensions."""
    memory = torch.zeros(x.untyped_storage().nbytes() // x.element_size(), device=device)
    return memory.as_strided(x.shape, x.stride()).copy_(x)


def test_uninitialised_memory_is_filled_where_that_is_asked_for(
    device: str, deterministic: Callable[[bool], None]
) -> None:
    torch.empty(5, device=device)
    deterministic(True)
    assert torch.empty(5, device=device).isnan().all()
    assert torch.empty_like(torch.ones(5, device=device)).isnan().all()


def test_products_within_a_pseudoinverse_are_cast(device: str) -> None:
    """PyTorch takes it apart below autocast."""
    x = torch.eye(3, device=device)
    with torch.autocast(device, torch.bfloat16):
        assert torch.linalg.pinv(x).dtype == torch.bfloat16
    torch.testing.assert_close(torch.linalg.pinv(x + 1).cpu(), torch.linalg.pinv(x.cpu() + 1))


LISTS: dict[str, Callable[[list[Tensor]], Any]] = {
    "pow": lambda xs: torch._foreach_pow(xs, 2.5),
    "pow of a number": lambda xs: torch._foreach_pow(1.5, xs),
    "exp": torch._foreach_exp,
    "norm": torch._foreach_norm,
    "addcdiv": lambda xs: torch._foreach_addcdiv(xs, xs, xs),
}


@pytest.mark.parametrize("name", LISTS)
def test_lists_are_not_cast(device: str, name: str) -> None:
    """Kernels for lists compute in the lists' dtype, on the CPU and on CUDA, whatever autocast casts of single ones."""
    xs = [torch.tensor([1.5, 2.25, 3.125], dtype=torch.float16)]
    expected = LISTS[name](xs)
    with torch.autocast(device, torch.bfloat16):
        results = LISTS[name]([x.to(device) for x in xs])
    torch.testing.assert_close([x.cpu() for x in results], [*expected])


def test_lazy_bits_are_resolved_before_the_kernel(device: str) -> None:
    x = torch.tensor([1 + 2j, 3 - 4j])
    given = x.to(device)
    for function in (lambda x: x.conj() * x, lambda x: x.conj().imag.exp(), lambda x: x.imag.neg()):
        torch.testing.assert_close(function(given).cpu(), function(x))


SWITCHES: dict[str, Callable[[], contextlib.AbstractContextManager[Any]]] = {
    "deterministic": lambda: switched(torch.use_deterministic_algorithms, True, False),
    "fill": lambda: switched(
        lambda value: setattr(torch.utils.deterministic, "fill_uninitialized_memory", value), False, True
    ),
    "attention": lambda: torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH),
    "dtype": lambda: switched(torch.set_default_dtype, torch.float64, torch.float32),
    "products": lambda: switched(torch.set_float32_matmul_precision, "high", "highest"),
    "autocast": lambda: torch.autocast("cpu"),
}


@pytest.mark.parametrize("name", SWITCHES)
def test_graphs_on_disk_are_told_apart(device: str, name: str) -> None:
    """Both PyTorch's caches of graphs and kept traces are looked up by this."""
    from outboard.compiler.adapter import ambient, registration

    torch.set_float32_matmul_precision("highest")  # the default, which is not said before
    state, key = ambient.state(), registration._Fingerprint().uuid()
    with SWITCHES[name]():
        assert ambient.state() != state
        assert registration._Fingerprint().uuid() != key
    assert (ambient.state(), registration._Fingerprint().uuid()) == (state, key)


# ---- state that is the program's

DISTURBANCES = """
import sys
sys.path.insert(0, ROOT)
import numpy
import torch
import torch.nn.functional as F
import outboard
from tools.snapshot import disturbances

device = torch._C._get_privateuse1_backend_name()
x = torch.linspace(-1, 1, 48, device=device).view(2, 2, 3, 4)
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5), torch.nn.GELU()).to(device)
compiled = torch.compile(lambda x: model(x).softmax(-1).sum())
graphed = outboard.graphed(torch.nn.Linear(4, 4).to(device))
lstm = torch.nn.LSTM(4, 4, 2, dropout=0.5).to(device)

def replayed():
    with torch.no_grad():
        for _ in range(3):
            graphed(x)

CALLS = {
    "dropout": lambda: F.dropout(x, 0.5),
    "attention": lambda: F.scaled_dot_product_attention(x, x, x, dropout_p=0.5),
    "recurrent": lambda: lstm(x[0]),
    "like": lambda: torch.randn_like(x),
    "order": lambda: torch.randperm(9, device=device),
    "product": lambda: x @ x.mT,
    "graph": lambda: compiled(x).backward(),
    "captured": replayed,
    "exported": lambda: outboard.export(torch.nn.Linear(4, 4).to(device).eval(), x, path=PATH),
}
for name, call in CALLS.items():
    for what, change in disturbances(call).items():
        print(name, what, change)
"""


def test_first_calls_disturb_nothing(run_python: RunPython, tmp_path: Path) -> None:
    """Operators, graphs, captures and exports, compiled in a process with an empty cache."""
    program = DISTURBANCES.replace("ROOT", repr(str(ROOT))).replace("PATH", repr(str(tmp_path / "model")))
    folders = {"OUTBOARD_CACHE_DIR": str(tmp_path / "ours"), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor")}
    assert run_python(program, **folders) == ""
