# SPDX-License-Identifier: Apache-2.0
"""Draws programs: line by line, each tried on the CPU with inputs of several sizes."""

from __future__ import annotations

import random
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from tools.fuzz_aliases.memory import Checked, Undefined
from tools.fuzz_aliases.program import LAYOUTS, Program, define

#: Sizes of inputs that lines are tried with: all even, as halves of them are taken.
SIZES = (6, 10, 16)
#: Larger numbers are not exact in a float.
LARGEST = 2.0**22
#: Elements that a variable may have, in squares of the size.
MOST = 12

#: ``one`` is a 1 that no simplification of symbols finds.
SLICES = ("1:", ":-1", "2:", ":-2", "1:-1", "::2", "1::2", ":{half}", "{half}:", ":{one}")


class _Line:
    """Draws the text of one line for variables of known shapes."""

    def __init__(self, chance: random.Random, scope: Scope) -> None:
        self.chance, self.scope, self.values = chance, scope, scope.tensors()

    def draw(self, name: str) -> str:
        """A line: a view, something new, or a write."""
        kind = self.chance.choices((self.view, self.fresh, self.write), (3, 3, 5))[0]
        return self.write() if kind == self.write else f"{name} = {kind()}"

    def variable(self) -> str:
        """Recent variables are likelier."""
        names = list(self.values)
        return self.chance.choice(names[-4:] if self.chance.random() < 0.7 else names)

    def slices(self, v: str) -> str:
        """What stands in the brackets of a view."""
        rank = self.values[v].dim()
        dim = self.chance.randrange(rank)
        parts = [":"] * dim
        half, one = f"{v}.shape[{dim}] // 2", f"({v}.shape[{dim}] + 1) // {v}.shape[{dim}]"
        if self.chance.random() < 0.2:
            return ", ".join([*parts, self.chance.choice(("0", "-1", "1"))])
        return ", ".join([*parts, self.chance.choice(SLICES).format(half=half, one=one)])

    def view(self) -> str:
        """An expression that shares memory with a variable."""
        v = self.variable()
        x = self.values[v]
        if not x.dim():
            return f"{v}.unsqueeze(0)"
        last = x.dim() - 1
        choices = [
            *[f"{v}[{self.slices(v)}]"] * 6,
            f"{v}.transpose(0, {last})",
            f"{v}.view(-1)",
            f"{v}.reshape(-1)",
            f"{v}.unsqueeze({self.chance.choice((0, -1))})",
            f"{v}.unflatten({self.chance.randint(0, last)}, (-1, 2))",
            f"{v}.narrow({last}, 1, {v}.shape[{last}] - 2)",
            f"{v}.expand(3, *{v}.shape)",
            f"{v}.unfold({last}, {self.chance.choice((1, 3))}, {self.chance.choice((1, 2, 3, 4))})",
            f"{v}.chunk(2)[{self.chance.choice((0, 1))}]",
            f"{v}.view({v}.shape)",
            f"{v}.squeeze()",
            f"{v}.view_as({v})",
        ]
        if last:
            choices += [f"{v}.diagonal()", f"{v}.flatten(0, 1)", f"{v}.movedim(0, -1)", f"{v}.T", f"{v}.diagonal(1)"]
        if x.dim() == 2 and self.values["v0"] is x and x.is_contiguous():  # PyTorch traces no other
            choices.append(f"{v}.as_strided(({v}.shape[0] - 1, {v}.shape[1]), ({v}.stride(0), {v}.stride(1)))")
        return self.chance.choice(choices)

    def operand(self) -> str:
        """A variable or a view."""
        return self.variable() if self.chance.random() < 0.5 else self.view()

    def order(self, size: str, v: str) -> str:
        """Indices below a size, each once."""
        places = f"torch.arange({size}, device={v}.device)"
        return self.chance.choice((places, f"{places}.flip(0)", f"({places} + 1) % ({size})"))

    def fresh(self) -> str:
        """An expression of memory of its own."""
        a, b, v = self.operand(), self.operand(), self.variable()
        last = max(self.values[v].dim() - 1, 0)
        dim = self.chance.randint(0, last)
        choices = [
            *[f"{a}.clone()"] * 4,
            f"{a} + 1",
            f"-{a}",
            f"{a} * 2",
            *[f"{a} + {b}"] * 2,
            f"{a} - {b}",
            f"torch.maximum({a}, {b})",
            f"torch.where({a} > {b}, {a}, {b})",
            f"torch.cat([{a}, {b}], {dim})",
            f"torch.stack([{a}, {b}])",
            f"{a}.flip({dim})",
            f"{a}.flip(0)",
            f"{a}.roll({self.chance.choice((1, -1, 2))}, {dim})",
            f"{a}.sum({dim})",
            f"{a}.sum({dim}, keepdim=True)",
            f"{a}.contiguous()",
            f"{a}.cumsum({dim})",
            f"{v}.index_select({dim}, {self.order(f'{v}.shape[{dim}]', v)})",
            f"{v}[{self.order(f'{v}.shape[0]', v)}]",
            f"torch.select_scatter({a}, {b}, {dim}, {self.chance.choice((0, 1))})",
            f"torch.slice_scatter({a}, {b}, {dim}, {self.chance.choice((0, 1, 2))})",
            f"torch.diagonal_scatter({a}, {b})",
            f"torch.zeros_like({a})",
            f"{a}.repeat(2, 1)",
            f"torch.tril({a})",
            f"torch.nn.functional.pad({a}, (1, 0))",
        ]
        return self.chance.choice(choices)

    def fitting(self, target: str) -> str:
        """An expression whose value may be written to ``target``; any, if none is found."""
        wanted = self.scope.value(target)
        source = ""
        for _ in range(12):
            source = self.chance.choice((self.fresh, self.operand, self.changed))()
            found = self.scope.value(source)
            if found is not None and wanted is not None and _broadcasts(found.shape, wanted.shape):
                break
        return source

    def changed(self) -> str:
        """A part of a variable, copied or changed on the way."""
        part = self.view()
        return self.chance.choice((f"{part}.clone()", f"({part} + 1)", f"{part}.flip(0)", f"(-{part})"))

    def write(self) -> str:
        """A line that writes into memory."""
        v, target = self.variable(), self.operand()
        rank = self.values[v].dim()
        part = f"{v}[{self.slices(v)}]" if rank else v
        source, into_part = self.fitting(target), self.fitting(part)
        dim = self.chance.randrange(rank) if rank else 0
        order, whole = self.order(f"{v}.shape[{dim}]", v), self.fitting(v)
        if not rank:
            return f"{v}.add_(1)"
        choices = [
            *[f"{part} = {into_part}"] * 5,
            *[f"{target}.copy_({source})"] * 4,
            *[f"{target}.add_({source})"] * 2,
            f"{part} += {into_part}",
            f"{target}.sub_({source})",
            f"{target}.mul_(-1)",
            f"{target}.add_(1)",
            f"{target}.zero_()",
            f"{target}.fill_(3)",
            f"{target}.clamp_(min=0)",
            f"{target}.masked_fill_({target} > 0, 2)",
            f"{v}.index_put_(({self.order(f'{v}.shape[0]', v)},), {whole})",
            f"{v}.index_put_(({self.order(f'{v}.shape[0]', v)},), {whole}, accumulate=True)",
            f"{v}.index_add_({dim}, {order}, {whole})",
            f"{v}.index_copy_({dim}, {order}, {whole})",
            f"{v}.index_fill_({dim}, {order}[1:], 5)",
            f"{v}[{v} > 0] = 1",
            f"{v}.scatter_(0, {self._along(v)}, {whole})",
            f"{v}.scatter_add_(0, {self._along(v)}, {whole})",
            f"torch.add({source}, 1, out={target})",
            f"{v}.transpose_(0, {rank - 1})",
            f"{v}.unsqueeze_(0)",
            f"torch._foreach_add_([{v}], 1)",
        ]
        return self.chance.choice(choices)

    def _along(self, v: str) -> str:
        ones = ", 1" * (self.values[v].dim() - 1)
        return f"({self.order(f'{v}.shape[0]', v)}).view(-1{ones}).expand({v}.shape)"


def _broadcasts(shape: Sequence[int], wanted: Sequence[int]) -> bool:
    pairs = zip(reversed(shape), reversed(wanted), strict=False)
    return len(shape) <= len(wanted) and all(size in (1, other) for size, other in pairs)


class Scope:
    """Variables on the CPU while lines are added to a program of inputs of size ``n``."""

    def __init__(self, program: Program, n: int) -> None:
        self.n = n
        inputs, _ = program.inputs(n, "cpu")
        self.variables: dict[str, Any] = {"torch": torch}
        copies = program.gradient and program.copies
        self.variables |= {f"v{i}": x * 1 if copies else x for i, x in enumerate(inputs)}

    def run(self, lines: Sequence[str]) -> bool:
        """Runs lines. False if one does what is refused, not defined, or not exact."""
        try:
            with Checked(), warnings.catch_warnings():
                warnings.simplefilter("error")
                for line in lines:
                    exec(line, self.variables)  # noqa: S102 - our own text
        except (RuntimeError, IndexError, NameError, ValueError, TypeError, UserWarning, Undefined):
            return False
        values = self.tensors().values()
        return all(0 < x.numel() <= MOST * self.n**2 and float(x.detach().abs().max()) < LARGEST for x in values)

    def tensors(self) -> dict[str, Tensor]:
        """The variables of the program."""
        return {name: x for name, x in self.variables.items() if name.startswith("v")}

    def value(self, expression: str) -> Any:
        """What an expression gives, or None if that is refused."""
        try:
            return eval(expression, self.variables)  # noqa: S307 - our own text
        except (RuntimeError, IndexError, ValueError, TypeError):
            return None


def runs(program: Program) -> bool:
    """Whether the program does nothing that eager PyTorch refuses, forward and backward, and defines all it returns."""
    for n in SIZES:
        scope = Scope(program, n)
        if not scope.run(program.lines) or not all(name in scope.variables for name in program.returned):
            return False
        if program.gradient and not _has_gradient(program, n):
            return False
    return True


def _has_gradient(program: Program, n: int) -> bool:
    function: Callable[..., list[tuple[Tensor, ...]]] = define([program])
    try:
        (returned,) = function([program.inputs(n, "cpu")[0]])
        total = sum((each.sum() for each in returned if each.requires_grad), torch.zeros(()))
        total.backward()  # type: ignore[no-untyped-call]
    except RuntimeError:
        return False
    return any(each.requires_grad for each in returned)


def draw(seed: int, gradient: bool) -> Program:
    """The program of a seed, which eager PyTorch runs."""
    chance = random.Random(f"{seed} {gradient}")
    while True:
        program = _draw(chance, gradient)
        if any(not re.match(r"v\d+ = ", line) for line in program.lines) and runs(program):
            return program


def without_writes(program: Program) -> Program:
    """A program with gradients as one that writes nothing, and returns what it defines last and squares of it, so that
    the backward pass reads inputs, views of them, and results."""
    made = replace(program, lines=(), copies=False)
    for line in program.lines:
        longer = replace(made, lines=(*made.lines, line))
        if re.match(r"v\d+ = ", line) and all(Scope(made, n).run(longer.lines) for n in SIZES):
            made = longer
    last = [line.partition(" ")[0] for line in made.lines][-2:] or ["v0"]
    squares = [f"s{place} = {name} * {name}" for place, name in enumerate(last)]
    return replace(made, lines=(*made.lines, *squares), returned=(*last, *(f"s{i}" for i in range(len(last)))))


def _draw(chance: random.Random, gradient: bool) -> Program:
    dtype = chance.choice(("float32", "float64") if gradient else ("float32", "float32", "int64", "uint8"))
    # Leaves of a gradient cannot share memory.
    known = [name for name in LAYOUTS if not gradient or name not in ("overlapping", "one twice", "row of it")]
    layouts = tuple(chance.choices(known, k=chance.choice((1, 1, 2))))
    program = Program(dtype, layouts, (), ("v0",), gradient)
    scope = Scope(program, SIZES[0])
    wanted, count = chance.randint(2, 7), len(scope.tensors())
    for _ in range(12 * wanted):
        line = _Line(chance, scope).draw(f"v{count}")
        if not scope.run([line]):
            scope = Scope(program, SIZES[0])
            scope.run(program.lines)
            continue
        program, count = replace(program, lines=(*program.lines, line)), count + line.startswith(f"v{count} =")
        if len(program.lines) == wanted:
            break
    returned = chance.sample([f"v{i}" for i in range(count)], min(count, chance.randint(1, 3)))
    return replace(program, returned=tuple(returned))
