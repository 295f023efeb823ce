# SPDX-License-Identifier: Apache-2.0
"""Functions of the driver's library in place of kernels of our own: oneDNN, where the host driver finds it.

Run in processes of their own, on the processor and on a discrete device made of it (the strict driver), whose library
gets addresses that the host cannot read.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

from outboard.drivers import onednn
from tests.conftest import RunPython

DRIVERS = {
    "host": {"OUTBOARD_DRIVER": "host"},
    "strict": {"OUTBOARD_DRIVER": "strict", "OUTBOARD_STRICT_DELAY": "0"},
}
_SETUP = """
import copy, torch
name = torch._C._get_privateuse1_backend_name()
module = torch.get_device_module(name)
library = module.get_device_properties(0).library
assert library.startswith("oneDNN 3."), library

def compare(function, *operands, dtype=torch.float32):
    ours = [x.to(name, dtype) if isinstance(x, torch.Tensor) else x for x in operands]
    exact = [x.to(dtype).double() if isinstance(x, torch.Tensor) else x for x in operands]
    found, expected = function(*ours).cpu().double(), function(*exact)
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 1e-3}[dtype]
    assert (found - expected).abs().max() <= tolerance * expected.abs().max(), function
"""


def _one_dnn() -> Path | None:
    """The library of the package ``onednn-cpu-gomp``, or the one that the environment names."""
    named = Path(os.environ.get("OUTBOARD_HOST_ONEDNN", ""))
    return named if named.is_file() else onednn.installed()


@pytest.fixture(params=DRIVERS)
def on_library(request: pytest.FixtureRequest, run_python: RunPython, tmp_path: Path) -> RunPython:
    """Runs a program on a device with oneDNN, which carries out whatever it can."""
    library = _one_dnn()
    if library is None:
        pytest.skip("oneDNN is not there (pip install onednn-cpu-gomp)")
    if importlib.util.find_spec("ziglang") is None:
        pytest.skip("the host driver needs Clang (pip install ziglang)")
    environment = DRIVERS[request.param] | {
        "OUTBOARD_HOST_ONEDNN": str(library),
        "OUTBOARD_LIBRARY": "driver",
        "OUTBOARD_CACHE_DIR": str(tmp_path),
        "OUTBOARD_FALLBACK": "error",
    }
    if request.param == "strict":
        from outboard import drivers

        environment["OUTBOARD_STRICT_DRIVER"] = drivers.host()

    def run(source: str, **more: str) -> str:
        return run_python(_SETUP + source, **(environment | more))

    return run


def test_products(on_library: RunPython) -> None:
    """Of all layouts, dtypes and sizes, one plan for many of them."""
    on_library("""
for dtype in (torch.float32, torch.bfloat16):
    for m, k, n in ((3, 5, 7), (64, 100, 33), (1, 300, 200), (200, 1, 3)):
        a, b, c = torch.randn(m, k), torch.randn(k, n), torch.randn(n)
        compare(torch.mm, a, b, dtype=dtype)
        compare(lambda a, b: a.t() @ b.t(), a.t().contiguous(), b.t().contiguous(), dtype=dtype)
        compare(lambda a, b: a[:, 1:] @ b[1:], torch.randn(m, k + 1), torch.randn(k + 1, n), dtype=dtype)
        compare(torch.addmm, c, a, b, dtype=dtype)
        compare(torch.nn.functional.linear, a, b.t().contiguous(), c, dtype=dtype)
        compare(torch.nn.functional.linear, a.expand(4, m, k).contiguous(), b.t().contiguous(), None, dtype=dtype)
        compare(torch.bmm, torch.randn(4, m, k), torch.randn(4, k, n), dtype=dtype)
empty = torch.randn(0, 4, device=name) @ torch.randn(4, 5, device=name)
assert empty.shape == (0, 5)
none = torch.randn(3, 0, device=name) @ torch.randn(0, 5, device=name)
assert none.cpu().equal(torch.zeros(3, 5))
wide = torch.randn(5, device=name).expand(4, 5) @ torch.randn(5, 3, device=name)  # rows that share memory
assert wide.shape == (4, 3)
""")


def test_convolutions(on_library: RunPython) -> None:
    on_library("""
conv = torch.nn.functional.conv2d
for stride, padding, dilation, groups in ((1, 1, 1, 1), (2, 0, 1, 1), (1, 2, 2, 1), (1, 1, 1, 4)):
    x, weight, bias = torch.randn(2, 8, 15, 14), torch.randn(12, 8 // groups, 3, 3), torch.randn(12)
    call = lambda x, w, b: conv(x, w, b, stride, padding, dilation, groups)
    compare(call, x, weight, bias)
    compare(call, x.to(memory_format=torch.channels_last), weight, bias)
    compare(call, x, weight, None)
compare(torch.nn.functional.conv1d, torch.randn(2, 3, 40), torch.randn(5, 3, 7))
""")


def test_plans_call_it(on_library: RunPython) -> None:
    """Eager and compiled, and never where ``OUTBOARD_LIBRARY=dialect`` says so."""
    on_library("""
from torch.profiler import ProfilerActivity, profile
import os

def called(function, *operands):
    function(*operands)
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]) as profiler:
        function(*operands)
        torch.accelerator.synchronize()
    return {event.key for event in profiler.key_averages()}

a, b = torch.randn(100, 120, device=name), torch.randn(120, 90, device=name)
model = torch.nn.Sequential(torch.nn.Linear(120, 50), torch.nn.GELU(), torch.nn.Linear(50, 20)).to(name).eval()
with torch.no_grad():
    expected = copy.deepcopy(model).cpu()(a.cpu())
    compiled = torch.compile(model)
    for run in (model, compiled):
        torch.testing.assert_close(run(a).cpu(), expected, rtol=1e-4, atol=1e-5)
    for run in (model, compiled):
        assert any("aten::addmm" == key or "aten::linear" == key for key in called(run, a)), called(run, a)
bias = torch.randn(90, device=name)
for beta, alpha in ((1, 1), (2, 1), (1, 3), (1, 1), (0.5, 1), (1, 0.25)):
    expected = torch.addmm(bias.cpu(), a.cpu(), b.cpu(), beta=beta, alpha=alpha)
    torch.testing.assert_close(torch.addmm(bias, a, b, beta=beta, alpha=alpha).cpu(), expected, rtol=1e-4, atol=1e-4)
""")


def test_training(on_library: RunPython) -> None:
    on_library("""
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(8 * 36, 5))
ours = copy.deepcopy(model).to(name)
x, y = torch.randn(4, 3, 8, 8), torch.tensor([0, 1, 2, 3])
losses = []
for net, device in ((model, "cpu"), (ours, name)):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(x.to(device)), y.to(device))
        loss.backward()
        optimizer.step()
    losses.append(loss.item())
assert abs(losses[0] - losses[1]) < 1e-4 * abs(losses[0]) + 1e-5, losses
""")


def test_sizes_that_the_library_refuses_later(on_library: RunPython, request: pytest.FixtureRequest) -> None:
    """A plan is for many sizes; where the library has no function for some of them, kernels of our own compute."""
    from outboard import drivers

    wrapped = drivers.strict() if request.node.callspec.params["on_library"] == "strict" else drivers.host()
    faults = Path(drivers.sim()).with_name("liboutboard_faults.so")
    source = """
import ctypes, os
faults = ctypes.CDLL(os.environ["OUTBOARD_DRIVER"])
faults.outboard_faults_calls.restype = ctypes.c_uint64

def library_calls(function, *operands):
    before = faults.outboard_faults_calls(b"library_call")
    compare(function, *operands)
    return faults.outboard_faults_calls(b"library_call") - before

def refuse():
    faults.outboard_faults_fail(b"library_find", ctypes.c_uint64(1), 4)  # OB_UNSUPPORTED

right, bias = torch.randn(100, 40), torch.randn(40)
product = lambda rows: library_calls(torch.mm, torch.randn(rows, 100), right)
assert product(64) == 1
refuse()
assert [product(65), product(65), product(66)] == [0, 0, 1]

plain = lambda x, weight, b: torch.nn.functional.gelu(torch.addmm(b, x, weight))
compiled = torch.compile(plain, dynamic=True)
ours = lambda x, weight, b: (compiled if x.device.type == name else plain)(x, weight, b)
addmm = lambda rows: library_calls(ours, torch.randn(rows, 100), right, bias)
assert addmm(64) == addmm(70) == 1
refuse()
assert [addmm(71), addmm(71), addmm(72)] == [0, 0, 1]

images, filters = torch.randn(2, 8, 15, 14), torch.randn(12, 8, 3, 3)
convolution = lambda x: library_calls(torch.nn.functional.conv2d, x, filters, bias[:12])
assert convolution(images) == 1
refuse()
assert [convolution(images[:, :, 1:]), convolution(images[:, :, 2:])] == [0, 1]
"""
    on_library(source, OUTBOARD_DRIVER=str(faults), OUTBOARD_FAULTS_DRIVER=wrapped)


def test_auto_measures_and_remembers(on_library: RunPython) -> None:
    source = """
from outboard.compiler import statistics
compare(torch.mm, torch.randn(300, 300), torch.randn(300, 300))
print(statistics.snapshot()["measurements"])
"""
    assert int(on_library(source, OUTBOARD_LIBRARY="auto")) == 1
    assert int(on_library(source, OUTBOARD_LIBRARY="auto")) == 0


_EAGER = """
from outboard.compiler import statistics
from outboard.compiler.choice import libraries
{patch}
torch.manual_seed(0)
x, weight, bias = torch.randn(2, 100, 300), torch.randn(200, 300), torch.randn(200)
images, filters = torch.randn(2, 24, 30, 30), torch.randn(40, 24, 3, 3)

def results(device, dtype):
    leaves = [t.to(device, dtype).requires_grad_() for t in (x, weight, bias, images, filters)]
    y = torch.nn.functional.linear(*leaves[:3])
    z = torch.nn.functional.conv2d(*leaves[3:], stride=2, padding=1)
    (y.square().mean() + z.square().mean()).backward()
    return [y, z, y.transpose(1, 2) @ y] + [leaf.grad for leaf in leaves]

ours, exact = results(name, torch.float32), results("cpu", torch.float64)
for found, expected in zip(ours, exact, strict=True):
    assert (found.detach().cpu() - expected).abs().max() <= 1e-5 * expected.abs().max()
bits = sum(int(t.detach().cpu().view(torch.int32).sum(dtype=torch.int64)) for t in ours)
print(statistics.snapshot()["measurements"], bits)
"""
_REPLACE = "libraries.measure = lambda target, case: {{'driver': {driver}, 'dialect': 1.0}}"


@pytest.mark.parametrize("driver", [0.5, 2.0])
def test_results_are_right_whoever_computes(on_library: RunPython, driver: float) -> None:
    """And a second process computes the same bits without measuring."""
    auto = {"OUTBOARD_LIBRARY": "auto"}
    first = on_library(_EAGER.format(patch=_REPLACE.format(driver=driver)), **auto).split()
    second = on_library(_EAGER.format(patch="libraries.measure = None"), **auto).split()
    assert int(first[0]) > 0
    assert (int(second[0]), second[1]) == (0, first[1])


def test_measuring_is_no_part_of_a_capture(on_library: RunPython) -> None:
    """Of a call whose class nobody knows yet, made while a graph is captured; the graph holds the library's call."""
    source = """
from outboard.compiler import statistics
from outboard.compiler.choice import libraries
measure = libraries.measure

def judge(target, case):
    assert all(seconds > 0 for seconds in measure(target, case).values())
    return {"driver": 1.0, "dialect": 2.0}

libraries.measure = judge
a, b = torch.randn(200, 300), torch.randn(300, 400)
x, y = a.to(name), b.to(name)
graph = torch.accelerator.Graph()
graph.capture_begin()
z = x @ y
graph.capture_end()
for _ in range(2):
    x.mul_(2)
    graph.replay()
torch.testing.assert_close(z.cpu(), 4 * a @ b, rtol=1e-4, atol=1e-3)
print(statistics.snapshot()["measurements"])
"""
    assert int(on_library(source, OUTBOARD_LIBRARY="auto")) == 1


def test_typical_cases_can_be_measured(on_library: RunPython) -> None:
    on_library("""
from outboard.compiler.choice import libraries
from outboard.compiler.choice.libraries import ShapeClass
from outboard.compiler.target import target_of

for shapes in (
    ShapeClass("mm", torch.float32, (1, 1), (1, 8, 8, 8)),
    ShapeClass("mm", torch.bfloat16, (0, 0), (1, 1, 10, 10)),
    ShapeClass("bmm", torch.float32, (1, 0), (4, 6, 6, 6)),
    ShapeClass("convolution", torch.float32, (2, 0, 0, 1, 3, 3, 2, 2, 1, 1, 1, 1, 0, 0), (5, 5, 5, 5)),
    ShapeClass("convolution", torch.float32, (2, 0, 1, 40, 3, 3, 1, 1, 1, 1, 1, 1, 0, 0), (1, 1, 5, 5)),
):
    found = libraries.measure(target_of(0), libraries.typical(shapes))
    assert set(found) == {"dialect", "driver"} and all(seconds > 0 for seconds in found.values())
""")


def test_a_device_without_a_compiler(run_python: RunPython, tmp_path: Path) -> None:
    """The simulator has a library function and no language for kernels: the function is no fallback."""
    run_python(
        """
        import torch
        name = torch._C._get_privateuse1_backend_name()
        a, b = torch.randn(20, 30), torch.randn(30, 10)
        found = a.to(name) @ b.to(name)
        torch.testing.assert_close(found.cpu(), a @ b, rtol=1e-5, atol=1e-5)
        found = a.to(name).t().contiguous().t() @ b.to(name)
        torch.testing.assert_close(found.cpu(), a @ b, rtol=1e-5, atol=1e-5)
        fallbacks = torch.get_device_module(name).fallbacks()
        assert not any("mm" in op for op in fallbacks), fallbacks
        """,
        OUTBOARD_DRIVER="sim",
        OUTBOARD_CACHE_DIR=str(tmp_path),
    )
