# SPDX-License-Identifier: Apache-2.0
"""The line that a person sees while much is compiled or built."""

from __future__ import annotations

import io
import time

import pytest

from outboard.compiler import progress
from tests.conftest import RunPython


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_line", progress._Line())
    monkeypatch.setattr(progress, "QUIET_SECONDS", 0.05)
    monkeypatch.setattr(progress, "LOG_QUIET_SECONDS", 0.05)
    monkeypatch.setattr(progress, "INTERVAL", 0.01)
    monkeypatch.setattr(progress, "PAUSE", 0.05)
    monkeypatch.delenv("OUTBOARD_PROGRESS", raising=False)


def wait_until_done() -> None:
    end = time.monotonic() + 10
    while progress._line.watched:
        assert time.monotonic() < end
        time.sleep(0.01)


def test_long_compilations_show_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    for _ in range(3):
        with progress.task("aten::add"):
            time.sleep(0.05)
    wait_until_done()
    text = terminal.getvalue()
    assert "3 graphs compiled" in text
    assert "last aten::add" in text
    assert text.count("\n") == 1


def test_an_exception_has_lines_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while programs are still built: no line is left on the screen, and none comes before the traceback."""
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    until = time.monotonic() + 0.3
    monkeypatch.setattr(progress, "_programs", lambda: (0, 1 if time.monotonic() < until else 0))
    with pytest.raises(KeyboardInterrupt), progress.task("aten::add"):
        time.sleep(0.1)
        monkeypatch.setattr(progress, "QUIET_SECONDS", 1.0)
        raise KeyboardInterrupt
    assert terminal.getvalue().endswith("\n")
    terminal.write("Traceback")
    wait_until_done()
    assert terminal.getvalue().endswith("\nTraceback")


def test_building_programs_shows_too(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    until = time.monotonic() + 0.3
    monkeypatch.setattr(progress, "_programs", lambda: (4, 2) if time.monotonic() < until else (6, 0))
    progress.programs()
    wait_until_done()
    assert "0 programs built, 2 waiting" in terminal.getvalue()
    assert "2 programs built" in terminal.getvalue()


def test_short_ones_show_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setattr(progress, "QUIET_SECONDS", 5.0)
    with progress.task("aten::add"):
        pass
    wait_until_done()
    assert terminal.getvalue() == ""


def test_logs_have_a_line_when_it_begins_to_be_long_and_one_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    log = io.StringIO()
    monkeypatch.setattr("sys.stderr", log)
    for _ in range(4):
        with progress.task("aten::add"):
            time.sleep(0.05)
    wait_until_done()
    first, last = log.getvalue().splitlines()
    assert first.endswith("going on; kept for later runs")
    assert "4 graphs compiled" in last


def test_a_log_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    for stream in (None, io.StringIO()):
        monkeypatch.setattr("sys.stderr", stream)
        with progress.task("aten::add"):
            if stream is not None:
                stream.close()
            time.sleep(0.15)
        wait_until_done()


def test_nothing_is_shown_to_those_who_want_none(monkeypatch: pytest.MonkeyPatch) -> None:
    log = io.StringIO()
    monkeypatch.setattr("sys.stderr", log)
    monkeypatch.setenv("OUTBOARD_PROGRESS", "0")
    with progress.task("aten::add"):
        time.sleep(0.15)
    assert not progress._line.watched
    assert log.getvalue() == ""


def test_a_program_may_end_during_a_look(run_python: RunPython) -> None:
    """A thread within C++ that waits for Python's lock while Python ends would end the process by SIGABRT."""
    source = """
        import time
        import outboard
        from outboard import _C
        from outboard.compiler import progress

        def look():
            for _ in range(3000):
                _C.device_count()  # gives way to other threads
            return 0, 1

        progress.INTERVAL = 0
        progress._programs = look
        progress.programs()
        time.sleep(0.02)
        print("end")
    """
    assert run_python(source, OUTBOARD_PROGRESS="1") == "end\n"
