# SPDX-License-Identifier: Apache-2.0
"""Runs a Python program and writes a page about what it did on the device.

``outboard report SCRIPT [arguments]`` runs a file, ``outboard report -m MODULE [arguments]`` a module. The page shows
time by operator and by kernel beside the least that the device's bandwidth and arithmetic allow, what ran on the CPU
and the lines of the program that caused it, what was compiled, and memory over time. The program should do a little: a
few steps of training, not an epoch. Exit code: the program's own, 1 if it raised an exception.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

from outboard.cli import programs

HELP = "run a program, and write a page about what it did on the device"


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds this command's options."""
    parser.add_argument("-o", "--output", metavar="FILE", default="outboard-report.html", help="the page (%(default)s)")
    parser.add_argument("--trace", metavar="FILE", help="write the profiler's trace, too, for ui.perfetto.dev")
    parser.add_argument("-m", dest="module", action="store_true", help="SCRIPT is a module's name, as for python -m")
    parser.add_argument("script", metavar="SCRIPT", help="the program, a file")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments")


def run(options: argparse.Namespace) -> int:
    """Runs the program in this process, then writes the page and says where it is."""
    if not options.module and not Path(options.script).is_file():
        print(f"outboard report: there is no file {options.script}", file=sys.stderr)
        return 2
    page = Path(options.output).absolute()  # the program may go elsewhere
    trace = None if options.trace is None else Path(options.trace).absolute()
    import torch

    if torch._C._get_privateuse1_backend_name() == "privateuseone" or not torch.accelerator.is_available():
        print("outboard report: there is no device; `outboard doctor` says why", file=sys.stderr)
        return 1
    from outboard import reporting

    command = shlex.join(["python", *(["-m"] if options.module else []), options.script, *options.arguments])
    report = reporting.record(
        lambda: programs.execute(options.script, options.module, options.arguments), command, trace
    )
    page.write_text(reporting.render(report), encoding="utf-8")
    print(f"\noutboard report: {page}")
    return report.exit_code
