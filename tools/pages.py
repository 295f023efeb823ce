# SPDX-License-Identifier: Apache-2.0
"""What tools that make a page of docs/ have in common."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path


def main(page: Callable[[], str], description: str | None) -> None:
    """Prints a page, or writes it to the file that ``--write`` names. ``description`` is the tool's docstring."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, help="file for the page")
    target = parser.parse_args().write
    if target is None:
        print(page(), end="")
    else:
        target.write_text(page())
