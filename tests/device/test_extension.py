# SPDX-License-Identifier: Apache-2.0
"""``outboard/extension.h``: an extension in C++ that submits work by itself."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor
from torch.utils import cpp_extension

import outboard

pytestmark = pytest.mark.full("compiles for 10 s")


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Tensor], Tensor]:
    """The extension's operator."""
    library = tmp_path_factory.mktemp("extension") / "extension.so"
    include = [f"-I{folder}" for folder in (*cpp_extension.include_paths(), outboard.get_include())]
    source = Path(__file__).with_name("extension.cpp")
    torch_library = [*(f"-L{folder}" for folder in cpp_extension.library_paths()), "-lc10", "-ltorch_cpu"]
    command = [
        "c++",
        "-std=c++20",
        "-O0",
        "-shared",
        "-fPIC",
        *include,
        str(source),
        "-o",
        str(library),
        *torch_library,
    ]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    torch.ops.load_library(library)
    torch.library.register_fake("outboard_extension_test::copied", torch.empty_like)
    return torch.ops.outboard_extension_test.copied  # type: ignore[no-any-return]


def test_an_extension_borrows(copied: Callable[[Tensor], Tensor], device: str, device_module: ModuleType) -> None:
    x = torch.arange(1000.0, device=device)
    x += 1
    y = copied(x)
    x.zero_()
    assert torch.equal(y.cpu(), torch.arange(1000.0) + 1)
    compiled = torch.compile(lambda x: copied(x * 2) + 1, fullgraph=True)
    assert torch.equal(compiled(y).cpu(), torch.arange(1000.0) * 2 + 3)
    assert "outboard_extension_test::copied" not in device_module.fallbacks()


def test_what_cannot_be_borrowed_is_an_exception(copied: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(RuntimeError, match="on cpu.*Move it there first"):
        copied(torch.ones(3))
