# SPDX-License-Identifier: Apache-2.0
"""Whether a program shows on the device what it shows on the CPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from tools import on_cpu
from tools.fuzz import compare
from tools.fuzz.program import tensors
from tools.programs import explained
from tools.programs.observe import Seen, observe
from tools.programs.registry import Program, Wrap

WAYS = ("eager", "compiled")


@dataclass(frozen=True)
class Finding:
    """What of a program is not the CPU's: its kind (``exception``, ``form``, ``value``, ``strides``, ``warning``,
    ``output``, ``state``, ``fallback``, ``crash``, ``program``)."""

    program: str
    way: str
    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.program} ({self.way}) {self.kind}: {self.text}"


def _wrap(way: str, device: str) -> Wrap:
    if way == "eager":
        return lambda function, **options: function
    # What Dynamo and autograd say and refuse is the CPU's, without waiting for its own compiler of C++.
    return lambda function, **options: torch.compile(
        function, **options, **({"backend": "aot_eager"} if device == "cpu" else {})
    )


def judge(each: Program, way: str, device: str) -> list[Finding]:
    """All that a program shows otherwise on the device, and that :mod:`tools.programs.explained` has no reason for."""
    theirs = observe(each, "cpu", _wrap(way, "cpu"))
    module = torch.get_device_module(device)
    before = dict(module.fallbacks())
    ours = observe(each, device, _wrap(way, device))
    fallbacks = on_cpu.new_fallbacks(device, before)
    found = [*_differences(each, ours, theirs, device), *_fallbacks(each, theirs, fallbacks)]
    missing = _more(theirs.warned, ours.warned)
    if missing:  # unless PyTorch says it once in a process
        again = observe(each, "cpu", _wrap(way, "cpu"))
        found += [("warning", f"not heard: {text}") for text in missing if text in again.warned]
    findings = [Finding(each.name, way, kind, text) for kind, text in found]
    return [finding for finding in findings if not explained.reason_for(finding.program, finding.kind, finding.text)]


def _differences(each: Program, ours: Seen, theirs: Seen, device: str) -> Iterator[tuple[str, str]]:
    if theirs.error:
        yield "program", f"raises on the CPU, where it has to return what is refused: {theirs.error}"
    elif ours.error:
        yield "exception", ours.error
    else:
        yield from _results(each, ours.results, theirs.results, device)
    for text in _more(ours.warned, theirs.warned):
        yield "warning", text
    if ours.printed != theirs.printed:
        yield "output", f"{ours.printed!r} instead of {theirs.printed!r}"
    if ours.changed != theirs.changed and not each.draws:
        yield "state", f"{ours.changed} instead of {theirs.changed}"


def _results(each: Program, ours: Any, theirs: Any, device: str) -> Iterator[tuple[str, str]]:
    text = compare.difference(ours, theirs, device)
    if text:
        yield "form", text
        return
    text = compare.stride_difference(each.name, ours, theirs)
    if text:
        yield "strides", text
    if each.draws:
        return
    for place, (one, other) in enumerate(zip(tensors(ours), tensors(theirs), strict=True)):
        mine, cpu = one.detach().cpu(), other.detach()
        if not compare.is_close(mine, cpu) and not compare.within_rounding(mine, cpu, None, terms=each.terms):
            yield "value", f"tensor {place}: {_short(mine)} instead of {_short(cpu)}"
            return
    text = compare.scalar_difference(ours, theirs, [torch.ones(each.terms)])
    if text:
        yield "value", text


def _short(tensor: Tensor) -> str:
    return f"{tensor.flatten()[:6].tolist()} of {tuple(tensor.shape)}"


def _more(these: list[str], others: list[str]) -> list[str]:
    """What is in one list and not in another, once each."""
    return [*(Counter(set(these)) - Counter(set(others)))]


def _fallbacks(each: Program, theirs: Seen, fallbacks: dict[str, int]) -> Iterator[tuple[str, str]]:
    leaves = [leaf for leaf in pytree.tree_leaves(theirs.results) if isinstance(leaf, Tensor)]
    for name in on_cpu.unexplained(fallbacks, {leaf.dtype for leaf in leaves} | each.dtypes):
        yield "fallback", name
