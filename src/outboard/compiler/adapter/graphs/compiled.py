# SPDX-License-Identifier: Apache-2.0
"""Whole graphs for ``torch.compile``.

The module that Inductor writes to its cache holds one plan as text and runs it. A graph that no plan can hold (work on
the CPU in its middle, sizes that depend on data) becomes Inductor's ordinary Python instead, in which each kernel of
ours is a plan of one launch.
"""

from __future__ import annotations

import base64
import contextlib
import contextvars
import copy
import dataclasses
import logging
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import sympy
import torch
from torch._inductor import ir
from torch._inductor.codegen.wrapper import SubgraphPythonWrapperCodegen, pexpr
from torch._inductor.utils import ValueWithLineMap
from torch._inductor.virtualized import V
from torch.utils._sympy.functions import CeilToInt, FloorToInt, ToFloat, TruncToInt
from torch.utils._sympy.symbol import SymT, symbol_is_type

from ... import progress
from ...plans import plan as p
from ...plans.builder import NotExpressible, PlanBuilder, TensorArg
from ...plans.schema import serialize
from ...printing.emitted import EmittedKernel
from ...target import Target, target_of
from .. import implemented
from ..wrapper import LaunchLine, PlanConverter, PlanWrapper, computing, size_hint
from . import packed_constants

_log = logging.getLogger(__name__)

_HEADER = """\
import torch
from outboard.compiler import generated_modules
"""

_FUNCTION = """\

_plan_{name} = generated_modules.load({plan!r}, {device})
{packing}

def {name}(args):
    {unpack}
    args.clear()
    {prepare}
    values = [{values}]
    {forget}
    return tuple(_plan_{name}.run(values))
"""


_PACKING = """\
_packed_{name} = generated_modules.Packed({plan!r}, {device}, {constants}, {forgotten})
"""


def pack(plan: p.Plan) -> str:
    """A plan as text for a Python module (see ``outboard.compiler.generated_modules.load``)."""
    return base64.b85encode(zlib.compress(serialize(plan), 6)).decode()


def is_float_symbol(symbol: sympy.Basic) -> bool:
    """Whether a symbol stands for a floating-point input."""
    return isinstance(symbol, sympy.Symbol) and symbol_is_type(symbol, (SymT.FLOAT, SymT.UNBACKED_FLOAT))


@dataclasses.dataclass
class Capture:
    """What became of the graph compiled inside :func:`capturing`."""

    plan: p.Plan | None = None
    constants: list[torch.Tensor] = dataclasses.field(default_factory=list)  #: the plan's inputs after the graph's own
    refusal: NotExpressible | None = None  #: why there is no plan


_capture: contextvars.ContextVar[Capture | None] = contextvars.ContextVar("outboard_capture", default=None)


@contextlib.contextmanager
def capturing() -> Iterator[Capture]:
    """Inside, one graph is compiled to be kept: its plan uses no library of the host and goes to the object yielded,
    and a graph that no plan can hold is refused (``refusal``, and an error of Inductor's)."""
    capture = Capture()
    token = _capture.set(capture)
    try:
        yield capture
    finally:
        _capture.reset(token)


class GraphWrapper(PlanWrapper):
    """The wrapper of a graph compiled by ``torch.compile``."""

    def __init__(self) -> None:
        super().__init__()
        self._launchers: dict[tuple[Any, ...], str] = {}
        self._imported = False

    @classmethod
    def create(
        cls, is_subgraph: bool, subgraph_name: Any, parent_wrapper: Any, partition_signatures: Any = None
    ) -> Any:
        """A wrapper for a graph, or for a graph inside of the one that ``parent_wrapper`` writes."""
        if is_subgraph:
            return SubgraphWrapper(subgraph_name, parent_wrapper, partition_signatures)
        return cls()

    def _generate(self, is_inference: bool) -> Any:
        # Copies: the passes write into the lines, and may have to run again.
        lines = [copy.copy(line) for line in self.lines]
        try:
            self.run_wrapper_ir_passes(is_inference)
            text = self._header() + _plan_function(self, self._function_name())
        except NotExpressible as reason:
            capture = _capture.get()
            if capture is not None:
                capture.refusal = reason
                raise
            _log.info("a graph is run line by line, from Python: %s", reason)
            self.lines = lines
            self._make_views_here()
            return super()._generate(is_inference)
        return ValueWithLineMap(text, []), ValueWithLineMap("", [])

    def _header(self) -> str:
        """What the module needs before a function that runs a plan."""
        return _HEADER

    def is_subgraph(self) -> bool:
        """Whether the module holds more functions than this graph's."""
        return False

    def _function_name(self) -> str:
        return "call"

    def write_python_launch(self, code: Any, line: LaunchLine) -> None:
        """Writes ``launcher.run([...])``, and defines the launcher before the module's ``call``."""
        rounded = _rounded(line.kernel)
        line = dataclasses.replace(line, kernel=line.kernel.with_symbols(rounded))
        kernel, texts = line.kernel, {symbol: pexpr(expr) for expr, symbol in rounded.items()}
        buffers = [_on_device(name, line.device) for name in kernel.buffers]
        sizes = [texts.get(symbol, str(symbol)) for symbol in kernel.sizes]
        code.writeline(f"{self.launcher(line)}.run([{', '.join([*buffers, *sizes, *map(str, kernel.floats)])}])")

    def _codegen_assert_size_stride(
        self, code: Any, name: str, size: str, stride: str, op_name: str, *more: Any
    ) -> None:
        """Writes a check of an operator's result, of its dtype, too: kernels read memory as the graph was planned."""
        if op_name == "input":
            super()._codegen_assert_size_stride(code, name, size, stride, op_name, *more)
            return
        self.import_runtime()
        if op_name.startswith(implemented.PREFIX):
            op_name = op_name.replace(implemented.PREFIX, "torch.ops.aten.")
            code.writeline(f"{name} = generated_modules.arranged({name}, {size}, {stride})")
        dtype = V.graph.get_dtype(name)
        code.writeline(f"generated_modules.check({name}, {size}, {stride}, {dtype}, {op_name!r})")

    def import_runtime(self) -> None:
        """Has a module that is written line by line import what loads plans; repeated calls do nothing."""
        if not self._imported:
            self._imported = True
            self.header.writeline("from outboard.compiler import generated_modules")

    def _make_views_here(self) -> None:
        """Has a module that is written line by line make its views as plans make theirs."""
        self.import_runtime()
        self.header.writeline("reinterpret_tensor = generated_modules.view_of")

    def launcher(self, line: LaunchLine) -> str:
        """The name, in the module, of a plan of one launch."""
        kernel = line.kernel
        dtypes = tuple(V.graph.get_dtype(name) for name in kernel.buffers)
        key = (kernel.source, kernel.grid, tuple(kernel.longs), dtypes, line.device)
        if key not in self._launchers:
            name = f"launcher_{len(self._launchers)}"
            self._launchers[key] = name
            plan = _launch_plan(line, dtypes, target_of(line.device))
            self.import_runtime()
            self.header.writeline(f"{name} = generated_modules.load({pack(plan)!r}, {line.device})")
        return self._launchers[key]


def _rounded(kernel: EmittedKernel) -> dict[sympy.Basic, sympy.Symbol]:
    """Integers that multiples of sizes by fractions are rounded to, which Python computes and plans do not: the symbols
    that stand for them."""
    found: dict[sympy.Basic, sympy.Symbol] = {}
    combination = kernel.combination
    launched = [] if combination is None else [*combination.grid, combination.scratch]
    for expr in (*kernel.longs, *kernel.grid, *kernel.assumptions, *launched):
        for node in sympy.preorder_traversal(expr):
            if isinstance(node, (TruncToInt, FloorToInt, CeilToInt)) and node.has(sympy.Float, ToFloat):
                found.setdefault(node, sympy.Symbol(f"rounded{len(found)}", integer=True, nonnegative=True))
    return found


def _device() -> int:
    """The index of the device that the graph being compiled runs on, of one that is a plan."""
    return int(min(V.graph.device_idxs, default=0))


def _moved(name: str, device: int) -> str:
    """A number on the CPU, in Python, on its way to a device."""
    return f"{name}.to('{torch._C._get_privateuse1_backend_name()}:{device}', non_blocking=True)"


def _on_device(name: str, device: int) -> str:
    """A kernel's buffer in Python: a number on the CPU (an optimizer's step count) goes to the device."""
    buffer = V.graph.try_get_buffer(name)
    where = None if buffer is None else buffer.get_device()
    return _moved(name, device) if where is not None and where.type == "cpu" else name


def _launch_plan(line: LaunchLine, dtypes: tuple[torch.dtype, ...], target: Target) -> p.Plan:
    """A plan of one launch; its inputs are the kernel's buffers, sizes and floats."""
    builder, kernel = PlanBuilder(target), line.kernel
    converter = PlanConverter(builder, [])
    for name, dtype in zip(kernel.buffers, dtypes, strict=True):
        converter.tensors[name] = TensorArg(builder.add_input(p.InputKind.TENSOR), dtype, (), ())
    for symbol in kernel.sizes:
        builder.define_symbol(symbol, p.SymbolSource.INT, builder.add_input(p.InputKind.INT))
    for symbol in kernel.floats:
        builder.define_symbol(symbol, p.SymbolSource.FLOAT, builder.add_input(p.InputKind.FLOAT))
    converter.convert([line], [])
    return builder.finish()


def _plan_function(wrapper: GraphWrapper, name: str) -> str:
    """The text of a function that runs a whole graph as one plan. Raises NotExpressible."""
    if len(V.graph.device_idxs) > 1:
        raise NotExpressible("more devices than one")
    capture, device = _capture.get(), _device()
    target = target_of(device)
    builder = PlanBuilder(target if capture is None else dataclasses.replace(target, library=""))
    builder.hint = size_hint
    inputs = dict(wrapper.get_graph_inputs())
    values = [_add_input(builder, given, node) for given, node in inputs.items()]
    constants = {}
    for constant_name, constant in V.graph.constants.items():
        if constant.device.type == torch._C._get_privateuse1_backend_name():
            constants[constant_name] = builder.add_input(p.InputKind.TENSOR)
            values.append(constant_name)
            if capture is not None:
                capture.constants.append(constant)
    for number, node in enumerate(inputs.values()):
        _define_sizes(builder, number, node)
    names = list(inputs)
    converter = PlanConverter(builder, names, constants)
    lines = computing(wrapper.lines)
    if _writes_beside_views(lines):
        raise NotExpressible("views that operators of the host make, beside writes")
    matrices = [] if capture is not None else _add_packed(converter, lines, constants)
    converter.share_program(lines)
    converter.convert(lines, wrapper.get_graph_outputs())
    if capture is not None:
        _add_guards(builder)
    read = converter.read()
    unread = {constant_name: number for constant_name, number in constants.items() if number not in read}
    for number in unread.values():
        builder.inputs[number], values[number] = p.InputKind.NONE, "None"
    used = [view for view, number in builder.packed.items() if number in read]
    for view, number in builder.packed.items():
        builder.inputs[number] = p.InputKind.TENSOR if view in used else p.InputKind.NONE
        values.append(f"packed[{used.index(view)}]" if view in used else "None")
    packing = prepare = ""
    if used:
        prepare = f"packed = _packed_{name}.tensors(globals())"
        given = [constant for constant, view in zip(matrices, builder.packed, strict=True) if view in used]
        packing = _packing(name, used, given, [] if wrapper.is_subgraph() else sorted(unread), target)
    plan = builder.finish()
    if capture is not None:
        capture.plan = plan
    progress.show_kernels("graph", plan.programs)
    unpack = f"{', '.join(names)}, = args" if names else "pass"
    forget = f"del {', '.join(names)}" if names else "pass"  # the plan is the last to hold its inputs
    listed = ", ".join(values)
    return _FUNCTION.format(
        name=name,
        plan=pack(plan),
        device=device,
        packing=packing,
        unpack=unpack,
        prepare=prepare,
        values=listed,
        forget=forget,
    )


def _writes_beside_views(lines: Sequence[Any]) -> bool:
    """Whether the host calls an operator for a view, as of complex tensors, in a graph that writes: what such a call
    gives a plan is memory of its own, which shares no writes."""
    called = [getattr(getattr(line, "node", None), "op_overload", None) for line in lines]
    overloads = [each for each in called if isinstance(each, torch._ops.OpOverload)]
    writes = bool(V.graph.mutated_buffers) or any(each._schema.is_mutable for each in overloads)
    return writes and any(each.is_view for each in overloads)


def _add_packed(converter: PlanConverter, lines: Sequence[Any], constants: dict[str, int]) -> list[str]:
    """Adds inputs for constant matrices that products should find packed; returns the constants' names."""
    builder, names = converter.builder, []
    for name, node in packed_constants.matrices(lines, constants, builder.target):
        view = converter.tensor(node)
        if view not in builder.packed:
            builder.packed[view] = builder.add_input(p.InputKind.TENSOR)
            names.append(name)
    return names


def _packing(name: str, views: list[TensorArg], constants: list[str], forgotten: list[str], target: Target) -> str:
    """The text that defines what packs views of these constants."""
    plan = packed_constants.plan_of(views, target)
    progress.show_kernels("constants", plan.programs)
    return _PACKING.format(name=name, plan=pack(plan), device=_device(), constants=constants, forgotten=forgotten)


def _add_guards(builder: PlanBuilder) -> None:
    """What was assumed of sizes while the graph was traced and compiled. (Of a graph of ``torch.compile``, Dynamo
    checks it before it calls.) Raises NotExpressible."""
    shape_env = V.graph.sizevars.shape_env
    for guard in shape_env.guards:
        condition = shape_env.simplify(guard.expr)  # sizes known to be equal have one symbol among the inputs
        if condition != sympy.true:
            builder.guard(condition)


def _add_input(builder: PlanBuilder, name: str, node: Any) -> str:
    """Adds a graph input to a plan; returns the Python expression of its value."""
    if isinstance(node, sympy.Symbol):
        is_float = is_float_symbol(node)
        number = builder.add_input(p.InputKind.FLOAT if is_float else p.InputKind.INT)
        builder.define_symbol(node, p.SymbolSource.FLOAT if is_float else p.SymbolSource.INT, number)
        return name
    if isinstance(node, (int, float, sympy.Integer, sympy.Float, sympy.Expr)) or node is None:
        builder.add_input(p.InputKind.NONE)
        return "None"
    if not isinstance(node, (ir.TensorBox, ir.StorageBox, ir.InputBuffer)):
        raise NotExpressible(f"graph input of kind {type(node).__name__}")
    builder.add_input(p.InputKind.TENSOR)
    where = node.get_device()
    if where is not None and where.type == "cpu":
        if name in V.graph.mutated_inputs or node.get_size():
            raise NotExpressible("a CPU tensor among the inputs")
        return _moved(name, _device())
    return name


def _define_sizes(builder: PlanBuilder, number: int, node: Any) -> None:
    if not isinstance(node, (ir.TensorBox, ir.StorageBox, ir.InputBuffer)):
        return
    for dim, size in enumerate(node.get_size()):
        if isinstance(size, sympy.Symbol):
            builder.define_symbol(size, p.SymbolSource.SIZE, number, dim)
    for dim, stride in enumerate(node.get_stride()):
        if isinstance(stride, sympy.Symbol):
            builder.define_symbol(stride, p.SymbolSource.STRIDE, number, dim)


class SubgraphWrapper(SubgraphPythonWrapperCodegen, GraphWrapper):
    """The wrapper of a graph inside a graph (a branch of ``torch.cond``): a function of the outer graph's module."""

    def _header(self) -> str:
        self._outer().import_runtime()
        return ""

    def is_subgraph(self) -> bool:
        """Whether the module holds more functions than this graph's."""
        return True

    def _make_views_here(self) -> None:
        """Nothing: it is the outer graph's module, which has them already."""

    def _function_name(self) -> str:
        return str(self.launcher_fn_name)

    def launcher(self, line: LaunchLine) -> str:
        """The name of a plan of one launch in the outer graph's module, where others may use it, too."""
        return self._outer().launcher(line)

    def _outer(self) -> GraphWrapper:
        outer = self.get_root_graph()
        assert isinstance(outer, GraphWrapper)
        return outer
