# SPDX-License-Identifier: Apache-2.0
"""Whether PyTorch's calls are ordinary ones."""

from __future__ import annotations

import torch
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext


def is_observed() -> bool:
    """Whether somebody traces, or gets to see each operator: ``TorchDispatchMode``, ``TorchFunctionMode``. Those by
    which ``torch.set_default_device`` and ``with torch.device(...)`` work only choose a device."""
    if torch.compiler.is_compiling() or torch._C._get_tracing_state() or torch._C._len_torch_dispatch_stack():
        return True
    if not torch._C._len_torch_function_stack():
        return False
    return not all(isinstance(mode, DeviceContext) for mode in _get_current_function_mode_stack())
