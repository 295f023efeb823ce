# SPDX-License-Identifier: Apache-2.0
"""From a program of ``torch.export`` to one plan that needs neither Python nor PyTorch to run."""

from __future__ import annotations

import dataclasses
from typing import Any

import sympy
import torch
from torch._guards import TracingContext, detect_fake_mode, tracing
from torch._inductor import config as inductor_config
from torch._inductor.compile_fx import _recursive_joint_graph_passes, compile_fx_inner
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.virtualized import V
from torch._ops import HigherOrderOperator
from torch.export import ExportedProgram
from torch.fx.passes.fake_tensor_prop import FakeTensorProp
from torch.utils._sympy.numbers import int_oo

from outboard import compilers

from ..choice import attention
from ..plans import plan as p
from ..target import Target, target_of
from . import implemented
from .executables import add_graph, begun, decompositions_for
from .graphs.compiled import Capture, capturing
from .interface import device_name
from .registration import register


@dataclasses.dataclass
class Lowered:
    """A program as one plan.

    The plan's inputs are the tensors among the program's placeholders, in order, and then ``constants``; its outputs
    are those results of the program that are no literals, in order.
    """

    plan: p.Plan
    constants: list[torch.Tensor]


def decompose(program: ExportedProgram, device: int) -> ExportedProgram:
    """The program in the operators that Inductor lowers, or the device's compiler of graphs takes, without side effects
    inside: writes to buffers and inputs are results of its signature."""
    register()
    table = decompositions_for(compilers.find(target_of(device)), select_decomp_table())
    with torch.no_grad(), attention.without_library():
        return program.run_decompositions(implemented.decompositions(table))


def lower_program(program: ExportedProgram, device: int) -> Lowered:
    """Compiles a decomposed program for a device of ours.

    Raises NotImplementedError, naming the operators, for what only the host could carry out, for random numbers, and
    for graphs that no plan holds.
    """
    nested = {str(node.target) for node in program.graph.nodes if isinstance(node.target, HigherOrderOperator)}
    if nested:
        raise NotImplementedError(f"export: graphs inside of graphs ({', '.join(sorted(nested))})")
    target = target_of(device)
    compiler = compilers.find(target)
    if compiler is not None:
        return Lowered(_executable(_computation(program, device), compiler, target), [])
    if not target.has_dialect:
        raise NotImplementedError(f"export: nothing here writes programs in the device's dialect, {target.dialect!r}")
    capture = _compile(_computation(program, device))
    if capture.plan is None:
        raise NotImplementedError("export: the model computes nothing")
    _refuse_host_work(capture.plan)
    return Lowered(capture.plan, capture.constants)


def _executable(module: torch.fx.GraphModule, compiler: compilers.GraphCompiler, target: Target) -> p.Plan:
    """A plan of one executable. Raises NotImplementedError, naming the operator that does not become part of one."""
    fakes = _inputs(module)
    if target.static_sizes and any(isinstance(size, torch.SymInt) for fake in fakes for size in fake.shape):
        raise NotImplementedError("export: the device's compiler of graphs takes one set of sizes")
    builder, given = begun(fakes, target)
    with torch.no_grad():
        add_graph(builder, module, given, compiler)
    plan = builder.finish()
    _refuse_host_work(plan)
    return plan


def _compile(module: torch.fx.GraphModule) -> Capture:
    fakes = _inputs(module)
    mode = detect_fake_mode(fakes)
    settings: dict[str, Any] = {"fx_graph_cache": False, "fx_graph_remote_cache": False, "cpp_wrapper": False}
    with (
        torch.no_grad(),
        inductor_config.patch(settings),
        tracing(TracingContext(mode)),
        V.set_fake_mode(mode),
        capturing() as capture,
    ):
        try:
            compile_fx_inner(_recursive_joint_graph_passes(module), fakes, is_inference=True)
        except Exception as error:
            if capture.refusal is None:
                raise
            raise NotImplementedError(f"export: this graph cannot become a plan: {capture.refusal}") from error
    return capture


def _inputs(module: torch.fx.GraphModule) -> list[Any]:
    return [node.meta["val"] for node in module.graph.find_nodes(op="placeholder")]


def _computation(program: ExportedProgram, device: int) -> torch.fx.GraphModule:
    """The program's graph from tensors to results that are computed, as a copy: passes write into it. Constants of the
    CPU are on the device, as all weights will be."""
    graph = torch.fx.Graph()
    results = graph.graph_copy(program.graph, {})
    graph.output(tuple(result for result in results if isinstance(result, torch.fx.Node)))  # type: ignore[union-attr]
    moved = False
    for node in graph.find_nodes(op="placeholder"):
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor):
            graph.erase_node(node)
        elif value.device.type == "cpu":
            node.meta["val"] = value.to(torch.device(device_name(), device))
            moved = True
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten._assert_tensor_metadata.default):
        graph.erase_node(node)  # true when the program was traced, and of constants that moved not any more
    module = torch.fx.GraphModule(program.graph_module, graph)
    if moved:
        fakes = _inputs(module)
        FakeTensorProp(module, detect_fake_mode(fakes)).propagate_dont_convert_inputs(*fakes)
    return module


def _refuse_host_work(plan: p.Plan) -> None:
    calls = {step.name.removeprefix("device::") for step in plan.steps if isinstance(step, p.Call)}
    if calls:
        raise NotImplementedError(f"export: only the host can carry out {', '.join(sorted(calls))}")
    if any(isinstance(step, p.Seeds) for step in plan.steps):
        raise NotImplementedError("export: the model draws random numbers; is it in training mode? call eval()")


def dimension(size: Any, program: ExportedProgram) -> int | tuple[str, int, int | None]:
    """A size of a placeholder: a number, or (name, least, most) of what varies; most is None without a bound.

    Raises NotImplementedError for a size that is computed from others."""
    if not isinstance(size, torch.SymInt):
        return int(size)
    symbol = size.node.expr
    if not isinstance(symbol, sympy.Symbol):
        raise NotImplementedError(f"export: an input's size depends on another's ({symbol})")
    bounds = program.range_constraints[symbol]
    most = None if bounds.upper in (int_oo, sympy.oo) else int(bounds.upper)
    return str(symbol), int(bounds.lower), most
