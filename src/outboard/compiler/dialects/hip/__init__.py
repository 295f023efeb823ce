# SPDX-License-Identifier: Apache-2.0
"""HIP C++, as hipcc and hipRTC compile it for GPUs of AMD."""

from __future__ import annotations

from ..base import Dialect
from .words import WORDS

__all__ = ["HIP"]

HIP = Dialect("hip", WORDS, vectors=False)
