# SPDX-License-Identifier: Apache-2.0
"""What the kit needs of Outboard for the levels above ``memory``: the words of the device's dialect, and executables of
its compiler of graphs. Without Outboard or PyTorch there are none, and the clauses that need them do not apply."""

from __future__ import annotations

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True)
class Offer:
    """Words and executables, and why there are none."""

    dialect: str = ""
    words: str = ""
    executables: tuple[dict[str, Any], ...] = ()
    reasons: tuple[str, ...] = ()


def offer_for(device: dict[str, Any], *, words: bool = True, executables: bool = True) -> Offer:
    """What installed packages have for a device of these properties: words, executables, or both."""
    dialect = device["dialect"] if words else ""
    compiler = device["compiler"] if executables else ""
    reasons = []
    text = ""
    if dialect:
        try:
            text = _words(dialect)
        except Exception as error:  # noqa: BLE001 - a package of somebody's; the report says it
            reasons.append(f"dialect {dialect!r}: {type(error).__name__}: {error}")
    made: tuple[dict[str, Any], ...] = ()
    if compiler:
        try:
            made = _executables(compiler, bool(device["static_sizes"]))
        except Exception as error:  # noqa: BLE001 - as above
            reasons.append(f"compiler {compiler!r}: {type(error).__name__}: {error}")
    return Offer(dialect if text else "", text, made, tuple(reasons))


def _words(dialect: str) -> str:
    from outboard.compiler import dialects  # noqa: PLC0415 - imports PyTorch

    return dialects.find(dialect).program("")


def _executables(compiler: str, static_sizes: bool) -> tuple[dict[str, Any], ...]:
    from outboard_conformance.example_graph import compiled  # noqa: PLC0415 - imports PyTorch

    return compiled(compiler, static_sizes)
