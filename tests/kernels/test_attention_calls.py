# SPDX-License-Identifier: Apache-2.0
"""``scaled_dot_product_attention`` as users call it: which operator computes it, and what comes out."""

from __future__ import annotations

import gc
from types import ModuleType

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

relaxed = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
FUSED = "aten::_scaled_dot_product_flash_attention_for_cpu"
Mask = Tensor | None


class _Operators(TorchDispatchMode):
    """The names of the operators that are called below autograd."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.names.append(func._schema.name)
        return func(*args, **(kwargs or {}))


def attend(tensors: list[Tensor], mask: Mask = None, **options: object) -> Tensor:
    """One call; heads of queries share those of keys where there are fewer of these."""
    query, key, value = tensors
    grouped = query.shape[1] != key.shape[1]
    out: Tensor = functional.scaled_dot_product_attention(query, key, value, mask, enable_gqa=grouped, **options)  # type: ignore[arg-type]
    return out


def operators(tensors: list[Tensor], mask: Mask = None, **options: object) -> list[str]:
    """The operators that one call becomes."""
    with _Operators() as seen:
        attend(tensors, mask, **options)
    return seen.names


def heads(batches: int, count: int, length: int, width: int) -> Tensor:
    """Random heads as a model's projections leave them: (batches, length, count, width), transposed."""
    return torch.randn(batches, length, count, width).transpose(1, 2)


def compare(device: str, tensors: list[Tensor], mask: Mask = None, **options: object) -> None:
    """Result and gradients against PyTorch's on the CPU, in float64; twice, for the same bits."""
    tolerance = {torch.float32: 1e-4, torch.float64: 1e-11, torch.float16: 2e-2, torch.bfloat16: 1.5e-1}
    dtype = tensors[0].dtype
    slope = torch.randn(tensors[0].shape, dtype=torch.float64)

    def run(where: str, as_dtype: torch.dtype) -> list[Tensor]:
        inputs = [tensor.to(where, as_dtype).requires_grad_() for tensor in tensors]
        own = mask if mask is None or mask.dtype == torch.bool else mask.to(as_dtype)
        out = attend(inputs, own if own is None else own.to(where), **options)
        return [out.detach(), *torch.autograd.grad(out, inputs, slope.to(where, as_dtype))]

    expected = run("cpu", torch.float64)
    actual, again = run(device, dtype), run(device, dtype)
    for wanted, found, repeated in zip(expected, actual, again, strict=True):
        torch.testing.assert_close(
            found.cpu().double(), wanted, rtol=tolerance[dtype], atol=tolerance[dtype], equal_nan=True
        )
        bits = [tensor.cpu().flatten().clone().view(torch.uint8) for tensor in (found, repeated)]
        assert torch.equal(*bits)


@relaxed
@given(
    shape=st.tuples(st.integers(1, 2), st.integers(1, 3), st.integers(1, 3), st.integers(1, 100), st.integers(1, 150)),
    width=st.one_of(st.integers(1, 256), st.sampled_from([16, 32, 64, 80, 128, 256])),
    kind=st.sampled_from(["plain", "causal", "padding", "bool", "additive", "transposed"]),
    dtype=st.sampled_from([torch.float32, torch.float32, torch.float64, torch.float16, torch.bfloat16]),
    scale=st.sampled_from([None, 0.05]),
)
def test_any_sizes(
    device: str,
    given_doubles: None,
    shape: tuple[int, ...],
    width: int,
    kind: str,
    dtype: torch.dtype,
    scale: float | None,
) -> None:
    torch.manual_seed(0)
    batches, key_heads, share, queries, keys = shape
    tensors = [heads(batches, key_heads * share, queries, width)]
    tensors += [heads(batches, key_heads, keys, width) for _ in range(2)]
    masks: dict[str, Mask] = {
        "padding": torch.rand(batches, 1, 1, keys) > 0.3,
        "bool": torch.rand(queries, keys) > 0.5,
        "additive": torch.randn(batches, key_heads * share, queries, keys),
        "transposed": torch.randn(keys, queries).t(),
    }
    compare(
        device,
        [tensor.to(dtype) for tensor in tensors],
        masks.get(kind),
        is_causal=kind == "causal",
        scale=scale,
    )


@pytest.mark.parametrize("queries", [4, 40])
def test_queries_that_may_look_at_nothing(device: str, queries: int) -> None:
    mask = torch.rand(queries, 70) > 0.5
    mask[1] = False
    compare(device, [heads(1, 2, queries, 16), heads(1, 2, 70, 16), heads(1, 2, 70, 16)], mask)


@pytest.mark.parametrize("queries", [4, 40])
def test_the_least_number_as_a_mask(device: str, queries: int) -> None:
    """Models hide keys with it: a query that may look at none gets the mean of all values."""
    mask = torch.zeros(1, 1, queries, 70)
    mask[..., 60:] = torch.finfo(torch.float32).min
    mask[0, 0, 2] = torch.finfo(torch.float32).min
    tensors = [heads(1, 2, queries, 16), heads(1, 2, 70, 16), heads(1, 2, 70, 16)]
    out = attend([tensor.to(device) for tensor in tensors], mask.to(device)).cpu()
    torch.testing.assert_close(out, attend(tensors, mask), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(out[0, :, 2], tensors[2][0].mean(1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("queries", [4, 40])
@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("place", ["query", "key", "value"])
def test_numbers_that_are_none(device: str, queries: int, number: float, place: str) -> None:
    tensors = [heads(1, 2, queries, 16), heads(1, 2, 70, 16), heads(1, 2, 70, 16)]
    tensors[["query", "key", "value"].index(place)][0, 1, 3, 5] = number
    with sdpa_kernel(SDPBackend.MATH):
        expected = attend(tensors)
    out = attend([tensor.to(device) for tensor in tensors]).cpu()
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5, equal_nan=True)


def test_one_operator(device: str, needs_fused_attention: None) -> None:
    tensors = [heads(1, 2, 40, 16).to(device) for _ in range(3)]
    assert operators(tensors).count(FUSED) == 1
    assert FUSED in operators(tensors, torch.ones(40, 40, dtype=torch.bool, device=device))
    assert FUSED in operators([tensors[0], tensors[1][:, :1], tensors[2][:, :1]], is_causal=True)


def test_taken_apart_where_asked_or_needed(device: str) -> None:
    tensors = [heads(1, 2, 40, 16).to(device) for _ in range(3)]
    with sdpa_kernel(SDPBackend.MATH):
        assert FUSED not in operators(tensors)
    assert FUSED not in operators(tensors, dropout_p=0.5)
    assert FUSED not in operators(tensors, torch.zeros(40, 40, device=device, requires_grad=True))
    assert FUSED not in operators([heads(1, 1, 4, 264).to(device) for _ in range(3)])
    assert FUSED not in operators([heads(1, 2, 0, 16).to(device) for _ in range(3)])
    assert FUSED not in operators([tensor.transpose(2, 3).contiguous().transpose(2, 3) for tensor in tensors])


def test_no_backend_is_left(device: str) -> None:
    tensors = [heads(1, 1, 4, 264).to(device) for _ in range(3)]
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION), pytest.raises(RuntimeError, match="No viable backend"):
        attend(tensors)


def test_the_gradient_of_a_mask(device: str) -> None:
    tensors = [heads(1, 2, 20, 16) for _ in range(3)]
    mask = torch.randn(20, 20)
    found = [
        torch.autograd.grad(attend([tensor.to(where) for tensor in tensors], own).square().sum(), own)[0].cpu()
        for where in ("cpu", device)
        for own in [mask.to(where).requires_grad_()]
    ]
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-5)


def test_forward_mode(device: str) -> None:
    tensors, directions = ([heads(1, 2, 20, 16) for _ in range(3)] for _ in range(2))

    def slope(where: str) -> Tensor:
        inputs, along = (tuple(tensor.to(where) for tensor in group) for group in (tensors, directions))
        result: Tensor = torch.func.jvp(lambda *three: attend(list(three)), inputs, along)[1]
        return result.cpu()

    with sdpa_kernel(SDPBackend.MATH):
        expected = slope("cpu")
    torch.testing.assert_close(slope(device), expected, rtol=1e-4, atol=1e-5)


def test_memory_grows_as_the_length(device: str, device_module: ModuleType, needs_fused_attention: None) -> None:
    """The scores of this call would take 64 MiB, in the backward pass several times."""
    tensors = [heads(1, 4, 2048, 16).to(device).requires_grad_() for _ in range(3)]
    slope = torch.randn_like(tensors[0])
    gc.collect()
    torch.accelerator.synchronize()
    before = device_module.memory_allocated()
    device_module.reset_peak_memory_stats()
    torch.autograd.grad(attend(tensors, is_causal=True), tensors, slope)
    torch.accelerator.synchronize()
    taken = device_module.max_memory_allocated() - before
    assert taken < 16 * slope.nbytes, f"{taken >> 20} MiB"


@pytest.mark.parametrize("dynamic", [None, True])
def test_compiled(device: str, device_module: ModuleType, dynamic: bool | None) -> None:
    def mix(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        out: Tensor = functional.scaled_dot_product_attention(2 * query, key, value, mask)
        return out.transpose(1, 2).flatten(2) + 1

    compiled = torch.compile(mix, dynamic=dynamic)
    device_module.reset_fallbacks()
    for length in (70, 5):
        tensors = [heads(2, 4, length, 32) for _ in range(3)]
        mask = torch.rand(2, 1, 1, length) > 0.2
        mask[..., 0] = True
        results = []
        for where, function in (("cpu", mix), (device, compiled)):
            inputs = [tensor.to(where).requires_grad_() for tensor in tensors]
            out = function(*inputs, mask.to(where))
            results.append([out, *torch.autograd.grad(out.square().sum(), inputs)])
        for wanted, found in zip(*results, strict=True):
            torch.testing.assert_close(found.cpu(), wanted, rtol=1e-4, atol=1e-4)
    assert device_module.fallbacks() == {}


@pytest.mark.parametrize("keys", [4, 20])
def test_infinite_and_missing_numbers_stay_in_their_rows(device: str, keys: int) -> None:
    """As PyTorch's own arithmetic has it (``SDPBackend.MATH``) and its fused kernel from 16 keys on. With fewer keys
    than a vector has lanes that kernel loses a NaN while it looks for the highest score, and gives 0."""
    query, key = torch.randn(1, 1, 6, 8), torch.randn(1, 1, keys, 8)
    infinite = float("inf")
    query[0, 0, 0] = infinite
    query[0, 0, 1, 0], query[0, 0, 2, 0], query[0, 0, 3, 0] = infinite, -infinite, float("nan")
    with sdpa_kernel(SDPBackend.MATH):
        expected = attend([query, key, key])
    torch.testing.assert_close(
        attend([tensor.to(device) for tensor in (query, key, key)]).cpu(), expected, equal_nan=True
    )
