# SPDX-License-Identifier: Apache-2.0
"""What a profile consists of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch


def _nothing() -> None:
    """The hook of a profile that needs none."""


@dataclass(frozen=True)
class Profile:
    """The public face of a device.

    Attributes:
        name: the device's type: ``torch.device(name)``, ``torch.<name>``, ``Tensor.<name>()``.
        amp_dtypes: dtypes that autocast accepts; the first is its default.
        driver: the driver whose devices come first, or None.
        distributed_backend: name of the process group's backend for this device.
        extra_api: what this profile adds to ``torch.<name>``, by name.
        before_devices: called once, before drivers look for devices: for environment variables that they read.
        choose_devices: given how many devices the drivers have, returns the numbers of those to use, in order; None for
            all. What ValueError it raises is reported, and there are no devices then.
        on_activation: called once, when ``torch.<name>`` and the methods of tensors and modules are there: for aliases
            and for environment variables that users of this name know.
    """

    name: str
    amp_dtypes: tuple[torch.dtype, ...] = (torch.float16, torch.bfloat16)
    driver: str | None = None
    distributed_backend: str | None = None
    extra_api: Mapping[str, Any] = field(default_factory=dict)
    before_devices: Callable[[], None] = _nothing
    choose_devices: Callable[[int], list[int]] | None = None
    on_activation: Callable[[], None] = _nothing
