# SPDX-License-Identifier: Apache-2.0
"""Optimised modules: ``outboard.optimize``."""

from __future__ import annotations

import copy
import inspect
from typing import Any, TypeVar

import torch

ModuleT = TypeVar("ModuleT", bound=torch.nn.Module)


def optimize(model: ModuleT, *example_inputs: Any, **example_keywords: Any) -> ModuleT:
    """A module that computes what ``model`` does, compiled for the device that it is on when it is called.

    It is of the same class and shares parameters, buffers and submodules with ``model``, which stays usable and is not
    compiled. Names in ``state_dict``, ``train()``, ``eval()``, ``to()``, hooks and gradients are those of ``model``.
    The first call compiles (``torch.compile``); what cannot be compiled runs operator by operator.

    Args:
        model: the module to optimise.
        example_inputs: arguments of a call, as the interface of NEC's SOL has it. Only their number is checked: shapes,
            dtypes and devices are learnt from calls.
        example_keywords: keyword arguments of a call, likewise.

    Raises:
        TypeError: if ``model`` is not a module, or its ``forward`` does not take such arguments.
    """
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"optimize() expects a torch.nn.Module, not {type(model).__name__}")
    if example_inputs or example_keywords:
        inspect.signature(model.forward).bind(*example_inputs, **example_keywords)
    from .compiler.adapter.traces.entry import traced_call  # here: it imports PyTorch's compiler

    optimized = copy.copy(model)
    optimized._compiled_call_impl = torch.compile(traced_call(optimized))
    return optimized
