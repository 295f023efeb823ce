# SPDX-License-Identifier: Apache-2.0
"""An OpenCL runtime from pip is found where the system has none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from outboard.drivers import available, opencl_runtime, select


@pytest.fixture
def bare_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A process without ICDs, whose environment has an empty ``lib`` directory; returns that directory."""
    library_directory = tmp_path / "lib"
    library_directory.mkdir()
    monkeypatch.setattr(opencl_runtime, "_SYSTEM_VENDORS", ())
    monkeypatch.setattr(opencl_runtime, "_pip_library_directory", lambda: library_directory)
    for variable in ("OCL_ICD_VENDORS", "OCL_ICD_FILENAMES"):
        monkeypatch.setenv(variable, "")
        monkeypatch.delenv(variable)
    return library_directory


def test_the_runtime_of_pip_is_named_to_the_loader(
    bare_system: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opencl_runtime, "_load", lambda libraries: [])
    assert opencl_runtime.expose(tmp_path) == []
    icd = Path(os.environ["OCL_ICD_VENDORS"]) / "intel-cpu.icd"
    assert icd.read_text() == f"{bare_system}/libintelocl.so\n"
    assert os.environ["OCL_ICD_FILENAMES"] == f"{bare_system}/libintelocl.so"


def test_missing_parts_are_a_problem(bare_system: Path) -> None:
    (problem,) = opencl_runtime.expose(None)
    assert "pip install intel-opencl-rt intel-cmplr-lib-rt" in problem and "libsvml.so" in problem
    assert "OCL_ICD_VENDORS" not in os.environ


def test_a_choice_of_the_user_stands(bare_system: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCL_ICD_VENDORS", "/chosen")
    assert opencl_runtime.expose(tmp_path) == []
    assert os.environ["OCL_ICD_VENDORS"] == "/chosen" and "OCL_ICD_FILENAMES" not in os.environ


def test_drivers_are_selected_by_name_or_path(tmp_path: Path) -> None:
    drivers, problems = available()
    assert {"opencl", "sim"} <= set(drivers) and problems == []
    everything, _ = select(None, preferred="opencl")
    assert everything[0] == drivers["opencl"]() and drivers["sim"]() not in everything
    own = tmp_path / "mine.so"
    own.touch()
    assert select(f"sim, {own}") == ([drivers["sim"](), str(own)], [])
    libraries, problems = select("nonsense")
    assert libraries == [] and "nonsense" in problems[0]
