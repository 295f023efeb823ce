# SPDX-License-Identifier: Apache-2.0
"""Environment variables that ``torch_npu`` reads, by their public names and meaning."""

from __future__ import annotations

import os

from outboard.profiles.notices import say_once

#: Variables that change what a program does there, and have no counterpart here: name -> what to use instead, if any.
_WITHOUT_EFFECT = {
    "ACL_OP_COMPILER_CACHE_DIR": "OUTBOARD_CACHE_DIR says where compiled operators are kept",
    "ACL_OP_COMPILER_CACHE_MODE": "compiled operators are always kept",
    "ASCEND_RT_VISIBLE_DEVICES": "OUTBOARD_DRIVER selects drivers, and with them devices",
    "PYTORCH_NPU_ALLOC_CONF": "PYTORCH_ALLOC_CONF configures the allocator",
    "TASK_QUEUE_ENABLE": "launches are always queued; OUTBOARD_LAUNCH_BLOCKING=1 waits for each",
}


def read() -> None:
    """Gives variables that mean something here their meaning, and names those that do not.

    ``ASCEND_LAUNCH_BLOCKING=1`` is ``OUTBOARD_LAUNCH_BLOCKING=1``, unless that is set.
    """
    if os.environ.get("ASCEND_LAUNCH_BLOCKING") == "1":
        os.environ.setdefault("OUTBOARD_LAUNCH_BLOCKING", "1")
    for variable, advice in _WITHOUT_EFFECT.items():
        if os.environ.get(variable):
            say_once(f"{variable} has no effect with Outboard: {advice}")
