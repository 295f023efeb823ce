# SPDX-License-Identifier: Apache-2.0
"""Ways to run a line: as it stands, through TorchScript, ``torch.compile``, or a transformation of ``torch.func``."""

from __future__ import annotations

import re

from tools.fuzz import allowed
from tools.fuzz.generate import Generator, Refused

_OPERAND = re.compile(r"\bv\d+(?:\[\d+\])?")
#: Lines that are a way already, or whose value is not made of tensors, or that name the device, which no script can.
_AS_THEY_STAND = re.compile(r"\b(gradient|mixed|leaf|assign)\(|\bout=|\.item\(|\.tolist\(|^bool\(|DEVICE|a0")
_SMOOTH = ("second", "jvp", "jacrev", "hessian")
_WAYS = (*_SMOOTH, "batched", "batched", "batched twice", "traced", "scripted", "compiled")
#: Elements of an operand, of whose derivatives all pairs are computed.
_MOST_ELEMENTS = 32


def wrapped(g: Generator, line: str, share: float) -> str:
    """The line, in this share of the kinds of calls, in another way."""
    if not g.chance(share):
        return line
    way = g.pick(_WAYS)
    operands, names, body = _as_function(line)
    if not operands or _AS_THEY_STAND.search(line) or (way == "compiled" and not _is_compiled(line)):
        return line
    function = f"lambda {names}: {body}"
    rest = ", ".join(operands)
    if way == "scripted":
        return f"scripted({body!r}, {rest})"
    if way.startswith("batched"):
        dims = _dims(g, operands)
        if way == "batched twice":
            function = f"lambda {names}: batched({_dims(g, operands)}, {function}, {names})"
        return f"batched({dims}, {function}, {rest})"
    if way in ("jacrev", "hessian") and max(g.value(name).numel() for name in operands) > _MOST_ELEMENTS:
        raise Refused
    return f"{way}({function}, {rest})"


def refused(g: Generator, line: str, share: float) -> str:
    """A line that is to be refused, in this share of the kinds of calls by ``torch.compile``."""
    operands, names, body = _as_function(line)
    is_left = re.search(r"\b(mixed|assign|compiled)\(|\bout=", line) or not allowed.in_graphs(line)
    if not operands or not g.chance(share) or is_left:
        return line
    return f"compiled(lambda {names}: {body}, {', '.join(operands)})"


def _as_function(line: str) -> tuple[list[str], str, str]:
    """The operands of a line, and the parameters and the body of a function of them: "a0, a1" and so on."""
    operands = list(dict.fromkeys(_OPERAND.findall(line)))
    body = _OPERAND.sub(lambda match: f"a{operands.index(match[0])}", line)
    return operands, ", ".join(f"a{i}" for i in range(len(operands))), body


def _is_compiled(line: str) -> bool:
    """Whether a line means the same in a graph: also of lists, which PyTorch's kernels take apart under autocast."""
    return allowed.in_graphs(line) and "_foreach_" not in line


def _dims(g: Generator, operands: list[str]) -> list[int | None]:
    """Along which dimension each operand is a batch; of at least one it is."""
    dims = [g.pick((0, 0, -1, None)) for _ in operands]
    return dims if any(dim is not None for dim in dims) else [0, *dims[1:]]
