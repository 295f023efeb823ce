# SPDX-License-Identifier: Apache-2.0
"""The device's public face is data: each profile in its own process."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from conftest import RunPython

ROOT = Path(__file__).parents[2]

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
        ("ocl", "[torch.float16, torch.bfloat16]", ["torch_rbln", "sol.pytorch"]),
        ("rbln", "[torch.float16]", ["sol.pytorch", "torch.ocl"]),
        ("ve", "[torch.bfloat16, torch.float16]", ["torch_rbln", "torch.ocl"]),
    ],
)
def test_profile(run_python: RunPython, name: str, dtypes: str, absent: list[str]) -> None:
    run_python(_COMMON.format(name=name, dtypes=dtypes, absent=absent), OUTBOARD_PROFILE=name)


def test_the_npu_face_has_its_module(run_python: RunPython) -> None:
    run_python("import torch, torch_rbln, torch.rbln; assert torch_rbln.rbln is torch.rbln", OUTBOARD_PROFILE="rbln")


def test_the_vector_engine_snippet(run_python: RunPython) -> None:
    run_python(
        """
        import torch
        import sol.pytorch as sol
        model = torch.nn.Linear(3, 2)
        optimized = sol.optimize(model, torch.rand(1, 3))
        optimized.ve()
        assert isinstance(optimized, torch.nn.Module) and model.weight.device.type == "ve"
        try:
            sol.optimize("not a module")
        except TypeError:
            pass
        else:
            raise AssertionError
        """,
        OUTBOARD_PROFILE="ve",
    )


def test_only_profiles_name_profiles() -> None:
    """Everything else learns the device's name at run time."""
    named = re.compile(r"""["'](ocl|rbln|ve)(:\d+)?["']|torch\.(ocl|rbln|ve)\b|\bis_(ocl|rbln|ve)\b|torch_rbln""")
    sources = [*ROOT.glob("src/outboard/**/*.py"), *ROOT.glob("csrc/**/*.cpp"), *ROOT.glob("csrc/**/*.h")]
    leaks = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in sources
        if "profiles" not in path.parts
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if named.search(line)
    ]
    assert not leaks, "\n".join(leaks)
