# SPDX-License-Identifier: Apache-2.0
"""Printed kernels: source text, arguments, grid."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Iterable, Mapping

import sympy

from ..loops.nest import INDEX_ERROR
from ..loops.schedule import Combination
from ..plans.plan import Assertion, AssertionKind
from ..units import COMPUTE_UNITS


def assertion(message: str) -> Assertion:
    """What kernels report as ``message``, under a code that is the same in all of them and never 0."""
    kind = AssertionKind.INDEX_ERROR if message == INDEX_ERROR else AssertionKind.RUNTIME_ERROR
    return Assertion(zlib.crc32(message.encode()) >> 2 | 1 << 30, kind, message)


def failing(message: str) -> str:
    """The statement by which a kernel reports ``message``, unless a kernel before it has failed: what went wrong first
    is what a user has to know."""
    return f"{{ if (*failed == 0) *failed = {assertion(message).code}; }}"


@dataclasses.dataclass
class EmittedKernel:
    """Source of one kernel and how to launch it.

    ``buffers``, ``longs``, ``floats`` are the arguments in the order of the signature: pointers, then ``long``
    (expressions over size symbols), then ``float``/``double`` (``doubles`` tells which), then, if there are
    ``assertions``, a pointer to the ``int`` that takes the code of one that failed. ``sizes`` are all size symbols that
    a launch needs.
    ``helpers`` are the functions (by name) that ``definition``, the kernel itself, calls.
    ``assertions`` are all that the kernel may report.
    ``assumptions`` are conditions on sizes under which the kernel is the right choice; elsewhere it is only slow.
    ``combination``, if any, is to be launched afterwards as ``combining_entry``; both launches then take a last
    argument more, a pointer to scratch memory.
    """

    helpers: dict[str, str]
    definition: str
    entry: str
    buffers: list[str]
    longs: list[sympy.Expr]
    floats: list[sympy.Symbol]
    doubles: set[sympy.Symbol]
    assertions: list[Assertion]
    grid: tuple[sympy.Expr, sympy.Expr]
    local_size: tuple[int, int, int]
    assumptions: list[sympy.Basic]
    combination: Combination | None = None

    @property
    def sizes(self) -> list[sympy.Symbol]:
        """Size symbols, sorted by name."""
        expressions = [*self.longs, *self.grid]
        if self.combination is not None:
            expressions += [*self.combination.grid, self.combination.scratch]
        symbols = {symbol for expr in expressions for symbol in expr.free_symbols}
        return sorted(symbols - {COMPUTE_UNITS}, key=str)  # which the plan asks the device for

    def with_symbols(self, named: Mapping[sympy.Basic, sympy.Symbol]) -> EmittedKernel:
        """The same kernel with symbols in the place of expressions, however it is launched."""

        def replaced(expressions: Iterable[sympy.Expr]) -> list[sympy.Expr]:
            return [expr.xreplace(named) for expr in expressions]

        combination, grid = self.combination, replaced(self.grid)
        if combination is not None:
            first, second, scratch = replaced([*combination.grid, combination.scratch])
            combination = dataclasses.replace(combination, grid=(first, second), scratch=scratch)
        return dataclasses.replace(
            self,
            longs=replaced(self.longs),
            grid=(grid[0], grid[1]),
            assumptions=[condition.xreplace(named) for condition in self.assumptions],
            combination=combination,
        )

    @property
    def combining_entry(self) -> str:
        """The name of the kernel that ``combination`` launches."""
        return combining_name(self.entry)

    @property
    def source(self) -> str:
        """The kernel as a program of its own."""
        return program([self])

    def renamed(self, entry: str) -> EmittedKernel:
        """The same kernel under another name."""
        definition = self.definition.replace(f"void {self.entry}(", f"void {entry}(", 1)
        definition = definition.replace(f"void {self.combining_entry}(", f"void {combining_name(entry)}(", 1)
        return dataclasses.replace(self, definition=definition, entry=entry)


def combining_name(entry: str) -> str:
    """The name of the kernel that combines the partial results of another."""
    return f"{entry}_combine"


def program(kernels: list[EmittedKernel]) -> str:
    """One source of several kernels, of different names, that share their helpers. Built at once, they cost a good
    deal less than one by one: compilers of OpenCL C spend most of their time on their own headers."""
    helpers: dict[str, str] = {}
    for kernel in kernels:
        helpers.update(kernel.helpers)
    return "\n".join([*helpers.values(), *(kernel.definition for kernel in kernels)]) + "\n"
