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


DEFECTS = (
    Defect(
        "index_add",
        "exception",
        "an index out of range raises RuntimeError, where the CPU raises IndexError for one element",
        text="instead of IndexError: index out of range in self",
    ),
    Defect(".chunk", "alias", "diagonal_scatter's result begins at 0, the CPU's where its input does"),
    *(
        Defect(
            f"F.conv{kind}{rank}d", "strides", "in a graph, the result for channels last is contiguous", mode="compiled"
        )
        for kind in ("", "_transpose")
        for rank in (1, 2, 3)
    ),
    Defect("torch.fmax", "strides", "in a graph, integers of two dtypes give a contiguous result", mode="compiled"),
    Defect(
        "graph",
        "exception",
        "an embedding bag is refused in a graph",
        text="_embedding_bag_forward_only returned a tensor of shape",
        mode="compiled",
    ),
)


def defect_of(finding: dict[str, Any]) -> Defect | None:
    """The open defect that a finding is, if it is one."""
    return next((defect for defect in DEFECTS if defect.explains(finding)), None)
