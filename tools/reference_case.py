# SPDX-License-Identifier: Apache-2.0
"""Each operator on PyTorch's reference inputs: hundreds for some, of odd sizes, options and numbers, which the first
sample inputs do not have."""

from __future__ import annotations

import random

import opinfo_case
import torch
from torch.testing._internal.opinfo.core import OpInfo


def run(op: OpInfo, dtype: torch.dtype, device: str, samples: int) -> opinfo_case.Outcome:
    """Runs ``samples`` reference inputs of an operator, drawn by its name, and classifies it."""
    inputs = list(op.reference_inputs("cpu", dtype, requires_grad=False))
    random.Random(op.name).shuffle(inputs)
    return opinfo_case.run(op, dtype, device, samples, inputs=inputs)
