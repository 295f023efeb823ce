# SPDX-License-Identifier: Apache-2.0
"""Parameters and computations that ranks share: FSDP2, DTensor and tensor parallelism, pipelines, checkpoints, and
functional collectives in compiled code, each against one process."""

from __future__ import annotations

import copy
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from tests.distributed.ranks import device_type, run_checks

DEVICE = device_type()
WIDTH, BATCH = 16, 4


class Block(nn.Module):
    """A layer of a language model, as tensor parallelism splits it."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs + self.down(nn.functional.silu(self.up(self.norm(inputs))))


class Model(nn.Module):
    def __init__(self, layers: int = 2) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(layers))
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            inputs = layer(inputs)
        return self.head(inputs)


def model() -> Model:
    torch.manual_seed(0)
    return Model()


def batches(count: int = 3) -> torch.Tensor:
    return torch.randn(count, BATCH, 6, WIDTH, generator=torch.Generator().manual_seed(5))


def share(batch: torch.Tensor) -> torch.Tensor:
    return batch.chunk(dist.get_world_size())[dist.get_rank()].to(DEVICE)


def steps(module: nn.Module, optimizer: torch.optim.Optimizer, data: Any) -> None:
    for batch in data:
        module(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def adam(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(module.parameters(), lr=1e-2)


def expected(count: int = 3) -> dict[str, torch.Tensor]:
    alone = model()
    steps(alone, adam(alone), batches(count))
    return alone.state_dict()


def full(tensor: torch.Tensor) -> torch.Tensor:
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().cpu().float()


def equal_to(actual: nn.Module, wanted: dict[str, torch.Tensor], **tolerance: float) -> None:
    for name, tensor in actual.state_dict().items():
        torch.testing.assert_close(full(tensor), wanted[name], msg=lambda text, n=name: f"{n}: {text}", **tolerance)


def shard(module: Model, **arguments: Any) -> Model:
    for layer in module.layers:
        fully_shard(layer, **arguments)
    return fully_shard(module, **arguments)


def world() -> Any:
    return init_device_mesh(DEVICE, (dist.get_world_size(),), mesh_dim_names=("all",))


def check_fully_shard() -> None:
    module = shard(model().to(DEVICE), mesh=world())
    assert all(isinstance(parameter, DTensor) for parameter in module.parameters())
    steps(module, adam(module), map(share, batches()))
    equal_to(module, expected(), rtol=1e-4, atol=1e-5)


def check_fully_shard_mixed_precision() -> None:
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    module = shard(model().to(DEVICE), mesh=world(), mp_policy=policy, reshard_after_forward=False)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    steps(module, optimizer, map(share, batches()))
    alone = model()
    steps(alone, torch.optim.SGD(alone.parameters(), lr=0.1), batches())
    equal_to(module, alone.state_dict(), rtol=5e-2, atol=5e-2)


def check_fully_shard_offloaded() -> None:
    module = shard(model(), mesh=world(), offload_policy=CPUOffloadPolicy(pin_memory=False))
    assert all(parameter.device.type == "cpu" for parameter in module.parameters())
    for batch in map(share, batches(2)):
        module(batch).square().mean().backward()
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.sub_(0.1 * parameter.grad)
                parameter.grad = None
    alone = model()
    steps(alone, torch.optim.SGD(alone.parameters(), lr=0.1), batches(2))
    for name, tensor in module.state_dict().items():
        whole = tensor.to(DEVICE).full_tensor().cpu()
        torch.testing.assert_close(whole, alone.state_dict()[name], rtol=1e-4, atol=1e-5)


def check_dtensor() -> None:
    mesh = world()
    size = dist.get_world_size()
    torch.manual_seed(1)
    a, b = torch.randn(4 * size, 6), torch.randn(6, 2 * size)
    row, column = distribute_tensor(a.to(DEVICE), mesh, [Shard(0)]), distribute_tensor(b.to(DEVICE), mesh, [Shard(1)])
    torch.testing.assert_close(full(row @ distribute_tensor(b.to(DEVICE), mesh, [Replicate()])), a @ b)
    torch.testing.assert_close(full(row.redistribute(mesh, [Replicate()]) @ column), a @ b)
    torch.testing.assert_close(full(row.redistribute(mesh, [Shard(1)])), a)
    torch.testing.assert_close(full(row.sum()), a.sum())
    partial = DTensor.from_local(a.to(DEVICE), mesh, [Partial()])
    torch.testing.assert_close(full(partial), a * size)
    torch.testing.assert_close(full(partial.redistribute(mesh, [Shard(0)])), a * size)
    odd = distribute_tensor(torch.arange(2 * size + 1.0).to(DEVICE), mesh, [Shard(0)])
    torch.testing.assert_close(full(odd * 2), torch.arange(2 * size + 1.0) * 2)


def check_tensor_parallel() -> None:
    mesh = world()
    module = model().to(DEVICE)
    for layer in module.layers:
        plan = {
            "norm": SequenceParallel(),
            "up": ColwiseParallel(input_layouts=Shard(1)),
            "down": RowwiseParallel(output_layouts=Shard(1)),
        }
        parallelize_module(layer, mesh, plan)
    plan = {
        "layers.0": PrepareModuleInput(
            input_layouts=Replicate(), desired_input_layouts=Shard(1), use_local_output=True
        ),
        "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    }
    parallelize_module(module, mesh, plan)
    steps(module, adam(module), (batch.to(DEVICE) for batch in batches()))
    equal_to(module, expected(), rtol=1e-4, atol=1e-5)


def check_two_dimensions() -> None:
    """FSDP over one dimension of the mesh and tensor parallelism over the other; two ranks make one of each."""
    size = dist.get_world_size()
    mesh = init_device_mesh(DEVICE, (size // 2, 2), mesh_dim_names=("data", "tensor"))
    module = model().to(DEVICE)
    for layer in module.layers:
        parallelize_module(layer, mesh["tensor"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    module = shard(module, mesh=mesh["data"])
    parts = mesh["data"].size()
    mine = mesh["data"].get_local_rank()
    steps(module, adam(module), (batch.chunk(parts)[mine].to(DEVICE) for batch in batches()))
    equal_to(module, expected(), rtol=1e-4, atol=1e-5)


class Part(nn.Module):
    """A stage of a pipeline."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.layer(inputs)


def check_pipeline() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    alone = nn.Sequential(*(Block() for _ in range(size)))
    whole = torch.randn(8, 6, WIDTH)
    for kind in (ScheduleGPipe, Schedule1F1B):
        reference = copy.deepcopy(alone)
        outputs = [reference(part) for part in whole.chunk(4)]
        for output in outputs:
            (output.square().mean() / 4).backward()
        stage_module = Part(copy.deepcopy(alone[rank])).to(DEVICE)
        stage = PipelineStage(stage_module, rank, size, torch.device(DEVICE))
        schedule = kind(stage, n_microbatches=4, loss_fn=lambda output, target: output.square().mean())
        if rank == 0:
            schedule.step(whole.to(DEVICE))
        elif rank == size - 1:
            losses: list[torch.Tensor] = []
            output = schedule.step(target=torch.zeros(8, device=DEVICE), losses=losses)
            torch.testing.assert_close(output.cpu(), torch.cat(outputs).detach(), rtol=1e-4, atol=1e-5)
            assert len(losses) == 4
        else:
            schedule.step()
        for parameter, wanted in zip(stage_module.parameters(), reference[rank].parameters(), strict=True):
            torch.testing.assert_close(parameter.grad.cpu(), wanted.grad, rtol=1e-4, atol=1e-5)


def shared_folder() -> Path:
    """A folder that all ranks know."""
    names = [tempfile.mkdtemp(prefix="outboard-checkpoint-") if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(names, src=0)
    assert names[0] is not None
    return Path(names[0])


def states(module: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    parameters, moments = get_state_dict(module, optimizer)
    return {"model": parameters, "optimizer": moments}


def check_checkpoints() -> None:
    """What all ranks saved, others load, and one process does."""
    folder = shared_folder()
    module = shard(model().to(DEVICE), mesh=world())
    optimizer = adam(module)
    steps(module, optimizer, map(share, batches(2)))
    dcp.save(states(module, optimizer), checkpoint_id=folder / "saved")
    future = dcp.async_save(
        states(module, optimizer), checkpoint_id=folder / "later", process_group=dist.new_group(backend="gloo")
    )
    future.result()
    for name in ("saved", "later"):
        torch.manual_seed(3)
        other = shard(Model().to(DEVICE), mesh=world(), reshard_after_forward=False)
        other_optimizer = adam(other)
        state = states(other, other_optimizer)
        dcp.load(state, checkpoint_id=folder / name)
        set_state_dict(other, other_optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        steps(other, other_optimizer, map(share, batches(3)[2:]))
        equal_to(other, expected(3), rtol=1e-4, atol=1e-5)
    if dist.get_rank() == 0:
        alone = Model()
        state = {"model": get_model_state_dict(alone)}
        dcp.load(state, checkpoint_id=folder / "saved", no_dist=True)
        alone.load_state_dict(state["model"])
        equal_to(alone, expected(2), rtol=1e-4, atol=1e-5)
    dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(folder)


def check_functional_collectives() -> None:
    group = dist.group.WORLD
    size = dist.get_world_size()

    def collect(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x = x * 2
        total = functional.all_reduce(x, "sum", group)
        gathered = functional.all_gather_tensor(x, 0, group)
        part = functional.reduce_scatter_tensor(gathered, "sum", 0, group)
        swapped = functional.all_to_all_single(gathered, None, None, group)
        return total + 1, gathered * 3, part.relu(), swapped - 1

    x = torch.arange(4.0) + dist.get_rank()
    everybody = [(torch.arange(4.0) + rank) * 2 for rank in range(size)]
    wanted = (
        sum(everybody) + 1,
        torch.cat(everybody) * 3,
        (everybody[dist.get_rank()] * size).relu(),
        torch.cat([everybody[dist.get_rank()]] * size) - 1,
    )
    for function in (collect, torch.compile(collect)):
        for actual, value in zip(function(x.to(DEVICE)), wanted, strict=True):
            torch.testing.assert_close(actual.cpu(), value)


if __name__ == "__main__":
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    run_checks(globals())
