# SPDX-License-Identifier: Apache-2.0
"""The number of a device's compute units, of which programs and plans know nothing: a plan asks its device for it."""

from __future__ import annotations

import sympy

#: Stands for that number in sizes and arguments (``SymbolSource.COMPUTE_UNITS``).
COMPUTE_UNITS = sympy.Symbol("compute_units", integer=True, positive=True)
