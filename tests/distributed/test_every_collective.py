# SPDX-License-Identifier: Apache-2.0
"""The backend of torch.distributed has each collective and message that PyTorch's backends can have, or it is named."""

from __future__ import annotations

import re
from pathlib import Path

import torch

ROOT = Path(__file__).parents[2]

#: The end of a group of calls, which backends without
#: `supportsCoalescing` are not asked for; and other ranks for a group, likewise.
NOT_THERE = {"endCoalescing", "reconfigure"}

#: Names since PyTorch 2.14 of what the backend has by its older name: PyTorch's own calls that.
OLDER_NAMES = {
    "all_gather_single": "_allgather_base",
    "all_gather_single_coalesced": "allgather_into_tensor_coalesced",
    "all_to_all_single": "alltoall_base",
    "gather_into_tensor": "gather_single",
    "reduce_scatter_single": "_reduce_scatter_base",
    "reduce_scatter_single_coalesced": "reduce_scatter_tensor_coalesced",
}


def test_each_function_of_backends_with_a_work_is_there() -> None:
    theirs = Path(torch.__file__).parent / "include" / "torch" / "csrc" / "distributed" / "c10d" / "Backend.hpp"
    ours = ROOT / "csrc" / "torch" / "distributed" / "backend.h"
    wanted = set(re.findall(r"virtual c10::intrusive_ptr<Work> (\w+)\(", theirs.read_text()))
    there = set(re.findall(r"WorkPointer (\w+)\([^;]*\)(?: override)?;", ours.read_text()))
    missing = {name for name in wanted if OLDER_NAMES.get(name, name) not in there}
    assert len(wanted) > 15 and missing <= NOT_THERE, missing - NOT_THERE
