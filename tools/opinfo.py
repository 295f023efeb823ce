# SPDX-License-Identifier: Apache-2.0
"""Runs PyTorch's OpInfos on the device against the CPU and reports which are native, on the host, wrong, or crash.

Operators run in batches of ``--batch``, each batch in a process forked from one that has imported PyTorch and its
OpInfos but not yet opened the device. A crash costs one row: another process takes the rest of the batch. Exit code 1
if any result is wrong, anything runs on the CPU for no known reason, any process crashes, or the native share is below
``--min-native``.

With ``--check metadata`` what is compared is not values but dtype, shape, strides, shared memory and exceptions, of
arguments in several layouts: contiguous, permuted, with gaps, expanded, empty, without dimensions (``metadata_case``).
With ``--way`` operators are run through TorchScript or a transformation of ``torch.func`` (``opinfo_ways``), on the CPU
as on the device.
With ``--check state``, whether the first call of each operator leaves all the program's state as it was
(``state_case``): generators, defaults, modes, settings, environment. With ``--check out``, ``out=`` tensors that are
something already (``out_case``); with ``--check reference``, PyTorch's reference inputs (``reference_case``); with
``--check unwritten``, results that nobody writes (``unwritten_case``); with
``--check warnings``, what calls warn of (``warnings_case``); with ``--check sparse``, tensors of sparse layouts
(``layouts_case``); with ``--check nested``, jagged tensors (``nested_case``); with ``--check versions``, which tensors
count as written (``versions_case``), of lists of tensors too.
With ``--resume FILE`` each row is kept in a file as soon as it is known, and a later run takes the operators that have
none there. Rows of other options are refused; to run an operator again, take its line out.

native   right on the device, without a single CPU fallback
host     right, with CPU fallbacks
unseen   right, with CPU fallbacks for which ``on_cpu`` has no reason
wrong    a result that differs from the CPU's
error    an exception that the CPU does not raise
crash    the process died or did not finish in time
skipped  no sample that the CPU can run
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import select
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

if __name__ == "__main__":
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"  # the device is opened after the fork
sys.path.insert(0, str(Path(__file__).resolve().parent))

import layouts_case  # noqa: E402
import metadata_case  # noqa: E402
import nested_case  # noqa: E402
import on_cpu  # noqa: E402
import opinfo_case  # noqa: E402
import opinfo_ways  # noqa: E402
import out_case  # noqa: E402
import reference_case  # noqa: E402
import state_case  # noqa: E402
import torch  # noqa: E402
import unwritten_case  # noqa: E402
import versions_case  # noqa: E402
import warnings_case  # noqa: E402

#: What the compiler needs, imported once before the fork.
PRELOAD = ("torch._inductor.graph", "torch._inductor.lowering", "torch._inductor.codegen.simd", "torch._refs")
#: What else than values is checked of each operator, by the name of the check.
CHECKS = {
    "metadata": metadata_case,
    "nested": nested_case,
    "out": out_case,
    "reference": reference_case,
    "sparse": layouts_case,
    "state": state_case,
    "unwritten": unwritten_case,
    "versions": versions_case,
    "warnings": warnings_case,
}
#: Options that decide results: a run goes on from rows with the same ones.
SETTINGS = ("check", "way", "dtype", "device", "samples")
#: PyTorch's OpInfos of functions of lists of tensors.
LISTS = ("unary", "binary", "pointwise", "reduce", "other")
KINDS = ("native", "host", "unseen", "wrong", "error", "crash", "skipped")


@dataclass
class Row:
    """The result of one OpInfo."""

    name: str
    kind: str
    detail: str
    seconds: float
    fallbacks: dict[str, int]


@dataclass
class Worker:
    """A running child: ``pipe`` gives the outcome of each of ``ops`` as a line of JSON, ``log`` holds what it printed.
    ``started`` is when the first of ``ops``, which leave the list as they are done, began."""

    ops: list[Any]
    pid: int
    pipe: int
    log: IO[bytes]
    started: float
    received: bytes = b""


def full_name(op: Any) -> str:
    """The operator's name with its variant, as PyTorch's test names have it."""
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else str(op.name)


def selected(pattern: str, dtype: torch.dtype, with_lists: bool = False) -> list[Any]:
    """OpInfos that support ``dtype`` on the CPU and whose name matches; ``with_lists``, those of ``torch._foreach_...``
    among them."""
    from torch.testing._internal import common_methods_invocations as known

    lists = [op for name in LISTS for op in getattr(known, f"foreach_{name}_op_db")] if with_lists else []
    supported = [op for op in [*known.op_db, *lists] if op.supports_dtype(dtype, "cpu")]
    return [op for op in supported if re.search(pattern, full_name(op))]


def start(ops: list[Any], options: argparse.Namespace) -> Worker:
    """Forks a child that runs ``ops``, one after the other."""
    reader, writer = os.pipe()
    log = tempfile.TemporaryFile()  # noqa: SIM115 - closed in `crashed` or with the process
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        os.close(writer)
        return Worker(ops, pid, reader, log, time.monotonic())
    os.close(reader)
    os.dup2(log.fileno(), 1)
    os.dup2(log.fileno(), 2)
    status = 1
    try:
        with os.fdopen(writer, "w") as lines:
            for op in ops:
                print(json.dumps(asdict(_outcome(op, options))), file=lines, flush=True)
        status = 0
    finally:
        os._exit(status)


def _outcome(op: Any, options: argparse.Namespace) -> opinfo_case.Outcome:
    try:
        import outboard  # noqa: F401 - opens the device

        torch.set_num_threads(1)
        device = options.device or torch.accelerator.current_accelerator().type
        dtype = getattr(torch, options.dtype)
        if options.check != "values":
            outcome = CHECKS[options.check].run(op, dtype, device, options.samples)
        else:
            outcome = opinfo_case.run(op, dtype, device, options.samples, options.way)
        return _explained(outcome, dtype)
    except BaseException as error:  # noqa: BLE001 - reported as this row's result
        return opinfo_case.Outcome("error", f"outside the operator: {type(error).__name__}: {error}", {})


def _explained(outcome: opinfo_case.Outcome, dtype: torch.dtype) -> opinfo_case.Outcome:
    """The outcome, which is no good one if something ran on the CPU for no known reason."""
    unseen = on_cpu.unexplained(outcome.fallbacks, [dtype])
    if unseen and outcome.kind in ("native", "host"):
        outcome.kind, outcome.detail = "unseen", f"{', '.join(unseen)}: {outcome.detail}"
    return outcome


def take(worker: Worker) -> Iterator[Row]:
    """The rows of the lines that have arrived."""
    *lines, worker.received = worker.received.split(b"\n")
    for line in lines:
        outcome = json.loads(line)
        now = time.monotonic()
        yield Row(full_name(worker.ops.pop(0)), **outcome, seconds=now - worker.started)
        worker.started = now


def crashed(worker: Worker, note: str) -> Row:
    """The row of the operator during which a child, which has ended, died."""
    _, status = os.waitpid(worker.pid, 0)
    with worker.log as log:
        log.seek(0)
        printed = log.read().decode(errors="replace")
    if not note:
        number = os.waitstatus_to_exitcode(status)
        note = signal.Signals(-number).name if number < 0 else f"exit code {number}"
    detail = f"{note} {printed[-300:]}".strip()
    return Row(full_name(worker.ops.pop(0)), "crash", detail, time.monotonic() - worker.started, {})


def run_all(ops: list[Any], options: argparse.Namespace) -> Iterator[Row]:
    """Runs every operator, in ``options.jobs`` processes at a time, and yields rows as they are done."""
    waiting = [ops[begin : begin + options.batch] for begin in range(0, len(ops), options.batch)]
    running: dict[int, Worker] = {}
    while waiting or running:
        while waiting and len(running) < options.jobs:
            worker = start(waiting.pop(0), options)
            running[worker.pipe] = worker
        ready, _, _ = select.select(list(running), [], [], 1.0)
        for pipe, worker in list(running.items()):
            data = os.read(pipe, 1 << 16) if pipe in ready else None
            worker.received += data or b""
            yield from take(worker)
            late = time.monotonic() - worker.started > options.timeout
            if late and worker.ops:
                os.kill(worker.pid, signal.SIGKILL)
            if data != b"" and not late:
                continue
            del running[pipe]
            os.close(pipe)
            if not worker.ops:
                os.waitpid(worker.pid, 0)
                continue
            yield crashed(worker, f"not finished after {options.timeout:.0f} s" if late else "")
            if worker.ops:
                waiting.insert(0, worker.ops)


def kept_rows(path: Path, options: argparse.Namespace) -> list[Row]:
    """The rows of an earlier run, whose file is begun if there is none. Its first line has what decides results; exits
    if that differs from ``options``. A last line that is not whole is cut off."""
    settings = json.dumps({name: getattr(options, name) for name in SETTINGS})
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(settings + "\n")
    text = path.read_text()
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        path.write_text(whole)
    first, *lines = whole.splitlines()
    if first != settings:
        sys.exit(f"{path} is of a run with {first}, this one has {settings}")
    return [Row(**json.loads(line)) for line in lines]


def report(rows: list[Row], seconds: float, options: argparse.Namespace) -> float:
    """Prints the summary, writes the JSON file and returns the native share in percent."""
    counts = Counter(row.kind for row in rows)
    counted = len(rows) - counts["skipped"]
    share = 100 * counts["native"] / counted if counted else 0.0
    for kind in ("wrong", "crash", "error", "unseen", "host"):
        for row in sorted((row for row in rows if row.kind == kind), key=lambda row: row.name):
            print(f"{kind:<6} {row.name}: {' '.join(row.detail.split())[: options.width]}")
    print(f"\n{len(rows)} {options.dtype} OpInfos, {options.way}, first {options.samples} samples, {seconds:.0f} s")
    print("  ".join(f"{kind} {counts[kind]}" for kind in KINDS) + f"  native share {share:.1f} %")
    options.output.parent.mkdir(parents=True, exist_ok=True)
    summary = {"torch": torch.__version__, "dtype": options.dtype, "counts": counts, "native_percent": share}
    options.output.write_text(json.dumps(summary | {"rows": [asdict(row) for row in rows]}, indent=1) + "\n")
    return share


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--match", default="", help="regular expression over names such as add or nn.functional.relu")
    parser.add_argument("--check", choices=("values", *CHECKS), default="values")
    parser.add_argument("--way", choices=opinfo_ways.WAYS, default="called", help="how values are computed")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--device", help="default: Outboard's device")
    parser.add_argument("--samples", type=int, default=3, help="sample inputs per operator")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time")
    parser.add_argument("--batch", type=int, default=32, help="operators per process")
    parser.add_argument("--width", type=int, default=200, help="characters of what is wrong")
    parser.add_argument("--timeout", type=float, default=180, help="seconds per operator")
    parser.add_argument("--min-native", type=float, default=70, help="least native share, in percent")
    parser.add_argument("--resume", type=Path, help="a file of rows, to go on from and to add to")
    parser.add_argument("--output", type=Path, default=Path("out/opinfo.json"))
    options = parser.parse_args()
    for module in PRELOAD:
        with contextlib.suppress(ImportError):
            __import__(module)
    ops = selected(options.match, getattr(torch, options.dtype), options.check == "versions")
    begin = time.monotonic()
    names = set(map(full_name, ops))
    rows = [row for row in kept_rows(options.resume, options) if row.name in names] if options.resume else []
    done = {row.name for row in rows}
    with options.resume.open("a") if options.resume else contextlib.nullcontext() as kept:
        for row in run_all([op for op in ops if full_name(op) not in done], options):
            rows.append(row)
            if kept is not None:
                print(json.dumps(asdict(row)), file=kept, flush=True)
            print(f"[{len(rows):>3}/{len(ops)}] {row.kind:<7} {row.seconds:5.1f} s  {row.name}", flush=True)
            if row.kind == "wrong":
                print(row.detail, flush=True)
    share = report(rows, time.monotonic() - begin, options)
    bad = any(row.kind in ("wrong", "crash", "unseen") for row in rows)
    return 1 if bad or share < options.min_native else 0


if __name__ == "__main__":
    sys.exit(main())
