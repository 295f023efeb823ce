# SPDX-License-Identifier: Apache-2.0
"""Errors of the device's functions in units in the last place, beside those of PyTorch's CPU, as docs/accuracy.md.

Each pointwise function of ``accuracy_functions`` is computed for all 65,536 values of float16 and bfloat16 and for
samples of float32 and float64: all exponents, denormals, infinities, NaN, both zeros and the neighbours of branch
points in random order, so that one vector holds all kinds. It runs in vectors, one element at a time (rows too short
for vectors) and, in a process of its own, as text for SIMT devices. ``accuracy_reductions`` does the same for sums,
variances, norms and losses of up to 2^26 elements.

The reference is PyTorch's float64, scipy or, for float64 itself, long double or mpmath. A function holds if neither its
largest error nor its 99.9th percentile exceeds 2 units or 1.1 times the CPU's, whichever is larger, and if NaN,
infinity and the sign of zero are those of the CPU or the reference. Exit code 1 if any does not.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))

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
CHUNK = 1 << 20
#: Elements of ``float64`` whose reference comes from mpmath, which takes about 0.1 ms for each.
EXACT = 2000
SPECIAL = (0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5, 3.0, 1e10, -1e10, 1e-6, 1.2e-38, -1.2e-38, 1e-45, 3e38)
SPECIAL += (float("inf"), float("-inf"), float("nan"), 65504.0, 6e-8, 100.0, -100.0, 30.0, 1e300, 5e-324)


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
    fallbacks: int
    cancels: bool
    example: str = ""

    @property
    def holds(self) -> bool:
        """Whether the errors are within the bounds; what the CPU computes for us has the CPU's."""
        if self.fallbacks:
            return True
        within = self.ours_usual <= max(ALLOWED, LUCK * self.cpu_usual)
        within = within and (self.cancels or self.ours <= max(ALLOWED, LUCK * self.cpu))
        return within and self.wrong_kind == 0


# ---- arguments ----


def _bits(count: int, dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    """Random bit patterns: all exponents alike."""
    integers = {2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
    info = torch.iinfo(integers)
    return torch.randint(info.min, info.max, (count,), generator=generator, dtype=integers).view(dtype)


def _neighbours(function: Function, dtype: torch.dtype, around: int = 48) -> torch.Tensor:
    places = {0.0, 1.0, 2.0, *function.branches}
    points = torch.tensor([sign * p for p in sorted(places) for sign in (1, -1)], dtype=torch.float64).to(dtype)
    integers = {2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
    steps = torch.arange(-around, around + 1, dtype=integers)
    return (points.view(integers)[:, None] + steps).view(dtype).reshape(-1)


def arguments(function: Function, dtype: torch.dtype, count: int, seed: int) -> list[torch.Tensor]:
    """One tensor for each argument; all values of a half, of others ``count`` of all kinds in random order."""
    generator = torch.Generator().manual_seed(seed)
    if dtype.itemsize == 2 and function.arity == 1:
        values = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
        return [values[torch.randperm(len(values), generator=generator)]]
    parts: list[list[torch.Tensor]] = [[] for _ in range(function.arity)]
    for part in parts:
        near = _neighbours(function, dtype)
        some = near[torch.randint(0, len(near), (count // 8,), generator=generator)]
        special = torch.tensor(SPECIAL, dtype=torch.float64).to(dtype)
        special = special[torch.randint(0, len(special), (count // 64 + 1,), generator=generator)]
        left = count - count // 8 - len(special)
        random = _bits(left - 2 * (left // 3), dtype, generator)
        scales = 10.0 ** torch.randint(-3, 4, (left // 3,), generator=generator)
        usual = (torch.randn(left // 3, generator=generator, dtype=torch.float64) * scales).to(dtype)
        near_one = (torch.rand(left // 3, generator=generator, dtype=torch.float64) * 4 - 2).to(dtype)
        part += [some, special, random, usual, near_one]
    order = torch.randperm(count, generator=generator)
    joined = [torch.cat(part)[order] for part in parts]
    for other in joined[1:]:  # pairs of unlike kinds, and alike ones, and equal ones
        mixed = torch.randperm(count // 2, generator=generator)
        other[: count // 2] = other[: count // 2][mixed]
        other[-(count // 16) :] = joined[0][-(count // 16) :]
    again = torch.randperm(count, generator=generator)
    return [tensor[again] for tensor in joined]


# ---- results ----


def narrow(tensor: torch.Tensor) -> torch.Tensor:
    """The same values in rows of 15 with gaps between them, which no vector fills; needs a multiple of 15."""
    padded = torch.zeros(len(tensor) // 15, 16, dtype=tensor.dtype, device=tensor.device)
    padded[:, :15] = tensor.view(-1, 15)
    return padded[:, :15]


def results(function: Function, given: list[torch.Tensor], gradient: bool) -> list[torch.Tensor]:
    """The function's value, or the gradient of its sum for each argument."""
    if not gradient:
        return [function.call(*given)]
    leaves = [tensor.detach().requires_grad_() for tensor in given]
    value = function.call(*leaves)
    grads = torch.autograd.grad(value, leaves, torch.ones_like(value), allow_unused=True)
    return [grad for grad in grads if grad is not None]


def references(function: Function, given: list[torch.Tensor], gradient: bool) -> list[Array] | None:
    """The exact results as float64, or for float64 arguments as long double; None where there are none."""
    if given[0].dtype != torch.float64:
        if function.wide is not None and not gradient:
            with np.errstate(all="ignore"):
                return [function.wide(*(tensor.double().numpy() for tensor in given))]
        return [found.numpy() for found in results(function, [tensor.double() for tensor in given], gradient)]
    if gradient:
        return None
    arrays = [tensor.numpy() for tensor in given]
    if function.long is not None:
        with np.errstate(all="ignore"):
            return [function.long(*(array.astype(np.longdouble) for array in arrays))]
    if function.exact is None:
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


def units(result: Array, exact: Array, dtype: str) -> Array:
    """Errors in units in the last place of the exact result; infinity counts as the number after the largest. NaN
    where either is."""
    bits, least, most = FORMATS[dtype]
    with np.errstate(all="ignore"):
        top = np.ldexp(exact.dtype.type(1), most + 1)
        result, exact = (np.clip(array.astype(exact.dtype), -top, top) for array in (result, exact))
        exponent = np.clip(np.frexp(exact)[1] - 1, least, most)
        found: Array = np.ldexp(np.abs(result - exact), (bits - 1) - exponent)
        return found


def _wrong_kind(ours: Array, cpu: Array, exact: Array, dtype: str) -> Array:
    """Where NaN or the sign of a zero is neither the CPU's nor the reference's."""
    nan = (np.isnan(ours) != np.isnan(cpu)) & (np.isnan(ours) != np.isnan(exact))
    signs = np.signbit(ours)
    zero = (ours == 0) & (exact == 0) & (signs != np.signbit(exact)) & ~((cpu == 0) & (signs == np.signbit(cpu)))
    found: Array = nan | zero
    return found


class Device:
    """The device under test, and what forms of its kernels there are."""

    def __init__(self) -> None:
        self.name = torch._C._get_privateuse1_backend_name()
        self.module = torch.get_device_module(self.name)

    def results(self, function: Function, given: list[torch.Tensor], form: str, gradient: bool) -> list[Array]:
        """What the device makes of the arguments."""
        moved = [tensor.to(self.name) for tensor in given]
        if form == "scalar":
            moved = [narrow(tensor) for tensor in moved]
        return [found.reshape(-1).cpu().double().numpy() for found in results(function, moved, gradient)]


@dataclass(frozen=True)
class Plan:
    """How much to try."""

    counts: dict[str, int]
    seed: int
    forms: tuple[str, ...]


def compare(device: Device, function: Function, dtype: str, form: str, gradient: bool, plan: Plan) -> Row | None:
    """One row of the table; None if the CPU has no such function or there is no reference for it."""
    count = plan.counts[dtype]
    if dtype == "float64" and function.long is None:
        count = min(count, EXACT)
    given = arguments(function, DTYPES[dtype], count, plan.seed)
    device.module.reset_fallbacks()
    ours, cpu, wrong, example = [], [], 0, (0.0, "")
    for start in range(0, len(given[0]), CHUNK):
        part = [tensor[start : start + CHUNK] for tensor in given]
        if form == "scalar":
            part = [tensor[: len(tensor) // 15 * 15] for tensor in part]
        try:
            on_host = [found.double().numpy() for found in results(function, part, gradient)]
        except (NotImplementedError, RuntimeError) as error:
            if "not implemented" in str(error) or "does not require grad" in str(error):
                return None
            raise
        exact = references(function, part, gradient)
        if function.jumps:  # the CPU's results, but for NaN that only its vectors give
            exact = (
                on_host if exact is None else [np.where(np.isnan(c), e, c) for c, e in zip(on_host, exact, strict=True)]
            )
        if exact is None:
            return None
        for mine, theirs, right in zip(device.results(function, part, form, gradient), on_host, exact, strict=True):
            errors, cpu_errors = units(mine, right, dtype), units(theirs, right, dtype)
            errors = np.where(np.isnan(theirs), np.nan, errors) if function.jumps else errors
            kinds = _wrong_kind(mine, theirs, right, dtype)
            ours.append(errors)
            cpu.append(cpu_errors)
            wrong += int(kinds.sum())
            place = int(np.argmax(np.where(kinds, np.inf, np.nan_to_num(errors - cpu_errors))))
            badness = float("inf") if kinds[place] else float(errors[place])
            if badness > example[0]:
                values = ", ".join(repr(tensor[place].item()) for tensor in part)
                example = badness, f"({values}): {mine[place]!r}, CPU {theirs[place]!r}, exact {right[place]!r}"
    return _row(function, dtype, form, gradient, ours, cpu, wrong, device, example[1])


def _row(
    function: Function, dtype: str, form: str, gradient: bool, ours: list[Array], cpu: list[Array], wrong: int,
    device: Device, example: str,
) -> Row:  # fmt: skip
    mine, theirs = (np.concatenate(errors) for errors in (ours, cpu))
    mine, theirs = (errors[~np.isnan(errors)] for errors in (mine, theirs))
    usual = [float(np.quantile(errors, 0.999)) if len(errors) else 0.0 for errors in (mine, theirs)]
    most = [float(errors.max()) if len(errors) else 0.0 for errors in (mine, theirs)]
    fallbacks = sum(device.module.fallbacks().values())
    numbers = (len(mine), most[0], usual[0], most[1], usual[1], wrong, fallbacks)
    return Row(function.name, dtype, form, gradient, *numbers, function.cancels, example)


def measure(names: list[str], dtypes: list[str], gradients: bool, plan: Plan) -> Iterator[Row]:
    """The rows of some functions."""
    device = Device()
    for name in names:
        function = FUNCTIONS[name]
        for dtype in dtypes:
            for form in plan.forms:
                for gradient in (False, True) if gradients and function.gradient else (False,):
                    row = compare(device, function, dtype, form, gradient, plan)
                    if row is not None:
                        yield row


# ---- text ----


def describe(row: Row) -> str:
    """One line about a row."""
    name = f"{row.name}'" if row.gradient else row.name
    verdict = "ok" if row.holds else "BAD"
    numbers = f"{row.ours:10.4g} ({row.ours_usual:.3g}) cpu {row.cpu:10.4g} ({row.cpu_usual:.3g})"
    kinds = f" wrong kinds {row.wrong_kind}" if row.wrong_kind else ""
    where = "" if row.holds else f"  {row.example}"
    return f"{verdict:3} {name:26} {row.dtype:8} {row.form:6} {numbers}{kinds}{' host' if row.fallbacks else ''}{where}"


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else ():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


def _number(value: float) -> str:
    return f"{value:.2f}" if value < 100 else f"{value:.0e}"


def page(rows: list[Row], reductions: list[Any], command: str) -> str:
    """docs/accuracy.md."""
    lines = [
        "# Accuracy", "",
        f"Made by `{command}` on {_processor()}, with {torch.backends.cpu.get_cpu_capability()} in PyTorch "
        f"{torch.__version__}. Do not edit.", "",
        "Largest error in units in the last place of the dtype, and in brackets that of PyTorch's CPU for the same",
        "arguments: all 65,536 values of the halves, and samples of the others over all exponents, with denormals,",
        "infinities, NaN and the neighbours of branch points mixed in one vector. A dash: PyTorch's CPU has no such",
        "function, or there is no reference. *host*: runs on the CPU. **Bold**: above 2 units and the CPU's error,",
        "or another NaN or sign of zero than the CPU and the reference have.", "",
        "`f'` is the gradient of `f`. Two numbers before the bracket: in vectors, and one element at a time.", "",
        "| function | " + " | ".join(DTYPES) + " |", "|---|" + "---|" * len(DTYPES),
    ]  # fmt: skip
    for name, gradient in dict.fromkeys((row.name, row.gradient) for row in rows):
        cells = []
        for dtype in DTYPES:
            found = [r for r in rows if (r.name, r.gradient, r.dtype) == (name, gradient, dtype)]
            cells.append(_cell(found) if found else "-")
        lines.append(f"| `{name}{chr(39) if gradient else ''}` | " + " | ".join(cells) + " |")
    if reductions:
        lines += ["", *reduction_table(reductions)]
    return "\n".join(lines) + "\n"


def _cell(rows: list[Row]) -> str:
    parts = [_number(row.ours) if row.holds else f"**{_number(row.ours)}**" for row in rows]
    host = " host" if any(row.fallbacks for row in rows) else ""
    return f"{' / '.join(parts)} ({_number(max(row.cpu for row in rows))}){host}"


def reduction_table(rows: list[Any]) -> list[str]:
    """The section on reductions."""
    from accuracy_reductions import table

    return table(rows)


# ---- processes ----


def _simt(options: argparse.Namespace) -> list[Row]:
    """The rows of text for SIMT devices, which needs a process whose compiler sees such a device."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.json"
        command = [sys.executable, __file__, "--as", "gpu", "--json", str(path), "--seed", str(options.seed)]
        command += ["--count", str(max(options.count // 100, 4096)), "--dtypes", *options.dtypes]
        command += ["--only", *options.only] if options.only else []
        result = subprocess.run(command, env=os.environ | {"OUTBOARD_CACHE_DIR": folder}, check=False)
        if result.returncode not in (0, 1):
            raise RuntimeError(f"the process for SIMT devices ended with {result.returncode}")
        return [Row(**row) for row in json.loads(path.read_text())["rows"]]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=10_000_000, help="numbers of float32 for each function")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", default=[], help="functions")
    parser.add_argument("--dtypes", nargs="*", default=list(DTYPES), choices=list(DTYPES))
    parser.add_argument("--no-gradients", action="store_true")
    parser.add_argument("--forms", nargs="*", default=["vector", "scalar"], choices=["vector", "scalar"])
    parser.add_argument("--no-simt", action="store_true", help="leave out the text for SIMT devices")
    parser.add_argument("--reductions", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--functions", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--largest", type=int, default=26, help="logarithm of the largest reduction")
    parser.add_argument("--as", dest="kind", choices=["gpu", "narrow"], help="as if the device were of another kind")
    parser.add_argument("--json", type=Path, help="file for the rows")
    parser.add_argument("--write", type=Path, help="file for the page")
    return parser.parse_args()


def _plan(options: argparse.Namespace) -> Plan:
    count = options.count
    counts = {"float32": count, "float64": max(count // 10, 4096), "float16": min(count, 65536 * 8)}
    forms = ("simt",) if options.kind == "gpu" else tuple(options.forms)
    return Plan(counts | {"bfloat16": counts["float16"]}, options.seed, forms)


def main() -> int:
    """Measures, prints, writes; 1 if anything is out of bounds."""
    options = _options()
    if options.kind:
        from outboard.compiler.target import pretend

        pretend(options.kind)
    began, rows, reductions = time.monotonic(), [], []
    if options.functions:
        for row in measure(options.only or list(FUNCTIONS), options.dtypes, not options.no_gradients, _plan(options)):
            rows.append(row)
            print(describe(row), flush=True)
        if not options.kind and not options.no_simt:
            rows += _simt(options)
    if options.reductions and not options.kind:
        import accuracy_reductions

        for row in accuracy_reductions.measure(options.largest, options.seed, options.only):
            reductions.append(row)
            print(accuracy_reductions.describe(row), flush=True)
    if options.json:
        options.json.write_text(
            json.dumps({"rows": [asdict(r) for r in rows], "reductions": [asdict(r) for r in reductions]})
        )
    if options.write:
        command = "make accuracy" if options.count == 10_000_000 else "python " + " ".join(sys.argv)
        options.write.write_text(page(rows, reductions, command))
    bad = [row for row in (*rows, *reductions) if not row.holds]
    print(f"{len(rows) + len(reductions)} rows, {len(bad)} out of bounds, {time.monotonic() - began:.0f} s")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
