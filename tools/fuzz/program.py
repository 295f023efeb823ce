# SPDX-License-Identifier: Apache-2.0
"""Programs are lists of Python expressions; the value of line ``i`` has the name ``v<i>``.

The text is what is run, kept, shrunk and printed, so a finding is a script as it stands. Each program runs in a
*namespace*, which says on which device the leaves are made.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

#: Of these dtypes PyTorch has a wider one that keeps the kind; used for a second opinion on rounding.
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_NAME = re.compile(r"\bv(\d+)\b")

#: What lines may call beside torch. Printed at the head of each script.
HELPERS = '''\
def leaf(dtype, size, stride, offset, pattern):
    """A tensor whose storage repeats ``pattern``."""
    length = offset + 1 + sum((n - 1) * s for n, s in zip(size, stride)) if 0 not in size else offset
    numbers = [pattern[i % len(pattern)] for i in range(length)]
    return torch.tensor(numbers, dtype=dtype).to(DEVICE).as_strided(size, stride, offset)


def leaves(value):
    """The tensors in a tuple, list or dictionary."""
    return [item for item in torch.utils._pytree.tree_leaves(value) if isinstance(item, torch.Tensor)]


def gradient(function, *inputs):
    """Gradients of a weighted sum of the function's results with respect to the inputs of floating point."""
    inputs = [x.detach().requires_grad_(x.is_floating_point()) for x in inputs]
    results = [y for y in leaves(function(*inputs)) if y.requires_grad]
    weights = [leaf(y.dtype, y.shape, torch.empty(y.shape, device="meta").stride(), 0, [1, -0.5, 2]) for y in results]
    wanted = [x for x in inputs if x.requires_grad]
    found = [x for x in torch.autograd.grad(results, wanted, weights, allow_unused=True) if x is not None]
    return [torch.zeros_like(x) if x._is_zerotensor() else x for x in found]  # which have no memory to copy


def assign(target, index, value):
    """``target[index] = value``."""
    target[index] = value
    return target


def mixed(function, one, other):
    """``function`` of a tensor on the device and one on the CPU, which it has to refuse."""
    if torch.device(DEVICE).type == "cpu":
        raise RuntimeError("Expected all tensors to be on the same device")
    return function(one, other.cpu())
'''

Namespace = dict[str, Any]


def namespace(device: str) -> Namespace:
    """What lines can name: torch, ``F``, the helpers, ``nan`` and ``inf``, and ``DEVICE``."""
    names: Namespace = {
        "__name__": __name__,
        "torch": torch,
        "F": torch.nn.functional,
        "nan": float("nan"),
        "inf": float("inf"),
        "DEVICE": device,
    }
    exec(HELPERS, names)  # noqa: S102 - our own text
    return names


def references(line: str) -> list[str]:
    """Names of the values that a line uses, each once, in order."""
    return list(dict.fromkeys(f"v{number}" for number in _NAME.findall(line)))


def is_leaf(line: str) -> bool:
    """Whether a line makes a value out of nothing."""
    return line.startswith("leaf(")


def tensors(value: Any) -> list[Tensor]:
    """The tensors in a value, flattened."""
    if isinstance(value, Tensor):
        return [value]
    return [item for item in tree_leaves(value) if isinstance(item, Tensor)]


def leaf_line(value: Tensor) -> str:
    """A leaf with the dtype, layout and contents of ``value``: of its storage, as far as ``value`` reaches."""
    size, stride, offset = tuple(value.shape), value.stride(), min(value.storage_offset(), 3)
    length = 1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True)) if value.numel() else 0
    numbers = value.detach().as_strided((length,), (1,)).tolist() if length else [0]
    turn = -offset % len(numbers)
    return f"leaf({value.dtype}, {size}, {stride}, {offset}, {shortest_pattern(numbers[turn:] + numbers[:turn])})"


def shortest_pattern(numbers: list[Any]) -> list[Any]:
    """The shortest list that, repeated, gives ``numbers``."""
    texts = [repr(number) for number in numbers]
    for length in range(1, len(texts)):
        if all(texts[i] == texts[i - length] for i in range(length, len(texts))):
            return numbers[:length]
    return numbers


def rename(lines: Iterable[str], change: Callable[[int], str]) -> list[str]:
    """Lines with each ``v<i>`` replaced by ``change(i)``."""
    return [_NAME.sub(lambda match: change(int(match[1])), line) for line in lines]


def without(lines: list[str], index: int) -> list[str]:
    """The program without one line, which no later line may use; later values get new names."""
    kept = lines[:index] + lines[index + 1 :]
    return rename(kept, lambda number: f"v{number - (number > index)}")


def widened(line: str) -> str:
    """The line with float64 wherever it names another dtype of floating point."""
    return re.sub(r"torch\.(float16|bfloat16|float32|half|float)\b", "torch.float64", line)


def script(lines: list[str], device: str, note: str) -> str:
    """A self-contained script that runs the program on the CPU and on ``device`` and prints the last value of each."""
    body = "\n".join(f"    v{index} = {line}" for index, line in enumerate(lines))
    last = len(lines) - 1
    return f'''\
"""{note}"""
import torch
import torch.nn.functional as F

nan, inf = float("nan"), float("inf")

{HELPERS}

def program():
{body}
    return v{last}


for DEVICE in ("cpu", "{device}"):
    try:
        result = program()
        print(DEVICE, result, [(x.dtype, tuple(x.shape), x.stride()) for x in leaves(result)])
    except Exception as error:
        print(DEVICE, type(error).__name__, error)
'''
