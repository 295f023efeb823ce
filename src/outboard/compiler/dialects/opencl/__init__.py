# SPDX-License-Identifier: Apache-2.0
"""OpenCL C, versions 1.2 to 3.0."""

from __future__ import annotations

from ..base import Dialect
from .words import WORDS

__all__ = ["OPENCL"]

OPENCL = Dialect("opencl-c", WORDS, vectors=True)
