# SPDX-License-Identifier: Apache-2.0
"""``python tests/sanitize/run.py address|thread BUILD``: the tour with the extension module of a build that has
``-fsanitize``. Ends with 1 if the sanitizer, or the tour, has anything to say."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]

#: Python frees next to nothing when it ends, and leaks are counted by the tests of drivers: none are looked for here.
OPTIONS = {
    "address": {
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0:exitcode=66:detect_odr_violation=0",
        "UBSAN_OPTIONS": f"print_stacktrace=1:halt_on_error=1:exitcode=66:suppressions={HERE / 'undefined.supp'}",
    },
    "thread": {
        "TSAN_OPTIONS": f"exitcode=66:ignore_noninstrumented_modules=1:suppressions={HERE / 'thread.supp'}",
    },
}
RUNTIMES = {"address": ["libasan.so", "libubsan.so"], "thread": ["libtsan.so"]}


def runtime(name: str) -> str:
    """The path of a library of the compiler's. Python is not linked with it, so it is loaded before all else."""
    command = [os.environ.get("CXX", "g++"), f"-print-file-name={name}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def package(build: Path) -> Path:
    """A folder with the package and the build's libraries."""
    site = build / "site"
    shutil.rmtree(site, ignore_errors=True)
    shutil.copytree(ROOT / "src", site, ignore=shutil.ignore_patterns("*.so", "__pycache__", "bin", "lib", "include"))
    subprocess.run(["cmake", "--install", str(build), "--prefix", str(site)], check=True, stdout=subprocess.DEVNULL)
    return site


def main() -> int:
    kind, build = sys.argv[1], Path(sys.argv[2]).resolve()
    variables = {
        "LD_PRELOAD": ":".join(runtime(name) for name in RUNTIMES[kind]),
        "PYTHONPATH": str(package(build)),
        "PYTHONMALLOC": "malloc",
        "OUTBOARD_CACHE_DIR": str(build / "cache"),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-X", "faulthandler", str(HERE / "tour.py")]
    tour = subprocess.run(command, env=os.environ | variables | OPTIONS[kind], capture_output=True, text=True)
    print(tour.stdout)
    reported = any(mark in tour.stderr for mark in ("Sanitizer", "runtime error:"))
    if tour.returncode == 0 and "tour: done" in tour.stdout and not reported:
        return 0
    print(tour.stderr, file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
