# SPDX-License-Identifier: Apache-2.0
"""Every kind of step that a program may have."""

from __future__ import annotations

from tools.fuzz_collectives.kinds import exchanges, gathers, messages, others, reductions
from tools.fuzz_collectives.kinds.base import Kind

KINDS: dict[str, Kind] = {
    "all_reduce": reductions.AllReduce(),
    "sum_of_sparse": reductions.AllReduceSparse(),
    "all_reduce_coalesced": reductions.AllReduceSeveral(),
    "managed_all_reduce": reductions.AllReduceManaged(),
    "reduce": reductions.Reduce(),
    "reduce_scatter": reductions.ReduceScatter(),
    "reduce_scatter_tensor": reductions.ReduceScatterTensor(),
    "managed_reduce_scatter_tensor": reductions.ReduceScatterManaged(),
    "broadcast": gathers.Broadcast(),
    "all_gather": gathers.AllGather(),
    "all_gather_chunks": gathers.AllGatherChunks(),
    "all_gather_coalesced": gathers.AllGatherSeveral(),
    "all_gather_into_tensor": gathers.AllGatherTensor(),
    "managed_all_gather_into_tensor": gathers.AllGatherManaged(),
    "gather": gathers.Gather(),
    "scatter": gathers.Scatter(),
    "all_to_all": exchanges.AllToAll(),
    "all_to_all_single": exchanges.AllToAllSingle(),
    "all_to_all_single_splits": exchanges.AllToAllSplits(),
    "send_recv": messages.Message(),
    "isend_irecv": messages.LaterMessage(),
    "batch_isend_irecv": messages.Ring(),
    "barrier": others.Barrier(),
    "objects": others.Objects(),
    "add": others.Add(),
    "mul": others.Multiply(),
    "zero": others.Zero(),
    "copy": others.Copy(),
    "check": others.Check(),
    "wait": others.Wait(),
}
