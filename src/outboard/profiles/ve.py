# SPDX-License-Identifier: Apache-2.0
"""The face of NEC's Vector Engine with SOL: ``torch.ve``, ``Tensor.ve()``, and ``import sol.pytorch as sol``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

import outboard
from outboard.profiles.profile import Profile


def _sol_pytorch() -> Mapping[str, Any]:
    return {"__version__": outboard.__version__, "optimize": outboard.optimize}


PROFILE = Profile(
    name="ve",
    amp_dtypes=(torch.bfloat16, torch.float16),
    distributed_backend="ve-ccl",
    module_aliases={"sol.pytorch": _sol_pytorch},
)
