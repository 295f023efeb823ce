# SPDX-License-Identifier: Apache-2.0
"""What ``torch.npu.amp`` has beyond ``torch.cuda.amp``: ``GradScaler(dynamic=...)``."""

from __future__ import annotations

from typing import Any

from outboard import device


class GradScaler(device.amp.GradScaler):
    """``torch.amp.GradScaler`` of the device.

    Args:
        dynamic: whether the scale grows and shrinks; if not, steps with infinite gradients are still left out.
    """

    def __init__(
        self,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        dynamic: bool = True,
        enabled: bool = True,
    ) -> None:
        super().__init__(init_scale, growth_factor, backoff_factor, growth_interval, enabled)
        self._dynamic = dynamic

    def update(self, new_scale: Any = None) -> None:
        """Updates the scale, as ``torch.amp.GradScaler.update``; a static one changes only to ``new_scale``."""
        if new_scale is None and self.is_enabled() and not self._dynamic:
            new_scale = self.get_scale()
        super().update(new_scale)


def install() -> None:
    """Makes it ``torch.npu.amp.GradScaler``."""
    device.amp.GradScaler = GradScaler  # type: ignore[assignment,misc]
