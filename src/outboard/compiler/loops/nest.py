# SPDX-License-Identifier: Apache-2.0
"""Loop nests, the form between the graph compiler and text: one kernel as straight-line code over iteration ranges.

A kernel iterates over *roots*: flat ranges, at most one of which is a reduction. Index expressions are sympy over
*entries*, pieces ``(root // divisor) % length`` of a root. The code is a list of regions; a region inside the
reduction is run for every reduction index, one outside once per point of the other roots.
Nothing here knows Inductor or a C dialect.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterator
from contextvars import ContextVar

import sympy
import torch

#: What a Value can be computed in; narrower floats are widened when they are loaded.
COMPUTE_DTYPES: dict[torch.dtype, torch.dtype] = {
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.float8_e4m3fn: torch.float32,
    torch.float8_e5m2: torch.float32,
}


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which values of ``dtype`` are computed."""
    return COMPUTE_DTYPES.get(dtype, dtype)


#: What no Value is computed in, or only in something wider, and kernels can move as integers: pairs of floats, too.
MOVED_DTYPES = frozenset({*COMPUTE_DTYPES, torch.complex64})


def bits_dtype(dtype: torch.dtype) -> torch.dtype:
    """The integer that holds the bits of a float narrower than float32 or of a pair of float32; any other dtype
    itself."""
    if dtype == torch.complex64:
        return torch.int64
    if dtype not in COMPUTE_DTYPES:
        return dtype
    return torch.uint8 if dtype.itemsize == 1 else torch.uint16


@dataclasses.dataclass(eq=False)
class Root:
    """A flat iteration range of ``numel`` points. ``hint`` is a typical value of ``numel``."""

    name: str
    numel: sympy.Expr
    is_reduction: bool
    hint: int


@dataclasses.dataclass(eq=False)
class Entry:
    """The piece ``(root // divisor) % length`` of a root; ``symbol`` stands for it in index expressions.

    ``outermost`` says that the modulo is not needed (``divisor * length == root.numel``).
    """

    symbol: sympy.Symbol
    root: Root
    divisor: sympy.Expr
    length: sympy.Expr
    outermost: bool
    divisor_hint: int
    length_hint: int


@dataclasses.dataclass(eq=False)
class Value:
    """The result of one operation. ``op`` is a name of Inductor's operator vocabulary or one of

    * ``load``: element ``index`` of ``buffer`` where ``mask`` (a bool Value) holds, else 0;
    * ``constant``: ``constant``;
    * ``bits_of_narrow``, ``narrow_of_bits``: a float as the bits of ``src_dtype``, a narrower one, and back;
    * ``index_expr``: ``index`` as a number;
    * ``checked_index``: ``args[0]``, an index into ``size`` elements; where ``mask`` holds and the index is out of
      range, ``message`` is reported and the result is some index in range;
    * ``assertion``: where ``mask`` holds and ``args[0]`` (bool) does not, ``message`` is reported; its own result is of
      no use;
    * ``reduce``: ``args[0]`` reduced by ``kind`` over the reduction root.
    """

    name: str
    op: str
    dtype: torch.dtype
    args: tuple[Value, ...] = ()
    buffer: str = ""
    index: sympy.Expr = sympy.S.Zero
    mask: Value | None = None
    constant: bool | int | float = 0
    size: sympy.Expr = sympy.S.Zero
    kind: str = ""
    src_dtype: torch.dtype | None = None
    message: str = ""

    @property
    def finds_place(self) -> bool:
        """Whether it is a reduction to the place of a term, ``argmax`` or ``argmin``."""
        return self.kind in ("argmax", "argmin")

    @property
    def term_dtype(self) -> torch.dtype:
        """The compute dtype of a reduction's terms."""
        if not self.finds_place:
            return self.dtype
        assert self.src_dtype is not None
        return compute_dtype(self.src_dtype)

    @property
    def is_sum_of_floats(self) -> bool:
        """Whether it is a reduction that rounds."""
        return self.kind == "sum" and self.dtype.is_floating_point


#: What a wrong index is reported as: IndexError with the first text, RuntimeError with the second, which is how PyTorch
#: has it for gather and scatter.
INDEX_ERROR = "index out of range in self: an index is not inside the size of the dimension it selects from"
GATHER_ERROR = "index out of bounds: an index is not inside the size of its dimension"
#: What wrong indices of the call in hand are reported as.
index_message: ContextVar[str] = ContextVar("index_message", default=INDEX_ERROR)

#: Operations with an effect of their own, besides stores.
CHECKS = ("checked_index", "assertion")

#: Operations that cost more than a result's way to a nearby cache and back.
EXPENSIVE = frozenset(
    [
        "exp", "exp2", "expm1", "log", "log1p", "log2", "pow", "erf", "normal_cdf", "tanh", "sigmoid", "sin", "cos",
        "tan", "lgamma",
    ]
)  # fmt: skip


@dataclasses.dataclass(eq=False)
class Store:
    """Writes ``value`` to element ``index`` of ``buffer``; ``atomic_add`` adds to it atomically."""

    buffer: str
    index: sympy.Expr
    value: Value
    atomic_add: bool = False


@dataclasses.dataclass
class Region:
    """Statements run for every point of the reduction (``in_reduction``), or once around it.

    ``after`` holds the stores of reduction results, done once after the loop.
    """

    in_reduction: bool
    body: list[Value | Store] = dataclasses.field(default_factory=list)
    after: list[Store] = dataclasses.field(default_factory=list)

    def reductions(self) -> list[Value]:
        """The reductions among its values."""
        return [s for s in self.body if isinstance(s, Value) and s.op == "reduce"]

    def statements(self) -> list[Value | Store]:
        """All that it does, in order."""
        return [*self.body, *self.after]


def moves(statements: list[Value | Store]) -> list[Value | Store]:
    """Those of some statements that touch memory."""
    return [s for s in statements if isinstance(s, Store) or s.op == "load"]


@dataclasses.dataclass
class LoopKernel:
    """A whole kernel. ``buffers`` maps each buffer to its element type; ``written`` are those stored to.

    ``indirect`` maps the symbols that stand for loaded indices to their values; ``floats`` are the symbols that are
    floating-point arguments.
    """

    roots: list[Root]
    entries: dict[sympy.Symbol, Entry]
    regions: list[Region]
    buffers: dict[str, torch.dtype]
    written: set[str]
    indirect: dict[sympy.Symbol, Value]
    floats: set[sympy.Symbol]

    def statements(self) -> list[Value | Store]:
        """All statements, in order."""
        return [statement for region in self.regions for statement in region.statements()]

    def values(self) -> Iterator[Value]:
        """All values, in order."""
        return (statement for statement in self.statements() if isinstance(statement, Value))

    def looked_up(self, index: sympy.Expr) -> list[Value]:
        """The values that an index is made of."""
        return [self.indirect[s] for s in index.free_symbols if s in self.indirect]

    def needed_for(self, index: sympy.Expr) -> set[str]:
        """The names of all values that an index is computed from."""
        needed: set[str] = set()
        work = self.looked_up(index)
        while work:
            value = work.pop()
            needed.add(value.name)
            work += [*value.args, *([value.mask] if value.mask else []), *self.looked_up(value.index)]
        return needed

    def operands(self, statements: list[Value | Store]) -> set[str]:
        """The names of the values that some statements take."""
        found: list[Value] = []
        for statement in statements:
            found += [statement.value] if isinstance(statement, Store) else statement.args
            if isinstance(statement, Value) and statement.mask is not None:
                found.append(statement.mask)
            found += self.looked_up(statement.index)
        return {value.name for value in found}

    def assertions(self) -> list[str]:
        """What the kernel may report of the values that it checks."""
        found = [s.message for s in self.statements() if isinstance(s, Value) and s.op in CHECKS]
        return list(dict.fromkeys(found))


def structure(kernel: LoopKernel) -> Hashable:
    """All that a kernel is, but for the names of its buffers: they count by their places in ``buffers``. Kernels of
    equal structure have the same text and are launched alike."""
    places = {name: place for place, name in enumerate(kernel.buffers)}

    def described(statement: Value | Store) -> Hashable:
        if isinstance(statement, Store):
            return places[statement.buffer], statement.index, statement.value.name, statement.atomic_add
        value = statement
        return (
            value.name, value.op, value.dtype, tuple(argument.name for argument in value.args),
            places.get(value.buffer), value.index, value.mask.name if value.mask else None, repr(value.constant),
            value.size, value.kind, value.src_dtype, value.message,
        )  # fmt: skip

    return (
        tuple((root.name, root.numel, root.is_reduction, root.hint) for root in kernel.roots),
        tuple(
            (entry.symbol, entry.root.name, entry.divisor, entry.length, entry.outermost)
            + (entry.divisor_hint, entry.length_hint)
            for entry in kernel.entries.values()
        ),
        tuple(
            (region.in_reduction, tuple(map(described, region.body)), tuple(map(described, region.after)))
            for region in kernel.regions
        ),
        tuple((dtype, name in kernel.written) for name, dtype in kernel.buffers.items()),
        tuple((symbol, value.name) for symbol, value in kernel.indirect.items()),
        frozenset(kernel.floats),
    )
