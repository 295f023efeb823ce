# SPDX-License-Identifier: Apache-2.0
"""The face of NEC's Vector Engine with SOL: ``torch.ve``, ``Tensor.ve()``.

``import sol.pytorch as sol`` is a package of its own, ``outboard-ve`` (``packages/ve``).
"""

from __future__ import annotations

import torch

from outboard.profiles.profile import Profile

PROFILE = Profile(
    name="ve",
    amp_dtypes=(torch.bfloat16, torch.float16),
    distributed_backend="ve-ccl",
)
