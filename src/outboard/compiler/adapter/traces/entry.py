# SPDX-License-Identifier: Apache-2.0
"""Where Dynamo begins to look at a module's call."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch
from torch._dynamo import trace_rules


def traced_call(module: torch.nn.Module) -> Callable[..., Any]:
    """What to compile so that ``module(...)`` is compiled.

    Dynamo looks for a frame to begin with below ``module.__call__``, and passes over those of ``torch.nn``: of a module
    whose ``forward`` is one of these, it would find none, or one for each of the submodules that programs define. Such
    a module is called by a frame outside of ``torch.nn``, with code of its own, since Dynamo counts by code how often
    it compiled.
    """
    if not trace_rules.check(module.forward):
        return module._call_impl
    function = types.FunctionType(_call.__code__.replace(), globals(), _call.__name__)
    return types.MethodType(function, module)


def _call(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
    return self._call_impl(*args, **kwargs)
