# SPDX-License-Identifier: Apache-2.0
"""The names of ``torch_npu``: after ``import torch_npu``, in any order with ``import torch``, ``npu`` is a device.

``torch_npu.npu`` is ``torch.npu``. Libraries such as transformers and accelerate import this package wherever it is
installed, to see whether there is an NPU. So it can be imported under another profile, too: ``torch.npu`` says that
there is none then, and asking for any other name raises what to do.
"""

# ruff: noqa: E402 - the profile has to be chosen before Outboard is imported
import os
import sys
from typing import TYPE_CHECKING, Any, NoReturn

if "outboard" not in sys.modules:  # else it is decided already
    os.environ["OUTBOARD_PROFILE"] = os.environ.get("OUTBOARD_PROFILE") or "npu"

from outboard import __version__, profiles

_choice = profiles.in_force()
_is_in_force = _choice is not None and _choice.name == "npu"

if TYPE_CHECKING or _is_in_force:
    from outboard import device as npu
    from outboard.profiles import aliases
    from torch_npu import optim, profiler
    from torch_npu.operators import FUNCTIONS

    aliases.name_modules(f"{__name__}.npu")
    globals().update(FUNCTIONS)
    __all__ = ["__version__", "npu", "optim", "profiler", *FUNCTIONS]
else:
    import torch

    from torch_npu import elsewhere as npu

    torch.npu = npu  # type: ignore[attr-defined]
    __all__ = ["__version__", "npu"]


def __getattr__(name: str) -> NoReturn | Any:
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if not _is_in_force:
        profiles.require("npu", package=__name__, distribution="outboard-npu")
    raise AttributeError(f"Outboard's torch_npu has no {name!r}: docs/npu-operators.md and docs/profile-npu.md say why")
