# SPDX-License-Identifier: Apache-2.0
"""One OpInfo on jagged tensors: the device's results against the same operator on each of their parts, where the CPU's
agree with that. Runs in a process of its own; see ``opinfo.py --check nested``."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch
from opinfo_case import Outcome, new_fallbacks, tolerances
from torch import Tensor
from torch.testing._internal.opinfo.core import OpInfo, SampleInput
from torch.testing._internal.opinfo.definitions.nested import njt_op_db
from torch.utils._pytree import tree_leaves

#: PyTorch makes this many times as many samples of jagged tensors as of others, of all numbers of dimensions.
_SAMPLES = 12
#: Operators whose gradient ends PyTorch's own process, on the CPU as elsewhere: parts of no elements among others.
FATAL_GRADIENTS = ("split_with_sizes",)


def run(op: OpInfo, dtype: torch.dtype, device: str, samples: int) -> Outcome:
    """Compares the results of the first sample inputs, ``_SAMPLES`` for each of ``samples``, and runs backward."""
    jagged = next(each for each in njt_op_db if each.full_name == op.full_name)
    if not jagged.supports_njt:
        return Outcome("skipped", "PyTorch has no samples", {})
    module, count = getattr(torch, torch.device(device).type), 0
    before = dict(module.fallbacks())
    wrong, errors = [], []
    limits = tolerances(op, dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pairs = zip(*(_samples(jagged, dtype, each) for each in ("cpu", device)), strict=False)
        for theirs, ours in islice(pairs, samples * _SAMPLES):
            try:
                if _difference(_called(jagged, theirs), jagged.ref(jagged, theirs), limits):
                    continue  # random numbers
            except Exception:  # noqa: BLE001 - what the CPU refuses is not a question to the device
                continue
            count += 1
            try:
                text = _difference(_called(jagged, ours), jagged.ref(jagged, ours), limits)
            except Exception as error:  # noqa: BLE001 - the row's result
                errors.append(f"{ours.name}: {type(error).__name__}: {' '.join(str(error).split())[:200]}")
                continue
            if text:
                wrong.append(f"{ours.name}: {' '.join(text.split())[:300]}")
    fallbacks = new_fallbacks(device, before)
    if wrong or errors:
        return Outcome("wrong" if wrong else "error", "\n".join(wrong + errors), fallbacks)
    return Outcome("host" if fallbacks else "native" if count else "skipped", f"{count} calls", fallbacks)


def _samples(op: Any, dtype: torch.dtype, device: str) -> Iterator[SampleInput]:
    gradients = op.supports_autograd and (dtype.is_floating_point or dtype.is_complex)
    gradients = gradients and op.full_name not in FATAL_GRADIENTS
    torch.manual_seed(0)
    made: Iterator[SampleInput] = op.sample_inputs(device, dtype, requires_grad=gradients)
    return made


def _called(op: Any, sample: SampleInput) -> Any:
    result = op(sample.input, *sample.args, **sample.kwargs)
    parts = [x for x in tree_leaves(result) if isinstance(x, Tensor) and x.requires_grad]
    if parts:
        torch.autograd.backward([x.sum() if not x.is_nested else x.values().sum() for x in parts])
    return result


def _parts(value: Any) -> Iterator[Tensor]:
    for leaf in tree_leaves(value):
        if isinstance(leaf, Tensor):
            yield from leaf.detach().unbind() if leaf.is_nested else (leaf.detach(),)


def _difference(actual: Any, expected: Any, limits: dict[str, float]) -> str:
    ours, theirs = list(_parts(actual)), list(_parts(expected))
    try:
        torch.testing.assert_close(ours, theirs, equal_nan=True, check_stride=False, **limits)
    except AssertionError as error:
        return str(error)
    return ""
