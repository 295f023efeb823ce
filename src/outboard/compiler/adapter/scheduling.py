# SPDX-License-Identifier: Apache-2.0
"""How Inductor's scheduler fuses and generates kernels for our devices."""

from __future__ import annotations

import re
from typing import Any

import sympy
import torch
from torch._inductor.codegen.common import BackendFeature
from torch._inductor.codegen.simd import SIMDScheduling
from torch._inductor.dependencies import MemoryDep
from torch._inductor.utils import get_fused_kernel_name
from torch._inductor.virtualized import V
from torch.utils._ordered_set import OrderedSet

from ..loops.simt import keeps_apart
from .kernel import LoopRecorder, target_here

#: Pointers that a kernel may take: with sizes and strides, they fit the 1024 bytes of arguments that every device has.
_MOST_BUFFERS = 96
#: Characters of a kernel's name, which names as many of its operators as fit.
_LONGEST_NAME = 60


def _kernel_name(nodes: Any) -> str:
    operators = get_fused_kernel_name(nodes, "original_aten").split("_", 1)[1:]
    if not operators:
        return "kernel"
    name = re.sub(r"\W", "_", operators[0]).strip("_")
    return name if len(name) <= _LONGEST_NAME else name[:_LONGEST_NAME].rsplit("_", 1)[0]


def _keeps_apart(node: Any) -> bool:
    """Whether a reduction on a SIMT device is not to be followed by another one in the same kernel."""
    if target_here(node.get_device()).tuning.vectors:
        return False
    results, terms = (V.graph.sizevars.optimization_hint(size, fallback=0) for size in node.group[1])
    return keeps_apart(results, terms)


class LoopScheduling(SIMDScheduling):
    """Fuses as for other SIMD devices, over flat ranges: how a range is tiled is decided when it is printed."""

    kernel_type = LoopRecorder

    @classmethod
    def get_backend_features(cls, device: torch.device) -> OrderedSet[BackendFeature]:
        """Sorts and scans inside kernels are left to hand-written ones."""
        return OrderedSet([BackendFeature.REDUCE_TO_SINGLE_ELEMENT])

    @classmethod
    def get_tiling_and_scores(
        cls,
        node_schedule: Any,
        numel: sympy.Expr,
        reduction_numel: sympy.Expr = sympy.S.One,
        coalesce_analysis: Any = None,
    ) -> tuple[dict[str, sympy.Expr], None]:
        return cls.create_tiling([numel], [reduction_numel]), None

    def can_fuse_vertical(self, node1: Any, node2: Any) -> bool:
        """Whether two nodes, the second of which reads what the first writes, may become one kernel."""
        if node1.is_reduction() and node2.is_reduction() and _keeps_apart(node1):
            return False
        return self._may_join(node1, node2) and bool(super().can_fuse_vertical(node1, node2))

    def can_fuse_horizontal(self, node1: Any, node2: Any) -> bool:
        """Whether two nodes that do not read each other's results may become one kernel."""
        return self._may_join(node1, node2) and bool(super().can_fuse_horizontal(node1, node2))

    def _may_join(self, node1: Any, node2: Any) -> bool:
        assert self.scheduler is not None
        if self.scheduler.fusion_prevent_too_many_reads_and_writes(node1, node2, _MOST_BUFFERS):
            return False
        return self._writes_in_place(node1, node2)

    def _writes_in_place(self, node1: Any, node2: Any) -> bool:
        """Whether each point of a kernel of both nodes overwrites only elements that no other point reads or writes.
        Inductor asks so as long as the second node only waits for the first to have read, but no more when it also
        takes that one's result."""
        assert self.scheduler is not None
        overwritten = self.scheduler.mutation_real_name
        if not overwritten:
            return True
        accesses: dict[str, set[tuple[Any, ...]]] = {}
        written: set[str] = set()
        for node in (*node1.get_nodes(), *node2.get_nodes()):
            for access in node.read_writes.reads_and_writes():
                if isinstance(access, MemoryDep):
                    plain = access.normalize()
                    place = (plain.index, plain.size)
                    accesses.setdefault(overwritten.get(access.name, access.name), set()).add(place)
            written.update(overwritten[access.name] for access in node.read_writes.writes if access.name in overwritten)
        return all(len(accesses.get(name, ())) <= 1 for name in written)

    def codegen_node(self, node: Any) -> Any:
        """Generates the kernel of fused nodes. (Inductor's own first analyses how they access memory, for tilings.)"""
        return self._codegen_nodes(node.get_nodes())

    def define_kernel(self, src_code: str, node_schedule: Any, kernel: Any) -> str:
        """Names a kernel after its operators, for profiles; its source goes into the plan when it is launched."""
        names: dict[str, str] = V.graph.wrapper_code.src_to_kernel
        return names.setdefault(src_code, _kernel_name(node_schedule))

    def codegen_sync(self) -> None:
        """Nothing: streams are in order."""
