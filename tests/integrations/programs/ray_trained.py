# SPDX-License-Identifier: Apache-2.0
"""What users of Ray Train write: arguments are a folder and a number of workers, all on this machine."""

from __future__ import annotations

import sys
from typing import Any

import ray
from ray.train import Checkpoint, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer


def work(config: dict[str, Any]) -> None:
    import tempfile
    from pathlib import Path

    import ray.train.torch
    import torch

    from tests.integrations.programs.training import BATCH, close, equal_to, expected, loss_of, model, numbers

    size, rank = torch.distributed.get_world_size(), torch.distributed.get_rank()
    device = ray.train.torch.get_device()
    module = ray.train.torch.prepare_model(model())
    rows = ray.train.torch.prepare_data_loader(torch.utils.data.DataLoader(numbers(), batch_size=BATCH // size))
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.01)
    losses = []
    for _ in range(2):
        for batch in rows:
            assert batch.device == device
            loss = loss_of(module, batch)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            mean = loss.detach().clone()
            torch.distributed.all_reduce(mean, op=torch.distributed.ReduceOp.AVG)
            losses.append(mean.item())
    wanted, weights = expected(2, accumulated=1)
    close(losses, wanted)
    equal_to(module.module, weights)
    metrics = {"device": str(device), "backend": torch.distributed.get_backend_config(), "size": size}
    with tempfile.TemporaryDirectory() as folder:
        torch.save(module.module.state_dict(), Path(folder) / "weights.pt")
        ray.train.report(metrics, checkpoint=Checkpoint.from_directory(folder) if rank == 0 else None)


def main() -> None:
    folder, workers = sys.argv[1:]
    # Nobody else on the network is to reach this cluster.
    ray.init(num_cpus=4, _node_ip_address="127.0.0.1", include_dashboard=False, log_to_driver=True)
    trainer = TorchTrainer(
        work, scaling_config=ScalingConfig(num_workers=int(workers)), run_config=RunConfig(storage_path=folder)
    )
    result = trainer.fit()
    assert result.checkpoint is not None
    metrics = result.metrics
    print(f"\nRESULT {metrics['size']} workers on {metrics['device']}: {metrics['backend']}", flush=True)
    ray.shutdown()


if __name__ == "__main__":
    main()
