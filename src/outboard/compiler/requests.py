# SPDX-License-Identifier: Apache-2.0
"""Answers C++ when it has no plan for a call: from disk, or from the compiler, which is imported only then."""

from __future__ import annotations

from outboard._C import SignedCall

from . import statistics
from .plans import cache
from .target import target_of

#: Behind a signature: what is kept is that there is no plan.
_WITHOUT_PLAN = b"\0on the CPU"


def plan_for(call: SignedCall, from_cache: bool, may_compile: bool, library: bool) -> tuple[str, list[bytes], bool]:
    """What answers a call: a verdict, plans, and whether they were kept on disk.

    The verdict is that of ``eager.compile_operator``, "cpu" where that is "none", or "nothing" if nothing was kept and
    the compiler is not to be asked (``may_compile``). There are several plans only if they were kept. ``library`` says
    whether functions of the driver's may serve. Raises what the operator raises for wrong arguments.
    """
    key = _key(call.device, call.signature)
    if from_cache:
        bake, plans = cache.load(key)
        if bake and not call.bake:
            return "bake", [], True
        if plans:
            return "plan", plans, True
        if may_compile and cache.is_kept(key + _WITHOUT_PLAN):
            statistics.add("on_cpu")
            return "cpu", [], False
    if not may_compile:
        return "nothing", [], False
    from . import eager

    verdict, plan = eager.compile_operator(call, library)
    if verdict == "none":
        cache.store(key + _WITHOUT_PLAN, False, b"")
        verdict = "cpu"
    return verdict, [plan] if plan else [], False


def keep_plan(device: int, signature: bytes, bake: bool, plan: bytes) -> None:
    """Puts a plan, which C++ has adopted, into the disk cache."""
    cache.store(_key(device, signature), bake, plan)


def keep_bake(device: int, signature: bytes) -> None:
    """Puts into the disk cache that scalar values must be part of a signature."""
    cache.store_bake(_key(device, signature))


def _key(device: int, signature: bytes) -> bytes:
    return target_of(device).key_of(signature)
