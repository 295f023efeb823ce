# SPDX-License-Identifier: Apache-2.0
"""Kernels in the device's dialect for operators that Inductor does not generate.

:func:`lower` looks an operator up by name; :func:`covered` lists what is there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from . import (
    antialias,
    attention,
    bags,
    compaction,
    conv,
    ctc,
    deform,
    distance,
    gemm,
    grid,
    index,
    polynomial,
    pool,
    regions,
    scan,
    sort,
    suppression,
    upsample,
)

if TYPE_CHECKING:
    from ..plans.builder import PlanBuilder
    from .call import ExternCall

Lowering = Callable[["PlanBuilder", "ExternCall"], bool]

#: torchvision's ways to pool boxes.
REGIONS = ("roi_align", "roi_pool", "ps_roi_align", "ps_roi_pool")

_FAMILIES: dict[Lowering, tuple[str, ...]] = {
    scan.lower: ("cumsum", "cumprod", "cummax", "cummin", "_cummax_helper", "_cummin_helper", "logcumsumexp"),
    sort.lower_sort: ("sort", "msort"),
    sort.lower_argsort: ("argsort",),
    sort.lower_topk: ("topk",),
    sort.lower_kthvalue: ("kthvalue",),
    sort.lower_median: ("median", "nanmedian"),
    sort.lower_mode: ("mode",),
    sort.lower_search: ("searchsorted", "bucketize"),
    gemm.lower_mm: ("mm", "bmm"),
    gemm.lower_addmm: ("addmm", "baddbmm"),
    gemm.lower_addbmm: ("addbmm",),
    gemm.lower_mv: ("mv", "addmv"),
    gemm.lower_dot: ("dot", "vdot"),
    gemm.lower_linear: ("linear",),
    conv.lower_convolution: ("convolution", "convolution_overrideable"),
    conv.lower_backward: ("convolution_backward", "convolution_backward_overrideable"),
    attention.lower_forward: (
        "_scaled_dot_product_fused_attention_overrideable",
        "_scaled_dot_product_flash_attention_for_cpu",
    ),
    attention.lower_backward: (
        "_scaled_dot_product_fused_attention_overrideable_backward",
        "_scaled_dot_product_flash_attention_for_cpu_backward",
    ),
    distance.lower_cdist: ("_cdist_forward", "_cdist_backward"),
    distance.lower_pdist: ("_pdist_forward",),
    antialias.lower: tuple(
        f"_upsample_{name}2d_aa{suffix}" for name in ("bilinear", "bicubic", "lanczos") for suffix in ("", "_backward")
    ),
    bags.lower: ("_embedding_bag", "_embedding_bag_forward_only"),
    ctc.lower_loss: ("outboard::ctc_loss",),
    ctc.lower_sums: ("outboard::ctc_sums",),
    regions.lower_forward: tuple(f"torchvision::{name}" for name in REGIONS),
    regions.lower_backward: tuple(f"torchvision::_{name}_backward" for name in REGIONS),
    deform.lower_forward: ("torchvision::deform_conv2d",),
    deform.lower_backward: ("torchvision::_deform_conv2d_backward",),
    suppression.lower: ("outboard::nms_keep",),
    compaction.lower_running_counts: ("outboard::running_counts",),
    compaction.lower_compact: ("outboard::compact",),
    index.lower_masked_scatter: ("masked_scatter",),
    index.lower_index_reduce: ("index_reduce",),
    index.lower_scatter_reduce: ("scatter_reduce", "scatter_reduce_"),
    index.lower_isin: ("isin",),
    index.lower_embedding_gradient: ("embedding_dense_backward",),
    polynomial.lower: polynomial.NAMES,
    grid.lower_forward: ("grid_sampler_2d", "grid_sampler_3d"),
    grid.lower_backward: ("grid_sampler_2d_backward", "grid_sampler_3d_backward"),
    pool.lower_average: (
        "avg_pool1d",
        "avg_pool2d",
        "avg_pool3d",
        "avg_pool2d_backward",
        "avg_pool3d_backward",
    ),
    pool.lower_adaptive_average: (
        "_adaptive_avg_pool2d",
        "_adaptive_avg_pool3d",
        "_adaptive_avg_pool2d_backward",
        "_adaptive_avg_pool3d_backward",
    ),
    pool.lower_maximum: (
        "max_pool2d_with_indices",
        "max_pool3d_with_indices",
        "adaptive_max_pool2d",
        "adaptive_max_pool3d",
    ),
    pool.lower_maximum_backward: (
        "max_pool2d_with_indices_backward",
        "max_pool3d_with_indices_backward",
        "adaptive_max_pool2d_backward",
        "adaptive_max_pool3d_backward",
        "fractional_max_pool2d_backward",
        "fractional_max_pool3d_backward",
    ),
    pool.lower_replication_backward: (
        "replication_pad1d_backward",
        "replication_pad2d_backward",
        "replication_pad3d_backward",
    ),
    upsample.lower: tuple(
        f"{name}{suffix}"
        for name in (
            "upsample_nearest1d",
            "upsample_nearest2d",
            "upsample_nearest3d",
            "_upsample_nearest_exact1d",
            "_upsample_nearest_exact2d",
            "_upsample_nearest_exact3d",
            "upsample_linear1d",
            "upsample_bilinear2d",
            "upsample_bicubic2d",
            "upsample_trilinear3d",
        )
        for suffix in ("", "_backward")
    ),
}

#: Operator without overload, and without PyTorch's namespace -> its lowering.
LOWERINGS: dict[str, Lowering] = {name: lowering for lowering, names in _FAMILIES.items() for name in names}

#: Operators that Inductor would lower itself, less well or to functions that the dialect has not. (It calls kernels for
#: convolutions too, but with a plan for each number of channels; of averages in three dimensions it unrolls whole
#: windows, which compiles for minutes.)
PREFERRED = (
    "convolution",
    "avg_pool3d_backward",
    "max_pool2d_with_indices",
    "max_pool2d_with_indices_backward",
    *polynomial.NAMES,
)


#: Operators whose kernels compute an epilogue (``ExternCall.epilogue``) in their stores.
FINISHING = frozenset({"mm", "bmm", "addmm", "baddbmm", "convolution"})


def covered() -> list[str]:
    """The operators with a kernel here, sorted, as ``"aten::topk"``; each may still decline a dtype or layout."""
    return sorted(f"aten::{name}" for name in LOWERINGS if "::" not in name)


def lower(builder: PlanBuilder, call: ExternCall) -> bool:
    """Appends the steps of ``call`` and returns True; returns False, having appended nothing, if it is not covered."""
    name = call.name.removeprefix("aten::").partition(".")[0]
    if call.epilogue is not None and name not in FINISHING:
        return False
    lowering = LOWERINGS.get(name)
    return lowering is not None and lowering(builder, call)
