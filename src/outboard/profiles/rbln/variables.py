# SPDX-License-Identifier: Apache-2.0
"""Which of torch-rbln's environment variables mean something here."""

from __future__ import annotations

import os
import warnings

#: What Outboard reads, or, of TORCH_RBLN_DEPLOY, has nothing to do for: there are no checks for NaN to leave out.
_KNOWN = frozenset(
    {
        "RBLN_DEVICES",
        "RBLN_DEVICE_MAP",
        "RBLN_NPUS_PER_DEVICE",
        "RBLN_VISIBLE_DEVICES",
        "TORCH_RBLN_DEPLOY",
        "TORCH_RBLN_DIAGNOSE",
        "TORCH_RBLN_DISABLE_FALLBACK",
        "TORCH_RBLN_EAGER_MALLOC",
        "TORCH_RBLN_LOG",
        "TORCH_RBLN_LOG_LEVEL",
        "TORCH_RBLN_LOG_PATH",
    }
)


_NETWORK = "processes find each other through PyTorch's store, at MASTER_ADDR"
_PARALLEL = "a graph is not split over devices"

#: What does nothing here: name -> why, or what does the same.
_WITHOUT_EFFECT = {
    "RBLN_DISABLE_AUTO_RDMA_IP": _NETWORK,
    "RBLN_DUMMY_DEVICE": "OUTBOARD_DRIVER=sim is a device without hardware, and it computes",
    "RBLN_FORCE_LOOPBACK_CONTROL_PLANE": _NETWORK,
    "RBLN_LOCAL_IP": _NETWORK,
    "RBLN_OFFLOAD_DIR": "what does not fit into device memory moves to the host's by itself",
    "RBLN_PROFILER": "torch.profiler and torch.rbln.explain() show what runs",
    "RBLN_RDMA_HCA": _NETWORK,
    "RBLN_RDMA_IP": _NETWORK,
    "RBLN_ROOT_IP": _NETWORK,
    "TORCH_RBLN_C10D_ASYNC": "collectives with async_op=True return at once, and others are waited for",
    "TORCH_RBLN_DEV_DISABLE_OP_CPU_FALLBACK": (
        "no operator runs on the CPU for its dtype, a scalar, an offset or a NaN; TORCH_RBLN_DISABLE_FALLBACK forbids "
        "those that do for other reasons"
    ),
    "TORCH_RBLN_SKIP_ABI_CHECK": "there is no runtime library to check",
    "TORCH_RBLN_USE_DEVICE_TP": _PARALLEL,
    "TORCH_RBLN_USE_TP_FAILOVER": _PARALLEL,
}


def check() -> None:
    """Says of each variable of torch-rbln and its runtime that is set and does nothing here why; in one warning more,
    which others are set."""
    ours = {name for name in os.environ if name.startswith(("RBLN_", "TORCH_RBLN_"))}
    for name in sorted(ours & _WITHOUT_EFFECT.keys()):
        warnings.warn(f"{name} has no effect with Outboard: {_WITHOUT_EFFECT[name]}.", stacklevel=2)
    if unknown := sorted(ours - _KNOWN - _WITHOUT_EFFECT.keys()):
        warnings.warn(f"Outboard has no use for the environment variables {', '.join(unknown)}.", stacklevel=2)
