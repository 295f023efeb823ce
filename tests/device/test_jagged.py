# SPDX-License-Identifier: Apache-2.0
"""Nested tensors, jagged and strided: attention without padding against that of each sequence alone in float64, and
what PyTorch's kernels for nested tensors make of dense operators, against the CPU."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

LENGTHS = [5, 1, 70, 33]


def rows(lengths: list[int], heads: int, width: int, seed: int) -> Tensor:
    return torch.randn(sum(lengths), heads, width, generator=torch.Generator().manual_seed(seed))


def starts(lengths: list[int]) -> list[int]:
    return [0, *torch.tensor(lengths).cumsum(0).tolist()]


def each_alone(tensors: list[Tensor], lengths: list[list[int]], causal: bool) -> Tensor:
    """Attention of each sequence of (places, heads, width), one after the other."""
    parts = [each.split(of_each) for each, of_each in zip(tensors, lengths, strict=True)]
    outs = [
        F.scaled_dot_product_attention(
            *(part.transpose(0, 1)[None] for part in sequence), is_causal=causal, enable_gqa=True
        )
        for sequence in zip(*parts, strict=True)
    ]
    return torch.cat([out[0].transpose(0, 1) for out in outs])


def jagged(values: Tensor, lengths: list[int]) -> Tensor:
    """As attention takes it: (sequences, heads, places, width)."""
    offsets = torch.tensor(starts(lengths), device=values.device)
    return torch.nested.nested_tensor_from_jagged(values, offsets).transpose(1, 2)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("dtype", "heads", "of_keys", "width"),
    [
        (torch.float32, 2, 2, 16),
        (torch.float32, 4, 2, 33),
        (torch.float64, 2, 1, 20),
        (torch.bfloat16, 2, 2, 64),
    ],
    ids=str,
)
def test_attention_of_jagged_tensors(
    device_module: ModuleType, dtype: torch.dtype, heads: int, of_keys: int, width: int, causal: bool
) -> None:
    of_others = LENGTHS if causal else [7, 3, 1, 130]
    lengths = [LENGTHS, of_others, of_others]
    counts = (heads, of_keys, of_keys)
    given = [rows(each, count, width, n) for n, (each, count) in enumerate(zip(lengths, counts, strict=True))]
    exact = [each.to(dtype).double().requires_grad_() for each in given]
    expected = each_alone(exact, lengths, causal)
    towards = torch.randn(expected.shape, generator=torch.Generator().manual_seed(9)).to(dtype)
    expected.backward(towards.double())

    device_module.reset_fallbacks()
    moved = [each.to("ocl", dtype).requires_grad_() for each in given]
    shared = heads != of_keys
    result = F.scaled_dot_product_attention(
        *(jagged(each, length) for each, length in zip(moved, lengths, strict=True)),
        is_causal=causal,
        enable_gqa=shared,
    )
    assert result.is_nested and result.shape[1] == heads
    out = result.transpose(1, 2).values()
    out.backward(towards.to("ocl"))
    assert device_module.fallbacks() == {}
    near = {torch.float32: 1e-5, torch.float64: 1e-12, torch.bfloat16: 6e-2}[dtype]
    torch.testing.assert_close(out.detach().cpu().double(), expected.detach(), atol=near, rtol=near)
    for actual, wanted in zip(moved, exact, strict=True):
        torch.testing.assert_close(actual.grad.cpu().double(), wanted.grad, atol=near, rtol=near)


def test_attention_with_dropout_pads(device_module: ModuleType) -> None:
    values = rows(LENGTHS, 2, 8, 0).to("ocl").requires_grad_()
    device_module.reset_fallbacks()
    query = jagged(values, LENGTHS)
    kept = F.scaled_dot_product_attention(query, query, query, dropout_p=1e-9).transpose(1, 2).values()
    expected = each_alone([values.detach().cpu()] * 3, [LENGTHS] * 3, False)
    torch.testing.assert_close(kept.detach().cpu(), expected, atol=1e-5, rtol=1e-5)
    kept.sum().backward()
    assert values.grad is not None and bool(values.grad.isfinite().all())
    assert device_module.fallbacks() == {}


def test_empty_sequences_and_rows_of_none() -> None:
    attend = torch.ops.outboard.attend_packed
    places = torch.tensor([1, 4, 4, 6], device="ocl"), torch.tensor([2, 2, 5, 7], device="ocl", dtype=torch.int32)
    query, key = (rows([9], 2, 8, n).to("ocl").requires_grad_() for n in range(2))
    out, _ = attend(query, key, key, *places, 3, 3, False, None)
    out.sum().backward()
    assert query.grad is not None and key.grad is not None
    blank = [0, 1, 2, 3, 6, 7, 8]  # the first sequence has no keys
    assert not out[blank].any() and not query.grad[blank].any()
    assert not key.grad[[0, 1, 2, 3, 4, 7, 8]].any()  # the second has no queries
    expected = each_alone([query[4:6].cpu(), key[5:7].cpu(), key[5:7].cpu()], [[2]] * 3, False)
    torch.testing.assert_close(out[4:6].cpu(), expected, atol=1e-5, rtol=1e-5)


class Block(torch.nn.Module):
    """A layer of a transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.into, self.out = torch.nn.LayerNorm(16), torch.nn.Linear(16, 48), torch.nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        """(sequences, places, 16), nested."""
        heads = [part.unflatten(-1, [2, 8]).transpose(1, 2) for part in self.into(self.norm(x)).chunk(3, -1)]
        mixed = F.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(-2)
        result: Tensor = x + F.gelu(self.out(mixed))
        return result


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_block_without_padding_is_that_of_each_sequence(device_module: ModuleType, compiled: bool) -> None:
    torch.manual_seed(0)
    block = Block()
    sequences = [torch.randn(length, 16) for length in (3, 6, 1)]
    expected = [block(each[None])[0] for each in sequences]
    sum(each.sin().sum() for each in expected).backward()
    of_weights = [each.grad.clone() for each in block.parameters()]
    block.zero_grad()
    block.to("ocl")
    device_module.reset_fallbacks()
    nested = torch.nested.nested_tensor([each.to("ocl") for each in sequences], layout=torch.jagged)
    result = (torch.compile(block) if compiled else block)(nested)
    result.values().sin().sum().backward()
    assert device_module.fallbacks() == {}
    for actual, wanted in zip(result.unbind(), expected, strict=True):
        torch.testing.assert_close(actual.cpu(), wanted, atol=1e-5, rtol=1e-5)
    for parameter, wanted in zip(block.parameters(), of_weights, strict=True):
        torch.testing.assert_close(parameter.grad.cpu(), wanted, atol=1e-4, rtol=1e-4)


def test_between_jagged_and_padded(device_module: ModuleType) -> None:
    lengths = [2, 0, 4]
    values = torch.arange(18.0).view(6, 3)
    device_module.reset_fallbacks()
    moved = values.to("ocl").requires_grad_()
    offsets = torch.tensor(starts(lengths), device="ocl")
    nested = torch.nested.nested_tensor_from_jagged(moved, offsets, min_seqlen=0, max_seqlen=4)
    padded = nested.to_padded_tensor(-1.0)
    expected = [F.pad(part, (0, 0, 0, 4 - len(part)), value=-1.0) for part in values.split(lengths)]
    torch.testing.assert_close(padded.cpu(), torch.stack(expected))
    padded.square().sum().backward()
    torch.testing.assert_close(moved.grad.cpu(), 2 * values)
    torch.testing.assert_close(nested.softmax(1).sum(1)[0].cpu(), torch.ones(3))
    assert device_module.fallbacks() == {}


#: Of nested tensors of the strided layout: name -> what becomes of one.
STRIDED: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "layer_norm": lambda x: F.layer_norm(x, (4,), torch.arange(4.0, device=x.device), torch.ones(4, device=x.device)),
    "linear": lambda x: F.linear(x, torch.arange(8.0, device=x.device).view(2, 4), torch.ones(2, device=x.device)),
    "matmul": lambda x: torch.matmul(x, x.transpose(1, 2)),
    "mul": lambda x: x * x,
    "softmax": lambda x: F.softmax(x, -1),
    "sum": lambda x: x.sum(-1, keepdim=True),
    "to_padded_tensor": lambda x: x.to_padded_tensor(0.5),
}


@pytest.mark.parametrize("name", STRIDED)
def test_strided_layout(name: str) -> None:
    def run(device: str) -> tuple[list[Tensor], list[Tensor]]:
        parts = [(torch.arange(4.0 * length).view(length, 4) / 9).to(device).requires_grad_() for length in (2, 3)]
        out = STRIDED[name](torch.nested.as_nested_tensor(parts))
        pieces = list(out.unbind())
        torch.stack([piece.sin().sum() for piece in pieces]).sum().backward()
        return [piece.detach().cpu() for piece in pieces], [part.grad.cpu() for part in parts]

    torch.testing.assert_close(run("ocl"), run("cpu"), atol=1e-4, rtol=1e-4)


def test_strided_layout_refuses_what_it_has_no_kernel_for() -> None:
    nested = torch.nested.nested_tensor([torch.ones(2, 4), torch.ones(3, 4)], device="ocl")
    assert "nested" in repr(nested)
    with pytest.raises(NotImplementedError, match="cumsum"):
        nested.cumsum(-1)
    for dims, keepdim in ((-1, False), (1, True), ((1, 2), True), (3, True)):
        with pytest.raises(Exception) as expected:
            nested.cpu().sum(dims, keepdim)
        with pytest.raises(expected.type, match=re.escape(str(expected.value))):
            nested.sum(dims, keepdim)


def test_padded_truth_values_stay_so(device: str) -> None:
    """As in the gradient of ``xlogy`` of jagged and dense tensors."""
    dense = torch.tensor([[[True], [False]], [[False], [True]]])
    offsets = torch.tensor([0, 1, 3])
    expected = torch.ops.aten._padded_dense_to_jagged_forward(dense, [offsets], 3)
    result = torch.ops.aten._padded_dense_to_jagged_forward(dense.to(device), [offsets.to(device)], 3)
    torch.testing.assert_close(result.cpu(), expected)
