# SPDX-License-Identifier: Apache-2.0
"""The face of NEC's Vector Engine with SOL: ``torch.ve``, ``Tensor.ve()``, and ``import sol.pytorch as sol``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch

import outboard
from outboard.profiles.profile import Profile


def optimize(model: torch.nn.Module, *args: Any, **kwargs: Any) -> torch.nn.Module:
    """An optimised module that shares the model's parameters.

    Args:
        model: the module to optimise; it stays usable.
        args: example inputs. Shapes are learnt from the first call, so they are not needed.
        kwargs: keyword example inputs, likewise.

    Returns:
        A module that compiles on its first call, for the device its parameters are on by then.

    Raises:
        TypeError: if ``model`` is not a module.
    """
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"optimize() expects a torch.nn.Module, not {type(model).__name__}")
    return cast(torch.nn.Module, torch.compile(model))


def _sol_pytorch() -> Mapping[str, Any]:
    return {"__version__": outboard.__version__, "optimize": optimize}


PROFILE = Profile(
    name="ve",
    amp_dtypes=(torch.bfloat16, torch.float16),
    distributed_backend="ve-ccl",
    module_aliases={"sol.pytorch": _sol_pytorch},
)
