# SPDX-License-Identifier: Apache-2.0
"""SOL for PyTorch: ``import sol.pytorch``, and then ``sol.optimize(model, input)`` and ``sol.deploy``."""

from typing import TYPE_CHECKING, Any

import sol
from sol import __version__, optimize

if TYPE_CHECKING:
    from sol import deploy

__all__ = ["__version__", "deploy", "optimize"]


def __getattr__(name: str) -> Any:
    return getattr(sol, name)
