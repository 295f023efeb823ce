# SPDX-License-Identifier: Apache-2.0
"""Reductions to one or few results: cut into pieces where they are long, and right at every length and layout."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.nn import functional

Function = Callable[[torch.Tensor], torch.Tensor]

#: Around the vector width, around the least length that is cut into pieces, and one that fills no piece evenly.
SIZES = [0, 1, 15, 65536, 65537, 524_287, 524_288, 1_000_003]
FUNCTIONS: dict[str, Function] = {
    "sum": torch.sum,
    "mean": torch.mean,
    "amax": torch.amax,
    "amin": torch.amin,
    "any": torch.any,
    "all": torch.all,
    "prod": torch.prod,
    "norm": torch.linalg.vector_norm,
    "norm1": lambda x: torch.linalg.vector_norm(x, 1),
    "largest": lambda x: torch.linalg.vector_norm(x, float("inf")),
    "count_nonzero": torch.count_nonzero,
    "mse": lambda x: functional.mse_loss(x, x.flip(0)),
    "l1": lambda x: functional.l1_loss(x, x.flip(0)),
}
#: What the CPU refuses to do with integers, with half precision, or with no elements.
FLOATS_ONLY = {"mean", "norm", "norm1", "largest", "mse", "l1"}
NOT_OF_NOTHING = {"amax", "amin", "largest"}


def values(size: int, dtype: torch.dtype) -> torch.Tensor:
    """Numbers near one, so that products stay finite; half of them zero for bools, no zeros in the last element."""
    if dtype == torch.bool:
        return torch.rand(size) < 0.5
    if not dtype.is_floating_point:
        return torch.randint(-1000, 1000, (size,)).to(dtype)
    return (1 + torch.randn(size) * 1e-3).to(dtype)


def check(function: Function, x: torch.Tensor, device: str) -> None:
    """The device's result is the exact one, up to the rounding of long sums, and no fallback made it, unless it is of
    doubles that the device does not have."""
    module = torch.get_device_module(device)
    native = x.dtype != torch.float64 or module.get_device_properties(0).has_fp64
    expected = function(x.double() if x.dtype.is_floating_point else x)
    module.reset_fallbacks()
    result = function(x.to(device))
    assert not native or module.fallbacks() == {}
    assert result.dtype == function(x).dtype
    relative = 2e-3 if x.dtype == torch.float16 else 2e-5
    if function is torch.prod:
        relative *= 20  # A product of a million factors rounds a million times, however it is ordered.
    tolerance = {"rtol": relative, "atol": 1e-6} if result.dtype.is_floating_point else {"rtol": 0, "atol": 0}
    torch.testing.assert_close(result.cpu(), expected.to(result.dtype), equal_nan=True, **tolerance)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_sizes(name: str, device: str) -> None:
    for size in SIZES:
        if size or name not in NOT_OF_NOTHING:
            check(FUNCTIONS[name], values(size, torch.float32), device)


@pytest.mark.parametrize(
    "dtype, name",
    [
        (dtype, name)
        for dtype in (torch.float64, torch.float16, torch.int64, torch.bool)
        for name in FUNCTIONS
        if dtype.is_floating_point or name not in FLOATS_ONLY
    ],
    ids=str,
)
def test_dtypes(dtype: torch.dtype, name: str, device: str) -> None:
    for size in (15, 65537, 600_001):
        check(FUNCTIONS[name], values(size, dtype), device)


@pytest.mark.parametrize("name", ["sum", "amax", "any", "norm", "mse"])
def test_layouts(name: str, device: str) -> None:
    function, x = FUNCTIONS[name], values(1_200_000, torch.float32)
    check(function, x[::2], device)
    check(function, x.view(1200, 1000).t(), device)
    check(function, x.view(1200, 1000)[:, ::3], device)
    check(function, x.view(120_000, 10)[:, :7], device)
    check(function, x.view(10, 120_000)[1:8].t()[3:], device)
    check(function, x[:200_000].expand(3, 200_000), device)


@pytest.mark.parametrize("place", [0, 400_000, 599_999])
def test_one_element_decides(place: int, device: str) -> None:
    for value in (float("nan"), float("inf")):
        x = torch.zeros(600_000)
        x[place] = value
        for name in ("sum", "amax", "norm", "any"):
            check(FUNCTIONS[name], x, device)
    found = torch.zeros(600_000, dtype=torch.bool)
    found[place] = True
    check(torch.any, found, device)
    check(torch.all, ~found, device)


def test_few_results(device: str) -> None:
    x = values(600_000, torch.float32)
    for shape, dim in [((2, 300_000), 1), ((300_000, 2), 0), ((3, 100_000, 2), 1), ((8, 75_000), 1), ((9, 66_000), 1)]:
        torch._dynamo.reset()
        count = shape[0] * shape[1] * (shape[2] if len(shape) == 3 else 1)
        compiled = torch.compile(lambda x, dim=dim: x.mean(dim), dynamic=False)
        result = compiled(x[:count].view(shape).to(device)).cpu()
        torch.testing.assert_close(result, x[:count].view(shape).double().mean(dim).float(), rtol=2e-5, atol=0)


def test_each_run_gives_the_same_bits(device: str) -> None:
    x = torch.randn(1_000_003, device=device)
    for function in (torch.sum, torch.linalg.vector_norm):
        first = function(x).cpu()
        assert all(torch.equal(function(x).cpu(), first) for _ in range(5))


def test_all_lengths_share_a_plan(device: str) -> None:
    module = torch.get_device_module(device)
    for function in (torch.sum, torch.amax, torch.linalg.vector_norm):
        function(torch.ones(7, device=device))
        known = module.compile_stats()["plans"]
        for size in (15, 300, 65536, 200_000, 1_000_003):
            assert float(function(torch.ones(size, device=device)).cpu()) == float(function(torch.ones(size)))
        assert module.compile_stats()["plans"] == known


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_compiled_loss_and_its_gradient(dynamic: bool, device: str) -> None:
    torch._dynamo.reset()

    def loss(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        difference = (x.sigmoid() - y).square()
        return difference.mean().sqrt() + (x - y).abs().amax(), difference * 2

    compiled = torch.compile(loss, dynamic=dynamic, fullgraph=True)
    for size in (300, 1000):
        host, target = torch.randn(size, 400, requires_grad=True), torch.rand(size, 400)
        ours = host.detach().to(device).requires_grad_()
        expected, _ = loss(host, target)
        result, doubled = compiled(ours, target.to(device))
        expected.backward()
        result.backward()
        torch.testing.assert_close(result.cpu(), expected, rtol=1e-5, atol=0)
        torch.testing.assert_close(doubled.cpu(), loss(host, target)[1], rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(ours.grad.cpu(), host.grad, rtol=1e-4, atol=1e-7)


def test_a_wrong_index_in_a_late_piece_is_reported(device: str) -> None:
    torch._dynamo.reset()
    table, index = torch.randn(50, device=device), torch.zeros(200_000, dtype=torch.int64)
    compiled = torch.compile(lambda table, index: table[index].sum(), fullgraph=True)
    expected = table.cpu()[index].sum()
    torch.testing.assert_close(compiled(table, index.to(device)).cpu(), expected, rtol=1e-5, atol=0)
    index[-1] = 50
    with pytest.raises(IndexError):
        compiled(table, index.to(device)).cpu()


@pytest.mark.parametrize("call, sign", [("x.sum()", "sum_0_combine"), ("x + x", "vload")])
def test_the_first_length_does_not_decide(
    call: str, sign: str, device: str, run_python: Callable[..., str], tmp_path: Path
) -> None:
    """One plan serves all lengths, so a tiny first call must leave one with vectors and pieces."""
    if sign == "vload" and torch.get_device_module(device).get_device_properties(0).type != "cpu":
        pytest.skip("only kernels for processors have vectors")
    source = f"import torch; x = torch.zeros(5, device={device!r}); {call}"
    log = run_python(source, check=False, OUTBOARD_LOG="kernels", OUTBOARD_CACHE_DIR=str(tmp_path))
    assert sign in log.split("// ---- aten::")[-1]


@pytest.mark.parametrize("order", [3.5, 2.0, 0.0, -1.5])
@pytest.mark.parametrize("dim", [0, -1, None])
def test_the_norm_of_one_number(device: str, order: float, dim: int | None) -> None:
    for x in (torch.tensor(-2.5), torch.tensor([-2.5])):
        expected = torch.linalg.vector_norm(x, order, dim, keepdim=True)
        torch.testing.assert_close(torch.linalg.vector_norm(x.to(device), order, dim, keepdim=True).cpu(), expected)
