"""The chip's compiler of graphs: which operators it takes, and what it makes of them (CODE_FILE runs it)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from outboard.compilers import Executable, Operand, Unsupported

aten = torch.ops.aten
#: What the chip does, by operator.
OPERATIONS: dict[Any, str] = {
    aten.add.Tensor: "add",
    aten.mul.Tensor: "mul",
    aten.relu.default: "relu",
    aten.sigmoid.default: "sigmoid",
    aten.mm.default: "mm",
}


class Compiler:
    """See outboard.compilers.GraphCompiler."""

    name, version = "mychip-cc", "1"  # the driver's property `compiler`
    whole: frozenset[str] = frozenset()  # operators not to be taken apart, as "aten::silu"

    def supports(self, node: torch.fx.Node, target: Any) -> Any:
        """True, or why the chip does not take the operator."""
        if node.target not in OPERATIONS:
            return "mychip has no such operation"
        if node.kwargs or not all(isinstance(arg, torch.fx.Node) for arg in node.args):
            return "a number among the operands"
        values = [node.meta["val"], *(each.meta["val"] for each in node.args)]
        if any(value.dtype != torch.float32 or not value.is_contiguous() for value in values):
            return "operands that are not float32, or not dense"
        if OPERATIONS[node.target] != "mm" and any(value.shape != values[0].shape for value in values):
            return "operands of different sizes"
        return True

    def compile(self, graph: torch.fx.Graph, operands: Sequence[Operand], target: Any) -> Executable:
        """The executable of a graph."""
        if any(each.is_number for each in operands):
            raise Unsupported("numbers that are known at the call")
        inputs = [node for node in graph.nodes if node.op == "placeholder"]
        results = list(next(node for node in graph.nodes if node.op == "output").args[0])
        if len(set(results)) != len(results) or set(results) & set(inputs):
            raise Unsupported("a result that is another one, or an input")
        places = {node: f"o{number}" for number, node in enumerate([*inputs, *results])}
        lines, scratch = [], 0
        for node in graph.nodes:
            if node.op != "call_function":
                continue
            if node not in places:
                places[node] = f"s{scratch}"
                scratch += (4 * node.meta["val"].numel() + 63) // 64 * 64
            reads = [places[each] for each in node.args] + ["-"]
            sizes = _sizes(node)
            lines.append(" ".join([OPERATIONS[node.target], places[node], *reads[:2], *map(str, sizes)]) + "\n")
        text = "".join(lines).encode()
        return Executable(f"mychip 1 {_checksum(text):016x}\n".encode() + text, scratch)


def _sizes(node: torch.fx.Node) -> list[int]:
    if OPERATIONS[node.target] != "mm":
        return [node.meta["val"].numel()]
    a, b = (each.meta["val"] for each in node.args)
    return [a.shape[0], a.shape[1], b.shape[1]]


def _checksum(text: bytes) -> int:
    checksum = 0xCBF29CE484222325
    for byte in text:
        checksum = (checksum ^ byte) * 0x100000001B3 % 2**64
    return checksum
