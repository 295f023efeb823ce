# SPDX-License-Identifier: Apache-2.0
"""Examines the installation: versions, drivers, OpenCL vendors, devices, cache, and a computation on each device.

Exit code 0 if every device computes correctly, 1 if there is no device or one does not work.
"""

from __future__ import annotations

import argparse
import os

from outboard import drivers
from outboard.cli import inspection
from outboard.cli.devices import describe

HELP = "say what is installed, whether it works, and what to do if it does not"

NO_DEVICE_ADVICE = (
    "No device was found. Install your hardware vendor's driver; or, for the processor, a compiler, without root "
    "(`pip install ziglang`), or an OpenCL runtime (`apt-get install pocl-opencl-icd ocl-icd-libopencl1` on "
    "Debian or Ubuntu)."
)


class Report:
    """Prints sections and collects findings."""

    def __init__(self) -> None:
        self.findings: list[str] = []

    def section(self, title: str) -> None:
        print(f"\n{title}")

    def line(self, name: str, value: object) -> None:
        print(f"  {name + ':':<13} {value}")


def configure(parser: argparse.ArgumentParser) -> None:
    """This command has no options."""


def run(options: argparse.Namespace) -> int:
    """Prints the report and returns the exit code."""
    report = Report()
    _versions(report)
    _drivers(report)
    usable = _devices(report)
    _cache(report)
    report.findings = [*inspection.problems(), *inspection.features_off(), *report.findings]
    report.section("what is wrong")
    for finding in report.findings or ["nothing"]:
        print(f"  - {finding}")
    return 0 if usable else 1


def _versions(report: Report) -> None:
    print("outboard doctor")
    for name, version in inspection.versions().items():
        report.line(name, version)
    report.line("device name", inspection.device_name())
    _profile(report)
    if inspection.autoloads():
        report.line("autoload", "yes")
    else:
        report.line("autoload", "no")
        report.findings.append(
            "PyTorch does not load Outboard by itself: TORCH_DEVICE_BACKEND_AUTOLOAD=0, or outboard is not installed "
            "in this environment. Until that changes, `import outboard` after torch."
        )
    for name, value in inspection.environment().items():
        report.line(name, value)


def _profile(report: Report) -> None:
    choice = inspection.profile()
    if choice is None:
        report.line("profile", "none: Outboard could not be loaded")
        return
    report.line("profile", f"{choice.name} ({choice.reason})")


def _drivers(report: Report) -> None:
    report.section("drivers")
    available, _ = drivers.available()
    for name, path_of in available.items():
        report.line(name, path_of())
    chosen, _ = drivers.select(os.environ.get("OUTBOARD_DRIVER"))
    for library in sorted(set(chosen) - {path_of() for path_of in available.values()}):
        report.line("OUTBOARD_DRIVER", library)
    report.line("NVRTC of cuda", inspection.cuda_compiler() or "of the system, or from `pip install nvidia-cuda-nvrtc`")
    report.line("compiler of host", inspection.host_compiler() or "on PATH, or from `pip install ziglang`")
    report.section("OpenCL")
    report.line("loader", inspection.opencl_loader() or "not loaded")
    files = inspection.icd_files()
    for file, library in files.items():
        report.line("vendor", f"{file} -> {library}")
    if not files:
        report.line("vendors", "none")


def _devices(report: Report) -> bool:
    """Lists and tests the devices; True if there is one and all work."""
    report.section("devices")
    found = inspection.device_reports()
    if not found:
        print("  none")
        if not inspection.problems():
            report.findings.append(NO_DEVICE_ADVICE)
        return False
    for reason in inspection.passed_over():
        print(f"  not used: {reason}")
    usable = True
    for each in found:
        print(f"  {describe(each)}")
        if each.properties["library"]:
            print(f"    ready functions of {each.properties['library']}")
        failure = inspection.smoke_test(each.device)
        print(f"    add on the device, compared with the CPU: {failure or 'right'}")
        if failure is not None:
            usable = False
            report.findings.append(f"{each.device} does not work: {failure}")
    return usable


def _cache(report: Report) -> None:
    report.section("cache")
    cache = inspection.cache()
    if cache.directory is None:
        report.line("directory", "none: plans are compiled again in each process")
        return
    report.line("directory", cache.directory)
    report.line("contents", f"{cache.files} files, {inspection.format_bytes(cache.size)}")
