# SPDX-License-Identifier: Apache-2.0
"""Failures from outside: drivers, caches, processes and threads. Each runs in a process of its own."""

from __future__ import annotations

import subprocess
import textwrap
from pathlib import Path

import pytest
from processes import run_program

PRELUDE = """
import ctypes, os, sys, torch
device = torch._C._get_privateuse1_backend_name()
def works():
    torch.testing.assert_close((torch.arange(4.0, device=device) * 3 - 1).cpu(), torch.arange(4.0) * 3 - 1)
"""


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs code in a process of its own; fails the test if it hangs for two minutes."""
    return run_program(["-c", PRELUDE + textwrap.dedent(code)], environment=environment)


def passes(code: str, **environment: str) -> str:
    """Runs code that must exit with 0; returns what it printed."""
    result = run(code, **environment)
    assert result.returncode == 0, f"exit code {result.returncode}\n{result.stdout}\n{result.stderr}"
    return result.stdout


@pytest.fixture
def faults(device: str) -> dict[str, str]:
    """Environment in which the OpenCL driver fails on request, through ``fail(function, nth, status)``."""
    import outboard.drivers

    folder = Path(outboard.drivers.__file__).parent
    return {
        "OUTBOARD_DRIVER": str(folder / "liboutboard_faults.so"),
        "OUTBOARD_FAULTS_DRIVER": str(folder / "liboutboard_opencl.so"),
        "OUTBOARD_TEST_FAULTS": str(folder / "liboutboard_faults.so"),
    }


FAIL = """
library = ctypes.CDLL(os.environ["OUTBOARD_TEST_FAULTS"])
def fail(function, nth, status):
    library.outboard_faults_fail(function.encode(), ctypes.c_uint64(nth), status)
def raises(kind, call):
    try:
        call()
    except kind as error:
        return str(error)
    raise SystemExit(f"no {kind.__name__}")
works()
"""


def test_launch_failure(faults: dict[str, str]) -> None:
    passes(
        FAIL
        + """
x = torch.ones(1000, device=device)
y = x + 1
torch.accelerator.synchronize()
fail("launch", 1, 7)
assert "injected" in raises(RuntimeError, lambda: (x + 1).cpu())  # launches are handed to the driver later
torch.testing.assert_close((x + 1).cpu(), y.cpu())
works()
""",
        **faults,
    )


def test_launch_failure_is_found_where_it_happens(faults: dict[str, str]) -> None:
    passes(
        FAIL
        + """
x = torch.ones(1000, device=device)
y = x + 1
torch.accelerator.synchronize()
fail("launch", 1, 7)
assert "injected" in raises(RuntimeError, lambda: x + 1)
works()
""",
        OUTBOARD_LAUNCH_BLOCKING="1",
        **faults,
    )


def test_driver_out_of_memory(faults: dict[str, str]) -> None:
    passes(
        FAIL
        + """
fail("memory_alloc", 1, 3)  # the cache is freed and the allocation retried
x = torch.ones(1 << 22, device=device)
works()
""",
        **faults,
    )


def test_out_of_memory_is_torchs(faults: dict[str, str]) -> None:
    passes(
        FAIL
        + """
text = raises(torch.OutOfMemoryError, lambda: torch.ones(1 << 26, device=device).add_(1))
assert "OUTBOARD_MEMORY_LIMIT" in text and "MiB" in text, text
works()
""",
        OUTBOARD_MEMORY_LIMIT="64MiB",
        **faults,
    )


def test_kernel_that_fails_to_build(faults: dict[str, str], tmp_path: Path) -> None:
    passes(
        FAIL
        + """
x = torch.randn(3, 5).to(device)
y = torch.randn(3, 5).to(device)
fail("program_build", 1, 5)
assert "injected" in raises(RuntimeError, lambda: torch.atan2(x, y).cpu())  # built while the process goes on
torch.testing.assert_close(torch.atan2(x, y).cpu(), torch.atan2(x.cpu(), y.cpu()))
works()
""",
        OUTBOARD_CACHE_DIR=str(tmp_path),
        **faults,
    )


def test_kernel_that_fails_to_build_is_found_where_it_is_called(faults: dict[str, str], tmp_path: Path) -> None:
    passes(
        FAIL
        + """
x = torch.randn(3, 5).to(device)
fail("program_build", 1, 5)
assert "injected" in raises(RuntimeError, lambda: torch.atan(x))
torch.testing.assert_close(torch.atan(x).cpu(), torch.atan(x.cpu()))
""",
        OUTBOARD_CACHE_DIR=str(tmp_path),
        OUTBOARD_LAUNCH_BLOCKING="1",
        **faults,
    )


@pytest.mark.parametrize("function", ["stream_wait", "event_record", "stream_create"])
def test_driver_failures_raise(faults: dict[str, str], function: str) -> None:
    passes(
        FAIL
        + f"""
x = torch.randn(64, device=device)
expected = (x * 2).cpu()
fail({function!r}, 1, 7)
def use():
    y = x * 2
    stream = torch.Stream(device)
    stream.record_event()
    y.cpu()
    torch.randn(5).to(device)
    torch.accelerator.synchronize()
raises(RuntimeError, use)
torch.testing.assert_close((x * 2).cpu(), expected)
works()
""",
        **faults,
    )


def test_corrupt_cache(tmp_path: Path) -> None:
    code = """
x = torch.randn(3, 7, device=device)
torch.testing.assert_close(x.sigmoid().cpu(), x.cpu().sigmoid())
print(int(getattr(torch, device).compile_stats()["compiled"]))
works()
"""
    assert int(passes(code, OUTBOARD_CACHE_DIR=str(tmp_path))) > 0
    assert int(passes(code, OUTBOARD_CACHE_DIR=str(tmp_path))) == 0
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert files
    for number, path in enumerate(files):
        data = path.read_bytes()
        path.write_bytes([b"", b"garbage", data[: len(data) // 2], data[:-3] + b"xyz"][number % 4])
    assert int(passes(code, OUTBOARD_CACHE_DIR=str(tmp_path))) > 0
    assert int(passes(code, OUTBOARD_CACHE_DIR=str(tmp_path))) == 0


def test_unwritable_cache() -> None:
    passes("works()", OUTBOARD_CACHE_DIR="/proc/no/such/place")


def test_fork_after_use() -> None:
    passes("""
works()
x = torch.ones(3, device=device)
pid = os.fork()
if pid == 0:
    try:
        x + 1
    except RuntimeError as error:
        os._exit(0 if "spawn" in str(error) else 3)
    os._exit(4)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
works()
""")


def test_fork_before_use() -> None:
    passes("""
pid = os.fork()
if pid == 0:
    torch.ones(3)
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
works()
""")


def test_thread_exits_with_queued_work() -> None:
    passes("""
import threading
made = []
def work():
    x = torch.ones(100_000, device=device)
    for _ in range(50):
        x = x * 1.0001
    made.append(x)
threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
expected = torch.ones(1)
for _ in range(50): expected = expected * 1.0001
for x in made:
    torch.testing.assert_close(x[:1].cpu(), expected)
works()
""")


def test_exit_with_live_tensors_and_queued_work() -> None:
    passes("""
keep = [torch.randn(200_000, device=device) for _ in range(4)]
for _ in range(20):
    keep = [t * 1.01 for t in keep]
torch.live_at_exit = keep
""")


def test_exit_by_exception_with_work() -> None:
    result = run("""
x = torch.randn(200_000, device=device)
for _ in range(20): x = x * 1.01
raise SystemExit(7)
""")
    assert result.returncode == 7, result.stderr


def test_fallback_can_be_forbidden(device: str) -> None:
    out = passes(
        """
import warnings
warnings.simplefilter("ignore")
a = torch.eye(3, device=device)
try:
    torch.linalg.eigh(a)
except NotImplementedError as error:
    assert "eigh" in str(error), error
    print("forbidden")
works()
""",
        OUTBOARD_FALLBACK="error",
    )
    assert "forbidden" in out


def test_fallback_is_counted_and_logged_once(device: str) -> None:
    result = run("""
import warnings
warnings.simplefilter("always")
a = torch.eye(3, device=device) * 2
for _ in range(3):
    values, vectors = torch.linalg.eigh(a)
torch.testing.assert_close(values.cpu(), torch.full((3,), 2.0))
counts = getattr(torch, device).fallbacks()
assert [n for n in counts if "eigh" in n], counts
assert sum(c for n, c in counts.items() if "eigh" in n) == 3, counts
getattr(torch, device).reset_fallbacks()
assert getattr(torch, device).fallbacks() == {}
""")
    assert result.returncode == 0, result.stderr
    assert result.stderr.count("eigh") <= 2  # one log line, which may name the operator and its line of source


def test_fallback_policy_is_checked() -> None:
    code = "works(); import outboard.activation; print(outboard.activation.problems())"
    assert "OUTBOARD_FALLBACK" in passes(code, OUTBOARD_FALLBACK="perhaps")
