# SPDX-License-Identifier: Apache-2.0
"""Kernels in the device's dialect for operators that Inductor does not generate.

:func:`lower` looks an operator up by name; :func:`covered` lists what is there.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..operators import facts

if TYPE_CHECKING:
    from ..plans.builder import PlanBuilder
    from .call import ExternCall, Parts

Lowering = Callable[["PlanBuilder", "ExternCall"], bool]


def _function(place: str) -> Any:
    """The function that a row names: "sort.lower_topk"."""
    module, _, name = place.partition(".")
    return getattr(importlib.import_module(f".{module}", __name__), name)


#: Operator without overload -> the function that appends its steps.
LOWERINGS: dict[str, Lowering] = {name: _function(fact.kernel) for name, fact in facts.FACTS.items() if fact.kernel}


def covered() -> list[str]:
    """The operators with a kernel here, sorted, as ``"aten::topk"``; each may still decline a dtype or layout."""
    return sorted(name for name in LOWERINGS if name.startswith("aten::"))


def lower(builder: PlanBuilder, call: ExternCall) -> bool:
    """Appends the steps of ``call`` and returns True; returns False, having appended nothing, if it is not covered."""
    if call.epilogue is not None and not facts.of(call.name).finishes:
        return False
    lowering = LOWERINGS.get(call.name.partition(".")[0])
    return lowering is not None and lowering(builder, call)


def parts(call: ExternCall) -> Parts | None:
    """The call taken apart, for a library that has some of it; None if it stays whole."""
    place = facts.of(call.name).parts
    made: Parts | None = _function(place)(call) if place and call.epilogue is None else None
    return made
