# SPDX-License-Identifier: Apache-2.0
"""``nn.TransformerEncoder`` and ``nn.MultiheadAttention`` in inference, where they call operators of their own."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from types import ModuleType

import pytest
import torch
from torch import Tensor, nn

MASKS = ["none", "queries", "keys", "both"]


@pytest.fixture(autouse=True)
def _no_fallbacks(device_module: ModuleType) -> Iterator[None]:
    device_module.set_fallback_policy("error")
    yield
    device_module.set_fallback_policy("allow")


def masks(kind: str, device: str) -> tuple[Tensor | None, Tensor | None]:
    """Which keys queries may not look at (places, places), and which are padding (batch, places)."""
    places = torch.ones(5, 5, dtype=torch.bool).triu(1).to(device)
    padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2], device=device)
    return places if kind in ("queries", "both") else None, padding if kind in ("keys", "both") else None


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_encoders(device: str, mask: str, norm_first: bool, activation: str) -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=norm_first, activation=activation)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    x = torch.rand(2, 5, 8)
    with torch.inference_mode():
        expected = encoder(x, *masks(mask, "cpu"))
    with torch.no_grad():
        found = encoder.to(device)(x.to(device), *masks(mask, device))
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("weights", ["none", "of heads", "averaged"])
def test_attention(device: str, mask: str, weights: str) -> None:
    attention = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    x = torch.rand(2, 5, 8)
    results = []
    for where in ("cpu", device):
        of_queries, of_keys = masks(mask, where)
        values = x.to(where)
        with torch.inference_mode():
            out, found = attention.to(where)(
                values,
                values,
                values,
                attn_mask=of_queries,
                key_padding_mask=of_keys,
                need_weights=weights != "none",
                average_attn_weights=weights == "averaged",
            )
        results.append((out.cpu(), None if found is None else found.cpu()))
    torch.testing.assert_close(results[1], results[0], rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_dtypes(device: str, dtype: torch.dtype) -> None:
    encoder = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True).eval()
    x = torch.rand(3, 7, 16)
    with torch.no_grad():
        expected = encoder(x)
        found = encoder.to(device, dtype)(x.to(device, dtype))
    tolerance = {torch.float64: 2e-6, torch.float16: 5e-3, torch.bfloat16: 5e-2}[dtype]
    torch.testing.assert_close(found.cpu().float(), expected, rtol=0, atol=tolerance)


def test_padding_is_zero_as_on_the_cpu(device: str) -> None:
    """Where masks only shorten sequences, PyTorch makes a nested tensor of them."""
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2, nn.LayerNorm(8)).eval()
    x, padding = torch.rand(3, 5, 8), torch.arange(5) >= torch.tensor([[5], [3], [1]])
    nested = torch.nested.nested_tensor([x[0], x[1, :3]])
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected, parts = encoder(x, src_key_padding_mask=padding), encoder.layers[0](nested).unbind()
        encoder = encoder.to(device)
        found = encoder(x.to(device), src_key_padding_mask=padding.to(device))
        found_parts = encoder.layers[0](nested.to(device)).unbind()
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-5, atol=2e-6)
    for one, other in zip(found_parts, parts, strict=True):
        torch.testing.assert_close(one.cpu(), other, rtol=1e-5, atol=2e-6)


def test_who_may_look_at_nothing_is_nan(device: str) -> None:
    attention = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    x, padding = torch.rand(2, 5, 8), torch.tensor([[False] * 5, [True] * 5])
    with torch.no_grad():
        expected = attention(x, x, x, key_padding_mask=padding, need_weights=False)[0]
        there = x.to(device)
        found = attention.to(device)(there, there, there, key_padding_mask=padding.to(device), need_weights=False)[0]
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-5, atol=2e-6, equal_nan=True)


def test_a_graph(device: str) -> None:
    encoder = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    x = torch.rand(2, 5, 8)
    with torch.no_grad():
        expected = encoder(x)
        found = torch.compile(encoder.to(device))(x.to(device))
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-5, atol=2e-6)


def test_an_encoder_on_a_device_of_short_work_items(run_python: Callable[..., str]) -> None:
    """Attention is none of its operators there, so that what scales it depends on sizes of the call."""
    printed = run_python(
        """
        import torch
        from torch import nn

        name = torch._C._get_privateuse1_backend_name()
        torch.get_device_module(name).set_fallback_policy("error")
        encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2).eval()
        x, padding = torch.rand(2, 5, 8), torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
        with torch.inference_mode():
            expected = encoder(x, src_key_padding_mask=padding)
        with torch.no_grad():
            found = encoder.to(name)(x.to(name), src_key_padding_mask=padding.to(name)).cpu()
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=2e-6)
        print("right")
        """,
        OUTBOARD_DRIVER="strict",
        OUTBOARD_STRICT_EXECUTION="simt",
        OUTBOARD_STRICT_VECTOR_WIDTH="1",
        OUTBOARD_STRICT_DELAY="0",
    )
    assert printed.split()[-1] == "right"


@pytest.mark.parametrize("average", [False, True])
@pytest.mark.parametrize("need_weights", [False, True])
def test_attention_of_nested_tensors(need_weights: bool, average: bool, device: str) -> None:
    """In inference, of sequences of different lengths: none of the weights is of padding."""
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    nested = torch.nested.nested_tensor([torch.randn(3, 8), torch.randn(5, 8)])
    options = {"need_weights": need_weights, "average_attn_weights": average}
    with torch.inference_mode():
        expected, weights = attention(nested, nested, nested, **options)
        there = nested.to(device)
        found, found_weights = attention.to(device)(there, there, there, **options)
    for part, other in zip(found.unbind(), expected.unbind(), strict=True):
        torch.testing.assert_close(part.cpu(), other, atol=1e-5, rtol=1e-4)
    if weights is None:
        assert found_weights is None
    else:
        torch.testing.assert_close(found_weights.cpu(), weights, atol=1e-5, rtol=1e-4)
