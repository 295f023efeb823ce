# SPDX-License-Identifier: Apache-2.0
"""``TORCH_RBLN_DISABLE_FALLBACK``: which operators may run on the CPU, by category."""

from __future__ import annotations

import os
import warnings

from outboard import _C
from outboard.profiles.rbln.logs import logger

_VARIABLE = "TORCH_RBLN_DISABLE_FALLBACK"

#: The categories, by what Outboard says of a fallback; what becomes of an operator of each.
_CATEGORIES = {
    "unsupported": ("unsupported_op", "has no kernel for this device"),
    "compiler": ("compile_error", "could not be compiled for this device"),
    "copy": ("strided_copy_error", "has no kernel for these strides on this device"),
}
#: The category that is decided when the device is set up. The others are asked for at each fallback.
_FIXED = "unsupported_op"


def install() -> None:
    """Has Outboard ask before each fallback; names unknown categories in a warning."""
    at_load = _forbidden()
    known = {category for category, _ in _CATEGORIES.values()}
    if unknown := sorted(at_load - known - {"all"}):
        warnings.warn(
            f"{_VARIABLE}: Outboard has no fallbacks of the kind {', '.join(unknown)}; it knows "
            f"{', '.join(sorted(known))} and all.",
            stacklevel=2,
        )

    def check(name: str, cause: str) -> str | None:
        category, reason = _CATEGORIES[cause]
        forbidden = at_load if category == _FIXED else _forbidden()
        if category in forbidden or "all" in forbidden:
            return f"The operator '{name}' {reason}, and {_VARIABLE} forbids running it on the CPU ({category})."
        logger.info("%s runs on the CPU: it %s (%s)", name, reason, category)
        return None

    _C.add_fallback_check(check)


def _forbidden() -> set[str]:
    return {name for name in map(str.strip, os.environ.get(_VARIABLE, "").split(",")) if name}
