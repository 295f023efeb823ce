# SPDX-License-Identifier: Apache-2.0
"""What is compiled for the first time when the program is about to end."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import RunPython

USE = """
import atexit, os, threading, torch

device = torch._C._get_privateuse1_backend_name()

def use(x):
    y = (x * 3).sinh().cpu()
    torch.testing.assert_close(y, (x.cpu() * 3).sinh())
    print("used")

def compiled(x):
    y = torch.compile(lambda x: x.sin() + 1)(x)
    torch.testing.assert_close(y.cpu(), x.cpu().sin() + 1)
    print("compiled")
"""

THREAD = """
def work():
    threading.main_thread().join()
    x = torch.arange(4.0, device=device)
    use(x)
    compiled(x)

threading.Thread(target=work).start()
"""

AT_EXIT = """
@atexit.register
def work():
    x = torch.arange(4.0, device=device)
    use(x)
    compiled(x)
"""

FINALIZER = """
class Last:
    def __init__(self):
        self.x, self.write = torch.arange(4.0, device=device), os.write

    def __del__(self):
        y = (self.x * 3).sinh().cpu()
        self.write(1, b"right" if y[1].item() == 10.017874717712402 else b"wrong")  # print() may be gone by now

torch._last = Last()
"""


@pytest.mark.parametrize(("source", "printed"), [(THREAD, "used compiled"), (AT_EXIT, "used compiled")])
def test_first_compilation_at_the_end(run_python: RunPython, tmp_path: Path, source: str, printed: str) -> None:
    found = run_python(USE + source, check=False, OUTBOARD_CACHE_DIR=str(tmp_path))
    assert "Traceback" not in found and "Exception ignored" not in found, found
    assert found.split()[:2] == printed.split()


def test_finalizers_get_the_host(run_python: RunPython, tmp_path: Path) -> None:
    """Where Python takes its modules down nothing can be imported, so that nothing is compiled any more."""
    found = run_python(USE + FINALIZER, check=False, OUTBOARD_CACHE_DIR=str(tmp_path))
    assert "Traceback" not in found and "Exception ignored" not in found, found
    assert "right" in found
