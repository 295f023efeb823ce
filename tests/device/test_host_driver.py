# SPDX-License-Identifier: Apache-2.0
"""The processor as a device, by the driver of our own: what it computes, and what it says when it cannot."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import outboard
from outboard.drivers import host_compiler
from tests.conftest import RunPython

PREAMBLE = """
import torch, torch.nn.functional as F
name = torch._C._get_privateuse1_backend_name()
module = getattr(torch, name)
torch.manual_seed(0)

def check(function, *inputs, **tolerance):
    expected = function(*inputs)
    result = function(*(x.to(name) for x in inputs))
    torch.testing.assert_close(result, expected, check_device=False, **tolerance)
"""

#: Operators of all families of kernels, and a step of training, against the CPU; nothing may be computed elsewhere.
_FAMILIES = (
    PREAMBLE
    + """
x, y = torch.randn(65, 131), torch.randn(131, 47)
check(lambda a, b: (a * 2 - b.T[:1].sum()).sigmoid().clamp(0.1, 0.9), x, y)
check(lambda a: torch.erf(a.abs() + 1).log() + torch.lgamma(a.abs() + 1) + a.sin() * a.tan().tanh(), x)
check(torch.matmul, x, y, rtol=1e-4, atol=1e-4)
check(lambda a, b: torch.bmm(a, b), torch.randn(5, 17, 33), torch.randn(5, 33, 9))
check(lambda a, w, b: F.conv2d(a, w, b, padding=1), torch.randn(2, 3, 20, 20), torch.randn(8, 3, 3, 3), torch.randn(8))
check(lambda a: torch.softmax(a, 1) + a.mean(0) - a.var(), x)
check(lambda a: a.sum(0) + a.amax(1).sum() + a.prod(0), x)
check(lambda a: a.sort(1).values + a.cumsum(0), x)
check(lambda a: a.argsort(dim=1, stable=True), torch.randint(0, 50, (40, 300)))
check(lambda a: F.max_pool2d(a, 3, 2), torch.randn(2, 3, 21, 21))
check(lambda a: a[torch.arange(64, -1, -3, device=a.device)], x)
check(lambda a: (a // 7) ** 3 - (a % 5) + (a << 2), torch.randint(-1000, 1000, (333,)))
check(lambda a: a.half().float() + a.bfloat16().float() + a.double().exp().float(), x)
check(lambda q: F.scaled_dot_product_attention(q, q, q), torch.randn(2, 4, 19, 16))

model = torch.nn.Sequential(torch.nn.Linear(20, 33), torch.nn.GELU(), torch.nn.LayerNorm(33), torch.nn.Linear(33, 4))
copy = torch.nn.Sequential(torch.nn.Linear(20, 33), torch.nn.GELU(), torch.nn.LayerNorm(33), torch.nn.Linear(33, 4))
copy.load_state_dict(model.state_dict())
copy.to(name)
data, target = torch.randn(64, 20), torch.randint(0, 4, (64,))
for each, device in ((model, "cpu"), (copy, name)):
    optimizer = torch.optim.AdamW(each.parameters(), lr=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        F.cross_entropy(each(data.to(device)), target.to(device)).backward()
        optimizer.step()
for a, b in zip(model.parameters(), copy.parameters()):
    torch.testing.assert_close(b.cpu(), a, rtol=1e-4, atol=1e-5)
assert module.fallbacks() == {}, module.fallbacks()
"""
)


def test_families_of_kernels_and_training(run_python: RunPython, tmp_path: Path) -> None:
    """The second process compiles nothing: programs are kept as other drivers' are."""
    environment = {"OUTBOARD_DRIVER": "host", "OUTBOARD_CACHE_DIR": str(tmp_path)}
    run_python(_FAMILIES + "assert 'clang' in module.get_device_properties(0).driver_version\n", **environment)
    ending = "assert module.compile_stats()['programs_built'] == 0, module.compile_stats()\n"
    run_python(_FAMILIES + ending, **environment)


def test_programs_in_cuda(run_python: RunPython, tmp_path: Path) -> None:
    """What NVRTC would get, on a device that says it is a GPU of NVIDIA's kind."""
    run_python(
        PREAMBLE
        + """
x = torch.randn(70, 300)
check(lambda a: torch.softmax(a, 1) + a.sum(0), x)
check(lambda a: a.half().float() + a.bfloat16().float(), x)
check(torch.matmul, x, torch.randn(300, 65), rtol=1e-4, atol=1e-4)
check(lambda a, b: torch.zeros(5, device=a.device).index_add(0, a, b), torch.arange(900) % 5, torch.ones(900))
properties = module.get_device_properties(0)
assert (properties.dialect, properties.type, properties.sub_group_size) == ("cuda", "gpu", 32), properties
assert module.fallbacks() == {}, module.fallbacks()
""",
        OUTBOARD_DRIVER="host",
        OUTBOARD_HOST_DIALECT="cuda",
        OUTBOARD_CACHE_DIR=str(tmp_path),
    )


def test_an_unknown_dialect_is_refused(run_python: RunPython) -> None:
    printed = run_python(
        PREAMBLE + "from outboard import _C; print(module.device_count(), _C.problems())",
        OUTBOARD_DRIVER="host",
        OUTBOARD_HOST_DIALECT="metal",
    )
    assert "OUTBOARD_HOST_DIALECT must be opencl-c or cuda" in printed


def test_a_damaged_cache_is_built_again(run_python: RunPython, tmp_path: Path) -> None:
    environment = {"OUTBOARD_DRIVER": "host", "OUTBOARD_CACHE_DIR": str(tmp_path)}
    program = PREAMBLE + "check(lambda a: a.exp().sum(1), torch.randn(9, 40))\n"
    run_python(program, **environment)
    images = [file for file in tmp_path.rglob("*") if file.is_file() and b"\x7fELF" in file.read_bytes()]
    assert images
    for file in images:
        content = bytearray(file.read_bytes())
        content[content.index(b"\x7fELF") + 100] ^= 1
        file.write_bytes(content)
    run_python(program + "assert module.compile_stats()['programs_built'] > 0\n", **environment)


def test_macros_whose_names_are_put_together(run_python: RunPython, tmp_path: Path) -> None:
    """What only such a macro says is defined, too, though its name stands nowhere else in the text."""
    run_python(
        PREAMBLE
        + r"""
import outboard
SOURCE = r'''
#define FLIPPED_float(x) as_float(as_int(x) ^ 0x80000000)

#define FLIPPED(T, x) \
  FLIPPED_##T(x)

OB_KERNEL void flip(OB_GLOBAL const float *x, OB_GLOBAL float *y) {
  const long i = OB_ITEM_ID(0);
  y[i] = FLIPPED(float, x[i]);
}
'''
outboard.kernel("shop::flip(Tensor x) -> Tensor", SOURCE, "flip", grid=lambda x, y: x.numel(), group=1)
x = torch.randn(5)
assert torch.equal(torch.ops.shop.flip(x.to(name)).cpu(), -x)
""",
        OUTBOARD_DRIVER="host",
        OUTBOARD_CACHE_DIR=str(tmp_path),
    )


def test_kernels_for_groups_of_work_items(run_python: RunPython, tmp_path: Path) -> None:
    """Kernels as GPUs get them, with barriers, local memory and shuffles, on a device that says it is one."""
    run_python(
        PREAMBLE
        + """
x = torch.randn(70, 300)
check(lambda a: torch.softmax(a, 1) + a.sum(0), x)
check(lambda a: a.sort(1).values, x)
check(torch.matmul, x, torch.randn(300, 65), rtol=1e-4, atol=1e-4)
check(lambda a: F.layer_norm(a, (300,)).cumsum(1), x, rtol=1e-4, atol=1e-4)
assert module.get_device_properties(0).name.startswith("strict") and module.fallbacks() == {}, module.fallbacks()
""",
        OUTBOARD_DRIVER="strict",
        OUTBOARD_STRICT_DRIVER="host",
        OUTBOARD_STRICT_TYPE="gpu",
        OUTBOARD_STRICT_VECTOR_WIDTH="1",
        OUTBOARD_HOST_SUB_GROUP="32",
        OUTBOARD_CACHE_DIR=str(tmp_path),
    )


def test_the_processor_is_the_device_where_nothing_else_is(run_python: RunPython, tmp_path: Path) -> None:
    """As after ``pip install ziglang`` on a machine without OpenCL."""
    vendors = tmp_path / "vendors"
    vendors.mkdir()
    out = run_python(
        PREAMBLE
        + """
x = torch.ones(3, device=name)
assert (x * 2 + 1).tolist() == [3, 3, 3] and module.fallbacks() == {}
assert module.device_count() == 1 and module.get_device_properties(0).driver == "host"
from outboard import cli
assert cli.main(["doctor"]) == 0
""",
        cold=True,
        OUTBOARD_DRIVER="",
        OCL_ICD_VENDORS=str(vendors),
        OUTBOARD_CACHE_DIR=str(tmp_path / "cache"),
    )
    assert "  not used: opencl: " in out
    assert out.rstrip().endswith("what is wrong\n  - nothing")


def test_the_processor_takes_the_place_of_opencls_device_of_it(run_python: RunPython) -> None:
    """With a GPU there would be no reason to; and a device that shares its cores with another helps nobody."""
    run_python(
        PREAMBLE
        + """
from outboard import _C
drivers = {module.get_device_properties(i).driver for i in range(module.device_count())}
if drivers == {"host"}:
    assert module.device_count() == 1 and any(line.startswith("opencl: ") for line in _C.passed_over())
else:
    kinds = [_C.device_properties(i)["type"] for i in range(module.device_count())]
    assert "host" not in drivers and set(kinds) != {"cpu"}, kinds
    assert not any("this processor" in line for line in _C.passed_over()), _C.passed_over()
assert (torch.ones(3, device=name) * 2).tolist() == [2, 2, 2]
""",
        OUTBOARD_DRIVER="",
    )


def test_without_a_compiler_opencls_device_of_the_processor_is_used(run_python: RunPython) -> None:
    run_python(
        PREAMBLE
        + """
from outboard import _C
if module.device_count() == 0:
    raise SystemExit  # no OpenCL here
assert module.get_device_properties(0).driver == "opencl"
assert all("pip install ziglang" in line or line.startswith("cuda: ") for line in _C.passed_over()), _C.passed_over()
assert _C.problems() == []
""",
        OUTBOARD_DRIVER="",
        OUTBOARD_HOST_COMPILER="/no/such/clang",
    )


def test_without_a_compiler_uses_say_what_to_install(run_python: RunPython) -> None:
    run_python(
        PREAMBLE
        + """
assert module.device_count() == 0
try:
    torch.ones(3, device=name)
except RuntimeError as error:
    assert "pip install ziglang" in str(error), error
else:
    raise AssertionError("no error")
""",
        OUTBOARD_DRIVER="host",
        OUTBOARD_HOST_COMPILER="/no/such/clang",
    )


def test_a_compiler_that_goes_away(run_python: RunPython, tmp_path: Path) -> None:
    """What is compiled keeps running, and what is not is computed on the CPU or refused: no crash, no hang."""
    found = os.environ.get(host_compiler.VARIABLE) or host_compiler.installed()
    compiler = tmp_path / "zig"
    compiler.write_text(f'#!/bin/sh\\n[ -e {tmp_path}/gone ] && exit 7\\nexec {found} "$@"\\n'.replace("\\n", "\n"))
    compiler.chmod(0o700)
    run_python(
        PREAMBLE
        + f"""
x = torch.ones(5, device=name)
assert (x + 1).sum().item() == 10
open({str(tmp_path / "gone")!r}, "w").close()
assert (x + 1).sum().item() == 10
try:
    x.erfinv().cpu()
except RuntimeError as error:
    assert "exited with 7" in str(error), error
else:
    raise AssertionError("no error")
assert (x + 1).sum().item() == 10
""",
        OUTBOARD_DRIVER="host",
        OUTBOARD_HOST_COMPILER=str(compiler),
        OUTBOARD_CACHE_DIR=str(tmp_path / "cache"),
    )


def test_nothing_of_the_compiler_is_left_or_printed(run_python: RunPython, tmp_path: Path) -> None:
    folder = tmp_path / "temporary"
    folder.mkdir(mode=0o700)
    source = PREAMBLE + "check(lambda a: a * 3 + a.sum(), torch.randn(50))\nprint('end')\n"
    out = run_python(
        source, check=False, OUTBOARD_DRIVER="host", TMPDIR=str(folder), OUTBOARD_CACHE_DIR=str(tmp_path / "cache")
    )
    assert out == "end\n"
    assert [file for file in folder.iterdir() if "outboard" in file.name] == []


#: Debian's, whose program lies at a fixed address, and has the C library's functions at addresses of its own.
SYSTEM_PYTHON = Path(f"/usr/bin/python{sys.version_info.major}.{sys.version_info.minor}")


@pytest.mark.skipif(not SYSTEM_PYTHON.exists(), reason="the system has no Python of this version")
def test_programs_are_built_under_the_systems_own_python(tmp_path: Path) -> None:
    source = PREAMBLE + "check(lambda a: a.sin() + torch.lgamma(a + 1), torch.rand(50))\n"
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(str(Path(package.__file__).parents[1]) for package in (outboard, torch)),
        "OUTBOARD_DRIVER": "host",
        "OUTBOARD_CACHE_DIR": str(tmp_path),
    }
    result = subprocess.run([SYSTEM_PYTHON, "-c", source], env=environment, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("taken", [True, False])
def test_the_package_is_found_unless_the_user_names_a_compiler(
    taken: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_compiler, "installed", lambda: tmp_path / "zig")
    monkeypatch.setenv(host_compiler.VARIABLE, "/usr/bin/clang" if taken else "")
    host_compiler.expose()
    assert os.environ[host_compiler.VARIABLE] == ("/usr/bin/clang" if taken else str(tmp_path / "zig"))
