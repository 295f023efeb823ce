# SPDX-License-Identifier: Apache-2.0
"""DistributedDataParallel and its relatives: what each rank has after some steps is what one process has."""

from __future__ import annotations

import contextlib
import copy
import functools
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.algorithms.join import Join
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from tests.distributed.ranks import device_type, run_checks

DEVICE = device_type()
BATCH = 8  # of all ranks together


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 32), nn.GELU(), nn.Linear(32, 32), nn.LayerNorm(32), nn.Linear(32, 4))


def batches(count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(7)
    return [
        (torch.randn(BATCH, 12, generator=generator), torch.randn(BATCH, 4, generator=generator)) for _ in range(count)
    ]


def share(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a batch, on the device."""
    return tensor.chunk(dist.get_world_size())[dist.get_rank()].to(DEVICE)


def train(
    module: nn.Module, optimizer: torch.optim.Optimizer, data: Iterable[tuple[torch.Tensor, torch.Tensor]]
) -> None:
    for inputs, targets in data:
        nn.functional.mse_loss(module(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()


@functools.lru_cache
def expected(steps: int, rate: float = 0.1) -> dict[str, torch.Tensor]:
    """Parameters after training in one process, on the CPU."""
    alone = model()
    train(alone, torch.optim.SGD(alone.parameters(), lr=rate, momentum=0.9), batches(steps))
    return alone.state_dict()


def equal_to(actual: nn.Module, wanted: dict[str, torch.Tensor], **tolerance: float) -> None:
    for name, parameter in actual.state_dict().items():
        torch.testing.assert_close(parameter.cpu(), wanted[name], msg=lambda text, n=name: f"{n}: {text}", **tolerance)


def equal_everywhere(module: nn.Module) -> None:
    """Ranks have the same bits."""
    for parameter in module.parameters():
        first = parameter.detach().clone()
        dist.broadcast(first, 0)
        assert torch.equal(first.cpu(), parameter.detach().cpu())


def parallel(module: nn.Module, **arguments: Any) -> DistributedDataParallel:
    return DistributedDataParallel(module.to(DEVICE), **arguments)


def sgd(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)


def shares(count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(share(inputs), share(targets)) for inputs, targets in batches(count)]


def check_buckets() -> None:
    for arguments in ({}, {"bucket_cap_mb": 0.001, "gradient_as_bucket_view": True}, {"static_graph": True}):
        module = model()
        if dist.get_rank() != 0:
            with torch.no_grad():
                for parameter in module.parameters():
                    parameter.add_(1)  # DDP gives everybody the parameters of the first rank
        wrapped = parallel(module, **arguments)
        train(wrapped, sgd(wrapped), shares(4))
        equal_to(wrapped.module, expected(4))
        equal_everywhere(wrapped)


def check_more_ranks_than_devices() -> None:
    """Programs give DDP and barriers the rank for the number of the device."""
    missing = torch.accelerator.device_count() + dist.get_rank()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        wrapped = DistributedDataParallel(model().to(DEVICE), device_ids=[missing], output_device=missing)
        dist.barrier(device_ids=[missing])
        train(wrapped, sgd(wrapped), shares(3))
    equal_to(wrapped.module, expected(3))


def check_times_of_steps() -> None:
    wrapped = parallel(model())
    train(wrapped, sgd(wrapped), shares(4))
    data = wrapped._get_ddp_logging_data()
    for part in ("forward_compute_time", "backward_compute_time", "backward_comm_time"):
        assert 0 < data[f"avg_{part}"] < 60e9, (part, data)  # nanoseconds


def check_a_sparse_sum_beside_a_dense_one() -> None:
    dense = torch.ones(1 << 22, device=DEVICE)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    sparse = torch.sparse_coo_tensor([[rank, ranks]], torch.ones(2), (ranks + 1,)).to(DEVICE)
    works = [dist.all_reduce(each, async_op=True) for each in (dense, sparse)]
    for work in works:
        assert work is not None
        work.wait()
    assert bool((dense == ranks).all())
    assert sparse.to_dense().tolist() == [1.0] * ranks + [float(ranks)]


def check_sparse_gradients() -> None:
    """Rows of an embedding that ranks look up, each other ones, by an optimizer of sparse gradients and a dense one."""

    def train_words(module: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> None:
        table, linear = module.parameters()
        optimizers = [torch.optim.SparseAdam([table], lr=0.1), torch.optim.SGD([linear], lr=0.1)]
        for _ in range(3):
            nn.functional.mse_loss(module(inputs), targets).backward()
            assert table.grad is not None and table.grad.is_sparse
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()

    torch.manual_seed(0)
    alone = nn.Sequential(nn.Embedding(20, 6, sparse=True), nn.Linear(6, 4, bias=False))
    module = parallel(copy.deepcopy(alone))
    words, targets = torch.arange(BATCH) * 5 % 12, batches(1)[0][1]
    train_words(alone, words, targets)
    train_words(module, share(words), share(targets))
    equal_to(module.module, alone.state_dict())
    equal_everywhere(module)


def check_no_sync() -> None:
    """Gradients of two halves of a batch, of which the first is not sent."""
    wrapped = parallel(model())
    optimizer = sgd(wrapped)
    for inputs, targets in shares(3):
        halves = list(zip(inputs.chunk(2), targets.chunk(2), strict=True))
        for index, (x, y) in enumerate(halves):
            with wrapped.no_sync() if index == 0 else contextlib.nullcontext():
                (nn.functional.mse_loss(wrapped(x), y) / 2).backward()
        optimizer.step()
        optimizer.zero_grad()
    equal_to(wrapped.module, expected(3))


class Branches(nn.Module):
    """Each call uses one of two branches."""

    def __init__(self) -> None:
        super().__init__()
        self.branches = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])

    def forward(self, inputs: torch.Tensor, branch: int) -> torch.Tensor:
        return self.branches[branch](inputs)


def check_unused_parameters() -> None:
    torch.manual_seed(0)
    alone = Branches()
    wrapped = parallel(copy.deepcopy(alone), find_unused_parameters=True)
    size = dist.get_world_size()
    data = torch.randn(4, size, 2, 4)
    for step, whole in enumerate(data):
        branch = step % 2
        loss = sum(alone(whole[rank], branch if rank == 0 else 0).square().mean() for rank in range(size)) / size
        loss.backward()
        wrapped(whole[dist.get_rank()].to(DEVICE), branch if dist.get_rank() == 0 else 0).square().mean().backward()
        for one, other in zip(alone.parameters(), wrapped.parameters(), strict=True):
            assert (one.grad is None) == (other.grad is None)
            if one.grad is not None:
                torch.testing.assert_close(other.grad.cpu(), one.grad)
        alone.zero_grad()
        wrapped.zero_grad()


def check_comm_hooks() -> None:
    hooks: list[tuple[Callable[..., Any], float]] = [
        (default_hooks.allreduce_hook, 1e-5),
        (default_hooks.fp16_compress_hook, 5e-3),
        (default_hooks.bf16_compress_hook, 3e-2),
    ]
    for hook, tolerance in hooks:
        wrapped = parallel(model())
        wrapped.register_comm_hook(None, hook)
        train(wrapped, sgd(wrapped), shares(3))
        equal_to(wrapped.module, expected(3), rtol=tolerance, atol=tolerance)
        equal_everywhere(wrapped)
    wrapped = parallel(model())
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=8, start_powerSGD_iter=2)
    wrapped.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    train(wrapped, sgd(wrapped), shares(5))
    equal_everywhere(wrapped)
    equal_to(wrapped.module, expected(5), rtol=0.2, atol=0.2)


def check_sync_batch_norm() -> None:
    torch.manual_seed(0)
    alone = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2))
    wrapped = parallel(nn.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(alone)))
    images = torch.randn(3, BATCH, 3, 6, 6)
    for batch in images:
        alone(batch).square().mean().backward()
        wrapped(share(batch)).square().mean().backward()
    for (name, one), other in zip(alone.named_parameters(), wrapped.parameters(), strict=True):
        torch.testing.assert_close(other.grad.cpu(), one.grad, rtol=1e-4, atol=1e-5, msg=lambda t, n=name: f"{n}: {t}")
    equal_to(wrapped.module, alone.state_dict(), rtol=1e-4, atol=1e-5)


def check_join() -> None:
    """Ranks have unequal numbers of batches."""
    wrapped = parallel(model())
    optimizer = sgd(wrapped)
    count = 2 + dist.get_rank()
    with Join([wrapped]):
        train(wrapped, optimizer, shares(5)[:count])
    equal_everywhere(wrapped)


def check_zero_redundancy() -> None:
    wrapped = parallel(model())
    optimizer = ZeroRedundancyOptimizer(wrapped.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)
    train(wrapped, optimizer, shares(4))
    equal_to(wrapped.module, expected(4))
    optimizer.consolidate_state_dict(to=0)
    if dist.get_rank() == 0:
        assert len(optimizer.state_dict()["state"]) == len(list(wrapped.parameters()))


def check_mixed_precision() -> None:
    wrapped = parallel(model())
    optimizer = sgd(wrapped)
    for inputs, targets in shares(3):
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = nn.functional.mse_loss(wrapped(inputs).float(), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    equal_everywhere(wrapped)
    equal_to(wrapped.module, expected(3), rtol=5e-2, atol=5e-2)


def check_compiled() -> None:
    wrapped = parallel(model())
    compiled = torch.compile(wrapped)
    train(compiled, sgd(wrapped), shares(3))
    equal_to(wrapped.module, expected(3))


if __name__ == "__main__":
    run_checks(globals())
