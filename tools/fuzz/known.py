# SPDX-License-Identifier: Apache-2.0
"""Open defects: differences that are wrong and not mended yet. They are counted and printed, and fail no run.

What is right stands in :mod:`tools.fuzz.allowed`. Whoever mends a defect takes its entry away.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Defect:
    """A finding of ``kind`` in ``operator``, in one mode, whose line and text the patterns are found in."""

    operator: str
    kind: str
    reason: str
    line: str = ""
    text: str = ""
    mode: str = "eager"

    def explains(self, finding: dict[str, Any]) -> bool:
        """Whether a finding is this defect."""
        where = (finding["operator"], finding["kind"], finding.get("mode", "eager"))
        if where != (self.operator, self.kind, self.mode):
            return False
        return bool(re.search(self.line, finding["line"]) and re.search(self.text, finding["text"]))


DEFECTS: tuple[Defect, ...] = ()


def defect_of(finding: dict[str, Any]) -> Defect | None:
    """The open defect that a finding is, if it is one."""
    return next((defect for defect in DEFECTS if defect.explains(finding)), None)
