# SPDX-License-Identifier: Apache-2.0
"""Which systems a wheel runs on, computed from the symbols that its libraries ask the system for.

PEP 600: a wheel tagged ``manylinux_2_34`` runs on every system whose glibc is 2.34 or newer, and uses nothing of the
system but a few libraries, in versions that all such systems have. The table of these versions is the one that
``auditwheel`` goes by.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable
from pathlib import Path

Version = tuple[int, ...]

#: Families of symbols and their newest version on systems of each glibc, oldest first.
_FAMILIES = ("GLIBC", "GLIBCXX", "CXXABI", "GCC")
_SYSTEMS: list[tuple[Version, ...]] = [
    ((2, 28), (3, 4, 24), (1, 3, 11), (7, 0, 0)),
    ((2, 31), (3, 4, 28), (1, 3, 12), (7, 0, 0)),
    ((2, 34), (3, 4, 29), (1, 3, 13), (7, 0, 0)),
    ((2, 35), (3, 4, 30), (1, 3, 13), (12, 0, 0)),
    ((2, 36), (3, 4, 30), (1, 3, 13), (12, 0, 0)),
    ((2, 38), (3, 4, 30), (1, 3, 13), (12, 0, 0)),
    ((2, 39), (3, 4, 33), (1, 3, 15), (14, 0, 0)),
]
#: Libraries that every system has.
_SYSTEM_LIBRARIES = re.compile(
    r"lib(c|m|dl|rt|pthread|gcc_s|stdc\+\+)\.so\.\d+|ld-linux[-\w]*\.so\.\d+"  # ld-linux-x86-64.so.2
)
#: Libraries of PyTorch's wheel, which the metadata asks for, and Outboard's own.
_WHEELS_LIBRARIES = re.compile(r"lib(torch|torch_python|torch_cpu|c10|outboard_runner)\.so")


class NotPortable(RuntimeError):
    """A file needs what no tag promises; the text says which and what."""


def requirements(files: Iterable[Path]) -> dict[str, Version]:
    """The newest version of each family of symbols that ELF files ask for, as ``{"GLIBC": (2, 34), ...}``.

    Raises NotPortable for libraries that are neither in every system nor in PyTorch's wheel, and for symbols of other
    families. Needs ``readelf`` (binutils).
    """
    newest: dict[str, Version] = {}
    for file in files:
        command = ["readelf", "--wide", "--dynamic", "--version-info", str(file)]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        for library in re.findall(r"\(NEEDED\).*\[(.+)\]", text):
            if not _SYSTEM_LIBRARIES.fullmatch(library) and not _WHEELS_LIBRARIES.fullmatch(library):
                raise NotPortable(f"{file.name} needs {library}, which not every system has")
        for symbols in re.findall(r"Name: (\S+)\s+Flags", text):
            family, _, version = symbols.partition("_")
            if family not in _FAMILIES or not re.fullmatch(r"[\d.]+", version):
                raise NotPortable(f"{file.name} needs symbols of {symbols}")
            newest[family] = max(newest.get(family, ()), _parsed(version))
    return newest


def tag(needs: dict[str, Version], machine: str) -> str:
    """The platform's tag for what :func:`requirements` gave, on processors of a kind (``platform.machine()``).

    Raises NotPortable if no system in the table has all that is needed."""
    for system in _SYSTEMS:
        if all(needs.get(family, ()) <= offered for family, offered in zip(_FAMILIES, system, strict=True)):
            return f"manylinux_{'_'.join(map(str, system[0]))}_{machine}"
    raise NotPortable(f"no system is known to have {described(needs)}")


def described(needs: dict[str, Version]) -> str:
    """Requirements for people to read."""
    return ", ".join(f"{family} {'.'.join(map(str, version))}" for family, version in sorted(needs.items()))


def is_elf(file: Path) -> bool:
    """Whether a file is a library or a program."""
    with file.open("rb") as content:
        return content.read(4) == b"\x7fELF"


def _parsed(version: str) -> Version:
    return tuple(int(part) for part in version.split("."))
