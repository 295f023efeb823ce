# SPDX-License-Identifier: Apache-2.0
"""Kernels of layers that are alike are printed once, and no two that differ are taken for one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pytest
import sympy
import torch
from torch import Tensor, nn

from outboard.compiler.adapter import wrapper
from outboard.compiler.loops.nest import Entry, LoopKernel, Region, Root, Store, Value, structure
from outboard.compiler.printing import EmittedKernel
from outboard.compiler.target import Target

FLOAT = torch.float32
T = TypeVar("T")
X, Y = sympy.symbols("x y", integer=True)


def make(
    names: tuple[str, str, str] = ("a", "b", "c"),
    operands: tuple[int, int] = (0, 1),
    op: str = "sub",
    dtype: torch.dtype = FLOAT,
    memory: torch.dtype = FLOAT,
    constant: bool | int | float = 0,
    index: sympy.Expr = X,
    target: int = 2,
    atomic: bool = False,
    length: sympy.Expr | None = None,
    hint: int = 64,
    divisor: int = 1,
    reduction: bool = False,
    masked: bool = False,
    message: str = "",
    indirect: bool = False,
    is_float: bool = False,
) -> LoopKernel:
    """``c[i] = a[i] - b[i] + constant``, with changes."""
    numel = sympy.Symbol("s0") if length is None else length
    root = Root("x", numel, reduction, hint)
    entry = Entry(X, root, sympy.Integer(divisor), numel, True, divisor, hint)
    mask = Value("t4", "constant", torch.bool, constant=True)
    loads = [
        Value(f"t{number}", "load", FLOAT, buffer=names[number], index=index, mask=mask if masked else None)
        for number in (0, 1)
    ]
    added = Value("t2", "constant", FLOAT, constant=constant)
    result = Value("t3", op, dtype, (loads[operands[0]], loads[operands[1]], added), message=message)
    region = Region(reduction, [mask, *loads, added, result, Store(names[target], X, result, atomic)])
    written, floats = {names[target]}, {Y} if is_float else set()
    buffers = {names[0]: FLOAT, names[1]: FLOAT, names[2]: memory}
    return LoopKernel([root], {X: entry}, [region], buffers, written, {Y: loads[0]} if indirect else {}, floats)


CHANGES: dict[str, LoopKernel] = {
    "order of operands": make(operands=(1, 0)),
    "one operand twice": make(operands=(0, 0)),
    "operator": make(op="add"),
    "dtype of computing": make(dtype=torch.float64),
    "dtype of memory": make(memory=torch.float16),
    "constant": make(constant=1),
    "type of a constant": make(constant=0.0),
    "sign of zero": make(constant=-0.0),
    "False, which is 0": make(constant=False),
    "index": make(index=X + 1),
    "buffer written": make(target=1),
    "atomic": make(atomic=True),
    "length": make(length=sympy.Integer(64)),
    "typical length": make(hint=65),
    "divisor": make(divisor=2),
    "reduction": make(reduction=True),
    "mask": make(masked=True),
    "message": make(message="wrong"),
    "index from memory": make(indirect=True),
    "float argument": make(is_float=True),
}


def test_names_of_buffers_do_not_count() -> None:
    assert structure(make()) == structure(make(names=("buf7", "arg3", "buf8")))
    assert hash(structure(make())) == hash(structure(make(names=("buf7", "arg3", "buf8"))))


@pytest.mark.parametrize("change", CHANGES)
def test_all_else_counts(change: str) -> None:
    assert structure(CHANGES[change]) != structure(make())


def test_no_two_changes_are_the_same() -> None:
    assert len({structure(kernel) for kernel in CHANGES.values()}) == len(CHANGES)


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch) -> list[LoopKernel]:
    """The kernels that are printed from here on."""
    kernels: list[LoopKernel] = []
    emit: Callable[[LoopKernel, Target], EmittedKernel] = wrapper.emit

    def note(kernel: LoopKernel, target: Target) -> EmittedKernel:
        kernels.append(kernel)
        return emit(kernel, target)

    monkeypatch.setattr(wrapper, "emit", note)
    return kernels


def first_call(module: Callable[[Tensor], T], x: Tensor) -> T:
    torch._dynamo.reset()
    with torch._inductor.config.patch(force_disable_caches=True):
        return torch.compile(module)(x)


def test_layers_that_are_alike_are_printed_once(device: str, printed: list[LoopKernel]) -> None:
    counts = []
    for depth in (3, 6):
        torch.manual_seed(0)
        layers = [each for _ in range(depth) for each in (nn.Linear(32, 32), nn.LayerNorm(32), nn.GELU())]
        model, x = nn.Sequential(*layers).to(device), torch.randn(8, 32, device=device)
        expected = model(x)
        printed.clear()  # those of eager operators
        found = first_call(model, x)
        counts.append(len(printed))
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert counts[0] == counts[1] > 0


def test_layers_that_are_almost_alike_are_told_apart(device: str) -> None:
    """Pointwise steps between products, which keep them from being fused; each differs from the others in little."""
    torch.manual_seed(0)
    weight, a, b = (torch.randn(16, 16, device=device) for _ in range(3))
    steps: list[Callable[[Tensor], Tensor]] = [
        lambda x: x - a,
        lambda x: a - x,
        lambda x: x - b,
        lambda x: x - a - x,
        lambda x: x - (x - a),
        lambda x: x - a.t(),
        lambda x: (x - a) * 2,
        lambda x: (x - a) * 2.5,
        lambda x: (x - a) * -2.5,
        lambda x: x - x.amax(1, keepdim=True),
        lambda x: x - x.amax(0, keepdim=True),
        lambda x: x - x.amin(1, keepdim=True),
        lambda x: x - x[0],
        lambda x: x - x[1],
        lambda x: x - x[:, :1],
    ]

    def run(x: Tensor) -> tuple[Tensor, ...]:
        products = []  # results, so that no product does a step in its store
        for step in steps:
            products.append(x @ weight)
            x = torch.tanh(step(torch.sin(products[-1])))
        return x, *products

    x = torch.randn(16, 16, device=device)
    torch.testing.assert_close(first_call(run, x), run(x), rtol=1e-4, atol=1e-4)
