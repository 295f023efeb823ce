# SPDX-License-Identifier: Apache-2.0
"""In which layout of its compiler's the device has a tensor's contents. Executables bring them there as they need them,
and other work back: nobody has to ask for either."""

from __future__ import annotations

import torch

from outboard import _C
from outboard.compiler.adapter import memory_layouts
from outboard.compilers import Layout


def layout_of(tensor: torch.Tensor) -> str | None:
    """The name of the layout ("tiles 32x32") that a tensor's contents are in now; None if they lie as its strides say.

    Raises:
        RuntimeError: for a tensor of another device.
    """
    return _C.layout_of(tensor)


def relayout(tensor: torch.Tensor, layout: Layout | None) -> torch.Tensor:
    """Brings a tensor's contents to a layout before an executable asks for it, or, with None, back.

    Args:
        tensor: dense, and alone in its storage.
        layout: one of the device's compiler.

    Returns:
        The tensor, which reads as before.

    Raises:
        ValueError: if the tensor cannot be in the layout: it has other elements, or is a part of its storage.
        RuntimeError: for a tensor of another device, on a device whose compiler has no layouts, and for a tensor whose
            memory has to stay as it is: it is pinned, borrowed, or of a captured graph, or OUTBOARD_LAZY is 0.
        torch.OutOfMemoryError: if the device has no room for both.
    """
    if layout is None:
        _C.undo_layout(tensor)
        return tensor
    memory_layouts.bring(tensor, layout)
    if layout_of(tensor) != layout.name:
        raise RuntimeError(f"the tensor's memory has to stay as it is: it cannot be in {layout.name}")
    return tensor
