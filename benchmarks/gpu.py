# SPDX-License-Identifier: Apache-2.0
"""The device against ``torch.cuda`` on one GPU of NVIDIA: operators and models, each PyTorch in a process of its own,
taking turns.

``python -m benchmarks.gpu [--peer PYTHON] [--match PATTERN] [--rounds N] [--seconds S] [--json FILE]``. ``--peer`` is
an interpreter whose PyTorch has CUDA; without it the device is timed alone. ``first`` is the device's first call. Both
processes get the same numbers; ``differs`` is how far results are apart, relative to the peer's largest element.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu_calls import calls
from examples.measure import format_seconds, table

WORKER = Path(__file__).with_name("gpu_calls.py")
#: Variables of this process's that would mislead another Python.
OWN = ("PYTHONHOME", "PYTHONPATH", "LD_LIBRARY_PATH")


class Peer:
    """A process that times calls on one device."""

    def __init__(self, python: str, device: str, *, own: bool) -> None:
        environment = {name: value for name, value in os.environ.items() if own or name not in OWN}
        self.command = [python, str(WORKER), device]
        self.environment = environment
        self.process: subprocess.Popen[str] | None = None

    def ask(self, name: str, count: int) -> dict[str, Any]:
        """What the process answers; ``error`` where it failed or ended."""
        if self.process is None or self.process.poll() is not None:
            self.process = subprocess.Popen(
                self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=self.environment
            )
        assert self.process.stdin is not None and self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps({"name": name, "count": count}) + "\n")
            self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            return {"error": f"the process ended with {self.process.wait()}"}
        return dict(json.loads(line))

    def end(self) -> None:
        """Ends the process."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()


def difference(ours: list[float], theirs: list[float]) -> float:
    """Largest difference over the peer's largest element; NaN where one alone is not finite."""
    largest = max(map(abs, theirs), default=0.0) or 1.0
    apart = [abs(a - b) for a, b in zip(ours, theirs, strict=True)]
    return math.nan if any(map(math.isnan, apart)) else max(apart, default=0.0) / largest


def measure(name: str, device: Peer, peer: Peer | None, rounds: int) -> dict[str, Any]:
    """The row of one call: medians over ``rounds`` in which both take turns."""
    row: dict[str, Any] = {"name": name}
    seconds: dict[str, list[float]] = {}
    counts: dict[str, int] = {}
    results: list[list[float]] = []
    for _ in range(rounds):
        for title, each in (("device", device), ("peer", peer)):
            if each is None or f"{title} error" in row:
                continue
            answer = each.ask(name, counts.get(title, 0))
            if "error" in answer:
                row[f"{title} error"] = answer["error"]
                continue
            counts[title] = answer["count"]
            seconds.setdefault(title, []).append(answer["seconds"])
            if "result" in answer:
                row.setdefault(f"{title} first", answer["first"])
                results.append(answer["result"])
    row |= {title: statistics.median(each) for title, each in seconds.items()}
    if len(results) == 2:
        row["differs"] = difference(*results)
    if "device" in row and "peer" in row:
        row["ratio"] = row["device"] / row["peer"]
    return row


def cells(row: dict[str, Any]) -> list[str]:
    """A row of the printed table."""
    wrong = row.get("device error") or row.get("peer error")
    if wrong:
        return [row["name"], "", "", "", "", str(wrong)[:100]]
    peer = [format_seconds(row["peer"]), f"{row['ratio']:.2f}"] if "peer" in row else ["", ""]
    differs = f"{row['differs']:.1e}" if "differs" in row else ""
    return [row["name"], format_seconds(row["device"]), *peer, format_seconds(row["device first"]), differs]


def within(names: list[str], seconds: float) -> Iterator[str]:
    """The names, until the time is over."""
    end = time.monotonic() + seconds
    for index, name in enumerate(names):
        if time.monotonic() > end:
            print(f"({len(names) - index} calls left out: {seconds:.0f} seconds are over)", file=sys.stderr)
            return
        yield name


def main() -> int:
    """Prints the table; 1 if a call failed on the device."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--peer", help="an interpreter whose PyTorch has CUDA")
    parser.add_argument("--match", default="", help="regular expression over names")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=math.inf, help="how long to begin calls")
    parser.add_argument("--json", type=Path, help="where rows are kept, each as soon as it is measured")
    options = parser.parse_args()
    accelerator = torch.accelerator.current_accelerator()
    assert accelerator is not None
    device = Peer(sys.executable, accelerator.type, own=True)
    peer = Peer(options.peer, "cuda", own=False) if options.peer else None
    rows = []
    for name in within([name for name in calls(accelerator.type) if re.search(options.match, name)], options.seconds):
        rows.append(measure(name, device, peer, options.rounds))
        print("\t".join(cells(rows[-1])), file=sys.stderr, flush=True)
        if options.json:
            options.json.write_text(json.dumps(rows))
    for each in filter(None, (device, peer)):
        each.end()
    print(table(["call", "device", "torch.cuda", "ratio", "first", "differs"], [cells(row) for row in rows]))
    ratios = [row["ratio"] for row in rows if "ratio" in row]
    if ratios:
        mean = statistics.geometric_mean(ratios)
        print(f"geometric mean of {len(ratios)} ratios: {mean:.2f}, largest {max(ratios):.2f}")
    return 1 if any("device error" in row for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
