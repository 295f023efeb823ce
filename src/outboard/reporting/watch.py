# SPDX-License-Identifier: Apache-2.0
"""Marks in the profiler's events where something cost time without a word of it in the program."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from torch.profiler import record_function

from outboard import _C
from outboard.reporting.places import Place, place_of


@dataclass(frozen=True)
class Note:
    """One cost: its kind ("fallback", "wait", "copy", "conversion" or "compilation"), what it is of, of a fallback its
    cause, and the line of the program that has it."""

    kind: str
    what: str
    cause: str
    place: Place


class Watch:
    """A context in which each cost has an event of the profiler's, inside that of the operator that has it.

    Attributes:
        notes: what was noted, by the name of its events.
    """

    _open = False

    def __init__(self) -> None:
        self.notes: dict[str, Note] = {}

    def __enter__(self) -> Watch:
        """Raises RuntimeError if another one is open."""
        if Watch._open:
            raise RuntimeError("a program can be explained by one region at a time, and one is open")
        Watch._open = True
        _C.observe_costs(self._note)
        return self

    def __exit__(self, *exception: object) -> None:
        _C.observe_costs(None)
        Watch._open = False

    def _note(self, kind: str, what: str, cause: str) -> None:
        note = Note(kind, what, cause, place_of(sys._getframe().f_back))
        name = f"{kind}: {what} ({note.place})"
        self.notes[name] = note
        with record_function(name):
            pass
