# SPDX-License-Identifier: Apache-2.0
"""What users of transformers' ``Trainer`` write, started by torchrun or as one process: arguments are a folder for
checkpoints, the rows of a process's batch, and a checkpoint to go on from, if any."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments


def main() -> None:
    folder, rows, *resumed = sys.argv[1:]
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32
    )
    generator = torch.Generator().manual_seed(1)
    data = [torch.randint(0, 50, (8,), generator=generator) for _ in range(32)]
    arguments = TrainingArguments(
        folder,
        per_device_train_batch_size=int(rows),
        num_train_epochs=2,
        logging_steps=1,
        save_steps=4,
        learning_rate=1e-2,
        seed=3,
        report_to=[],
        disable_tqdm=True,
    )
    trainer = Trainer(LlamaForCausalLM(config), arguments, train_dataset=[{"input_ids": x, "labels": x} for x in data])
    trainer.train(resume_from_checkpoint=resumed[0] if resumed else None)
    assert arguments.device.type == torch.accelerator.current_accelerator().type
    if arguments.process_index == 0:
        losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        weights = {name: value.cpu() for name, value in trainer.model.state_dict().items()}
        torch.save(
            {"losses": losses, "weights": weights, "processes": arguments.world_size}, Path(folder) / "result.pt"
        )


if __name__ == "__main__":
    main()
