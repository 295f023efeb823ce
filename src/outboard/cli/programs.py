# SPDX-License-Identifier: Apache-2.0
"""Runs a user's program in the process of a command."""

from __future__ import annotations

import runpy
import sys
import traceback
from pathlib import Path


def execute(script: str, is_module: bool, arguments: list[str]) -> int:
    """Runs a program as ``__main__``. Returns its exit code, as Python would give it; what it raises is printed."""
    sys.argv = [script, *arguments]
    sys.path.insert(0, "" if is_module else str(Path(script).resolve().parent))
    try:
        if is_module:
            runpy.run_module(script, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        return _exit_code(end.code)
    except Exception:  # noqa: BLE001 - whatever the program raised ends it, not the report
        traceback.print_exc()
        return 1
    return 0


def _exit_code(code: object) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code
    print(code, file=sys.stderr)
    return 1
