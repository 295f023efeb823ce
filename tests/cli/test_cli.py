# SPDX-License-Identifier: Apache-2.0
"""The command ``outboard`` as a user meets it: output and exit code."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from processes import run_program

from outboard import drivers
from outboard.cli import main


def outboard(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs the command in a process of its own."""
    return run_program(["-m", "outboard.cli", *arguments], environment=environment)


def test_devices_lists_every_device(device: str) -> None:
    result = outboard("devices")
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert [line.split()[0] for line in lines] == [
        f"{device}:{index}" for index in range(torch.get_device_module(device).device_count())
    ]


def test_devices_as_json(device: str) -> None:
    found = json.loads(outboard("devices", "--json").stdout)
    assert found[0]["device"] == f"{device}:0"
    assert found[0]["properties"]["total_memory"] > 0


def test_devices_without_hardware() -> None:
    result = outboard("devices", OUTBOARD_OPENCL_LIBRARY="/nonexistent", OUTBOARD_HOST_COMPILER="/nonexistent")
    assert result.returncode == 1
    assert "outboard doctor" in result.stdout


def test_doctor_approves_a_working_installation(device: str, tmp_path: Path) -> None:
    result = outboard("doctor", OUTBOARD_CACHE_DIR=str(tmp_path))
    assert result.returncode == 0, result.stdout + result.stderr
    for expected in (torch.__version__, f"{device}:0", "compared with the CPU: right", str(tmp_path), "- nothing"):
        assert expected in result.stdout


def test_doctor_without_hardware_says_what_to_install() -> None:
    result = outboard("doctor", OUTBOARD_OPENCL_LIBRARY="/nonexistent", OUTBOARD_HOST_COMPILER="/nonexistent")
    assert result.returncode == 1
    assert "nstall" in result.stdout.split("what is wrong")[1]


def test_doctor_without_opencl_vendor(tmp_path: Path) -> None:
    result = outboard("doctor", OCL_ICD_VENDORS=str(tmp_path), OCL_ICD_FILENAMES="", OUTBOARD_HOST_COMPILER="/none")
    assert result.returncode == 1
    assert "vendors:      none" in result.stdout
    assert "nstall" in result.stdout.split("what is wrong")[1]


def test_doctor_names_a_missing_driver(tmp_path: Path) -> None:
    result = outboard("doctor", OUTBOARD_DRIVER="no-such-driver")
    assert result.returncode == 1
    assert "no-such-driver" in result.stdout.split("what is wrong")[1]


def test_doctor_lists_a_driver_that_is_given_by_its_path(tmp_path: Path) -> None:
    library = tmp_path / "libmydriver.so"
    shutil.copy(drivers.sim(), library)
    result = outboard("doctor", OUTBOARD_DRIVER=str(library))
    listed = result.stdout.partition("\ndrivers\n")[2].partition("\nOpenCL\n")[0]
    assert str(library) in listed, result.stdout


def test_doctor_reports_a_cache_that_cannot_be_used(tmp_path: Path) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.write_text("")
    result = outboard("doctor", OUTBOARD_CACHE_DIR=str(in_the_way))
    assert result.returncode == 0, "a device without cache still works"
    assert str(in_the_way) in result.stdout.split("what is wrong")[1]


def test_doctor_reports_an_unknown_profile() -> None:
    result = outboard("doctor", OUTBOARD_PROFILE="no-such-profile")
    assert result.returncode == 1
    assert "no-such-profile" in result.stdout.split("what is wrong")[1]


def test_doctor_notes_that_autoload_is_off(device: str) -> None:
    result = outboard("doctor", TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "import outboard" in result.stdout.split("what is wrong")[1]


@pytest.mark.parametrize("arguments", [[], ["no-such-command"], ["devices", "--no-such-option"]])
def test_wrong_usage_exits_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    assert "usage: outboard" in capsys.readouterr().err
