# SPDX-License-Identifier: Apache-2.0
"""Lists the devices of all drivers. Exit code 1 if there is none."""

from __future__ import annotations

import argparse
import dataclasses
import json
from typing import Any

from outboard.cli.inspection import DeviceReport, device_reports, format_bytes

HELP = "list the devices found"


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds this command's options."""
    parser.add_argument("--json", action="store_true", help="machine-readable output: a list of objects")


def run(options: argparse.Namespace) -> int:
    """Prints one line, or one JSON object, for each device."""
    reports = device_reports()
    if options.json:
        print(json.dumps([dataclasses.asdict(report) for report in reports], indent=1))
    else:
        for report in reports:
            print(describe(report))
        if not reports:
            print("no devices found; `outboard doctor` says why")
    return 0 if reports else 1


def describe(report: DeviceReport) -> str:
    """One line for people."""
    properties: dict[str, Any] = report.properties
    features = [feature for feature in ("fp16", "fp64") if properties[f"has_{feature}"]]
    return (
        f"{report.device}  {properties['name']}  ({properties['driver']} driver, {properties['type']}, "
        f"{format_bytes(properties['total_memory'])}, {properties['compute_units']} compute units"
        f"{''.join(', ' + feature for feature in features)})"
    )
