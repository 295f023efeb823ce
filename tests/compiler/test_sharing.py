# SPDX-License-Identifier: Apache-2.0
"""Calls that differ in sizes, layouts or names of symbols only share device programs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType

import pytest
import torch

from outboard import _C
from outboard.compiler import target
from outboard.compiler.adapter.lowering import lower_operator

Tensor = torch.Tensor


@pytest.fixture
def sources(device: str) -> Iterator[Callable[..., set[str]]]:
    """Function that compiles calls, given as (operator, arguments), and returns the texts of all their programs."""

    def compile_all(*calls: tuple[str, tuple[object, ...]]) -> set[str]:
        found: set[str] = set()
        for op, arguments in calls:
            moved = [v.to(device) if isinstance(v, Tensor) else v for v in arguments]
            plan = lower_operator(_C.signed_call(op, tuple(moved), {}, False), target.target_of(0)).plan
            found |= {source for source, _ in plan.programs}
        return found

    yield compile_all


def test_pointwise_kernels_of_any_rank_are_one_program(sources: Callable[..., set[str]]) -> None:
    calls = [("aten::sqrt", (torch.rand(shape),)) for shape in ((5,), (5, 7), (5, 7, 3))]
    assert len(sources(*calls)) == 1


def test_broadcasts_of_any_rank_are_one_program(sources: Callable[..., set[str]]) -> None:
    calls = [("aten::add.Tensor", (torch.rand(*shape, 9), torch.rand(9))) for shape in ((4,), (4, 5), (4, 5, 6))]
    assert len(sources(*calls)) == 1


def test_sizes_of_the_same_kind_are_not_told_apart_by_name(sources: Callable[..., set[str]]) -> None:
    x = torch.rand(3, 4, 5, 6)
    calls = [("aten::mul.Scalar", (x.transpose(*dims), 2.0)) for dims in ((1, 2), (0, 1), (0, 2))]
    assert len(sources(*calls)) <= 2


@pytest.mark.skipif(not target.target_of(0).tuning.vectors, reason="tiles of SIMT devices know how operands lie")
def test_matrix_products_of_all_layouts_are_one_program(sources: Callable[..., set[str]]) -> None:
    a, b = torch.rand(20, 30), torch.rand(30, 40)
    left, right = (a, a.t().contiguous().t()), (b, b.t().contiguous().t())
    products = [("aten::mm", (x, y)) for x in left for y in right]
    batches = [("aten::bmm", (x.expand(3, 20, 30).contiguous(), y.expand(3, 30, 40))) for x in left for y in right]
    assert len(sources(*products, *batches)) == 1


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt", "gaps"])
@pytest.mark.parametrize("shape", [(5, 3, 7), (3, 300, 65), (4, 33, 40), (33, 300, 65), (64, 257, 96)])
def test_every_layout_gives_the_right_product(layout: str, shape: tuple[int, int, int], device: str) -> None:
    m, k, n = shape
    step = 2 if layout == "gaps" else 1
    a, b = torch.randn(m, k * step)[:, ::step], torch.randn(k, n * step)[:, ::step]
    if layout[0] == "t":
        a = a.t().contiguous().t()
    if layout[1] == "t":
        b = b.t().contiguous().t()
    x, y = torch.empty_strided(a.shape, a.stride()), torch.empty_strided(b.shape, b.stride())
    x.copy_(a), y.copy_(b)
    x, y = x.to(device), y.to(device)
    bias = torch.randn(n)
    torch.testing.assert_close((x @ y).cpu(), a @ b, rtol=1e-4, atol=1e-4)
    for add in (bias, bias[:1], torch.randn(m, 1), torch.randn(n, m).t()):
        expected = torch.addmm(add, a, b, beta=0.5, alpha=2)
        found = torch.addmm(add.to(device), x, y, beta=0.5, alpha=2)
        torch.testing.assert_close(found.cpu(), expected, rtol=1e-4, atol=1e-4)


def test_a_warm_process_imports_no_compiler(run_python: Callable[..., str], tmp_path: object) -> None:
    source = """
    import sys, torch
    name = torch._C._get_privateuse1_backend_name()
    before = set(sys.modules)
    x = torch.arange(12.0, device=name).reshape(3, 4)
    assert ((x @ x.t()).softmax(-1) + x.sum()).sum().item() > 0
    print([m for m in sys.modules if m not in before and m.split(".")[0] in ("sympy", "networkx")])
    print([m for m in sys.modules if m not in before and m.startswith(("torch._inductor", "torch._dynamo"))])
    """
    run_python(source, cold=True, OUTBOARD_CACHE_DIR=str(tmp_path))
    assert run_python(source, cold=True, OUTBOARD_CACHE_DIR=str(tmp_path)).splitlines() == ["[]", "[]"]


def test_a_warm_process_knows_what_runs_on_the_cpu(run_python: Callable[..., str], tmp_path: object) -> None:
    """Operators that no device has a kernel for: of all calls that are signed alike, whatever their sizes."""
    source = """
    import sys, torch
    module = torch.get_device_module(torch._C._get_privateuse1_backend_name())
    x = torch.eye({size}).to(torch._C._get_privateuse1_backend_name())
    assert torch.linalg.cholesky(4 * x)[0, 0].item() == 2
    assert torch.linalg.solve_triangular(x, x, upper=True).sum().item() == {size}
    print(sorted(module.fallbacks()), module.compile_stats()["on_cpu"])
    print([m for m in sys.modules if m.startswith(("sympy", "torch._inductor", "torch._dynamo"))])
    """
    cold, warm = (
        run_python(source.format(size=size), cold=True, OUTBOARD_CACHE_DIR=str(tmp_path)).splitlines()
        for size in (4, 7)
    )
    assert warm == [cold[0], "[]"] and cold[1] != "[]"


def test_convolutions_of_any_channels_and_taps_are_one_plan(device: str, device_module: ModuleType) -> None:
    torch.nn.functional.conv2d(torch.rand(2, 6, 9, 9, device=device), torch.rand(4, 6, 3, 3, device=device))
    before = device_module.compile_stats()["compiled"]
    for channels, filters, taps in ((8, 12, 3), (5, 7, 5), (16, 3, 2)):
        x, weight = torch.rand(2, channels, 11, 10), torch.rand(filters, channels, taps, taps)
        found = torch.nn.functional.conv2d(x.to(device), weight.to(device))
        torch.testing.assert_close(found.cpu(), torch.nn.functional.conv2d(x, weight), rtol=1e-4, atol=1e-4)
    assert device_module.compile_stats()["compiled"] == before


@pytest.mark.skipif(not target.target_of(0).tuning.vectors, reason="only CPUs have vectors to fill")
@pytest.mark.parametrize("first", [3, 1000])
def test_the_first_length_does_not_decide_how_others_run(first: int, device: str) -> None:
    """Short rows are reduced side by side, long ones each in vectors, whichever came first."""

    def plan(length: int) -> str:
        x = torch.rand(64, length).to(device)
        lowered = lower_operator(_C.signed_call("aten::_softmax", (x, 1, False), {}, False), target.target_of(0))
        assert lowered.plan.guards
        return "".join(source for source, _ in lowered.plan.programs)

    assert plan(3) != plan(1000)
    assert plan(1000) == plan(3000)
    torch.softmax(torch.rand(64, first).to(device), 1)
    before = torch.get_device_module(device).compile_stats()["plans"]
    for length in (3, 3000, 2, 1000):
        x = torch.rand(64, length)
        torch.testing.assert_close(torch.softmax(x.to(device), 1).cpu(), torch.softmax(x, 1))
    assert torch.get_device_module(device).compile_stats()["plans"] <= before + 2
