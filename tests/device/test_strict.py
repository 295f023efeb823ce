# SPDX-License-Identifier: Apache-2.0
"""Small, failing and lost devices: the strict driver around OpenCL, in processes of their own."""

from __future__ import annotations

import pytest

from outboard import drivers
from outboard.drivers import opencl, strict
from tests.conftest import RunPython

FAULTS = opencl().replace("opencl", "faults")

PRELUDE = """
import ctypes, torch
from outboard import drivers
device = torch._C._get_privateuse1_backend_name()
module = torch.get_device_module(device)
violations = ctypes.CDLL(drivers.strict()).outboard_strict_violations
violations.restype = ctypes.c_uint64
faults = ctypes.CDLL(drivers.opencl().replace("opencl", "faults"))
def fail(function, nth, status):
    faults.outboard_faults_fail(function.encode(), ctypes.c_uint64(nth), status)
"""

#: The strict driver with failures on request between it and the runtime.
FAILING = {"OUTBOARD_DRIVER": FAULTS, "OUTBOARD_FAULTS_DRIVER": strict(), "OUTBOARD_STRICT_DELAY": "50"}


def test_its_name_is_known() -> None:
    assert drivers.select("strict") == ([strict()], [])


def test_every_function_fails_in_turn(device: str, run_python: RunPython) -> None:
    run_python(
        PRELUDE
        + """
cpu = torch.arange(60_000.)
def step():
    x = cpu.to(device)
    pinned = (cpu + 1).pin_memory()
    y = pinned.to(device, non_blocking=True)
    side = torch.Stream(device)
    with side:
        z = x * 2
    torch.accelerator.current_stream().wait_stream(side)
    back = torch.empty_like(pinned).pin_memory()
    back.copy_(y + z, non_blocking=True)
    torch.accelerator.synchronize()
    assert torch.equal(back, cpu * 3 + 1)
    assert torch.equal((y[::2] - z[::2]).cpu(), (1 - cpu)[::2])
    module.empty_cache()
step()
failed = 0
for function in ("memory_alloc", "memory_free", "host_alloc", "stream_create", "stream_wait", "stream_wait_event",
                 "event_create", "event_record", "event_wait", "copy", "fill", "launch"):
    for nth in (1, 2, 3):
        fail(function, nth, 7)
        try:
            step()
        except RuntimeError as error:
            failed += 1
        fail(function, 0, 0)
        try:
            torch.accelerator.synchronize()  # what was found in the middle of something else
        except RuntimeError:
            pass
        step()
assert failed > 15, failed
assert violations() == 0
""",
        timeout=300,
        **FAILING,
    )


def test_a_lost_device_says_so_and_the_other_one_goes_on(device: str, run_python: RunPython) -> None:
    out = run_python(
        PRELUDE
        + """
x, other = torch.ones(1000, device=f"{device}:0"), torch.ones(1000, device=f"{device}:1")
y = x + 1
torch.accelerator.synchronize()
fail("stream_wait", 1, 6)
target = torch.zeros(1000)
uses = {
    "first": lambda: target.copy_(y),
    "copy": lambda: target.copy_(y),
    "operator": lambda: (x + 1).cpu(),
    "synchronize": lambda: torch.accelerator.synchronize(x.device),
    "stream": lambda: torch.Stream(x.device).record_event(),
    "upload": lambda: x.copy_(torch.zeros(1000)),
    "peer": lambda: other.copy_(x),
}
for name, use in uses.items():
    try:
        use()
    except torch.AcceleratorError as error:
        assert "lost" in str(error) and "checkpoint" in str(error), (name, error)
    else:
        raise SystemExit(f"{name} raised nothing")
torch.testing.assert_close((other + 1).cpu(), torch.full((1000,), 2.0))
assert violations() == 0
print("ended")
""",
        OUTBOARD_NUM_DEVICES="2",
        **FAILING,
    )
    assert "ended" in out


@pytest.mark.parametrize("group", [1, 32])
def test_kernels_keep_to_the_limits_of_a_small_device(device: str, run_python: RunPython, group: int) -> None:
    run_python(
        PRELUDE
        + """
import torch.nn.functional as F
def agree(function, *arguments):
    torch.testing.assert_close(
        function(*[a.to(device) for a in arguments]).cpu(), function(*arguments), rtol=1e-4, atol=1e-4)
x = torch.randn(70, 300)
agree(lambda x: x.sort().values, x)
agree(lambda x: x.cumsum(1), x)
agree(lambda x: x @ x.t(), x)
agree(lambda x: x.softmax(1).sum(0), x)
image, weight = torch.randn(2, 3, 8, 8), torch.randn(4, 3, 3, 3)
backward = torch.ops.aten.convolution_backward
agree(lambda y, x, w: backward(y, x, w, [4], [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [False, False, True])[2],
      torch.randn(2, 4, 6, 6), image, weight)
agree(F.conv2d, image, weight)
assert not module.fallbacks(), module.fallbacks()
agree(lambda x: x.double().exp(), x)  # no double precision: on the CPU, counted
assert module.fallbacks()
try:
    torch.ones(20 << 20, device=device).add_(1)
except torch.OutOfMemoryError as error:
    assert "64" in str(error) and "max_allocation" in str(error), error
else:
    raise SystemExit("80 MiB in one piece")
assert violations() == 0
""",
        timeout=300,
        OUTBOARD_DRIVER="strict",
        OUTBOARD_STRICT_TYPE="gpu",
        OUTBOARD_STRICT_WORK_GROUP=str(group),
        OUTBOARD_STRICT_LOCAL_MEMORY="1KiB",
        OUTBOARD_STRICT_MAX_ALLOCATION="64MiB",
        OUTBOARD_STRICT_FP64="0",
        OUTBOARD_STRICT_DELAY="0",
    )


def test_a_processor_with_little_local_memory_multiplies(device: str, run_python: RunPython) -> None:
    run_python(
        PRELUDE
        + """
x = torch.randn(130, 300)
torch.testing.assert_close((x.to(device) @ x.to(device).t()).cpu(), x @ x.t(), rtol=1e-4, atol=1e-4)
assert not module.fallbacks() and violations() == 0
""",
        OUTBOARD_DRIVER="strict",
        OUTBOARD_STRICT_LOCAL_MEMORY="1KiB",
    )


def test_an_option_that_makes_no_sense_is_named(run_python: RunPython) -> None:
    out = run_python(
        """
import torch
try:
    torch.ones(1, device=torch._C._get_privateuse1_backend_name())
except RuntimeError as error:
    print(error)
""",
        OUTBOARD_DRIVER="strict",
        OUTBOARD_STRICT_WORK_GROUP="many",
    )
    assert "OUTBOARD_STRICT_WORK_GROUP" in out


def test_a_device_without_doubles_keeps_them_and_leaves_computing_to_the_cpu(
    device: str, run_python: RunPython
) -> None:
    run_python(
        PRELUDE
        + """
cpu = torch.randn(40, 30, dtype=torch.float64)
x = cpu.to(device)
assert torch.equal(x.cpu(), cpu) and torch.equal(x.t()[3:].cpu(), cpu.t()[3:])
assert torch.equal(x.clone().cpu(), cpu) and torch.equal(torch.cat([x, x]).cpu(), torch.cat([cpu, cpu]))
assert torch.zeros(3, dtype=torch.float64, device=device).tolist() == [0.0] * 3
assert torch.full((2,), 0.1, dtype=torch.float64, device=device).tolist() == [0.1] * 2
module.reset_fallbacks()
results = {
    "mul": x * 2, "mm": x @ x.t(), "sum": x.sum(0), "softmax": x.softmax(1), "sort": x.sort(1).values,
    "to float": x.float(), "cumsum": x.cumsum(0), "index": x[torch.arange(5, device=device)],
    "compiled": torch.compile(lambda x: (x.exp() + 1).sum(1))(x), "complex": torch.complex(x, x) * 2,
}
expected = {
    "mul": cpu * 2, "mm": cpu @ cpu.t(), "sum": cpu.sum(0), "softmax": cpu.softmax(1), "sort": cpu.sort(1).values,
    "to float": cpu.float(), "cumsum": cpu.cumsum(0), "index": cpu[torch.arange(5)],
    "compiled": (cpu.exp() + 1).sum(1), "complex": torch.complex(cpu, cpu) * 2,
}
for name, result in results.items():
    torch.testing.assert_close(result.cpu(), expected[name])
assert {"aten::mul.Tensor", "aten::mm", "aten::sum.dim_IntList"} <= module.fallbacks().keys(), module.fallbacks()
# Sizes and numbers in formulas need no doubles.
module.reset_fallbacks()
image, grid = torch.randn(2, 3, 8, 9), torch.rand(2, 5, 5, 2) * 2 - 1
sample = lambda image, grid: torch.nn.functional.grid_sample(image, grid, align_corners=False)
torch.testing.assert_close(sample(image.to(device), grid.to(device)).cpu(), sample(image, grid))
edges = torch.tensor([0.1, 0.3, 0.5])
assert torch.bucketize(edges.to(device), edges.to(device), right=True).tolist() == [1, 2, 3]
assert torch.bucketize(0.3, edges.to(device)).item() == torch.bucketize(0.3, edges).item()
halves = torch.randn(50, dtype=torch.float16)
torch.testing.assert_close((halves.to(device) * 3).sin().cpu(), (halves * 3).sin())
assert not module.fallbacks(), module.fallbacks()
assert violations() == 0
""",
        timeout=300,
        OUTBOARD_DRIVER="strict",
        OUTBOARD_STRICT_TYPE="gpu",
        OUTBOARD_STRICT_WORK_GROUP="32",
        OUTBOARD_STRICT_FP64="0",
        OUTBOARD_STRICT_FP16="0",
        OUTBOARD_STRICT_DELAY="0",
    )


def test_a_device_without_atomics_of_64_bits(device: str, run_python: RunPython) -> None:
    """Where additions are atomic: not where vectors are explicit."""
    run_python(
        PRELUDE
        + """
place, values = torch.arange(50) % 5, torch.arange(50)
add = lambda place, values: torch.zeros(5, dtype=values.dtype, device=values.device).index_add_(0, place, values)
large = 2**40 + 12345 * values - 2**33 * (values % 3)
for dtype in (torch.float32, torch.int32, torch.bfloat16):
    torch.testing.assert_close(add(place.to(device), values.to(device, dtype)).cpu(), add(place, values.to(dtype)))
for numbers in (values, -values, large, -large, 2**32 - 1 - values):
    assert torch.equal(add(place.to(device), numbers.to(device)).cpu(), add(place, numbers))
assert not module.fallbacks(), module.fallbacks()
torch.testing.assert_close(add(place.to(device), values.double().to(device)).cpu(), add(place, values.double()))
assert module.fallbacks() == {"aten::index_add_": 1}, module.fallbacks()
assert violations() == 0
""",
        OUTBOARD_DRIVER="strict",
        OUTBOARD_STRICT_TYPE="gpu",
        OUTBOARD_STRICT_VECTOR_WIDTH="1",
        OUTBOARD_STRICT_INT64_ATOMICS="0",
        OUTBOARD_STRICT_DELAY="0",
    )


def test_many_results_that_meet_in_little_local_memory(device: str, run_python: RunPython) -> None:
    run_python(
        PRELUDE
        + """
def several(x):
    return x.argmax(1), x.argmin(1), x.sum(1)
x = torch.randn(8, 500)
for ours, theirs in zip(torch.compile(several)(x.to(device)), several(x), strict=True):
    torch.testing.assert_close(ours.cpu(), theirs)
assert not module.fallbacks(), module.fallbacks()
assert violations() == 0
""",
        OUTBOARD_DRIVER="strict",
        OUTBOARD_STRICT_TYPE="gpu",
        OUTBOARD_STRICT_WORK_GROUP="256",
        OUTBOARD_STRICT_LOCAL_MEMORY="1KiB",
        OUTBOARD_STRICT_DELAY="0",
    )


def test_a_driver_that_aligns_allocations_to_less_than_an_element_is_refused(
    device: str, run_python: RunPython
) -> None:
    out = run_python(
        "import torch, outboard; torch.ones(3, device=torch._C._get_privateuse1_backend_name())",
        check=False,
        OUTBOARD_DRIVER="strict",
        OUTBOARD_STRICT_ALIGNMENT="8",
    )
    assert "aligns allocations to 8 bytes" in out
