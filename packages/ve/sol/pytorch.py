# SPDX-License-Identifier: Apache-2.0
"""SOL for PyTorch: ``import sol.pytorch as sol`` and ``sol.optimize(model)``."""

from outboard import __version__, optimize

__all__ = ["__version__", "optimize"]
