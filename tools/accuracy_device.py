# SPDX-License-Identifier: Apache-2.0
"""The device under test for ``accuracy.py``: here in vectors and one element at a time, and in a process of its own as
one of another kind."""

from __future__ import annotations

import multiprocessing
import os
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from accuracy_arguments import narrow
from accuracy_functions import FUNCTIONS, Array, Function


def results(function: Function, given: list[torch.Tensor], gradient: bool) -> list[torch.Tensor]:
    """The function's value, or the gradient of its sum for each argument."""
    if not gradient:
        return [function.call(*given)]
    leaves = [tensor.detach().requires_grad_() for tensor in given]
    value = function.call(*leaves)
    grads = torch.autograd.grad(value, leaves, torch.ones_like(value), allow_unused=True)
    return [grad for grad in grads if grad is not None]


class Device:
    """The device of this process."""

    def __init__(self, *, scalar: bool = False) -> None:
        self.name = torch._C._get_privateuse1_backend_name()
        self.scalar = scalar

    def results(self, function: Function, given: list[torch.Tensor], gradient: bool) -> tuple[list[Array], bool]:
        """What the device makes of the arguments, as float64, and whether the CPU did some of it."""
        module = torch.get_device_module(self.name)
        module.reset_fallbacks()
        moved = [tensor.to(self.name) for tensor in given]
        if self.scalar:
            moved = [narrow(tensor) for tensor in moved]
        found = results(function, moved, gradient)
        arrays = [result.reshape(-1).cpu().double().numpy() for result in found]
        return arrays, bool(module.fallbacks())


class OtherDevice:
    """The device as one of another kind, in a process whose compiler sees such a one, with a cache of its own below
    ours."""

    def __init__(self, kind: str) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        cache = os.environ.get("OUTBOARD_CACHE_DIR", "")
        if cache:
            os.environ["OUTBOARD_CACHE_DIR"] = str(Path(cache) / kind)
        try:
            context.Process(target=_serve, args=(theirs, kind), daemon=True).start()
        finally:
            if cache:
                os.environ["OUTBOARD_CACHE_DIR"] = cache
        theirs.close()

    def results(self, function: Function, given: list[torch.Tensor], gradient: bool) -> tuple[list[Array], bool]:
        """As ``Device.results``. Raises RuntimeError with what was raised there."""
        bits = [tensor.view(torch.uint8).numpy() for tensor in given]
        self.connection.send((function.name, given[0].dtype, bits, gradient))
        answer = self.connection.recv()
        if isinstance(answer, str):
            raise RuntimeError(answer)
        found: tuple[list[Array], bool] = answer
        return found


def _serve(connection: Connection[Any, Any], kind: str) -> None:
    """Answers until nobody asks any more."""
    from outboard.compiler.target import pretend

    pretend(kind)
    device = Device()
    while True:
        try:
            name, dtype, bits, gradient = connection.recv()
        except EOFError:
            return
        given = [torch.from_numpy(array).view(dtype) for array in bits]
        try:
            connection.send(device.results(FUNCTIONS[name], given, gradient))
        except Exception:
            connection.send(traceback.format_exc())
