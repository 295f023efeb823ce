# SPDX-License-Identifier: Apache-2.0
"""Errors of the device's functions in units in the last place, beside those of PyTorch's CPU, as docs/accuracy.md.

Each pointwise function of ``accuracy_functions`` is computed for all 65,536 values of float16 and bfloat16 and for
samples of float32 and float64: all exponents, denormals, infinities, NaN, both zeros and the neighbours of branch
points in random order, so that one vector holds all kinds. It runs in vectors, one element at a time (rows too short
for vectors) and, in a process of its own, as text for SIMT devices; the reference and the CPU's results are computed
once for all of them. ``accuracy_reductions`` does the same for sums, variances, norms and losses of up to 2^26
elements.

The reference is PyTorch's float64, scipy or, for float64 itself, long double or mpmath. A function holds if neither its
largest error nor its 99.9th percentile exceeds 2 units or 1.1 times the CPU's, whichever is larger, and if NaN,
infinity and the sign of zero are those of the CPU or the reference. Exit code 1 if any does not for which no reason is
known.

``--json FILE`` keeps what was found, so that a later run of some functions, dtypes or reductions replaces only those.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))

import accuracy_reductions  # noqa: E402
from accuracy_arguments import Arguments  # noqa: E402
from accuracy_device import Device, OtherDevice, results  # noqa: E402
from accuracy_functions import FUNCTIONS, Array, Function  # noqa: E402

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64}
#: (bits of the significand, least exponent of a normal number, largest exponent), exponents as of numbers in [1, 2).
FORMATS = {
    "float32": (24, -126, 127),
    "bfloat16": (8, -126, 127),
    "float16": (11, -14, 15),
    "float64": (53, -1022, 1023),
}
#: Errors up to this many units are right whatever the CPU's are.
ALLOWED = 2.0
#: Where the CPU is further off, errors are those of intermediate roundings, on both; which are larger is chance.
LUCK = 1.1
#: Elements taken at once.
CHUNK = 1 << 18
#: The usual error is that of one element in so many; their order is random.
SAMPLED = 4
#: Elements of ``float64`` whose reference comes from mpmath, which takes 0.1 to 3 ms for each.
EXACT = 5_000
FORMS = ("vector", "scalar", "simt")


@dataclass
class Row:
    """What was found of one function in one dtype and form; errors in units in the last place."""

    name: str
    dtype: str
    form: str
    gradient: bool
    count: int
    ours: float
    ours_usual: float
    cpu: float
    cpu_usual: float
    wrong_kind: int
    fallbacks: bool
    cancels: bool
    example: str = ""

    @property
    def key(self) -> tuple[str, str, str, bool]:
        """What tells the row from all others."""
        return self.name, self.dtype, self.form, self.gradient

    @property
    def is_known(self) -> bool:
        """Whether there is a reason why the row is beyond the bounds."""
        return bool(FUNCTIONS[self.name].known)

    @property
    def holds(self) -> bool:
        """Whether the errors are within the bounds; what the CPU computes for us has the CPU's."""
        if self.fallbacks:
            return True
        within = self.ours_usual <= max(ALLOWED, LUCK * self.cpu_usual)
        within = within and (self.cancels or self.ours <= max(ALLOWED, LUCK * self.cpu))
        return within and self.wrong_kind == 0


@dataclass
class Plan:
    """How much to try."""

    counts: dict[str, int]
    seed: int
    forms: tuple[str, ...]


# ---- references ----


def references(function: Function, given: list[torch.Tensor], gradient: bool) -> list[Array] | None:
    """The exact results as float64, or for float64 arguments as long double; None where there are none."""
    if given[0].dtype != torch.float64:
        wide = function.slope if gradient else function.wide
        if wide is not None:
            with np.errstate(all="ignore"):
                return [wide(*(tensor.double().numpy() for tensor in given))]
        return [found.numpy() for found in results(function, [tensor.double() for tensor in given], gradient)]
    arrays = [tensor.numpy() for tensor in given]
    long = function.slope if gradient else function.long
    if long is not None:
        with np.errstate(all="ignore"):
            return [long(*(array.astype(np.longdouble) for array in arrays))]
    if gradient or function.exact is None:
        return None
    return [np.array([_exactly(function.exact, *numbers) for numbers in zip(*arrays, strict=True)], np.longdouble)]


def _exactly(function: Callable[..., Any], *numbers: float) -> Any:
    import mpmath

    with mpmath.workdps(40):
        try:
            found = function(*(mpmath.mpf(float(number)) for number in numbers))
            return np.longdouble(mpmath.nstr(mpmath.mpf(found), 25))
        except (ValueError, TypeError, ZeroDivisionError, OverflowError, mpmath.libmp.NoConvergence):
            return np.longdouble("nan")


def _has_reference(function: Function) -> bool:
    """Whether results in float64 can be judged."""
    return function.jumps or function.long is not None or function.exact is not None


class Standard:
    """An exact result to which others of a dtype are compared."""

    def __init__(self, exact: Array, dtype: str) -> None:
        bits, least, most = FORMATS[dtype]
        self.exact = exact.astype(np.longdouble) if dtype == "float64" else np.ascontiguousarray(exact, np.float64)
        self.top = np.ldexp(self.exact.dtype.type(1), most + 1)
        with np.errstate(all="ignore"):
            self.clipped = np.clip(self.exact, -self.top, self.top)
            if dtype == "float64":
                exponent = np.clip(np.frexp(self.clipped)[1] - 1, least, most)
                self.per_unit = np.ldexp(self.top.dtype.type(1), (bits - 1) - exponent)
            else:
                exponent = np.clip(((self.clipped.view(np.int64) >> 52) & 0x7FF) - 1023, least, most)
                self.per_unit = ((bits - 1 + 1023 - exponent) << 52).view(np.float64)

    def errors(self, result: Array) -> Array:
        """Errors in units in the last place of the exact result, which may be longer; infinity counts as the number
        after the largest. NaN where either is."""
        count = len(result)
        with np.errstate(all="ignore"):
            found = np.clip(result, -self.top, self.top).astype(self.exact.dtype, copy=False)
            found -= self.clipped[:count]
            np.abs(found, out=found)
            found *= self.per_unit[:count]
        return found


def wrong_kind(ours: Array, cpu: Array, exact: Array) -> Array:
    """Where NaN or the sign of a zero is neither the CPU's nor the reference's."""
    nan = np.isnan(ours)
    found: Array = (nan != np.isnan(cpu)) & (nan != np.isnan(exact))
    zeros = np.flatnonzero(ours == 0)
    ours, cpu, exact = ours[zeros], cpu[zeros], exact[zeros]
    signs = np.signbit(ours)
    found[zeros] |= (exact == 0) & (signs != np.signbit(exact)) & ~((cpu == 0) & (signs == np.signbit(cpu)))
    return found


# ---- comparison ----


@dataclass
class Tally:
    """What has been seen of the errors of one row."""

    count: int = 0
    most: float = 0.0
    wrong: int = 0
    fallbacks: bool = False
    example: str = ""
    worst: float = ALLOWED
    sampled: list[Array] = field(default_factory=list)

    def add(self, errors: Array) -> None:
        """Counts errors, NaN among them as none."""
        self.count += int(np.count_nonzero(errors == errors))
        self.most = max(self.most, float(np.fmax.reduce(errors, initial=0.0)))
        self.sampled.append(errors[::SAMPLED])

    @property
    def usual(self) -> float:
        """The 99.9th percentile, of all numbers where they are few."""
        errors = np.concatenate(self.sampled) if self.sampled else np.zeros(1)
        errors = errors[errors == errors]
        return float(np.quantile(errors, 0.999)) if len(errors) else 0.0


@dataclass
class Judged:
    """One result of the CPU, with what it should be. ``of_nan``: what the CPU, which may differ in vectors, makes of
    a NaN alone."""

    cpu: Array
    standard: Standard
    cpu_errors: Array
    of_nan: float = float("nan")


def judge(function: Function, part: list[torch.Tensor], dtype: str, gradient: bool) -> list[Judged] | None:
    """The CPU's results and their errors; None if it has no such function or there is no reference for it."""
    if dtype == "float64" and not (function.slope if gradient else _has_reference(function)):
        return None
    try:
        on_host = [found.double().numpy() for found in results(function, part, gradient)]
    except (NotImplementedError, RuntimeError) as error:
        if "not implemented" in str(error) or "does not require grad" in str(error):
            return None
        raise
    exact = references(function, part, gradient)
    if function.jumps:  # the CPU's results, but for NaN that only its vectors give
        pairs = [(cpu, cpu) for cpu in on_host] if exact is None else zip(on_host, exact, strict=True)
        exact = [np.where(np.isnan(cpu), right, cpu) for cpu, right in pairs]
    if exact is None:
        return None
    judged = []
    nan = [torch.full((1,), float("nan"), dtype=part[0].dtype)] * len(part)
    alone = [found.item() for found in results(function, nan, gradient)]
    for cpu, right, of_nan in zip(on_host, exact, alone, strict=True):
        standard = Standard(right, dtype)
        errors = standard.errors(cpu)
        errors = np.where(np.isnan(cpu), np.nan, errors) if function.jumps else errors
        judged.append(Judged(cpu, standard, errors, of_nan))
    return judged


def _compare_one(tally: Tally, mine: Array, judged: Judged, part: list[torch.Tensor], jumps: bool) -> None:
    """Adds one result of a device to its tally; what is longer in the others has no counterpart in it."""
    count = len(mine)
    cpu, exact, cpu_errors = judged.cpu[:count], judged.standard.exact[:count], judged.cpu_errors[:count]
    errors = judged.standard.errors(mine)
    if jumps:
        errors = np.where(np.isnan(cpu), np.nan, errors)
    kinds = wrong_kind(mine, cpu, exact)
    if len(part) == 1 and judged.of_nan == judged.of_nan:
        as_alone = part[0][:count].isnan().numpy() & (mine == judged.of_nan)
        errors, kinds = np.where(as_alone, np.nan, errors), kinds & ~as_alone
    tally.add(errors)
    wrong = int(np.count_nonzero(kinds))
    tally.wrong += wrong
    worst = float("inf") if wrong else float(np.fmax.reduce(errors, initial=0.0))
    if worst <= tally.worst:
        return
    place = int(np.argmax(kinds) if wrong else np.argmax(np.nan_to_num(errors - np.nan_to_num(cpu_errors))))
    values = ", ".join(repr(tensor[place].item()) for tensor in part)
    tally.worst = worst
    tally.example = f"({values}): {mine[place]!s}, CPU {cpu[place]!s}, exact {exact[place]!s}"


class Judge:
    """Compares functions on the devices that there are."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        makers: dict[str, Callable[[], Device | OtherDevice]] = {
            "vector": Device,
            "scalar": lambda: Device(scalar=True),
            "simt": lambda: OtherDevice("gpu"),
        }
        self.devices = {form: makers[form]() for form in plan.forms}
        self.arguments: dict[str, Arguments] = {}

    def rows(self, function: Function, dtype: str, gradient: bool) -> list[Row]:
        """The rows of a function, one for each form; none if the CPU has no such function or there is no reference.
        What the CPU does for the device is its own, whence one chunk is enough."""
        if dtype not in self.arguments:
            self.arguments = {dtype: Arguments(DTYPES[dtype], self.plan.counts[dtype], self.plan.seed)}
        slow = dtype == "float64" and function.long is None and not function.jumps and not gradient
        given = self.arguments[dtype].of(function, EXACT if slow else None)
        tallies, cpu = {form: Tally() for form in self.devices}, Tally()
        for start in range(0, len(given[0]), CHUNK):
            part = [tensor[start : start + CHUNK] for tensor in given]
            judged = judge(function, part, dtype, gradient)
            if judged is None:
                return []
            for each in judged:
                cpu.add(each.cpu_errors)
            for form, device in self.devices.items():
                tally = tallies[form]
                if tally.fallbacks:
                    continue
                found, tally.fallbacks = device.results(function, part, gradient)
                for mine, each in zip(found, judged, strict=True):
                    _compare_one(tally, mine, each, part, function.jumps)
            if all(tally.fallbacks for tally in tallies.values()):
                break
        return [_row(function, dtype, form, gradient, tally, cpu) for form, tally in tallies.items()]


def _row(function: Function, dtype: str, form: str, gradient: bool, ours: Tally, cpu: Tally) -> Row:
    numbers = (ours.count, ours.most, ours.usual, cpu.most, cpu.usual, ours.wrong, ours.fallbacks)
    return Row(function.name, dtype, form, gradient, *numbers, function.cancels, ours.example)


def measure(names: list[str], dtypes: list[str], gradients: bool, plan: Plan) -> Iterator[Row]:
    """The rows of some functions. One that raises is out of bounds, and says what it raised."""
    judge_ = Judge(plan)
    for dtype in dtypes:
        for name in names:
            function = FUNCTIONS[name]
            for gradient in (False, True) if gradients and function.gradient else (False,):
                try:
                    yield from judge_.rows(function, dtype, gradient)
                except Exception as error:
                    traceback.print_exc()
                    inf = float("inf")
                    yield Row(name, dtype, plan.forms[0], gradient, 0, inf, inf, 0, 0, 1, False, False, repr(error))


# ---- text ----


def describe(row: Row) -> str:
    """One line about a row."""
    name = f"{row.name}'" if row.gradient else row.name
    verdict = "ok" if row.holds else "BAD"
    numbers = f"{row.ours:10.4g} ({row.ours_usual:.3g}) cpu {row.cpu:10.4g} ({row.cpu_usual:.3g})"
    kinds = f" wrong kinds {row.wrong_kind}" if row.wrong_kind else ""
    where = "" if row.holds else f"  {row.example}"
    return f"{verdict:3} {name:26} {row.dtype:8} {row.form:6} {numbers}{kinds}{' host' if row.fallbacks else ''}{where}"


def processor() -> str:
    """The name of the processor."""
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else ():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


def _number(value: float) -> str:
    return f"{value:.2f}" if value < 100 else f"{value:.0e}"


def page(rows: list[Row], reductions: list[accuracy_reductions.Row], command: str) -> str:
    """docs/accuracy.md."""
    lines = [
        "# Accuracy", "",
        f"Made by {command} on {processor()}, with {torch.backends.cpu.get_cpu_capability()} in PyTorch "
        f"{torch.__version__}. Do not edit.", "",
        "Largest error in units in the last place of the dtype, and in brackets that of PyTorch's CPU for the same",
        f"arguments: {_counts(rows)}, over all exponents, with denormals, infinities, NaN and the neighbours of branch",
        "points mixed in one vector. A dash: PyTorch's CPU has no such function, or there is no reference. *host*:",
        "runs on the CPU. **Bold**: above 2 units and 1.1 times the CPU's error, or another NaN or sign of zero than",
        "the CPU and the reference have.", "",
        "`f'` is the gradient of `f`. The numbers before the bracket: in vectors, one element at a time, and as text",
        f"for SIMT devices; one number where all are the same. Measured: {_forms(rows)}.", "",
        f"{_summary(rows)}", "",
        *_beyond(rows),
        "## Functions", "",
        "| function | " + " | ".join(DTYPES) + " |", "|---|" + "---|" * len(DTYPES),
    ]  # fmt: skip
    by_cell: dict[tuple[str, bool], dict[str, list[Row]]] = {}
    for row in rows:
        by_cell.setdefault((row.name, row.gradient), {}).setdefault(row.dtype, []).append(row)
    for (name, gradient), found in sorted(by_cell.items(), key=lambda item: _order(*item[0])):
        cells = [_cell(found[dtype]) if dtype in found else "-" for dtype in DTYPES]
        lines.append(f"| `{name}{chr(39) if gradient else ''}` | " + " | ".join(cells) + " |")
    if reductions:
        lines += ["", *accuracy_reductions.table(reductions)]
    return "\n".join(lines) + "\n"


def _order(name: str, gradient: bool) -> tuple[int, bool]:
    return list(FUNCTIONS).index(name), gradient


def _counts(rows: list[Row]) -> str:
    """How many arguments of which dtype were tried at most."""
    most = {dtype: max((row.count for row in rows if row.dtype == dtype), default=0) for dtype in DTYPES}
    single, double = most["float32"], most["float64"]
    return f"all 65,536 values of the halves, {single:,} numbers of float32 and {double:,} of float64"


def _forms(rows: list[Row]) -> str:
    """How many functions and gradients were measured in which dtype and form."""
    counts = Counter((row.dtype, row.form) for row in rows)
    return ", ".join(f"{count} of {dtype} as {form}" for (dtype, form), count in counts.items())


def _summary(rows: list[Row]) -> str:
    """How many rows there are and hold."""
    held, on_host = sum(row.holds for row in rows), sum(row.fallbacks for row in rows)
    return f"{len(rows):,} combinations of function, direction, dtype and form: {held:,} within bounds, of which " + (
        f"{on_host:,} run on the host."
    )


def _beyond(rows: list[Row]) -> list[str]:
    """The section on what is not within bounds, with an argument for each and what is known of it."""
    bad: dict[tuple[str, bool, str], list[Row]] = {}
    for row in rows:
        if not row.holds:
            bad.setdefault((row.name, row.gradient, row.dtype), []).append(row)
    if not bad:
        return []
    lines = ["## Beyond the bounds", "", "| function | dtype | form | for example | why |", "|---|---|---|---|---|"]
    for (name, gradient, dtype), found in bad.items():
        forms, why = ", ".join(row.form for row in found), FUNCTIONS[name].known or "not known"
        label = f"`{name}{chr(39) if gradient else ''}`"
        lines.append(f"| {label} | {dtype} | {forms} | {found[0].example} | {why} |")
    return [*lines, ""]


def _cell(rows: list[Row]) -> str:
    parts = [_number(row.ours) if row.holds else f"**{_number(row.ours)}**" for row in rows]
    text = parts[0] if len(set(parts)) == 1 else " / ".join(parts)
    host = " host" if any(row.fallbacks for row in rows) else ""
    return f"{text} ({_number(max(row.cpu for row in rows))}){host}"


# ---- command ----


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=10_000_000, help="numbers of float32 for each function")
    parser.add_argument("--doubles", type=int, default=300_000, help="numbers of float64 for each function")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", default=[], help="functions or reductions")
    parser.add_argument("--dtypes", nargs="*", default=list(DTYPES), choices=list(DTYPES))
    parser.add_argument("--no-gradients", action="store_true")
    parser.add_argument("--forms", nargs="*", default=list(FORMS), choices=list(FORMS))
    parser.add_argument("--reductions", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--functions", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--smallest", type=int, default=0, help="logarithm of the smallest reduction")
    parser.add_argument("--largest", type=int, default=26, help="logarithm of the largest reduction")
    parser.add_argument("--json", type=Path, help="file of rows; those that it has and this run does not are kept")
    parser.add_argument("--write", type=Path, help="file for the page")
    return parser.parse_args()


def _plan(options: argparse.Namespace) -> Plan:
    half = min(options.count, 65536 * 8)
    counts = {"float32": options.count, "float64": options.doubles, "float16": half, "bfloat16": half}
    return Plan(counts, options.seed, tuple(options.forms))


def _named(only: list[str], names: list[str]) -> list[str]:
    """Those of ``names`` that are wanted."""
    return [name for name in names if not only or name in only]


class Found:
    """The rows so far, kept in a file if there is one."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        kept = json.loads(path.read_text()) if path and path.exists() else {"rows": [], "reductions": []}
        self.rows = {row.key: row for row in (Row(**values) for values in kept["rows"])}
        loaded = [accuracy_reductions.Row.loaded(values) for values in kept["reductions"]]
        self.reductions = {row.key: row for row in loaded}

    def keep(self) -> None:
        """Writes the file."""
        if self.path is None:
            return
        rows = {"rows": [asdict(row) for row in self.rows.values()]}
        rows["reductions"] = [asdict(row) for row in self.reductions.values()]
        self.path.write_text(json.dumps(rows))


def _run(options: argparse.Namespace, found: Found) -> list[Row | accuracy_reductions.Row]:
    """Measures and prints; returns the new rows."""
    new: list[Row | accuracy_reductions.Row] = []
    names = _named(options.only, list(FUNCTIONS)) if options.functions else []
    for row in measure(names, options.dtypes, not options.no_gradients, _plan(options)) if names else ():
        found.rows[row.key] = row
        new.append(row)
        print(describe(row), flush=True)
        found.keep()
    chosen = _named(options.only, [r.name for r in accuracy_reductions.REDUCTIONS]) if options.reductions else []
    for reduced in accuracy_reductions.measure(options.smallest, options.largest, options.seed, chosen):
        found.reductions[reduced.key] = reduced
        new.append(reduced)
        print(accuracy_reductions.describe(reduced), flush=True)
        found.keep()
    return new


def main() -> int:
    """Measures, prints, writes; 1 if anything is out of bounds."""
    options = _options()
    began, found = time.monotonic(), Found(options.json)
    print(f"{processor()}, {torch.backends.cpu.get_cpu_capability()}, PyTorch {torch.__version__}", flush=True)
    new = _run(options, found)
    if options.write:
        standard = options.count == 10_000_000
        parts = ", in parts with `--json`" if options.json else ""
        command = f"`make accuracy`{parts}" if standard else f"`python {' '.join(sys.argv)}`"
        options.write.write_text(page(list(found.rows.values()), list(found.reductions.values()), command))
    beyond = [row for row in new if not row.holds]
    bad = [row for row in beyond if not (isinstance(row, Row) and row.is_known)]
    known = f" ({len(beyond) - len(bad)} known)" if len(beyond) > len(bad) else ""
    print(f"{len(new)} rows, {len(beyond)} out of bounds{known}, {time.monotonic() - began:.0f} s")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
