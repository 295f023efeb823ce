# SPDX-License-Identifier: Apache-2.0
"""The CUDA driver without a GPU: what it says where there is none, and PyTorch on it over a simulator of the API that
it calls (``tests/cpp/cuda``), whose kernels, in CUDA C++, run on the processor. Nothing here says what a GPU does."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from outboard import drivers
from outboard.drivers import cuda_compiler, host_compiler
from tests.conftest import RunPython
from tests.device.test_host_driver import PREAMBLE

ROOT = Path(__file__).parents[2]

needs_clang = pytest.mark.skipif(
    host_compiler.installed() is None and shutil.which("clang") is None,
    reason="kernels are compiled by Clang: pip install ziglang",
)
#: A machine without NVIDIA's driver, whatever this one is.
NO_LIBRARY = {"OUTBOARD_CUDA_LIBRARY": "/no/such/libcuda.so.1"}
#: Has a program count calls of the simulator's functions.
COUNTING = """
import ctypes, os
count = ctypes.CDLL(os.environ["OUTBOARD_CUDA_LIBRARY"]).cuda_simulator_calls
count.argtypes = [ctypes.c_char_p]
"""


@pytest.fixture(scope="module")
def simulator(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Variables by which the CUDA driver finds the simulator instead of libcuda and NVRTC."""
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("the simulator is compiled here, and there is no g++")
    library = tmp_path_factory.mktemp("cuda") / "libcuda-simulator.so"
    folder = ROOT / "tests" / "cpp" / "cuda"
    includes = [f"-I{ROOT / each}" for each in ("include", "csrc/drivers", "tests/cpp/cuda")]
    command = [compiler, "-std=c++17", "-O1", "-fPIC", "-shared", *includes, *map(str, sorted(folder.glob("*.cpp")))]
    subprocess.run([*command, "-o", str(library), "-ldl", "-pthread"], check=True)
    return {
        "OUTBOARD_CUDA_LIBRARY": str(library),
        "OUTBOARD_CUDA_NVRTC": str(library),
        "CUDA_SIMULATOR_HOST": drivers.host(),
    }


@pytest.fixture(scope="module")
def with_cudnn(simulator: dict[str, str]) -> dict[str, str]:
    """The same, and the CUDA driver itself, which finds cuDNN there, too."""
    return simulator | {"OUTBOARD_DRIVER": "cuda", "OUTBOARD_CUDA_CUDNN": simulator["OUTBOARD_CUDA_LIBRARY"]}


@needs_clang
def test_pytorch_on_the_simulator(run_python: RunPython, simulator: dict[str, str], tmp_path: Path) -> None:
    run_python(
        PREAMBLE
        + """
x = torch.randn(70, 300)
check(lambda a: torch.softmax(a, 1) + a.sum(0), x)
check(torch.matmul, x, torch.randn(300, 65), rtol=1e-4, atol=1e-4)
model = torch.nn.Linear(20, 4)
copy = torch.nn.Linear(20, 4)
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
properties = module.get_device_properties(0)
assert (properties.driver, properties.dialect, properties.sub_group_size) == ("cuda", "cuda", 32), properties
""",
        OUTBOARD_DRIVER="cuda",
        OUTBOARD_CACHE_DIR=str(tmp_path),
        **simulator,
    )


@needs_clang
def test_the_driver_conforms(simulator: dict[str, str], tmp_path: Path) -> None:
    environment = os.environ | simulator | {"OUTBOARD_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "outboard_conformance", "--driver", drivers.cuda(), "--level", "kernels"]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "kept  kernels   work_items_know_their_places" in result.stdout


@needs_clang
def test_convolutions_by_the_library(run_python: RunPython, with_cudnn: dict[str, str], tmp_path: Path) -> None:
    """cuDNN's simulator carries out what PyTorch's layers ask for, eagerly and compiled, transposed or not."""
    run_python(
        PREAMBLE
        + COUNTING
        + """
executed = lambda: count(b"cudnnBackendExecute")
x, w, bias = torch.randn(2, 4, 9, 8), torch.randn(6, 2, 3, 3), torch.randn(6)
close = dict(rtol=1e-4, atol=1e-4)
convolve = lambda a, b, c: F.conv2d(a, b, c, stride=(2, 1), padding=1, groups=2)
spread = lambda a, b, c: F.conv_transpose2d(a, b, c, stride=2, padding=1, output_padding=1, groups=2)
for function, arguments in (
    (convolve, (x, w, bias)),
    (lambda a, b: F.conv1d(a, b, dilation=2), (torch.randn(2, 3, 11), torch.randn(5, 3, 2))),
    (F.conv3d, (torch.randn(1, 2, 4, 5, 6), torch.randn(3, 2, 2, 3, 2))),
    (torch.compile(lambda a, b, c: convolve(a, b, c).relu()), (x, w, bias)),
    (spread, (x, torch.randn(4, 3, 3, 3), bias)),
):
    before = executed()
    check(function, *arguments, **close)
    assert executed() > before, function
assert module.fallbacks() == {}, module.fallbacks()
""",
        OUTBOARD_LIBRARY="driver",
        OUTBOARD_CACHE_DIR=str(tmp_path),
        **with_cudnn,
    )


@needs_clang
def test_gradients_of_convolutions_by_the_library(
    run_python: RunPython, with_cudnn: dict[str, str], tmp_path: Path
) -> None:
    """cuDNN's simulator makes those of the source and of the weight, whichever are wanted, and a kernel of ours that of
    the bias; what cuDNN refuses after the plan was made is ours, too."""
    run_python(
        PREAMBLE
        + COUNTING
        + """
made = lambda: (count(b"cudnn: gradient of x"), count(b"cudnn: gradient of w"))
backward = torch.ops.aten.convolution_backward

def compare(function, tensors, rest, mask, by_library, **close):
    there, sizes = [each.to(name) for each in tensors], [tensors[0].shape[1]]
    before = made()
    found = function(*there, sizes, *rest, mask)
    module.synchronize()
    calls = tuple(b - a for a, b in zip(before, made()))
    exact = backward(*(each.double() for each in tensors), sizes, *rest, mask)
    for a, b in zip(found, exact, strict=True):
        assert (a is None) == (b is None)
        if b is not None:
            assert a.dtype == tensors[0].dtype
            torch.testing.assert_close(a.cpu().double(), b, **(close or dict(rtol=1e-4, atol=1e-4)))
    assert calls == by_library, (calls, by_library, mask)

x, w = torch.randn(2, 4, 9, 8), torch.randn(6, 2, 3, 3)
rest = [(2, 1), (1, 1), (1, 1), False, (0, 0), 2]
grad = torch.randn(2, 6, 5, 8)
for mask in ([True] * 3, [True, False, False], [False, True, False], [False, False, True], [False, True, True]):
    compare(backward, (grad, x, w), rest, mask, (int(mask[0]), int(mask[1])))
compare(torch.compile(backward), (grad, x, w), rest, [True] * 3, (1, 1))
# Refused after the plan was made, of other sizes: the first gradient is a kernel's of ours.
ctypes.CDLL(os.environ["OUTBOARD_CUDA_LIBRARY"]).cuda_simulator_fail(b"cudnnBackendCreateDescriptor", 1, 4003)
compare(backward, (torch.randn(3, 6, 5, 8), torch.randn(3, 4, 9, 8), w), rest, [True] * 3, (0, 1))
last = torch.channels_last
near = tuple(each.to(memory_format=last) for each in (grad, x, w))
compare(backward, near, rest, [True] * 3, (1, 1))
# Transposed, the gradient of the source is a convolution, which makes neither x nor w.
there, back = torch.randn(2, 4, 5, 6), torch.randn(2, 6, 10, 12)
rest = [(2, 2), (1, 1), (1, 1), True, (1, 1), 2]
compare(backward, (back, there, torch.randn(4, 3, 3, 3)), rest, [True] * 3, (0, 1))
tensors = [each.bfloat16() for each in (torch.randn(2, 5, 7), torch.randn(2, 3, 9), torch.randn(5, 3, 3))]
rest = [(1,), (0,), (1,), False, (0,), 1]
compare(backward, tensors, rest, [True] * 3, (1, 1), rtol=2e-2, atol=2e-2)
# In three dimensions and float64 the simulator finds nothing.
tensors = [torch.randn(sizes).double() for sizes in ((1, 3, 3, 3, 3), (1, 2, 4, 4, 4), (3, 2, 2, 2, 2))]
rest = [(1, 1, 1), (0, 0, 0), (1, 1, 1), False, (0, 0, 0), 1]
compare(backward, tensors, rest, [True] * 3, (0, 0))

net, copy = (torch.nn.Sequential(torch.nn.Conv2d(2, 4, 3, padding=1), torch.nn.ConvTranspose2d(4, 2, 2)) for _ in "ab")
copy.load_state_dict(net.state_dict())
image = torch.randn(2, 2, 6, 6)
before = made()
for each, where in ((net, "cpu"), (copy.to(name), name)):
    each(image.to(where)).square().sum().backward()
module.synchronize()
assert tuple(b - a for a, b in zip(before, made())) == (1, 2), made()  # a transposed convolution; two weights
for a, b in zip(net.parameters(), copy.parameters()):
    torch.testing.assert_close(b.grad.cpu(), a.grad, rtol=1e-4, atol=1e-4)
assert module.fallbacks() == {}, module.fallbacks()
""",
        OUTBOARD_LIBRARY="driver",
        OUTBOARD_CACHE_DIR=str(tmp_path),
        **with_cudnn,
    )


@needs_clang
def test_attention_by_the_library(run_python: RunPython, with_cudnn: dict[str, str], tmp_path: Path) -> None:
    """cuDNN's simulator carries out attention in halves, eager and compiled, with symbolic sizes, too; products and a
    softmax what needs a gradient, a mask, float32, dropout or only a few queries."""
    run_python(
        PREAMBLE
        + COUNTING
        + """
attended = lambda: count(b"cudnn: attention")
attend = F.scaled_dot_product_attention
heads = lambda batches, many, length, width: torch.randn(batches, length, many, width).half().transpose(1, 2)

def compare(function, tensors, by_library, **options):
    before = attended()
    with torch.no_grad():
        found = function(*(each.to(name) for each in tensors), **options).cpu()
        expected = attend(*(each.float() for each in tensors), **options)
    assert (attended() > before) == by_library, (by_library, options)
    torch.testing.assert_close(found.float(), expected, rtol=4e-3, atol=4e-3)

q, k, v = heads(2, 4, 40, 16), heads(2, 2, 50, 16), heads(2, 2, 50, 16)
grouped = dict(enable_gqa=True)
compare(attend, (q, k, v), True, **grouped)
compare(attend, (q, k, v), True, is_causal=True, scale=0.3, **grouped)
compare(attend, (q.contiguous(), k, v), True, scale=0.1, dropout_p=0.0, **grouped)
compare(torch.compile(attend), (q, k, v), True, is_causal=True, **grouped)
whole = torch.compile(attend, dynamic=True)
for length in (33, 47, 64):
    compare(whole, (heads(1, 2, length, 8),) * 3, True)
packed = torch.randn(2, 40, 3, 4, 16).half()
with torch.no_grad():
    parts = packed.to(name).permute(2, 0, 3, 1, 4)
    before = attended()
    found = attend(*parts)
    assert attended() == before + 1
    expected = attend(*packed.float().permute(2, 0, 3, 1, 4))
    torch.testing.assert_close(found.cpu().float(), expected, rtol=4e-3, atol=4e-3)
line = torch.randn(2 * 40 * 4 * 16 + 1).half()
for begin in (0, 1, 0):  # an odd address, which cuDNN refuses after the plan was made: our kernel computes
    part = lambda whole: whole[begin : begin + 2 * 40 * 4 * 16].view(2, 40, 4, 16).transpose(1, 2)
    before = attended()
    with torch.no_grad():
        found = attend(*[part(line.to(name))] * 3)
    assert attended() - before == 1 - begin, begin
    torch.testing.assert_close(found.cpu().float(), attend(*[part(line.float())] * 3), rtol=4e-3, atol=4e-3)
compare(attend, (heads(1, 2, 1, 16), heads(1, 2, 90, 16), heads(1, 2, 90, 16)), False)
compare(attend, (q.float(), k.float(), v.float()), False, **grouped)
mask = torch.ones(40, 50, dtype=torch.bool).tril(5)
found = attend(*(each.to(name) for each in (q, k, v)), mask.to(name), **grouped)
torch.testing.assert_close(found.cpu(), attend(q, k, v, mask, **grouped), rtol=4e-3, atol=4e-3)
before = attended()
there = [each.to(name).requires_grad_() for each in (q, q, q)]
attend(*there).square().sum().backward()
assert attended() == before and all(each.grad is not None for each in there)
os.environ["OUTBOARD_LIBRARY"] = "dialect"
compare(attend, (q, k, v), False, is_causal=True, scale=0.7, **grouped)
assert module.fallbacks() == {}, module.fallbacks()
""",
        OUTBOARD_LIBRARY="driver",
        OUTBOARD_CACHE_DIR=str(tmp_path),
        **with_cudnn,
    )


@needs_clang
def test_exported_attention_needs_no_library(run_python: RunPython, with_cudnn: dict[str, str]) -> None:
    """Where an exported model runs there may be none: it is taken apart, as on devices without a library."""
    run_python(
        PREAMBLE
        + """
from outboard.compiler.adapter.exported import decompose
class Attention(torch.nn.Module):
    def forward(self, x):
        return F.scaled_dot_product_attention(x, x, x)
x = torch.randn(1, 4, 64, 32, device=name).half()
with torch.no_grad():
    program = torch.export.export(Attention(), (x,))
found = {str(node.target) for node in decompose(program, 0).graph.nodes}
assert "aten.bmm.default" in found and not any("attention" in each for each in found), found
""",
        OUTBOARD_LIBRARY="driver",
        **with_cudnn,
    )


@needs_clang
def test_attention_is_measured(run_python: RunPython, with_cudnn: dict[str, str], tmp_path: Path) -> None:
    """Once for a class of sizes, and the faster one is taken: cuDNN or products and a softmax apart."""
    run_python(
        PREAMBLE
        + COUNTING
        + """
from outboard.compiler.choice import attention, libraries
attend = F.scaled_dot_product_attention
raced = []
def race(runs, clock=None):
    for run in runs.values():
        run()
    raced.append(sorted(runs))
    return {"dialect": 2.0, "driver": 1.0 if len(raced) == 1 else 3.0}
libraries.race = race
heads = lambda length: torch.randn(1, length, 4, 32).half().to(name).transpose(1, 2)
with torch.no_grad():
    for length, fused in ((70, True), (100, True), (140, False), (90, True), (40, False)):
        tensors = [heads(length) for _ in range(3)]
        before = count(b"cudnn: attention")
        found = attend(*tensors)
        module.synchronize()
        assert (count(b"cudnn: attention") > before) == (fused or length == 140), length
        torch.testing.assert_close(found.cpu(), attend(*(each.cpu() for each in tensors)), rtol=4e-3, atol=4e-3)
assert raced == [["dialect", "driver"]] * 2, raced  # 40 are too little work to be measured
""",
        OUTBOARD_LIBRARY="auto",
        OUTBOARD_CACHE_DIR=str(tmp_path),
        **with_cudnn,
    )


@needs_clang
def test_more_rows_than_a_launch_may_have(run_python: RunPython, simulator: dict[str, str]) -> None:
    """The driver refuses more than 65,535 work-groups in the second dimension, as CUDA does."""
    run_python(
        PREAMBLE
        + """
x, bias, places = torch.randn(66000, 70), torch.randn(70), torch.randint(0, 66000, (70001,))
check(torch.add, x, bias)
check(lambda a, i: a[i], x, places)
assert module.fallbacks() == {}
""",
        OUTBOARD_DRIVER="cuda",
        **simulator,
    )


@needs_clang
def test_a_gpu_is_a_device_once_and_without_being_asked_for(run_python: RunPython, simulator: dict[str, str]) -> None:
    """The simulator stands for two GPUs; the processor is none beside them."""
    run_python(
        PREAMBLE
        + """
from outboard import _C
assert module.device_count() == 2, module.device_count()
assert {module.get_device_properties(i).driver for i in range(2)} == {"cuda"}
there = torch.arange(1000, device=f"{name}:1")
assert there.to(f"{name}:0").sum().item() == 499500
assert not any(line.startswith("cuda: ") for line in _C.passed_over() + _C.problems())
""",
        OUTBOARD_DRIVER="",
        OCL_ICD_VENDORS="/no/such/folder",
        CUDA_SIMULATOR_DEVICES="2",
        **simulator,
    )


@needs_clang
def test_without_a_gpu_the_next_driver_serves(run_python: RunPython) -> None:
    """And that there is none is no problem."""
    printed = run_python(
        PREAMBLE
        + """
from outboard import _C, cli
assert (torch.ones(3, device=name) * 2).tolist() == [2, 2, 2]
assert any("no NVIDIA driver: /no/such/libcuda.so.1 not found" in line for line in _C.passed_over())
assert _C.problems() == []
cli.main(["doctor"])
""",
        OUTBOARD_DRIVER="",
        **NO_LIBRARY,
    )
    assert "  not used: cuda: no NVIDIA driver: /no/such/libcuda.so.1 not found" in printed


def test_who_asks_for_cuda_learns_what_is_missing(run_python: RunPython) -> None:
    printed = run_python(
        PREAMBLE + "from outboard import _C; print(module.device_count(), _C.problems())",
        OUTBOARD_DRIVER="cuda",
        **NO_LIBRARY,
    )
    assert printed.startswith("0 ") and "NVIDIA Container Toolkit" in printed


def test_nvrtc_is_found_in_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for place in ("cu13/lib/libnvrtc.so.13", "cuda_nvrtc/lib/libnvrtc.so.12"):
        library = tmp_path / "nvidia" / place
        library.parent.mkdir(parents=True)
        library.touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "nvidia", raising=False)
    found = cuda_compiler.installed()
    assert found is not None and found.name in ("libnvrtc.so.13", "libnvrtc.so.12")
    monkeypatch.delenv(cuda_compiler.VARIABLE, raising=False)
    cuda_compiler.expose()
    assert os.environ[cuda_compiler.VARIABLE] == str(found)
    monkeypatch.setenv(cuda_compiler.VARIABLE, "mine")
    cuda_compiler.expose()
    assert os.environ[cuda_compiler.VARIABLE] == "mine"


def test_cudnn_is_found_in_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = tmp_path / "nvidia" / "cudnn" / "lib" / "libcudnn.so.9"
    library.parent.mkdir(parents=True)
    library.touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "nvidia", raising=False)
    assert cuda_compiler.installed("OUTBOARD_CUDA_CUDNN") == library
