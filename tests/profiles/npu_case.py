# SPDX-License-Identifier: Apache-2.0
"""A call of an operator of ``torch_npu`` and its formula, see :mod:`tests.profiles.npu_operators`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Case:
    """``name(*args, **keywords)``, whose first results are those of ``formula``.

    Attributes:
        gradients: whether the formula's gradients are the operator's.
        whole: whether it compiles without a break, that is, the host reads no number from the device.
        tolerance: how far results may be from the formula's, as a part of them and beyond.
    """

    name: str
    args: list[Any]
    formula: Callable[..., Any]
    keywords: dict[str, Any] = field(default_factory=dict)
    gradients: bool = True
    whole: bool = True
    tolerance: float = 2e-5
