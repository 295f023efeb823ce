# SPDX-License-Identifier: Apache-2.0
"""Clauses: sentences of ``driver.h``, each with the function that tries it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TypeVar

from outboard_conformance.bench import Bench

#: The levels, each of which includes those before it.
LEVELS = ("contract", "memory", "kernels", "graph", "operators", "models")


Trial = TypeVar("Trial", bound=Callable[[Bench], str | None])


@dataclasses.dataclass(frozen=True)
class Clause:
    """A sentence, and what tries it on a device. ``run`` raises Broken, Failed or NotApplicable, or returns what there
    is to say though the clause is kept."""

    name: str
    level: str
    says: str  #: words of driver.h, as they stand there; of ``operators`` and ``models``, what PyTorch is promised
    run: Callable[[Bench], str | None]


class Broken(Exception):
    """The driver does not do what the clause says; the text says what it did."""


class NotApplicable(Exception):
    """The device has nothing that the clause is about; the text says what is missing."""


CLAUSES: dict[str, Clause] = {}


def clause(level: str, says: str) -> Callable[[Trial], Trial]:
    """Makes a clause of a function, under the function's name."""

    def register(run: Trial) -> Trial:
        CLAUSES[run.__name__] = Clause(run.__name__, level, says, run)
        return run

    return register


def expect(holds: bool, text: str) -> None:
    """Raises Broken with the text unless it holds."""
    if not holds:
        raise Broken(text)


def need(holds: bool, text: str) -> None:
    """Raises NotApplicable with the text unless it holds."""
    if not holds:
        raise NotApplicable(text)


def expect_bytes(found: bytes, wanted: bytes, what: str) -> None:
    """Raises Broken with the first place where two strings of bytes differ."""
    if found == wanted:
        return
    at = next((i for i, (a, b) in enumerate(zip(found, wanted, strict=False)) if a != b), min(len(found), len(wanted)))
    count = sum(a != b for a, b in zip(found, wanted, strict=False))
    raise Broken(
        f"{what}: {count} of {len(wanted)} bytes are wrong, the first at {at}: "
        f"{found[at : at + 8].hex(' ')} for {wanted[at : at + 8].hex(' ')}"
    )
