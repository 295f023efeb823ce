# SPDX-License-Identifier: Apache-2.0
"""Runs programs as several ranks, and tells how that ended: well, with a finding, with a crash, or not at all."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tools.fuzz_collectives import transports
from tools.fuzz_collectives.program import Program

ROOT = Path(__file__).parents[2]
#: Seconds from the end of the ranks' own patience to when they are taken for hanging.
_MORE = 3.0


@dataclass(frozen=True)
class Conditions:
    """How programs are run. ``patience``: seconds that a rank waits for others. ``grace``: seconds that others have to
    say what they found when one has; their stacks are told if there are any."""

    transport: str
    ranks: int
    patience: float = 20.0
    fault: str = ""
    grace: float = 1.5


@dataclass
class Outcome:
    """How a run ended. ``kind`` is empty where nothing was found; ``finished``: programs that all ranks have done."""

    kind: str = ""
    program: int = -1
    finished: int = 0
    texts: list[str] = field(default_factory=list)


def run(programs: Sequence[Program], conditions: Conditions) -> Outcome:
    """Runs programs one after the other, in processes of their own."""
    with tempfile.TemporaryDirectory(prefix="outboard-collectives-") as name:
        folder = Path(name)
        started = _by_mpirun if conditions.transport == "mpi" else _forked
        ranks = started(folder, programs, conditions)
        try:
            hung = _watch(folder, ranks, conditions)
        finally:
            codes = [rank.end() for rank in ranks]
        return _outcome(folder, codes, conditions.ranks, len(programs), hung)


class _Child:
    """A process that was forked from this one."""

    def __init__(self, process: int) -> None:
        self.process, self.code = process, None

    code: int | None

    def poll(self) -> int | None:
        """Its exit status, or None."""
        if self.code is None:
            ended, status = os.waitpid(self.process, os.WNOHANG)
            if ended:
                self.code = os.waitstatus_to_exitcode(status)
        return self.code

    def end(self) -> int:
        """Its exit status; it is killed if it has none."""
        if self.poll() is None:
            os.kill(self.process, signal.SIGKILL)
            self.code = os.waitstatus_to_exitcode(os.waitpid(self.process, 0)[1])
        assert self.code is not None
        return self.code

    def tell(self, number: signal.Signals) -> None:
        """Sends it a signal."""
        os.kill(self.process, number)


class _Launched(_Child):
    """mpirun, which ends its ranks when it ends."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        super().__init__(process.pid)
        self._popen = process

    def poll(self) -> int | None:
        return self._popen.poll()

    def end(self) -> int:
        if self.poll() is None:
            self._popen.terminate()
        return self._popen.wait()


def _forked(folder: Path, programs: Sequence[Program], conditions: Conditions) -> list[_Child]:
    """Forks: importing PyTorch and its compiler costs more than most runs."""
    import torch._dynamo.repro.after_dynamo
    import torch._functorch._aot_autograd.subclass_codegen
    import torch._inductor.compile_fx  # noqa: F401

    from tools.fuzz_collectives import rank as running

    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port()), "WORLD_SIZE": str(conditions.ranks)}
    children = []
    for rank in range(conditions.ranks):
        sys.stdout.flush()
        process = os.fork()
        if process == 0:
            code = 1
            try:
                _become(folder, rank, group | transports.environment(conditions.transport, rank))
                running.main(folder, programs, conditions.patience, conditions.fault)
                code = 0
            finally:
                sys.stderr.flush()
                os._exit(code)
        children.append(_Child(process))
    return children


def _become(folder: Path, rank: int, variables: dict[str, str]) -> None:
    """What a process has before it begins as a rank."""
    os.environ.update(variables | {"RANK": str(rank), "LOCAL_RANK": str(rank)})
    log = os.open(folder / f"rank{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)


def _by_mpirun(folder: Path, programs: Sequence[Program], conditions: Conditions) -> list[_Child]:
    (folder / "programs.jsonl").write_text("".join(program.to_json() + "\n" for program in programs))
    variables = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port()), "OMP_NUM_THREADS": "1"}
    variables |= transports.environment("mpi", 0) | {"TORCH_DEVICE_BACKEND_AUTOLOAD": "1"}
    command = [Path(sys.executable).parent / "mpirun", "--oversubscribe", "--allow-run-as-root"]
    command += ["-n", str(conditions.ranks), sys.executable, "-m", "tools.fuzz_collectives.rank"]
    with (folder / "rank0.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, folder, str(conditions.patience), conditions.fault],
            env=os.environ | variables, stdout=log, stderr=log, cwd=ROOT,
        )  # fmt: skip
    return [_Launched(process)]


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _watch(folder: Path, ranks: Sequence[_Child], conditions: Conditions) -> bool:
    """Waits until all have ended, or one has found something, or none says anything any more: returns whether it is
    the last, when all have written where they are."""
    heard, size, found_at = time.monotonic(), -1, 0.0
    while any(rank.poll() is None for rank in ranks):
        time.sleep(0.02)
        now, written = time.monotonic(), sum(path.stat().st_size for path in folder.glob("*.jsonl"))
        if written != size:
            heard, size = now, written
        if any(rank.poll() not in (None, 0) for rank in ranks):
            found_at = found_at or now
            if now - found_at >= conditions.grace:
                _ask_for_stacks(ranks if conditions.grace else ())
                return False
        if now - heard > conditions.patience + _MORE:
            _ask_for_stacks(ranks)
            return True
    return False


def _ask_for_stacks(ranks: Sequence[_Child]) -> None:
    left = [rank for rank in ranks if rank.poll() is None]
    for rank in left:
        rank.tell(signal.SIGUSR1)
    time.sleep(0.5 if left else 0.0)


def _messages(path: Path) -> Iterator[dict[str, Any]]:
    for line in path.read_text().splitlines() if path.exists() else ():
        with contextlib.suppress(json.JSONDecodeError):  # the last one of a process that was killed
            yield json.loads(line)


def _outcome(folder: Path, codes: Sequence[int], ranks: int, programs: int, hung: bool) -> Outcome:
    told = [list(_messages(folder / f"rank{rank}.jsonl")) for rank in range(ranks)]
    reached = [max((message.get("program", 0) for message in messages), default=0) for messages in told]
    if not any(codes) and not hung:
        return Outcome(finished=programs)
    findings = sorted(
        (
            message | {"rank": rank}
            for rank, messages in enumerate(told)
            for message in messages
            if "finding" in message
        ),
        key=lambda message: (message["finding"] != "difference", message["time"]),
    )
    if findings:
        first = findings[0]
        texts = [f"rank {m['rank']}: {m['finding']}: {m['text']}" for m in findings] + [first["trace"]]
        texts += _silent_ranks(folder, told) if first["finding"] != "difference" else []
        guilty = first["program"] if first["finding"] == "difference" else min(reached)
        return Outcome(first["finding"], guilty, guilty, texts)
    texts = [f"rank {rank}: exit status {codes[min(rank, len(codes) - 1)]}" for rank in range(ranks)]
    texts += _silent_ranks(folder, told)
    return Outcome("hang" if hung else "crash", min(reached), min(reached), texts)


def _silent_ranks(folder: Path, told: Sequence[Sequence[dict[str, Any]]]) -> list[str]:
    """Where ranks were that found nothing, and what they wrote, which ends with their stacks."""
    texts = []
    for rank, messages in enumerate(told):
        if messages and "finding" in messages[-1]:
            continue
        log = folder / f"rank{rank}.log"
        written = log.read_text(errors="replace")[-2500:] if log.exists() else ""
        texts.append(f"rank {rank} was at {messages[-1] if messages else 'the start'}\n{written}")
    return texts
