# SPDX-License-Identifier: Apache-2.0
"""The context managers for devices, which give themselves to ``as``."""

from __future__ import annotations

from outboard.device import devices


class device(devices.device):  # noqa: N801 - PyTorch's name
    """Context manager that changes the current device; ``with device(1) as chosen`` gives the manager itself.

    Args:
        device: device to select; None or a negative index is a no-op.

    Attributes:
        idx: index of the device; -1 for a no-op.
        prev_idx: index of the device that was current before.
    """

    def __enter__(self) -> device:
        super().__enter__()
        return self


class device_of(device, devices.device_of):  # noqa: N801 - PyTorch's name
    """Context manager that changes the current device to that of a tensor or storage; no-op for anything else.

    Args:
        obj: tensor or storage.
    """
