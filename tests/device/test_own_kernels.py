# SPDX-License-Identifier: Apache-2.0
"""Kernels that a program brings: launched by themselves (``RawKernel``), and as operators (``outboard.kernel``)."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import outboard
from outboard import _C
from outboard.compiler import dialects
from tests.conftest import RunPython

#: y = factor * x for n numbers, in the words that all dialects share.
SCALE = """
OB_KERNEL void scale(OB_GLOBAL const float *x, OB_GLOBAL float *y, float factor, long n) {
  const long i = OB_ITEM_ID(0);
  if (i < n) y[i] = factor * x[i];
}
"""
#: Twice what PyTorch has, so that nobody takes one for the other.
SILU = """
OB_KERNEL void silu(OB_GLOBAL const float *x, OB_GLOBAL float *y, long n) {
  const long i = OB_ITEM_ID(0);
  if (i < n) y[i] = 2 * x[i] / (1 + exp(-x[i]));
}
"""
Implement = Callable[..., Any]


@pytest.fixture(autouse=True)
def _has_a_dialect(device: str) -> None:
    if not dialects.is_known(_C.device_properties(0)["dialect"]):
        pytest.skip("the device takes no programs")


@pytest.fixture
def implement() -> Iterator[Implement]:
    """``outboard.kernel``, whose implementations end with the test."""
    made: list[Any] = []

    def kernel(*args: Any, **kwargs: Any) -> Any:
        made.append(outboard.kernel(*args, **kwargs))
        return made[-1]

    torch._dynamo.reset()
    yield kernel
    for each in made:
        each.remove()
    torch._dynamo.reset()


def groups(numbers: int) -> int:
    return -(-numbers // 16)


def scale(implement: Implement, operator: str, **more: Any) -> Any:
    """SCALE as an operator ``(Tensor x, float factor) -> Tensor``."""
    return implement(
        operator,
        SCALE,
        "scale",
        **{
            "grid": lambda x, factor, y: groups(x.numel()),
            "group": 16,
            "arguments": lambda x, factor, y: (x, y, factor, x.numel()),
        }
        | more,
    )


def silu(implement: Implement, **more: Any) -> Any:
    arguments = {"grid": lambda x, y: groups(x.numel()), "group": 16, "arguments": lambda x, y: (x, y, x.numel())}
    return implement("aten::silu", SILU, "silu", **arguments | more)


def test_a_raw_kernel_is_in_order(device: str) -> None:
    kernel = outboard.RawKernel(SCALE, "scale")
    x = torch.zeros(1000, device=device)
    y = torch.empty_like(x)
    for step in range(20):
        x += 1
        kernel(groups(1000), 16, (x, y, 2.0, 1000))
        x -= y / 2 - step - 1
    x.zero_()
    assert y.cpu().eq(40).all()


def test_a_raw_kernel_takes_typed_numbers_and_views(device: str) -> None:
    source = """
OB_KERNEL void store(OB_GLOBAL long *out, OB_GLOBAL const long *absent, uchar a, short b, int c, long d, int e,
                     OB_GLOBAL const float *f) {
  out[0] = a; out[1] = b; out[2] = c; out[3] = d; out[4] = e; out[5] = (long)f[0]; out[6] = absent == 0;
}
"""
    kernel = outboard.RawKernel(source, "store")
    out = torch.empty(7, dtype=torch.int64, device=device)
    values = torch.arange(6.0, device=device)
    small = [ctypes.c_uint8(200), numpy.int16(-300), ctypes.c_int32(-(2**31))]
    kernel(1, 1, [out, None, small, -(2**40), True, values[4:]])
    assert out.tolist() == [200, -300, -(2**31), -(2**40), 1, 4, 1]


def test_grids_have_three_dimensions(device: str) -> None:
    source = """
OB_KERNEL void where(OB_GLOBAL int *out) {
  const long at = (OB_ITEM_ID(2) * OB_ITEM_COUNT(1) + OB_ITEM_ID(1)) * OB_ITEM_COUNT(0) + OB_ITEM_ID(0);
  out[at] = (int)(OB_GROUP_ID(0) + 10 * OB_GROUP_ID(1) + 100 * OB_GROUP_ID(2));
}
"""
    out = torch.full((3, 2, 4), -1, dtype=torch.int32, device=device)
    kernel = outboard.RawKernel(source, "where")
    kernel((0, 2, 3), 1, [out])
    assert out.eq(-1).all()
    kernel((2, 1, 3), (2, 2), [out])
    assert out[:, 0].tolist() == [[0, 0, 1, 1], [100, 100, 101, 101], [200, 200, 201, 201]]


def test_it_is_recorded(device: str) -> None:
    kernel = outboard.RawKernel(SCALE, "scale")
    x, y = torch.ones(100, device=device), torch.empty(100, device=device)
    kernel(groups(100), 16, (x, y, 3.0, 100))
    graph = torch.accelerator.Graph()
    with graph:
        kernel(groups(100), 16, (x, y, 5.0, 100))
    del kernel
    x.fill_(2)
    assert y.eq(3).all()
    graph.replay()
    assert y.eq(10).all()


def test_a_binary_runs_again(device: str) -> None:
    x, y = torch.ones(100, device=device), torch.empty(100, device=device)
    binary = outboard.RawKernel(SCALE, "scale").binary()
    if not binary:
        pytest.skip("the driver gives no binaries")
    outboard.RawKernel(binary=binary, entry="scale")(groups(100), 16, (x, y, 7.0, 100))
    assert y.eq(7).all()
    with pytest.raises(RuntimeError, match="finding a kernel failed"):
        outboard.RawKernel(binary=binary, entry="other")(1, 1, ())
    with pytest.raises(RuntimeError, match="loading a program failed"):
        outboard.RawKernel(binary=b"no program", entry="scale")(1, 1, ())


def test_a_wrong_number_of_arguments_is_told(device: str, device_module: ModuleType) -> None:
    if device_module.get_device_properties(0).driver != "host":
        pytest.skip("the texts of the host driver")
    x = torch.ones(8, device=device)
    for given, says in (
        ((x, x, 2.0), "scale takes 4 arguments, and was given 3"),
        ((x, x, ctypes.c_double(2.0), 8), "argument 2 is a number of 4 bytes, and was given a number of 8 bytes"),
        ((x, 1, 2.0, 8), "argument 1 is a pointer, and was given a number of 8 bytes"),
    ):
        with pytest.raises(RuntimeError, match=says):
            outboard.RawKernel(SCALE, "scale")(1, 16, given)
            device_module.synchronize()


Call = Callable[[Any, Tensor], Any]
WRONG: dict[str, tuple[Call, type[Exception], str]] = {
    "a text": (lambda k, x: k(1, 16, (x, x, "2", 8)), TypeError, "argument 2 is a str"),
    "a number too large": (lambda k, x: k(1, 16, (x, x, 2.0, 2**70)), OverflowError, "argument 3"),
    "a tensor of the CPU": (lambda k, x: k(1, 16, (x, torch.ones(8), 2.0, 8)), RuntimeError, "on cpu"),
    "a group of nothing": (lambda k, x: k(1, 0, (x, x, 2.0, 8)), ValueError, "an item in each dimension"),
    "a group too large": (lambda k, x: k(1, 2**30, (x, x, 2.0, 8)), RuntimeError, "work-groups of"),
    "no group": (lambda k, x: k(1, None, (x, x, 2.0, 8)), ValueError, "`group` is one to three numbers"),
    "a group of 64 bits": (lambda k, x: k(1, 2**40, (x, x, 2.0, 8)), ValueError, "`group` .* of at most 32 bits"),
    "half a group": (lambda k, x: k(0.5, 16, (x, x, 2.0, 8)), ValueError, "`grid` is one to three numbers"),
    "items of 66 bits": (lambda k, x: k(2**62, 16, (x, x, 2.0, 8)), ValueError, "more items than 64 bits count"),
    "items of 64 bits": (lambda k, x: k((2**32, 2**32), 1, (x, x, 2.0, 8)), ValueError, "more items than 64 bits"),
    "four dimensions": (lambda k, x: k((1, 1, 1, 1), 1, (x, x, 2.0, 8)), ValueError, "`grid` is one to three"),
    "a conjugate": (lambda k, x: k(1, 16, (x.to(torch.complex64).conj(), x, 2.0, 8)), RuntimeError, "resolve_conj"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_calls_are_refused(case: str, device: str) -> None:
    call, error, says = WRONG[case]
    x = torch.ones(8, device=device)
    with pytest.raises(error, match=says):
        call(outboard.RawKernel(SCALE, "scale"), x)
    assert x.eq(1).all()


def test_what_the_compiler_says_is_told(device: str) -> None:
    x = torch.ones(8, device=device)
    with pytest.raises(RuntimeError, match="no_such_variable"):
        outboard.RawKernel("OB_KERNEL void wrong(OB_GLOBAL float *x) { x[0] = no_such_variable; }", "wrong")(1, 1, (x,))
    with pytest.raises(RuntimeError, match="finding a kernel failed"):
        outboard.RawKernel(SCALE, "other")(1, 1, (x,))
    with pytest.raises(RuntimeError, match="written in fortran, and the device takes programs in"):
        outboard.RawKernel(SCALE, "scale", dialect="fortran")(1, 1, (x,))
    for given in ({}, {"source": SCALE, "binary": b"1"}):
        with pytest.raises(ValueError, match="one of them"):
            outboard.RawKernel(entry="scale", **given)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="needs a name"):
        outboard.RawKernel(SCALE)
    assert x.eq(1).all()


NO_TEXT: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "source": ({"source": SCALE.encode()}, TypeError, "`source` of a kernel is text, not bytes"),
    "entry": ({"entry": 3}, TypeError, "`entry` of a kernel is text"),
    "options": ({"options": ["-O3"]}, TypeError, "`options` of a kernel is text, not list"),
    "dialect": ({"dialect": ["opencl-c"]}, TypeError, "`dialect` of a kernel is text"),
    "binary": ({"source": None, "binary": "abc"}, TypeError, "`binary` is bytes"),
    "a zero byte": ({"entry": "scale\0r"}, ValueError, "`entry` of a kernel has a zero byte"),
}


@pytest.mark.parametrize("case", NO_TEXT)
def test_what_is_no_text_is_refused(case: str) -> None:
    given, error, says = NO_TEXT[case]
    with pytest.raises(error, match=says):
        outboard.RawKernel(**{"source": SCALE, "entry": "scale"} | given)


def test_the_devices_own_language_is_taken(device: str) -> None:
    if _C.device_properties(0)["dialect"] != "opencl-c":
        pytest.skip("of another language")
    source = "kernel void fill(global float *x, float value) { x[get_global_id(0)] = value; }"
    x = torch.ones(8, device=device)
    outboard.RawKernel(source, "fill", dialect="opencl-c")(8, 1, (x, 4.0))
    assert x.eq(4).all()


def test_an_operator_of_ones_own(implement: Implement, device: str, device_module: ModuleType) -> None:
    scale(implement, "outboard_test_own::scale(Tensor x, float factor=3.0) -> Tensor")
    op = torch.ops.outboard_test_own.scale
    torch.library.register_autograd(
        "outboard_test_own::scale",
        lambda ctx, gradient: (op(gradient, ctx.factor), None),
        setup_context=lambda ctx, inputs, output: setattr(ctx, "factor", inputs[1]),
    )
    device_module.reset_fallbacks()
    for function in (lambda x: op(x * 2, 5.0) + 1, torch.compile(lambda x: op(x * 2, 5.0) + 1, fullgraph=True)):
        x = torch.randn(10, 7)
        moved = x.to(device).requires_grad_()
        y = function(moved)
        torch.testing.assert_close(y.cpu(), x * 10 + 1)
        y.sum().backward()
        assert moved.grad is not None and moved.grad.eq(10).all()
    assert op(torch.ones(3, device=device)).eq(3).all() and op(torch.ones(3, 0, device=device)).shape == (3, 0)
    strided = torch.randn(6, 8)
    torch.testing.assert_close(op(strided.to(device).t()[1::2], 2.0).cpu(), strided.t()[1::2] * 2)
    assert not device_module.fallbacks()


def test_an_operator_of_pytorchs(implement: Implement, device: str, device_module: ModuleType) -> None:
    silu(implement)
    x = torch.randn(33, requires_grad=True)
    moved = x.detach().to(device).requires_grad_()
    device_module.reset_fallbacks()
    torch.testing.assert_close(F.silu(moved).cpu(), 2 * F.silu(x))
    torch.testing.assert_close(torch.compile(lambda x: F.silu(x * 1) + 1)(moved).cpu(), 2 * F.silu(x) + 1)
    F.silu(x).sum().backward()
    F.silu(moved).sum().backward()
    torch.testing.assert_close(moved.grad, x.grad, check_device=False)  # PyTorch's formula
    assert not device_module.fallbacks()


def test_it_ends(implement: Implement, device: str) -> None:
    x = torch.randn(33, device=device)
    expected = F.silu(x)
    made = silu(implement)
    assert torch.equal(F.silu(x), F.silu(x)) and not torch.allclose(F.silu(x), expected)
    made.remove()
    torch.testing.assert_close(F.silu(x), expected)


def test_several_end_in_any_order(implement: Implement, device: str) -> None:
    x = torch.randn(33, device=device)
    kept = F.silu(x)
    only = {"when": lambda x: x.dim() == 1}
    first, second, third = silu(implement), silu(implement, **only), silu(implement, when=lambda x: False)
    first.remove()
    assert F.silu(x).allclose(2 * kept) and F.silu(x.view(3, 11)).allclose(kept.view(3, 11))
    third.remove()
    third.remove()
    assert F.silu(x).allclose(2 * kept)
    second.remove()
    torch.testing.assert_close(F.silu(x), kept)


def test_calls_that_it_does_not_take(implement: Implement, device: str, device_module: ModuleType) -> None:
    x = torch.randn(33, device=device)
    expected = F.silu(x)
    silu(implement, when=lambda x: x.dim() == 2 and x.dtype == torch.float32)
    for function in (F.silu, torch.compile(F.silu, dynamic=True)):
        torch.testing.assert_close(function(x), expected)
        torch.testing.assert_close(function(x.view(3, 11)), 2 * expected.view(3, 11))
    torch.testing.assert_close(F.silu(x.view(3, 11)), 2 * expected.view(3, 11))
    assert F.silu(x.view(3, 11).half()).dtype == torch.float16
    scale(
        implement,
        "outboard_test_own::maybe(Tensor x, float factor) -> Tensor",
        when=lambda x, factor: factor > 0,
        dialect=None,
    )
    torch.library.impl("outboard_test_own::maybe", "CPU", lambda x, factor: x * factor)
    device_module.reset_fallbacks()
    assert torch.ops.outboard_test_own.maybe(x, 2.0).allclose(x * 2) and not device_module.fallbacks()
    assert torch.ops.outboard_test_own.maybe(x, -2.0).allclose(x * -2)
    assert device_module.fallbacks() == {"outboard_test_own::maybe": 1}


def test_a_kernel_of_another_dialect_is_left_aside(implement: Implement, device: str) -> None:
    x = torch.randn(33, device=device)
    expected = F.silu(x)
    silu(implement, dialect="fortran")
    torch.testing.assert_close(F.silu(x), expected)
    scale(implement, "outboard_test_own::foreign(Tensor x, float factor) -> Tensor", dialect="fortran")
    with pytest.raises(NotImplementedError, match="foreign has no other .* written in fortran, and the device takes"):
        torch.ops.outboard_test_own.foreign(x, 2.0)
    torch.library.impl("outboard_test_own::foreign", "CPU", lambda x, factor: x * factor)
    assert torch.ops.outboard_test_own.foreign(x, 2.0).allclose(x * 2)


def test_operators_that_write(implement: Implement, device: str) -> None:
    source = "OB_KERNEL void add(OB_GLOBAL float *x, float value) { x[OB_ITEM_ID(0)] += value; }"
    implement(
        "outboard_test_own::add_(Tensor(a!) x, float value) -> ()",
        source,
        "add",
        grid=lambda x, value: x.numel(),
    )
    op = torch.ops.outboard_test_own.add_
    x = torch.zeros(4, 6, device=device)
    assert op(x, 1.0) is None
    op(x.t()[1:3], 2.0)
    expected = torch.ones(4, 6)
    expected[:, 1:3] += 2
    assert torch.equal(x.cpu(), expected)

    def step(x: Tensor) -> Tensor:
        y = x * 2
        op(y, 1.0)
        return y

    assert torch.equal(torch.compile(step, fullgraph=True)(x).cpu(), expected * 2 + 1)
    w = torch.ones(6, device=device, requires_grad=True)
    loss = (w * x[0]).sum()
    op(x[0], 1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_operators_that_write_to_lists(implement: Implement, device: str) -> None:
    source = """
OB_KERNEL void add(OB_GLOBAL float *a, OB_GLOBAL float *b, OB_GLOBAL float *c, OB_GLOBAL const float *x) {
  const long i = OB_ITEM_ID(0);
  a[i] += x[i];
  b[i] += x[i];
  if (c != 0) c[i] += x[i];
}
"""
    implement(
        "outboard_test_own::add_to_(Tensor(a!)[] lists, Tensor(b!)? more, Tensor x) -> ()",
        source,
        "add",
        grid=lambda lists, more, x: x.numel(),
    )
    op = torch.ops.outboard_test_own.add_to_
    x = torch.arange(6.0, device=device)
    lists = [torch.zeros(6, device=device), torch.zeros(6, 2, device=device)[:, 1], torch.zeros(6, device=device)]
    op(lists[:2], None, x)
    op(lists[:2], lists[2], x)
    assert [each.tolist() for each in lists] == [(2 * x).tolist(), (2 * x).tolist(), x.tolist()]


def test_operators_with_several_results(implement: Implement, device: str) -> None:
    source = """
OB_KERNEL void ends(OB_GLOBAL const float *x, OB_GLOBAL float *low, OB_GLOBAL float *high, long n) {
  low[0] = high[0] = x[0];
  for (long i = 1; i < n; ++i) { low[0] = min(low[0], x[i]); high[0] = max(high[0], x[i]); }
}
"""
    schema = "outboard_test_own::ends(Tensor x) -> (Tensor, Tensor)"
    with pytest.raises(ValueError, match="give `results`"):
        implement(schema, source, "ends", grid=1)
    implement(
        schema,
        source,
        "ends",
        grid=1,
        results=lambda x: (x.new_empty(()), x.new_empty(())),
        arguments=lambda x, low, high: (x, low, high, x.numel()),
    )
    op = torch.ops.outboard_test_own.ends
    x = torch.tensor([3.0, -1, 7], device=device)
    for function in (op, torch.compile(lambda x: op(x + 0), fullgraph=True)):
        low, high = function(x)
        assert (low.item(), high.item()) == (-1, 7)


#: What makes the result of SCALE, and what is said of it.
MADE: dict[str, tuple[Callable[[Tensor], Any], type[Exception], str]] = {
    "nothing": (lambda x: None, TypeError, "is to make 1 tensors, and made: NoneType"),
    "a number": (lambda x: 3, TypeError, "is to make 1 tensors, and made: int"),
    "too many": (lambda x: (torch.empty_like(x), torch.empty_like(x)), TypeError, "made: Tensor, Tensor"),
    "an argument": (lambda x: x, ValueError, "shares memory with an argument"),
    "of an argument": (lambda x: x[2:], ValueError, "shares memory with an argument"),
    "one element": (lambda x: torch.empty(1, device=x.device).expand(8), RuntimeError, "single memory location"),
}


@pytest.mark.parametrize("case", MADE)
def test_results_that_are_none(case: str, implement: Implement, device: str) -> None:
    make, error, says = MADE[case]
    name = f"outboard_test_own::made_{case.replace(' ', '_')}"
    scale(implement, f"{name}(Tensor x, float factor) -> Tensor", results=lambda x, factor: make(x))
    op = getattr(torch.ops.outboard_test_own, name.partition("::")[2])
    x = torch.arange(8.0, device=device)
    with pytest.raises(error, match=says):
        op(x, 2.0)
    with pytest.raises(RuntimeError if error is TypeError else error, match=says.replace("Tensor", "\\w*")):
        torch.compile(lambda x: op(x, 2.0) + 1, fullgraph=True)(x)
    assert x.tolist() == [*range(8)]


def test_results_lie_in_any_way(implement: Implement, device: str) -> None:
    results = {"results": lambda x, factor: torch.empty(*x.shape[::-1], device=x.device).t()}
    scale(implement, "outboard_test_own::across(Tensor x, float factor) -> Tensor", **results)
    op = torch.ops.outboard_test_own.across
    x = torch.arange(6.0, device=device).view(2, 3)
    for function in (op, torch.compile(op, fullgraph=True)):
        found = function(x, 2.0)
        assert found.tolist() == [[0, 2, 4], [6, 8, 10]] and found.stride() == (1, 2)


def test_operators_that_are_not_there(implement: Implement) -> None:
    for operator, says in (
        ("scale", "has a namespace"),
        ("outboard_test_own::none", "no operator outboard_test_own::none"),
        ("aten::silu(Tensor x) -> Tensor", "aten::silu"),
        ("outboard_test_own::bad(Tensor", "bad"),
        ("outboard_test_own::both(Tensor(a!) x) -> (Tensor(a!), Tensor)", "both new tensors and what it writes to"),
    ):
        with pytest.raises(ValueError, match=says):
            implement(operator, SCALE, "scale", grid=1)
    with pytest.raises(TypeError, match="as text, not as a builtin"):
        implement(torch.relu, SCALE, "scale", grid=1)


LIBRARY = r"""
#include <outboard/driver.h>

int copy_numbers(const ob_driver* driver, ob_stream stream, ob_ptr from, ob_ptr to, int64_t count) {
  if (count < 2) return 42;
  return driver->copy(stream, OB_DEVICE_TO_DEVICE, to, from, 4 * (uint64_t)count);
}
"""


@pytest.fixture(scope="module")
def copy_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A vendor's library, in C."""
    import subprocess

    folder = tmp_path_factory.mktemp("library")
    (folder / "copy.c").write_text(LIBRARY)
    command = ["cc", "-shared", "-fPIC", f"-I{outboard.get_include()}", str(folder / "copy.c")]
    subprocess.run([*command, "-o", str(folder / "libcopy.so")], check=True)
    return folder / "libcopy.so"


def test_a_function_of_a_library(copy_library: Path, device: str, device_module: ModuleType) -> None:
    made = outboard.library(
        "outboard_test_own::copied(Tensor x) -> Tensor",
        str(copy_library),
        "copy_numbers",
        arguments=lambda x, y: (x, y, x.numel()),
    )
    op = torch.ops.outboard_test_own.copied
    device_module.reset_fallbacks()
    x = torch.randn(6, 8)
    for function in (lambda x: op(x * 2) + 1, torch.compile(lambda x: op(x * 2) + 1, fullgraph=True)):
        torch.testing.assert_close(function(x.to(device)).cpu(), x * 2 + 1)
    torch.testing.assert_close(op(x.to(device).t()).cpu(), x.t())
    with pytest.raises(RuntimeError, match="copy_numbers of .* failed with status 42"):
        op(x[0, :1].to(device))
    assert not device_module.fallbacks()
    made.remove()
    missing = outboard.library("outboard_test_own::missing(Tensor x) -> Tensor", "/no/such.so", "f")
    with pytest.raises(OSError, match="no/such"):
        torch.ops.outboard_test_own.missing(x.to(device))
    missing.remove()


@pytest.mark.parametrize("driver", ["strict", "opencl"])
def test_on_other_drivers(driver: str, run_python: RunPython) -> None:
    """A discrete device that checks its caller, and OpenCL's own compiler."""
    printed = run_python(
        f"""
        import torch, outboard
        source = {SCALE!r}
        device = torch._C._get_privateuse1_backend_name()
        outboard.kernel(
            "outboard_test_own::scale(Tensor x, float factor) -> Tensor", source, "scale", group=16,
            grid=lambda x, factor, y: -(-x.numel() // 16), arguments=lambda x, factor, y: (x, y, factor, x.numel()),
        )
        op = torch.ops.outboard_test_own.scale
        x = torch.arange(100.0, device=device)
        with outboard.borrow(x) as borrowed:
            assert borrowed.address(x) and borrowed.stream
        print((op(x[3:] + 1, 2.0) - 1)[-1].item(), torch.get_device_module(device).fallbacks())
        """,
        OUTBOARD_DRIVER=driver,
    )
    assert printed == "199.0 {}\n"
