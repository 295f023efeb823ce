# SPDX-License-Identifier: Apache-2.0
"""Whether an operator's first call leaves the program's state as it was. Runs in a process of its own; see
``opinfo.py``. To be run with an empty cache: what is not compiled disturbs nobody."""

from __future__ import annotations

import contextlib
from itertools import islice
from unittest import mock

import torch
import torch.testing._utils
from opinfo_case import Outcome, _to_device, new_fallbacks
from snapshot import disturbances
from torch.testing._internal.opinfo.core import OpInfo, SampleInput


def run(op: OpInfo, dtype: torch.dtype, device: str, samples: int) -> Outcome:
    """Calls the first ``samples`` sample inputs twice, with gradients where there are some. ``wrong`` is an operator
    that changed any state but generators, or moved a generator the first time to another place than the second."""
    module = getattr(torch, torch.device(device).type)
    fallbacks: dict[str, int] = {}
    gradients = op.supports_autograd and dtype.is_floating_point
    called = 0
    for sample in islice(op.sample_inputs("cpu", dtype, requires_grad=gradients), samples):
        moved = _to_device(op, sample, device)
        before = dict(module.fallbacks())
        torch.accelerator.synchronize()
        changed = disturbances(lambda op=op, moved=moved: _call(op, moved))
        for name, count in new_fallbacks(device, before).items():
            fallbacks[name] = fallbacks.get(name, 0) + count
        if changed:
            return Outcome("wrong", f"sample {called}: {changed}", fallbacks)
        called += 1
    if called == 0:
        return Outcome("skipped", "the CPU has no sample", fallbacks)
    return Outcome("host" if fallbacks else "native", "", fallbacks)


def _call(op: OpInfo, sample: SampleInput) -> None:
    # OpInfos of random functions put the generators back, whoever has moved them.
    seeing = mock.patch.object(torch.testing._utils, "freeze_rng_state", contextlib.nullcontext)
    try:
        with seeing:
            result = op(sample.input, *sample.args, **sample.kwargs)
            result = sample.output_process_fn_grad(result)
        if isinstance(result, torch.Tensor) and result.requires_grad and result.dtype.is_floating_point:
            result.sum().backward()
        torch.accelerator.synchronize()
    except Exception:  # noqa: BLE001 - a call that raises must change nothing either
        return
