# SPDX-License-Identifier: Apache-2.0
"""What the distribution promises. The wheel itself is built and tried only in the full run: it takes minutes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import RunPython

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.full("builds a wheel and an environment")
def test_wheel_works_in_a_clean_environment() -> None:
    command = ["bash", str(ROOT / "tools" / "check_wheel.sh"), sys.executable]
    result = subprocess.run(command, capture_output=True, text=True, timeout=1800)
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-4000:]


def test_device_is_there_after_import_torch(run_python: RunPython) -> None:
    out = run_python(
        """
        import sys, torch
        name = torch._C._get_privateuse1_backend_name()
        print(torch.ones(3, device=name).tolist(), "outboard" in sys.modules)
        """,
        cold=True,
    )
    assert out.split("\n")[0] == "[1.0, 1.0, 1.0] True"


def test_the_program_that_builds_programs_is_there() -> None:
    import outboard

    program = Path(outboard.__file__).parent / "bin" / "outboard-build"
    result = subprocess.run([program], capture_output=True, text=True, timeout=60)
    assert result.returncode == 2
    assert "started by Outboard itself" in result.stderr


def test_autoload_can_be_switched_off(run_python: RunPython) -> None:
    out = run_python(
        "import sys, torch; print('outboard' in sys.modules, hasattr(torch, 'ocl'))", TORCH_DEVICE_BACKEND_AUTOLOAD="0"
    )
    assert out.split("\n")[0] == "False False"


def test_import_outboard_before_torch(run_python: RunPython) -> None:
    out = run_python(
        """
        import outboard, torch
        print((torch.ones(2, device=torch._C._get_privateuse1_backend_name()) + 1).tolist())
        """,
        cold=True,
    )
    assert out.split("\n")[0] == "[2.0, 2.0]"


def test_version_is_the_same_everywhere() -> None:
    import outboard

    declared = re.search(r'^version = "(.*)"', (ROOT / "pyproject.toml").read_text(), flags=re.MULTILINE)
    assert declared is not None
    assert outboard.__version__ == declared[1]


def test_sources_carry_the_licence() -> None:
    """What ``outboard new`` writes is its user's."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    sources = [file for file in listed if file.endswith((".py", ".cpp", ".h", ".c", ".sh", "CMakeLists.txt"))]
    sources = [file for file in sources if not file.startswith("src/outboard/templates/")]
    missing = [file for file in sources if "SPDX-License-Identifier: Apache-2.0" not in (ROOT / file).read_text()[:300]]
    assert missing == []


def test_no_profile_name_below_profiles() -> None:
    """Everything but ``profiles/`` must work under any name, so no string there may be a profile's name."""
    pattern = re.compile(r"""["'](ocl|rbln|ve)(:\d+)?["']""")
    files = [*(ROOT / "src").rglob("*.py"), *(ROOT / "csrc").rglob("*.cpp"), *(ROOT / "csrc").rglob("*.h")]
    guilty = [
        str(file.relative_to(ROOT))
        for file in files
        if "profiles" not in file.parts and pattern.search(file.read_text())
    ]
    assert guilty == []


def test_nothing_asks_for_a_stranger_by_our_name() -> None:
    """PyPI's ``outboard`` is another project; no version there ends with a release of PyTorch."""
    from outboard.cli.new import package

    asked = {str(path): path.read_text() for path in ROOT.glob("packages/*/pyproject.toml")}
    for kind in ("kernels", "graph"):
        asked |= dict(package("acme", kind, "c"))
    asked |= {page: (ROOT / page).read_text() for page in ("README.md", "docs/index.md", "docs/releases.md")}
    for name, text in asked.items():
        assert not re.search(r"""(dependencies|requires) = .*["']outboard\b.*\]""", text), name
        for version in re.findall(r"\boutboard==(\S+)", text):
            assert re.match(r"\d+\.\d+\.\d+\+torch2\.\d+\b", version), (name, version)
