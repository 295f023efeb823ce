# SPDX-License-Identifier: Apache-2.0
"""AOTInductor compiles models into C++ with kernels for devices that it knows: it refuses ours, and says what there is
instead."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from outboard import patches

from ..interface import device_name


def refuse_ahead_of_time() -> None:
    """Has all ways that lead to AOTInductor raise NotImplementedError for models on devices of ours."""
    patches.apply("AOTInductor refuses the device", {"torch._inductor.compile_fx.compile_fx_aot": _refusing})


def _refusing(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def compile_fx_aot(model_: torch.fx.GraphModule, example_inputs_: Any, *args: Any, **kwargs: Any) -> Any:
        name = device_name()
        if name in _devices(model_, example_inputs_):
            raise NotImplementedError(
                f"AOTInductor has no code for devices called {name!r}. A model there becomes a file, which C++ runs "
                "without Python, by outboard.export(model, inputs, path=...)"
            )
        return original(model_, example_inputs_, *args, **kwargs)

    return compile_fx_aot


def _devices(model: torch.fx.GraphModule, example_inputs: Any) -> set[str]:
    """The kinds of devices of a model and its inputs, and those that it names itself."""
    tensors = [*model.parameters(), *model.buffers(), *tree_leaves(example_inputs)]
    named = [each for node in model.graph.nodes for each in tree_leaves((node.args, node.kwargs))]
    kinds = {each.device.type for each in tensors if isinstance(each, torch.Tensor)}
    return kinds | {each.type for each in named if isinstance(each, torch.device)}
