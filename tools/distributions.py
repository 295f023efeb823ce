# SPDX-License-Identifier: Apache-2.0
"""Random numbers against their laws: each of PyTorch's random functions, and the samplers of ``torch.distributions``.

Ten million draws of each case of ``distribution_laws`` are counted in about a thousand cells, with cells of their own
for the tails down to a millionth, and compared with the law: by chi-square, and by the largest difference of the
distribution functions at the cells' ends (Kolmogorov and Smirnov). Numbers of short dtypes are those of the law after
rounding. Further: neighbours (chi-square of pairs, correlations with the next 32), successive calls and generators with
successive seeds are independent; nothing is drawn outside the support. Last, a seed gives the same numbers on other
drivers and in other languages of kernels (``--drivers``).

    python tools/distributions.py [--draws 10000000] [--match RE] [--device cpu] [--drivers host opencl simt cuda]

A case fails if one of its chances is below a millionth. Exit code 1 if any does.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats

sys.path.insert(0, str(Path(__file__).resolve().parent))

from distribution_laws import Case, cases  # noqa: E402

Numbers = np.ndarray[Any, Any]
#: What is so improbable does not happen: the table has some thousand chances.
IMPROBABLE = 1e-6
PIECE = 1 << 20
CELLS = 1000
LAGS = 32
COARSE = 16


@dataclass
class Verdict:
    """What was found of a case: chances that the law leaves to what was drawn or to worse, by test."""

    label: str
    draws: int
    chances: dict[str, float] = field(default_factory=dict)
    outside: str = ""  #: what was drawn that the support has not
    error: str = ""
    seconds: float = 0.0

    @property
    def failed(self) -> bool:
        """Whether the case is improbable, outside its support, or raised."""
        return bool(self.outside or self.error) or any(not chance >= IMPROBABLE for chance in self.chances.values())


# ---- cells ----


def _levels() -> Numbers:
    tail = [m * 10.0**-e for e in (6, 5, 4) for m in (1, 3)]
    middle = np.arange(1, CELLS) / CELLS
    return np.concatenate([tail, middle, 1 - np.array(tail[::-1])])


def _ends(case: Case, device: str) -> Numbers:
    """Where cells end: quantiles, moved between two numbers of the dtype, or between integers."""
    if hasattr(case.law, "ppf"):
        ends = np.asarray(case.law.ppf(_levels()), dtype=np.float64)
    else:
        torch.manual_seed(1)
        ends = np.quantile(_drawn(case, 100_000, device), _levels()[6:-6])
    ends = np.unique(ends[np.isfinite(ends)])
    return np.unique(np.floor(ends) + 0.5) if case.is_discrete else np.unique(_between(ends, case.dtype))


def _between(ends: Numbers, dtype: torch.dtype) -> Numbers:
    if dtype == torch.float64:
        return ends
    if dtype == torch.bfloat16:
        low = torch.tensor(ends).to(dtype)
        high = torch.nextafter(low, torch.tensor(torch.inf, dtype=dtype))
        return ((low.double() + high.double()) / 2).numpy()
    kind: Any = np.float16 if dtype == torch.float16 else np.float32
    with np.errstate(over="ignore"):
        near = ends.astype(kind)
        middle = (near.astype(np.float64) + np.nextafter(near, kind(np.inf)).astype(np.float64)) / 2
    return middle[np.isfinite(middle)]


def _drawn(case: Case, n: int, device: str) -> Numbers:
    return case.draw(n, device).cpu().double().numpy()


# ---- tests ----


def _merged(counts: Numbers, expected: Numbers, least: float = 8.0) -> tuple[Numbers, Numbers]:
    """Cells in which fewer than some are expected, joined to the next ones."""
    sums = np.cumsum(expected)
    group = np.zeros(len(expected), dtype=np.int64)
    start, number = 0.0, 0
    for i, total in enumerate(sums):
        group[i] = number
        if total - start >= least and sums[-1] - total >= least:
            start, number = total, number + 1
    return np.bincount(group, counts), np.bincount(group, expected)


def _chi_square(counts: Numbers, expected: Numbers) -> float:
    counts, expected = _merged(counts, expected)
    if len(counts) < 2:
        return 1.0
    return float(stats.chi2.sf(((counts - expected) ** 2 / expected).sum(), len(counts) - 1))


def _largest_difference(counts: Numbers, chances: Numbers) -> float:
    n = counts.sum()
    difference = np.abs(np.cumsum(counts) / n - np.cumsum(chances)).max()
    return float(stats.kstwobign.sf(difference * np.sqrt(n)))


def _correlation(a: Numbers, b: Numbers) -> float:
    """The chance of the correlation of the numbers of two samples' cells, if these are independent."""
    rare = 1 - np.bincount(a).max() / len(a)
    if len(a) * rare**2 < 50:  # what is rarer does not meet often enough for a normal law
        return 1.0
    deviation = a.std() * b.std()
    z = ((a - a.mean()) * (b - b.mean())).mean() / deviation * np.sqrt(len(a))
    return float(2 * stats.norm.sf(abs(z)))


def _least(chances: list[float]) -> float:
    """The chance that the least of independent chances is so small."""
    return float(-np.expm1(len(chances) * np.log1p(-min(min(chances), 1 - 1e-16))))


def _outside(case: Case, x: Numbers) -> str:
    low, high = (float(end) for end in case.support[1:-1].split(","))
    below = x < low if case.support[0] == "[" else x <= low
    above = x > high if case.support[-1] == "]" else x >= high
    wrong = x[below | above | np.isnan(x)]
    return f"{len(wrong)} such as {wrong[0]!r}" if len(wrong) else ""


class Tally:
    """What is counted of a case, piece by piece."""

    def __init__(self, ends: Numbers) -> None:
        self.ends = ends
        self.counts = np.zeros(len(ends) + 1)
        self.pairs = np.zeros((COARSE, COARSE))
        self.lags: list[float] = []
        self.calls: list[float] = []
        self._last: Numbers | None = None

    def add(self, x: Numbers) -> None:
        """Counts one call's numbers."""
        cell = np.searchsorted(self.ends, x)
        self.counts += np.bincount(cell, minlength=len(self.counts))
        coarse = cell * COARSE // len(self.counts)
        self.pairs += np.bincount(
            coarse[:-1:2] * COARSE + coarse[1::2][: len(coarse[:-1:2])], minlength=COARSE**2
        ).reshape(COARSE, COARSE)
        if not self.lags:
            self.lags = [_correlation(cell[:-lag], cell[lag:]) for lag in range(1, LAGS + 1)]
        if self._last is not None and len(self._last) == len(cell):
            self.calls.append(_correlation(self._last, cell))
        self._last = cell

    def chances(self, case: Case) -> dict[str, float]:
        """By test."""
        cdf = np.concatenate([[0.0], np.asarray(case.law.cdf(self.ends), dtype=np.float64), [1.0]])
        law = np.diff(cdf)
        found = {
            "chi-square": _chi_square(self.counts, law * self.counts.sum()),
            "largest difference": _largest_difference(self.counts, law),
        }
        place = np.arange(len(law)) * COARSE // len(law)
        single = np.bincount(place, law, minlength=COARSE)
        expected = np.outer(single, single) * self.pairs.sum()
        found["pairs"] = _chi_square(self.pairs.ravel(), expected.ravel())
        found["neighbours"] = _least(self.lags)
        if self.calls:
            found["calls"] = _least(self.calls)
        return found


def judge(case: Case, draws: int, device: str, seed: int = 0) -> Verdict:
    """Draws and counts; errors are part of the verdict."""
    started = time.perf_counter()
    draws = max(draws // case.slow, 1000)
    verdict = Verdict(case.label, draws)
    try:
        tally = Tally(_ends(case, device))
        torch.manual_seed(seed)
        drawn = 0
        while drawn < draws:
            x = _drawn(case, min(PIECE, draws), device)
            verdict.outside = verdict.outside or _outside(case, x)
            tally.add(x)
            drawn += len(x)
        verdict.draws = drawn
        verdict.chances = tally.chances(case)
        if case.slow < 1000 and not case.name.startswith("place of"):
            verdict.chances["seeds"] = _seeds(case, device, tally.ends)
    except Exception as error:  # noqa: BLE001 - a case that raises has failed, and the others go on
        verdict.error = f"{type(error).__name__}: {error}".splitlines()[0]
    verdict.seconds = time.perf_counter() - started
    return verdict


def _seeds(case: Case, device: str, ends: Numbers) -> float:
    """Independence of what successive seeds give."""
    cells = []
    for seed in (100, 101, 102):
        torch.manual_seed(seed)
        cells.append(np.searchsorted(ends, _drawn(case, 100_000, device)))
    return _least([_correlation(cells[0], cells[1]), _correlation(cells[1], cells[2])])


# ---- drivers ----

#: Environments of other drivers, and of kernels in other languages.
DRIVERS = {
    "host": {"OUTBOARD_DRIVER": "host"},
    "opencl": {"OUTBOARD_DRIVER": "opencl"},
    "strict": {"OUTBOARD_DRIVER": "strict", "OUTBOARD_STRICT_DELAY": "0"},
    "simt": {
        "OUTBOARD_DRIVER": "strict",
        "OUTBOARD_STRICT_DELAY": "0",
        "OUTBOARD_STRICT_DRIVER": "host",
        "OUTBOARD_STRICT_TYPE": "gpu",
        "OUTBOARD_STRICT_VECTOR_WIDTH": "1",
    },
    "cuda": {"OUTBOARD_DRIVER": "host", "OUTBOARD_HOST_DIALECT": "cuda"},
}
#: Numbers of some cases that show all kinds of draws.
SHOWN = (
    r"^(randn|uniform_\(-3|exponential_\(1|cauchy_\(\)|geometric_\(0.4|bernoulli_\(0.3|random_|randint|dropout\(0.5)"
)


def numbers(device: str) -> dict[str, list[float]]:
    """A thousand numbers of each of some cases, from one seed."""
    found = {}
    for case in cases():
        if re.search(SHOWN, case.name):
            torch.manual_seed(12)
            found[case.label] = _drawn(case, 1000, device).tolist()
    return found


def compare_drivers(names: list[str]) -> Iterator[str]:
    """A line for each case whose numbers are not those of the first driver."""
    found: dict[str, dict[str, list[float]]] = {}
    for name in names:
        command = [sys.executable, __file__, "--numbers"]
        done = subprocess.run(command, env=os.environ | DRIVERS[name], stdout=subprocess.PIPE, check=True, text=True)
        found[name] = json.loads(done.stdout.splitlines()[-1])
    first, *others = names
    for name, (label, expected) in ((name, item) for name in others for item in found[first].items()):
        wide = "float64" in label
        close = np.isclose(found[name][label], expected, rtol=1e-13 if wide else 2e-6, atol=1e-13 if wide else 1e-6)
        if not close.all():
            yield f"{label}: {(~close).sum()} of {len(close)} numbers on {name} are not those on {first}"


# ---- report ----

_TESTS = ("chi-square", "largest difference", "pairs", "neighbours", "calls", "seeds")


def _line(verdict: Verdict) -> str:
    chances = " | ".join(f"{verdict.chances[test]:.2g}" if test in verdict.chances else "" for test in _TESTS)
    remark = verdict.error or (f"outside: {verdict.outside}" if verdict.outside else "")
    state = f"**{remark or 'improbable'}**" if verdict.failed else "holds"
    return f"| {verdict.label} | {verdict.draws:,} | {chances} | {state} |"


def main() -> int:
    """Parses arguments, judges, prints a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=10_000_000)
    parser.add_argument("--match", default="", help="a pattern of labels")
    parser.add_argument("--device", default="ocl")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--drivers", nargs="*", choices=sorted(DRIVERS), default=[])
    parser.add_argument("--numbers", action="store_true", help="print numbers of some cases as JSON, for --drivers")
    options = parser.parse_args()
    if options.numbers:
        print(json.dumps(numbers(options.device)))
        return 0
    chosen = [case for case in cases() if re.search(options.match, case.label)]
    print(f"| case | draws | {' | '.join(_TESTS)} | |\n|{'---|' * (len(_TESTS) + 3)}")
    failed = []
    for case in chosen:
        verdict = judge(case, options.draws, options.device, options.seed)
        print(_line(verdict), flush=True)
        if verdict.failed:
            failed.append(verdict)
    different = list(compare_drivers(options.drivers)) if options.drivers else []
    print(f"\n{len(chosen)} cases, {len(failed)} fail", *different, sep="\n")
    return 1 if failed or different else 0


if __name__ == "__main__":
    sys.exit(main())
