# SPDX-License-Identifier: Apache-2.0
"""Whole graphs for ``torch.compile``: the module that Inductor writes holds one plan and runs it."""

from __future__ import annotations

from .wrapper import PlanWrapper


class GraphWrapper(PlanWrapper):
    """The wrapper of a graph compiled by ``torch.compile``."""
