# SPDX-License-Identifier: Apache-2.0
"""Private calls of PyTorch that are others in another release."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch

from outboard import torch_release

_IS_2_12 = torch_release.release(torch.__version__) == "2.12"


def prefetch_hash_of_sources() -> None:
    """Has a thread compute the hash of PyTorch's sources. PyTorch 2.12 has no way to wait for such a thread: there the
    hash is computed when it is asked for."""
    from torch._inductor import codecache

    if _IS_2_12:
        return
    key: Any = codecache.torch_key
    key.prefetch()
    os.register_at_fork(after_in_child=key.clear)


def settings_of(config: Any, without: Sequence[str], without_prefixes: Sequence[str]) -> dict[str, Any]:
    """The values of a module of settings, which are not to be changed, but for those of these names. PyTorch 2.12
    copies them each time."""
    known = {} if _IS_2_12 else {"readonly_values": True}
    found: dict[str, Any] = config._get_dict(
        ignored_keys=list(without), ignored_prefixes=list(without_prefixes), **known
    )
    return found
