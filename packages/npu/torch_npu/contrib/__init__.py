# SPDX-License-Identifier: Apache-2.0
"""``torch_npu.contrib`` is not there: it says so, with what to write instead."""

from __future__ import annotations

from typing import NoReturn

_INSTEAD = {
    "transfer_to_npu": "write npu where the program says cuda, or torch.accelerator, which suits any device",
}


def __getattr__(name: str) -> NoReturn:
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    advice = f": {_INSTEAD[name]}" if name in _INSTEAD else ""
    raise ImportError(f"Outboard's torch_npu has no contrib.{name}{advice}", name=__name__)
