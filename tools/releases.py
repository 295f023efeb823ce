# SPDX-License-Identifier: Apache-2.0
"""Which releases of PyTorch and which Pythons passed which tests, as docs/releases.md.

    make releases RELEASES_ARGUMENTS="2.15.0:3.11 2.13.0:3.13 --suite quick"

For each pair of a PyTorch and a Python the environment is made (``.venv-3.11-torch2.15.0``, that of ``make
PYTHON=python3.11 TORCH=2.15.0``), Outboard is built in it, and the tests of the suite run. Rows of pairs that were
measured replace those of the same pair and suite in the table; the others stay. What failed runs once more, alone, when
all else has ended; the page names what passed only then. Where an environment of the same Python
with another release is there, tests/package/test_wheel.py runs under this PyTorch what was built for that one.

Each result stands in ``build/releases`` as soon as it is known. Exit code 1 if a test failed, or an environment could
not be made.
"""

from __future__ import annotations

import argparse
import datetime
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent))

import torch_requirement  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "releases.md"
#: Where results are written while the tests run.
LOGS = ROOT / "build" / "releases"
#: Seconds that a test may take.
TEST_LIMIT = 900.0
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
#: What pytest runs, by suite.
SUITES = {
    "smoke": [
        *(f"tests/package/test_{name}.py" for name in ("patches", "releases", "wheel", "package")),
        # What relies on how CPython itself works.
        "tests/compiler/test_isolation.py",
        "tests/integrations/test_import_order.py::test_an_adapter_comes_when_the_import_has_ended",
    ],
    "package": ["tests/package"],
    "quick": [
        "tests/package",
        *(f"tests/device/test_{name}.py" for name in ("autograd", "factories", "modules", "semantics", "typed_calls")),
        *(f"tests/compiler/test_{name}.py" for name in ("dynamic", "functions", "graphs", "precompile", "replay")),
        "tests/kernels/test_gemm.py",
        "tests/cli/test_cli.py",
    ],
    "full": ["tests"],
}
_HEAD = "| PyTorch | Python | Suite | passed | failed | skipped | Sources | Day |\n|---|---|---|---|---|---|---|---|\n"
_ROW = re.compile(r"^\| (\d\S*) \| (\d\S*) \| (\w+) \| (\d+) \| (\d+) \| (\d+) \| (\S+) \| (\S+) \|$", re.MULTILINE)
_FAILURES = "\nWhat failed:\n\n"
#: What stands below the head of the table and is written anew.
_WRITTEN = re.compile(rf"\A(\|.*\n)*({_FAILURES}(- PyTorch .*\n)+)?")
#: What marks a test there that failed among the others only.
_ALONE = ", passed alone"
_FAILED = re.compile(rf"^- PyTorch (\S+), Python (\S+), (\w+)({_ALONE})?: `(.*)`$", re.MULTILINE)


class Row(NamedTuple):
    """How the tests of a suite ended with one pair. ``sources`` is the commit; ``torch`` the version that was there;
    ``alone`` names what failed among the others and then passed alone."""

    torch: str
    python: str
    suite: str
    passed: int
    failed: int
    skipped: int
    sources: str
    day: str
    failures: tuple[str, ...] = ()
    alone: tuple[str, ...] = ()

    def key(self) -> tuple[str, str, str]:
        """What tells rows from each other: a later measurement of the same replaces it."""
        return torch_requirement.release(self.torch), self.python, self.suite

    def order(self) -> tuple[object, ...]:
        """The newest PyTorch first, then by Python."""
        release, python, suite = self.key()
        return tuple(-int(part) for part in release.split(".")), tuple(map(int, python.split("."))), suite


def environment_of(torch: str, python: str) -> Path:
    """The folder of an environment, as the Makefile names it."""
    return ROOT / f".venv-{python}-torch{torch}"


def interpreter(python: str, folders: list[Path]) -> str:
    """The program ``python3.11`` or so, from these folders or PATH. Raises SystemExit if there is none that runs."""
    path = os.pathsep.join([*map(str, folders), os.environ.get("PATH", "")])
    found = shutil.which(f"python{python}", path=path)
    if found is None or subprocess.run([found, "-c", ""], capture_output=True).returncode != 0:
        raise SystemExit(f"there is no python{python}; say where it is with --pythons FOLDER")
    return found


def make_environment(torch: str, python: str, program: str) -> bool:
    """Makes the environment and builds Outboard in it. Returns whether that worked; what did not is printed."""
    command = [program, "tools/bootstrap.py", "--venv", environment_of(torch, python).name, "--torch", torch]
    return subprocess.run([*command, "--opencl", "--groups", "demo", "test", "lint", "docs"], cwd=ROOT).returncode == 0


def other_package(torch: str, python: str) -> Path | None:
    """The package in an environment of this Python that was built for another release of PyTorch, if there is one."""
    for folder in sorted(ROOT.glob(f".venv-{python}-torch*")):
        package = folder / "lib" / f"python{python}" / "site-packages" / "outboard"
        built_for = package / "torch-release.txt"
        if built_for.exists() and torch_requirement.release(built_for.read_text()) != torch_requirement.release(torch):
            return package
    return None


def pytest_options(log: Path, jobs: int, limit: float = TEST_LIMIT) -> list[str]:
    """How pytest runs tests: each result is written into ``log`` as it comes. A process whose test takes longer than
    ``limit`` seconds says where it is and ends; another takes its place."""
    endings = ["-o", f"faulthandler_timeout={limit}", "-o", "faulthandler_exit_on_timeout=true"]
    processes = ["-n", str(jobs), "--max-worker-restart", "1000"]
    return ["-q", *processes, *endings, "-p", "tools.result_log", "--result-log", str(log)]


def measure(torch: str, python: str, suite: str, jobs: int) -> Row:
    """Runs the tests of a suite in a pair's environment."""
    program = environment_of(torch, python) / "bin" / "python"
    variables = os.environ | {"OMP_WAIT_POLICY": "passive"}
    if (package := other_package(torch, python)) is not None:
        variables["OUTBOARD_TEST_OTHER_PACKAGE"] = str(package)
    log = LOGS / f"{torch}-{python}-{suite}.log"
    counts, failures = run(program, variables, log, jobs, SUITES[suite])
    alone: tuple[str, ...] = ()
    if failures:
        _, failures_alone = run(program, variables, log.with_suffix(".alone.log"), 1, failures)
        alone = tuple(name for name in failures if name not in failures_alone)
        failures = failures_alone
    counts = counts[0] + len(alone), len(failures), counts[2]
    version = said(program, "import torch; print(torch.__version__)")
    day = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    return Row(version, python, suite, *counts, said("git", "rev-parse", "--short", "HEAD"), day, failures, alone)


def run(
    program: Path, variables: dict[str, str], log: Path, jobs: int, tests: Sequence[str]
) -> tuple[tuple[int, int, int], tuple[str, ...]]:
    """Runs tests; what :func:`read_log` says of them. Raises SystemExit if pytest does not start."""
    log.parent.mkdir(parents=True, exist_ok=True)
    log.unlink(missing_ok=True)
    subprocess.run([program, "-m", "pytest", *pytest_options(log, jobs), *tests], cwd=ROOT, env=variables)
    if not log.exists():
        raise SystemExit(f"pytest did not start with {program}")
    return read_log(log.read_text())


def said(program: str | Path, *arguments: str) -> str:
    """What a program prints; Python's program is given as one argument."""
    command = [str(program), *arguments] if program == "git" else [str(program), "-c", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def read_log(log: str) -> tuple[tuple[int, int, int], tuple[str, ...]]:
    """How many tests passed, failed and were skipped by what ``tools/result_log.py`` wrote, and the names of those that
    failed. One that cannot be set up or torn down has failed, as has one without a result: pytest ended before it."""
    outcomes: dict[str, set[str]] = {}
    for line in log.splitlines():
        outcome, name = line.split(" ", 1)
        outcomes.setdefault(name, set()).add(outcome)
    failed = {name for name, found in outcomes.items() if "failed" in found or found == {"collected"}}
    skipped = {name for name, found in outcomes.items() if "skipped" in found} - failed
    return (len(outcomes) - len(failed) - len(skipped), len(failed), len(skipped)), tuple(sorted(failed))


def read_page(text: str) -> list[Row]:
    """The rows of the page, with what failed."""
    names: dict[tuple[str, ...], list[str]] = {}
    for *pair, alone, name in _FAILED.findall(text):
        names.setdefault((*pair, alone), []).append(name)
    rows = []
    for torch, python, suite, passed, failed, skipped, sources, day in _ROW.findall(text):
        failures, passed_alone = (tuple(names.get((torch, python, suite, kind), ())) for kind in ("", _ALONE))
        counts = int(passed), int(failed), int(skipped)
        rows.append(Row(torch, python, suite, *counts, sources, day, failures, passed_alone))
    return rows


def page(text: str, rows: list[Row]) -> str:
    """The page with these rows, and what failed in them, instead of those that it has; all else stays."""
    before, _, rest = text.partition(_HEAD)
    after = _WRITTEN.sub("", rest, count=1)
    table = "".join(f"| {' | '.join(map(str, row[:-2]))} |\n" for row in sorted(rows, key=Row.order))
    lines = [
        f"- PyTorch {row.torch}, Python {row.python}, {row.suite}{kind}: `{name}`\n"
        for row in sorted(rows, key=Row.order)
        for kind, names in (("", row.failures), (_ALONE, row.alone))
        for name in names
    ]
    failures = f"{_FAILURES}{''.join(lines)}" if lines else ""
    return f"{before}{_HEAD}{table}{failures}{after}"


def replace(rows: list[Row], measured: Row) -> list[Row]:
    """The rows with one of a later measurement among them."""
    return [row for row in rows if row.key() != measured.key()] + [measured]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    every = [f"{torch_requirement.DEFAULT}:{python}" for python in PYTHONS]
    parser.add_argument("pairs", nargs="*", default=every, metavar="TORCH:PYTHON", help=f"default: {' '.join(every)}")
    parser.add_argument("--suite", choices=SUITES, default="quick")
    parser.add_argument("--list", choices=SUITES, help="only print the tests of this suite")
    parser.add_argument("--jobs", type=int, default=min(4, os.cpu_count() or 1), help="processes that run tests")
    parser.add_argument("--pythons", type=Path, action="append", default=[], metavar="FOLDER", help="where they are")
    options = parser.parse_args()
    if options.list is not None:
        print(*SUITES[options.list])
        return 0
    failed = False
    for pair in options.pairs:
        torch, _, python = pair.partition(":")
        if not make_environment(torch, python, interpreter(python, options.pythons)):
            failed = True
            continue
        row = measure(torch, python, options.suite, options.jobs)
        print(f"PyTorch {row.torch}, Python {python}: {row.passed} passed, {row.failed} failed, {row.skipped} skipped")
        text = PAGE.read_text()
        PAGE.write_text(page(text, replace(read_page(text), row)))
        failed = failed or row.failed > 0
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
