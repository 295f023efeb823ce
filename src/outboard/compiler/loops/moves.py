# SPDX-License-Identifier: Apache-2.0
"""Elements that a kernel only moves keep all their bits.

A float narrower than float32 is converted when it is loaded and when it is stored, and the way through float32 changes
the bits of some NaN. What lies in such tensors need not be floats: packed weights are kept in tensors of bfloat16.
Complex numbers, which kernels do not compute with, are moved so, too.
"""

from __future__ import annotations

import dataclasses

import torch

from .nest import MOVED_DTYPES, LoopKernel, Store, Value, bits_dtype


def keep_bits(kernel: LoopKernel) -> None:
    """Makes integers of narrow floats and complex numbers that a kernel moves, and does nothing else with, in place: of
    the elements of their buffers, and of choices among them."""
    moves = _Moves(kernel)
    moved = moves.moved()
    if not moved:
        return
    for region in kernel.regions:
        region.body = [each for s in region.body for each in _rewritten(kernel, s, moves, moved)]
    for name in moved & kernel.buffers.keys():
        kernel.buffers[name] = bits_dtype(kernel.buffers[name])


@dataclasses.dataclass(frozen=True)
class _Elements:
    """What a value has of elements of ``dtype``, or of any for a constant. ``together`` are the names of buffers and of
    values that become integers with it, if at all."""

    dtype: torch.dtype | None
    together: frozenset[str] = frozenset()


class _Moves:
    """Which buffers and values of a kernel are moved only."""

    def __init__(self, kernel: LoopKernel) -> None:
        self.elements: dict[str, _Elements] = {}
        self.groups: list[frozenset[str]] = []
        self.taken: set[str] = set()
        self.computed: set[str] = set()
        for region in kernel.regions:
            for statement in region.body:
                self._note(kernel, statement)
            for store in region.after:
                self.computed |= self._of(store.value).together | {store.buffer}

    def moved(self) -> set[str]:
        """The names of those that become integers."""
        return self._all_with(self.taken - self._all_with(self.computed))

    def _all_with(self, names: set[str]) -> set[str]:
        found = set(names)
        while more := {name for group in self.groups if group & found for name in group} - found:
            found |= more
        return found

    def _note(self, kernel: LoopKernel, statement: Value | Store) -> None:
        if isinstance(statement, Store):
            self._note_store(statement, kernel.buffers[statement.buffer])
            return
        op, dtype = statement.op, statement.src_dtype
        if op == "load" and kernel.buffers[statement.buffer] in MOVED_DTYPES:
            self.taken.add(statement.name)
            self._has(statement, kernel.buffers[statement.buffer], frozenset({statement.buffer}))
        elif op == "narrow_of_bits":
            self.taken.add(statement.name)
            self._has(statement, dtype)
        elif op == "where":
            self._note_choice(statement)
        elif not (op == "bits_of_narrow" and self._of(statement.args[0]).dtype == dtype):
            self.computed.update(name for argument in statement.args for name in self._of(argument).together)
        if op in ("constant", "narrowed"):
            self.elements[statement.name] = _Elements(dtype)

    def _note_store(self, store: Store, dtype: torch.dtype) -> None:
        elements = self._of(store.value)
        group = elements.together | {store.buffer}
        is_move = store.value.name in self.elements and elements.dtype in (dtype, None) and not store.atomic_add
        if dtype in MOVED_DTYPES and is_move:
            self.groups.append(group)
        else:
            self.computed |= group

    def _note_choice(self, choice: Value) -> None:
        one, other = (self._of(argument) for argument in choice.args[1:])
        dtypes = {one.dtype, other.dtype} - {None}
        together = one.together | other.together
        if len(dtypes) == 1 and all(argument.name in self.elements for argument in choice.args[1:]):
            self._has(choice, dtypes.pop(), together)
        else:
            self.computed |= together

    def _has(self, value: Value, dtype: torch.dtype | None, together: frozenset[str] = frozenset()) -> None:
        self.elements[value.name] = _Elements(dtype, together | {value.name})
        self.groups.append(self.elements[value.name].together)

    def _of(self, value: Value) -> _Elements:
        return self.elements.get(value.name, _Elements(None))


def _rewritten(kernel: LoopKernel, statement: Value | Store, moves: _Moves, moved: set[str]) -> list[Value | Store]:
    """A statement about integers, after what it takes besides elements."""
    added: list[Value] = []

    def bits(value: Value, dtype: torch.dtype) -> Value:
        if value.op == "narrow_of_bits":
            return value.args[0]
        if value.op == "narrowed":
            made = Value(f"{value.name}_bits", "bits_of_narrow", bits_dtype(dtype), value.args, src_dtype=dtype)
        elif value.op == "constant":
            number = torch.tensor(value.constant, dtype=torch.float64).to(dtype).view(bits_dtype(dtype)).item()
            made = Value(f"{value.name}_{number}", "constant", bits_dtype(dtype), constant=number)
        else:
            return value
        added.append(made)
        return made

    if isinstance(statement, Store):
        if statement.buffer in moved:
            statement.value = bits(statement.value, kernel.buffers[statement.buffer])
    elif statement.name in moved and statement.op in ("load", "where"):
        dtype = moves.elements[statement.name].dtype
        assert dtype is not None
        statement.dtype = bits_dtype(dtype)
        if statement.op == "load":
            statement.src_dtype = dtype
        else:
            statement.args = (statement.args[0], *(bits(argument, dtype) for argument in statement.args[1:]))
    elif statement.op == "bits_of_narrow" and statement.args[0].name in moved:
        statement.op, statement.args = "identity", (bits(statement.args[0], statement.dtype),)
    return [*added, statement]
