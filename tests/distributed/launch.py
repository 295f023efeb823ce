# SPDX-License-Identifier: Apache-2.0
"""Starts programs as several ranks of one group."""

from __future__ import annotations

import socket
import threading
from subprocess import CompletedProcess, TimeoutExpired

import pytest
from processes import run_program


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def start(arguments: list[str], ranks: int, timeout: float = 600, **environment: str) -> list[CompletedProcess[str]]:
    """Runs Python with ``arguments`` once for each rank, with the variables that torchrun gives it, and waits.

    A rank that does not end within ``timeout`` s fails the test, with what all ranks wrote.
    """
    ended: dict[int, CompletedProcess[str]] = {}
    late: dict[int, str] = {}
    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(ranks)}

    def run(rank: int) -> None:
        own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(ranks)}
        try:
            ended[rank] = run_program(arguments, environment=group | own | environment, timeout=timeout)
        except TimeoutExpired as error:
            late[rank] = f"{error.output}\n{error.stderr!s}"

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if late:
        texts = [f"rank {rank}: did not end in {timeout} s\n{text}" for rank, text in sorted(late.items())]
        texts += [f"rank {rank}: exit code {r.returncode}\n{r.stdout}\n{r.stderr}" for rank, r in sorted(ended.items())]
        pytest.fail("\n".join(texts))
    return [ended[rank] for rank in range(ranks)]


def run_ranks(program: str, ranks: int = 2, **environment: str) -> list[str]:
    """Runs ``tests.distributed.programs.<program>`` as so many ranks, which must succeed; returns what each printed."""
    results = start(["-m", f"tests.distributed.programs.{program}"], ranks, **environment)
    if any(result.returncode for result in results):
        texts = [f"rank {rank}: exit code {r.returncode}\n{r.stdout}\n{r.stderr}" for rank, r in enumerate(results)]
        pytest.fail("\n".join(texts))
    return [result.stdout for result in results]
