# SPDX-License-Identifier: Apache-2.0
"""One OpInfo, run twice while the memory that the device hands out holds one pattern and then another: a byte of a
result that is not the same was written by nobody. Among the arguments are those that leave nothing to do: sizes and
numbers of 0 and 1. Runs in a process of its own; see ``opinfo.py --check unwritten``."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch
from metadata_case import LAYOUTS, _moved
from opinfo_case import UNINITIALISED, Outcome, new_fallbacks
from torch import Tensor
from torch.testing._internal.opinfo.core import OpInfo, SampleInput
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

#: Of which PyTorch's own kernels for the CPU end the process for some of these arguments: they read or write beside
#: tensors that are shorter than they take them for. Each call is tried in a process of its own first.
FATAL = frozenset(
    {
        "_batch_norm_with_update",
        "_chunk_cat",
        "_native_batch_norm_legit",
        "_segment_reduce",
        "lu_unpack",
        "native_batch_norm",
    }
)
#: What they append to a tensor is left as it was.
_APPENDING = ("resize_", "resize_as_")
#: Bytes that new memory holds, in turn.
PATTERNS = (0x15, 0x6B)
#: What memory of each kind is handed out from: as many blocks of so many bytes.
_BLOCKS = ((256, 512), (64, 4096), (4, 1 << 16), (2, 1 << 20))


def poison(byte: int, device: str) -> None:
    """Leaves the device nothing but memory that holds ``byte`` to hand out."""
    getattr(torch, device).empty_cache()
    blocks = [
        torch.full((size,), byte, dtype=torch.uint8, device=device).add_(0) for n, size in _BLOCKS for _ in range(n)
    ]
    torch.accelerator.synchronize()
    del blocks


def variants(op: OpInfo, dtype: torch.dtype, samples: int) -> Iterator[tuple[str, SampleInput]]:
    """Samples on the CPU, and what remains of each where it has little or nothing to do."""
    for sample in islice(op.sample_inputs("cpu", dtype, requires_grad=False), samples):
        leaves, form = tree_flatten((sample.input, list(sample.args), sample.kwargs))
        if any(isinstance(leaf, Tensor) and leaf.layout != torch.strided for leaf in leaves):
            continue
        for name in ("contiguous", "empty", "scalar"):
            laid_out = [LAYOUTS[name](leaf) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
            yield name, _sample(laid_out, form)
            for number, leaf in enumerate(laid_out):
                for what, other in _less(leaf):
                    changed = [*laid_out[:number], other, *laid_out[number + 1 :]]
                    yield f"{name}, argument {number} {what}", _sample(changed, form)
        for dim in range(3):
            for size in (0, 1):
                yield (
                    f"all: size {size} of dimension {dim}",
                    sample.transform(lambda v, d=dim, n=size: _narrowed(v, d, n)),
                )


def _sample(leaves: list[Any], form: Any) -> SampleInput:
    value, args, kwargs = tree_unflatten(leaves, form)
    return SampleInput(value, args=tuple(args), kwargs=kwargs)


def _less(leaf: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(leaf, Tensor):
        for dim in range(min(leaf.dim(), 3)):
            for size in (0, 1):
                yield f"size {size} of dimension {dim}", _narrowed(leaf, dim, size)
    elif isinstance(leaf, int) and not isinstance(leaf, bool):
        for number in {0, 1} - {leaf}:
            yield f"is {number}", number


def _narrowed(value: Any, dim: int, size: int) -> Any:
    wanted = isinstance(value, Tensor) and value.dim() > dim and value.size(dim) > size
    return value.narrow(dim, 0, size).clone() if wanted else value


def _survives(op: OpInfo, sample: SampleInput) -> bool:
    """Whether a process that makes this call on the CPU lives to its end."""
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(Exception):
            op(sample.input, *sample.args, **sample.kwargs)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def _bytes(op: OpInfo, sample: SampleInput, byte: int, device: str) -> list[Tensor]:
    """The results, as bytes on the CPU."""
    poison(byte, device)
    torch.manual_seed(0)
    results = op(sample.input, *sample.args, **sample.kwargs)
    found = [x for x in tree_leaves(results) if isinstance(x, Tensor) and x.layout == torch.strided]
    return [x.detach().resolve_conj().resolve_neg().cpu().contiguous().flatten().view(torch.uint8) for x in found]


def run(op: OpInfo, dtype: torch.dtype, device: str, samples: int) -> Outcome:
    """Runs the first ``samples`` sample inputs, and what is made of them, with each pattern."""
    if op.name in (*UNINITIALISED, *_APPENDING) or "empty" in op.name:
        return Outcome("skipped", "its results are not written", {})
    wrong: list[str] = []
    module, count = getattr(torch, device), 0
    before = dict(module.fallbacks())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, sample in variants(op, dtype, samples):
            if op.name in FATAL and not _survives(op, sample):
                continue
            try:
                op(sample.input, *sample.args, **sample.kwargs)
                there = _moved(op, sample, device)
                first, second = (_bytes(op, there, byte, device) for byte in PATTERNS)
            except Exception:  # noqa: BLE001 - what is refused has no results
                continue
            count += 1
            differing = [n for n, pair in enumerate(zip(first, second, strict=True)) if not torch.equal(*pair)]
            if differing:
                leaves = tree_leaves((sample.input, sample.args, sample.kwargs))
                shapes = [tuple(x.shape) for x in leaves if isinstance(x, Tensor)]
                wrong.append(f"{name}: results {differing} of {shapes}")
    fallbacks = new_fallbacks(device, before)
    if wrong:
        return Outcome("wrong", "\n".join(wrong), fallbacks)
    return Outcome("host" if fallbacks else "native" if count else "skipped", f"{count} calls", fallbacks)
