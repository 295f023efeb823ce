# SPDX-License-Identifier: Apache-2.0
"""What the wheel promises of systems and of PyTorch; building and installing it is in test_package.py."""

from __future__ import annotations

import os
import platform
import sys
from importlib import metadata
from pathlib import Path

import pytest
import torch

import outboard
from outboard import torch_release

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

import manylinux  # noqa: E402

from tests.conftest import RunPython  # noqa: E402

TORCH_LIBRARIES = Path(torch.__file__).parent / "lib"


def test_what_is_built_here_runs_here_and_has_a_tag() -> None:
    files = [file for file in Path(outboard.__file__).parent.rglob("*") if file.is_file() and manylinux.is_elf(file)]
    assert {"liboutboard_host.so", "outboard-build", "liboutboard_runner.so"} <= {file.name for file in files}
    needs = manylinux.requirements(files)
    tag = manylinux.tag(needs, "x86_64")
    needed = tuple(int(part) for part in tag.split("_")[1:3])
    assert needs["GLIBC"] <= needed
    _, version = platform.libc_ver()
    assert needs["GLIBC"] <= tuple(int(part) for part in version.split("."))


def test_tags_agree_with_those_of_pytorch() -> None:
    """PyTorch's wheel has a tag of its own, made by others' tools."""
    tags = [line.split("-")[-1] for line in (metadata.distribution("torch").read_text("WHEEL") or "").splitlines()]
    needs = manylinux.requirements([TORCH_LIBRARIES / "libc10.so"])
    assert manylinux.tag(needs, platform.machine()) in tags, (needs, tags)


def test_libraries_that_not_every_system_has_are_refused() -> None:
    with pytest.raises(manylinux.NotPortable, match=r"libtorch_cpu.so needs lib"):
        manylinux.requirements([TORCH_LIBRARIES / "libtorch_cpu.so"])


@pytest.mark.parametrize(
    ("needs", "tag"),
    [
        ({"GLIBC": (2, 17)}, "manylinux_2_28_x86_64"),
        ({"GLIBC": (2, 34), "GLIBCXX": (3, 4, 29), "CXXABI": (1, 3, 13), "GCC": (3, 0)}, "manylinux_2_34_x86_64"),
        ({"GLIBC": (2, 34), "GLIBCXX": (3, 4, 30)}, "manylinux_2_35_x86_64"),
        ({"GLIBC": (2, 37)}, "manylinux_2_38_x86_64"),
    ],
)
def test_the_tag_is_of_the_oldest_system_that_has_everything(needs: dict[str, tuple[int, ...]], tag: str) -> None:
    assert manylinux.tag(needs, "x86_64") == tag


def test_symbols_newer_than_any_known_system_are_refused() -> None:
    with pytest.raises(manylinux.NotPortable, match="GLIBCXX 9.9"):
        manylinux.tag({"GLIBCXX": (9, 9)}, "x86_64")


def test_another_pytorch_is_told_from_the_one_that_was_built_for() -> None:
    built = torch_release.built_for()
    assert built is not None
    assert torch_release.mismatch(torch.__version__) is None
    major, minor, _ = built.split(".")
    assert torch_release.mismatch(f"{major}.{minor}.99+cu130") is None
    problem = torch_release.mismatch(f"{major}.{int(minor) + 1}.0")
    assert problem is not None and f'pip install "torch=={major}.{minor}.*"' in problem


def test_under_another_pytorch_one_sentence_says_what_to_do(run_python: RunPython) -> None:
    """PyTorch itself works, nothing of ours is loaded into it, and doctor repeats the sentence."""
    out = run_python(
        """
        import sys, torch, warnings
        torch.__version__ = "9.0.1+cpu"
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            import outboard
        assert ["built for PyTorch" in str(each.message) for each in caught] == [True], caught
        assert "outboard._C" not in sys.modules and torch.ones(2).sum().item() == 2
        from outboard import cli
        print("code", cli.main(["doctor"]))
        """,
        cold=True,
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
    )
    assert "and this is PyTorch 9.0.1+cpu" in out and "code 1" in out


OTHER_PACKAGE = os.environ.get("OUTBOARD_TEST_OTHER_PACKAGE", "")


@pytest.mark.skipif(not OTHER_PACKAGE, reason="needs a package that was built with another PyTorch: make releases")
def test_what_another_pytorch_built_says_so_here(run_python: RunPython, tmp_path: Path) -> None:
    """The extension is a real one, whose symbols this PyTorch lacks: nothing tries to load it."""
    (tmp_path / "outboard").symlink_to(OTHER_PACKAGE)
    built = (Path(OTHER_PACKAGE) / "torch-release.txt").read_text().strip()
    assert list(Path(OTHER_PACKAGE).glob(f"_C.cpython-{sys.version_info[0]}{sys.version_info[1]}-*.so"))
    out = run_python(
        """
        import warnings
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            import torch
        print(*[each.message for each in caught if "Outboard" in str(each.message)], sep="\\n")
        import outboard
        print(outboard.__path__)
        model = torch.nn.Linear(4, 2)
        model(torch.ones(3, 4)).sum().backward()
        for use in ("import outboard._C", "from outboard import _C"):
            try:
                exec(use)
            except ImportError as error:
                print(error)
        from outboard import cli
        print("code", cli.main(["doctor"]))
        """,
        cold=True,
        PYTHONPATH=str(tmp_path),
    )
    wanted = ".".join(built.split(".")[:2])
    sentence = (
        f"This Outboard was built for PyTorch {wanted}, and this is PyTorch {torch.__version__}: there is no device."
    )
    lines = out.splitlines()
    assert lines[0].startswith(sentence) and f'pip install "torch=={wanted}.*"' in lines[0]
    assert lines[1] == f"['{tmp_path / 'outboard'}']"
    assert lines[2:4] == [lines[0], lines[0]]
    assert f"- {lines[0]}" in out and "code 1" in lines[-1] and "undefined symbol" not in out
