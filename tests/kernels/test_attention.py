# SPDX-License-Identifier: Apache-2.0
"""Attention kernels, each as a plan of its own, for devices of several kinds."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import pytest
import torch

from outboard import _C
from outboard.compiler import kernels
from outboard.compiler.kernels.call import ExternCall
from outboard.compiler.plans import plan
from outboard.compiler.plans.builder import PlanBuilder, TensorArg
from outboard.compiler.plans.schema import serialize
from outboard.compiler.target import target_of

FORWARD = "aten::_scaled_dot_product_flash_attention_for_cpu"
BACKWARD = FORWARD + "_backward"
#: queries, keys, width, causal, mask
CASES = [
    (10, 10, 8, True, False),
    (33, 70, 64, False, False),
    (33, 33, 64, True, False),
    (20, 40, 16, False, True),
    (1, 300, 40, False, False),
    (5, 7, 24, True, False),
    (3, 600, 16, False, True),
    (9, 21, 130, True, False),
    (70, 140, 96, True, False),
    (130, 66, 128, False, True),
]
#: What other CPUs have: more cores than heads, narrow vectors, little local memory.
MACHINES = {"many cores": {"compute_units": 64}, "narrow": {"vector_width": 8}, "small": {"local_memory": 32768}}


def _run(
    name: str,
    like: tuple[torch.Tensor, ...],
    device: str,
    *arguments: Any,
    machine: dict[str, Any] | None = None,
    **keywords: Any,
) -> list[torch.Tensor]:
    """The results of one call on the device; they have the geometry of ``like``."""
    target = target_of(0)
    if os.environ.get("OUTBOARD_TEST_TARGET") == "gpu":
        target = dataclasses.replace(target, execution="simt", vector_width=1)
    local_memory = target.local_memory  # a machine that is made up cannot have more than the one that runs it
    target = dataclasses.replace(target, **machine or {})
    builder = PlanBuilder(dataclasses.replace(target, local_memory=min(local_memory, target.local_memory)))
    inputs = [value for value in (*arguments, *keywords.values()) if isinstance(value, torch.Tensor)]
    numbers = {id(tensor): builder.add_input(plan.InputKind.TENSOR) for tensor in inputs}

    def lower(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return TensorArg(numbers[id(value)], value.dtype, tuple(value.shape), tuple(value.stride()))

    results = [builder.allocate_like(tensor.shape, tensor.stride(), tensor.dtype) for tensor in like]
    call = ExternCall(name, [lower(v) for v in arguments], {k: lower(v) for k, v in keywords.items()}, results)
    assert kernels.lower(builder, call)
    for result in results:
        builder.output_tensor(result)
    outputs = _C.Plan(serialize(builder.finish()), 0).run([tensor.to(device) for tensor in inputs])
    return [tensor.cpu() for tensor in outputs]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("queries", "keys", "width", "causal", "masked"), CASES)
def test_forward_and_backward(
    device: str,
    queries: int,
    keys: int,
    width: int,
    causal: bool,
    masked: bool,
    dtype: torch.dtype,
    request: pytest.FixtureRequest,
) -> None:
    if dtype == torch.float64:
        request.getfixturevalue("needs_doubles")
    _check(device, queries, keys, width, causal, masked, dtype)


@pytest.mark.skipif(os.environ.get("OUTBOARD_TEST_TARGET") == "gpu", reason="these are CPUs")
@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
@pytest.mark.parametrize(("queries", "keys", "width", "causal", "masked"), CASES)
def test_other_machines(
    device: str, queries: int, keys: int, width: int, causal: bool, masked: bool, machine: dict[str, Any]
) -> None:
    _check(device, queries, keys, width, causal, masked, torch.float32, machine)


def _check(
    device: str,
    queries: int,
    keys: int,
    width: int,
    causal: bool,
    masked: bool,
    dtype: torch.dtype,
    machine: dict[str, Any] | None = None,
) -> None:
    """Compares result, logarithms and gradients with those of PyTorch's kernel for CPUs."""
    tolerance = {torch.float32: 1e-4, torch.float64: 1e-9, torch.float16: 2e-2, torch.bfloat16: 1e-1}[dtype]
    query = torch.randn(2, queries, 3, width).to(dtype).transpose(1, 2)
    key, value = torch.randn(2, 3, keys, width).to(dtype), torch.randn(2, 3, keys, width).to(dtype)
    mask = torch.zeros(queries, keys).masked_fill(torch.rand(queries, keys) > 0.7, -float("inf")).to(dtype)
    keywords = {"attn_mask": mask} if masked else {}
    forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    expected = forward(query, key, value, 0.0, causal, **keywords)
    actual = _run(FORWARD, expected, device, query, key, value, 0.0, causal, machine=machine, **keywords)
    torch.testing.assert_close(actual, list(expected), rtol=tolerance, atol=tolerance)

    backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
    arguments = (torch.randn_like(expected[0]), query, key, value, *expected, 0.0, causal)
    gradients = backward(*arguments, **keywords)
    actual = _run(BACKWARD, gradients, device, *arguments, machine=machine, **keywords)
    torch.testing.assert_close(actual, list(gradients), rtol=4 * tolerance, atol=4 * tolerance)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("heads", "shared", "width"), [(2, 2, 64), (4, 2, 128), (3, 1, 48)])
def test_errors_of_halves(device: str, heads: int, shared: int, width: int, dtype: torch.dtype) -> None:
    """No more than twice those of PyTorch's kernel for CPUs, against float64; rows that do not lie side by side."""
    torch.manual_seed(0)
    query, grad = (torch.randn(1, 100, heads, width + 3)[..., 3:].transpose(1, 2) for _ in range(2))
    key, value = (torch.randn(1, shared, 83, width) for _ in range(2))

    def attend(dtype: torch.dtype, device: str) -> list[torch.Tensor]:
        inputs = [x.to(halves).to(dtype).to(device).requires_grad_() for x in (query, key, value)]
        attention = torch.nn.functional.scaled_dot_product_attention
        out = attention(*inputs, is_causal=True, enable_gqa=shared < heads)
        gradients = torch.autograd.grad(out, inputs, grad.to(halves).to(dtype).to(device))
        return [x.detach().cpu().double() for x in (out, *gradients)]

    halves = dtype
    for exact, other, ours in zip(
        attend(torch.float64, "cpu"), attend(dtype, "cpu"), attend(dtype, device), strict=True
    ):
        assert (ours - exact).norm() <= 2 * (other - exact).norm()
        assert (ours - exact).abs().max() <= 2 * (other - exact).abs().max()


def test_a_query_that_may_look_at_nothing_gives_zeros(device: str) -> None:
    query, key = torch.randn(1, 1, 4, 8), torch.randn(1, 1, 6, 8)
    mask = torch.zeros(4, 6)
    mask[2] = -float("inf")
    like = (torch.empty(1, 1, 4, 8), torch.empty(1, 1, 4))
    out, logarithms = _run(FORWARD, like, device, query, key, key.clone(), 0.0, False, attn_mask=mask)
    assert (out[0, 0, 2] == 0).all()
    assert logarithms[0, 0, 2] == -float("inf")
    assert out.isfinite().all()


def test_grouped_heads(device: str) -> None:
    query, key, value = torch.randn(2, 6, 9, 8), torch.randn(2, 2, 11, 8), torch.randn(2, 2, 11, 8)
    spread = [tensor.repeat_interleave(3, 1) for tensor in (key, value)]
    expected = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(query, *spread)
    actual = _run(FORWARD, expected, device, query, key, value)
    torch.testing.assert_close(actual, list(expected), rtol=1e-4, atol=1e-4)


def test_dropout_is_declined() -> None:
    builder = PlanBuilder(target_of(0))
    number = builder.add_input(plan.InputKind.TENSOR)
    tensor = TensorArg(number, torch.float32, (1, 1, 4, 8), (32, 32, 8, 1))
    call = ExternCall(FORWARD, [tensor, tensor, tensor, 0.5], {}, [tensor, tensor])
    assert not kernels.lower(builder, call)
    assert builder.steps == []
