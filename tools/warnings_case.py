# SPDX-License-Identifier: Apache-2.0
"""One OpInfo: what its calls warn of, by category and text, forward and backward, on the device, the first time and the
second, and on the CPU. Runs in a process of its own; see ``opinfo.py --check warnings``."""

from __future__ import annotations

import warnings
from itertools import islice

import torch
from messages import plain
from opinfo_case import Outcome, _to_device, new_fallbacks
from torch import Tensor
from torch.testing._internal.opinfo.core import OpInfo, SampleInput
from torch.utils._pytree import tree_leaves

#: Of which each kernel warns as often as it makes such tensors; a program hears it once, where it makes its first.
_OF_TENSORS_MADE = ("tensor support is in beta state", "ComplexHalf support is experimental")


def heard(op: OpInfo, sample: SampleInput, device: str) -> tuple[list[str], str]:
    """The warnings of one call, in no order, and the type of the exception that it ends with, or ""."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.manual_seed(0)
        try:
            _call(op, sample)
            error = ""
        except Exception as raised:  # noqa: BLE001 - both sides may raise
            error = type(raised).__name__
    texts = [f"{one.category.__name__}: {plain(str(one.message), device)}" for one in caught]
    unknown = ("runs on the CPU", *_OF_TENSORS_MADE)
    return sorted(text for text in texts if not any(words in text for words in unknown)), error


def _call(op: OpInfo, sample: SampleInput) -> None:
    result = op(sample.input, *sample.args, **sample.kwargs)
    parts = [x for x in tree_leaves(result) if isinstance(x, Tensor) and x.requires_grad and not x.is_sparse]
    if parts:
        torch.autograd.backward(parts, [torch.ones_like(x) for x in parts])


def run(op: OpInfo, dtype: torch.dtype, device: str, samples: int) -> Outcome:
    """Compares the warnings of the first ``samples`` sample inputs."""
    module, count = getattr(torch, torch.device(device).type), 0
    before = dict(module.fallbacks())
    gradients = op.supports_autograd and (dtype.is_floating_point or dtype.is_complex)
    torch.set_warn_always(True)
    wrong: list[str] = []
    for sample in islice(op.sample_inputs("cpu", dtype, requires_grad=gradients), samples):
        moved = _to_device(op, sample, device)
        (first, error), (second, _) = heard(op, moved, device), heard(op, moved, device)
        expected, expected_error = heard(op, sample, device)
        if error != expected_error:  # another check's question
            continue
        wrong += [
            f"sample {count}: {which} {_only(found, expected)} for {_only(expected, found)}"
            for which, found in (("first", first), ("second", second))
            if found != expected
        ]
        count += 1
    fallbacks = new_fallbacks(device, before)
    if wrong:
        return Outcome("wrong", "\n".join(wrong), fallbacks)
    return Outcome("host" if fallbacks else "native" if count else "skipped", f"{count} calls", fallbacks)


def _only(these: list[str], others: list[str]) -> list[str]:
    """What is in one list more often than in another."""
    rest = list(others)
    return [text[:140] for text in these if text not in rest or rest.remove(text)]  # type: ignore[func-returns-value]
