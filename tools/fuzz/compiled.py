# SPDX-License-Identifier: Apache-2.0
"""Whole programs under ``torch.compile``: one function of the leaves that returns every value, against the CPU's eager.

Inside a graph nothing can be replaced by the CPU's value, so differences would cascade. Two rules prevent it:
lines that are not continuous (comparisons, rounding, sorting) get the CPU's values of what has been rounded, as further
inputs; and each value is judged by a float64 run of the whole program.

The numbers that lines compute with are inputs, too. Each program is called several times, with others each time, and
some for other sizes (``tools/fuzz/sizes.py``).
"""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode

from tools.fuzz import allowed, compare, sizes
from tools.fuzz.generate import Generator
from tools.fuzz.program import is_leaf, is_state, leaf_line, namespace, references, tensors, widened
from tools.fuzz.sides import CANCELS, IN_DOUBLE, Finding, is_inexact, shake, widest
from tools.fuzz.state import evaluate, under

#: Functions that carry rounding errors on without enlarging them at a jump.
_SMOOTH = re.compile(
    r"torch\.(add|sub|mul|sin|cos|tanh|exp|sigmoid|erf|atan|asinh|logaddexp|lerp|addcmul|mm|bmm|matmul|mv|einsum|sum|mean|cat"
    r"|stack|softmax|log_softmax|maximum|minimum|where|square|neg|abs|cumsum|clamp_min|clamp_max|hypot|zeros_like|ones_like)\("
    r"|F\.(relu|gelu|silu|mish|elu|softplus|softsign|logsigmoid|linear|conv\dd|layer_norm|leaky_relu|hardtanh|avg_pool\dd|pad"
    r"|mse_loss|l1_loss|smooth_l1_loss|interpolate|scaled_dot_product_attention)\("
    r"|\.(transpose|permute|select|narrow|unsqueeze|squeeze|flatten|reshape|view|movedim|expand|diagonal|contiguous|clone|flip"
    r"|roll|repeat|tile|tril|triu|diag|swapaxes|unfold|ravel|broadcast_to|add_|mul_|sub_|copy_|zero_|fill_|expand_as|detach)\("
    r"|\.(T|mT)\b|\[[^\]]*\]$"
)
#: What ``torch.compile`` leaves to eager, or what has no fixed form: judged by the eager mode.
_OUTSIDE = re.compile(
    r"\.item\(|tolist|bool\(|nonzero|argwhere|unique|masked_select|bincount|gradient\(|\.data\b|resize_|allclose|equal\("
)
#: Floats, and integers beside an operator: those elsewhere are mostly sizes and dimensions.
_NUMBER = re.compile(r"(?<![\w.])(\d+\.\d+(e[-+]?\d+)?|\d+e[-+]?\d+|\d+(?= [-+*/%])|(?<=[-+*/%] )\d+)(?![\w.])")
_NUMBER_NAME = re.compile(r"\bn(\d+)\b")
#: Factors of the numbers in the calls of one program. PyTorch holds the first call's, and makes inputs of later ones.
_FACTORS = (0.5, 1.5, 1)
_EXACT = re.compile(r"^v\d+(\[\d+\])?(\.\w+\([^v]*\)|\.m?T|\[.*\])$")


def stable(line: str, rounded: set[str], values: dict[str, Any]) -> list[str] | None:
    """``line`` with the CPU's values, as leaves in front of it, for rounded operands at which it may jump. None if it
    cannot be part of a graph."""
    if _OUTSIDE.search(line) or allowed.values(line) or not allowed.in_graphs(line):
        return None
    inexact = [name for name in references(line) if name in rounded]
    if not inexact or _SMOOTH.search(line):
        return [line]
    if re.search(r"[a-z0-9]_\(|out=|assign\(", line) or any(not isinstance(values[name], Tensor) for name in inexact):
        return None
    return [leaf_line(values[name]) for name in inexact]


def is_rounded(line: str, rounded: set[str], value: Any) -> bool:
    """Whether the value of a line may have been rounded, here or before."""
    if is_leaf(line) or not any(map(is_inexact, tensors(value))):
        return False
    return not _EXACT.match(line) or any(name in rounded for name in references(line))


def with_names(lines: list[str]) -> tuple[list[str], list[Any]]:
    """The program with ``n0``, ``n1`` and so on for its numbers, and these."""
    numbers: list[Any] = []

    def name(match: re.Match[str]) -> str:
        numbers.append(ast.literal_eval(match[0]))
        return f"n{len(numbers) - 1}"

    return [line if is_leaf(line) or is_state(line) else _NUMBER.sub(name, line) for line in lines], numbers


def with_numbers(lines: list[str], numbers: list[Any]) -> list[str]:
    """The program with numbers for their names."""
    return [_NUMBER_NAME.sub(lambda match: repr(numbers[int(match[1])]), line) for line in lines]


def function(lines: list[str], numbers: int = 0) -> Callable[..., Any]:
    """The program as a function of its leaves and so many numbers, which returns the values of all lines."""
    leaves = [f"v{i}" for i, line in enumerate(lines) if is_leaf(line)] + [f"n{i}" for i in range(numbers)]
    body = [f"    v{i} = {None if is_state(line) else line}" for i, line in enumerate(lines) if not is_leaf(line)]
    every = ", ".join(f"v{i}" for i in range(len(lines)))
    text = "\n".join([f"def program({', '.join(leaves)}):", *body, f"    return [{every}]"])
    return _define(text)


def _define(text: str) -> Callable[..., Any]:
    names = namespace("cpu")
    exec(text, names)  # noqa: S102 - our own text
    made = names["program"]
    assert callable(made)
    return made  # type: ignore[no-any-return]


def _leaves(lines: list[str], device: str) -> list[Any]:
    names = namespace(device)
    return [evaluate(line, names) for line in lines if is_leaf(line)]


def _under(lines: list[str], device: str) -> contextlib.AbstractContextManager[None]:
    """The state that a program's lines make of the usual one: a graph has one state."""
    names = namespace(device)
    for line in lines:
        if is_state(line):
            evaluate(line, names)
    return under(names)


def run(lines: list[str], device: str) -> Finding | None:
    """Compiles the program for the device, calls it with its numbers and others, for its sizes and others, and compares
    all values; the first difference, in program order."""
    named, numbers = with_names(lines)
    made = compile_program([line.replace("DEVICE", repr(device)) for line in named], len(numbers))
    for given, change in calls_of(lines, numbers):
        called = [sizes.resized(line, change) for line in with_numbers(named, given)]
        finding = _judge(made, called, given, lines, device)
        if finding:
            return finding if change == (1, 0) else replace(finding, text=f"{finding.text} (sizes {change})")
        if is_dynamic(lines):
            torch._dynamo.reset()  # noqa: SLF001 - as another process, which finds the graphs that are kept
    return None


def compile_program(named: list[str], numbers: int, backend: str | None = None) -> Callable[..., Any]:
    """The compiled function of a program with names for that many numbers; by the device's own backend, or another."""
    torch._dynamo.reset()  # noqa: SLF001 - each program is a graph of its own
    function_of_it = function(named, numbers)
    dynamic = True if is_dynamic(named) else None
    return torch.compile(function_of_it, dynamic=dynamic, **({"backend": backend} if backend else {}))


def is_dynamic(lines: list[str]) -> bool:
    """Whether a program is one for several sizes."""
    return len(sizes.changes(lines)) > 1


def calls_of(lines: list[str], numbers: list[Any]) -> list[tuple[list[Any], sizes.Change]]:
    """The numbers and the change of sizes of each call of a program; its own numbers come last."""
    factors, changes = _FACTORS if numbers else _FACTORS[-1:], sizes.changes(lines)
    count = max(len(factors), len(changes))
    given = [[type(each)(each * factor) for each in numbers] for factor in factors]
    return [(given[i % len(given) - len(given)], changes[i % len(changes)]) for i in range(count)]


def _judge(
    made: Callable[..., Any], lines: list[str], numbers: list[Any], original: list[str], device: str
) -> Finding | None:
    """What is wrong with a call with these numbers, which ``lines`` have, of the program that ``original`` is. Nothing
    is, if the CPU refuses them."""
    try:
        with _under(lines, "cpu"):
            expected = function(lines)(*_leaves(lines, "cpu"))
    except Exception:  # noqa: BLE001 - such numbers are no call of the program
        return None
    if not all(map(allowed.in_graphs, lines)):
        return None
    inputs = [*_leaves(lines, device), *numbers]
    try:
        with _under(lines, device):
            actual = made(*inputs)
        torch.accelerator.synchronize()
    except Exception as error:  # noqa: BLE001 - reported
        if _pytorch_refuses(original):
            return None
        calls = [line for line in lines if not is_leaf(line) and not is_state(line)]
        return Finding("exception", calls[-1], f"raises {type(error).__name__}: {str(error)[:300]}")
    exact, shaken = _exact(lines), _shaken(lines)
    for index, line in enumerate(lines):
        truth = exact[index] if exact else None
        other = shaken[index] if shaken else None
        operands = tensors([expected[int(name[1:])] for name in references(line)])
        finding = _difference(original[index], actual[index], expected[index], truth, other, operands, device)
        if finding:
            return finding
    return layout_difference(lines, actual, expected)


def layout_difference(lines: list[str], actual: list[Any], expected: list[Any]) -> Finding | None:
    """The first value whose strides are not the CPU's, or that shares memory with others than it does there. What
    PyTorch's own tracing makes of a program for the CPU is right, too."""
    texts = [_layout_texts(lines, actual, expected)]
    if any(texts[0]):
        texts += [_layout_texts(lines, actual, traced) for traced in _traced(lines)]
    for line, *found in zip(lines, *texts, strict=True):
        if all(found):
            return Finding("strides" if found[0].startswith("strides") else "alias", line, found[0])
    return None


def _traced(lines: list[str]) -> Iterator[list[Any]]:
    """The values of the program traced for the CPU with no compiler behind it and with PyTorch's, and without data:
    its shape functions and decompositions, by which compiled graphs lay out their results, do not all know where the
    CPU's kernels put them."""
    program = function([line.replace("DEVICE", "'cpu'") for line in lines])
    for backend in ("aot_eager", "inductor"):
        torch._dynamo.reset()  # noqa: SLF001 - as above
        try:
            with _under(lines, "cpu"):
                values = torch.compile(program, backend=backend)(*_leaves(lines, "cpu"))
        except Exception:  # noqa: BLE001, S112 - PyTorch's own compiler refuses what ours takes: no second opinion then
            continue
        yield values
    leaves = _leaves(lines, "cpu")
    with contextlib.suppress(DynamicOutputShapeException, DataDependentOutputException), FakeTensorMode() as mode:
        yield program(*(mode.from_tensor(x) for x in leaves))


def _layout_texts(lines: list[str], actual: list[Any], expected: list[Any]) -> list[str]:
    return [
        compare.stride_difference(line, ours, theirs) or _sharing_difference(index, actual, expected)
        for index, (line, ours, theirs) in enumerate(zip(lines, actual, expected, strict=True))
    ]


def _sharing_difference(index: int, actual: list[Any], expected: list[Any]) -> str:
    mine, others = (_sharing(index, values) for values in (actual, expected))
    return f"shares memory with {mine} instead of {others}" if mine != others else ""


def _sharing(index: int, values: list[Any]) -> list[str]:
    """The names of earlier values in the same storage as one, if they have elements."""
    own = {x.untyped_storage()._cdata for x in tensors(values[index]) if x.numel()}  # noqa: SLF001 - its identity
    return [
        f"v{number}"
        for number, value in enumerate(values[:index])
        if any(x.numel() and x.untyped_storage()._cdata in own for x in tensors(value))  # noqa: SLF001 - as above
    ]


def _pytorch_refuses(lines: list[str]) -> bool:
    """Whether PyTorch's own tracing fails on one of the calls of the program, on the CPU and with no compiler behind
    it, or its own compiler for the CPU."""
    named, numbers = with_names(lines)
    for backend in ("aot_eager", "inductor"):
        made = compile_program([line.replace("DEVICE", "'cpu'") for line in named], len(numbers), backend)
        try:
            with _under(lines, "cpu"):
                for given, change in calls_of(lines, numbers):
                    made(*_leaves([sizes.resized(line, change) for line in lines], "cpu"), *given)
        except Exception:  # noqa: BLE001 - that it fails is the answer
            return True
    return False


def _exact(lines: list[str]) -> list[Any] | None:
    """The values of the program in float64, or None if it has no such form."""
    wide = [widest(x) if is_inexact(x) else x for x in _leaves(lines, "cpu")]
    try:
        with under(namespace("cpu") | {"STATE": IN_DOUBLE}):
            return list(function([line if is_leaf(line) else widened(line) for line in lines])(*wide))
    except Exception:  # noqa: BLE001 - no second opinion then
        return None


def _shaken(lines: list[str]) -> list[Any] | None:
    """The CPU's values for leaves that differ in their last bit, of a program with terms that may cancel."""
    if not any(CANCELS.search(line) for line in lines):
        return None
    inputs = [shake(x) if is_inexact(x) else x for x in _leaves(lines, "cpu")]
    try:
        with _under(lines, "cpu"):
            return list(function(lines)(*inputs))
    except Exception:  # noqa: BLE001 - as above
        return None


def _difference(
    line: str, ours: Any, theirs: Any, truth: Any, shaken: Any, operands: list[torch.Tensor], device: str
) -> Finding | None:
    text = compare.difference(ours, theirs, device)
    if text:
        return Finding("form", line, text)
    for part, (one, other) in enumerate(zip(tensors(ours), tensors(theirs), strict=True)):
        host = one.detach().cpu()
        right = allowed.expected(line, part, host, other, operands)
        if compare.is_close(host, right):
            continue
        exacts, others = tensors(truth), tensors(shaken)
        second = others[part] if part < len(others) else None
        if compare.within_rounding(host, right, exacts[part] if part < len(exacts) else None, second):
            continue
        return Finding("value", line, f"{host.flatten()[:8].tolist()} for {other.flatten()[:8].tolist()}")
    return None


def shrink(lines: list[str], finding: Finding, device: str, trials: int = 25) -> list[str]:
    """Cuts what comes after the wrong line, then drops what does not matter."""
    from tools.fuzz.program import without

    last = max((i for i, line in enumerate(lines) if line == finding.line), default=len(lines) - 1)
    is_last = finding.kind != "exception" and not is_leaf(finding.line)  # a leaf is wrong by what is written later
    if is_last:
        lines = lines[: last + 1]
    index = len(lines) - (2 if is_last else 1)
    while index >= 0 and trials:
        used = any(f"v{index}" in references(line) for line in lines[index + 1 :])
        candidate = without(lines, index)
        if not used and any(not is_leaf(line) and not is_state(line) for line in candidate):
            if is_leaf(lines[index]):
                lines = candidate
            else:
                trials -= 1
                again = run(candidate, device)
                if again and again.kind == finding.kind and again.text[:40] == finding.text[:40]:
                    lines = candidate
        index -= 1
    return lines


def length(generator: Generator) -> int:
    """The number of operators of one graph: compiling time grows faster than it."""
    return generator.free.randint(8, 24)
