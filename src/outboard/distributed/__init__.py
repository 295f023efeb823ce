# SPDX-License-Identifier: Apache-2.0
"""torch.distributed for the device: its process-group backend, under the name that the profile gives it.

``init_process_group()`` chooses it. What runs the collectives is the device's driver, where it has some, PyTorch's own
backend for CPU tensors, or MPI, on the device's memory (``csrc/torch/distributed``).
"""

from __future__ import annotations

import atexit
import datetime
import functools
import os
from typing import Any

from torch import distributed


def install(device: str, backend: str) -> None:
    """Registers the backend for the device called ``device``, if this PyTorch has torch.distributed and gloo."""
    if not distributed.is_available() or not distributed.is_gloo_available():
        return
    from outboard import _C
    from outboard.distributed import context, mpi, patches, remote

    # Before the device's own end, which waits for what its streams have.
    atexit.register(_C.leave_process_groups)
    mpi.take_place()
    create = functools.partial(_create, backend)
    distributed.Backend.register_backend(backend, create, extended_api=True, devices=[device])
    patches.install(device, backend)
    context.install()
    remote.install(device)


def _transport() -> str:
    """What OUTBOARD_TRANSPORT asks for: "driver", the driver's own collectives where it has some, and gloo elsewhere;
    "gloo", or "mpi". Raises ValueError for anything else."""
    choice = os.environ.get("OUTBOARD_TRANSPORT", "driver")
    if choice not in ("driver", "gloo", "mpi"):
        raise ValueError(f"OUTBOARD_TRANSPORT={choice}: expected 'driver', 'gloo' or 'mpi'")
    return choice


def _create(backend: str, group: Any, options: Any) -> Any:
    """The backend of one group, as ``_new_process_group_helper`` asks for it."""
    from torch._C._distributed_c10d import Backend

    from outboard import _C

    if options is not None and not isinstance(options, Backend.Options):
        raise TypeError(f"{backend} takes options of type Backend.Options, not {type(options).__name__}")
    return _C.process_group_backend(
        backend,
        group.group_id,
        group.store,
        group.group_rank,
        group.group_size,
        group.timeout,
        group.global_ranks_in_group,
        _create_cpu_backend,
        _transport() == "driver",
    )


def _create_cpu_backend(store: Any, rank: int, size: int, timeout: datetime.timedelta, global_ranks: list[int]) -> Any:
    """The backend for CPU tensors, which runs the collectives."""
    from outboard.distributed import mpi
    from outboard.distributed.generation import of_this_start

    if _transport() == "mpi":
        return mpi.create(store, rank, size, timeout)
    cpu_backend = distributed.ProcessGroupGloo(of_this_start(store, rank, size, timeout), rank, size, timeout)
    cpu_backend.options.global_ranks_in_group = global_ranks
    return cpu_backend
