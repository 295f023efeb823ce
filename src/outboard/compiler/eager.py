# SPDX-License-Identifier: Apache-2.0
"""Compiles single operators for eager execution: what C++ calls when it has no plan for a signature."""

from __future__ import annotations

import dataclasses
import logging
import threading

from outboard import compilers
from outboard._C import SignedCall

from . import progress, statistics
from .choice.calls import base_name, may_use_library
from .isolation import isolated, unheard
from .operators.overloads import find_overload
from .plans import plan as p
from .plans.dtypes import dtype_of
from .plans.schema import serialize
from .target import Target, target_of

_log = logging.getLogger(__name__)
_lock = threading.RLock()


class CompilerFault(RuntimeError):
    """A fault of the compiler's. C++ knows it by its attribute, and does not run the call on the CPU instead."""

    is_fault_of_compiler = True


@isolated
def compile_operator(call: SignedCall, library: bool = True) -> tuple[str, bytes]:
    """Compiles one operator call.

    ``library`` says whether functions of the driver's may serve. Returns ("plan", serialised plan), ("bake", b"") if
    the values of scalar arguments decide the graph, ("cpu", b"") if the device has no such operator, ("none", b"") if
    that is so of all calls with this signature, or ("refused", b"") if it has and the compiler failed. Raises what the
    operator raises for wrong arguments.
    """
    with _lock, progress.task(call.op), statistics.timed():
        target = target_of(call.device)
        target = target if library else dataclasses.replace(target, library="")
        with unheard():  # warnings are about operators of the graph, which the user has not called
            verdict, plan = _compile(call, target)
    if verdict in ("cpu", "none", "refused"):
        statistics.add("on_cpu")
    return verdict, plan


def _compile(call: SignedCall, target: Target) -> tuple[str, bytes]:
    from .adapter.lowering import ScalarSteersGraph, lower_operator

    op = call.op
    compilers.find(target)  # says so if the device's compiler is missing
    if not target.has_dialect and not target.compiler and not may_use_library(target, op):
        statistics.note_reason(base_name(op), f"nobody here writes programs in the dialect {target.dialect!r}")
        return "cpu", b""
    try:
        compiled = lower_operator(call, target)
    except ScalarSteersGraph as reason:
        _log.debug("%s: scalars become constants (%s)", op, reason)
        return "bake", b""
    except Exception as error:
        failure = error
    else:
        if compiled.fallbacks and (not compiled.native or _is_better_whole(compiled.plan, op)):
            is_known = not compiled.native and not target.compiler and _is_itself(compiled.plan, op)
            return "none" if is_known else "cpu", b""
        progress.show_kernels(op, compiled.plan.programs)
        return "plan", serialize(compiled.plan)
    # Not in the handler: what is raised here is about the call, and not about what happened while it was compiled.
    return _without_plan(call, failure)


def _is_better_whole(plan: p.Plan, op: str) -> bool:
    """Whether a plan leaves its operator, or the form of it that writes to nothing, to the CPU, and but prepares it, or
    leaves parts of it that are complex, for which PyTorch's compiler has no loops. The CPU does better without: its
    kernel then gets the arguments, and decides on the results, as they are."""
    calls = [step for step in plan.steps if isinstance(step, p.Call) and step.fallback]
    own = {base_name(op), f"{base_name(op)}_functional"}
    return any(base_name(call.name) in own or _is_complex(call) for call in calls)


def _is_itself(plan: p.Plan, op: str) -> bool:
    """Whether a plan is a call of its operator, which nothing has taken apart, and for which no loops are known."""
    from .adapter.lowering import has_lowering

    calls = [step for step in plan.steps if isinstance(step, p.Call)]
    is_one = len(calls) == 1 and base_name(calls[0].name) == base_name(op)
    return is_one and not has_lowering(find_overload(calls[0].name))


def _is_complex(call: p.Call) -> bool:
    views = [*call.results, *(argument.tensor for argument in call.call_arguments if argument.tensor is not None)]
    return any(dtype_of(view.dtype).is_complex for view in views)


def _without_plan(call: SignedCall, failure: Exception) -> tuple[str, bytes]:
    """What becomes of a call that was not compiled: "bake", "cpu" or "refused". Raises what the operator says of its
    arguments, or, if that is nothing, CompilerFault for a fault of the compiler; RuntimeError if it may be PyTorch's
    complaint, of which the CPU's kernel, asked next, has the last word."""
    from .adapter.operators.refusals import is_refusal, is_unsupported

    if not is_refusal(failure):
        _raise_users_error(call)
        # Where it may be PyTorch's complaint and the CPU's kernel has none, the call stays there.
        statistics.note_reason(base_name(call.op), f"{type(failure).__name__}: {failure}")
        raise _fault(find_overload(call.op)._schema.name, failure)
    if not call.bake and any(leaf.kind != "tensor" and leaf.item < 0 for leaf in call.leaves):
        _log.debug("%s: scalars become constants (%s)", call.op, failure)
        return "bake", b""
    _log.info("%s runs on the CPU: %s", call.op, failure)
    statistics.note_reason(base_name(call.op), str(failure))
    _log.debug("%s was not compiled:", call.op, exc_info=failure)
    return "cpu" if is_unsupported(failure) else "refused", b""


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


def _raise_users_error(call: SignedCall) -> None:
    """Raises what the operator's shape function says of these arguments; returns if it has no complaint, and the
    compiler's error was its own."""

    from .adapter.operators.results import of_shape_function

    of_shape_function(find_overload(call.op), call.args, call.kwargs)
