# SPDX-License-Identifier: Apache-2.0
"""Turns Inductor's wrapper lines (allocate, launch, call, free, return) into a Plan."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import sympy
import torch
from torch._inductor import ir
from torch._inductor.codegen import wrapper as codegen_wrapper
from torch._inductor.codegen.wrapper import (
    PythonWrapperCodegen,
    WrapperLine,
)
from torch._inductor.utils import LineContext
from torch._inductor.virtualized import V
from torch.utils import _pytree as pytree

from .. import kernels
from ..choice.calls import lower_call, uses_library
from ..kernels.call import ExternCall
from ..kernels.epilogue import Epilogue
from ..loops.nest import LoopKernel, structure
from ..plans import plan as p
from ..plans.builder import NotExpressible, PlanBuilder, Size, TensorArg
from ..printing import EmittedKernel, emit, program
from ..target import Target
from . import epilogues
from .operators.strides import dense_strides
from .symbols import expression


@dataclasses.dataclass
class LaunchLine(WrapperLine):
    """The launch of a generated kernel on the device numbered ``device``; ``loops`` is what it was printed from."""

    wrapper: PlanWrapper
    name: str
    kernel: EmittedKernel
    loops: LoopKernel
    device: int

    def codegen(self, code: Any) -> None:
        """Writes the launch as a line of Python (for graphs that are no single plan)."""
        self.wrapper.write_python_launch(code, self)

    def codegen_fx(self, converter: Any) -> Any:
        """The converter's method for this line."""
        return converter._generate_launch


class PlanWrapper(PythonWrapperCodegen):
    """Collects wrapper lines; :meth:`_generate` makes a plan of them."""

    def __init__(self) -> None:
        super().__init__()
        self._printed: dict[Hashable, tuple[EmittedKernel, list[str]]] = {}

    def printed(self, loops: LoopKernel, target: Target) -> EmittedKernel:
        """A kernel as text. Those of layers that are alike differ in their buffers only, and are printed once."""
        key, buffers = (target, structure(loops)), list(loops.buffers)
        if key not in self._printed:
            self._printed[key] = emit(loops, target), buffers
        kernel, known = self._printed[key]
        names = dict(zip(known, buffers, strict=True))
        return dataclasses.replace(kernel, buffers=[names[name] for name in kernel.buffers])

    def launch(self, name: str, kernel: EmittedKernel, loops: LoopKernel, device: int) -> None:
        """Called by a kernel when it is to be launched."""
        self.writeline(LaunchLine(self, name, kernel, loops, device))

    def make_allocation(self, name: str, device: torch.device, *args: Any, **kwargs: Any) -> str:
        """A line that makes a buffer on its device; PyTorch's names the type, which is whatever device is current."""
        line: str = super().make_allocation(name, device, *args, **kwargs)
        return line.replace(f"device='{device.type}'", f"device='{device}'")

    def write_python_launch(self, code: Any, line: LaunchLine) -> None:
        """See :class:`LaunchLine`."""
        raise NotExpressible("a launch outside a plan")


#: What the one operator that is being lowered is appended to; None while a graph of ``torch.compile`` is lowered.
operator_builder: contextvars.ContextVar[PlanBuilder | None] = contextvars.ContextVar("outboard_builder", default=None)


@contextlib.contextmanager
def building(builder: PlanBuilder) -> Iterator[None]:
    """Inside, graphs for our device are appended to ``builder`` instead of becoming a Python module."""
    token = operator_builder.set(builder)
    try:
        yield
    finally:
        operator_builder.reset(token)


class EagerWrapper(PlanWrapper):
    """The wrapper of one operator's graph: its plan goes to ``builder``, no Python is written."""

    builder: PlanBuilder
    fallbacks: int = 0
    native: int = 0

    def _generate(self, is_inference: bool) -> Any:
        self.run_wrapper_ir_passes(is_inference)
        self.builder.hint, self.builder.assume = size_hint, lambda condition: self._guard([condition])
        self.builder.number = lambda value: size_hint(value) if value.is_integer else None
        converter = PlanConverter(self.builder, list(self.get_graph_inputs()))
        converter.convert(computing(self.lines), self.get_graph_outputs())
        self.fallbacks, self.native = converter.fallbacks, converter.native
        for line in self.lines:
            if isinstance(line, LaunchLine):
                self._guard(line.kernel.assumptions)
        return None, None

    def _guard(self, assumptions: Sequence[sympy.Basic]) -> None:
        """Restricts the plan to sizes that its kernels were made for: others get a plan of their own, so that the sizes
        of the first call do not decide how fast the others are."""
        for assumption in assumptions:
            # What integers cannot express concerns speed only.
            with contextlib.suppress(NotExpressible):
                self.builder.guard(assumption)


def size_hint(size: Size) -> int | None:
    """The value of an expression for the sizes that a graph was traced with; None if there is none."""
    hint = V.graph.sizevars.optimization_hint(sympy.sympify(size), fallback=-1)
    return int(hint) if hint >= 0 else None


#: Lines of checks, of which each release of PyTorch has more.
_CHECKS = tuple(
    getattr(codegen_wrapper, name)
    for name in ("AssertSizeStrideLine", "GroupedAssertSizeStrideLine", "AssertAlignmentLine")
    if hasattr(codegen_wrapper, name)
)


def computing(lines: Sequence[Any]) -> list[Any]:
    """Lines without those that do nothing: comments of Python, and checks of an alignment, on which no kernel of ours
    relies, and of how a call's results lie, which plans decide."""
    return [line for line in lines if not isinstance(line, _CHECKS) and not _says_nothing(line)]


def _says_nothing(line: Any) -> bool:
    return isinstance(line, str) and (not (text := line.strip()) or text.startswith(("#", "assert_alignment(")))


class PlanConverter:
    """Appends wrapper lines to a plan whose inputs ``names`` are defined already, in order."""

    def __init__(self, builder: PlanBuilder, names: Sequence[str], constants: dict[str, int] | None = None) -> None:
        self.builder = builder
        self.inputs = {name: number for number, name in enumerate(names)}
        self.inputs.update(constants or {})
        self.tensors: dict[str, TensorArg] = {}
        self.fallbacks = 0
        self.native = 0
        #: kernel definition -> (source of a program that holds it, the kernel's name there)
        self._programs: dict[str, tuple[str, str]] = {}
        #: ``id`` of the line of a launch -> the line of the product whose result it finishes; and the latter's ids
        self._finishing: dict[int, Any] = {}
        self._finished: set[int] = set()

    def convert(self, lines: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Converts all lines (see :func:`computing`) and the results. Raises NotExpressible."""
        for line in lines:
            if id(line) in self._finished:
                self._results(line.node)  # computed by the launch that finishes it
            elif isinstance(line, WrapperLine):
                self._convert_line(line)
            elif not isinstance(line, LineContext):
                raise NotExpressible(f"wrapper line {str(line)[:80]!r}")
        for node in outputs:
            self._output(node)
        self._insert_frees()

    def _convert_line(self, line: WrapperLine) -> None:
        try:
            handler = line.codegen_fx(self)  # type: ignore[arg-type] # it only asks for the method by name
        except (NotImplementedError, AttributeError) as error:
            raise NotExpressible(f"wrapper line {type(line).__name__}") from error
        handler(line)

    def read(self) -> set[int]:
        """The buffers that the plan's steps and results name."""
        named = {buffer for step in self.builder.steps for buffer in _touched(step)}
        return named | {output.view.buffer for output in self.builder.outputs if output.view is not None}

    # ---- tensors ----

    def tensor(self, node: Any) -> TensorArg:
        """The view that an IR node stands for."""
        if isinstance(node, (ir.TensorBox, ir.StorageBox)):
            return self.tensor(node.data)
        if isinstance(node, ir.ReinterpretView):
            base = self.tensor(node.data)
            layout = node.layout
            offset = base.offset + layout.offset
            return TensorArg(base.buffer, layout.dtype, _sizes(layout.size), _exprs(layout.stride), offset)
        if isinstance(node, ir.Buffer):
            return self._named(node.get_name(), node)
        raise NotExpressible(f"IR node {type(node).__name__}")

    def _named(self, name: str, node: Any = None) -> TensorArg:
        found = self.tensors.get(name)
        if found is not None:
            return found
        number = self.inputs.get(name)
        if number is None:
            raise NotExpressible(f"unknown buffer {name}")
        if node is None:
            node = V.graph.graph_inputs.get(name)
        layout = node.get_layout() if node is not None else None
        if layout is None:
            value = V.graph.constants[name]
            tensor = TensorArg(number, value.dtype, tuple(value.shape), tuple(value.stride()), 0)
        else:
            tensor = TensorArg(number, layout.dtype, _sizes(layout.size), _exprs(layout.stride), 0)
        self.tensors[name] = tensor
        return tensor

    def _allocate(self, node: Any) -> TensorArg:
        layout = node.get_layout()
        tensor = self.builder.allocate_like(_sizes(layout.size), _exprs(layout.stride), layout.dtype)
        self.tensors[node.get_name()] = tensor
        return tensor

    def _output(self, node: Any) -> None:
        builder = self.builder
        if isinstance(node, ir.NoneAsConstantBuffer):
            builder.output_none()
            return
        if isinstance(node, ir.ShapeAsConstantBuffer):
            builder.output_int(node.expr)
            return
        if isinstance(node, (int, sympy.Expr)):
            builder.output_int(node)
            return
        inner = node
        while isinstance(inner, (ir.TensorBox, ir.StorageBox)):
            inner = inner.data
        if isinstance(inner, ir.InputBuffer) and inner.get_name() in self.inputs:
            builder.output_input(self.inputs[inner.get_name()])
            return
        builder.output_tensor(_with_steps(self.tensor(node)))

    # ---- lines (the names are those that Inductor's lines ask for) ----

    def _generate_launch(self, line: LaunchLine) -> None:
        product = self._finishing.get(id(line))
        if product is not None:
            if self._finish(product.node, line.loops):
                self.native += 1
                return
            self._convert_line(product)
        builder, kernel = self.builder, line.kernel
        arguments = [builder.pointer(self._named(name)) for name in kernel.buffers]
        arguments += [builder.int64(expr) for expr in kernel.longs]
        arguments += [builder.float_symbol(symbol, symbol in kernel.doubles) for symbol in kernel.floats]
        if kernel.assertions:
            arguments.append(builder.assertions(kernel.assertions))
        # Kernels of one definition may still differ in how they are launched.
        shared = self._programs.get(kernel.definition)
        if shared is None:
            kernel = kernel.renamed(f"{line.name}_0")
            source = kernel.source
        else:
            source, entry = shared
            kernel = dataclasses.replace(kernel, entry=entry)
        if kernel.combination is not None:
            arguments.append(builder.pointer(builder.allocate(kernel.combination.scratch)))
        builder.launch(builder.kernel(source, kernel.entry), kernel.grid, arguments, kernel.local_size)
        if kernel.combination is not None:
            combine = builder.kernel(source, kernel.combining_entry)
            builder.launch(combine, kernel.combination.grid, arguments, kernel.combination.local_size)
        self.native += 1

    def share_program(self, lines: Sequence[Any]) -> None:
        """Makes one program of all kernels launched by ``lines``, those aside that products compute in their stores."""
        for product, launch in epilogues.pairs(lines, LaunchLine):
            self._finishing[id(launch)] = product
        self._finished = {id(product) for product in self._finishing.values()}
        named: dict[str, EmittedKernel] = {}
        for line in lines:
            if id(line) in self._finishing:
                continue
            if isinstance(line, LaunchLine) and line.kernel.definition not in named:
                named[line.kernel.definition] = line.kernel.renamed(f"{line.name}_{len(named)}")
        source = program(list(named.values())) if named else ""
        self._programs = {definition: (source, kernel.entry) for definition, kernel in named.items()}

    def _generate_allocate(self, line: Any) -> None:
        self._allocate(line.node)

    def _generate_free(self, line: Any) -> None:
        """Nothing: buffers are freed after their last use."""

    _generate_free_if_not_reused = _generate_free
    _generate_null = _generate_free
    _generate_comment = _generate_free
    _generate_enter_device_context_manager = _generate_free
    _generate_exit_device_context_manager = _generate_free

    def _generate_reuse(self, line: Any) -> None:
        old = self._named(line.node.get_name())
        layout = line.reused_as.get_layout()
        self.tensors[line.reused_as.get_name()] = TensorArg(
            old.buffer, layout.dtype, _sizes(layout.size), _exprs(layout.stride), old.offset
        )

    def _generate_reinterpret(self, line: Any) -> None:
        self.tensors[line.reused_as.get_name()] = self.tensor(line.layout.view)

    def _generate_symbolic_call_arg(self, line: Any) -> None:
        self.builder.define_symbol(line.arg.inner, p.SymbolSource.DERIVED, derived=line.arg.inner_expr)

    def _generate_multi_output(self, line: Any) -> None:
        if line.result_name in self.tensors:
            return
        if not line.indices:
            self.tensors[line.result_name] = self._named(line.arg_name)
            return
        raise NotExpressible(f"result {line.result_name} of {line.arg_name}")

    def _generate_extern_kernel_out(self, line: Any) -> None:
        node = line.node
        out = self.tensor(node.output_view if node.output_view else node)
        if node.op_overload is torch.ops.aten.randint.low_out:
            self.builder.seeds(out.buffer, out.numel() * 8)
            return
        args, kwargs = self._arguments(node)
        kwargs["out"] = out
        self._call(node, args, kwargs, [])

    def _generate_unbacked_symbol_defs(self, line: Any) -> None:
        if line.unbacked_bindings:
            raise NotExpressible("sizes that depend on data")

    def _generate_extern_kernel_multi_out(self, line: Any) -> None:
        raise NotExpressible("several outputs")

    def _generate_extern_kernel_alloc(self, line: Any) -> None:
        node = line.node
        args, kwargs = self._arguments(node)
        self._call(node, args, kwargs, self._results(node))

    def _results(self, node: Any) -> list[TensorArg]:
        """Allocates what a functional call returns."""
        layout = node.layout
        if isinstance(layout, ir.NoneLayout):
            return []
        if isinstance(layout, ir.MultiOutputLayout):
            outputs = [o for o in pytree.tree_leaves(node.outputs) if isinstance(o, ir.MultiOutput)]
        else:
            outputs = [node]
        return [self.tensors.get(output.get_name()) or self._allocate(output) for output in outputs]

    def _generate_index_put_fallback(self, line: Any) -> None:
        node = line.node
        x, values = (self.tensor(t) for t in node.inputs[:2])
        indices = [None if i is None else self.tensor(i) for i in line.indices]
        self._call(node, [x, indices, values, *map(_value, node.constant_args)], {}, [])

    def _generate_scatter_fallback(self, line: Any) -> None:
        node = line.node
        tensors = [self.tensor(t) for t in node.inputs]
        source = tensors[2] if node.src_is_tensor else _value(node.constant_args[1])
        names = {argument.name for argument in node.op_overload._schema.arguments}
        kwargs = {k: _value(v) for k, v in node.kwargs.items() if k in names and v is not None}
        self._call(node, [tensors[0], _value(node.constant_args[0]), tensors[1], source], kwargs, [])

    def _arguments(self, node: Any) -> tuple[list[Any], dict[str, Any]]:
        tensors = [self._argument(t) for t in node.inputs]
        if hasattr(node, "unflatten_args"):
            args, kwargs = node.unflatten_args(tensors, node.constant_args)
            kwargs = {**kwargs, **{k: v for k, v in node.kwargs.items() if k not in kwargs}}
        else:
            args, kwargs = [*tensors, *node.constant_args], dict(node.kwargs)
        return [self._convert(a) for a in args], {k: self._convert(v) for k, v in kwargs.items()}

    def _argument(self, node: Any) -> Any:
        if isinstance(node, ir.NoneAsConstantBuffer):
            return None
        if isinstance(node, ir.ShapeAsConstantBuffer):
            return node.expr
        return self.tensor(node)

    def _convert(self, value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [self._convert(v) for v in value]
        if isinstance(value, ir.IRNode):
            return self._argument(value)
        return _value(value)

    def _call(self, node: Any, args: list[Any], kwargs: dict[str, Any], results: list[TensorArg]) -> None:
        if lower_call(self.builder, _extern_call(node, args, kwargs, results)):
            self.native += 1
        else:
            self.fallbacks += 1

    def _finish(self, node: Any, loops: LoopKernel) -> bool:
        """Appends a product whose store does the work of a pointwise kernel; returns False if it does not take it."""
        result = self._named(epilogues.result_of(node).get_name())
        args, kwargs = self._arguments(node)
        operands = {a.buffer for a in (*args, *kwargs.values()) if isinstance(a, TensorArg)}
        for name in loops.written:
            tensor = self._named(name)
            if tensor.buffer not in operands:
                continue
            if name in self.inputs:
                return False
            # Memory that is free once the product is done must not be written before.
            self.tensors[name] = self.builder.allocate_like(tensor.sizes, tensor.strides, tensor.dtype)
        source = epilogues.result_of(node).get_name()
        tensors = {name: self._named(name) for name in loops.buffers if name != source}
        # Only the epilogue's own operands are written: any memory will do for the product.
        out = next((tensors[name] for name in loops.written if name in tensors), None)
        if out is None:
            return False
        target = dataclasses.replace(result, buffer=out.buffer, offset=sympy.Integer(0))
        if "out" in {argument.name for argument in node.op_overload._schema.arguments}:
            call = _extern_call(node, args, {**kwargs, "out": target}, [])
        else:
            call = _extern_call(node, args, kwargs, [target])
        call.epilogue = Epilogue(loops, source, tensors)
        return not uses_library(self.builder, call) and kernels.lower(self.builder, call)

    # ---- lifetimes ----

    def _insert_frees(self) -> None:
        """Frees each intermediate buffer after the last step that touches it, and makes none that nothing touches."""
        builder = self.builder
        kept = {o.view.buffer for o in builder.outputs if o.view is not None} | set(range(len(builder.inputs)))
        freed = {step.buffer for step in builder.steps if isinstance(step, p.Free)}
        last: dict[int, int] = {}
        for number, step in enumerate(builder.steps):
            for buffer in _touched(step):
                last[buffer] = number
        ends: dict[int, list[int]] = {}
        for buffer, number in last.items():
            if buffer not in kept and buffer not in freed:
                ends.setdefault(number, []).append(buffer)
        steps: list[p.Step] = []
        for number, step in enumerate(builder.steps):
            if number in ends and isinstance(step, p.Allocate):
                continue
            steps.append(step)
            steps.extend(p.Free(buffer) for buffer in ends.get(number, ()))
        builder.steps = steps


def _extern_call(node: Any, args: list[Any], kwargs: dict[str, Any], results: list[TensorArg]) -> ExternCall:
    overload = node.op_overload
    if not isinstance(overload, torch._ops.OpOverload):
        raise NotExpressible(f"call of {overload}")
    schema = overload._schema
    name = schema.name + (f".{schema.overload_name}" if schema.overload_name else "")
    return ExternCall(name, args, _ordered_kwargs(node, schema, len(args), kwargs), results)


def _touched(step: p.Step) -> list[int]:
    """The buffers that a step names."""
    if isinstance(step, (p.Allocate, p.Seeds)):
        return [step.buffer]
    if isinstance(step, p.Launch):
        return [a.buffer for a in step.arguments if a.kind == p.ArgumentKind.POINTER]
    if isinstance(step, p.Copy):
        return [step.source, step.target]
    if isinstance(step, p.Call):
        buffers = [view.buffer for view in step.results]
        work = list(step.call_arguments)
        while work:
            argument = work.pop()
            work.extend(argument.items)
            if argument.tensor is not None:
                buffers.append(argument.tensor.buffer)
        return buffers
    return []


def _with_steps(tensor: TensorArg) -> TensorArg:
    """A result without elements, off whose index, which moves nowhere, Inductor reads no strides, with those of a
    contiguous tensor."""
    if 0 not in tensor.sizes or any(tensor.strides):
        return tensor
    strides = dense_strides(tensor.sizes, range(len(tensor.sizes) - 1, -1, -1))
    return dataclasses.replace(tensor, strides=tuple(strides))


def _sizes(values: Sequence[Any]) -> tuple[sympy.Expr, ...]:
    """Sizes, with 1 for those that a guard has found to be 1: kernels broadcast these."""
    known = V.graph.sizevars.statically_known_equals
    return tuple(sympy.S.One if size.args and known(size, 1) else size for size in _exprs(values))


def _exprs(values: Sequence[Any]) -> tuple[sympy.Expr, ...]:
    return tuple(sympy.sympify(_value(v)) for v in values)


def _value(value: Any) -> Any:
    """A constant argument: symbolic numbers become sympy."""
    return [_value(v) for v in value] if isinstance(value, (list, tuple)) else expression(value)


def _ordered_kwargs(node: Any, schema: Any, given: int, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Keyword arguments that the schema knows and that differ from its defaults."""
    known = {argument.name: argument for argument in schema.arguments[given:]}
    return {
        name: value
        for name, value in kwargs.items()
        if name in known and not (known[name].has_default_value() and known[name].default_value == value)
    }
