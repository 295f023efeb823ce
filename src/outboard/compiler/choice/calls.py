# SPDX-License-Identifier: Apache-2.0
"""Operators that Inductor does not generate: who implements each of them.

A call (:class:`~outboard.compiler.kernels.call.ExternCall`) names an operator and its arguments, all in terms of a
plan's buffers and symbols.
:func:`lower_call` appends the steps that carry it out, trying in order

1. a function of the driver's library (``functions``), where it has one that was measured to be faster (``libraries``),
   for the whole call or for parts of it, as one gradient of several, while 2 or 3 makes the others;
2. a kernel in the device's dialect: ``outboard.compiler.kernels.lower(builder, call) -> bool``, which appends steps and
   returns True, or returns False *before* it has appended anything;
3. a call of the operator on the host, counted as a CPU fallback.

An operator of another namespace (``torch.library``) is its author's: PyTorch's dispatcher knows what implements it, and
on which device. No plan can hold its call, so that the graph is run line by line, with the call as PyTorch makes it.

``OUTBOARD_LIBRARY`` decides between 1 and 2: ``auto`` by measurement, ``driver`` for the library wherever it has a
function, ``dialect`` for kernels of our own.
"""

from __future__ import annotations

import os

import torch
from torch.utils._pytree import tree_leaves

from .. import kernels
from ..kernels.call import ExternCall
from ..operators import facts
from ..operators.overloads import find_overload
from ..plans.builder import NotExpressible, PlanBuilder, TensorArg
from ..target import Target
from . import functions

#: Namespaces of the operators that the CPU implements, whatever else a program has loaded.
HOST_NAMESPACES = frozenset({"aten", "mkldnn", "prims"})


def library_choice() -> str:
    """Who carries out an operator that the driver's library has, too: "auto" (what was faster; the default), "dialect"
    (kernels of our own) or "driver".

    Raises ValueError for any other value of OUTBOARD_LIBRARY."""
    choice = os.environ.get("OUTBOARD_LIBRARY", "auto")
    if choice not in ("auto", "dialect", "driver"):
        raise ValueError(f"OUTBOARD_LIBRARY={choice}: expected 'auto', 'dialect' or 'driver'")
    return choice


def base_name(name: str) -> str:
    """The operator's name without its overload: ``"aten::mm.out"`` -> ``"aten::mm"``."""
    return name.partition(".")[0]


def uses_library(builder: PlanBuilder, call: ExternCall) -> bool:
    """Whether the call goes to the library of the device's driver."""
    if not may_use_library(builder.target, call.name) or not functions.offers(builder, call):
        return False
    if library_choice() == "driver" or not builder.target.has_dialect:
        return True
    from . import libraries

    return libraries.driver_is_faster(builder, call)


def may_use_library(target: Target, name: str) -> bool:
    """Whether the driver may be asked for a function for the operator of this name."""
    return bool(target.library) and facts.of(name).library and library_choice() != "dialect"


def lower_call(builder: PlanBuilder, call: ExternCall) -> bool:
    """Appends the steps of ``call``; returns whether the device itself (or its library) carries them out, False for a
    counted CPU fallback. Raises NotExpressible for an argument no plan can hold, an operator of a program's, or random
    numbers of the host."""
    if uses_library(builder, call):
        functions.append(builder, call)
        return True
    parts = kernels.parts(call) if may_use_library(builder.target, call.name) else None
    if parts is not None and any([uses_library(builder, part) for part in parts.calls]):
        native = all([lower_call(builder, part) for part in parts.calls])
        parts.finish(builder)
        return native
    if kernels.lower(builder, call):
        return True
    if call.name.partition("::")[0] not in HOST_NAMESPACES:
        raise NotExpressible(f"a call of the operator {call.name}, which PyTorch's dispatcher has to make")
    overload = find_overload(call.name)
    if torch.Tag.inplace_view in overload.tags:
        raise NotExpressible(f"{call.name}, which changes a tensor and not its memory")
    if torch.Tag.nondeterministic_seeded in overload.tags:
        raise NotExpressible(f"random numbers of {call.name}, which belong to the device's generator")
    # Views, and what is complex (complex_arithmetic.cpp), single calls have on the device, or leave to the CPU.
    name = f"device::{call.name}" if overload.is_view or _is_complex(call) else call.name
    builder.call(name, call.args, call.kwargs, call.results, fallback=True)
    return False


def _is_complex(call: ExternCall) -> bool:
    """Whether a tensor of the call is complex."""
    tensors = [*call.results, *tree_leaves([call.args, call.kwargs])]
    return any(isinstance(tensor, TensorArg) and tensor.dtype.is_complex for tensor in tensors)
