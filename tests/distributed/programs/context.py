# SPDX-License-Identifier: Apache-2.0
"""Attention over sequences of which each rank has a part: forward and backward are those of one process."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.experimental._attention import _cp_options, context_parallel_unshard
from torch.nn import functional

from tests.distributed.ranks import device_type, run_checks

DEVICE = device_type()


def check_causal() -> None:
    attend_in_parts(causal=True)


def check_not_causal() -> None:
    _cp_options.enable_load_balance = False  # which PyTorch has for causal attention alone
    attend_in_parts(causal=False)
    _cp_options.enable_load_balance = True


def check_afterwards() -> None:
    """Attention is what it was, also that which needs to be taken apart."""
    whole = [torch.randn(1, 1, 4, 8) for _ in range(3)]
    for arguments in ({"is_causal": True}, {"attn_mask": torch.randn(4, 4, requires_grad=True)}):
        moved = {key: value.to(DEVICE) if key == "attn_mask" else value for key, value in arguments.items()}
        wanted = functional.scaled_dot_product_attention(*whole, **arguments)
        found = functional.scaled_dot_product_attention(*(tensor.to(DEVICE) for tensor in whole), **moved)
        torch.testing.assert_close(found.cpu(), wanted, rtol=1e-4, atol=1e-5)


def attend_in_parts(causal: bool) -> None:
    size = dist.get_world_size()
    generator = torch.Generator().manual_seed(5)
    whole = [torch.randn(2, 2, 8 * size, 16, generator=generator) for _ in range(4)]
    mesh = init_device_mesh(DEVICE, (size,))
    alone = [tensor.clone().requires_grad_() for tensor in whole[:3]]
    wanted = functional.scaled_dot_product_attention(*alone, is_causal=causal)
    wanted.backward(whole[3])
    parts = [tensor.to(DEVICE) for tensor in whole]
    with context_parallel(mesh, buffers=parts, buffer_seq_dims=[2] * 4):
        for part in parts[:3]:
            part.requires_grad_()
        result = functional.scaled_dot_product_attention(*parts[:3], is_causal=causal)
        result.backward(parts[3])
        found = [result.detach(), *(part.grad for part in parts[:3])]
        found = context_parallel_unshard(mesh, found, [2] * 4)
        for part in parts[:3]:
            part.requires_grad_(False)
    for actual, tensor in zip(found, [wanted.detach(), *(tensor.grad for tensor in alone)], strict=True):
        torch.testing.assert_close(actual.cpu(), tensor, rtol=1e-4, atol=1e-5)


if __name__ == "__main__":
    run_checks(globals())
