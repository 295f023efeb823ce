# SPDX-License-Identifier: Apache-2.0
"""The command ``outboard``: what an installation is made of, whether it works, and what is wrong if it does not."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from outboard.cli import bench, conform, devices, doctor, new, report, warmup

__all__ = ["main"]

_COMMANDS = {
    "bench": bench,
    "conform": conform,
    "devices": devices,
    "doctor": doctor,
    "new": new,
    "report": report,
    "warmup": warmup,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a subcommand and returns its exit code. Wrong usage exits with code 2, as argparse does."""
    parser = argparse.ArgumentParser(prog="outboard", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    for name, module in _COMMANDS.items():
        module.configure(commands.add_parser(name, help=module.HELP, description=module.__doc__))
    options = parser.parse_args(arguments)
    return int(_COMMANDS[options.command].run(options))
