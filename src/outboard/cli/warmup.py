# SPDX-License-Identifier: Apache-2.0
"""Runs a Python program so that all it needs is compiled and cached; what it prints is shown.

``outboard warmup SCRIPT [arguments]`` runs a file, ``outboard warmup -m MODULE [arguments]`` a module. The next process
that does the same loads plans and programs from the cache instead of compiling them. The program should do a little of
everything: one forward pass, one training step. Exit code: the program's own, 1 if it raised an exception.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from pathlib import Path

from outboard.cli import inspection, programs

HELP = "run a program once, so that what it needs is compiled and cached"


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds this command's options."""
    parser.add_argument("-m", dest="module", action="store_true", help="SCRIPT is a module's name, as for python -m")
    parser.add_argument("script", metavar="SCRIPT", help="the program, a file")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments")


def run(options: argparse.Namespace) -> int:
    """Runs the program in this process, then prints what was compiled and loaded."""
    if not options.module and not Path(options.script).is_file():
        print(f"outboard warmup: there is no file {options.script}", file=sys.stderr)
        return 2
    start = time.perf_counter()
    code = programs.execute(options.script, options.module, options.arguments)
    _report(time.perf_counter() - start)
    return code


def _report(seconds: float) -> None:
    module = importlib.import_module(f"torch.{inspection.device_name()}")
    for index in range(module.device_count()):
        module.synchronize(index)
    stats = module.compile_stats()
    cache = inspection.cache()
    print(f"\noutboard warmup: done in {seconds:.1f} s")
    print(f"  plans     {stats['compiled']:.0f} compiled, {stats['disk_hits']:.0f} loaded from the cache")
    print(f"  programs  {stats['programs_built']:.0f} built, {stats['programs_loaded']:.0f} loaded from the cache")
    if cache.directory is None:
        print("  cache     none: nothing is kept")
        return
    print(f"  cache     {cache.directory}: {cache.files} files, {inspection.format_bytes(cache.size)}")
