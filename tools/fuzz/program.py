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
#: What makes a leaf, by its parts.
LEAF = re.compile(
    r"leaf\((?P<dtype>[\w.]+), (?P<size>\(.*?\)), (?P<stride>\(.*?\)), (?P<offset>\d+), (?P<pattern>\[.*\])\)$"
)

#: What lines may call beside torch.
HELPERS = '''\
def leaf(dtype, size, stride, offset, pattern):
    """A tensor whose storage repeats ``pattern``."""
    length = offset + 1 + sum((n - 1) * s for n, s in zip(size, stride)) if 0 not in size else offset
    numbers = [pattern[i % len(pattern)] for i in range(length)]
    return torch.tensor(numbers, dtype=dtype).to(DEVICE).as_strided(size, stride, offset)


def leaves(value):
    """The tensors in a tuple, list or dictionary."""
    return [item for item in torch.utils._pytree.tree_leaves(value) if isinstance(item, torch.Tensor)]


def has_derivatives(x):
    """Whether one can differentiate by, or of, this tensor."""
    return x.is_floating_point() or x.is_complex()


def derivatives(function, inputs, **options):
    """Gradients of a weighted sum of the function's results with respect to those inputs that ask for one."""
    results = [y for y in leaves(function(*inputs)) if y.requires_grad]
    weights = [leaf(y.dtype, y.shape, torch.empty(y.shape, device="meta").stride(), 0, [1, -0.5, 2]) for y in results]
    wanted = [x for x in inputs if x.requires_grad]
    found = torch.autograd.grad(results, wanted, weights, allow_unused=True, **options)
    return [torch.zeros_like(x) if x._is_zerotensor() else x for x in found if x is not None]  # which have no memory


def gradient(function, *inputs):
    """Gradients with respect to the inputs that have some."""
    return derivatives(function, [x.detach().requires_grad_(has_derivatives(x)) for x in inputs])


def second(function, *inputs):
    """Second derivatives: gradients of the gradients."""
    inputs = [x.detach().requires_grad_(has_derivatives(x)) for x in inputs]
    first = derivatives(function, inputs, create_graph=True)
    return derivatives(lambda *_: first, inputs) if any(x.requires_grad for x in first) else first


def smooth(function, inputs):
    """The function of those inputs alone that have derivatives, which returns the results that have; and these."""
    places = [i for i, x in enumerate(inputs) if has_derivatives(x)]

    def of_them(*given):
        own = list(inputs)
        for place, x in zip(places, given):
            own[place] = x
        return tuple(y for y in leaves(function(*own)) if has_derivatives(y))

    return of_them, tuple(inputs[i] for i in places)


def jvp(function, *inputs):
    """Results and directional derivatives."""
    function, inputs = smooth(function, inputs)
    return torch.func.jvp(function, inputs, tuple(torch.ones_like(x) for x in inputs))


def jacrev(function, *inputs):
    """The derivatives of each result by each input, in one batch of backward passes."""
    function, inputs = smooth(function, inputs)
    return torch.func.jacrev(function, tuple(range(len(inputs))))(*inputs)


def hessian(function, *inputs):
    """The second derivatives of a sum of the results, forward over reverse."""
    function, inputs = smooth(function, inputs)
    return torch.func.hessian(lambda *given: sum(y.sum().real for y in function(*given)))(*inputs)


def batched(dims, function, *inputs):
    """By vmap, for two of each input that has a dimension, the second turned round."""
    pairs = [
        x if dim is None else torch.stack((x, x.flip(0) if x.dim() else x), dim) for x, dim in zip(inputs, dims)
    ]
    return torch.func.vmap(function, tuple(dims), randomness="different")(*pairs)


def traced(function, *inputs):
    """By TorchScript's interpreter, after it was optimised."""
    graph = torch.jit.trace(function, inputs, check_trace=False)
    return [graph(*inputs) for _ in range(2)][-1]


def scripted(text, *inputs):
    """The same of a text, in which the inputs are ``a0``, ``a1`` and so on."""
    names = ", ".join(f"a{i}" for i in range(len(inputs)))
    graph = torch.jit.CompilationUnit(f"def call({names}): return {text}\\n").call
    return [graph(*inputs) for _ in range(2)][-1]


def compiled(function, *inputs):
    """By ``torch.compile``, which on the CPU is not asked."""
    return function(*inputs) if DEVICE == "cpu" else torch.compile(function)(*inputs)


def assign(target, index, value):
    """``target[index] = value``."""
    target[index] = value
    return target


def state(**changes):
    """From now on lines run under another state of PyTorch's (``tools/fuzz/state.py``)."""
    STATE.update(changes)


def sizes(*changes):
    """The program is called for other sizes, too (``tools/fuzz/sizes.py``)."""


def mixed(function, one, other):
    """``function`` of a tensor on the device and one on the CPU, which it has to refuse."""
    if torch.device(DEVICE).type == "cpu":
        raise RuntimeError("Expected all tensors to be on the same device")
    return function(one, other.cpu())
'''

Namespace = dict[str, Any]


def namespace(device: str) -> Namespace:
    """What lines can name: torch, ``F``, the helpers, numbers that are not finite, ``DEVICE`` and ``STATE``."""
    names: Namespace = {
        "__name__": __name__,
        "torch": torch,
        "F": torch.nn.functional,
        "nan": float("nan"),
        "inf": float("inf"),
        "nanj": complex(0, float("nan")),
        "infj": complex(0, float("inf")),
        "DEVICE": device,
        "STATE": {},
    }
    exec(HELPERS, names)  # noqa: S102 - our own text
    return names


def references(line: str) -> list[str]:
    """Names of the values that a line uses, each once, in order."""
    return list(dict.fromkeys(f"v{number}" for number in _NAME.findall(line)))


def is_leaf(line: str) -> bool:
    """Whether a line makes a value out of nothing."""
    return line.startswith("leaf(")


def is_state(line: str) -> bool:
    """Whether a line says how those after it are run, and has no value."""
    return line.startswith(("state(", "sizes("))


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
    """The line with float64 wherever it names another dtype of floating point, and with complex128."""
    line = re.sub(r"torch\.complex64\b", "torch.complex128", line)
    return re.sub(r"torch\.(float16|bfloat16|float32|half|float)\b", "torch.float64", line)
