# SPDX-License-Identifier: Apache-2.0
"""One program, or a few, of every family of kernels that is shaped for SIMT devices. Sizes are small, and seldom
multiples of anything."""

from __future__ import annotations

import importlib.util
from typing import Any

import torch

from outboard.compiler import kernels
from outboard.compiler.target import Target

#: A GPU without sub-groups: OpenCL 1.2, which Oclgrind is, has none.
GPU = Target(
    type="gpu",
    execution="simt",
    compute_units=4,
    max_work_group_size=256,
    sub_group_size=1,
    vector_width=1,
    local_memory=32768,
    host_accessible=False,
    cache_key="oclgrind",
)

Case = tuple[str, tuple[Any, ...]]

#: How many of the results must be the CPU's, where not all: random ones, and places of which several are right.
COMPARED = {"aten::native_dropout": 0, "aten::mode": 1, "aten::_embedding_bag": 1}
_ATTENTION = "aten::_scaled_dot_product_flash_attention_for_cpu"


def _floats(*shape: int) -> torch.Tensor:
    return torch.randn(shape)


def _places(limit: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, limit, shape)


def generated() -> dict[str, list[Case]]:
    """Kernels that ``printing/simt.py`` and ``printing/reductions.py`` write."""
    x = _floats(7, 33)
    mean, deviation = x.mean(1, keepdim=True), x.var(1, keepdim=True, correction=0).add(1e-5).rsqrt()
    return {
        "pointwise": [
            ("aten::add.Tensor", (x, _floats(33))),
            ("aten::gelu", (_floats(1000),)),
            ("aten::where.self", (x > 0, x, -x)),
            ("aten::cat", ([x, _floats(7, 4)], 1)),
            ("aten::constant_pad_nd", (x, [1, 2, 3, 4])),
        ],
        "layouts": [
            ("aten::add.Tensor", (x.t(), _floats(33, 7))),
            ("aten::flip", (x, [0, 1])),
            ("aten::roll", (x, [3], [1])),
            ("aten::clone", (_floats(40, 36).t(),)),
        ],
        "halves": [
            ("aten::mul.Tensor", (x.half(), x.half())),
            ("aten::sum.dim_IntList", (x.bfloat16(), [1])),
        ],
        "reduction of all": [("aten::sum", (_floats(9001),)), ("aten::argmax", (_floats(3001),))],
        "reduction of rows": [
            ("aten::sum.dim_IntList", (_floats(5, 700), [1])),
            ("aten::amax", (_floats(5, 9), [1])),
            ("aten::var_mean.correction", (_floats(4, 300), [1])),
            ("aten::any.dim", (_floats(3, 500) > 2, 1)),
            ("aten::argmin", (_floats(3, 600), 1)),
        ],
        "reduction of columns": [
            ("aten::sum.dim_IntList", (_floats(700, 5), [0])),
            ("aten::sum.dim_IntList", (_floats(2000, 3), [0])),
            ("aten::mean.dim", (_floats(4, 6, 9, 11), [0, 2, 3])),
        ],
        "norms": [
            ("aten::_softmax", (_floats(5, 300), 1, False)),
            ("aten::_log_softmax", (_floats(300, 5), 0, False)),
            ("aten::native_layer_norm", (x, [33], _floats(33), _floats(33), 1e-5)),
            ("aten::native_layer_norm_backward", (x, x, [33], mean, deviation, _floats(33), _floats(33), [True] * 3)),
            ("aten::native_group_norm", (_floats(2, 6, 9), None, None, 2, 6, 9, 3, 1e-5)),
            ("aten::native_batch_norm", (_floats(4, 3, 5, 5), None, None, None, None, True, 0.1, 1e-5)),
        ],
        "gather and scatter": [
            ("aten::gather", (x, 1, _places(33, 7, 9))),
            ("aten::index_select", (x, 0, _places(7, 5))),
            ("aten::scatter_add", (x, 1, _places(33, 7, 33), _floats(7, 33))),
            ("aten::index_put", (x, [_places(7, 300)], _floats(300, 33), True)),
            ("aten::index_add", (x, 0, _places(7, 50), _floats(50, 33))),
            ("aten::embedding", (x, _places(7, 3, 5))),
        ],
        "random numbers": [("aten::native_dropout", (_floats(500), 0.5, True))],
    }


def handwritten() -> dict[str, list[Case]]:
    """Kernels of ``compiler/kernels``, by module."""
    return _products() | _attention() | _ordering() | _places_and_pools() | _resizing() | _own() | _vision()


#: The family whose operators are handed to ``kernels.lower`` as compiled graphs do it: as single ones, some of them are
#: taken apart, or generated, before a kernel of ``compiler/kernels`` is looked for.
CALLS = "calls in graphs"


def calls() -> dict[str, list[Case]]:
    """Operators that reach ``compiler/kernels`` as a call in a graph only."""
    window = ([3, 3], [2, 2], [1, 1], False, True, None)
    return {
        CALLS: [
            ("aten::mv", (_floats(30, 40), _floats(40))),
            ("aten::dot", (_floats(3000), _floats(3000))),
            ("aten::linear", (_floats(5, 40), _floats(30, 40), _floats(30))),
            ("aten::argsort", (torch.randperm(3 * 300).reshape(3, 300).float(), 1, False)),
            ("aten::isin.Tensor_Tensor", (_places(50, 7, 9), _places(50, 11))),
            ("aten::avg_pool2d", (_floats(2, 3, 9, 8), *window)),
            ("aten::avg_pool2d_backward", (_floats(2, 3, 5, 4), _floats(2, 3, 9, 8), *window)),
            ("aten::grid_sampler_2d", (_floats(1, 2, 5, 6), torch.rand(1, 4, 7, 2) * 2.6 - 1.3, 0, 0, False)),
        ]
    }


def _products() -> dict[str, list[Case]]:
    image, weight = _floats(2, 4, 9, 7), _floats(6, 4, 3, 3)
    geometry = ([2, 1], [1, 1], [1, 1], False, [0, 0], 1)
    flags = [True, True, True]
    return {
        "gemm": [
            ("aten::mm", (_floats(37, 50), _floats(50, 29))),
            ("aten::mm", (_floats(40, 17).t(), _floats(40, 33))),
            ("aten::mm", (_floats(1, 900), _floats(900, 30))),
            ("aten::mm", (_floats(65, 66).half(), _floats(66, 67).half())),
            ("aten::bmm", (_floats(3, 9, 20), _floats(3, 20, 11))),
            ("aten::addmm", (_floats(29), _floats(20, 30), _floats(30, 29))),
            ("aten::addbmm", (_floats(9, 11), _floats(3, 9, 20), _floats(3, 20, 11))),
            ("aten::mv", (_floats(30, 40), _floats(40))),
            ("aten::dot", (_floats(3000), _floats(3000))),
            ("aten::linear", (_floats(5, 40), _floats(30, 40), _floats(30))),
        ],
        "conv": [
            ("aten::convolution", (image, weight, _floats(6), *geometry)),
            ("aten::convolution", (image, _floats(4, 1, 3, 3), None, [1, 1], [1, 1], [1, 1], False, [0, 0], 4)),
            ("aten::convolution", (image, _floats(4, 3, 3, 3), None, [2, 2], [1, 1], [1, 1], True, [1, 1], 1)),
            ("aten::convolution_backward", (_floats(2, 6, 5, 7), image, weight, [6], *geometry, flags)),
        ],
        "distance": [
            ("aten::_cdist_forward", (_floats(5, 7), _floats(6, 7), 2.0, None)),
            ("aten::_cdist_backward", (_floats(5, 6), _floats(5, 7), _floats(6, 7), 1.0, _floats(5, 6))),
            ("aten::_pdist_forward", (_floats(9, 4), 2.0)),
        ],
        "polynomial": [(f"aten::{name}", (_floats(50), torch.tensor(4))) for name in kernels.polynomial.NAMES],
    }


def _attention() -> dict[str, list[Case]]:
    query, key, value = _floats(1, 2, 19, 16), _floats(1, 2, 35, 16), _floats(1, 2, 35, 16)
    cases: list[Case] = [(_ATTENTION, (query, key, value, 0.0, False))]
    # Heads of several widths are shared by as many items.
    for x in (query, _floats(1, 2, 9, 64).bfloat16(), _floats(1, 1, 9, 128), _floats(1, 1, 9, 200)):
        out, logarithms = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(x, x, x, 0.0, True)
        cases.append((_ATTENTION, (x, x, x, 0.0, True)))
        cases.append((f"{_ATTENTION}_backward", (x.flip(2), x, x, x, out, logarithms, 0.0, True)))
    return {"attention": cases}


def _ordering() -> dict[str, list[Case]]:
    x = torch.randperm(3 * 300).reshape(3, 300).float()
    edges = _floats(3, 40).sort(1).values
    return {
        "sort": [
            ("aten::sort", (x, 1, False)),
            ("aten::sort", (torch.randperm(3000).float(), 0, True)),
            ("aten::msort", (x,)),
            ("aten::argsort", (x, 1, False)),
            ("aten::topk", (x, 5, 1)),
            ("aten::kthvalue", (x, 77, 1)),
            ("aten::median.dim", (x[:, :75].contiguous(), 1)),
            ("aten::mode", (_places(9, 5, 40), 1)),
            ("aten::searchsorted.Tensor", (edges, _floats(3, 9))),
        ],
        "scan": [
            ("aten::cumsum", (_floats(3, 700), 1)),
            ("aten::cumsum", (_floats(300, 3), 0)),
            ("aten::cumsum", (_floats(20001), 0)),
            ("aten::cumprod", (_floats(3, 40), 1)),
            ("aten::cummax", (_floats(3, 300), 1)),
            ("aten::logcumsumexp", (_floats(3, 300), 1)),
        ],
    }


def _places_and_pools() -> dict[str, list[Case]]:
    image, volume = _floats(2, 3, 9, 8), _floats(1, 2, 5, 6, 7)
    window = ([3, 3], [2, 2], [1, 1])
    pooled, indices = torch.ops.aten.max_pool2d_with_indices(image, *window)
    return {
        "index": [
            ("aten::masked_scatter", (_floats(40, 60), _floats(40, 60) > 0, _floats(2400))),
            ("aten::index_reduce", (_floats(7, 33), 0, _places(7, 20), _floats(20, 33), "amax")),
            ("aten::scatter_reduce.two", (_floats(7, 33), 1, _places(33, 7, 33), _floats(7, 33), "amin")),
            ("aten::isin.Tensor_Tensor", (_places(50, 7, 9), _places(50, 11))),
            ("aten::embedding_dense_backward", (_floats(30, 17), _places(9, 30), 9, -1, False)),
        ],
        "bags": [
            ("aten::_embedding_bag", (_floats(9, 17), _places(9, 30), torch.tensor([0, 7, 7, 20]), False, mode))
            for mode in range(3)
        ],
        "pool": [
            ("aten::avg_pool2d", (image, *window)),
            ("aten::avg_pool2d_backward", (_floats(*pooled.shape), image, *window, False, True, None)),
            ("aten::_adaptive_avg_pool2d", (image, [4, 3])),
            ("aten::_adaptive_avg_pool2d_backward", (_floats(2, 3, 4, 3), image)),
            ("aten::max_pool2d_with_indices", (image, *window)),
            (
                "aten::max_pool2d_with_indices_backward",
                (_floats(*pooled.shape), image, *window, [1, 1], False, indices),
            ),
            ("aten::max_pool3d_with_indices", (volume, [2, 2, 2])),
            ("aten::replication_pad2d_backward", (_floats(2, 3, 12, 11), image, [1, 2, 1, 2])),
        ],
    }


def _resizing() -> dict[str, list[Case]]:
    image = _floats(1, 2, 5, 6)
    where = torch.rand(1, 4, 7, 2) * 2.6 - 1.3
    both = [True, True]
    return {
        "grid": [
            ("aten::grid_sampler_2d", (image, where, 0, 0, False)),
            ("aten::grid_sampler_2d_backward", (_floats(1, 2, 4, 7), image, where, 0, 0, False, both)),
        ],
        "upsample": [
            ("aten::upsample_nearest2d", (image, [9, 13])),
            ("aten::upsample_bilinear2d", (image, [9, 13], False)),
            ("aten::upsample_bicubic2d", (image, [9, 13], True)),
            ("aten::upsample_bilinear2d_backward", (_floats(1, 2, 9, 13), [9, 13], [1, 2, 5, 6], False)),
        ],
        "antialiased": [
            ("aten::_upsample_bilinear2d_aa", (_floats(1, 2, 15, 16), [4, 7], False)),
            ("aten::_upsample_bicubic2d_aa_backward", (_floats(1, 2, 4, 7), [4, 7], [1, 2, 15, 16], False)),
        ],
    }


def _own() -> dict[str, list[Case]]:
    """Operators of our own."""
    mask = torch.rand(3000) < 0.3
    counts = torch.ops.outboard.running_counts(mask)
    scores, targets = _floats(9, 2, 5).log_softmax(2), torch.tensor([[1, 1, 4], [3, 2, 3]])
    lengths = torch.tensor([[9, 9], [3, 3], [0, 3]])
    losses, log_alpha = torch.ops.outboard.ctc_loss(scores, targets, lengths, torch.empty(2, 9, 7), 0)
    return {
        "compaction": [
            ("outboard::running_counts", (mask,)),
            ("outboard::compact", (mask, counts, torch.empty(int(counts[-1]), dtype=torch.int64))),
        ],
        "ctc": [
            ("outboard::ctc_loss", (scores, targets, lengths, log_alpha, 0)),
            (
                "outboard::ctc_loss_backward",
                (_floats(2), scores, targets, lengths, losses, log_alpha, 0, False),
            ),
        ],
    }


def _vision() -> dict[str, list[Case]]:
    """Operators of torchvision, where it is installed."""
    if importlib.util.find_spec("torchvision") is None:
        return {}
    from tests.integrations import torchvision_wheel

    torchvision_wheel.prepare()
    import torchvision  # noqa: F401

    x, boxes = _floats(2, 12, 9, 8), torch.tensor([[0, 1, 2, 7.3, 8.1], [1, -1, 0.2, 3, 11], [1, 2.2, 2.2, 2.7, 2.9]])
    corners = torch.rand(70, 2) * 9
    weight, offset, mask = _floats(4, 6, 3, 3), _floats(2, 36, 7, 6), torch.rand(2, 18, 7, 6)
    deformed = (x, weight, offset, mask, _floats(4), 1, 1, 0, 0, 1, 1, 2, 2, True)
    pooled, back = (boxes, 0.7, 3, 2), (2, 12, 9, 8)
    return {
        "suppression": [
            ("outboard::nms_keep", (torch.cat([corners, corners + torch.rand(70, 2) * 9], 1), torch.randperm(70), 0.3)),
        ],
        "regions": [
            ("torchvision::roi_align", (x, *pooled, -1, False)),
            ("torchvision::roi_pool", (x, *pooled)),
            ("torchvision::ps_roi_align", (x, *pooled, 2)),
            ("torchvision::ps_roi_pool", (x, *pooled)),
            ("torchvision::_roi_align_backward", (_floats(3, 12, 3, 2), *pooled, *back, 2, True)),
            (
                "torchvision::_roi_pool_backward",
                (_floats(3, 12, 3, 2), boxes, _places(72, 3, 12, 3, 2).int(), *pooled[1:], *back),
            ),
        ],
        "deformed": [
            ("torchvision::deform_conv2d", deformed),
            ("torchvision::_deform_conv2d_backward", (_floats(2, 4, 7, 6), *deformed)),
        ],
    }
