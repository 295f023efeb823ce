# SPDX-License-Identifier: Apache-2.0
"""The face of Rebellions' NPUs, as ``torch-rbln`` shows it: ``torch.rbln``, AMP in float16.

``import torch_rbln`` is a package of its own, ``outboard-rbln`` (``packages/rbln``).
"""

from __future__ import annotations

import torch

from outboard.profiles.profile import Profile

PROFILE = Profile(
    name="rbln",
    amp_dtypes=(torch.float16,),
    distributed_backend="rbln-ccl",
)
