# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C during a backward pass. PyTorch runs it on threads of its own, while the main thread, the only one that may
run the handlers of signals, waits for them in C. So their waits end, and the main thread then runs the handler."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from outboard import _C, patches


class _Engine(torch._C._ImperativeEngine):
    """PyTorch's engine of backward passes."""

    #: As PyTorch's. Raises KeyboardInterrupt soon after Ctrl-C, with work of the device queued. The process may end
    #: before the threads of the pass do. There is no Python in it, which Dynamo would compile where a compiled function
    #: has a backward pass.
    run_backward: Callable[..., Any]


def _interruptible(engine: torch._C._ImperativeEngine) -> _Engine:
    made = _Engine()
    made.run_backward = functools.partial(_C.run_backward, engine.run_backward)
    return made


def install() -> None:
    """Takes the place of PyTorch's engine."""
    place = "torch.autograd:Variable._execution_engine"
    patches.apply("Ctrl-C ends a backward pass", {place: _interruptible})
