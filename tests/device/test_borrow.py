# SPDX-License-Identifier: Apache-2.0
"""``outboard.borrow``: tensors and the stream in the hands of code that submits to the driver by itself."""

from __future__ import annotations

import ctypes
import gc
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

import outboard
from outboard import _C, drivers
from outboard_conformance.driver import CopyKind, Table
from tests.conftest import RunPython

FAULTS = drivers.opencl().replace("opencl", "faults")


def copy_by_driver(borrowed: Any, source: Tensor, target: Tensor) -> None:
    """What a vendor's code may do: submits a copy to the driver's stream."""
    Table(borrowed.driver).call(
        "copy",
        borrowed.stream,
        CopyKind.DEVICE_TO_DEVICE,
        borrowed.address(target),
        borrowed.address(source),
        source.nbytes,
    )


def copied(x: Tensor, y: Tensor) -> Tensor:
    with outboard.borrow(x, writes=[y]) as borrowed:
        copy_by_driver(borrowed, x, y)
    return y


@pytest.mark.parametrize("size", [1, 1000, 1 << 20])
def test_work_is_in_order(size: int, device: str) -> None:
    x = torch.zeros(size, device=device)
    for _ in range(20):
        x += 1
    y = copied(x, torch.empty_like(x))
    x.zero_()
    assert y.add(1).cpu().eq(21).all() and x.eq(0).all()


def test_work_in_the_block_is_in_order(device: str) -> None:
    x = torch.zeros(1 << 18, device=device)
    y, z = torch.empty_like(x), torch.empty_like(x)
    with outboard.borrow(x, writes=[y, z]) as borrowed:
        for target in (y, z):
            for _ in range(10):
                x += 1
            copy_by_driver(borrowed, x, target)
    assert y.eq(10).all() and z.eq(20).all()


def test_waits_wait_for_it(device: str, device_module: ModuleType) -> None:
    """Nothing else was submitted: the runtime must not take the stream for idle."""
    x = torch.arange(1 << 20, device=device, dtype=torch.float32)
    y = torch.empty_like(x)
    device_module.synchronize()
    with outboard.borrow(x, writes=[y]) as borrowed:
        for _ in range(3):
            copy_by_driver(borrowed, x, y)
            device_module.synchronize()
    device_module.synchronize()
    assert torch.equal(y.cpu(), torch.arange(1 << 20, dtype=torch.float32))


def test_the_current_stream_is_lent(device: str) -> None:
    side = torch.Stream(device)
    x = torch.ones(1000, device=device)
    with outboard.borrow(x) as borrowed:
        default = borrowed.stream
    torch.accelerator.synchronize()
    with side:
        x.add_(1)
        y = copied(x, torch.empty_like(x))
        with outboard.borrow(x) as borrowed:
            assert borrowed.stream != default
    torch.accelerator.current_stream().wait_stream(side)
    assert y.eq(2).all()


def test_addresses_are_of_elements(device: str) -> None:
    x = torch.arange(24.0, device=device).view(4, 6)
    view, empty = x[1:, 2:].t(), x[4:]
    with outboard.borrow(x, view, empty) as borrowed:
        assert borrowed.address(view) == borrowed.address(x) + 8 * 4
        assert borrowed.address(empty) == 0
        assert borrowed.device == x.device
        properties = _C.device_properties(x.device.index)
        assert borrowed.address(x) % properties["alignment"] == 0
        if properties["host_accessible"]:
            torch.accelerator.synchronize()
            assert ctypes.c_float.from_address(borrowed.address(view)).value == 8


def test_nothing_is_left(device: str, device_module: ModuleType) -> None:
    x, y = torch.ones(100_000, device=device), torch.empty(100_000, device=device)
    copied(x, y)
    gc.collect()
    before = device_module.memory_allocated()
    for _ in range(10):
        copied(x, y)
        with pytest.raises(RuntimeError), outboard.borrow(x, torch.ones(1)):
            pass
        with pytest.raises(ZeroDivisionError), outboard.borrow(x, writes=[y]):
            raise ZeroDivisionError
    made = torch.empty(1 << 20, device=device)
    copied(made, torch.empty_like(made))
    del made
    gc.collect()
    assert device_module.memory_allocated() == before


def test_what_is_borrowed_stays(device: str, device_module: ModuleType) -> None:
    """Tensors that nobody has any more, and a device that is full."""
    x = torch.full((1 << 20,), 3.0, device=device)
    address = 0
    with outboard.borrow(x) as borrowed:
        address = borrowed.address(x)
        limit = _C.memory_limit(0)
        _C.set_memory_limit(0, device_module.memory_reserved() + (4 << 20))
        try:
            others = [torch.full((1 << 20,), float(i), device=device) for i in range(6)]
            sums = [float(each.sum()) for each in others]
        finally:
            _C.set_memory_limit(0, limit)
        assert sums == [i * 2.0**20 for i in range(6)]
        assert borrowed.address(x) == address and _C.memory_state(x) == "device"
        kept = torch.empty_like(x)
    assert copied(x, kept).eq(3).all()


def test_contents_that_wait_arrive(device: str, wait_on_host: Callable[[Tensor], Tensor]) -> None:
    x = torch.randn(1000)
    for waiting in (wait_on_host(x), torch.zeros(1000, device=device)):
        expected = x if waiting.any() else torch.zeros(1000)
        assert torch.equal(copied(waiting, torch.empty(1000, device=device)).cpu(), expected)


def test_autograd_sees_what_is_written(device: str) -> None:
    w = torch.ones(8, device=device, requires_grad=True)
    x, y = torch.ones(8, device=device), torch.ones(8, device=device)
    loss = (w * y).sum()
    copied(x, y)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    with outboard.borrow(x, writes=[y]):
        loss = (w * y).sum()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    loss = (w * x).sum()
    copied(x, y)  # reads change nothing
    loss.backward()
    with torch.inference_mode():
        inside = torch.ones(8, device=device)
        copied(x, inside)
    with pytest.raises(RuntimeError, match="[Ii]nference"):
        copied(x, inside)
    with torch.no_grad():
        copied(x, w)


class Copy(torch.autograd.Function):
    """The identity, by the driver."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return copied(x, torch.empty_like(x))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return copied(gradient, torch.empty_like(gradient))


def test_functions_of_autograd_borrow(device: str) -> None:
    x = torch.randn(8, device=device, requires_grad=True)
    (Copy.apply(x * 2) ** 2).sum().backward()
    torch.testing.assert_close(x.grad, 8 * x.detach())


Refused = tuple[Callable[[Tensor, Tensor], Any], type[Exception], str]
REFUSED: dict[str, Refused] = {
    "the CPU": (lambda x, w: outboard.borrow(torch.ones(1)), RuntimeError, "on cpu.*Move it there first"),
    "nothing": (lambda x, w: outboard.borrow(), ValueError, "nothing to borrow"),
    "no tensor": (lambda x, w: outboard.borrow(x, 3), TypeError, "expects tensors, not int"),  # type: ignore[arg-type]
    "writes of one": (lambda x, w: outboard.borrow(writes=x), TypeError, "writes=\\[y\\]"),
    "a gradient": (lambda x, w: outboard.borrow(writes=[w]), RuntimeError, "torch.no_grad"),
    "a graph of autograd": (lambda x, w: outboard.borrow(writes=[w * 2]), RuntimeError, "torch.no_grad"),
    "shared elements": (
        lambda x, w: outboard.borrow(writes=[x[0].expand(4, 4)]),
        RuntimeError,
        "more than one",
    ),
    "a conjugate": (lambda x, w: outboard.borrow(x.to(torch.complex64).conj()), RuntimeError, "resolve_conj"),
    "sparse": (lambda x, w: outboard.borrow(x.to_sparse()), RuntimeError, "to_dense"),
    "meta": (lambda x, w: outboard.borrow(torch.ones(2, device="meta")), RuntimeError, "on meta"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str, device: str) -> None:
    call, error, says = REFUSED[case]
    x = torch.ones(4, 4, device=device)
    with pytest.raises(error, match=says), call(x, torch.ones(4, device=device, requires_grad=True)):
        raise AssertionError("borrowed")


def test_other_tensors_and_times_are_refused(device: str) -> None:
    x = torch.ones(4, device=device)
    borrow = outboard.borrow(x)
    with pytest.raises(RuntimeError, match="`with` statement"):
        borrow.address(x)
    with borrow as borrowed:
        with pytest.raises(ValueError, match="was not given to borrow"):
            borrowed.address(x[1:])
    for use in (lambda: borrowed.stream, lambda: borrowed.address(x)):
        with pytest.raises(RuntimeError, match="not borrowed any more"):
            use()
    with pytest.raises(RuntimeError, match="call borrow\\(\\) again"), borrow:
        pass


def test_captures_refuse(device: str) -> None:
    x = torch.ones(4, device=device)
    with pytest.raises(RuntimeError, match="while a graph is captured"):
        with torch.accelerator.Graph():
            with outboard.borrow(x):
                pass
    assert copied(x, torch.empty_like(x)).eq(1).all()


def test_function_transforms_refuse(device: str) -> None:
    x = torch.ones(4, 4, device=device)
    with pytest.raises(RuntimeError, match="torch.library.custom_op"):
        torch.func.vmap(lambda row: copied(row, torch.empty_like(row)))(x)


def test_compiled_functions_run_it_as_it_is(device: str) -> None:
    x = torch.arange(5.0, device=device)

    def step(x: Tensor) -> Tensor:
        y = torch.empty_like(x)
        z = x * 2
        with outboard.borrow(z, writes=[y]) as borrowed:
            copy_by_driver(borrowed, z, y)
        return y + 1

    torch._dynamo.reset()
    assert torch.equal(torch.compile(step)(x).cpu(), torch.arange(5.0) * 2 + 1)
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported, match="borrow"):
        torch.compile(step, fullgraph=True)(x)


def test_threads_borrow_the_same(device: str) -> None:
    x = torch.full((10_000,), 2.0, device=device)
    results: list[Tensor] = []

    def work() -> None:
        for _ in range(50):
            y = copied(x, torch.empty_like(x))
        results.append(y)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(bool(y.eq(2).all()) for y in results) and len(results) == 3


FAULTY = """
import ctypes, gc, torch, outboard
from outboard import _C, drivers
from outboard_conformance.driver import CopyKind, Failed, Table

device = torch._C._get_privateuse1_backend_name()
module = torch.get_device_module(device)
faults = ctypes.CDLL(drivers.opencl().replace("opencl", "faults"))
violations = ctypes.CDLL(drivers.strict()).outboard_strict_violations
violations.restype = ctypes.c_uint64
numbers = torch.arange(300_000.0)

def copied():
    x = numbers.to(device) + 1
    y = torch.empty_like(x)
    with outboard.borrow(x, writes=[y]) as borrowed:
        places = borrowed.address(y), borrowed.address(x)
        Table(borrowed.driver).call("copy", borrowed.stream, CopyKind.DEVICE_TO_DEVICE, *places, x.nbytes)
    return y.cpu()

assert torch.equal(copied(), numbers + 1)
module.synchronize()
gc.collect()
before, failed = module.memory_allocated(), 0
for function in ("memory_alloc", "copy", "fill", "launch", "event_record", "stream_wait", "event_create"):
    for nth in (1, 2):
        module.empty_cache()
        faults.outboard_faults_fail(function.encode(), ctypes.c_uint64(nth), 7)
        try:
            copied()
        except Exception as error:
            failed += 1
            assert isinstance(error, (RuntimeError, Failed)), error
        faults.outboard_faults_fail(function.encode(), ctypes.c_uint64(0), 0)
        try:
            module.synchronize()
        except RuntimeError:
            pass
        gc.collect()
        assert module.memory_allocated() == before, (function, nth)
        assert torch.equal(copied(), numbers + 1)
print(failed > 5, violations())
"""


@pytest.mark.full("10 s: failures of each of the driver's calls")
def test_failures_lose_nothing(device: str, run_python: RunPython) -> None:
    """Calls of the driver fail in turn, on a discrete device that checks its caller."""
    environment = {"OUTBOARD_DRIVER": FAULTS, "OUTBOARD_FAULTS_DRIVER": drivers.strict(), "OUTBOARD_STRICT_DELAY": "50"}
    assert run_python(FAULTY, **environment) == "True 0\n"


def test_two_devices(device: str, run_python: RunPython) -> None:
    printed = run_python(
        """
        import torch, outboard

        device = torch._C._get_privateuse1_backend_name()
        first, second = (torch.ones(4, device=f"{device}:{i}") for i in (0, 1))
        try:
            with outboard.borrow(first, second):
                pass
        except RuntimeError as error:
            print("Borrow those of each by themselves" in str(error))
        with outboard.borrow(first) as one, outboard.borrow(second) as other:
            print(one.stream != other.stream, other.device.index)
        """,
        OUTBOARD_NUM_DEVICES="2",
    )
    assert printed == "True\nTrue 1\n"
