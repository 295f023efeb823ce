# SPDX-License-Identifier: Apache-2.0
"""The device's public face is data: each profile in its own process."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

import outboard
from tests.conftest import RunPython

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Package:
    """An old world's importable name."""

    module: str
    profile: str

    @property
    def folder(self) -> Path:
        return ROOT / "packages" / self.profile

    def on_path(self) -> str:
        return _path(self.folder)


def _path(*folders: Path) -> str:
    """A value for ``PYTHONPATH`` with these folders first."""
    return os.pathsep.join(filter(None, [*map(str, folders), os.environ.get("PYTHONPATH")]))


_PACKAGES = [Package("torch_rbln", "rbln"), Package("sol", "ve"), Package("torch_npu", "npu")]

_COMMON = """
import torch
name = torch._C._get_privateuse1_backend_name()
assert name == "{name}", name
module = getattr(torch, name)
x = getattr(torch.arange(6.), name)()
assert x.device == torch.device(name, 0) and getattr(x, f"is_{{name}}")
assert torch.equal(x.cpu(), torch.arange(6.))
assert name in repr(x)
layer = getattr(torch.nn.Linear(2, 2), name)()
assert layer.weight.device.type == name and layer.bias.is_leaf and layer.bias.requires_grad
assert torch.accelerator.current_accelerator().type == name
assert getattr(torch.UntypedStorage(4), name)().device.type == name
assert module.get_amp_supported_dtype() == {dtypes}
with torch.autocast(name):
    assert torch.get_autocast_dtype(name) == {dtypes}[0]
import importlib
assert importlib.import_module(f"torch.{{name}}.memory") is module.memory is torch.get_device_module(name).memory
for other in {absent}:
    try:
        importlib.import_module(other)
    except ModuleNotFoundError:
        continue
    raise AssertionError(other)
"""


@pytest.mark.parametrize(
    ("name", "dtypes", "absent"),
    [
        ("ocl", "[torch.float16, torch.bfloat16]", ["torch_rbln", "sol", "torch_npu"]),
        ("rbln", "[torch.float16, torch.bfloat16]", ["torch.ocl"]),
        ("ve", "[torch.bfloat16, torch.float16]", ["torch.ocl"]),
        ("npu", "[torch.float16, torch.bfloat16]", ["torch.ocl"]),
    ],
)
def test_profile(run_python: RunPython, name: str, dtypes: str, absent: list[str]) -> None:
    run_python(_COMMON.format(name=name, dtypes=dtypes, absent=absent), OUTBOARD_PROFILE=name)


@pytest.mark.parametrize("package", _PACKAGES, ids=lambda package: package.module)
def test_a_package_brings_its_device_without_autoload(run_python: RunPython, package: Package) -> None:
    source = f"""
        import sys
        import {package.module}
        import torch
        assert hasattr(torch, "{package.profile}") and isinstance({package.module}.__version__, str)
        assert torch.ones(2, device="{package.profile}").tolist() == [1.0, 1.0]
        """
    run_python(source, cold=True, TORCH_DEVICE_BACKEND_AUTOLOAD="0", PYTHONPATH=package.on_path())
    run_python(
        source.replace("import sys", "import torch"), TORCH_DEVICE_BACKEND_AUTOLOAD="0", PYTHONPATH=package.on_path()
    )


@pytest.mark.parametrize("package", _PACKAGES, ids=lambda package: package.module)
def test_a_package_refuses_a_device_of_another_name(run_python: RunPython, package: Package) -> None:
    out = run_python(
        f"""
        import os, torch
        try:
            from {package.module} import anything
        except ImportError as error:
            print(error)
        print(torch._C._get_privateuse1_backend_name(), os.environ.get("OUTBOARD_PROFILE"))
        """,
        cold=True,
        PYTHONPATH=package.on_path(),
        OUTBOARD_PROFILE="",
    )
    assert f"Set OUTBOARD_PROFILE={package.profile}, or import {package.module} before torch" in out
    assert out.endswith("ocl \n"), "a probe leaves the environment alone"


def test_a_package_says_when_outboard_is_broken(run_python: RunPython) -> None:
    package = _PACKAGES[0]
    out = run_python(
        f"import {package.module}", check=False, PYTHONPATH=package.on_path(), OUTBOARD_PROFILE="no-such-profile"
    )
    assert f"ImportError: {package.module} needs Outboard, which could not be loaded" in out


def _pip_install(source: Path, target: Path) -> None:
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "-q", "--no-deps"]
    command = [*pip, "--no-build-isolation", "--no-index", "--target", str(target), str(source)]
    subprocess.run(command, check=True, timeout=300)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A folder for each package, with what pip installs there."""
    folders = {}
    for package in _PACKAGES:
        source = tmp_path_factory.mktemp("source") / "package"
        shutil.copytree(package.folder, source, ignore=shutil.ignore_patterns("__pycache__", "build", "*.egg-info"))
        folder = tmp_path_factory.mktemp(package.module)
        _pip_install(source, folder)
        folders[package.profile] = folder
    return folders


@pytest.mark.parametrize("package", _PACKAGES, ids=lambda package: package.module)
def test_an_installed_package_brings_its_device_with_nothing_set(
    run_python: RunPython, installed: dict[str, Path], package: Package
) -> None:
    assert (installed[package.profile] / package.module / "py.typed").exists()
    out = run_python(
        f"""
        import torch
        x = torch.ones(2, device="{package.profile}")
        import {package.module}
        import outboard.cli
        outboard.cli.main(["doctor"])
        """,
        check=False,
        cold=True,
        PYTHONPATH=_path(installed[package.profile]),
        OUTBOARD_PROFILE="",
    )
    assert re.search(rf"profile: +{package.profile} \(outboard-{package.profile} is installed\)", out), out
    assert "Error" not in out


def test_no_profile_of_several_is_chosen_by_chance(run_python: RunPython, installed: dict[str, Path]) -> None:
    program = """
        import torch, outboard.cli
        outboard.cli.main(["doctor"])
        """
    path = _path(*installed.values())
    out = run_python(program, check=False, cold=True, PYTHONPATH=path, OUTBOARD_PROFILE="")
    assert re.search(r"profile: +ocl \(the default\)", out), out
    devices = ", ".join(f"'{name}' of outboard-{name}" for name in sorted(installed))
    said = f"Installed packages offer several devices ({devices}), and none is chosen"
    assert out.count(f"RuntimeWarning: {said}") == 1 and out.count(f"  - {said}") == 1, out
    out = run_python("import torch", cold=True, PYTHONPATH=path, OUTBOARD_PROFILE="npu", PYTHONWARNINGS="error")
    assert out == ""


@pytest.mark.parametrize("package", _PACKAGES, ids=lambda package: package.module)
def test_a_package_has_the_version_of_outboard(package: Package) -> None:
    declared = re.search(r'^version = "(.*)"', (package.folder / "pyproject.toml").read_text(), flags=re.MULTILINE)
    assert declared is not None and declared[1] == outboard.__version__


def test_another_package_offers_a_profile(run_python: RunPython, tmp_path: Path) -> None:
    metadata = tmp_path / "vendor-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: vendor\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[outboard.profiles]\nfast = vendor:PROFILE\nwrong = vendor:NOTHING\n")
    (tmp_path / "vendor.py").write_text(
        "from outboard.profiles import Profile\n"
        "called = []\n"
        "PROFILE = Profile('fast', extra_api={'answer': lambda: 42}, before_devices=lambda: called.append('before'),\n"
        "                  on_activation=lambda: called.append('after'))\n"
        "NOTHING = None\n"
    )
    out = run_python(
        """
        import torch, vendor
        print(torch.fast.answer(), vendor.called, torch.ones(1).fast().device)
        """,
        PYTHONPATH=_path(tmp_path),
        OUTBOARD_PROFILE="fast",
    )
    assert out == "42 ['before', 'after'] fast:0\n"
    out = run_python("import torch", check=False, PYTHONPATH=_path(tmp_path), OUTBOARD_PROFILE="wrong")
    assert "the profile 'wrong' is a NoneType" in out


def _blocks(page: str) -> list[str]:
    """The Python blocks of a page, one by one."""
    return re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / page).read_text(), flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("name", ["ocl", "rbln", "ve", "npu"])
def test_programs_ask_for_the_name_as_printed(run_python: RunPython, name: str) -> None:
    out = run_python(_blocks("profiles.md")[0], OUTBOARD_PROFILE=name)
    assert out.startswith(f"{name} ") and f"device='{name}:0'" in out


def test_the_profile_that_is_printed_works_once_it_is_installed(run_python: RunPython, tmp_path: Path) -> None:
    _, profile, program = _blocks("profiles.md")
    entry = re.search(r"^```toml\n(.*?)^```", (ROOT / "docs/profiles.md").read_text(), flags=re.MULTILINE | re.DOTALL)
    assert entry is not None and profile.startswith("# fast_device.py")
    (tmp_path / "fast_device.py").write_text(profile)
    (tmp_path / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n'
        '[project]\nname = "fast-device"\nversion = "1.0"\n'
        + entry[1]
        + '[tool.setuptools]\npy-modules = ["fast_device"]\n'
    )
    _pip_install(tmp_path, tmp_path / "installed")
    out = run_python(program, cold=True, PYTHONPATH=_path(tmp_path / "installed"), OUTBOARD_PROFILE="")
    assert out == "hello from torch.fast tensor([2., 2., 2.], device='fast:0') fast:0\n"


def test_only_profiles_name_profiles() -> None:
    """Everything else learns the device's name at run time."""
    named = re.compile(
        r"""["'](ocl|rbln|ve|npu)(:\d+)?["']|torch\.(ocl|rbln|ve|npu)\b|\bis_(ocl|rbln|ve|npu)\b|torch_rbln|torch_npu"""
    )
    sources = [*ROOT.glob("src/outboard/**/*.py"), *ROOT.glob("csrc/**/*.cpp"), *ROOT.glob("csrc/**/*.h")]
    leaks = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in sources
        if "profiles" not in path.parts
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if named.search(line)
    ]
    assert not leaks, "\n".join(leaks)
