# SPDX-License-Identifier: Apache-2.0
"""What modules written by ``torch.compile`` import: small, and free of the compiler."""

from __future__ import annotations

import base64
import zlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from outboard._C import Plan


def load(text: str, device_index: int) -> Plan:
    """The plan that ``adapter.graphs.pack`` made text of, ready to run on a device. Its
    programs are built meanwhile: the first run waits for them, and raises RuntimeError if the device's compiler refuses
    one."""
    from outboard import _C

    from . import progress

    progress.programs()
    return _C.Plan(zlib.decompress(base64.b85decode(text)), device_index)
