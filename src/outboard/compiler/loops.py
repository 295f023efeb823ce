# SPDX-License-Identifier: Apache-2.0
"""The form between the graph compiler and the printers of C: one kernel as straight-line code over iteration ranges.

A kernel iterates over *roots*: flat ranges, at most one of which is a reduction. Index expressions are sympy over
*entries*, pieces ``(root // divisor) % length`` of a root. The code is a list of regions; a region inside the
reduction is run for every reduction index, one outside once per point of the other roots.
Nothing here knows Inductor or a C dialect.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Hashable

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


#: What a wrong index is reported as: IndexError with the first text, RuntimeError with the second, which is how PyTorch
#: has it for gather and scatter.
INDEX_ERROR = "index out of range in self: an index is not inside the size of the dimension it selects from"
GATHER_ERROR = "index out of bounds: an index is not inside the size of its dimension"

#: Operations with an effect of their own, besides stores.
_CHECKS = ("checked_index", "assertion")


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
        return [statement for region in self.regions for statement in (*region.body, *region.after)]

    def assertions(self) -> list[str]:
        """What the kernel may report of the values that it checks."""
        found = [s.message for s in self.statements() if isinstance(s, Value) and s.op in _CHECKS]
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


def prune(kernel: LoopKernel) -> None:
    """Removes values that no store needs, and buffers that nothing touches."""
    live: set[int] = set()
    work: list[Value] = []

    def need(expr: sympy.Expr) -> None:
        work.extend(kernel.indirect[s] for s in expr.free_symbols if s in kernel.indirect)

    for statement in kernel.statements():
        if isinstance(statement, Store):
            work.append(statement.value)
            need(statement.index)
        elif statement.op in _CHECKS:
            work.append(statement)
    while work:
        value = work.pop()
        if id(value) in live:
            continue
        live.add(id(value))
        work.extend(value.args)
        if value.mask is not None:
            work.append(value.mask)
        need(value.index)
    for region in kernel.regions:
        region.body = [s for s in region.body if isinstance(s, Store) or id(s) in live]
    kernel.regions = [region for region in kernel.regions if region.body or region.after]
    used = {s.buffer for s in kernel.statements() if isinstance(s, Store) or s.op == "load"}
    kernel.buffers = {name: dtype for name, dtype in kernel.buffers.items() if name in used}
    kernel.written &= used


#: Operations that cost more than a result's way to a nearby cache and back.
EXPENSIVE = frozenset(
    [
        "exp", "exp2", "expm1", "log", "log1p", "log2", "pow", "erf", "normal_cdf", "tanh", "sigmoid", "sin", "cos",
        "tan", "lgamma",
    ]
)  # fmt: skip


def keep_terms(kernel: LoopKernel) -> None:
    """Makes a loop leave terms of its reduction where the next loop stores its result, if that computes them anew.

    A softmax then takes each ``exp`` once: for the sum, into the output, from where the division takes it back."""
    loops = [region for region in kernel.regions if region.in_reduction]
    kept = [_keep_terms(kernel, before, region) for before, region in itertools.pairwise(loops)]
    if any(kept):
        prune(kernel)


def _keep_terms(kernel: LoopKernel, before: Region, region: Region) -> bool:
    """Does so for two loops that follow each other. Returns whether it did."""
    store = _only_effect(kernel, region)
    if store is None or store.atomic_add or kernel.indirect.keys() & store.index.free_symbols:
        return False
    numbers = _value_numbers(kernel)
    terms = {numbers[id(v)]: v for v in before.body if isinstance(v, Value) and v.op in EXPENSIVE}
    for value in reversed(region.body):
        if not isinstance(value, Value) or value.dtype != kernel.buffers[store.buffer]:
            continue
        term = terms.get(numbers[id(value)])
        if term is not None and _suffices(value, store.value):
            before.body.append(Store(store.buffer, store.index, term))
            value.op, value.args, value.buffer, value.index = "load", (), store.buffer, store.index
            return True
    return False


def _only_effect(kernel: LoopKernel, region: Region) -> Store | None:
    """The store that is all a loop does, to a buffer that nothing else touches; None if there is no such."""
    stores = [s for s in region.body if isinstance(s, Store)]
    if len(stores) != 1 or any(isinstance(s, Value) and s.op in ("reduce", *_CHECKS) for s in region.body):
        return None
    touched = [s.buffer for s in kernel.statements() if isinstance(s, Store) or s.op == "load"]
    return stores[0] if touched.count(stores[0].buffer) == 1 else None


def _suffices(value: Value, result: Value) -> bool:
    """Whether ``result`` can be computed from ``value`` without any load. The buffer that terms are left in may be an
    operand's, which is not to be read any more then."""
    work, seen = [result], {id(value)}
    while work:
        needed = work.pop()
        if needed.op == "load" and id(needed) not in seen:
            return False
        if id(needed) in seen or needed.op == "reduce":
            continue
        seen.add(id(needed))
        work.extend(needed.args)
    return True


def find_normal_cdf(kernel: LoopKernel) -> None:
    """Makes one operation of what gelu and its gradient compute, ``(1 + erf(x / sqrt(2))) / 2``.

    That is cheaper than ``erf``, which must be exact near 0, where the sum is not."""
    users: dict[int, list[Value | Store]] = {}
    for statement in kernel.statements():
        for operand in (statement.value,) if isinstance(statement, Store) else statement.args:
            users.setdefault(id(operand), []).append(statement)
    halves = [value for value in kernel.statements() if isinstance(value, Value) and _is_sum_with_erf(value)]
    found = [_halve(value, users.get(id(value), [])) for value in halves]
    if any(found):
        prune(kernel)


def _constant_factor(value: Value, constant: float) -> Value | None:
    """What ``constant`` (a float) is multiplied by in a product, else None."""
    if value.op != "mul" or value.dtype != torch.float32:
        return None
    for one, other in (value.args, value.args[::-1]):
        if one.op == "constant" and math.isclose(one.constant, constant, rel_tol=1e-6):
            return other
    return None


def _scaled_argument(value: Value) -> Value | None:
    """``x`` if a value is ``erf(x / sqrt(2))`` in float, else None."""
    return _constant_factor(value.args[0], math.sqrt(0.5)) if value.op == "erf" else None


def _is_sum_with_erf(value: Value) -> bool:
    """Whether a value is ``erf(x / sqrt(2)) + 1``, in either order."""
    if value.op != "add":
        return False
    pairs = (value.args, value.args[::-1])
    return any(one.op == "constant" and one.constant == 1 and _scaled_argument(other) for one, other in pairs)


def _halve(total: Value, users: list[Value | Store]) -> bool:
    """Makes ``total``, ``1 + erf(x / sqrt(2))``, its half, if each user is a product that has a half among its factors,
    which then goes. Returns whether it did."""
    products = [user for user in users if isinstance(user, Value) and user.op == "mul"]
    others = [product.args[product.args[0] is total] for product in products]
    is_half = [other.op == "constant" and other.constant == 0.5 for other in others]
    factors = [None if half else _constant_factor(other, 0.5) for half, other in zip(is_half, others, strict=True)]
    if len(products) < len(users) or any(f is None and not half for f, half in zip(factors, is_half, strict=True)):
        return False
    for product, factor in zip(products, factors, strict=True):
        product.op, product.args = ("identity", (total,)) if factor is None else ("mul", (factor, total))
    scaled = next(filter(None, map(_scaled_argument, total.args)))
    total.op, total.args = "normal_cdf", (scaled,)
    return True


def _value_numbers(kernel: LoopKernel) -> dict[int, int]:
    """Maps the ``id`` of each value to a number; values that are computed alike have the same."""
    table: dict[tuple[object, ...], int] = {}
    numbers: dict[int, int] = {}
    for value in kernel.statements():
        if not isinstance(value, Value):
            continue
        key = (
            value.op, value.dtype, tuple(numbers[id(a)] for a in value.args), value.buffer, value.index,
            None if value.mask is None else numbers[id(value.mask)], repr(value.constant), value.size,
            value.src_dtype, value.name if value.op == "reduce" else "",
        )  # fmt: skip
        numbers[id(value)] = table.setdefault(key, len(table))
    return numbers
