# SPDX-License-Identifier: Apache-2.0
"""The face of Rebellions' NPUs, as ``torch-rbln`` shows it: ``import torch_rbln``, ``torch.rbln``, AMP in float16."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

import outboard
from outboard import device
from outboard.profiles.profile import Profile


def _torch_rbln() -> Mapping[str, Any]:
    return {"__version__": outboard.__version__, "rbln": device}


PROFILE = Profile(
    name="rbln",
    amp_dtypes=(torch.float16,),
    distributed_backend="rbln-ccl",
    module_aliases={"torch_rbln": _torch_rbln},
)
