# SPDX-License-Identifier: Apache-2.0
"""The face of NEC's Vector Engine with SOL: ``torch.ve``, ``Tensor.ve()``, and ``hip`` as another word for ``ve``.

``import sol.pytorch`` is a package of its own, ``outboard-ve`` (``packages/ve``).
"""

from __future__ import annotations

import torch

from outboard.profiles.profile import Profile


def _add_hip() -> None:
    """The name under which the Vector Engine was reached first, https://arxiv.org/abs/2003.10688."""
    from outboard.profiles import aliases

    aliases.install("hip")
    aliases.explain("hip", "HIP")


PROFILE = Profile(
    name="ve",
    amp_dtypes=(torch.bfloat16, torch.float16),
    distributed_backend="ve-ccl",
    on_activation=_add_hip,
)
