# SPDX-License-Identifier: Apache-2.0
"""Quantities as people read them."""

from __future__ import annotations


def percent(part: float, whole: float) -> str:
    """A share; nothing where there is no whole."""
    return "" if not whole else f"{100 * part / whole:.1f} %"


def seconds(value: float) -> str:
    """A time of so many seconds."""
    for factor, unit in ((1.0, "s"), (1e3, "ms"), (1e6, "µs")):
        if value * factor >= 1 or unit == "µs":
            return _digits(value * factor) + f" {unit}"
    return ""


def _digits(value: float) -> str:
    """Three of them, and none behind the second decimal."""
    return "0" if not value else "<0.01" if value < 0.01 else f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def size(value: float) -> str:
    """So many bytes."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"
