# SPDX-License-Identifier: Apache-2.0
"""Compilers of graphs, for hardware that takes a graph instead of kernels.

A package offers one through the entry-point group ``outboard.compilers``, under the name with which the driver's
property ``compiler`` begins ("mycc" of "mycc 1.2"); the entry point is a class without parameters, or a function, that
gives a :class:`GraphCompiler`. What it makes of a graph is loaded by the driver (``function_load`` in driver.h) and
kept on disk under that property. ``docs/write-a-graph-compiler.md`` is a guide, :mod:`outboard.compilers.sim` an
example.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

import sympy
import torch

if TYPE_CHECKING:
    from outboard.compiler.target import Target

#: The group of entry points.
GROUP = "outboard.compilers"
_OWN = (EntryPoint("outboard-sim", "outboard.compilers.sim:SimCompiler", GROUP),)


class Unsupported(NotImplementedError):
    """A compiler does not take a graph after all; the text says why. Its operators then run elsewhere, counted."""


@dataclasses.dataclass(frozen=True)
class Operand:
    """One input or result of a graph. Of a number, and of a tensor without dimensions, sizes and strides are empty.
    Where sizes may vary, they are expressions of the symbols that ``node.meta["val"]`` has (``SymInt.node.expr``)."""

    dtype: torch.dtype
    sizes: tuple[int | sympy.Expr, ...]
    strides: tuple[int | sympy.Expr, ...]  #: in elements; no two elements share memory
    is_number: bool = False  #: an int or float that is handed over at each call


@dataclasses.dataclass(frozen=True)
class Executable:
    """What the driver loads, and how many bytes of memory it needs while it runs."""

    code: bytes
    scratch: int = 0


class GraphCompiler(Protocol):
    """What makes executables of graphs.

    ``name`` and ``version``, separated by a space, are the driver's property ``compiler``. ``whole`` are operators
    ("aten::silu") that should arrive as they are, not in terms of simpler ones.
    """

    name: str
    version: str
    whole: frozenset[str]

    def supports(self, node: torch.fx.Node, target: Target) -> Literal[True] | str:
        """Whether the compiler takes a call of an ATen operator; else why not, for users to read.

        ``node.target`` is the overload; ``node.meta["val"]``, and that of the nodes among its arguments, is a tensor
        (or several) without data: dtype, sizes and strides.
        """
        ...

    def compile(self, graph: torch.fx.Graph, operands: Sequence[Operand], target: Target) -> Executable:
        """Compiles a graph of operators that ``supports`` took, without side effects.

        ``operands`` are the graph's placeholders and then its results, as they lie in memory. Sizes are numbers where
        the driver says ``static_sizes``. Elsewhere they may be symbolic, as may numbers among arguments (a SymInt or
        SymFloat, or the node of one): each symbol is a size of an input, or an input that is a number, so each call
        tells them.
        Raises :class:`Unsupported`.
        """
        ...


@runtime_checkable
class Bucketing(Protocol):
    """What a compiler of fixed sizes may have besides: sizes to which dimensions that vary are padded."""

    def bucket(self, size: int) -> int | None:
        """The size, no smaller, to pad a dimension of this one to; None if it is to stay as it is."""
        ...


@functools.cache
def load(name: str) -> GraphCompiler:
    """The compiler of a name. Raises LookupError if no package offers it."""
    for entry in (*entry_points(group=GROUP), *_OWN):
        if entry.name == name:
            make: Callable[[], GraphCompiler] = entry.load()
            return make()
    raise LookupError(
        f"the device takes what the compiler {name!r} makes, which no installed package offers (entry points "
        f"{GROUP!r}): install its package"
    )


def find(target: Target) -> GraphCompiler | None:
    """A device's compiler; None if its driver loads no executables. Raises LookupError if it is not installed, or in
    another version than the driver wants."""
    if not target.compiler:
        return None
    compiler = load(target.compiler.partition(" ")[0])
    if f"{compiler.name} {compiler.version}" != target.compiler:
        raise LookupError(
            f"the device takes what {target.compiler!r} makes, and installed is {compiler.name} {compiler.version}"
        )
    return compiler
