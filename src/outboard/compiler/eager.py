# SPDX-License-Identifier: Apache-2.0
"""Compiles single operators for eager execution: what C++ calls when it has no plan for a signature."""

from __future__ import annotations

import dataclasses
import logging
import threading
from typing import Any

import torch

from . import progress, statistics
from .choice.calls import base_name, find_overload, may_use_library
from .isolation import isolated, unheard
from .plans import plan as p
from .plans.dtypes import dtype_of
from .target import Target, target_of

_log = logging.getLogger(__name__)
_lock = threading.RLock()


class CompilerFault(RuntimeError):
    """A fault of the compiler's. C++ knows it by its attribute, and does not run the call on the CPU instead."""

    is_fault_of_compiler = True


@isolated
def compile_operator(
    op: str, args: tuple[Any, ...], kwargs: dict[str, Any], bake: bool, library: bool = True
) -> tuple[str, bytes]:
    """Compiles one operator call.

    ``op`` is the schema's name ("aten::add.Tensor"); ``args`` and ``kwargs`` are the call's real arguments; ``library``
    says whether functions of the driver's may serve. Returns ("plan", serialised plan), ("bake", b"") if the values of
    scalar arguments decide the graph, ("host", b"") if the device has no such operator, or ("refused", b"") if it has
    and the compiler failed. Raises what the operator raises for wrong arguments.
    """
    with _lock, progress.task(op), statistics.timed():
        target = target_of(device_of(args, kwargs))
        target = target if library else dataclasses.replace(target, library="")
        with unheard():  # warnings are about operators of the graph, which the user has not called
            verdict, plan = _compile(op, args, kwargs, bake, target)
    if verdict in ("host", "refused"):
        statistics.add("host")
    return verdict, plan


def _compile(op: str, args: tuple[Any, ...], kwargs: dict[str, Any], bake: bool, target: Target) -> tuple[str, bytes]:
    from .adapter.lowering import ScalarSteersGraph, lower_operator

    overload = find_overload(op)
    if not target.has_dialect and not may_use_library(target, op):
        return "host", b""
    try:
        compiled = lower_operator(overload, args, kwargs, bake, target)
    except ScalarSteersGraph as reason:
        _log.debug("%s: scalars become constants (%s)", op, reason)
        return "bake", b""
    except Exception as error:
        failure = error
    else:
        if compiled.fallbacks and (not compiled.native or _is_better_whole(compiled.plan, op)):
            return "host", b""
        progress.show_kernels(op, compiled.plan.programs)
        return "plan", compiled.plan.serialize()
    # Not in the handler: what is raised here is about the call, and not about what happened while it was compiled.
    return _without_plan(overload, args, kwargs, bake, failure)


def _is_better_whole(plan: p.Plan, op: str) -> bool:
    """Whether a plan leaves its operator to the CPU, and but prepares it, or leaves parts of it that are complex, for
    which PyTorch's compiler has no loops. The CPU does better without: its kernel then gets the arguments, and decides
    on the results, as they are."""
    calls = [step for step in plan.steps if isinstance(step, p.Call) and step.fallback]
    return any(base_name(call.name) == base_name(op) or _is_complex(call) for call in calls)


def _is_complex(call: p.Call) -> bool:
    views = [*call.results, *(argument.tensor for argument in call.arguments if argument.tensor is not None)]
    return any(dtype_of(view.dtype).is_complex for view in views)


def _without_plan(
    overload: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], bake: bool, failure: Exception
) -> tuple[str, bytes]:
    """What becomes of a call that was not compiled: "bake", "host" or "refused". Raises what the operator says of its
    arguments, or, if that is nothing, CompilerFault for a fault of the compiler; RuntimeError if it may be PyTorch's
    complaint, of which the CPU's kernel, asked next, has the last word."""
    from .adapter.operators.refusals import is_refusal, is_unsupported

    op = overload._schema.name
    if not is_refusal(failure):
        _raise_users_error(overload, args, kwargs)
        raise _fault(op, failure)
    if not bake and _has_scalars(overload, args, kwargs):
        _log.debug("%s: scalars become constants (%s)", op, failure)
        return "bake", b""
    _log.info("%s runs on the host: %s", op, failure)
    _log.debug("%s was not compiled:", op, exc_info=failure)
    return "host" if is_unsupported(failure) else "refused", b""


def _fault(op: str, failure: Exception) -> RuntimeError:
    """The error that users see of a fault of ours."""
    from .adapter.operators.refusals import is_complaint, place_of

    _log.debug("the compiler failed on %s:", op, exc_info=failure)
    kind = RuntimeError if is_complaint(failure) else CompilerFault
    return kind(
        f"internal error of Outboard's compiler in the operator '{op}': {type(failure).__name__}: {failure} "
        f"(at {place_of(failure)}). This is a fault of Outboard, not of your program; please report it, with what "
        f"the logger '{__name__}' has at level DEBUG. Until it is mended, move the operator's arguments to the CPU "
        "and its result back to the device."
    )


def _raise_users_error(overload: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raises what the operator's shape function says of these arguments; returns if it has no complaint, and the
    compiler's error was its own."""

    from .adapter.operators.results import of_shape_function

    of_shape_function(overload, args, kwargs)


def device_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """The index of the device that the arguments are on."""
    name = torch._C._get_privateuse1_backend_name()
    work: list[Any] = [*args, *kwargs.values()]
    for value in work:
        if isinstance(value, torch.Tensor) and value.device.type == name:
            return value.device.index or 0
        if isinstance(value, torch.device) and value.type == name:
            return value.index or 0
        if isinstance(value, (list, tuple)):
            work.extend(value)
    return 0


def _has_scalars(overload: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether some argument was symbolic that could be a constant."""
    work: list[Any] = [*args, *kwargs.values()]
    return any(
        (isinstance(v, (int, float)) and not isinstance(v, bool))
        or (isinstance(v, torch.Tensor) and v.device.type == "cpu" and v.dim() == 0)
        for v in work
    )
