# SPDX-License-Identifier: Apache-2.0
"""``OUTBOARD_LIBRARY=auto``: each shape class runs where it was measured to be faster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from outboard import settings
from outboard.compiler.adapter.lowering import lower_operator
from outboard.compiler.choice import libraries
from outboard.compiler.choice.libraries import Case, ShapeClass
from outboard.compiler.plans import plan as p
from outboard.compiler.target import Target, target_of
from tests.conftest import RunPython

#: Compiles a product of (m, k) and (k, n) and tells whether the host's library computes it.
OnHost = Callable[[int, int, int], bool]


class Judge:
    """Instead of a measurement: what it says, and how often it was asked."""

    def __init__(self) -> None:
        self.winner, self.asked = "host", 0

    def __call__(self, target: Target, case: Case) -> dict[str, float]:
        self.asked += 1
        return {"host": 2.0, "dialect": 2.0, self.winner: 1.0}

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
def on_host(device: str) -> OnHost:
    if not target_of(0).host_accessible:
        pytest.skip("the host cannot address this device's memory, so its library is no choice")

    def compiled(m: int, k: int, n: int) -> bool:
        operands = (torch.empty(m, k, device=device), torch.empty(k, n, device=device))
        plan = lower_operator(torch.ops.aten.mm.default, operands, {}, False, target_of(0)).plan
        calls = [step.name for step in plan.steps if isinstance(step, p.Call)]
        assert set(calls) <= {"aten::mm.out", "aten::mm"}
        return bool(calls)

    return compiled


@pytest.mark.parametrize("winner", ["host", "dialect"])
def test_the_faster_one_computes(judge: Judge, on_host: OnHost, winner: str) -> None:
    judge.winner = winner
    assert on_host(300, 300, 300) == (winner == "host")


def test_a_class_is_measured_once(judge: Judge, on_host: OnHost) -> None:
    """Sizes of as many binary digits are of one class."""
    for m in (256, 300, 511):
        assert on_host(m, 300, 300)
    assert judge.asked == 1
    judge.winner = "dialect"
    assert not on_host(512, 300, 300)
    assert on_host(300, 300, 300)
    assert judge.asked == 2


def test_other_processes_know(judge: Judge, on_host: OnHost) -> None:
    on_host(300, 300, 300)
    judge.forget()
    judge.winner = "dialect"
    assert on_host(300, 300, 300)
    assert judge.asked == 1


@pytest.mark.parametrize("damage", [b"", b"\xff\x00", b'{"version": 1, "winner": "nobody"}\n', b'{"version"'])
def test_damaged_entries_are_measured_again(judge: Judge, on_host: OnHost, tmp_path: Path, damage: bytes) -> None:
    on_host(300, 300, 300)
    (entry,) = (tmp_path / "libraries").iterdir()
    whole = entry.read_bytes()
    entry.write_bytes(damage)
    judge.forget()
    assert on_host(300, 300, 300)
    assert judge.asked == 2
    assert [path.read_bytes() for path in (tmp_path / "libraries").iterdir()] == [whole]


def test_tiny_products_are_our_own(judge: Judge, on_host: OnHost) -> None:
    assert not on_host(20, 30, 40)
    assert judge.asked == 0


def test_a_failing_measurement_is_told_and_not_kept(
    judge: Judge, on_host: OnHost, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    def fail(target: Target, case: Case) -> dict[str, float]:
        raise RuntimeError("no memory")

    monkeypatch.setattr(libraries, "measure", fail)
    assert not on_host(300, 300, 300)
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

    runs = {"dialect": run("dialect", 0.004), "host": run("host", 0.008)}
    found = libraries.race(runs, clock=lambda: now[0])
    assert found == pytest.approx({"dialect": 0.004, "host": 0.008})
    assert order == ["dialect", "host"] * 4  # one turn does not count, three are more than 30 ms

    order.clear()
    libraries.race({"dialect": run("dialect", 0.0)}, clock=lambda: now[0])
    assert len(order) == 1 + libraries.ROUNDS


@pytest.mark.parametrize(
    "shapes",
    [
        ShapeClass("mm", torch.float32, (1, 1), (1, 8, 8, 8)),
        ShapeClass("mm", torch.bfloat16, (0, 0), (1, 1, 10, 10)),
        ShapeClass("bmm", torch.float32, (1, 0), (4, 6, 6, 6)),
        ShapeClass("convolution", torch.float32, (2, 3, 3, 2, 2, 1, 1, 1, 1), (5, 5, 5, 5)),
        ShapeClass("convolution_backward", torch.float32, (1, 3, 1, 1, 1, 1, 1), (5, 5, 8)),
        ShapeClass("convolution_backward", torch.float32, (2, 1, 1, 1, 1, 0, 0, 1, 1, 0, 1), (6, 6, 4, 4)),
    ],
)
def test_typical_cases_can_be_measured(device: str, shapes: ShapeClass) -> None:
    found = libraries.measure(target_of(0), libraries.typical(shapes))
    assert set(found) == {"dialect", "host"}
    assert all(seconds > 0 for seconds in found.values())


@pytest.mark.parametrize("digits", [(1, 14, 14, 12), (12, 8, 8, 12), (1, 1, 20, 12)])
def test_typical_products_are_small(digits: tuple[int, ...]) -> None:
    a, b, _ = libraries.typical(ShapeClass("bmm", torch.float32, (1, 1), digits)).tensors
    batches, m, k = map(int, a.sizes)
    assert 2 * batches * m * k * int(b.sizes[2]) <= libraries.MOST


_EAGER = """
    import torch
    from outboard.compiler import libraries, statistics
    name = torch._C._get_privateuse1_backend_name()
    {patch}
    torch.manual_seed(0)
    x, weight, bias = torch.randn(2, 100, 300), torch.randn(200, 300), torch.randn(200)
    images, filters = torch.randn(2, 24, 30, 30), torch.randn(40, 24, 3, 3)

    def results(device, dtype):
        leaves = [t.to(device, dtype).requires_grad_() for t in (x, weight, bias, images, filters)]
        y = torch.nn.functional.linear(*leaves[:3])
        z = torch.nn.functional.conv2d(*leaves[3:], stride=2, padding=1)
        (y.square().mean() + z.square().mean()).backward()
        return [y, z, y.transpose(1, 2) @ y] + [leaf.grad for leaf in leaves]

    ours, exact = results(name, torch.float32), results("cpu", torch.float64)
    for found, expected in zip(ours, exact, strict=True):
        assert (found.detach().cpu() - expected).abs().max() <= 1e-5 * expected.abs().max()
    assert torch.get_device_module(name).fallbacks() == {{}}
    bits = sum(int(t.detach().cpu().view(torch.int32).sum(dtype=torch.int64)) for t in ours)
    print(statistics.snapshot()["measurements"], bits)
"""
_REPLACE = "libraries.measure = lambda target, case: {{'host': {host}, 'dialect': 1.0}}"


@pytest.mark.parametrize("host", [0.5, 2.0])
def test_results_are_right_whoever_computes(run_python: RunPython, tmp_path: Path, host: float) -> None:
    """And a second process computes the same bits without measuring."""
    caches = {"OUTBOARD_CACHE_DIR": str(tmp_path), "OUTBOARD_LIBRARY": "auto"}
    first = run_python(_EAGER.format(patch=_REPLACE.format(host=host)), **caches).split()
    second = run_python(_EAGER.format(patch="libraries.measure = None"), **caches).split()
    assert int(first[0]) > 0
    assert (int(second[0]), second[1]) == (0, first[1])


def test_measuring_is_no_part_of_a_capture(run_python: RunPython, tmp_path: Path) -> None:
    """Of a call whose class nobody knows yet, made while a graph is captured."""
    source = """
        import torch
        from outboard.compiler import libraries, statistics
        measure, name = libraries.measure, torch._C._get_privateuse1_backend_name()

        def judge(target, case):
            assert all(seconds > 0 for seconds in measure(target, case).values())
            return {"host": 2.0, "dialect": 1.0}

        libraries.measure = judge
        a, b = torch.randn(200, 300), torch.randn(300, 400)
        x, y = a.to(name), b.to(name)
        graph = torch.accelerator.Graph()
        graph.capture_begin()
        z = x @ y
        graph.capture_end()
        for _ in range(2):
            x.mul_(2)
            graph.replay()
        torch.testing.assert_close(z.cpu(), 4 * a @ b, rtol=1e-4, atol=1e-3)
        print(statistics.snapshot()["measurements"])
    """
    caches = {"OUTBOARD_CACHE_DIR": str(tmp_path), "OUTBOARD_LIBRARY": "auto"}
    assert int(run_python(source, **caches)) == 1
