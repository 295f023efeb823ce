# SPDX-License-Identifier: Apache-2.0
"""What a profile consists of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass(frozen=True)
class Profile:
    """The public face of a device.

    Attributes:
        name: the device's type: ``torch.device(name)``, ``torch.<name>``, ``Tensor.<name>()``.
        amp_dtypes: dtypes that autocast accepts; the first is its default.
        driver: the driver whose devices come first, or None.
        distributed_backend: name of the process group's backend for this device.
        module_aliases: modules that exist only under this profile: name -> function that returns what is in them. It
            is called when the module is first imported.
        extra_api: what this profile adds to ``torch.<name>``, by name.
    """

    name: str
    amp_dtypes: tuple[torch.dtype, ...] = (torch.float16, torch.bfloat16)
    driver: str | None = None
    distributed_backend: str | None = None
    module_aliases: Mapping[str, Callable[[], Mapping[str, Any]]] = field(default_factory=dict)
    extra_api: Mapping[str, Any] = field(default_factory=dict)
