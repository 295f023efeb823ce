# SPDX-License-Identifier: Apache-2.0
"""CUDA C++, as NVRTC compiles it."""

from __future__ import annotations

from ..base import Dialect
from .words import WORDS

__all__ = ["CUDA"]

CUDA = Dialect("cuda", WORDS, vectors=False)
