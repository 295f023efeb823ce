# SPDX-License-Identifier: Apache-2.0
"""Runs a Python program so that all it needs is compiled and cached; what it prints is shown.

``outboard warmup SCRIPT [arguments]`` runs a file, ``outboard warmup -m MODULE [arguments]`` a module, and ``outboard
warmup --list FILE`` all programs of a list, one a line as after ``outboard warmup``, each in a process of its own. The
next process that does the same loads plans and programs from the cache instead of compiling them. The program should do
a little of everything: one forward pass, one training step. Exit code: the program's own, 1 if it raised an exception
or if one of a list failed.
"""

from __future__ import annotations

import argparse
import importlib
import shlex
import subprocess
import sys
import time
from pathlib import Path

from outboard.cli import inspection, programs

HELP = "run a program once, so that what it needs is compiled and cached"


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds this command's options."""
    parser.add_argument("-m", dest="module", action="store_true", help="SCRIPT is a module's name, as for python -m")
    parser.add_argument("--list", type=Path, metavar="FILE", help="programs to run, one a line; # begins a comment")
    parser.add_argument("script", metavar="SCRIPT", nargs="?", help="the program, a file")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments")


def run(options: argparse.Namespace) -> int:
    """Runs the program in this process, then prints what was compiled and loaded; or those of a list, each by a process
    that does so."""
    if (options.list is None) == (options.script is None):
        print("outboard warmup: name a program, or a list of them with --list", file=sys.stderr)
        return 2
    if options.list is not None:
        return _run_list(options.list)
    if not options.module and not Path(options.script).is_file():
        print(f"outboard warmup: there is no file {options.script}", file=sys.stderr)
        return 2
    start = time.perf_counter()
    code = programs.execute(options.script, options.module, options.arguments)
    _report(time.perf_counter() - start)
    return code


def _run_list(file: Path) -> int:
    try:
        lines = [shlex.split(line, comments=True) for line in file.read_text().splitlines()]
    except (OSError, ValueError) as error:
        print(f"outboard warmup: {file} is no list of programs: {error}", file=sys.stderr)
        return 2
    failed = []
    listed = [words for words in lines if words]
    for number, words in enumerate(listed, start=1):
        print(f"\noutboard warmup: [{number}/{len(listed)}] {shlex.join(words)}", flush=True)
        if subprocess.run([sys.executable, "-m", "outboard.cli", "warmup", *words]).returncode != 0:
            failed.append(shlex.join(words))
    print(f"\noutboard warmup: {len(listed) - len(failed)} of {len(listed)} programs ran")
    for program in failed:
        print(f"  failed: {program}", file=sys.stderr)
    return 1 if failed else 0


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
