# SPDX-License-Identifier: Apache-2.0
"""Helper functions that a program brings along, and the text that most of them are made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch

from .types import HEX, MASK_TYPES, type_name

#: Makes the text of a helper: of a prelude for helpers of its own, its full name, a dtype and a number of lanes.
Maker: TypeAlias = Callable[["Prelude", str, torch.dtype, int], str]

_HELPERS: dict[str, Maker] = {}

_REMAINDER = """#ifdef __clang__
#define OB_REMAINDER _Pragma("clang loop vectorize(disable) unroll(disable)")
#else
#define OB_REMAINDER
#endif"""


def helper(name: str) -> Callable[[Maker], Maker]:
    """Registers what makes the text of helper ``name``."""

    def register(maker: Maker) -> Maker:
        _HELPERS[name] = maker
        return maker

    return register


class Prelude:
    """The helper functions that a program uses, each emitted once, before its users."""

    def __init__(self) -> None:
        self.snippets: dict[str, str] = {}

    def use(self, name: str, dtype: torch.dtype, width: int) -> str:
        """The name of helper ``name`` for a type and width; its text is added to the program."""
        full = f"ob_{name}_{type_name(dtype, width)}"
        if full not in self.snippets:
            text = _HELPERS[name](self, full, dtype, width)
            self.snippets[full] = text
        return full

    def remainder(self) -> str:
        """What stands before a loop over the few elements that fill no vector. Clang would make vectors of them, and
        several at a time, which never run and take longer to compile than all the rest."""
        self.snippets.setdefault("OB_REMAINDER", _REMAINDER)
        return "OB_REMAINDER"


def mask_of(dtype: torch.dtype, width: int, mask: str) -> str:
    """A bool vector as a mask whose lanes are as wide as those of ``dtype``."""
    if width == 1 or dtype.itemsize == 4 or dtype == torch.bool:
        return mask
    return f"convert_{MASK_TYPES[dtype.itemsize]}{width}({mask})"


def to_bool(dtype: torch.dtype, width: int, comparison: str) -> str:
    """A comparison of values of ``dtype`` as a bool."""
    if width == 1:
        return comparison
    if dtype.itemsize == 4 or dtype == torch.bool:
        return f"({comparison})"
    return f"convert_int{width}({comparison})"


def select_by(dtype: torch.dtype, width: int, mask: str, yes: str, no: str) -> str:
    """A choice by a bool."""
    if width == 1:
        return f"({mask} ? {yes} : {no})"
    return f"select({no}, {yes}, {mask_of(dtype, width, mask)})"


def choose(dtype: torch.dtype, width: int, comparison: str, yes: str, no: str) -> str:
    """A choice by a comparison whose lanes are as wide as those of ``dtype`` already."""
    if width == 1:
        return f"(({comparison}) ? {yes} : {no})"
    return f"select({no}, {yes}, ({comparison}))"


def per_lane(full: str, result: str, argument: str, scalar: str, count: int, width: int) -> str:
    """A vector function that calls a scalar one lane by lane."""
    names = "abcd"[:count]
    parameters = ", ".join(f"{argument}{width} {name}" for name in names)
    lanes = ", ".join(f"{scalar}({', '.join(f'{name}.s{HEX[lane]}' for name in names)})" for lane in range(width))
    return f"{result}{width} {full}({parameters}) {{ return ({result}{width})({lanes}); }}"


def horner(coefficients: list[float], variable: str, t: str, suffix: str = "f") -> str:
    """A polynomial, the highest power first: in float, or with no ``suffix`` in double."""
    text = f"({t})({coefficients[0]!r}{suffix})"
    for coefficient in coefficients[1:]:
        text = f"fma({text}, {variable}, ({t})({coefficient!r}{suffix}))"
    return text


#: For compilers that cannot be asked.
HAS_BUILTIN = "#ifndef __has_builtin\n#define __has_builtin(name) 0\n#endif\n"


@helper("any")
def _helper_any(prelude: Prelude, full: str, dtype: torch.dtype, width: int) -> str:
    """Whether any lane of a mask is set. PoCL looks at the lanes one by one in ``any``."""
    return (
        f"{HAS_BUILTIN}int {full}({type_name(dtype, width)} mask) {{\n"
        "#if __has_builtin(__builtin_reduce_or)\n  return __builtin_reduce_or(mask) != 0;\n"
        "#else\n  return any(mask);\n#endif\n}"
    )


def builtin_per_lane(builtin: str, count: int) -> Maker:
    def make(prelude: Prelude, full: str, dtype: torch.dtype, width: int) -> str:
        t = type_name(dtype)
        if width == 1:
            names = "abcd"[:count]
            return f"{t} {full}({', '.join(f'{t} {n}' for n in names)}) {{ return {builtin}({', '.join(names)}); }}"
        return per_lane(full, t, t, builtin, count, width)

    return make


def lane(value: str, number: int) -> str:
    """One lane of a vector."""
    return f"{value}.s{HEX[number]}"
