# SPDX-License-Identifier: Apache-2.0
"""``TORCH_RBLN_LOG_LEVEL`` and ``TORCH_RBLN_LOG_PATH``: what the profile and Outboard's compiler report."""

from __future__ import annotations

import logging
import os
import warnings

logger = logging.getLogger("torch_rbln")

#: The loggers that the variables steer: the profile's, and that of everything below it.
_STEERED = ("torch_rbln", "outboard")
_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")
_FORMAT = "[%(asctime)s] [%(name)s] [%(levelname)s] %(message)s"


def install() -> None:
    """Reads the variables. Without them logging is left as the program has it."""
    level = _level()
    handlers = _handlers(level is not None)
    for name in _STEERED:
        steered = logging.getLogger(name)
        if level is not None:
            steered.setLevel(level)
        for handler in handlers:
            steered.addHandler(handler)


def _level() -> str | None:
    # The second is the older name of the first.
    for variable in ("TORCH_RBLN_LOG_LEVEL", "TORCH_RBLN_LOG"):
        if not (wanted := os.environ.get(variable)):
            continue
        if wanted.upper() in _LEVELS:
            return wanted.upper()
        warnings.warn(f"{variable} must be one of {', '.join(_LEVELS)}, not {wanted!r}; using WARNING.", stacklevel=2)
        return "WARNING"
    return None


def _handlers(to_terminal: bool) -> list[logging.Handler]:
    handlers: list[logging.Handler] = [logging.StreamHandler()] if to_terminal else []
    if path := os.environ.get("TORCH_RBLN_LOG_PATH"):
        try:
            handlers.append(logging.FileHandler(path))
        except OSError as error:
            warnings.warn(f"TORCH_RBLN_LOG_PATH={path!r} cannot be written: {error.strerror}.", stacklevel=2)
    for handler in handlers:
        handler.setFormatter(logging.Formatter(_FORMAT))
    return handlers
