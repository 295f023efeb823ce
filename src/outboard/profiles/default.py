# SPDX-License-Identifier: Apache-2.0
"""The default profile: whatever device there is."""

from __future__ import annotations

import torch

from outboard.profiles.profile import Profile

PROFILE = Profile(
    name="ocl",
    amp_dtypes=(torch.float16, torch.bfloat16),
    distributed_backend="occl",
)
