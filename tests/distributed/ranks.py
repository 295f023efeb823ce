# SPDX-License-Identifier: Apache-2.0
"""What a program consists of that runs as several ranks: see :mod:`tests.distributed.launch`."""

from __future__ import annotations

import ctypes
import datetime
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping

import torch
import torch.distributed as dist

#: What a rank waits for another one at most, in seconds.
JOIN_SECONDS = 60


def device_type() -> str:
    """Name of the device."""
    return torch._C._get_privateuse1_backend_name()


def run_checks(checks: Mapping[str, object]) -> None:
    """The main function of a program: joins the group and calls each ``check_...`` of a module, in order."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group(timeout=datetime.timedelta(seconds=JOIN_SECONDS))
    chosen = os.environ.get("VARIANT", "")
    for name, check in list(checks.items()):
        if not name.startswith("check_") or not callable(check) or chosen not in name:
            continue
        begin = time.perf_counter()
        _call(name, check)
        print(f"{name}: {time.perf_counter() - begin:.2f} s", flush=True)
    dist.destroy_process_group()
    assert _violations() == 0, "the runtime broke the contract of driver.h"


def _violations() -> int:
    """How often the runtime broke the contract of driver.h, if the strict driver counts that."""
    if os.environ.get("OUTBOARD_DRIVER") != "strict":
        return 0
    from outboard import drivers

    count = ctypes.CDLL(drivers.strict()).outboard_strict_violations
    count.restype = ctypes.c_uint64
    return int(count())


def _call(name: str, check: Callable[[], None]) -> None:
    """Ends the process at once where a check fails: others wait for what this rank will not send any more."""
    try:
        check()
    except BaseException:
        print(f"{name} failed on rank {dist.get_rank()}", file=sys.stderr)
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
