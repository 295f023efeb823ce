# SPDX-License-Identifier: Apache-2.0
"""Tensor and pipeline parallelism together, as users of ``rbln-ccl`` write it: each rank takes a card and has a part of
each layer (its place in a group of tensors' parts) of some of the layers (its stage). By hand, with groups, sums,
``send`` and ``recv``; then with DeviceMesh, ``parallelize_module`` and ``torch.distributed.pipelining``.

With two ranks there are two stages or two parts, with four there are two of each.
"""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

WIDTH, HIDDEN, BATCH, LAYERS = 8, 16, 4, 4


class Layer(nn.Module):
    """What is divided into parts: columns of the first matrix, rows of the second."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, HIDDEN, bias=False), nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs + self.down(self.up(inputs).relu())


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(Layer() for _ in range(LAYERS)))


def by_hand(stages: int, parts: int, batch: torch.Tensor, expected: torch.Tensor) -> None:
    rank = dist.get_rank()
    stage, part = divmod(rank, parts)
    groups = [dist.new_group([which * parts + other for other in range(parts)]) for which in range(stages)]
    layers = list(model())[stage * LAYERS // stages : (stage + 1) * LAYERS // stages]
    values = batch.to("rbln") if stage == 0 else torch.empty(BATCH, WIDTH, device="rbln")
    if stage > 0:
        dist.recv(values, src=rank - parts)
    for layer in layers:
        up = layer.up.weight.detach().chunk(parts, 0)[part].to("rbln")
        down = layer.down.weight.detach().chunk(parts, 1)[part].to("rbln")
        result = (values @ up.t()).relu() @ down.t()
        dist.all_reduce(result, group=groups[stage])
        values = values + result
    if stage < stages - 1:
        dist.send(values, dst=rank + parts)
    else:
        torch.testing.assert_close(values.cpu(), expected)


def by_mesh(stages: int, parts: int, batch: torch.Tensor, alone: nn.Sequential, expected: torch.Tensor) -> None:
    """A step of training, whose gradients are compared as well."""
    mesh = init_device_mesh("rbln", (stages, parts), mesh_dim_names=("pp", "tp"))
    stage = mesh["pp"].get_local_rank()
    first, last = stage * LAYERS // stages, (stage + 1) * LAYERS // stages
    module = nn.Sequential(*list(model())[first:last]).to("rbln")
    for layer in module:
        parallelize_module(layer, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    made = PipelineStage(module, stage, stages, torch.device("rbln"), group=mesh["pp"].get_group())
    schedule = ScheduleGPipe(made, n_microbatches=2, loss_fn=lambda found, wanted: found.square().mean())
    outputs = schedule.step(*([batch.to("rbln")] if stage == 0 else []), **loss(stage == stages - 1))
    if stage == stages - 1:
        torch.testing.assert_close(outputs.cpu(), expected)
    alone(batch).square().mean().backward()
    for name, parameter in module.named_parameters():
        index, _, rest = name.partition(".")
        wanted = alone.get_parameter(f"{int(index) + first}.{rest}").grad
        torch.testing.assert_close(parameter.grad.full_tensor().cpu(), wanted, rtol=1e-4, atol=1e-6)


def loss(is_last: bool) -> dict[str, torch.Tensor]:
    return {"target": torch.zeros(BATCH, WIDTH, device="rbln")} if is_last else {}


def main() -> None:
    cards = os.environ["RBLN_VISIBLE_DEVICES"].split(",")
    os.environ["RBLN_VISIBLE_DEVICES"] = cards[int(os.environ["LOCAL_RANK"])]
    stages, parts = map(int, sys.argv[1:])
    dist.init_process_group(backend="rbln-ccl")
    assert torch.rbln.device_count() == 1 and dist.get_world_size() == stages * parts
    alone, batch = model(), torch.randn(BATCH, WIDTH, generator=torch.Generator().manual_seed(1))
    expected = alone(batch).detach()
    by_hand(stages, parts, batch, expected)
    by_mesh(stages, parts, batch, alone, expected)
    dist.destroy_process_group()
    print(f"rank {os.environ['RANK']}: done")


if __name__ == "__main__":
    main()
