# SPDX-License-Identifier: Apache-2.0
"""Makes everything ``make`` needs, from nothing: virtual environment, PyTorch, tools, Outboard, and an OpenCL runtime
for tests and benchmarks.

Each stage is skipped when its inputs have not changed since it last succeeded, so a second run costs under a second.
Only the standard library is used, because nothing else is there yet.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent))

import opencl_runtime  # noqa: E402
import progress  # noqa: E402
import torch_requirement  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
BUILD_REQUIREMENTS = ["cmake>=3.25", "ninja", "scikit-build-core>=1.1", "wheel>=0.40", "numpy"]
#: What the installed package is made from; a change here means a rebuild.
SOURCES = ["csrc", "include", "src", "CMakeLists.txt", "pyproject.toml"]
#: For pip: an option of the CMakeLists.txt that users' builds leave off.
WARNINGS_AS_ERRORS = "--config-settings=cmake.define.OUTBOARD_WARNINGS_AS_ERRORS=ON"


class SetupError(RuntimeError):
    """A stage failed; the text says which and what the user can do."""


def say(text: str) -> None:
    print(f"[setup] {text}", flush=True)


def run(*commands: tuple[list[str], str]) -> None:
    """Runs (command, what it does) in the repository root, all at once, and says meanwhile what they are at. Raises
    SetupError with the last output lines of one that fails."""
    try:
        progress.run_all(commands, ROOT, "[setup]")
    except progress.CommandFailed as error:
        raise SetupError(str(error)) from error


class Environment:
    """The virtual environment at ``path`` and the record of what was installed into it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.python = path / "bin" / "python"
        self._stamps = path / "outboard-setup.json"

    def up_to_date(self, stage: str, key: str) -> bool:
        return self._read().get(stage) == key

    def mark(self, stage: str, key: str) -> None:
        stamps = self._read() | {stage: key}
        self._stamps.write_text(json.dumps(stamps, indent=1, sort_keys=True) + "\n")

    def _read(self) -> dict[str, str]:
        if not self._stamps.exists():
            return {}
        stamps: dict[str, str] = json.loads(self._stamps.read_text())
        return stamps

    def create(self) -> None:
        """Makes the environment unless it is there and works."""
        if self.python.exists() and self._runs("import pip"):
            return
        if sys.version_info < (3, 10):  # noqa: UP036 (this file may well be run by an older Python)
            raise SetupError(f"Python 3.10 or newer is needed, this is {sys.version.split()[0]}; try: make PYTHON=...")
        command = [sys.executable, "-m", "venv", "--clear", str(self.path)]
        try:
            run((command, f"making {self.path}"))
        except SetupError as error:
            # Debian splits ensurepip off into a package of its own.
            package = f"python{sys.version_info.major}.{sys.version_info.minor}-venv"
            if not opencl_runtime.install_debian([package]):
                raise SetupError(f"{error}\ninstall it with: sudo apt-get install {package}") from error
            run((command, f"making {self.path}"))

    def stand_on(self, base: Path) -> None:
        """Has this environment see what is installed in another, which stays as it is."""
        places = [
            subprocess.run([str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
                           capture_output=True, text=True, check=True).stdout.strip()
            for python in (base / "bin" / "python", self.python)
        ]  # fmt: skip
        (Path(places[1]) / "base.pth").write_text(places[0] + "\n")

    def pip(self, arguments: list[str]) -> list[str]:
        """The command that installs something. What is imported is compiled then: most of it never is."""
        options = ["--disable-pip-version-check", "--no-input", "--no-compile"]
        return [str(self.python), "-m", "pip", "install", *options, *arguments]

    def _runs(self, code: str) -> bool:
        return subprocess.run([str(self.python), "-c", code], capture_output=True).returncode == 0

    def installed(self, distribution: str) -> str | None:
        """Version of an installed distribution, or None."""
        code = f"import importlib.metadata as m; print(m.version({distribution!r}))"
        result = subprocess.run([str(self.python), "-c", code], capture_output=True, text=True)
        return result.stdout.strip() if result.returncode == 0 else None


def install_torch(environment: Environment, version: str) -> None:
    """PyTorch comes first and pinned, so that no later requirement can pull in another build of it. What is there stays
    if it is of the same minor release.

    The CPU build is preferred: from wherever pip is configured to look, then from PyTorch's own index (or
    ``OUTBOARD_TORCH_INDEX``), and only then whatever build pip finds.
    """
    there = environment.installed("torch")
    if there is not None and torch_requirement.release(there) == torch_requirement.release(version):
        return
    index = os.environ.get("OUTBOARD_TORCH_INDEX", TORCH_CPU_INDEX)
    cpu_build = f"torch=={version}+cpu"
    for attempt in ([cpu_build], [cpu_build, "--extra-index-url", index]):
        try:
            run((environment.pip(attempt), f"installing {' '.join(attempt)}"))
        except SetupError:
            say("not found there")
            continue
        return
    run((environment.pip([f"torch=={version}"]), f"installing torch=={version}"))


def read_project() -> dict[str, object]:
    """The ``[project]`` table of pyproject.toml."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        from pip._vendor import tomli as tomllib
    project: dict[str, object] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return project


class Stage(NamedTuple):
    """Something to install: pip's arguments, and for each part of it the key that says that it is there."""

    keys: dict[str, str]
    arguments: list[str]
    what: str


def install(environment: Environment, stages: list[Stage]) -> None:
    """Runs stages, all at once. Raises SetupError."""
    run(*((environment.pip(stage.arguments), stage.what) for stage in stages))
    for stage in stages:
        for name, key in stage.keys.items():
            environment.mark(name, key)


def requirements(environment: Environment, groups: list[str]) -> list[Stage]:
    """What of these groups of requirements (``build``, or optional dependencies of pyproject.toml) is missing. That is
    one stage at most: pip decides on the versions that they share."""
    optional = read_project()["optional-dependencies"]
    assert isinstance(optional, dict)
    wanted = {group: BUILD_REQUIREMENTS if group == "build" else optional[group] for group in groups}
    keys = {group: " ".join(packages) for group, packages in wanted.items()}
    missing = {group: key for group, key in keys.items() if not environment.up_to_date(group, key)}
    packages = [package for group in missing for package in wanted[group]]
    return [Stage(missing, packages, f"installing the requirements of {', '.join(missing)}")] if missing else []


def source_files() -> Iterable[Path]:
    for name in SOURCES:
        path = ROOT / name
        if path.is_file():
            yield path
            continue
        for file in sorted(path.rglob("*")):
            if file.is_file() and "__pycache__" not in file.parts and file.suffix != ".so":
                yield file


def source_hash() -> str:
    digest = hashlib.sha256()
    for file in source_files():
        digest.update(str(file.relative_to(ROOT)).encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()


def outboard(environment: Environment, options: list[str]) -> list[Stage]:
    """Building and installing the package with these options of pip, unless it is installed from these very sources."""
    torch = environment.installed("torch") or ""
    key = f"{source_hash()} torch {torch}"
    if environment.up_to_date("outboard", key) and environment.installed("outboard") is not None:
        return []
    if shutil.which("g++") is None and shutil.which("c++") is None:
        raise SetupError("no C++ compiler found; install one with: sudo apt-get install g++")
    os.environ.setdefault("CMAKE_BUILD_PARALLEL_LEVEL", str(os.cpu_count() or 1))
    # Ninja and CMake of the environment, not the machine's, which may be too old.
    os.environ["PATH"] = f"{environment.path.resolve() / 'bin'}{os.pathsep}{os.environ['PATH']}"
    # With -v, pip hands on what Ninja says.
    options = [torch_requirement.build_folder(torch), *options]
    arguments = ["-v", "--no-build-isolation", "--no-deps", "--force-reinstall", *options, "."]
    return [Stage({"outboard": key}, arguments, "building outboard")]


def check_libraries(base: Path) -> None:
    """Raises SetupError unless the PyTorch of an environment is the one that the versions of libraries in
    pyproject.toml go with: torchvision and torchao are made for one release."""
    version = Environment(base).installed("torch") or "none"
    if torch_requirement.release(version) != torch_requirement.release(torch_requirement.DEFAULT):
        raise SetupError(f"the libraries are those for PyTorch {torch_requirement.DEFAULT}, and {base} has {version}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--venv", type=Path, default=Path(".venv"), help="virtual environment to make or reuse")
    parser.add_argument("--torch", default=torch_requirement.DEFAULT, metavar="VERSION", help="PyTorch to install")
    parser.add_argument("--groups", nargs="*", default=[], help="optional dependency groups of pyproject.toml")
    parser.add_argument("--over", type=Path, help="an environment that has the rest; only groups are installed here")
    parser.add_argument("--opencl", action="store_true", help="install an OpenCL runtime if there is no device")
    parser.add_argument("--no-build", action="store_true", help="stop before building Outboard itself")
    parser.add_argument("--warnings-as-errors", action="store_true", help="stop the build at the first C++ warning")
    options = parser.parse_args()
    environment = Environment(ROOT / options.venv)
    try:
        if (problem := torch_requirement.unsupported(options.torch)) is not None:
            raise SetupError(problem)
        environment.create()
        if options.over is not None:
            check_libraries(ROOT / options.over)
            environment.stand_on(ROOT / options.over)
            install(environment, requirements(environment, options.groups))
            return 0
        install_torch(environment, options.torch)
        install(environment, requirements(environment, ["build"]))
        # Packages are fetched while the compiler works.
        stages = requirements(environment, options.groups)
        if options.opencl:
            opencl_runtime.ensure(environment.python, say)
        if not options.no_build:
            # The strict build is the same with a launcher and without.
            strict = [WARNINGS_AS_ERRORS, torch_requirement.UNITY]
            stages += outboard(environment, strict if options.warnings_as_errors else torch_requirement.joined_files())
        install(environment, stages)
    except SetupError as error:
        print(f"[setup] {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
