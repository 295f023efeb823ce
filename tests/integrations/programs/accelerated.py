# SPDX-License-Identifier: Apache-2.0
"""What users of accelerate write, started by ``accelerate launch``: arguments are a folder and precisions."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import GradScalerKwargs

from tests.integrations.programs.training import BATCH, close, equal_to, expected, loss_of, model, numbers


def train(accelerator: Accelerator, folder: Path, tolerance: float) -> None:
    per_process = BATCH // accelerator.num_processes
    module = model()
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.01)
    module, optimizer, loader = accelerator.prepare(
        module, optimizer, torch.utils.data.DataLoader(numbers(), batch_size=per_process)
    )
    losses = []
    for epoch in range(2):
        for batch in loader:
            with accelerator.accumulate(module):
                loss = loss_of(module, batch)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(module.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
            losses.append(accelerator.gather(loss.detach().reshape(1)).mean().item())
        if epoch == 0:
            accelerator.save_state(str(folder))
            saved = {name: whole(value) for name, value in module.state_dict().items()}
            drawn = torch.rand(3, device=accelerator.device)
    wanted_losses, wanted = expected(2, accumulated=2, norm=1.0)
    close(losses, wanted_losses, tolerance)
    equal_to(accelerator.unwrap_model(module), wanted, 10 * tolerance)
    accelerator.load_state(str(folder))
    assert all(torch.equal(whole(value), saved[name]) for name, value in module.state_dict().items())
    assert torch.equal(torch.rand(3, device=accelerator.device), drawn)


def whole(value: torch.Tensor) -> torch.Tensor:
    return (value.full_tensor() if hasattr(value, "full_tensor") else value).clone()


def gather_for_metrics(accelerator: Accelerator) -> None:
    """Rows that fill up the last batch are not among the results."""
    rows = numbers(61)
    loader = accelerator.prepare(torch.utils.data.DataLoader(rows, batch_size=8))
    seen = torch.cat([accelerator.gather_for_metrics(batch) for batch in loader])
    assert seen.device.type == accelerator.device.type and torch.equal(seen.cpu(), rows)
    assert sorted(accelerator.gather_for_metrics([accelerator.process_index], use_gather_object=True)) == [0, 1]


def main() -> None:
    folder, *precisions = sys.argv[1:]
    device = torch.accelerator.current_accelerator()
    for precision in precisions:
        AcceleratorState._reset_state(reset_partial_state=True)
        accelerator = Accelerator(
            mixed_precision=precision,
            gradient_accumulation_steps=2,
            # With the usual first scale of 65536, the steps of so few would be left out.
            kwargs_handlers=[GradScalerKwargs(init_scale=16.0)],
        )
        assert accelerator.device.type == device.type and accelerator.num_processes == 2
        train(accelerator, Path(folder) / precision, 1e-5 if precision == "no" else 2e-2)
        gather_for_metrics(accelerator)
    print(f"process {accelerator.process_index} on {accelerator.device}: {accelerator.distributed_type.name}\n", end="")
    accelerator.end_training()


if __name__ == "__main__":
    main()
