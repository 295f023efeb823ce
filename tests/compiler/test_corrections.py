# SPDX-License-Identifier: Apache-2.0
"""What decompositions and lowerings of PyTorch's have wrong, eagerly and compiled, against the CPU's own kernels."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.conftest import of_today

Case = tuple[Callable[..., Any], Tensor]


def _image(*shape: int) -> Tensor:
    return torch.arange(float(torch.Size(shape).numel())).view(shape).cos()


def _averages() -> list[Case]:
    """Windows that ``ceil_mode`` lets reach beyond the padding."""
    pools: list[Any] = [F.avg_pool1d, F.avg_pool2d, F.avg_pool3d]
    shapes = [(1, 2, 5), (1, 2, 5, 7), (1, 2, 5, 4, 7)]
    options = [(3, 3, 0, True, True), (3, 2, 1, True, True), (2, 2, 0, True, False)]
    cases: list[Case] = [
        (lambda x, pool=pool, option=option: pool(x, *option), _image(*shape))
        for pool, shape in zip(pools, shapes, strict=True)
        for option in options
    ]
    return [*cases, (lambda x: F.lp_pool2d(x, 2.0, 3, 3, ceil_mode=True), _image(1, 2, 5, 7))]


def _interpolated(mode: str, factor: Any, *shape: int) -> Case:
    return lambda x: F.interpolate(x, scale_factor=factor, mode=mode), _image(*shape)


def _interpolations() -> list[Case]:
    """Sides that grow by a factor that is not the ratio of sizes, that keep their sizes, and that double: half of them
    each day."""
    factors = [(1.3, 1.7), (1.0, 1.7), (2.4, 0.6), (2, 4)]
    cases = [
        _interpolated(mode, factor, 1, 2, 2 + (mode == "bilinear"), 4)
        for mode in ("nearest", "nearest-exact", "bilinear", "bicubic")
        for factor in factors
    ]
    cases += [_interpolated("linear", 1.2, 1, 2, 4), _interpolated("trilinear", (1.2, 1.7, 2.4), 1, 2, 3, 4, 2)]
    factors = [1.7, 0.6]
    cases += [
        _interpolated(mode, factor, 1, 2, *[5] * dims)
        for mode in ("nearest", "nearest-exact")
        for dims in (1, 3)
        for factor in factors
    ]
    return of_today(cases, 2)


def _sizes_and_factors() -> list[Case]:
    """Factors that do not fit the sizes beside them: they lead beyond the source, or are none, as negative ones are."""
    aten = torch.ops.aten
    of_one = [aten.upsample_nearest1d, aten._upsample_nearest_exact1d]
    cases: list[Case] = [
        (lambda x, overload=overload, factor=factor: overload(x, [7], factor), _image(1, 2, 5))
        for overload in of_one
        for factor in (0.37, -1.0, float("inf"))
    ]
    of_two = [aten.upsample_nearest2d, aten._upsample_nearest_exact2d]
    cases += [(lambda x, o=o: o(x, [7, 4], 0.37, float("inf")), _image(1, 2, 5, 3)) for o in of_two]
    cases.append((lambda x: aten._upsample_nearest_exact3d(x, [4, 2, 5], 0.1, -1.0, 0.3), _image(1, 2, 5, 3, 2)))
    cases.append((lambda x: aten.upsample_bicubic2d(x, [7, 4], False, float("inf"), 0.1), _image(1, 2, 5, 3)))
    return [*cases, (lambda x: aten.upsample_bilinear2d(x, [7, 4], False, float("inf"), 0.1), _image(1, 2, 5, 3))]


def _linear_interpolations() -> list[Case]:
    """Places between numbers, of which few are exact, and between infinities."""
    infinite = torch.tensor([1.0, float("inf"), float("inf"), -1.0, 2.0]).view(1, 1, 5)
    modes = {"linear": (7,), "bilinear": (5, 7), "trilinear": (3, 5, 4)}
    cases = [_interpolated(mode, 3.0, 1, 2, *sides) for mode, sides in modes.items()]
    cases.append((lambda x: F.interpolate(x, scale_factor=1.7, mode="linear"), infinite))
    return cases


def _deviations() -> list[Case]:
    """Numbers whose squares are not numbers of the dtype."""
    numbers = torch.tensor([1.0, -1.0, 0.0, 2.0])
    cases: list[Case] = [
        (lambda x: x.std(), (numbers * unit).to(dtype))
        for unit in (1.0, 1e20, 1e-25, 1e38)
        for dtype in (torch.float32, torch.bfloat16)
    ]
    far = torch.stack([numbers * 1e20, numbers, numbers * 1e-25])
    cases += [(lambda x: x.std(1, correction=0), far), (lambda x: torch.std_mean(x, 1, keepdim=True)[0], far)]
    return [*cases, (lambda x: x.var(), torch.tensor([1e19, *[0.0] * 1000]))]


def _grids() -> list[Case]:
    """Sides of one place, for which ATen makes a number on the spot."""
    sizes = [(2, 3, 4, 1), (2, 3, 1, 1), (2, 3, 1, 4, 1)]
    return [
        (
            lambda x, size=size, aligned=aligned: F.affine_grid(x, list(size), aligned),
            _image(2, len(size) - 2, len(size) - 1),
        )
        for size in sizes
        for aligned in (False, True)
    ]


def _differentiated(function: Callable[..., Any], x: Tensor) -> list[Tensor]:
    leaf = x.detach().requires_grad_()
    result = function(leaf)
    result.backward(torch.arange(1.0, 1 + result.numel(), device=x.device).view(result.shape).to(result.dtype))
    assert leaf.grad is not None
    return [result.detach(), leaf.grad]


@pytest.mark.parametrize(
    "made", [_averages, _interpolations, _sizes_and_factors, _linear_interpolations, _deviations, _grids]
)
@pytest.mark.parametrize("is_compiled", [False, True])
def test_as_on_the_cpu(device: str, made: Callable[[], list[Case]], is_compiled: bool) -> None:
    functions, sources = zip(*made(), strict=True)

    def run(sources: list[Tensor]) -> list[Tensor]:
        return [function(source) for function, source in zip(functions, sources, strict=True)]

    leaves = [source.to(device).requires_grad_() for source in sources]
    results = (torch.compile(run, dynamic=False) if is_compiled else run)(leaves)
    grads = [torch.arange(1.0, 1 + r.numel(), device=device).view(r.shape).to(r.dtype) for r in results]
    torch.autograd.backward(results, grads)
    for function, source, leaf, result in zip(functions, sources, leaves, results, strict=True):
        expected = _differentiated(function, source)
        torch.testing.assert_close([result.detach().cpu(), leaf.grad.cpu()], expected, equal_nan=True)


def test_gradient_of_doubled_sides(device: str, device_module: ModuleType) -> None:
    """It runs on the device whatever sizes come first."""
    device_module.reset_fallbacks()
    for sides in ((6, 8), (3, 4), (7, 2)):
        gradient = _image(2, 2, *sides)
        given = [*sides], [2, 2, 3, 4]
        result = torch.ops.aten.upsample_nearest2d_backward(gradient.to(device), *given)
        torch.testing.assert_close(result.cpu(), torch.ops.aten.upsample_nearest2d_backward(gradient, *given))
    assert not device_module.fallbacks()


def test_variance_that_no_number_is(device: str, device_module: ModuleType) -> None:
    """Infinity, not NaN; of infinity, NaN."""
    if not device_module.get_device_properties(0).has_fp64:
        pytest.skip("the device has no double precision")
    for numbers in ([1.7e308, 1.7e308, 0.0], [torch.inf, 1.0], [torch.nan, 1.0]):
        x = torch.tensor(numbers, dtype=torch.float64)
        torch.testing.assert_close(x.to(device).var().cpu(), x.var(), equal_nan=True)


def test_interpolation_of_bytes_and_bools(device: str) -> None:
    """Differences are taken in the weight's dtype."""
    weight = torch.tensor(0.25)
    for dtype in (torch.uint8, torch.bool, torch.int64):
        start, end = torch.tensor([1, 3, 1]).to(dtype), torch.tensor([1, 1, 0]).to(dtype)
        result = torch.lerp(start.to(device), end.to(device), weight.to(device))
        torch.testing.assert_close(result.cpu(), torch.lerp(start, end, weight))


@pytest.mark.parametrize("is_compiled", [False, True])
def test_targets_that_are_no_probabilities(device: str, device_module: ModuleType, is_compiled: bool) -> None:
    loss: Any = torch.compile(F.binary_cross_entropy) if is_compiled else F.binary_cross_entropy
    right = torch.tensor([0.25, 1.0], device=device)
    for wrong in (2.0, -0.5, float("nan")):
        numbers = torch.tensor([0.5, wrong], device=device)
        for name, arguments in (("target", (right, numbers)), ("input", (numbers, right))):
            with pytest.raises(RuntimeError, match=f"all elements of {name} should be between 0 and 1"):
                loss(*arguments).item()
    device_module.synchronize()
    assert loss(right, right).item() > 0


#: Windows that are a whole row of 5 elements.
MAXIMA: dict[str, Callable[[Tensor], tuple[Tensor, Tensor]]] = {
    "max_pool1d": lambda x: F.max_pool1d(x[0, 0], 5, return_indices=True),
    "max_pool2d": lambda x: F.max_pool2d(x[0], (1, 5), return_indices=True),
    "max_pool3d": lambda x: F.max_pool3d(x, (1, 1, 5), padding=(0, 0, 1), return_indices=True),
    "adaptive_max_pool2d": lambda x: F.adaptive_max_pool2d(x[0], 1, return_indices=True),
    "adaptive_max_pool3d": lambda x: F.adaptive_max_pool3d(x, 1, return_indices=True),
    "fractional_max_pool2d": lambda x: F.fractional_max_pool2d(x[0], (1, 5), output_size=1, return_indices=True),
}
NAN, INFINITY = torch.nan, torch.inf


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("pool", MAXIMA)
def test_where_the_maximum_of_a_window_is(pool: str, compiled: bool, device: str) -> None:
    """At the last NaN, at the first of equal elements, and never in the padding. So says the gradient, too."""
    torch._dynamo.reset()
    function = torch.compile(MAXIMA[pool]) if compiled else MAXIMA[pool]
    for numbers in ([NAN, 1.0, 2.0, NAN, 3.0], [0.0, 3.0, 3.0, 1.0, 2.0], [-INFINITY] * 5):
        x = torch.tensor(numbers).view(1, 1, 1, 1, 5).requires_grad_()
        moved = x.detach().to(device).requires_grad_()
        expected, result = MAXIMA[pool](x), function(moved)
        torch.testing.assert_close([each.cpu() for each in result], [*expected], equal_nan=True)
        expected[0].sum().backward()
        result[0].sum().backward()
        assert x.grad is not None and moved.grad is not None and torch.equal(moved.grad.cpu(), x.grad)


def test_logical_operators_promote(device: str) -> None:
    """A number without dimensions weighs less than a tensor, and becomes one of its dtype first."""
    x, number = torch.tensor([1, 0], dtype=torch.int8), torch.tensor(256)
    for function in (torch.logical_and, torch.logical_or, torch.logical_xor):
        assert torch.equal(function(x.to(device), number.to(device)).cpu(), function(x, number))


#: What takes a tensor without dimensions for a number, and rounds it to the dtype of the halves that it meets.
_OF_NUMBERS: dict[str, Callable[..., Tensor]] = {
    **{name: getattr(torch, name) for name in ("fmod", "remainder", "nextafter", "atan2", "hypot", "pow", "logaddexp")},
    "lerp": lambda x, number: torch.lerp(x, 2 * x, number),
    "addcmul": lambda x, number: torch.addcmul(number, x, x),
    "addcdiv": lambda x, number: torch.addcdiv(x, x, number),
}


def test_numbers_without_dimensions_are_rounded_to_halves(device: str) -> None:
    compiled = torch.compile(lambda *given: {name: function(*given) for name, function in _OF_NUMBERS.items()})
    for dtype in (torch.float16, torch.bfloat16):
        x, number = torch.arange(1, 40).to(dtype) / 3, torch.tensor(1 / 3)
        placed = x.to(device), number.to(device)
        together = compiled(*placed)
        for name, function in _OF_NUMBERS.items():
            expected = function(x, number)
            assert torch.equal(function(*placed).cpu(), expected), (name, dtype)
            assert torch.equal(together[name].cpu(), expected), (name, dtype, "compiled")


def test_decimals_are_rounded_as_on_the_cpu(device: str) -> None:
    """PyTorch's decomposition multiplies with the inverse of a power of ten."""
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        x = torch.tensor([1.5, 1.65, -100.25, 12345.678, 0.1, 1 / 3], dtype=torch.float64).to(dtype)
        for decimals in (2, -1, 5):
            assert torch.equal(torch.round(x.to(device), decimals=decimals).cpu(), torch.round(x, decimals=decimals))
    compiled = torch.compile(lambda x: torch.round(x, decimals=5))
    assert torch.equal(compiled(x.to(device)).cpu(), torch.round(x, decimals=5))


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_huber_losses_have_the_dtype_of_what_is_judged(device: str, reduction: str) -> None:
    x, target = torch.arange(4).half(), torch.arange(4) * 3.0
    result = F.huber_loss(x.to(device), target.to(device), reduction=reduction).cpu()
    assert torch.equal(result, F.huber_loss(x, target, reduction=reduction)) and result.dtype == torch.float16


@pytest.mark.parametrize("shape", [(), (2, 1)])
def test_index_add_does_not_broadcast(shape: tuple[int, ...], device: str) -> None:
    def add(x: Tensor, source: Tensor) -> Tensor:
        return x.index_add(0, torch.arange(2, device=x.device)[: source.numel()], source)

    torch._dynamo.reset()
    x, source = torch.zeros(3, 2) if shape else torch.zeros(3), torch.ones(shape)
    with pytest.raises(RuntimeError, match="source tensor shape must match"):
        add(x, source)
    with pytest.raises(RuntimeError, match="source tensor shape must match"):
        torch.compile(add)(x.to(device), source.to(device))


def test_index_add_of_bools_stays_bool(device: str) -> None:
    """Also where PyTorch's lowering leaves ``index_put`` to the CPU's kernel, which takes no numbers for bools."""
    index = torch.tensor([0, 2, 2])
    torch.use_deterministic_algorithms(True)
    try:
        for alpha in (0, 2, 0.5):
            x, source = torch.zeros(4, dtype=torch.bool), torch.ones(3, dtype=torch.bool)
            expected = x.index_add(0, index, source, alpha=alpha)
            result = x.to(device).index_add(0, index.to(device), source.to(device), alpha=alpha)
            assert torch.equal(result.cpu(), expected)
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32])
@pytest.mark.parametrize("alpha", [1, 2])
def test_index_add_reports_wrong_indices_as_the_cpu_does(dtype: torch.dtype, alpha: int, device: str) -> None:
    """The CPU takes another kernel along the first or last dimension, with an exception of its own."""

    def raised(where: str, dim: int) -> type[Exception] | None:
        x = torch.ones((2, 3, 2), device=where).to(dtype)
        index = torch.tensor([-1], device=where)
        try:
            x.index_add(dim, index, x.narrow(dim, 0, 1), alpha=alpha).cpu()
        except Exception as error:  # noqa: BLE001 - its type is compared
            return type(error)
        return None

    assert [raised(device, dim) for dim in range(3)] == [raised("cpu", dim) for dim in range(3)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_powers_that_are_roots(dtype: torch.dtype, device: str) -> None:
    """ATen takes the root, which knows -0.0 and -inf otherwise than powers do."""
    x = torch.tensor([-float("inf"), -0.0, 0.0, float("inf"), 4.0] * 4).to(dtype)
    for exponent in (0.5, -0.5):
        ours, theirs = x.to(device).requires_grad_(), x.clone().requires_grad_()
        results = [each.pow(exponent) for each in (ours, theirs)]
        for result in results:
            result.sum().backward()
        expected = [results[1], theirs.grad]
        for one, other in zip([results[0], ours.grad], expected, strict=True):
            assert one is not None and other is not None
            torch.testing.assert_close(1 / one.cpu(), 1 / other, equal_nan=True)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_elements_are_rounded_to_the_dtype_of_the_sum(dtype: torch.dtype, compiled: bool, device: str) -> None:
    def every(x: Tensor) -> list[Tensor]:
        return [
            *(function(x, 0, dtype=dtype) for function in (torch.sum, torch.nansum, torch.mean)),
            *(function(x.abs(), 0, dtype=dtype) for function in (torch.prod, torch.cumprod, torch.cumsum)),
        ]

    x = torch.tensor([1 + 0.4 * torch.finfo(dtype).eps] * 3 + [-1.0])
    torch._dynamo.reset()
    for one, other in zip((torch.compile(every) if compiled else every)(x.to(device)), every(x), strict=True):
        assert torch.equal(one.cpu(), other)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_frexp(dtype: torch.dtype, compiled: bool, device: str, device_module: ModuleType) -> None:
    info = torch.finfo(dtype)
    special = [0.0, -0.0, 1, -1, 3.7, float("inf"), -float("inf"), float("nan"), info.max, info.tiny, -info.tiny / 4]
    x = torch.cat([torch.tensor(special, dtype=dtype), torch.linspace(-9, 9, 37, dtype=dtype)])
    torch._dynamo.reset()
    before = dict(device_module.fallbacks())
    found = (torch.compile(torch.frexp) if compiled else torch.frexp)(x.to(device))
    for ours, theirs in zip(found, torch.frexp(x), strict=True):
        torch.testing.assert_close(ours.cpu(), theirs, rtol=0, atol=0, equal_nan=True)
        assert torch.equal(ours.cpu().signbit(), theirs.signbit())
    assert dict(device_module.fallbacks()) == before


@pytest.mark.parametrize(
    ("function", "x"),
    [
        (lambda x: F.pad(x, (-5, 3)), _image(2, 3)),
        (lambda x: F.pad(x, (3, -5)), _image(3)),
        (lambda x: x.index_add(0, (x[0] > 9).short(), x[:2]), torch.ones(3, 2)),
        (lambda x: x.index_copy(0, (x[0] > 9).int(), x[:2]), torch.ones(3, 2)),
        (lambda x: x.index_select(0, x[0] > 9), torch.ones(3, 2)),
        (lambda x: x.argmax(-1), torch.tensor([[False, True]])),
        (lambda x: x.argmin(), torch.tensor([[False, True]])),
    ],
    ids=["pad left", "pad right", "index_add", "index_copy", "index_select", "argmax", "argmin"],
)
def test_what_the_cpu_refuses(device: str, function: Callable[[Tensor], Tensor], x: Tensor) -> None:
    with pytest.raises(RuntimeError) as refused:
        function(x)
    torch._dynamo.reset()
    for call in (function, torch.compile(function)):
        with pytest.raises(RuntimeError, match=re.escape(str(refused.value))):
            call(x.to(device))


def test_index_fill_takes_long_indices_alone(device: str) -> None:
    torch._dynamo.reset()
    with pytest.raises((IndexError, RuntimeError), match=re.escape("index_fill_(): Expected dtype int64 for index.")):
        torch.compile(lambda x: x.index_fill(0, x[:2].int(), 2.0))(torch.zeros(3, device=device))


@pytest.mark.parametrize("dtype", [torch.bool, torch.int8, torch.int64])
@pytest.mark.parametrize("operator", [torch.cumsum, torch.cumprod])
@pytest.mark.parametrize("wanted", [None, torch.int64])
def test_running_sums_need_no_wide_copy(
    device: str, device_module: ModuleType, operator: Any, dtype: torch.dtype, wanted: torch.dtype | None
) -> None:
    x = (torch.arange(100_000).view(100, 1000) % 3 != 0).to(dtype)
    ours = x.to(device)
    for _ in range(2):
        device_module.synchronize()
        device_module.reset_peak_memory_stats()
        before = device_module.memory_allocated()
        result = operator(ours, 1, dtype=wanted)
        device_module.synchronize()
        peak = device_module.max_memory_allocated() - before
        torch.testing.assert_close(result.cpu(), operator(x, 1, dtype=wanted))
        del result
    assert peak <= 9.1 * x.numel()


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("pad", [(-9, 4), (4, -9), (-1, 2), (-2, -3), (3, 2)])
def test_gradients_of_reflected_sides_that_cut(device: str, pad: tuple[int, int], compiled: bool) -> None:
    def padded(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.pad(x, pad, "reflect")

    x = torch.arange(1.0, 25.0).view(2, 1, 12).requires_grad_()
    there = x.detach().to(device).requires_grad_()
    expected = padded(x)
    weights = torch.arange(1.0, expected.numel() + 1).view(expected.shape)
    expected.backward(weights)
    (torch.compile(padded) if compiled else padded)(there).backward(weights.to(device))
    assert torch.equal(there.grad.cpu(), x.grad)
