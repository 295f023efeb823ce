# SPDX-License-Identifier: Apache-2.0
"""A new executable, run once on random numbers and compared with PyTorch on the CPU (OUTBOARD_CHECK_EXECUTABLES=1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy
import torch
from torch.utils import _pytree as pytree

from outboard import compilers

from ..plans import plan as p
from ..plans.builder import PlanBuilder, TensorArg
from ..plans.schema import serialize
from ..plans.strided import span
from ..target import Target, index_of
from .memory_layouts import add_execution

#: How far results may be apart, beside the largest of them: sums of floats are taken in another order.
TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-3}
_OTHER_TOLERANCE = 5e-2
_SEED = 0
#: Integers that are tried, in turn until the CPU takes them: they may be indices of a side of 1, or divisors.
_INTEGERS = (range(2), range(1, 2), range(1))
_BOOLS = range(2)
_DRAWS = ("prims.inductor_random", "prims.inductor_randint")


def problem_of(
    made: compilers.Executable,
    graph: torch.fx.Graph,
    operands: Sequence[compilers.Operand],
    specs: Sequence[p.LayoutSpec | None],
    target: Target,
) -> str | None:
    """In what an executable's results differ from those of the graph on the CPU; None if in nothing, or if it draws
    random numbers, which are the device's own, or if the CPU refuses all numbers that are tried. Sizes that vary are
    those of when the graph was traced. ``specs`` are the operands' layouts."""
    if any(str(node.target).startswith(_DRAWS) for node in graph.nodes):
        return None
    operands = [_with_numbers(operand, graph) for operand in operands]
    for integers in _INTEGERS:
        given = _numbers(graph, operands, integers)
        try:
            expected = _OnCPU(torch.fx.GraphModule({}, graph)).run(*given)
        except (RuntimeError, IndexError):  # a wrong index, or an integer divided by 0
            continue
        return _problem(_run(made, operands, given, specs, target), expected, _is_exact(graph))
    return None


def _is_exact(graph: torch.fx.Graph) -> bool:
    """Whether all that a graph computes with are integers and truth values."""
    values = pytree.tree_leaves([node.meta.get("val") for node in graph.nodes])
    numbers = [value for value in values if isinstance(value, (torch.Tensor, torch.SymFloat))]
    return not any(isinstance(value, torch.SymFloat) or _has_fractions(value.dtype) for value in numbers)


def _has_fractions(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex


def _problem(results: Sequence[torch.Tensor], expected: Sequence[torch.Tensor], exact: bool) -> str | None:
    for number, (result, wanted) in enumerate(zip(results, expected, strict=True)):
        problem = _difference(result, wanted, exact)
        if problem is not None:
            return f"result {number} {problem}"
    return None


def _numbers(graph: torch.fx.Graph, operands: Sequence[compilers.Operand], integers: range) -> list[Any]:
    """What a graph is tried with."""
    generator = torch.Generator().manual_seed(_SEED)
    return [
        node.meta["val"].node.hint
        if isinstance(node.meta["val"], (torch.SymInt, torch.SymFloat))
        else _random(operand, integers, generator)
        for node, operand in zip(graph.find_nodes(op="placeholder"), operands, strict=False)
    ]


def _random(operand: compilers.Operand, integers: range, generator: torch.Generator) -> Any:
    """A tensor, or a number."""
    if operand.is_number:
        return 2 if operand.dtype is torch.int64 else 0.5
    shape = (span(operand.sizes, operand.strides),)
    if operand.dtype.is_complex:
        memory = torch.randn(shape, generator=generator, dtype=torch.complex128)
    elif operand.dtype.is_floating_point:
        memory = torch.randn(shape, generator=generator)
    else:
        drawn = _BOOLS if operand.dtype is torch.bool else integers
        memory = torch.randint(drawn.start, drawn.stop, shape, generator=generator)
    return memory.to(operand.dtype).as_strided(operand.sizes, operand.strides)


def _with_numbers(operand: compilers.Operand, graph: torch.fx.Graph) -> compilers.Operand:
    """An operand with the sizes of when the graph was traced."""
    if all(isinstance(size, int) for size in (*operand.sizes, *operand.strides)):
        return operand
    leaves = pytree.tree_leaves([node.meta.get("val") for node in graph.nodes])
    given = [size for each in leaves for size in (each.shape if isinstance(each, torch.Tensor) else (each,))]
    known = next(size.node.shape_env.backed_var_to_val for size in given if isinstance(size, torch.SymInt))
    sizes, strides = (
        tuple(int(sympy.sympify(size).xreplace(known)) for size in each) for each in (operand.sizes, operand.strides)
    )
    return compilers.Operand(operand.dtype, sizes, strides)


class _OnCPU(torch.fx.Interpreter):
    """Runs a graph of the device's on tensors of the CPU."""

    def call_function(self, target: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Calls an operator, on the CPU if it makes a tensor of nothing."""
        moved = {key: torch.device("cpu") if key == "device" and value else value for key, value in kwargs.items()}
        symbolic = (torch.SymInt, torch.SymFloat)
        args, moved = pytree.tree_map_only(symbolic, lambda number: number.node.hint, (args, moved))
        return super().call_function(target, args, moved)


def _run(
    made: compilers.Executable,
    operands: Sequence[compilers.Operand],
    given: Sequence[Any],
    specs: Sequence[p.LayoutSpec | None],
    target: Target,
) -> list[torch.Tensor]:
    from outboard import _C

    index = index_of(target)
    builder = PlanBuilder(target)
    inputs: list[TensorArg | int | float] = []
    values: list[torch.Tensor | int | float | None] = []
    for operand, value in zip(operands, given, strict=False):
        number = builder.add_input(p.InputKind.NONE if operand.is_number else p.InputKind.TENSOR)
        inputs.append(value if operand.is_number else _view(number, operand))
        values.append(None if operand.is_number else _moved(value, index))
    results = [builder.allocate_like(each.sizes, each.strides, each.dtype) for each in operands[len(given) :]]
    add_execution(builder, "trial", made, inputs, results, specs)
    for result in results:
        builder.output_tensor(result)
    ran: list[torch.Tensor] = _C.Plan(serialize(builder.finish()), index).run(values)
    return [result.cpu() for result in ran]


def _view(number: int, operand: compilers.Operand) -> TensorArg:
    return TensorArg(number, operand.dtype, tuple(operand.sizes), tuple(operand.strides))


def _moved(value: torch.Tensor, index: int) -> torch.Tensor:
    """A tensor on the device, where it lies as it did: only whole memory is copied without a kernel."""
    memory = value.as_strided((span(value.shape, value.stride()),), (1,))
    device = torch.device(torch._C._get_privateuse1_backend_name(), index)
    return memory.to(device).as_strided(value.shape, value.stride())


def _difference(result: torch.Tensor, wanted: torch.Tensor, exact: bool) -> str | None:
    if result.dtype != wanted.dtype or result.shape != wanted.shape:
        return f"is {result.dtype} {[*result.shape]}, not {wanted.dtype} {[*wanted.shape]}"
    widest = torch.complex128 if wanted.is_complex() else torch.float64
    a, b = result.to(widest), wanted.to(widest)
    finite = b.isfinite()
    scale = max(b[finite].abs().max().item() if bool(finite.any()) else 0.0, 1.0)
    tolerance = TOLERANCES.get(result.dtype, _OTHER_TOLERANCE) * scale
    if torch.equal(result, wanted) if exact else torch.allclose(a, b, rtol=0, atol=tolerance, equal_nan=True):
        return None
    return f"is up to {(a - b).abs().max().item():.3g} beside the CPU's"
