# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of a training with FSDP2 that another number of ranks goes on from: arguments are ``save`` or ``load``,
and a folder."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import set_state_dict

from tests.distributed.programs.sharded import (
    DEVICE,
    Model,
    adam,
    batches,
    equal_to,
    expected,
    shard,
    share,
    states,
    world,
)
from tests.distributed.programs.sharded import model as seeded
from tests.distributed.programs.sharded import steps as train
from tests.distributed.ranks import run_checks

KIND, FOLDER = sys.argv[1], Path(sys.argv[2])


def check_checkpoint() -> None:
    """Two steps before the checkpoint and one behind it are three steps of one process."""
    if KIND == "save":
        module = shard(seeded().to(DEVICE), mesh=world())
        optimizer = adam(module)
        train(module, optimizer, map(share, batches(2)))
        dcp.save(states(module, optimizer), checkpoint_id=FOLDER)
        return
    torch.manual_seed(3)
    module = shard(Model().to(DEVICE), mesh=world())
    optimizer = adam(module)
    state = states(module, optimizer)
    dcp.load(state, checkpoint_id=FOLDER)
    set_state_dict(module, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    equal_to(module, expected(2), rtol=1e-4, atol=1e-5)
    train(module, optimizer, map(share, batches(3)[2:]))
    equal_to(module, expected(3), rtol=1e-4, atol=1e-5)


if __name__ == "__main__":
    run_checks(globals())
