# SPDX-License-Identifier: Apache-2.0
"""``torch_npu.optim``: PyTorch's optimizers under the names of the extension's fused ones.

On the device, PyTorch's own take all parameters together (``foreach``), with few launches.
"""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["NpuFusedAdadelta", "NpuFusedAdam", "NpuFusedAdamW", "NpuFusedRMSprop", "NpuFusedSGD"]


class _Fused(torch.optim.Optimizer):
    def clip_grad_norm_fused_(self, max_norm: float, norm_type: float = 2) -> torch.Tensor:
        """``torch.nn.utils.clip_grad_norm_`` of all parameters. Returns their norm."""
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        return torch.nn.utils.clip_grad_norm_(parameters, max_norm, norm_type)


class NpuFusedAdadelta(torch.optim.Adadelta, _Fused):
    """``torch.optim.Adadelta``."""

    def __init__(
        self, params: Any, lr: float = 1.0, rho: float = 0.9, eps: float = 1e-6, weight_decay: float = 0
    ) -> None:
        super().__init__(params, lr, rho, eps, weight_decay)


class NpuFusedAdam(torch.optim.Adam, _Fused):
    """``torch.optim.Adam``."""

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        amsgrad: bool = False,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad)


class NpuFusedAdamW(torch.optim.AdamW, _Fused):
    """``torch.optim.AdamW``."""

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad)


class NpuFusedRMSprop(torch.optim.RMSprop, _Fused):
    """``torch.optim.RMSprop``."""

    def __init__(
        self,
        params: Any,
        lr: float = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0,
        momentum: float = 0,
        centered: bool = False,
    ) -> None:
        super().__init__(params, lr, alpha, eps, weight_decay, momentum, centered)


class NpuFusedSGD(torch.optim.SGD, _Fused):
    """``torch.optim.SGD``."""

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
    ) -> None:
        super().__init__(params, lr, momentum, dampening, weight_decay, nesterov)
