# SPDX-License-Identifier: Apache-2.0
"""Attention over sequences of which each rank has a part: forward and backward are those of one process."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.experimental._attention import context_parallel_unshard
from torch.nn import functional

from tests.distributed.ranks import device_type, run_checks

DEVICE = device_type()


def check_context_parallel() -> None:
    size = dist.get_world_size()
    generator = torch.Generator().manual_seed(5)
    whole = [torch.randn(2, 2, 8 * size, 16, generator=generator) for _ in range(4)]
    mesh = init_device_mesh(DEVICE, (size,))
    alone = [tensor.clone().requires_grad_() for tensor in whole[:3]]
    wanted = functional.scaled_dot_product_attention(*alone, is_causal=True)
    wanted.backward(whole[3])
    parts = [tensor.to(DEVICE) for tensor in whole]
    with context_parallel(mesh, buffers=parts, buffer_seq_dims=[2] * 4):
        for part in parts[:3]:
            part.requires_grad_()
        result = functional.scaled_dot_product_attention(*parts[:3], is_causal=True)
        result.backward(parts[3])
        found = [result.detach(), *(part.grad for part in parts[:3])]
        found = context_parallel_unshard(mesh, found, [2] * 4)
        for part in parts[:3]:
            part.requires_grad_(False)
    for actual, tensor in zip(found, [wanted.detach(), *(tensor.grad for tensor in alone)], strict=True):
        torch.testing.assert_close(actual.cpu(), tensor, rtol=1e-4, atol=1e-5)


if __name__ == "__main__":
    run_checks(globals())
