# SPDX-License-Identifier: Apache-2.0
"""One OpInfo's results on the device against the CPU's: not their values but their dtype, shape, strides, what they
share memory with, and the type of the exception. Runs in a process of its own; see ``opinfo.py --check metadata``."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import torch
from opinfo_case import CPU_ARGUMENTS, Outcome, new_fallbacks, reasons
from torch import Tensor
from torch.testing._internal.opinfo.core import OpInfo, SampleInput
from torch.utils._pytree import tree_leaves, tree_map

#: Results of the CPU that depend on which of its libraries served the call.
UNDEFINED_STRIDES = (
    "linalg",
    "svd",
    "pca_lowrank",
    "lu",
    "geqrf",
    "ormqr",
    "cholesky",
    "triangular_solve",
    "eig",
    "qr",
)
#: Results that lie as CUDA's do: the CPU makes them contiguous, other devices as the input is.
LIKE_CUDA = (
    "native_batch_norm",
    "_native_batch_norm_legit",
    "_batch_norm_with_update",
    "nn.functional.batch_norm",
    "nn.functional.instance_norm",
    "nn.functional.channel_shuffle",
)
#: Operators whose statistics, which follow the first result, are of float for halves, as CUDA's: the CPU rounds them.
WIDE_STATISTICS = (
    "native_layer_norm",
    "native_batch_norm",
    "_native_batch_norm_legit",
    "_batch_norm_with_update",
)
#: Layouts of arguments in which PyTorch's own kernel reads what is not there, and crashes.
CRASHES = {"_chunk_cat": ("scalar",)}


def _transposed(x: Tensor) -> Tensor:
    """The same elements, with the dimensions in reverse order in memory."""
    order = list(range(x.dim() - 1, -1, -1))
    return x.permute(order).contiguous().permute(order)


def _channels_last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else _transposed(x)


def _sliced(x: Tensor) -> Tensor:
    """Every second element of a longer tensor, from its second on."""
    if not x.dim():
        return x
    return torch.stack([torch.zeros_like(x), x], -1).flatten(-2)[..., 1::2]


def _expanded(x: Tensor) -> Tensor:
    return x[:1].expand_as(x) if x.dim() and x.shape[0] else x


def _empty(x: Tensor) -> Tensor:
    return x[:0] if x.dim() else x


def _scalar(x: Tensor) -> Tensor:
    return x.flatten()[0].clone() if x.numel() else x


#: How the tensors among the arguments of a sample are laid out.
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda x: x,
    "transposed": _transposed,
    "channels_last": _channels_last,
    "sliced": _sliced,
    "expanded": _expanded,
    "empty": _empty,
    "scalar": _scalar,
}


def variants(op: OpInfo, dtype: torch.dtype, samples: int) -> Iterator[tuple[str, SampleInput]]:
    """Samples on the CPU, each in every layout."""
    for sample in islice(op.sample_inputs("cpu", dtype, requires_grad=False), samples):
        if any(isinstance(leaf, Tensor) and leaf.layout != torch.strided for leaf in _tensors(sample)):
            continue
        for name, lay_out in LAYOUTS.items():
            if name in CRASHES.get(op.name, ()):
                continue
            yield name, sample.transform(lambda v, f=lay_out: f(v) if isinstance(v, Tensor) else v)


def _tensors(sample: SampleInput) -> list[Any]:
    return tree_leaves((sample.input, sample.args, sample.kwargs))


def _moved(op: OpInfo, sample: SampleInput, device: str) -> SampleInput:
    """The sample on the device, every tensor lying there as it does on the CPU."""

    def move(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        made = torch.empty(0, dtype=value.dtype, device=device)
        storage = torch.empty(0, dtype=value.dtype).set_(value.untyped_storage()).to(device).untyped_storage()
        return made.set_(storage, value.storage_offset(), value.shape, value.stride())

    if op.name in CPU_ARGUMENTS:
        return SampleInput(move(sample.input), args=sample.args, kwargs=sample.kwargs)
    return _with(sample, move)


def _with(sample: SampleInput, move: Callable[[Any], Any]) -> SampleInput:
    moved = sample.transform(move)
    target = next((leaf.device for leaf in _tensors(moved) if isinstance(leaf, Tensor)), None)
    if "device" in moved.kwargs and target is not None:
        moved.kwargs["device"] = str(target)
    return moved


def described(op: OpInfo, sample: SampleInput) -> Any:
    """What a call makes, but for values; or the type of its exception."""
    inputs = [leaf for leaf in _tensors(sample) if isinstance(leaf, Tensor)]
    torch.manual_seed(0)
    try:
        results = op(sample.input, *sample.args, **sample.kwargs)
        if any(leaf.device.type != "cpu" for leaf in inputs):
            torch.accelerator.synchronize()
    except Exception as error:  # noqa: BLE001 - its type is what is compared
        return f"raises {type(error).__name__}"
    leaves = tree_leaves(tree_map(lambda leaf: leaf, results))
    return [_description(op, leaf, inputs, number) for number, leaf in enumerate(leaves)]


def _description(op: OpInfo, value: Any, inputs: list[Tensor], number: int) -> Any:
    if not isinstance(value, Tensor):
        return type(value).__name__
    if value.layout != torch.strided:
        return value.dtype, tuple(value.shape), value.layout
    strides: Any = tuple(step if size > 1 else "-" for size, step in zip(value.shape, value.stride(), strict=True))
    if value.numel() == 0 or op.name.startswith((*UNDEFINED_STRIDES, *LIKE_CUDA)):
        strides = "any"
    shared = [n for n, each in enumerate(inputs) if each.numel() and _same_memory(value, each)]
    is_wide = number > 0 and op.name.startswith(WIDE_STATISTICS) and value.dtype in (torch.float16, torch.bfloat16)
    return torch.float32 if is_wide else value.dtype, tuple(value.shape), strides, shared


def _same_memory(a: Tensor, b: Tensor) -> bool:
    return a.numel() > 0 and a.untyped_storage()._cdata == b.untyped_storage()._cdata


def run(op: OpInfo, dtype: torch.dtype, device: str, samples: int) -> Outcome:
    """Compares the first ``samples`` sample inputs in every layout. ``native`` and ``host`` stand for "the same"."""
    compared = 0
    wrong: list[str] = []
    hosted: list[str] = []
    fallbacks: dict[str, int] = {}
    module = getattr(torch, torch.device(device).type)
    with warnings.catch_warnings(), reasons() as why:
        warnings.simplefilter("ignore")
        for layout, sample in variants(op, dtype, samples):
            expected = described(op, sample)
            moved = _moved(op, sample, device)
            before = dict(module.fallbacks())
            actual = described(op, moved)
            compared += 1
            if expected != actual:
                wrong.append(f"{layout}: {actual} for {expected}")
            new = new_fallbacks(device, before)
            if new and not isinstance(expected, str):
                hosted.append(f"{layout}: {why.detail(new)}")
                fallbacks.update({name: fallbacks.get(name, 0) + count for name, count in new.items()})
    if wrong:
        return Outcome("wrong", " | ".join(wrong), fallbacks)
    if hosted:
        return Outcome("host", " | ".join(hosted), fallbacks)
    return Outcome("native" if compared else "skipped", "", fallbacks)
