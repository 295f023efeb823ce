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
class Layout:
    """How contents lie in memory other than by strides, in tiles for example: what lies in order as a tensor of
    ``sizes`` (and without a layout does so) lies in order as one of ``arranged_sizes`` in the layout. Equal layouts are
    one: between two executables contents in it stay as they are.

    ``sizes`` need not be an operand's: of a matrix that is used transposed they are those of the matrix as it lies, and
    a batch of matrices may be laid out as one matrix that is higher.
    """

    name: str  #: for users to read
    dtype: torch.dtype
    sizes: tuple[int, ...]
    arranged_dtype: torch.dtype
    arranged_sizes: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Operand:
    """One input or result of a graph. Of a number, and of a tensor without dimensions, sizes and strides are empty.
    Where sizes may vary, they are expressions of the symbols that ``node.meta["val"]`` has (``SymInt.node.expr``).

    In a layout an executable is given a tensor of the layout's ``arranged_sizes``, and nothing of these sizes and
    strides: those say which element is which, along ``memory_order``.
    """

    dtype: torch.dtype
    sizes: tuple[int | sympy.Expr, ...]
    strides: tuple[int | sympy.Expr, ...]  #: in elements; no two elements share memory
    is_number: bool = False  #: an int or float that is handed over at each call
    layout: Layout | None = None  #: what the compiler chose (see :class:`Layouts`)

    @property
    def memory_order(self) -> tuple[int, ...]:
        """The dimensions in the order in which they lie in memory, the outermost first. Sizes are numbers."""
        dims = range(len(self.sizes))
        return tuple(sorted(dims, key=lambda dim: (-self.strides[dim], self.sizes[dim] == 1)))

    @property
    def is_dense(self) -> bool:
        """Whether it is a tensor with elements that lie without gaps, in some order of dimensions, of sizes that are
        numbers: what can be in a layout."""
        if self.is_number or not all(isinstance(size, int) and size > 0 for size in (*self.sizes, *self.strides)):
            return False
        step = 1
        for dim in reversed(self.memory_order):
            if self.sizes[dim] != 1 and self.strides[dim] != step:
                return False
            step *= int(self.sizes[dim])
        return True


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


@runtime_checkable
class Layouts(Protocol):
    """What a compiler may have besides whose executables take or make tensors in layouts of its own."""

    def layouts(self, graph: torch.fx.Graph, operands: Sequence[Operand], target: Target) -> Sequence[Layout | None]:
        """The layout of each operand of a graph that :meth:`GraphCompiler.compile` will be asked for, or None: as its
        strides say. Operands that are not ``is_dense`` have none, whatever is chosen."""
        ...

    def relayout(self, layout: Layout, target: Target) -> tuple[Executable, Executable]:
        """What makes a tensor in a layout of one that lies in order, of the layout's ``sizes``, and the reverse. Every
        bit stays; what the layout has between the elements may be anything. Raises ValueError for a layout that is
        not the compiler's: users may ask for one."""
        ...


@functools.cache
def load(name: str) -> GraphCompiler:
    """The compiler of a name; an installed package's instead of ours. Raises LookupError if no package offers it, or
    several do, or it cannot be made."""
    found = [entry for entry in entry_points(group=GROUP) if entry.name == name]
    offered = {entry.value: entry for entry in found or _OWN if entry.name == name}
    if not offered:
        raise LookupError(
            f"the device takes what the compiler {name!r} makes, which no installed package offers (entry points "
            f"{GROUP!r}): install its package"
        )
    if len(offered) > 1:
        several = ", ".join(sorted(offered))
        raise LookupError(f"several installed packages offer the compiler {name!r}: {several}; uninstall all but one")
    (entry,) = offered.values()
    try:
        make: Callable[[], GraphCompiler] = entry.load()
        return make()
    except Exception as error:  # a vendor's code may raise anything
        raise LookupError(
            f"the compiler {name!r} ({entry.value}) cannot be made: {type(error).__name__}: {error}"
        ) from error


def find(target: Target) -> GraphCompiler | None:
    """A device's compiler; None if its driver loads no executables. Raises LookupError if it is not installed, cannot
    be made, or is there in another version than the driver wants."""
    if not target.compiler:
        return None
    compiler = load(target.compiler.partition(" ")[0])
    if f"{compiler.name} {compiler.version}" != target.compiler:
        raise LookupError(
            f"the device takes what {target.compiler!r} makes, and installed is {compiler.name} {compiler.version}"
        )
    return compiler
