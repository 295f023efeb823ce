# SPDX-License-Identifier: Apache-2.0
"""State of PyTorch's beside the arguments of a call: what a plan is made under is no other call's (docs/state.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.conftest import RunPython

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
    for dtype in ("float64", "float32", "float64"):
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
