# SPDX-License-Identifier: Apache-2.0
"""Plans of common operators that came with Outboard: read where the user's cache has none. Imports no compiler.

A plan is steps, expressions and the sources of kernels, which every machine's device compiles for itself, unless its
driver can take what was built elsewhere: binaries of programs are in a second file, for the program cache in C++
(``csrc/runtime/programs/shipped_programs.h``). Which plan
the compiler makes depends on some properties of the device, so each entry names those that it needs: what correctness
rests on always, what is only a matter of speed if the compiler looked at it. ``tools/ship_plans.py`` writes the file
when a wheel is made. It holds for one state of the compiler's sources and one release of PyTorch, and is trusted by the
rules of the cache (``outboard.trusted``).
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch

from outboard import trusted

from ..operators import facts
from ..target import Target, target_of
from . import files

_log = logging.getLogger(__name__)
_MAGIC = b"OBSHIP01"
FILE = Path(__file__).parents[2] / "plans" / "shipped"
_PROGRAMS_MAGIC = b"OBPROG01"

#: Properties that plans may be worse by, but not wrong. Where they were not looked at, any value will do.
MATTERS_OF_SPEED = (
    "local_memory",
    *("lanes", "register", "registers", "k_block", "far", "ahead", "share", "busy", "group"),  # of ``Tuning``
)
#: Properties that a plan may be wrong by. No program computes in half precision, whether a device can or not.
ALWAYS_NEEDED = (
    "dialect",
    "vectors",
    "max_work_group_size",
    "sub_group_size",
    "host_accessible",
    "has_fp64",
    "has_int64_atomics",
    "matrix_units",
)
_OF_TARGET = frozenset(field.name for field in fields(Target))


@dataclass(frozen=True)
class Entry:
    """What is known of a call: whether scalars must be baked, its plans, and the devices for which that is so."""

    needs: Mapping[str, Any]
    bake: bool
    plans: Sequence[bytes]

    def fits(self, target: Target) -> bool:
        """Whether the entry is for a device."""
        return all(_value(target, name) == value for name, value in self.needs.items())


def find(signature: bytes) -> tuple[bool, list[bytes]] | None:
    """(whether scalars must be baked, plans) for a signature, or None if nothing was shipped for it."""
    shipped = _file(FILE)
    if shipped is None or shipped.fingerprint != fingerprint():
        return None
    device, _, call = signature.partition(b"\0")
    target = _target(device.decode())
    if target is None or (target.library and _is_the_librarys(call)):
        return None
    return next(((e.bake, list(e.plans)) for e in shipped.entries(call) if e.fits(target)), None)


def fingerprint() -> bytes:
    """What plans that are shipped belong to: as the cache's, but any build of a release of PyTorch will do."""
    return files.fingerprint_under(torch.__version__.split("+")[0])


def needs_of(target: Target, looked_at: set[str]) -> dict[str, Any]:
    """The properties that other devices must share with this one to use a plan for which some were looked at."""
    speed = [name for name in MATTERS_OF_SPEED if name in looked_at]
    return {name: _value(target, name) for name in (*ALWAYS_NEEDED, *speed)}


def _value(target: Target, name: str) -> Any:
    """A property of the device or of its tuning."""
    return getattr(target if name in _OF_TARGET else target.tuning, name)


def write(path: Path, entries: Mapping[bytes, Sequence[Entry]]) -> None:
    """Writes a file of entries by call (a signature without its device). Plans that are alike are stored once."""
    places: dict[bytes, tuple[int, int]] = {}
    blob = bytearray()
    index: dict[str, list[Any]] = {}
    for call, known in sorted(entries.items()):
        for entry in known:
            for plan in entry.plans:
                if plan not in places:
                    places[plan] = (len(blob), len(plan))
                    blob += plan
            item = [dict(entry.needs), entry.bake, [places[plan] for plan in entry.plans]]
            index.setdefault(_name(call), []).append(item)
    head = json.dumps({"fingerprint": fingerprint().hex(), "index": index}, sort_keys=True).encode()
    body = struct.pack("<I", len(head)) + head + bytes(blob)
    _write(path, files.sealed(_MAGIC, zlib.compress(body, 9)))


def write_programs(path: Path, programs: Mapping[str, Sequence[bytes]]) -> None:
    """Writes a file of program binaries by digest, the first to try first.

    Its form is described in ``csrc/runtime/programs/shipped_programs.h``.
    """
    binaries = [(digest, binary) for digest, each in sorted(programs.items()) for binary in each]
    offset = len(_PROGRAMS_MAGIC) + 64 + 8 + len(binaries) * (64 + 16)
    table = bytearray()
    for digest, binary in binaries:
        table += digest.encode() + struct.pack("<QQ", offset, len(binary))
        offset += len(binary)
    head = _PROGRAMS_MAGIC + hashlib.sha256(table).hexdigest().encode() + struct.pack("<Q", len(binaries))
    _write(path, head + table + b"".join(binary for _, binary in binaries))


def _write(path: Path, content: bytes) -> None:
    """A file that everybody can read and its owner can write."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    path.chmod(0o644)


@dataclass(frozen=True)
class _Shipped:
    fingerprint: bytes
    index: dict[str, list[Any]]
    blob: bytes

    def entries(self, call: bytes) -> list[Entry]:
        return [
            Entry(needs, bake, [self.blob[offset : offset + size] for offset, size in places])
            for needs, bake, places in self.index.get(_name(call), [])
        ]


@functools.cache
def _file(path: Path) -> _Shipped | None:
    """The content of a file; None if there is none, or it cannot be trusted."""
    try:
        body = files.unsealed(_MAGIC, trusted.read(path))
    except FileNotFoundError:
        return None
    except OSError as error:
        _log.info("plans that came with Outboard are not used: %s", error)
        return None
    if body is None:
        _log.warning("ignoring the damaged file %s", path)
        return None
    content = zlib.decompress(body)
    (length,) = struct.unpack_from("<I", content)
    head = json.loads(content[4 : 4 + length])
    return _Shipped(bytes.fromhex(head["fingerprint"]), head["index"], content[4 + length :])


def _is_the_librarys(call: bytes) -> bool:
    """Whether a call is of an operator that the library of a device's driver may have a function for."""
    return any(call.startswith(name.encode()) for name in facts.with_fact(lambda fact: fact.library))


def _target(plan_key: str) -> Target | None:
    """The device that a signature names; None for one that the compiler was made to see as another."""
    from outboard import _C

    targets = (target_of(index) for index in range(_C.device_count()))
    return next((target for target in targets if target.plan_key == plan_key), None)


def _name(call: bytes) -> str:
    return hashlib.sha256(call).hexdigest()
