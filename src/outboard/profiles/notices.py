# SPDX-License-Identifier: Apache-2.0
"""What a profile cannot honour is said once, never silently left out."""

from __future__ import annotations

import warnings

_said: set[str] = set()


def say_once(notice: str, stacklevel: int = 3) -> None:
    """Warns of something that has no effect here; the same text only the first time in a process.

    Args:
        notice: names the variable, option or function, and says why.
        stacklevel: as for ``warnings.warn``; by default the line that called the caller.
    """
    if notice not in _said:
        _said.add(notice)
        warnings.warn(notice, UserWarning, stacklevel=stacklevel)
