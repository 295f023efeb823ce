# SPDX-License-Identifier: Apache-2.0
"""Has PyTorch's optimizers update a parameter with one launch where they use ``_foreach_*`` operators.

Inside of what ``torch.optim`` calls ``_multi_tensor_adam`` and so on, C++ writes these operators down and runs them
together (``csrc/torch/eager/foreach.h``).
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch

from outboard import _C

_PREFIX = "_multi_tensor_"


def install() -> None:
    """Wraps the updates that the modules of ``torch.optim``, which has been imported, define."""
    for module in [module for name, module in sys.modules.items() if name.startswith("torch.optim.")]:
        for name, update in list(vars(module).items()):
            if name.startswith(_PREFIX) and callable(update):
                setattr(module, name, _together(update))


def _together(update: Callable[..., Any]) -> Callable[..., Any]:
    """The update, its ``_foreach_*`` operators run as one."""

    @functools.wraps(update)
    def together(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return update(*args, **kwargs)
        _C.foreach_begin()
        try:
            return update(*args, **kwargs)
        finally:
            _C.foreach_end()

    return together
