# SPDX-License-Identifier: Apache-2.0
"""What ``make setup`` shows while it works, and what it does when something fails."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import time
from pathlib import Path

import pytest

TOOLS = Path(__file__).resolve().parents[2] / "tools"
sys.path.insert(0, str(TOOLS))

import progress  # noqa: E402

NINJA = "import time\nfor n in range(1, 4):\n    print(f'[{n}/3] Building CXX object a/file{n}.cpp.o', flush=True)\n"


def _python(source: str, what: str = "building") -> tuple[list[str], str]:
    return [sys.executable, "-c", source], what


def test_a_log_gets_a_line_now_and_then(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "PAUSE", 0.1)
    monkeypatch.setattr(progress, "INTERVAL", 0.02)
    pip = "print('Collecting scipy (from x)', flush=True); import time; time.sleep(0.7)"
    progress.run_all([_python(NINJA + "time.sleep(0.7)"), _python(pip, "fetching")], tmp_path, "[setup]")
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["[setup] building", "[setup] fetching"]
    assert any("building [3/3] file3.cpp.o" in line and "fetching Collecting scipy" in line for line in lines[2:]), (
        lines
    )
    assert 3 <= len(lines) < 20


def test_on_a_terminal_one_line_moves(tmp_path: Path) -> None:
    program = f"""
import sys
sys.path.insert(0, {str(TOOLS)!r})
import progress
from pathlib import Path
progress.run_all([([sys.executable, "-c", {NINJA + "time.sleep(1.2)"!r}], "building")], Path("."), "[setup]")
"""
    ours, theirs = pty.openpty()
    process = subprocess.Popen([sys.executable, "-c", program], stdout=theirs, cwd=tmp_path)
    os.close(theirs)
    shown = b""
    while True:
        try:
            part = os.read(ours, 4096)
        except OSError:  # how Linux says that the other end is closed
            break
        if not part:
            break
        shown += part
    os.close(ours)
    assert process.wait() == 0
    assert b"\r\x1b[2K[setup] 1 s: building [3/3] file3.cpp.o" in shown and shown.endswith(b"\r\x1b[2K")


def test_the_first_failure_ends_the_others_and_shows_its_last_lines(tmp_path: Path) -> None:
    start = time.monotonic()
    with pytest.raises(progress.CommandFailed, match=r"building failed \(exit code 3\)") as failure:
        progress.run_all(
            [_python("print('what is wrong'); exit(3)"), _python("import time; time.sleep(60)")], tmp_path, ""
        )
    assert "what is wrong" in str(failure.value) and time.monotonic() - start < 30
