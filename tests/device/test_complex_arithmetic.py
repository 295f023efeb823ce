# SPDX-License-Identifier: Apache-2.0
"""Arithmetic with complex numbers stays on the device, single and in compiled graphs, with the CPU's results; of half
the ways in which tensors lie each day."""

from __future__ import annotations

import cmath
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any

import mpmath
import pytest
import torch
from torch import Tensor

from tests.conftest import of_today

INF, NAN = float("inf"), float("nan")
#: What roots, exponentials and logarithms overflow, underflow or cancel with.
PARTS = (0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 1.0000001, 1e-20, 3e38, -2e38, 90.0, -100.0, INF, -INF, NAN)
FUNCTIONS = ("conj_physical", "exp", "isinf", "isnan", "log", "log10", "log2", "reciprocal", "rsqrt", "sgn", "sqrt")
EDGES = torch.tensor([complex(a, b) for a in (0.0, -0.0, 1.0, -2.5, INF, NAN) for b in (0.0, -0.0, 1.0, INF, NAN)])
BINARY: dict[str, Callable[[Any, Any], Tensor]] = {
    "add": torch.add,
    "add, alpha": lambda a, b: torch.add(a, b, alpha=1 - 2j),
    "sub": torch.sub,
    "rsub": torch.rsub,
    "eq": torch.eq,
    "ne": torch.ne,
    "mul": torch.mul,
    "div": torch.div,
}
UNARY: dict[str, Callable[[Tensor], Tensor]] = {
    "neg": torch.neg,
    "reciprocal": torch.reciprocal,
    "abs": torch.abs,
    "angle": torch.angle,
    "sum": torch.sum,
    "sum of a dimension": lambda x: x.sum(-1, keepdim=True),
    "mean": torch.mean,
    "in place": lambda x: x.clone().mul_(2j),
    "number by it": lambda x: 2j / x,
    **{name: getattr(torch, name) for name in FUNCTIONS},
    "pow": lambda x: x ** (1 - 0.5j),
    "number to the power of it": lambda x: 2**x,
    "real number to the power of it": lambda x: x.real.clone() ** x,
    "real to a complex power": lambda x: x.real.clone() ** 2j,
    "cumsum": lambda x: x.cumsum(0),
    "norm": torch.linalg.vector_norm,
    "norm of a dimension": lambda x: torch.linalg.vector_norm(x, 1, 1, keepdim=True),
    "trace": lambda x: x.mT.trace(),
    "dot": lambda x: x.flatten().dot(x.flatten()),
    "vdot": lambda x: x.flatten().vdot(x.flatten()),
    "mv": lambda x: x @ x[:1].reshape(-1) if len(x) else x.sum(1),
    "addmv": lambda x: torch.addmv(x[:, 0].clone(), x, torch.ones_like(x[0] if len(x) else x.sum(0)), beta=2j, alpha=3),
    "addmm": lambda x: torch.addmm(x.sum(1), x, x.mT, beta=0.5),
    "addmm, no beta": lambda x: torch.addmm(x.sum(1) * NAN, x, x.mT, beta=0),
    "baddbmm": lambda x: torch.baddbmm(x.sum(1), x[None], x.mT[None], alpha=1j),
    "addcmul": lambda x: torch.addcmul(x, x, x, value=2j),
    "addcdiv": lambda x: torch.addcdiv(x, x, x, value=2),
    "polar": lambda x: torch.polar(x.real.clone(), x.imag.clone()),
    "complex": lambda x: torch.complex(x.real.clone(), x.imag.clone()),
    "mm": lambda x: x @ x.mT,
    "bmm": lambda x: torch.bmm(x[None], x.mT[None]),
}
VALUES: dict[str, Tensor] = {
    "contiguous": torch.randn(3, 4, dtype=torch.complex64),
    "transposed": torch.randn(4, 3, dtype=torch.complex64).t(),
    "with gaps": torch.randn(3, 8, dtype=torch.complex64)[:, ::2],
    "expanded": torch.randn(1, 4, dtype=torch.complex64).expand(3, 4),
    "conjugate": torch.randn(3, 4, dtype=torch.complex64).conj(),
    "double": torch.randn(3, 4, dtype=torch.complex128),
    "empty": torch.randn(0, 4, dtype=torch.complex64),
}


def _check(module: ModuleType, function: Callable[..., Tensor], *args: Any, **bounds: float) -> None:
    expected = function(*args)
    module.reset_fallbacks()
    result = function(*(arg.to("ocl") if isinstance(arg, Tensor) else arg for arg in args))
    assert module.fallbacks() == {}
    torch.testing.assert_close(result.cpu(), expected, equal_nan=True, check_stride=True, **bounds)


@pytest.mark.parametrize("name", UNARY)
@pytest.mark.parametrize("lies", of_today(list(VALUES), 2))
def test_of_one_tensor(device_module: ModuleType, name: str, lies: str) -> None:
    _check(device_module, UNARY[name], VALUES[lies])


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize("lies", of_today(list(VALUES), 2))
def test_of_two(device_module: ModuleType, name: str, lies: str) -> None:
    x = VALUES[lies]
    for other in (x.flip(0), x.real.clone(), 2, 1.5, 1 - 3.5j, torch.arange(4), torch.tensor(3.0)):
        _check(device_module, BINARY[name], x, other)
        if isinstance(other, Tensor):
            _check(device_module, BINARY[name], other, x)


@pytest.mark.parametrize("name", BINARY)
def test_edges(device_module: ModuleType, name: str) -> None:
    def parts(a: Any, b: Any) -> Tensor:
        result = BINARY[name](a, b)
        return torch.view_as_real(result) if result.is_complex() else result

    _check(device_module, parts, EDGES[:, None].expand(30, 30).contiguous(), EDGES[None].expand(30, 30).contiguous())
    for number in (2, 0, -0.0, INF, 2j, complex(INF, 1)):
        _check(device_module, parts, EDGES, number)


@pytest.mark.parametrize("name", ["sum", "mean"])
def test_reductions_of_no_dimensions(device_module: ModuleType, name: str) -> None:
    for dims in ((), (0,), (-1,)):
        _check(device_module, lambda x, dims=dims: getattr(torch, name)(x, dims), torch.tensor(1 + 2j))


@pytest.mark.parametrize("shape", [(), (1,), (1, 3)])
@pytest.mark.parametrize("name", ["sum", "mean", "prod", "cumsum", "cumprod"])
def test_reductions_of_one_number_are_tensors_of_their_own(device: str, name: str, shape: tuple[int, ...]) -> None:
    z = torch.full(shape, 1 + 2j, device=device)
    results = [getattr(torch, name)(z, 0)]
    if name == "prod":
        results += [torch.prod(z[..., :1]) if shape else torch.prod(z), torch.prod(z, 0, keepdim=True)]
    z.zero_()
    assert all((result.cpu() == 1 + 2j).all() for result in results)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.complex128])
@pytest.mark.parametrize("name", ["sum", "mean", "prod", "cumsum"])
def test_reductions_compute_in_the_dtype_of_out(device: str, name: str, dtype: torch.dtype) -> None:
    """ATen refuses the mean of integers, and warns of parts that are lost."""

    def shown(device: str) -> Any:
        try:
            return getattr(torch, name)(
                VALUES["contiguous"].to(device), 0, out=torch.empty(0, dtype=dtype, device=device)
            )
        except RuntimeError as error:
            return str(error)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ours, theirs = shown(device), shown("cpu")
    if isinstance(theirs, str):
        assert ours == theirs
    else:
        torch.testing.assert_close(ours.cpu(), theirs)


@pytest.mark.parametrize("name", [*BINARY, "pow"])
def test_numbers_on_the_cpu(device_module: ModuleType, name: str) -> None:
    x, number = VALUES["contiguous"], torch.tensor(2 - 1j)
    function = BINARY.get(name, torch.pow)
    _check(device_module, lambda x: function(x, number), x)
    _check(device_module, lambda x: function(number, x), x)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
@pytest.mark.parametrize("name", [*FUNCTIONS, *range(-2, 4), 0.5, -0.5])
def test_edges_of_functions(device_module: ModuleType, name: Any, dtype: torch.dtype) -> None:
    function = getattr(torch, name) if isinstance(name, str) else lambda x: x**name

    def parts(x: Tensor) -> Tensor:
        result = function(x)
        return torch.view_as_real(result.resolve_conj()) if result.is_complex() else result

    _check(device_module, parts, torch.tensor([complex(a, b) for a in PARTS for b in PARTS], dtype=dtype))


def test_edges_of_powers(device_module: ModuleType) -> None:
    finite = torch.tensor([complex(a, b) for a in PARTS[:8] for b in PARTS[:8]])

    def parts(a: Tensor, b: Tensor) -> Tensor:
        return torch.view_as_real(a**b)

    bases, exponents = (x.expand(64, 64).contiguous() for x in (finite[:, None], finite[None]))
    _check(device_module, parts, bases, exponents, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["add", "sub", "mul", "div"])
def test_into_tensors(device_module: ModuleType, name: str) -> None:
    x, y = VALUES["contiguous"], VALUES["transposed"]

    def into_gaps(x: Tensor, y: Tensor) -> Tensor:
        out = torch.zeros(3, 8, dtype=x.dtype, device=x.device)
        getattr(torch, name)(x, y, out=out[:, ::2])
        return out

    _check(device_module, into_gaps, x, y)
    _check(device_module, lambda x, y: getattr(torch, name)(x, y, out=x.new_empty(0)), x, y)
    _check(device_module, lambda x: getattr(x.clone(), name + "_")(x), y)
    with pytest.raises(RuntimeError, match="can't be cast"):
        getattr(x.real.clone().to("ocl"), name + "_")(x.to("ocl"))
    with pytest.raises(RuntimeError, match="broadcast shape"):
        getattr(x[:1].clone().to("ocl"), name + "_")(x.to("ocl"))


def test_products_into_tensors_under_autocast(device: str) -> None:
    x = VALUES["contiguous"]
    with torch.autocast(device, torch.bfloat16):
        found = torch.mm(x.to(device), x.mT.to(device), out=torch.empty(0, dtype=x.dtype, device=device))
    torch.testing.assert_close(found.cpu(), x @ x.mT)


def _rotated(x: Tensor, turns: Tensor) -> Tensor:
    """Positions as rotations, as in the code that was published with Llama."""
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * turns[None, :, None]).flatten(3).type_as(x)


@pytest.mark.parametrize("how", ["eager", "compiled", "dynamic"])
def test_rotations_and_their_gradients(device_module: ModuleType, how: str) -> None:
    x, turns = torch.randn(2, 6, 4, 8, requires_grad=True), torch.polar(torch.ones(6, 4), torch.rand(6, 4))
    expected = _rotated(x, turns)
    expected.square().sum().backward()
    function = _rotated if how == "eager" else torch.compile(_rotated, dynamic=how == "dynamic")
    there = x.detach().to("ocl").requires_grad_()
    device_module.reset_fallbacks()
    result = function(there, turns.to("ocl"))
    result.square().sum().backward()
    assert device_module.fallbacks() == {}
    torch.testing.assert_close(result.cpu(), expected)
    torch.testing.assert_close(there.grad.cpu(), x.grad)


#: Functions of one number that are tried in one layout, and those that these are made of.
ELEMENTARY = ("sin", "cos", "tan", "acosh", "asinh", "atan", "sigmoid", "expm1", "log1p")
PARTS_OF_THESE = ("sinh", "cosh", "tanh", "acos", "asin", "atanh")
#: What they overflow, underflow or cancel with.
WIDE = torch.tensor([1e-30, 1e-9, 0.1, 0.5, 0.999999, 1.0, 1.0000001, 1.5, 3.0, 19.0, 30.0, 88.0, 1e9, 1e30])
PLANE = torch.cat([torch.complex(a * WIDE[:, None], b * WIDE).flatten() for a in (1.0, -1.0) for b in (1.0, -1.0)])


def _exact_acos(numbers: Tensor) -> Tensor:
    """By more digits: near 1 the CPU takes the difference to a right angle, of which nothing remains."""
    with mpmath.workdps(60):
        return torch.tensor([complex(mpmath.acos(mpmath.mpc(z))) for z in numbers.tolist()], dtype=torch.complex128)


def _signed_acos(numbers: Tensor) -> Tensor:
    """By C99, with the signs of zeros, which the CPU's kernel and ``mpmath`` lose."""
    return torch.tensor([cmath.acos(z) for z in numbers.tolist()], dtype=torch.complex128)


@pytest.mark.parametrize("dtype", [torch.complex64, pytest.param(torch.complex128, marks=pytest.mark.full("as float"))])
@pytest.mark.parametrize(
    "name", [*ELEMENTARY, *(pytest.param(name, marks=pytest.mark.full("part")) for name in PARTS_OF_THESE)]
)
def test_elementary_functions(device_module: ModuleType, name: str, dtype: torch.dtype) -> None:
    """Parts are within a few units of the last place of the larger one; where one is no number, both are the CPU's."""
    numbers = torch.cat([PLANE, EDGES]).to(dtype)
    function = getattr(torch, name)
    device_module.reset_fallbacks()
    result = torch.view_as_real(function(numbers.to("ocl")).cpu())
    assert device_module.fallbacks() == {}
    single, exact = function(numbers), function(numbers.to(torch.complex128))
    if name == "acos":
        exact = torch.cat([_exact_acos(numbers[: len(PLANE)]), _signed_acos(numbers[len(PLANE) :])])
    expected = torch.view_as_real(exact.to(dtype))
    is_plain = expected.isfinite().all(-1) & result.isfinite().all(-1)
    units = (result - expected).abs().double()[is_plain] / exact.abs()[is_plain, None].clamp(min=1e-37)
    assert units.max() < 8 * torch.finfo(dtype).eps
    ours, theirs = result[len(PLANE) :], torch.view_as_real(single)[len(PLANE) :]
    torch.testing.assert_close(ours, theirs, equal_nan=True, rtol=1e-5, atol=1e-6)
    has_sign = ~theirs.isnan() & (theirs.signbit() == torch.view_as_real(exact)[len(PLANE) :].signbit())
    assert (~has_sign | (ours.signbit() == theirs.signbit())).all()


REDUCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "prod": torch.prod,
    "prod of a dimension": lambda x: x.prod(-1),
    "prod, kept": lambda x: x.prod(0, keepdim=True),
    "var": torch.var,
    "var of a dimension": lambda x: x.var(1, correction=0, keepdim=True),
    "std": lambda x: x.std(-1),
    "any": torch.any,
    "any of dimensions": lambda x: x.any((0, 1)),
    "all": torch.all,
    "all of a dimension": lambda x: x.all(1, keepdim=True),
    "lerp": lambda x: torch.lerp(x, x.flip(0), 0.3),
    "lerp, far": lambda x: torch.lerp(x, x.flip(0), 0.3 + 1j),
    "lerp, tensor": lambda x: torch.lerp(x, x.flip(0), x),
    "real times a number": lambda x: torch.ops.aten.mul.Scalar(x.real, 2j),
    "number less real": lambda x: 2j - x.real,
    "real is a number": lambda x: x.real == 2j,
    "logical_not": torch.logical_not,
    "logical_xor": lambda x: torch.logical_xor(x, x.real > 0),
    "sin in place": lambda x: x.clone().sin_(),
}


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
@pytest.mark.parametrize(
    "lies",
    [
        "conjugate",
        *(pytest.param(lies, marks=pytest.mark.full("as others")) for lies in ("transposed", "empty", "double")),
    ],
)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_what_joins_numbers(device_module: ModuleType, name: str, lies: str) -> None:
    _check(device_module, REDUCTIONS[name], VALUES[lies])


@pytest.mark.parametrize("name", ["any", "all", "logical_not"])
def test_truth_of_numbers(device_module: ModuleType, name: str) -> None:
    numbers = torch.tensor([[0, 1j, NAN], [0, 0, -0.0], [1, 1j, 1]])
    _check(device_module, lambda x: torch.stack([getattr(torch, name)(row) for row in x]), numbers)
