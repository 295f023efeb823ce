# SPDX-License-Identifier: Apache-2.0
"""Runs a plan on Oclgrind: what ``csrc/runtime/plans/executor.cpp`` does, with a buffer of its own for each tensor, so
that an access beside one is seen."""

from __future__ import annotations

import ctypes
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

from outboard.compiler.plans import plan as p
from outboard.compiler.plans.ordering import order_of

from .simulator import Simulator

_BINARY: dict[p.Op, Callable[[int, int], int]] = {
    p.Op.ADD: operator.add,
    p.Op.SUB: operator.sub,
    p.Op.MUL: operator.mul,
    p.Op.FLOOR_DIV: operator.floordiv,
    p.Op.MOD: operator.mod,
    p.Op.CEIL_DIV: lambda a, b: -(-a // b),
    p.Op.MIN: min,
    p.Op.MAX: max,
    p.Op.EQ: operator.eq,
    p.Op.NE: operator.ne,
    p.Op.LT: operator.lt,
    p.Op.LE: operator.le,
    p.Op.AND: lambda a, b: bool(a) and bool(b),
    p.Op.OR: lambda a, b: bool(a) or bool(b),
    p.Op.POW: operator.pow,
    p.Op.SHIFT_LEFT: operator.lshift,
    p.Op.SHIFT_RIGHT: operator.rshift,
    p.Op.BIT_AND: operator.and_,
}

_NUMBERS: dict[p.ArgumentKind, Callable[[Any], Any]] = {
    p.ArgumentKind.INT64: ctypes.c_int64,
    p.ArgumentKind.INT32: ctypes.c_int32,
    p.ArgumentKind.FLOAT32: ctypes.c_float,
    p.ArgumentKind.FLOAT64: ctypes.c_double,
}

#: By the number of their ``c10::ScalarType``.
_DTYPES = {
    0: torch.uint8,
    1: torch.int8,
    2: torch.int16,
    3: torch.int32,
    4: torch.int64,
    5: torch.float16,
    6: torch.float32,
    7: torch.float64,
    11: torch.bool,
    15: torch.bfloat16,
}


#: How many the device says it has.
COMPUTE_UNITS = 4


def evaluate(code: p.Expr, symbols: Sequence[Any]) -> int:
    """The value of an expression."""
    stack: list[int] = []
    for op, immediate in code:
        if op == p.Op.CONST:
            stack.append(immediate)
        elif op == p.Op.SYMBOL:
            stack.append(symbols[immediate])
        elif op == p.Op.NOT:
            stack.append(int(not stack.pop()))
        elif op == p.Op.SELECT:
            otherwise, chosen, condition = stack.pop(), stack.pop(), stack.pop()
            stack.append(chosen if condition else otherwise)
        else:
            right = stack.pop()
            stack.append(int(_BINARY[op](stack.pop(), right)))
    (result,) = stack
    return result


def _contents(tensor: torch.Tensor) -> bytes:
    """All bytes of the memory that a CPU tensor is a view of."""
    whole = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())  # type: ignore[call-overload]
    contents: bytes = whole.numpy().tobytes()
    return contents


class PlanRun:
    """One run of a plan on CPU tensors and numbers. ``source_edit`` changes each program's text before it is built."""

    def __init__(
        self,
        plan: p.Plan,
        inputs: Sequence[Any],
        simulator: Simulator,
        source_edit: Callable[[str], str] = lambda source: source,
    ) -> None:
        self.plan = plan
        self.inputs = inputs
        self.simulator = simulator
        self.source_edit = source_edit
        self.launches = 0
        self.symbols: list[Any] = []
        for symbol in plan.symbols:
            self.symbols.append(self._symbol(symbol))
        self.buffers: dict[int, ctypes.c_void_p] = {}
        self.sizes: dict[int, int] = {}
        for number, value in enumerate(inputs):
            if isinstance(value, torch.Tensor):
                self._allocate(number, _contents(value))
        self.failed = simulator.buffer(bytes(4))

    def run(self) -> list[torch.Tensor]:
        """The tensors among the results. Raises NotImplementedError for a step that Oclgrind cannot carry out."""
        for step in self.plan.steps:
            self._step(step)
        results = [self._view(output.view) for output in self.plan.outputs if output.view is not None]
        for buffer in (*self.buffers.values(), self.failed):
            self.simulator.release(buffer)
        return results

    def _symbol(self, symbol: p.Symbol) -> Any:
        if symbol.source == p.SymbolSource.COMPUTE_UNITS:
            return COMPUTE_UNITS
        value = self.inputs[symbol.input] if symbol.source != p.SymbolSource.DERIVED else None
        if symbol.source == p.SymbolSource.SIZE:
            return value.shape[symbol.dim]
        if symbol.source == p.SymbolSource.STRIDE:
            return value.stride(symbol.dim)
        if symbol.source == p.SymbolSource.STORAGE_OFFSET:
            return value.storage_offset()
        if symbol.source == p.SymbolSource.DERIVED:
            return evaluate(symbol.derived, self.symbols)
        return order_of(value) if symbol.source == p.SymbolSource.FLOAT_ORDER else value

    def _allocate(self, number: int, contents: bytes) -> None:
        self.buffers[number] = self.simulator.buffer(contents)
        self.sizes[number] = len(contents)

    def _step(self, step: p.Step) -> None:
        if isinstance(step, p.Allocate):
            self._allocate(step.buffer, b"\xff" * self._value(step.nbytes))  # NaN, or -1, to whoever forgets to write
        elif isinstance(step, p.Launch):
            self._launch(step)
        elif isinstance(step, p.Seeds):
            count = self._value(step.nbytes) // 8
            self.simulator.write(self.buffers[step.buffer], _contents(torch.arange(3, 3 + count)))
        elif isinstance(step, p.Copy):
            contents = self.simulator.read(
                self.buffers[step.source], self._value(step.nbytes), self._value(step.source_offset)
            )
            self.simulator.write(self.buffers[step.target], contents, self._value(step.target_offset))
        elif isinstance(step, p.Call):
            raise NotImplementedError(f"{step.name} is called in a library")

    def _launch(self, step: p.Launch) -> None:
        global_size = [self._value(size) for size in step.global_size]
        if 0 in global_size:
            return
        program, name = self.plan.kernels[step.kernel]
        source, options = self.plan.programs[program]
        kernel = self.simulator.kernel(self.source_edit(source), options, name)
        arguments = [self._argument(argument) for argument in step.arguments]
        self.simulator.launch(kernel, arguments, global_size, step.local_size if step.local_size[0] else None)
        self.launches += 1

    def _argument(self, argument: p.Argument) -> Any:
        if argument.kind == p.ArgumentKind.POINTER:
            if self._value(argument.expr) != 0:
                raise NotImplementedError("a pointer into the middle of a tensor")
            return self.buffers[argument.buffer]
        if argument.kind == p.ArgumentKind.ASSERTIONS:
            return self.failed
        if argument.kind in (p.ArgumentKind.FLOAT32, p.ArgumentKind.FLOAT64):
            return _NUMBERS[argument.kind](self.symbols[argument.symbol])
        return _NUMBERS[argument.kind](self._value(argument.expr))

    def _value(self, code: p.Expr) -> int:
        return evaluate(code, self.symbols)

    def _view(self, view: p.ViewSpec) -> torch.Tensor:
        dtype = _DTYPES[view.dtype]
        contents = self.simulator.read(self.buffers[view.buffer], self.sizes[view.buffer])
        flat = torch.frombuffer(bytearray(contents), dtype=dtype) if contents else torch.empty(0, dtype=dtype)
        sizes, strides = ([self._value(each) for each in part] for part in (view.sizes, view.strides))
        return flat.as_strided(sizes, strides, self._value(view.offset))
