# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.sanitize address|thread BUILD [STATION ...]``: the tour with the extension module, the drivers and
the programs of a build that has ``-fsanitize``, on the machine's device and on the strict driver around it. Ends with
1 if the sanitizer, or the tour, has anything to say, or a fault that is seeded is missed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from . import reports

Ended = subprocess.CompletedProcess[str]

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]

#: PyTorch and Python free next to nothing when they end: leaks are looked for by the C++ tests, and by the tests that
#: count what drivers made. Several libraries have a symbol of the same name, each for itself, on purpose.
OPTIONS = {
    "address": {
        "ASAN_OPTIONS": "detect_leaks=0:detect_odr_violation=0:detect_stack_use_after_return=1:exitcode=66",
        "UBSAN_OPTIONS": "print_stacktrace=1",
    },
    "thread": {"TSAN_OPTIONS": "exitcode=0:history_size=7:second_deadlock_stack=1"},
}
SANITIZERS = {"address": "address,undefined", "thread": "thread"}
RUNTIME = {"address": "libasan.so", "thread": "libtsan.so"}

#: Functions of seeded.cpp.
SEEDED = {"address": ["beyond", "overflow"], "thread": ["race"]}
COMPILER = os.environ.get("CXX", "g++")

#: "" is what the machine has.
DRIVERS = ("", "strict")


def preloaded(kind: str) -> str:
    """The sanitizer's runtime, which has to come before all else and is not linked with Python; and the C++ library,
    in which it looks for what it replaces as soon as it starts."""
    names = (RUNTIME[kind], "libstdc++.so.6")
    paths = [subprocess.check_output([COMPILER, f"-print-file-name={name}"], text=True) for name in names]
    return ":".join(path.strip() for path in paths)


def install(build: Path) -> Path:
    """A folder with the package as it is here and what was built with the sanitizer."""
    site = build / "site"
    shutil.rmtree(site, ignore_errors=True)
    shutil.copytree(ROOT / "src", site, ignore=shutil.ignore_patterns("*.so", "__pycache__", "bin", "lib", "include"))
    command = ["cmake", "--install", str(build), "--prefix", str(site)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return site


def watched(kind: str, site: Path, arguments: list[str], driver: str = "") -> tuple[Ended, list[str]]:
    """Runs Python with a sanitizer. How it ended, and the reports that count, of its children too."""
    logs = site.parent / "logs"
    shutil.rmtree(logs, ignore_errors=True)
    logs.mkdir()
    variables = {
        "LD_PRELOAD": preloaded(kind),
        "PYTHONPATH": str(site),
        "PYTHONMALLOC": "malloc",
        "OUTBOARD_CACHE_DIR": str(site.parent / "cache"),
        "OUTBOARD_DRIVER": driver,
        "OMP_NUM_THREADS": "1",
        **{name: f"{options}:log_path={logs / name}" for name, options in OPTIONS[kind].items()},
    }
    command = [sys.executable, "-X", "faulthandler", *arguments]
    ended = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True)
    (logs / "errors").write_text(ended.stderr)  # UBSan writes there whatever it is told
    texts = [path.read_text(errors="replace") for path in sorted(logs.iterdir())]
    return ended, [report for text in texts for report in reports.ours(text, modules(site))]


def tour(kind: str, site: Path, driver: str, stations: list[str]) -> list[str]:
    """One tour. What there is to complain of."""
    ended, found = watched(kind, site, [str(HERE / "tour.py"), *stations], driver)
    print(ended.stdout, end="")
    if ended.returncode != 0 or "tour: done" not in ended.stdout:
        found.append(f"the tour ended with {ended.returncode}: {ended.stderr}")
    return found


def modules(site: Path) -> set[str]:
    """The names of the libraries and programs that were built here."""
    built = [*site.rglob("*.so"), *(site / "outboard" / "bin").iterdir()]
    return {path.name for path in built}


def seeded(kind: str, site: Path) -> list[str]:
    """The seeded faults that are not found."""
    library = site / "libseeded.so"
    build = [COMPILER, f"-fsanitize={SANITIZERS[kind]}", "-g1", "-fPIC", "-shared", str(HERE / "seeded.cpp")]
    subprocess.run([*build, "-o", str(library)], check=True)
    missed = []
    for fault in SEEDED[kind]:
        ended, found = watched(kind, site, ["-c", f"import ctypes; ctypes.CDLL({str(library)!r}).{fault}(2**31 - 1)"])
        if not any(fault in report for report in found):
            missed.append(f"the seeded fault {fault} is not found (status {ended.returncode}): {found}")
    return missed


def main() -> int:
    kind, build, stations = sys.argv[1], Path(sys.argv[2]).resolve(), sys.argv[3:]
    site = install(build)
    missed = seeded(kind, site)
    print(*missed, f"sanitize: {kind}: {len(missed)} of {len(SEEDED[kind])} seeded faults missed", sep="\n", flush=True)
    failed = bool(missed)
    for driver in DRIVERS:
        begin = time.monotonic()
        found = tour(kind, site, driver, stations)
        for report in found:
            print(report, file=sys.stderr)
        name = driver or "default"
        print(f"sanitize: {kind}, {name} driver: {len(found)} findings, {time.monotonic() - begin:.0f} s", flush=True)
        failed = failed or bool(found)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
