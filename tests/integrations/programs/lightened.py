# SPDX-License-Identifier: Apache-2.0
"""What users of Lightning write: arguments are ``trainer`` or ``fabric``, a strategy and a number of devices. It starts
the other processes itself."""

from __future__ import annotations

import sys
from typing import Any

import lightning
import torch
from torch.utils.data import DataLoader, DistributedSampler

from tests.integrations.programs.training import BATCH, close, equal_to, expected, loss_of, model, numbers


def loader(processes: int, process: int) -> Any:
    """Rows in the order that one process takes them in."""
    order = DistributedSampler(range(64), num_replicas=processes, rank=process, shuffle=False)
    return DataLoader(numbers(), batch_size=BATCH // processes, sampler=order)


class Model(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = model()
        self.losses: list[float] = []

    def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
        loss = loss_of(self.model, batch)
        # Counts are integers, of which Lightning takes the mean, too.
        self.log_dict({"loss": loss, "rows": batch.shape[0]}, sync_dist=True)
        self.losses.append(self.all_gather(loss.detach()).mean().item())
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=0.01)

    def train_dataloader(self) -> Any:
        return loader(self.trainer.world_size, self.trainer.global_rank)


def with_trainer(strategy: str, devices: Any) -> torch.device:
    trainer = lightning.Trainer(
        max_epochs=2,
        strategy=strategy,
        devices=devices,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        use_distributed_sampler=False,
    )
    module = Model()
    trainer.fit(module)
    losses, weights = expected(2, accumulated=1)
    assert trainer.world_size == 2
    close(module.losses, losses)
    close([trainer.callback_metrics["loss"].item(), trainer.callback_metrics["rows"].item()], [losses[-1], 8])
    equal_to(module.model, weights)
    return trainer.strategy.root_device


def with_fabric(strategy: str, devices: Any) -> torch.device:
    fabric = lightning.Fabric(strategy=strategy, devices=devices)
    fabric.launch()
    module = model()
    module, optimizer = fabric.setup(module, torch.optim.AdamW(module.parameters(), lr=0.01))
    rows = fabric.setup_dataloaders(loader(fabric.world_size, fabric.global_rank), use_distributed_sampler=False)
    losses = []
    for _ in range(2):
        for batch in rows:
            loss = loss_of(module, batch)
            fabric.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(fabric.all_reduce(loss.detach()).item())
    wanted, weights = expected(2, accumulated=1)
    assert fabric.world_size == 2
    close(losses, wanted)
    equal_to(module.module, weights)
    assert fabric.all_reduce(torch.tensor(3 + fabric.global_rank)).item() == 3  # the mean of integers is one
    return fabric.device


def main() -> None:
    kind, strategy, devices = sys.argv[1:]
    run = {"trainer": with_trainer, "fabric": with_fabric}[kind]
    device = run(strategy, int(devices) if devices.isdigit() else devices)
    assert device.type == torch.accelerator.current_accelerator().type
    print(f"process {torch.distributed.get_rank()} on {device}\n", end="", flush=True)


if __name__ == "__main__":
    main()
