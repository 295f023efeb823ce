# SPDX-License-Identifier: Apache-2.0
"""``torch.npu.NPUGraph`` and ``torch.npu.graph``: ``torch.accelerator.Graph`` under the extension's names."""

from __future__ import annotations

from types import TracebackType
from typing import Any

import torch

from outboard.device import streams

__all__ = ["NPUGraph", "graph"]


class NPUGraph:
    """Work of the device that is captured once and replayed."""

    def __init__(self) -> None:
        self._graph: torch.accelerator.Graph | None = None

    def capture_begin(self, pool: tuple[int, int] | None = None, capture_error_mode: Any = "global") -> None:
        """Begins to capture what is queued on the current stream, which may not be the default one."""
        self._graph = torch.accelerator.Graph(pool=pool, capture_error_mode=capture_error_mode)
        self._graph.capture_begin()

    def capture_end(self) -> None:
        """Ends the capture."""
        self._captured().capture_end()

    def replay(self) -> None:
        """Queues the captured work on the current stream."""
        self._captured().replay()

    def reset(self) -> None:
        """Forgets the captured work."""
        self._captured().reset()

    def pool(self) -> tuple[int, int]:
        """Names the memory of the graph, for another's ``capture_begin``."""
        return self._captured().pool()

    def _captured(self) -> torch.accelerator.Graph:
        if self._graph is None:
            raise RuntimeError("nothing was captured: call capture_begin() first")
        return self._graph


class graph:  # noqa: N801 - the extension's name
    """Context manager that captures what is queued in it.

    Args:
        npu_graph: takes the captured work.
        pool: memory of another graph to share (see :meth:`NPUGraph.pool`).
        stream: where to capture (default: a stream of its own).
    """

    def __init__(
        self,
        npu_graph: NPUGraph,
        pool: tuple[int, int] | None = None,
        stream: torch.Stream | None = None,
        capture_error_mode: str = "global",
    ) -> None:
        self.npu_graph = npu_graph
        self._arguments = (pool, capture_error_mode)
        self._stream = streams.StreamContext(torch.Stream("npu") if stream is None else stream)

    def __enter__(self) -> None:
        torch.accelerator.synchronize()
        self._stream.__enter__()
        self.npu_graph.capture_begin(*self._arguments)

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.npu_graph.capture_end()
        finally:
            self._stream.__exit__(kind, value, trace)
