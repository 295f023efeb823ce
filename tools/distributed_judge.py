# SPDX-License-Identifier: Apache-2.0
"""Runs PyTorch's own tests of torch.distributed on the device's process-group backend, and says how each ends.

``distributed``  DistributedTest of the installed PyTorch (torch.testing._internal.distributed), where CUDA's and NCCL's
                 names stand for ours; what PyTorch has for gloo and CPU tensors alone runs with ours for gloo's name
                 and the device as default device (``tools/distributed_judge_names.py``)
``dtensor``      an OpInfo each, through PyTorch's DTensorTestBase and DTensorConverter: the operator on a distributed
                 tensor, in every placement that the converter has, against the same operator on the whole tensor

Each test has processes and a process group of its own, two ranks, or four where two do not do, and a time limit; one
that hangs or crashes costs one row. What fails runs again on CPU tensors over gloo, as PyTorch wrote it.

passed   as PyTorch expects
failed   not so: ``tools/distributed_judge_known.py`` has to explain it
refused  the device or DTensor says that it does not do this
hung     killed at the time limit (a failure)
skipped  by PyTorch, for the reason that it gives

Exit code 1 if a failure is not explained.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import re
import select
import signal
import sys
import tempfile
import time
import unittest
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"  # the device is opened after the fork
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["OUTBOARD_NUM_DEVICES"] = "4"  # a device for each rank, as with CUDA
sys.path.insert(0, str(Path(__file__).resolve().parent))

import distributed_judge_dtensor  # noqa: E402
import distributed_judge_names as naming  # noqa: E402
import torch  # noqa: E402
import torch._inductor.codegen.simd  # noqa: E402, F401 - the compiler, imported once for all ranks
import torch._inductor.compile_fx  # noqa: E402, F401
import torch._refs  # noqa: E402, F401
import torch.distributed as dist  # noqa: E402
from distributed_judge_known import EXPLANATIONS  # noqa: E402

import outboard  # noqa: E402, F401

DEVICE = torch._C._get_privateuse1_backend_name()
BACKEND = dist.Backend.default_device_backend_map[DEVICE]
KINDS = ("passed", "failed", "hung", "refused", "skipped")
_FOLDER = tempfile.TemporaryDirectory(prefix="outboard-judge-")
#: Keeps the device closed in the process whose forks are the ranks.
_CLOSED = ExitStack()
#: What an error says that is a refusal and no wrong result: of tensors on the CPU, for one.
WANTS_CPU = "No backend type associated with device type cpu"
REFUSALS = re.compile(
    rf"{WANTS_CPU}|NotImplementedError|Reductions across ranks are not there|is not supported by the device"
)
#: (the backend whose part ours plays, ranks), in the order in which they are tried until PyTorch skips no more.
ROLES = (("nccl", 2), ("nccl", 4), ("gloo", 2), ("gloo", 4))


@dataclass
class Row:
    """How one test ended. ``role`` is the backend whose part ours played, with the number of ranks."""

    name: str
    role: str
    kind: str
    detail: str
    seconds: float
    reason: str = ""


@dataclass
class Case:
    """A test: ``make`` returns the unittest of its name in the process that runs it."""

    name: str
    role: str
    ranks: int
    default_device: str | None
    make: Callable[[], unittest.TestCase]


def _forked(base: type, prepare: Callable[[int], None]) -> type:
    """The class of PyTorch's tests, whose ranks are forked: importing PyTorch for each would take most of the time."""

    class Forked(base):  # type: ignore[misc, valid-type]
        def _spawn_processes(self) -> None:
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

        @classmethod
        def _run(cls, rank: int, *arguments: Any, **keywords: Any) -> None:
            _CLOSED.close()
            torch.set_num_threads(1)
            prepare(rank)
            super()._run(rank, *arguments, **keywords)  # type: ignore[misc]

    Forked.__qualname__ = Forked.__name__ = base.__name__
    return Forked


def _prepare(default_device: str | None, rank: int) -> None:
    """What a rank does before PyTorch's class: takes its device, and makes it the default one."""
    if default_device is None:
        return
    getattr(torch, default_device).set_device(rank)
    torch.set_default_device(default_device)


def _enter(backend: str, ranks: int) -> None:
    os.environ["INIT_METHOD"] = f"file://{_FOLDER.name}/init"  # which one test uses, and PyTorch deletes
    os.environ["BACKEND"] = backend
    os.environ["WORLD_SIZE"] = str(ranks)


def distributed_module(played: str, ranks: int) -> type:
    """DistributedTest as unittest class, where our backend plays ``played``; "plain" is PyTorch's own gloo."""
    names = naming.Names(DEVICE, BACKEND, played) if played != "plain" else naming.Names("cuda", "gloo", "gloo")
    _enter(names.backend, ranks)
    with naming.unopened(DEVICE, 4):
        module = naming.load(names, ranks)
    common = sys.modules[naming.COMMON]
    common.TEST_CUDA = played != "plain"  # type: ignore[attr-defined]
    prepare = functools.partial(_prepare, DEVICE if played == "gloo" else None)

    class Started(module.TestDistBackend, module.DistributedTest._DistTestBase):  # type: ignore[misc, name-defined]
        def setUp(self) -> None:
            super().setUp()
            self._spawn_processes()

    Started.__name__ = "DistributedTest"
    return _with_modules(_forked(Started, prepare))


def _with_modules(cls: type) -> type:
    """Notes which modules the class was made of: they are loaded several times, with other names."""
    names = (naming.COMMON, naming.TESTS, naming.DTENSOR)
    cls.modules = {name: sys.modules[name] for name in names if name in sys.modules}  # type: ignore[attr-defined]
    return cls


@functools.cache
def _loaded(played: str, ranks: int) -> type:
    return distributed_module(played, ranks)


@functools.cache
def _operators(device: str, ranks: int) -> type:
    cls = distributed_judge_dtensor.case_class(device, ranks)
    return _with_modules(_forked(cls, functools.partial(_prepare, None)))


def static_skip(function: Any) -> str | None:
    """Why PyTorch skips a test before anything has run, or None."""
    return getattr(function, "__unittest_skip_why__", "") if getattr(function, "__unittest_skip__", False) else None


def distributed_cases(pattern: str) -> Iterator[tuple[str, list[Case], str]]:
    """Each test's name, the roles in which PyTorch would run it, and, if there are none, its reasons."""
    names = sorted(name for name in dir(_loaded("nccl", 2)) if name.startswith("test_") and re.search(pattern, name))
    for name in names:
        cases, reasons = [], []
        for played, ranks in ROLES:
            cls = _loaded(played, ranks)
            why = static_skip(getattr(cls, name))
            if why is not None:
                reasons.append(f"{played} x {ranks}: {why}")
                continue
            device = DEVICE if played == "gloo" else None
            cases.append(
                Case(f"distributed.{name}", f"{played} x {ranks}", ranks, device, functools.partial(cls, name))
            )
        yield f"distributed.{name}", cases, "; ".join(dict.fromkeys(reasons))


def run_case(case: Case, limit: float) -> Row:
    """Runs a test in a process group of its own and waits at most ``limit`` seconds."""
    begin = time.monotonic()
    reader, writer = os.pipe()
    sys.stdout.flush()
    with tempfile.TemporaryFile() as log:
        pid = os.fork()
        if pid == 0:
            os.close(reader)
            _child(case, log.fileno(), writer, limit)
        os.close(writer)
        text = _read(reader, limit)
        ended = text is not None
        _kill_group(pid)
        os.close(reader)
        log.seek(0)
        printed = log.read().decode(errors="replace")
    seconds = time.monotonic() - begin
    if not ended:
        return Row(case.name, case.role, "hung", f"not finished after {limit:.0f} s", seconds)
    if not text:
        return Row(case.name, case.role, "failed", f"the process died: {printed[-300:]}", seconds)
    outcome = json.loads(text)
    detail = outcome["detail"]
    if "Expected exit code" in detail:
        detail = f"a rank ended with another exit code: {' '.join(printed.split())[-1500:]}"
    return Row(case.name, case.role, outcome["kind"], detail, seconds)


def _read(reader: int, limit: float) -> str | None:
    """What is written until the other end closes, or None if that takes longer than ``limit`` seconds."""
    end = time.monotonic() + limit
    received = b""
    while True:
        if not select.select([reader], [], [], max(end - time.monotonic(), 0))[0]:
            return None
        data = os.read(reader, 1 << 16)
        received += data
        if not data or received.endswith(b"\n"):
            return received.decode()


def _kill_group(pid: int) -> None:
    """Ends a test's processes, ranks that hang among them."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        os.kill(pid, signal.SIGKILL)  # it has not made its group yet
    os.waitpid(pid, 0)


def _child(case: Case, log: int, writer: int, limit: float) -> None:
    status = 1
    try:
        os.setsid()
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.environ["WORLD_SIZE"] = str(case.ranks)
        _CLOSED.enter_context(naming.unopened(DEVICE, 4))
        test: Any = case.make()
        sys.modules.update(test.modules)
        test.modules[naming.COMMON].TIMEOUT_DEFAULT = limit - 5
        test.modules[naming.COMMON].TIMEOUT_OVERRIDE = {}
        result = unittest.TestResult()
        test.run(result)
        with os.fdopen(writer, "w") as lines:
            print(json.dumps(_outcome(result)), file=lines, flush=True)
        status = 0
    finally:
        os._exit(status)


def _outcome(result: unittest.TestResult) -> dict[str, str]:
    if result.skipped:
        return {"kind": "skipped", "detail": result.skipped[0][1]}
    wrong = result.errors + result.failures
    if not wrong:
        return {"kind": "passed", "detail": ""}
    detail = wrong[0][1]
    if "terminated or timed out" in detail:
        return {"kind": "hung", "detail": _essence(detail)}
    return {"kind": "refused" if REFUSALS.search(detail) else "failed", "detail": _essence(detail)}


def _essence(text: str) -> str:
    """Of a report of several ranks with C++ stacks, the first rank's exception and where PyTorch's test raised it."""
    end = r"\n(?=Process [1-9]\d* exited with)|\nException raised from|\nTo execute this test"
    first = re.split(end, text)[0]
    lines = [line for line in first.splitlines() if line.strip()]
    errors = [i for i, line in enumerate(lines) if re.match(r"[A-Za-z_.]*(Error|Exception|Failure|Skip\w*)\b", line)]
    begin = errors[-1] if errors else max(len(lines) - 3, 0)
    places = [line.strip() for line in lines if "distributed_test.py" in line or "distributed_judge_" in line]
    return " ".join(" ".join(lines[begin:]).split())[:600] + (f" [{places[-1]}]" if places else "")


def explain(row: Row) -> str:
    """The sentence that explains a failure, or nothing."""
    for pattern, text, sentence in EXPLANATIONS:
        if re.search(pattern, row.name) and re.search(text, row.detail):
            return sentence
    return ""


def judge(name: str, cases: list[Case], reasons: str, limit: float) -> Row:
    """Runs a test in the first role in which PyTorch does not skip it."""
    skipped: list[str] = [reasons] if reasons else []
    for case in cases:
        row = run_case(case, limit)
        if row.kind == "refused" and WANTS_CPU in row.detail and case is not cases[-1]:
            continue  # one for CPU tensors, which PyTorch would skip for NCCL if it had to: with a default device, then
        if row.kind != "skipped":
            return row
        skipped.append(f"{case.role}: {row.detail}")
    return Row(name, "", "skipped", "; ".join(skipped), 0)


def control(row: Row, limit: float) -> str:
    """How a test that failed ends on CPU tensors over gloo, as PyTorch wrote it."""
    suite, test = row.name.split(".", 1)
    ranks = int(row.role.split()[-1])
    if suite == "distributed":
        cls = _loaded("plain", ranks)
        if (why := static_skip(getattr(cls, test))) is not None:
            return f"skipped: {why}"
        make: Callable[[], unittest.TestCase] = functools.partial(cls, test)
    else:
        make = functools.partial(_operators("cpu", ranks), f"test_{test}")
    other = run_case(Case(row.name, f"plain x {ranks}", ranks, None, make), limit)
    return f"{other.kind}: {other.detail}".rstrip(": ")


def report(rows: list[Row], seconds: float, output: Path) -> bool:
    """Prints what did not pass and the counts, writes the JSON file; returns whether every failure is explained."""
    unexplained = [row for row in rows if row.kind in ("failed", "hung") and not row.reason]
    for row in rows:
        if row.kind in ("failed", "hung", "refused"):
            print(f"{row.kind:<7} {row.name} ({row.role}): {row.reason}\n        {row.detail[:300]}")
    print(f"\nPyTorch {torch.__version__}, {BACKEND} on {DEVICE}, {seconds:.0f} s\n")
    print("| suite | tests | " + " | ".join(KINDS) + " |\n|" + "---|" * (len(KINDS) + 2))
    table = {}
    for suite in dict.fromkeys(row.name.split(".", 1)[0] for row in rows):
        counts = Counter(row.kind for row in rows if row.name.startswith(suite + "."))
        table[suite] = counts
        print(f"| {suite} | {sum(counts.values())} | " + " | ".join(str(counts[kind]) for kind in KINDS) + " |")
    skips = Counter(row.detail for row in rows if row.kind == "skipped")
    for why, count in skips.most_common():
        print(f"skipped {count}: {why[:200]}")
    output.parent.mkdir(parents=True, exist_ok=True)
    summary = {"torch": torch.__version__, "backend": BACKEND, "seconds": seconds, "counts": table}
    output.write_text(json.dumps(summary | {"rows": [asdict(row) for row in rows]}, indent=1) + "\n")
    for row in unexplained:
        print(f"not explained: {row.name}")
    return not unexplained


def tests(options: argparse.Namespace) -> list[tuple[str, list[Case], str]]:
    """All tests that were asked for."""
    found: list[tuple[str, list[Case], str]] = []
    if "distributed" in options.suites:
        found += distributed_cases(options.match)
    if "dtensor" in options.suites:
        cls = _operators(DEVICE, 2)
        for test in sorted(distributed_judge_dtensor.operators(cls, options.match)):
            case = Case(f"dtensor.{test}", "dtensor x 2", 2, None, functools.partial(cls, f"test_{test}"))
            found.append((case.name, [case], ""))
    return found


def settled(path: Path) -> dict[str, Row]:
    """Rows of an earlier run that are no failures, by name."""
    rows = [Row(**row) for row in json.loads(path.read_text())["rows"]]
    return {row.name: row for row in rows if row.kind not in ("failed", "hung")}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suites", nargs="+", choices=("distributed", "dtensor"), default=["distributed", "dtensor"])
    parser.add_argument("--match", default="", help="regular expression over names of tests or operators")
    parser.add_argument("--limit", type=float, default=75, help="seconds for a test")
    parser.add_argument("--no-control", action="store_true", help="do not run failures again over gloo")
    parser.add_argument("--again", type=Path, help="an earlier run's JSON file, of which only failures are run again")
    parser.add_argument("--output", type=Path, default=Path("out/distributed_judge.json"))
    options = parser.parse_args()
    begin = time.monotonic()
    rows: list[Row] = []
    found = tests(options)
    known = settled(options.again) if options.again else {}
    for name, cases, reasons in found:
        if name in known:
            rows.append(known[name])
            continue
        row = judge(name, cases, reasons, options.limit) if cases else Row(name, "", "skipped", reasons, 0)
        if row.kind in ("failed", "hung"):
            row.reason = explain(row)
            if not row.reason and not options.no_control:
                row.detail += f" | over gloo on the CPU: {control(row, options.limit)}"
                row.reason = explain(row)
        rows.append(row)
        print(f"[{len(rows):>3}/{len(found)}] {row.kind:<7} {row.seconds:5.1f} s  {row.name} {row.role}", flush=True)
        if row.kind in ("failed", "hung") and not row.reason:
            print(f"    {row.detail}", flush=True)
    return 0 if report(rows, time.monotonic() - begin, options.output) else 1


if __name__ == "__main__":
    sys.exit(main())
