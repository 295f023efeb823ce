# SPDX-License-Identifier: Apache-2.0
"""Builds the wheel, and names the systems and the PyTorch that it is for. See ``make wheel``.

Run by a Python that has the build requirements and PyTorch; the wheel is for this Python and this PyTorch. Its version
names the release (``0.1.0+torch2.15``): wheels for several lie in one folder, and pip finds the one that goes with the
PyTorch that it is asked for.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import manylinux  # noqa: E402
import progress  # noqa: E402
import torch_requirement  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent


def build(folder: Path) -> Path:
    """Builds a wheel into a folder; returns its path."""
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "-v", "--no-deps"]
    options = [torch_requirement.build_folder(importlib.metadata.version("torch")), *torch_requirement.joined_files()]
    command = [*pip, "--no-build-isolation", *options, "-w", str(folder), str(ROOT)]
    progress.run_all([(command, "building the wheel")], ROOT, "[wheel]")
    return next(folder.glob("outboard-*.whl"))


def requirements(wheel: Path) -> dict[str, manylinux.Version]:
    """What the libraries and programs of a wheel need of the system. Raises manylinux.NotPortable."""
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
        files = [file for file in Path(folder).rglob("*") if file.is_file() and manylinux.is_elf(file)]
        return manylinux.requirements(files)


def retag(wheel: Path, platform_tag: str) -> Path:
    """Gives a wheel the tag of a platform; returns its new path."""
    command = [sys.executable, "-m", "wheel", "tags", "--remove", "--platform-tag", platform_tag, str(wheel)]
    name = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1]
    return wheel.with_name(name)


def finish(wheel: Path) -> Path:
    """Adds plans and programs of common operators to a wheel, made by what is in it (see ``ship_plans``), and the
    release of PyTorch to its version; returns its new path."""
    with tempfile.TemporaryDirectory() as folder:
        run = [sys.executable, "-m", "wheel"]
        subprocess.run([*run, "unpack", "--dest", folder, str(wheel)], check=True, capture_output=True)
        (content,) = Path(folder).iterdir()
        environment = os.environ | {"PYTHONPATH": str(content)}
        command = [sys.executable, str(ROOT / "tools" / "ship_plans.py"), str(content / "outboard" / "plans")]
        subprocess.run(command, env=environment, cwd=folder, check=True)
        name_release(content)
        wheel.unlink()
        subprocess.run([*run, "pack", "--dest-dir", str(wheel.parent), str(content)], check=True, capture_output=True)
    return next(wheel.parent.glob("outboard-*.whl"))


def name_release(content: Path) -> None:
    """Has the version of an unpacked wheel name the release of PyTorch that it was built with."""
    (described,) = content.glob("outboard-*.dist-info")
    _, version = described.stem.split("-")
    named = f"{version}+torch{torch_requirement.release(importlib.metadata.version('torch'))}"
    metadata = described / "METADATA"
    metadata.write_text(metadata.read_text().replace(f"\nVersion: {version}\n", f"\nVersion: {named}\n", 1))
    described.rename(content / f"outboard-{named}.dist-info")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="folder for the wheel")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        wheel = build(Path(folder))
        needs = requirements(wheel)
        wheel = retag(wheel, manylinux.tag(needs, platform.machine()))
        wheel = finish(wheel)
        target = options.out.resolve() / wheel.name
        target.write_bytes(wheel.read_bytes())
    print(f"{target}: {target.stat().st_size / 1e6:.1f} MB; needs {manylinux.described(needs)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
