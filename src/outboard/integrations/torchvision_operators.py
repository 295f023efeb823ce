# SPDX-License-Identifier: Apache-2.0
"""torchvision (0.2x): its operators on the device.

Those that pool boxes, deformable convolution and their gradients reach the compiler as all operators do, since
torchvision says what shapes they make and what their gradients are; ``compiler.kernels`` knows them by name. Left are
``nms``, whose result has a size that only the device knows, and autocast.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from . import patching

#: Registrations that last as long as the process.
_library: Any = torch.library
_OPERATORS = _library.Library("outboard", "FRAGMENT")
_TORCHVISION = _library.Library("torchvision", "IMPL")

_AUTOCAST = getattr(torch._C.DispatchKey, "AutocastPrivateUse1")  # noqa: B009 (a name that the stubs leave out)

#: The operators that autocast has computed in float32, as on CUDA.
_IN_FLOAT = ("nms", "roi_align", "roi_pool", "ps_roi_align", "ps_roi_pool", "deform_conv2d")


def install(module: Any, name: str) -> None:
    """Registers what torchvision has for other devices for the device called ``name``."""
    extension = getattr(module, "extension", None)
    if extension is None or not extension._has_ops():
        return patching.missing("torchvision", "operators of its own for this PyTorch")
    _OPERATORS.define("nms_keep(Tensor boxes, Tensor order, float iou_threshold) -> Tensor")
    _OPERATORS.impl("nms_keep", lambda boxes, order, _: torch.empty_like(order, dtype=torch.bool), "Meta")
    _OPERATORS.impl("nms_keep", _keep_on_cpu, "CPU")
    _TORCHVISION.impl("nms", _nms, "PrivateUse1")
    for operator in _IN_FLOAT:
        overload = getattr(torch.ops.torchvision, operator).default
        _TORCHVISION.impl(operator, functools.partial(_in_float, overload), "AutocastPrivateUse1")
    return None


def _keep_on_cpu(boxes: Tensor, order: Tensor, iou_threshold: float) -> Tensor:
    """What a device without a compiler does: for each box in an order whether it stays."""
    ordered = boxes[order].double()
    ranks = -torch.arange(len(order), dtype=ordered.dtype)
    kept: Tensor = torch.ops.torchvision.nms(ordered, ranks, iou_threshold)
    return torch.zeros_like(order, dtype=torch.bool).index_fill_(0, kept, True)


def _nms(dets: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    """The numbers (int64) of the boxes (n, 4) that overlap no box with a higher score (n), or with the same and a lower
    number, by more than a threshold; highest scores first. Floats of any width, computed with as float32 or wider.

    Raises:
        RuntimeError: for tensors of other shapes, or of two dtypes.
    """
    if dets.dim() != 2 or dets.size(1) != 4:
        raise RuntimeError(f"boxes should be a 2d tensor with 4 elements in dimension 1, got {tuple(dets.shape)}")
    if scores.dim() != 1 or scores.size(0) != dets.size(0):
        raise RuntimeError(
            f"scores should be of one element for each of {dets.size(0)} boxes, got {tuple(scores.shape)}"
        )
    if dets.dtype != scores.dtype:
        raise RuntimeError(f"dets should have the same type as scores, got {dets.dtype} and {scores.dtype}")
    order = scores.sort(stable=True, dim=0, descending=True).indices
    if len(order) == 0:
        return order
    return order[torch.ops.outboard.nms_keep(dets, order, iou_threshold)]


def _in_float(operator: Any, *args: Any) -> Any:
    """An operator under autocast: halves are floats to it, and become halves again."""
    narrow = (torch.float16, torch.bfloat16)
    first: Tensor = args[0]
    keys = torch._C.DispatchKeySet(_AUTOCAST)
    with torch._C._ExcludeDispatchKeyGuard(keys):
        wide = tree_map(lambda x: x.float() if isinstance(x, Tensor) and x.dtype in narrow else x, args)
        results = operator(*wide)
        return tree_map(lambda x: x.to(first.dtype) if x.is_floating_point() else x, results)
