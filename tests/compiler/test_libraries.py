# SPDX-License-Identifier: Apache-2.0
"""``OUTBOARD_LIBRARY=auto``: each shape class runs where it was measured to be faster."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from outboard import _C, settings
from outboard.compiler.adapter.lowering import lower_operator
from outboard.compiler.choice import attention, functions, libraries
from outboard.compiler.choice.libraries import Case, ShapeClass
from outboard.compiler.plans import plan as p
from outboard.compiler.plans.strided import span
from outboard.compiler.target import Target, target_of

#: Compiles a product of (m, k) and (k, n) and tells whether the driver's library computes it.
OnLibrary = Callable[[int, int, int], bool]


class Judge:
    """Instead of a measurement: what it says, and how often it was asked."""

    def __init__(self) -> None:
        self.winner, self.asked = "driver", 0
        self.cases: list[Case] = []

    def __call__(self, target: Target, case: Case) -> dict[str, float]:
        self.asked += 1
        self.cases.append(case)
        return {"driver": 2.0, "dialect": 2.0, self.winner: 1.0}

    def forget(self) -> None:
        """What a new process does not know."""
        libraries._decide.cache_clear()


@pytest.fixture
def judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Judge]:
    made = Judge()
    monkeypatch.setenv("OUTBOARD_LIBRARY", "auto")
    monkeypatch.setattr(settings, "_cache_directory", tmp_path)
    monkeypatch.setattr(libraries, "measure", made)
    made.forget()
    yield made
    made.forget()


@pytest.fixture
def on_library(device: str, monkeypatch: pytest.MonkeyPatch) -> OnLibrary:
    """On a device whose driver is said to have functions for all."""
    monkeypatch.setattr(functions, "_finds", lambda target, operator, operands: True)
    target = dataclasses.replace(target_of(0), library="made up")

    def compiled(m: int, k: int, n: int) -> bool:
        operands = (torch.empty(m, k, device=device), torch.empty(k, n, device=device))
        plan = lower_operator(_C.signed_call("aten::mm", tuple(operands), {}, False), target).plan
        calls = [step.name for step in plan.steps if isinstance(step, p.Call)]
        assert set(calls) <= {"driver::aten::mm"}
        return bool(calls)

    return compiled


@pytest.mark.parametrize("winner", ["driver", "dialect"])
def test_the_faster_one_computes(judge: Judge, on_library: OnLibrary, winner: str) -> None:
    judge.winner = winner
    assert on_library(300, 300, 300) == (winner == "driver")


def test_a_class_is_measured_once(judge: Judge, on_library: OnLibrary) -> None:
    """Sizes of as many binary digits are of one class."""
    for m in (256, 300, 511):
        assert on_library(m, 300, 300)
    assert judge.asked == 1
    judge.winner = "dialect"
    assert not on_library(512, 300, 300)
    assert on_library(300, 300, 300)
    assert judge.asked == 2


def test_other_processes_know(judge: Judge, on_library: OnLibrary) -> None:
    on_library(300, 300, 300)
    judge.forget()
    judge.winner = "dialect"
    assert on_library(300, 300, 300)
    assert judge.asked == 1


@pytest.mark.parametrize("damage", [b"", b"\xff\x00", b'{"version": 1, "winner": "nobody"}\n', b'{"version"'])
def test_damaged_entries_are_measured_again(judge: Judge, on_library: OnLibrary, tmp_path: Path, damage: bytes) -> None:
    on_library(300, 300, 300)
    (entry,) = (tmp_path / "libraries").iterdir()
    whole = entry.read_bytes()
    entry.write_bytes(damage)
    judge.forget()
    assert on_library(300, 300, 300)
    assert judge.asked == 2
    assert [path.read_bytes() for path in (tmp_path / "libraries").iterdir()] == [whole]


def test_tiny_products_are_our_own(judge: Judge, on_library: OnLibrary) -> None:
    assert not on_library(20, 30, 40)
    assert judge.asked == 0


def test_a_failing_measurement_is_told_and_not_kept(
    judge: Judge,
    on_library: OnLibrary,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    def fail(target: Target, case: Case) -> dict[str, float]:
        raise RuntimeError("no memory")

    monkeypatch.setattr(libraries, "measure", fail)
    assert not on_library(300, 300, 300)
    assert "nothing could be measured" in caplog.text
    assert not (tmp_path / "libraries").exists()


def test_rounds_end_with_patience() -> None:
    """By a clock that only runs move."""
    now, order = [0.0], []

    def run(name: str, seconds: float) -> Callable[[], None]:
        def call() -> None:
            order.append(name)
            now[0] += seconds

        return call

    runs = {"dialect": run("dialect", 0.004), "driver": run("driver", 0.008)}
    found = libraries.race(runs, clock=lambda: now[0])
    assert found == pytest.approx({"dialect": 0.004, "driver": 0.008})
    assert order == ["dialect", "driver"] * 4  # one turn does not count, three are more than 30 ms

    order.clear()
    libraries.race({"dialect": run("dialect", 0.0)}, clock=lambda: now[0])
    assert len(order) == 1 + libraries.ROUNDS


@pytest.mark.parametrize("digits", [(1, 14, 14, 12), (12, 8, 8, 12), (1, 1, 20, 12)])
def test_typical_products_are_small(digits: tuple[int, ...]) -> None:
    a, b, _ = libraries.typical(ShapeClass("bmm", torch.float32, (1, 1), digits)).tensors
    batches, m, k = map(int, a.sizes)
    assert 2 * batches * m * k * int(b.sizes[2]) <= libraries.MOST


def test_typical_products_are_cut_from_whole_ones() -> None:
    """Rows of 12,288 elements, of which 3072 count, lie in few sets of a cache, as those of models do."""
    a, b, _ = libraries.typical(ShapeClass("mm", torch.float32, (0, 0), (1, 10, 14, 10))).tensors
    assert (a.sizes, a.strides) == ((768, 768), (1, 768))
    assert (b.sizes, b.strides) == ((768, 3072), (12288, 1))
    vocabulary = libraries.typical(ShapeClass("mm", torch.float32, (1, 0), (1, 10, 18, 10))).tensors[1]
    assert span(vocabulary.sizes, vocabulary.strides) <= 1 << 22


#: Of the convolution that a class is found by: weight, stride, padding, dilation, transposed, output_padding, groups.
CONVOLUTIONS = [
    ((64, 1, 3, 3), (2, 2), (1, 1), (1, 1), False, (0, 0), 64),
    ((48, 32, 3, 2), (1, 2), (4, 0), (3, 1), False, (0, 0), 1),
    ((32, 16, 1, 3), (1, 3), (7, 4), (1, 2), True, (0, 2), 4),
]


def _finds_one_gradient(target: Target, operator: str, operands: tuple[Any, ...]) -> bool:
    """A library that makes one gradient in a call, and none of a bias."""
    return operator == "aten::convolution" or operands[10] in ((1, 0, 0), (0, 1, 0))


@pytest.mark.parametrize("numbers", CONVOLUTIONS)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
def test_convolutions_and_their_gradients(
    judge: Judge, device: str, numbers: tuple[Any, ...], layout: torch.memory_format, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each gradient is measured alone, and that of a bias is ours. What is measured are calls of the same numbers, on
    images that lie alike, in sizes to which PyTorch's shape functions agree."""
    images = libraries.IMAGES_SIMT if layout is torch.channels_last else libraries.IMAGES
    monkeypatch.setattr(functions, "_finds", _finds_one_gradient)
    monkeypatch.setattr(libraries, "_budget", lambda target: (libraries.MOST, images))
    target = dataclasses.replace(target_of(0), library="made up")
    weight, stride, padding, dilation, transposed, more, groups = numbers
    rest = (list(stride), list(padding), list(dilation), transposed, list(more), groups)
    w = torch.empty(weight, device=device)
    x = torch.empty(2, weight[0] if transposed else weight[1] * groups, 40, 44, device=device).to(memory_format=layout)
    y = torch.ops.aten.convolution(x, w, None, *rest)

    def on_library(name: str, *arguments: Any) -> int:
        plan = lower_operator(_C.signed_call(name, arguments, {}, False), target).plan
        return [step.name for step in plan.steps if isinstance(step, p.Call)].count(f"driver::{name}")

    assert on_library("aten::convolution", x, w, None, *rest) == 1
    assert on_library("aten::convolution_backward", y, x, w, [y.shape[1]], *rest, [True] * 3) == 2
    assert judge.asked == 3
    for case in judge.cases:
        made = [tuple(map(int, tensor.sizes)) for tensor in case.tensors]
        source, kernel, result = (torch.empty(sizes, device="meta") for sizes in made[:3])
        assert torch.ops.aten.convolution(source, kernel, None, *rest).shape == result.shape
        assert kernel.shape[2:] == weight[2:] and 1 <= source.shape[0] <= images
        assert all((tensor.strides[1] == 1) == (layout is torch.channels_last) for tensor in case.tensors[::2])


@pytest.fixture
def goes_to_library(device: str, judge: Judge, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., bool]]:
    """Whether attention goes to the library of a device whose driver is said to have it; of (queries, keys)."""
    monkeypatch.setattr(functions, "_finds", lambda target, operator, operands: True)
    target = dataclasses.replace(target_of(0), library="made up")
    monkeypatch.setattr(attention, "target_of", lambda index: target)
    monkeypatch.setattr(attention, "_taken", set())
    attention._decide.cache_clear()

    def asked(queries: int, keys: int = 512, heads: int = 4) -> bool:
        query, key = (torch.empty(1, length, heads, 64, device=device).transpose(1, 2) for length in (queries, keys))
        return attention.goes_to_library(query, key, key, False, None)

    yield asked
    attention._decide.cache_clear()


@pytest.mark.parametrize("winner", ["driver", "dialect"])
def test_attention_goes_to_the_faster_one(judge: Judge, goes_to_library: Callable[..., bool], winner: str) -> None:
    judge.winner = winner
    assert goes_to_library(300) == goes_to_library(400) == (winner == "driver")
    assert judge.asked == 1
    goes_to_library(300, heads=8)
    assert judge.asked == 2


def test_few_queries_are_our_own(judge: Judge, goes_to_library: Callable[..., bool]) -> None:
    """Whatever the library could do, and without a measurement."""
    assert not goes_to_library(31, 4096)
    assert not goes_to_library(32, 32, heads=1)  # tiny
    assert judge.asked == 0
    assert goes_to_library(32, 4096)


def test_ever_other_sizes_are_our_own(judge: Judge, goes_to_library: Callable[..., bool]) -> None:
    assert all(goes_to_library(300, keys) for keys in range(512, 512 + attention.MOST_SIZES))
    assert not goes_to_library(300, 1000)
    assert goes_to_library(300, 512)


def test_typical_attention_is_small() -> None:
    shapes = ShapeClass("attention", torch.float16, (16, 4, 128, 1), (6, 14, 12))
    query, key, value, out, logarithms = libraries.typical(shapes).tensors
    batches, heads, queries, width = map(int, query.sizes)
    assert (heads, width, list(map(int, key.sizes))[1], key.sizes) == (16, 128, 4, value.sizes)
    assert (out.sizes, logarithms.sizes) == (query.sizes, query.sizes[:3])
    assert 4 * batches * heads * queries * int(key.sizes[2]) * width <= libraries.MOST
