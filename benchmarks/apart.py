# SPDX-License-Identifier: Apache-2.0
"""The same module compiled several ways in one process."""

from __future__ import annotations

from typing import Any

from torch import nn


class Apart(nn.Module):
    """A module with a way in which it is compiled: Dynamo, which else would take what it compiled of the same code
    before, tells those of different ways apart."""

    def __init__(self, module: nn.Module, way: str) -> None:
        super().__init__()
        self.module, self.way = module, way

    def forward(self, *args: Any) -> Any:
        assert self.way  # read, and so part of what Dynamo compares
        return self.module(*args)
