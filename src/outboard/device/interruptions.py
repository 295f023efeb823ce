# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C during a backward pass. PyTorch runs it on threads of its own, while the main thread, the only one that may
run the handlers of signals, waits for them in C. So their waits end, and the main thread then runs the handler."""

from __future__ import annotations

import signal
import threading
from typing import Any

import torch

from outboard import _C, patches

#: By it, threads that run a backward pass for the main thread know it (``csrc/torch/bridge/interruptions.h``).
_BACKWARD = "outboard.backward"


class _Engine(torch._C._ImperativeEngine):
    """PyTorch's engine of backward passes."""

    def run_backward(self, *args: Any, **kwargs: Any) -> Any:
        """As PyTorch's. Raises KeyboardInterrupt soon after Ctrl-C, with work of the device queued. The process may end
        before the threads of the pass do."""
        return _C.run_backward(super().run_backward, args, kwargs, _may_be_interrupted())


def _may_be_interrupted() -> bool:
    """Whether this is a backward pass of the main thread, not one within another, and Ctrl-C is sure to end it. What a
    handler of the program's own would do is known only when it has run."""
    return (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        and not torch._C._is_key_in_tls(_BACKWARD)
    )


def install() -> None:
    """Takes the place of PyTorch's engine."""
    place = "torch.autograd:Variable._execution_engine"
    patches.apply("Ctrl-C ends a backward pass", {place: lambda engine: _Engine()})
