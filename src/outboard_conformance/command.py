# SPDX-License-Identifier: Apache-2.0
"""Tries a driver against driver.h, clause by clause; exit code 1 if it breaks one, 2 for wrong usage."""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import entry_points
from pathlib import Path

from outboard_conformance import report, runner
from outboard_conformance.clause import CLAUSES, LEVELS
from outboard_conformance.language import Offer, offer_for

HELP = "try a driver against driver.h, clause by clause"


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    parser.add_argument("--driver", metavar="LIB", help="path of the driver's library, or a name that a package offers")
    parser.add_argument("--level", choices=LEVELS, default="kernels", help="how far to go (default: %(default)s)")
    parser.add_argument("--only", action="append", default=[], metavar="CLAUSE", help="this clause; may be repeated")
    parser.add_argument("--times", type=_positive(int), default=1, metavar="N", help="how often (default: once)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where results are kept")
    parser.add_argument("--resume", action="store_true", help="leave out what the file of --json says was kept")
    parser.add_argument("--html", type=Path, metavar="FILE", help="where a page is written")
    parser.add_argument(
        "--patience", type=_positive(float), default=runner.PATIENCE, metavar="SECONDS", help="for one clause"
    )
    parser.add_argument("--list", action="store_true", help="print the clauses and end")


def _positive(kind: Callable[[str], float]) -> Callable[[str], float]:
    def number(text: str) -> float:
        value = kind(text)
        if not 0 < value < math.inf:
            raise ValueError
        return value

    number.__name__ = "positive number"  # argparse's message names it
    return number


def run(options: argparse.Namespace) -> int:
    """Runs the command and returns its exit code."""
    try:
        return _run(options)
    except KeyboardInterrupt:
        print("outboard conform: interrupted", file=sys.stderr)
        return 130


def _library(driver: str) -> str:
    """The path of a driver's library, given that or the name under which a package offers it."""
    if Path(driver).is_file():
        return driver
    offered = next((entry for entry in entry_points(group="outboard.drivers") if entry.name == driver), None)
    return driver if offered is None else str(offered.load()())


def _run(options: argparse.Namespace) -> int:
    try:
        names = runner.chosen(options.level, options.only)
    except LookupError as error:
        return _usage(str(error.args[0]))
    if options.list:
        print("\n".join(f"{CLAUSES[name].level:<9} {name}: {CLAUSES[name].says}" for name in names))
        return 0
    if not options.driver:
        return _usage("--driver LIB is missing")
    library = _library(options.driver)
    if not Path(library).is_file():
        return _usage(f"{options.driver} is neither a file nor a driver that an installed package offers")
    options.driver = os.path.abspath(library)  # the dynamic linker looks elsewhere for a bare name
    if options.resume and not options.json:
        return _usage("--resume needs the file of --json")
    for file in filter(None, (options.json, options.html)):
        if file.is_dir() or not file.parent.is_dir():
            return _usage(f"{file} is a folder" if file.is_dir() else f"{file.parent} is not a folder")
    device, problem = runner.probe(options.driver)
    if problem:
        print(f"{options.driver}: {problem}", file=sys.stderr)
        return 1
    print(f"{device['name']} ({options.driver})", flush=True)
    codes = [_once(options, names, device, offer) for offer in [_offer(names, device)] * options.times]
    return max(codes)


def _offer(names: Sequence[str], device: dict[str, object]) -> Offer:
    levels = {CLAUSES[name].level for name in names}
    offer = offer_for(device, words="kernels" in levels, executables="graph" in levels)
    for reason in offer.reasons:
        print(f"  {reason}", flush=True)
    return offer


def _once(options: argparse.Namespace, names: list[str], device: dict[str, object], offer: Offer) -> int:
    earlier: list[runner.Result] = []
    if options.resume and options.json.exists():
        try:
            earlier = [each for each in report.read_json(options.json, options.driver, device) if each.is_good]
        except ValueError as error:
            return _usage(f"--resume: {error}")
    results = [each for each in earlier if each.name in names]
    kept = {each.name for each in results}

    def said(result: runner.Result) -> None:
        print(report.line(result), flush=True)
        results.append(result)
        if options.json:
            report.write_json(options.json, options.driver, device, results)

    runner.run(
        options.driver, [each for each in names if each not in kept], offer, patience=options.patience, said=said
    )
    print(report.summary(results))
    if options.json:
        report.write_json(options.json, options.driver, device, results)
    if options.html:
        report.write_html(options.html, options.driver, device, results)
    return 0 if all(each.is_good for each in results) else 1


def _usage(text: str) -> int:
    print(f"outboard conform: {text}", file=sys.stderr)
    return 2
