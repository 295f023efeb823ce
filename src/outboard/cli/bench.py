# SPDX-License-Identifier: Apache-2.0
"""Runs the benchmark of Outboard's source tree, which is not part of the installed package.

All arguments go to it; ``outboard bench --help`` lists them. Exit code 1 outside a source tree.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

HELP = "measure the device against the CPU (in a clone of the source repository)"

_PROGRAM = Path("benchmarks", "bench.py")


def configure(parser: argparse.ArgumentParser) -> None:
    """Takes all arguments as they are, options included: the benchmark parses them."""
    parser.prefix_chars = "\0"
    parser.add_argument("arguments", nargs="*")


def run(options: argparse.Namespace) -> int:
    """Runs the benchmark in a process of its own and returns its exit code."""
    if not _PROGRAM.is_file() or not Path("src", "outboard").is_dir():
        print(
            "The benchmark and its models are not part of the installed package. Clone Outboard's source repository "
            "and run `outboard bench` in it, or `make bench`.",
            file=sys.stderr,
        )
        return 1
    return subprocess.run([sys.executable, "-m", "benchmarks.bench", *options.arguments]).returncode
