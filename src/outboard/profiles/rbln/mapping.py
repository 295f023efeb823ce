# SPDX-License-Identifier: Apache-2.0
"""Logical and physical devices: ``RBLN_DEVICES``, ``RBLN_NPUS_PER_DEVICE``, ``RBLN_DEVICE_MAP``, which are read when
devices are opened: when one is first needed.

A physical device is one that a driver has. ``RBLN_DEVICES`` chooses some of them, in order; numbers in
``RBLN_DEVICE_MAP`` count these. A logical device is what ``rbln:0`` names: one physical device, or a group. Outboard
does not join devices, so that of a group only the first one works, which a warning says.
"""

from __future__ import annotations

import os
import re
import warnings
from dataclasses import dataclass

from outboard import _C

#: How many physical devices a logical one may have.
_SIZES = (1, 2, 4, 8, 16, 32)


@dataclass(frozen=True)
class _Mapping:
    """Numbers of physical devices: the group of each logical device, and those that are visible but in none."""

    groups: tuple[tuple[int, ...], ...] = ()
    unused: tuple[int, ...] = ()


_mapping = _Mapping()


def physical_device_count() -> int:
    """Number of physical devices that the process sees, whether or not a logical device uses them."""
    mapping = _chosen()
    return sum(map(len, mapping.groups)) + len(mapping.unused)


def device_summary() -> None:
    """Prints which physical devices each logical device stands for."""
    mapping = _chosen()
    rows = [(f"rbln:{index}", _listed(group), _status(group)) for index, group in enumerate(mapping.groups)]
    if mapping.unused:
        rows.append(("-", _listed(mapping.unused), "Unused"))
    table = [("Logical Device", "Physical NPU IDs", "Status"), *rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    rule = "+" + "+".join("-" * (width + 2) for width in widths) + "+"
    lines = [
        "| " + " | ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)) + " |" for row in table
    ]
    print("\n".join(["[RBLN] Device Topology:", rule, lines[0], rule, *lines[1:], rule]))
    if mapping.unused:
        print(f"[Warning] {len(mapping.unused)} physical devices are in no logical device.")


def choose(count: int) -> list[int]:
    """Of ``count`` physical devices, the one that stands for each logical device, in order.

    Raises:
        ValueError: if a variable makes no sense, naming it.
    """
    global _mapping
    visible = _visible(count)
    groups, source = _groups(len(visible))
    used = {place for group in groups for place in group}
    unused = tuple(number for place, number in enumerate(visible) if place not in used)
    _mapping = _Mapping(tuple(tuple(visible[place] for place in group) for group in groups), unused)
    if any(len(group) > 1 for group in groups):
        warnings.warn(
            f"{source} joins several devices to one, which Outboard cannot: of each group the first device does all "
            "the work (see torch.rbln.device_summary()).",
            stacklevel=2,
        )
    return [group[0] for group in _mapping.groups]


def _chosen() -> _Mapping:
    """What was chosen when devices were opened, which this does if it is the first to need them."""
    _C.device_count()
    return _mapping


def _visible(count: int) -> list[int]:
    """The physical devices to use, in order."""
    variable = "RBLN_DEVICES" if os.environ.get("RBLN_DEVICES") else "RBLN_VISIBLE_DEVICES"
    text = os.environ.get(variable, "").strip()
    if not text:
        return list(range(count))
    if re.fullmatch(r"\d+(\s*,\s*\d+)*", text) is None:
        raise ValueError(f"{variable}={text!r} is not a list of device numbers such as 0,1")
    return _checked([int(number) for number in text.split(",")], count, f"{variable}={text!r}")


def _groups(count: int) -> tuple[list[list[int]], str]:
    """The groups, as places among ``count`` visible devices, and the variable that says so."""
    if text := os.environ.get("RBLN_DEVICE_MAP", "").strip():
        return _mapped(text, count), "RBLN_DEVICE_MAP"
    if text := os.environ.get("RBLN_NPUS_PER_DEVICE", "").strip():
        size = _size(text)
        if size > count:
            raise ValueError(f"RBLN_NPUS_PER_DEVICE={text}: there are only {count} devices")
        return [list(range(first, first + size)) for first in range(0, count - size + 1, size)], "RBLN_NPUS_PER_DEVICE"
    return [[place] for place in range(count)], ""


def _mapped(text: str, count: int) -> list[list[int]]:
    what = f"RBLN_DEVICE_MAP={text!r}"
    group = r"\[\s*\d+(\s*,\s*\d+)*\s*\]"
    if re.fullmatch(rf"{group}(\s*,\s*{group})*", text) is None:
        raise ValueError(f"{what} is not a list of groups such as [0,1],[2,3]")
    groups = [[int(number) for number in part.split(",")] for part in re.findall(r"\[([^\]]*)\]", text)]
    for members in groups:
        if len(members) not in _SIZES:
            raise ValueError(f"{what} has a group of {len(members)}; a group has {', '.join(map(str, _SIZES))} devices")
    _checked([number for members in groups for number in members], count, what)
    return groups


def _size(text: str) -> int:
    if text not in map(str, _SIZES):
        raise ValueError(f"RBLN_NPUS_PER_DEVICE={text!r} is none of {', '.join(map(str, _SIZES))}")
    return int(text)


def _checked(numbers: list[int], count: int, what: str) -> list[int]:
    """Numbers of devices, each of which exists and stands there once."""
    for number in numbers:
        if number >= count:
            raise ValueError(f"{what} names device {number}; there are {count}")
    if len(set(numbers)) < len(numbers):
        raise ValueError(f"{what} names a device twice")
    return numbers


def _listed(numbers: tuple[int, ...]) -> str:
    return f"[ {', '.join(map(str, numbers))} ]"


def _status(group: tuple[int, ...]) -> str:
    return "Active" if len(group) == 1 else f"Active (first of {len(group)})"
