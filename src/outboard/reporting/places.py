# SPDX-License-Identifier: Apache-2.0
"""Lines of the user's program."""

from __future__ import annotations

import linecache
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import torch

_LIBRARIES = tuple({str(Path(sysconfig.get_path(name))) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_OWN = (str(Path(__file__).parents[1]), str(Path(torch.__file__).parent))


@dataclass(frozen=True)
class Place:
    """A line of the user's program; ``line`` 0 where no Python was running, as in a backward pass."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.function

    @property
    def text(self) -> str:
        """The line itself."""
        return linecache.getline(self.file, self.line).strip()


def place_of(frame: FrameType | None) -> Place:
    """The innermost line that is the user's: neither PyTorch's, nor ours, nor of an installed library if there is
    another."""
    library: Place | None = None
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith((*_OWN, "<")):
            place = Place(file, frame.f_lineno, frame.f_code.co_name)
            if not file.startswith(_LIBRARIES):
                return place
            library = library or place
        frame = frame.f_back
    return library or Place("", 0, "a backward pass, or another thread")
