# SPDX-License-Identifier: Apache-2.0
"""Inductor's kernel, recorded as a :class:`~outboard.compiler.loops.nest.LoopKernel`."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import sympy
import torch
from torch._inductor.codegen.common import CSEVariable
from torch._inductor.codegen.simd import IterationRangesEntry, SIMDKernel
from torch._inductor.utils import prefix_is_reduction
from torch._inductor.virtualized import V
from torch.utils._ordered_set import OrderedSet
from torch.utils._sympy.symbol import SymT, symbol_is_type
from torch.utils._sympy.value_ranges import ValueRanges

from ..dialects import c
from ..loops.nest import Entry, LoopKernel, Region, Root, Store, Value, compute_dtype
from ..loops.passes import run_passes
from ..printing import EmittedKernel
from ..target import Target, target_of
from .overrides import LoopOps, Variable, as_value


def target_here(device: torch.device) -> Target:
    """The target of a device that Inductor compiles for."""
    return target_of(device.index or 0)


class LoopRecorder(SIMDKernel[Any]):
    """Collects what Inductor generates for one kernel; :meth:`codegen_kernel` prints it."""

    overrides = LoopOps
    kexpr = staticmethod(str)
    sexpr = staticmethod(str)

    def __init__(self, tiling: dict[str, sympy.Expr], **kwargs: Any) -> None:
        # Indices are 64 bits wide; choosing 32 would guard on sizes.
        kwargs["features"].select_index_dtype = lambda: torch.int64
        super().__init__(tiling, **kwargs)
        self.regions: list[Region] = []
        self.buffer_dtypes: dict[str, torch.dtype] = {}
        self.written: dict[str, str] = {}  #: buffer -> real name
        self.indirect: dict[sympy.Symbol, Value] = {}
        self.mask: Value | None = None
        self.loops: LoopKernel | None = None
        self.emitted: EmittedKernel | None = None
        self._names = itertools.count()
        self._known: dict[tuple[Any, ...], Variable] = {}
        self._variables: dict[str, Variable] = {}
        self._kept: set[str] = set()
        self._store_names: dict[int, str] = {}
        self._open = False
        self._indexed_by_values = any(node._body.indirect_vars for node in self.features.scheduler_nodes())

    def dtype_to_str(self, dtype: torch.dtype) -> str:
        return c.type_name(compute_dtype(dtype))

    @contextmanager
    def set_current_node(self, node: Any) -> Iterator[None]:
        """Says which node's operations follow. Only wrapping indices asks for the bounds of their values, and computing
        these takes as long as recording the operations."""
        if self._indexed_by_values:
            with super().set_current_node(node):
                yield
            return
        outer, self.current_node = self.current_node, node
        self.node_to_bounds = None
        try:
            yield
        finally:
            self.current_node = outer

    # ---- recording ----

    def region(self) -> Region:
        """The region being recorded."""
        if not self._open:
            self.regions.append(Region(self.inside_reduction))
            self._open = True
        return self.regions[-1]

    def record(self, value: Value) -> Variable:
        """Adds a value, or finds the same one recorded before."""
        key = (
            value.op, value.dtype, tuple(a.name for a in value.args), value.buffer, value.index,
            value.mask.name if value.mask else None, repr(value.constant), value.size, value.kind, value.src_dtype,
            value.message,
        )  # fmt: skip
        known = self._known.get(key)
        if known is not None:
            known.use_count += 1
            return known
        value.name = f"t{next(self._names)}"
        self.region().body.append(value)
        variable = Variable(value, ValueRanges.unknown())
        self._known[key] = variable
        self._variables[value.name] = variable
        if not self.inside_reduction or value.op == "reduce":
            self._kept.add(value.name)
        return variable

    def variable(self, value: Value) -> Variable:
        """The variable of a recorded value."""
        return self._variables[value.name]

    @contextmanager
    def masked(self, mask: Value) -> Iterator[Value]:
        """Loads inside are done only where ``mask`` (and the masks around it) hold; yields their conjunction."""
        outer = self.mask
        if outer is not None:
            mask = self.record(Value("", "logical_and", torch.bool, (outer, mask))).value
        self.mask = mask
        try:
            yield mask
        finally:
            self.mask = outer

    def resolve(self, expr: sympy.Expr) -> sympy.Expr:
        """An index over entries of the ranges, sizes and loaded indices only."""
        index = self.prepare_indexing(expr)
        precomputed = V.graph.sizevars.inv_precomputed_replacements
        return index.xreplace({s: precomputed[s] for s in index.free_symbols if s in precomputed})

    def codegen_indexing(self, expr: sympy.Expr) -> sympy.Expr:
        return V.graph.sizevars.simplify_with_ranges(expr, self.var_ranges())

    @staticmethod
    def _real_name(name: str) -> str:
        scheduler = V.graph.scheduler
        return scheduler.mutation_real_name.get(name, name) if scheduler else name

    def load(self, name: str, index: sympy.Expr) -> Variable:
        self.args.input(name)
        real = self._real_name(name)
        dtype = V.graph.get_dtype(name)
        self.buffer_dtypes[real] = dtype
        resolved = self.resolve(index)
        generation = len(self.written) if real in self.written.values() else 0
        value = Value("", "load", compute_dtype(dtype), buffer=real, index=resolved, mask=self.mask)
        if generation:
            # What was loaded before a write to the same buffer must not be taken for what is there now.
            value.constant = generation
        return self.record(value)

    def store(self, name: str, index: sympy.Expr, value: CSEVariable, mode: Any = None) -> None:
        store = self._make_store(name, index, value, mode)
        self.region().body.append(store)

    def store_reduction(self, name: str, index: sympy.Expr, value: CSEVariable) -> None:
        store = self._make_store(name, index, value, None)
        self.region().after.append(store)

    def _make_store(self, name: str, index: sympy.Expr, value: CSEVariable, mode: Any) -> Store:
        if mode not in (None, "atomic_add"):
            raise NotImplementedError(f"store mode {mode}")
        self.args.output(name)
        real = self._real_name(name)
        dtype = V.graph.get_dtype(name)
        self.buffer_dtypes[real] = dtype
        self.written[name] = real
        number = as_value(value)
        if number.op == "narrowed" and number.src_dtype == dtype:
            number = number.args[0]  # the store rounds
        store = Store(real, self.resolve(index), number, mode == "atomic_add")
        self._store_names[id(store)] = name
        return store

    def reduction(self, dtype: torch.dtype, src_dtype: torch.dtype, reduction_type: Any, value: Any) -> Any:
        if reduction_type not in ("sum", "prod", "max", "min", "any", "argmax", "argmin", "xor_sum"):
            raise NotImplementedError(f"reduction {reduction_type}")
        key = (src_dtype, reduction_type, value)
        if key in self.cse.reduction_cache:
            return self.cse.reduction_cache[key]
        source = as_value(value)
        result = torch.int64 if reduction_type in ("argmax", "argmin") else compute_dtype(dtype)
        variable = self.record(Value("", "reduce", result, (source,), kind=reduction_type, src_dtype=src_dtype))
        self.cse.reduction_cache[key] = variable
        return variable

    def check_bounds(self, expr: sympy.Expr, size: sympy.Expr, lower: bool, upper: bool) -> None:
        """Nothing: indices are checked where they become symbols (``LoopOps.indirect_indexing``)."""

    def device_assert_async(self, cond: CSEVariable, msg: str) -> None:
        """Raises ``msg`` (a RuntimeError, once the plan has run) unless ``cond`` holds everywhere."""
        self.record(Value("", "assertion", torch.bool, (as_value(cond),), mask=self.mask, message=msg))

    def codegen_iteration_ranges_entry(self, entry: IterationRangesEntry) -> None:
        """Nothing: ranges are printed when the whole kernel is known."""

    def codegen_body(self) -> None:
        """Ends a region: what was computed inside the reduction, results aside, is unknown after it."""
        self._open = False
        self._known = {key: v for key, v in self._known.items() if v.value.name in self._kept}
        self.cse.invalidate(OrderedSet(v for name, v in self._variables.items() if name in self._kept))

    # ---- result ----

    def loop_kernel(self) -> LoopKernel:
        """What was recorded, without the stores to buffers that Inductor removed."""
        removed = self.removed_buffers | V.graph.removed_buffers
        for region in self.regions:
            region.body = [s for s in region.body if not self._is_removed(s, removed)]
            region.after = [s for s in region.after if not self._is_removed(s, removed)]
        roots = {
            tree.name: Root(
                tree.name,
                self._resolved_size(tree.numel),
                prefix_is_reduction(tree.prefix),
                self._hint(tree.numel),
            )
            for tree in self.range_trees
        }
        entries = {
            symbol: Entry(
                symbol,
                roots[node.root.name],
                self._resolved_size(node.divisor),
                self._resolved_size(node.length),
                V.graph.sizevars.statically_known_equals(node.divisor * node.length, node.root.numel),
                self._hint(node.divisor),
                self._hint(node.length),
            )
            for symbol, node in self.range_tree_nodes.items()
        }
        return LoopKernel(
            roots=list(roots.values()),
            entries=entries,
            regions=self.regions,
            buffers=self.buffer_dtypes,
            written=set(self.written.values()),
            indirect=self.indirect,
            floats=self._float_symbols(),
        )

    def _is_removed(self, statement: Value | Store, removed: Any) -> bool:
        return isinstance(statement, Store) and self._store_names[id(statement)] in removed

    @staticmethod
    def _resolved_size(expr: Any) -> sympy.Expr:
        expr = sympy.sympify(expr)
        precomputed = V.graph.sizevars.inv_precomputed_replacements
        return expr.xreplace({s: precomputed[s] for s in expr.free_symbols if s in precomputed})

    @staticmethod
    def _hint(expr: Any) -> int:
        try:
            return int(V.graph.sizevars.optimization_hint(expr, fallback=64))
        except ZeroDivisionError:  # by the size of a result that has no elements, so far
            return 64

    def _float_symbols(self) -> set[sympy.Symbol]:
        symbols: set[sympy.Symbol] = set()
        for region in self.regions:
            for statement in region.body:
                if isinstance(statement, Value) and statement.op == "index_expr":
                    symbols |= {
                        s for s in statement.index.free_symbols if symbol_is_type(s, (SymT.FLOAT, SymT.UNBACKED_FLOAT))
                    }
        return symbols

    def codegen_kernel(self) -> str:
        """The kernel's source; :attr:`emitted` says how to launch it."""
        self.codegen_body()
        target = target_here(V.graph.get_current_device_or_throw())
        self.loops = self.loop_kernel()
        run_passes(self.loops, target.tuning)
        wrapper: Any = V.graph.wrapper_code  # a PlanWrapper
        self.emitted = wrapper.printed(self.loops, target)
        return self.emitted.source

    def call_kernel(self, name: str, node: Any = None, deallocate_ws: bool = True) -> None:
        assert self.emitted is not None and self.loops is not None
        wrapper: Any = V.graph.wrapper_code  # a PlanWrapper
        wrapper.launch(name, self.emitted, self.loops, V.graph.get_current_device_or_throw().index or 0)
