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


def check() -> None:
    """Names, in one warning, the variables of torch-rbln and its runtime that are set and do nothing here."""
    ours = {name for name in os.environ if name.startswith(("RBLN_", "TORCH_RBLN_"))}
    if ignored := sorted(ours - _KNOWN):
        warnings.warn(f"Outboard has no use for the environment variables {', '.join(ignored)}.", stacklevel=2)
