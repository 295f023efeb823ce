# SPDX-License-Identifier: Apache-2.0
"""``torch.npu.NPUGraph`` and ``torch.npu.graph``: captured work under the extension's names."""

from __future__ import annotations

import torch

from outboard.device import graphs

__all__ = ["NPUGraph", "graph"]


class NPUGraph(graphs.Graph):
    """Work of the device that is captured once and replayed."""


class graph(graphs.graph):  # noqa: N801 - the extension's name
    """Context manager that captures what is queued in it; see :class:`outboard.device.graphs.graph`."""

    def __init__(
        self,
        npu_graph: NPUGraph,
        pool: graphs.Pool | None = None,
        stream: torch.Stream | None = None,
        capture_error_mode: str = "global",
    ) -> None:
        super().__init__(npu_graph, pool, stream, capture_error_mode)
        self.npu_graph = npu_graph
