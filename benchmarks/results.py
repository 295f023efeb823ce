# SPDX-License-Identifier: Apache-2.0
"""What was measured: rows, the targets they are held against, and the files that keep them."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from examples.measure import Timing, format_seconds, table


@dataclass
class Row:
    """One workload on one way.

    ``seconds`` are per operation, in the order measured; ``best`` is the shortest of all runs, those before the
    measured ones included. ``errors`` are relative to float64, by name, and may not be above ``limits``. ``failure`` is
    a traceback. ``floor`` is the roofline's lower bound in seconds, ``memory_floor`` what the bytes of an operator that
    is ``memory_bound`` take at the bandwidth of memory. ``ratios`` relate the median to that of other ways.
    """

    section: str
    workload: str
    way: str
    seconds: list[float] = field(default_factory=list)
    best: float = math.inf
    first_seconds: float = math.nan
    errors: dict[str, float] = field(default_factory=dict)
    limits: dict[str, float] = field(default_factory=dict)
    failure: str = ""
    floor: float = math.nan
    memory_floor: float = math.nan
    ratios: dict[str, float] = field(default_factory=dict)
    memory_bound: bool = False

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def wrong(self) -> list[str]:
        """Names of results that are too far from float64, or not numbers."""
        return [name for name, error in self.errors.items() if not error <= self.limits[name]]

    @property
    def good(self) -> bool:
        """Measured, and right: only such rows count in ratios and targets."""
        return bool(self.seconds) and not self.failure and not self.wrong

    @property
    def status(self) -> str:
        if self.failure or not self.seconds:
            return "FAILED"
        return "WRONG" if self.wrong else "right"

    @property
    def over_floor(self) -> float:
        """The best time as a multiple of the floor, which is the best of many runs, too."""
        return self.best / self.floor if self.floor else math.nan

    @property
    def over_memory(self) -> float:
        """The best time as a multiple of what memory takes. Below 1 where caches help."""
        return self.best / self.memory_floor

    def cells(self) -> list[str]:
        """The row as text: workload, way, median with spread, ratios, multiple of the floor, error, status."""
        timing = str(Timing(self.seconds)) if self.seconds else "-"
        ratios = [f"{self.ratios[base]:.2f}" if base in self.ratios else "-" for base in RATIO_BASES]
        over = [f"{x:.2f}" if self.seconds and x > 0 else "-" for x in (self.over_memory, self.over_floor)]
        worst = f"{max(self.errors.values()):.1e}" if self.errors else "-"
        return [self.workload, self.way, timing, *ratios, *over, worst, self.status]

    def numbers(self) -> dict[str, Any]:
        """The row for programs."""
        known = asdict(self) | {"status": self.status, "over_floor": None, "over_memory": None}
        if self.seconds:
            known |= {"median": self.median, "spread": Timing(self.seconds).spread}
            known |= {"over_floor": self.over_floor, "over_memory": self.over_memory}
        return known


RATIO_BASES = ("CPU eager", "CPU Inductor")
HEADER = ["workload", "way", "median", "x CPU eager", "x CPU Inductor", "x memory", "x floor", "error", "result"]


@dataclass(frozen=True)
class Target:
    """A value that is wanted on one side of a limit. ``detail`` says where the value comes from."""

    name: str
    value: float
    limit: float
    detail: str = ""
    at_least: bool = False

    @property
    def met(self) -> bool:
        return self.value >= self.limit if self.at_least else self.value <= self.limit

    def cells(self) -> list[str]:
        sign = ">=" if self.at_least else "<="
        return [self.name, f"{self.value:.3g}", f"{sign} {self.limit:g}", "yes" if self.met else "no", self.detail]


@dataclass
class Results:
    """One run: the machine, rows, start-up times, costs of launching, roofs and targets."""

    machine: dict[str, str]
    rows: list[Row] = field(default_factory=list)
    startup: dict[str, dict[str, dict[str, float]]] = field(default_factory=dict)
    decode: dict[str, dict[str, float]] = field(default_factory=dict)
    chain: dict[str, dict[str, float]] = field(default_factory=dict)
    roofs: dict[str, Any] = field(default_factory=dict)
    targets: list[Target] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def bad(self) -> list[str]:
        """One line for each wrong or failed result."""
        lines = [f"{row.workload}, {row.way}: {_reason(row)}" for row in self.rows if row.failure or row.wrong]
        return lines + self.failures

    def write(self, folder: Path) -> None:
        """Writes ``bench.json`` and ``bench.md``."""
        folder.mkdir(parents=True, exist_ok=True)
        numbers = {
            "machine": self.machine,
            "roofs": self.roofs,
            "rows": [row.numbers() for row in self.rows],
            "startup": self.startup,
            "decode": self.decode,
            "chain": self.chain,
            "targets": [asdict(target) | {"met": target.met} for target in self.targets],
            "bad": self.bad(),
        }
        (folder / "bench.json").write_text(json.dumps(_plain(numbers), indent=1, allow_nan=False) + "\n")
        (folder / "bench.md").write_text("\n".join(self._markdown()) + "\n")

    def _markdown(self) -> list[str]:
        lines = ["# Benchmark", "", *(f"- {name}: {value}" for name, value in self.machine.items())]
        for title, (header, rows) in self.tables().items():
            lines += ["", f"## {title}", "", _markdown_row(header), _markdown_row(["---"] * len(header))]
            lines += map(_markdown_row, rows)
        return [*lines, "", "## Wrong or failed", "", *(f"- {line}" for line in self.bad() or ["nothing"])]

    def tables(self) -> dict[str, tuple[list[str], list[list[str]]]]:
        """All tables as text, by title."""
        found: dict[str, tuple[list[str], list[list[str]]]] = {}
        for section in dict.fromkeys(row.section for row in self.rows):
            found[section] = (HEADER, [row.cells() for row in self.rows if row.section == section])
        if self.decode:
            found["decoding steps"] = (DECODE_HEADER, decode_rows(self.decode))
        if self.chain:
            found["small kernels"] = (CHAIN_HEADER, chain_rows(self.chain))
        if self.startup:
            found["start-up"] = (STARTUP_HEADER, startup_rows(self.startup))
        if self.targets:
            found["targets"] = (TARGET_HEADER, [target.cells() for target in self.targets])
        return found

    def show(self, title: str) -> None:
        """Prints one table."""
        header, rows = self.tables()[title]
        print(f"\n{title}\n{table(header, rows)}", flush=True)


TARGET_HEADER = ["target", "measured", "wanted", "met", "where"]
STARTUP_HEADER = [
    "job", "way", "process to first result", "first call", "its user time", "its system time", "steady call",
]  # fmt: skip


DECODE_HEADER = ["way", "step", "device's work", "overhead", "token of generate", "beside the device's work"]


def decode_rows(decode: dict[str, dict[str, float]]) -> list[list[str]]:
    """The times of decoding steps as text."""

    def row(way: str, times: dict[str, float]) -> list[str]:
        step, device, token = (format_seconds(times[name]) for name in ("step", "device", "token"))
        return [way, step, device, f"{100 * times['overhead']:.0f} %", token, f"{100 * times['beside']:.0f} %"]

    return [row(way, times) for way, times in decode.items()]


CHAIN_HEADER = ["way", "submitted", "finished"]


def chain_rows(chain: dict[str, dict[str, float]]) -> list[list[str]]:
    """The times of the chain of small kernels as text."""
    return [
        [way, format_seconds(times["submitted"]), format_seconds(times["finished"])] for way, times in chain.items()
    ]


def startup_rows(startup: dict[str, dict[str, dict[str, float]]]) -> list[list[str]]:
    """The start-up times as text."""
    parts = ("process", "first", "first_user", "first_system", "steady")
    return [
        [job, way, *(format_seconds(times[part]) for part in parts)]
        for job, ways in startup.items()
        for way, times in ways.items()
    ]


def geometric_mean(values: Sequence[float]) -> float:
    """The mean for ratios. NaN if there are none."""
    return statistics.geometric_mean(values) if values else math.nan


def _reason(row: Row) -> str:
    if row.failure:
        return f"FAILED with {row.failure.strip().splitlines()[-1]}"
    return "; ".join(
        f"WRONG {name}: {row.errors[name]:.3g} from float64, must be <= {row.limits[name]:.3g}" for name in row.wrong
    )


def _markdown_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _plain(value: Any) -> Any:
    """JSON has no NaN: null stands for a number that is not known."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list) else value
