# SPDX-License-Identifier: Apache-2.0
"""``flex_attention``: scores and masks by functions of the user's, against the same written out on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

BATCH, HEADS, LENGTH, WIDTH = 2, 4, 48, 16


def _inputs(groups: int = 1, seed: int = 0) -> list[Tensor]:
    torch.manual_seed(seed)
    return [torch.randn(BATCH, heads, LENGTH, WIDTH) for heads in (HEADS, HEADS // groups, HEADS // groups)]


def _written_out(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, mask: Tensor) -> Tensor:
    """Attention with a bias and a mask of all scores."""
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    scores = (q @ k.mT * WIDTH**-0.5 + bias).masked_fill(~mask, float("-inf"))
    return scores.softmax(-1).nan_to_num(0) @ v


def _compare(
    device_module: ModuleType,
    device: str,
    compiled: bool,
    call: Callable[..., Tensor],
    expected: Callable[..., Tensor],
    *leaves: Tensor,
) -> None:
    """Compares results and gradients of two functions of ``leaves``."""
    before = device_module.fallbacks()
    here = [x.clone().requires_grad_() for x in leaves]
    there = [x.to(device).requires_grad_() for x in leaves]
    found, wanted = (torch.compile(call) if compiled else call)(*there), expected(*here)
    torch.testing.assert_close(found.cpu(), wanted, rtol=1e-4, atol=1e-5)
    weight = torch.randn_like(wanted)
    (found * weight.to(device)).sum().backward()
    (wanted * weight).sum().backward()
    for one, other in zip(there, here, strict=True):
        assert one.grad is not None and other.grad is not None
        torch.testing.assert_close(one.grad.cpu(), other.grad, rtol=1e-3, atol=1e-4)
    assert device_module.fallbacks() == before


ways = pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])


@ways
def test_a_score_with_captured_weights_and_a_mask(device: str, device_module: ModuleType, compiled: bool) -> None:
    """The weights get gradients, too."""
    place = torch.arange(LENGTH)
    causal = place[:, None] >= place
    blocks = create_block_mask(lambda b, h, q, k: q >= k, None, None, LENGTH, LENGTH, device=device)

    def call(q: Tensor, k: Tensor, v: Tensor, slopes: Tensor) -> Tensor:
        return flex_attention(q, k, v, lambda s, b, h, i, j: s + slopes[h] * (j - i), block_mask=blocks)

    def expected(q: Tensor, k: Tensor, v: Tensor, slopes: Tensor) -> Tensor:
        return _written_out(q, k, v, slopes[:, None, None] * (place - place[:, None]), causal)

    _compare(device_module, device, compiled, call, expected, *_inputs(), torch.tensor([0.1, 0.2, 0.0, -0.05]))


@ways
def test_groups_and_documents(device: str, device_module: ModuleType, compiled: bool) -> None:
    """Fewer heads of keys, and a mask that looks up which document a place is in; one query sees nothing."""
    documents = torch.arange(LENGTH) // 20
    documents = torch.stack([documents, documents.flip(0)])
    there = documents.to(device)

    def mask(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (there[b, q] == there[b, k]) & (q != 5)

    blocks = create_block_mask(mask, BATCH, None, LENGTH, LENGTH, device=device)
    seen = (documents[:, None, :, None] == documents[:, None, None, :]).clone()
    seen[:, :, 5] = False

    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return flex_attention(q, k, v, block_mask=blocks, enable_gqa=True)

    def expected(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return _written_out(q, k, v, torch.zeros(()), seen)

    _compare(device_module, device, compiled, call, expected, *_inputs(groups=2))


@ways
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_halves_in_inference(device: str, dtype: torch.dtype, compiled: bool) -> None:
    q, k, v = (x.to(dtype) for x in _inputs())

    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return flex_attention(q, k, v, lambda s, b, h, i, j: torch.tanh(s / 5) * 5)

    with torch.inference_mode():
        found = (torch.compile(call) if compiled else call)(q.to(device), k.to(device), v.to(device))
        wanted = (torch.tanh(q.float() @ k.float().mT / 4 / 5) * 5).softmax(-1) @ v.float()
    assert found.dtype == dtype
    torch.testing.assert_close(found.cpu().float(), wanted, rtol=2e-2, atol=2e-2)


def test_logarithms_of_sums(device: str) -> None:
    q, k, v = _inputs()
    _, found = flex_attention(q.to(device), k.to(device), v.to(device), return_lse=True)
    torch.testing.assert_close(found.cpu(), (q @ k.mT * WIDTH**-0.5).logsumexp(-1), rtol=1e-4, atol=1e-5)


def test_other_devices_are_as_before(device: str) -> None:
    q, k, v = _inputs()
    torch.testing.assert_close(flex_attention(q, k, v), _written_out(q, k, v, torch.zeros(()), torch.tensor(True)))
    with pytest.raises(NotImplementedError, match="backward on CPU"):
        flex_attention(q.requires_grad_(), k, v)
    with pytest.raises(ValueError, match="same device"):
        flex_attention(q.detach(), k.to(device), v)
