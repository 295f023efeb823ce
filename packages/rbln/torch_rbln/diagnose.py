# SPDX-License-Identifier: Apache-2.0
"""``python -m torch_rbln.diagnose``: what is installed, whether it works, and what to do if it does not."""

from __future__ import annotations

import os
import sys


def main() -> int:
    """Prints the report of ``outboard doctor``; returns 0 if every device computes correctly."""
    for name, value in sorted(os.environ.items()):
        if name.startswith(("RBLN_", "TORCH_RBLN_")):
            print(f"{name}={value}")
    try:
        import torch  # noqa: F401
    except Exception as error:  # noqa: BLE001 - whatever it is, the user wants to read it here
        print(f"PyTorch itself cannot be imported: {type(error).__name__}: {error}")
        return 1
    from outboard.cli import main as outboard

    return outboard(["doctor"])


if __name__ == "__main__":
    sys.exit(main())
