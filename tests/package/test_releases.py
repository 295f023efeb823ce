# SPDX-License-Identifier: Apache-2.0
"""Which PyTorch the sources are for, what a build of them asks for, and the table of what was measured."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
from importlib import metadata
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import releases  # noqa: E402
import torch_requirement  # noqa: E402

from outboard import patches  # noqa: E402


def _number(release: str) -> tuple[int, ...]:
    return tuple(int(part) for part in release.split("."))


def test_the_build_takes_the_releases_that_the_sources_are_for() -> None:
    declared = re.search(r'"torch>=([\d.]+),<([\d.]+)"', (ROOT / "pyproject.toml").read_text())
    assert declared is not None
    least, beyond = declared.groups()
    known = [_number(release) for release in torch_requirement.RELEASES]
    assert known == [(2, minor) for minor in range(_number(least)[1], _number(beyond)[1])]
    assert torch_requirement.release(torch_requirement.DEFAULT) in torch_requirement.RELEASES
    assert torch_requirement.release(torch.__version__) in torch_requirement.RELEASES


def test_what_is_built_asks_for_the_release_that_built_it() -> None:
    release = torch_requirement.release(metadata.version("torch"))
    assert torch_requirement.dynamic_metadata({}, {}) == {"dependencies": [f"torch=={release}.*", "numpy"]}


def test_another_release_is_refused_when_building(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(metadata, "version", lambda name: "2.99.0+cpu")
    with pytest.raises(RuntimeError, match=r'not for 2\.99\.0\+cpu: `pip install "torch==2\.15\.\*"`'):
        torch_requirement.dynamic_metadata({}, {})
    command = [sys.executable, "tools/bootstrap.py", "--venv", str(tmp_path / "venv"), "--torch", "2.99.0"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert result.returncode == 1
    assert "Outboard's sources are for PyTorch 2.13, 2.14 and 2.15, not for 2.99.0" in result.stderr
    assert not (tmp_path / "venv").exists()


def test_free_threaded_builds_of_python_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sysconfig, "get_config_var", lambda name: 1 if name == "Py_GIL_DISABLED" else None)
    with pytest.raises(RuntimeError, match="needs a Python with its global lock"):
        torch_requirement.dynamic_metadata({}, {})


def test_another_release_is_built_for_on_demand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "version", lambda name: "2.99.0+cpu")
    monkeypatch.setenv("OUTBOARD_ANY_TORCH", "1")
    assert torch_requirement.dynamic_metadata({}, {}) == {"dependencies": ["torch==2.99.*", "numpy"]}


def test_the_table_of_patches_knows_no_release_that_is_not_built_for() -> None:
    until = {release for places in patches.TABLE.values() for place in places for release in place.until}
    assert until <= set(torch_requirement.RELEASES[:-1])
    assert set(patches.BUILT_IN_SINCE.values()) <= set(torch_requirement.RELEASES[1:])
    assert patches.BUILT_IN_SINCE.keys() <= patches.TABLE.keys()


def test_the_page_says_what_is_replaced_with_each_release() -> None:
    text = (ROOT / "docs" / "releases.md").read_text()
    for release, version in torch_requirement.VERSIONS.items():
        needed = patches.needed(version)
        functions = {place.where for places in needed.values() for place in places}
        own = "; ".join(feature for feature, first in patches.BUILT_IN_SINCE.items() if first == release)
        assert f"| {release} | {len(needed)} | {len(functions)} |{f' {own} ' if own else ' '}|\n" in text


def test_a_place_is_what_its_release_has() -> None:
    place = patches.Place("torch.nothing", "a b c", {"2.9": "a", "2.13": "a b"})
    assert place.expected("2.8.0") == place.expected("2.9.1+cu130") == "a"
    assert place.expected("2.10.0") == place.expected("2.13.1") == "a b"
    assert place.expected("2.14.0") == place.expected("2.15.0") == "a b c"


TESTS = """
import os, time, pytest

@pytest.fixture
def not_torn_down():
    yield
    raise RuntimeError

def test_good(): pass
def test_bad(): raise RuntimeError
def test_good_but_not_torn_down(not_torn_down): pass
@pytest.mark.skip
def test_not_here(): pass
def test_dies(): os._exit(3)
def test_hangs(): time.sleep(100)
def test_after(): pass
"""


def test_every_test_is_counted_once(tmp_path: Path) -> None:
    """Also one whose process dies, or does not end."""
    (tmp_path / "test_some.py").write_text(TESTS)
    log = tmp_path / "results.log"
    command = [sys.executable, "-m", "pytest", *releases.pytest_options(log, jobs=1, limit=0.5)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, timeout=100)
    counts, failures = releases.read_log(log.read_text())
    assert counts == (2, 4, 1)
    assert failures == tuple(f"test_some.py::test_{n}" for n in ("bad", "dies", "good_but_not_torn_down", "hangs"))


def test_a_test_without_a_result_has_failed() -> None:
    assert releases.read_log("collected a\ncollected b\npassed a\n") == ((1, 1, 0), ("b",))


AGAIN = """
from pathlib import Path

def test_makes(): Path("folder").mkdir()
def test_makes_it_alone(): Path("folder").mkdir()
def test_makes_what_is_there(): Path("folder").mkdir()
def test_bad(): assert False
def test_removes(): Path("folder").rmdir()
"""


def test_what_failed_runs_again_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, and a test that passes then is told from one that did the first time."""
    (tmp_path / "test_some.py").write_text(AGAIN)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setattr(releases, "ROOT", tmp_path)
    monkeypatch.setattr(releases, "LOGS", tmp_path / "logs")
    monkeypatch.setattr(releases, "SUITES", {"some": ["test_some.py"]})
    monkeypatch.setattr(releases, "environment_of", lambda torch, python: Path(sys.prefix))
    monkeypatch.setattr(releases, "said", lambda *command: "2.13.0")
    row = releases.measure("2.13.0", "3.11", "some", jobs=1)
    assert (row.passed, row.failed, row.skipped) == (3, 2, 0)
    assert row.failures == ("test_some.py::test_bad", "test_some.py::test_makes_what_is_there")
    assert row.alone == ("test_some.py::test_makes_it_alone",)


def test_a_measurement_replaces_its_row_and_nothing_else() -> None:
    text = "before\n\n" + releases._HEAD + "\nwords below\n\n- a point\n\n## after\n"
    old = releases.Row("2.13.0+cpu", "3.11", "quick", 5, 1, 0, "abc1234", "2026-01-01", ("tests.a[x `y`]",), ("b", "c"))
    other = releases.Row("2.12.0+cu130", "3.11", "full", 9, 0, 2, "abc1234", "2026-01-01")
    written = releases.page(text, [other, old])
    assert releases.read_page(written) == [old, other]
    assert written.startswith("before") and written.endswith("`\n\nwords below\n\n- a point\n\n## after\n")
    new = releases.Row("2.13.1", "3.11", "quick", 6, 0, 0, "abc1235", "2026-01-02")
    again = releases.page(written, releases.replace(releases.read_page(written), new))
    assert releases.read_page(again) == [new, other] and "What failed" not in again
    assert again.endswith("|\n\nwords below\n\n- a point\n\n## after\n")


def test_rows_are_of_pairs_that_exist() -> None:
    rows = releases.read_page((ROOT / "docs" / "releases.md").read_text())
    for row in rows:
        assert torch_requirement.release(row.torch) in torch_requirement.RELEASES
        assert row.python in releases.PYTHONS and row.suite in releases.SUITES and row.failed == len(row.failures)


@pytest.mark.parametrize(
    ("seconds", "free", "setup", "smoke", "ends", "says", "made"),
    [
        (1799, 12, 0, 0, 0, "it may take half an hour, and 1799 seconds are left", ""),
        (1800, 11, 0, 0, 0, "it takes 8 GB for a while, and 11 are free", ""),
        (1800, 12, 2, 0, 0, "it cannot be installed here, as said above", "setup"),
        (1800, 12, 0, 0, 0, None, "setup smoke"),
        (1800, 12, 0, 2, 2, None, "setup smoke"),
    ],
    ids=["no time", "no room", "no package", "passes", "fails"],
)
def test_the_newest_is_left_out_where_it_cannot_be_had_only(
    tmp_path: Path, seconds: int, free: int, setup: int, smoke: int, ends: int, says: str | None, made: str
) -> None:
    """What cannot be had is said and no failure; a build or a test that fails is one."""
    stubs = {
        "df": f"printf 'Avail\\n{free}\\n'",
        "make": f"if [[ $2 = setup-smoke ]]; then echo setup >>made; exit {setup}; fi; echo smoke >>made; exit {smoke}",
    }
    for name, text in stubs.items():
        (tmp_path / name).write_text(f"#!/bin/bash\ncd {tmp_path}\n{text}\n")
        (tmp_path / name).chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    command = [ROOT / ".ci" / "newest", str(seconds)]
    result = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)
    newest = list(torch_requirement.VERSIONS.values())[-1]
    assert (result.returncode, result.stdout) == (ends, f"Not tested with PyTorch {newest}: {says}.\n" if says else "")
    assert ((tmp_path / "made").read_text().split() if made else []) == made.split()
