# SPDX-License-Identifier: Apache-2.0
"""Makes the files that a wheel brings: plans, and binaries of programs, of a tour of common operators.

``python -m tools.ship_plans FOLDER`` runs the tour on each driver that has a device here, in processes of their own
with empty caches, and writes ``shipped`` and ``programs``. See ``outboard.compiler.plans.shipped``.
"""

from __future__ import annotations

import argparse
import os
import pickle
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

#: Drivers whose devices most people have, and the processors to compile for, the better ones first. What has no device
#: here is not shipped.
DEVICES: tuple[dict[str, str], ...] = (
    {"OUTBOARD_DRIVER": "opencl"},
    {"OUTBOARD_DRIVER": "host", "OUTBOARD_HOST_MARCH": "x86-64-v4"},
    {"OUTBOARD_DRIVER": "host", "OUTBOARD_HOST_MARCH": "x86-64-v3"},
)
#: What a binary begins with that runs on all processors of a level (`to_binary` in csrc/drivers/host/program.cpp).
_PORTABLE = re.compile(rb"outboard host program \d+\n\w{64}\nx86-64-v\d\n")

Entries = dict[bytes, list[Any]]
Programs = dict[str, list[bytes]]


def tour() -> None:
    """The tour on the first device there is."""
    import torch
    from tour import run

    run(torch._C._get_privateuse1_backend_name())


@contextmanager
def collected(entries: Entries) -> Iterator[None]:
    """Collects the entries of what is compiled meanwhile, and what of the device was looked at for each."""
    from outboard.compiler import eager
    from outboard.compiler.plans import cache, shipped
    from outboard.compiler.target import Target, target_of
    from outboard.compiler.tuning import Tuning

    looked_at: set[str] = set()
    speed: dict[bytes, set[str]] = defaultdict(set)  # of all plans of a call
    compile_operator, store, store_bake = eager.compile_operator, cache.store, cache.store_bake

    def watch(self: Target | Tuning, name: str) -> Any:
        looked_at.add(name)
        return object.__getattribute__(self, name)

    def compile_watched(*call: Any) -> tuple[str, bytes]:
        target_of(0).tuning  # noqa: B018 - what it is made from does not count as looked at
        looked_at.clear()
        for watched in (Target, Tuning):
            watched.__getattribute__ = watch  # type: ignore[method-assign, assignment]
        try:
            return compile_operator(*call)
        finally:
            for watched in (Target, Tuning):
                del watched.__getattribute__

    def store_too(signature: bytes, bake: bool, plan: bytes) -> None:
        store(signature, bake, plan)
        collect_stored(signature)

    def store_bake_too(signature: bytes) -> None:
        store_bake(signature)
        collect_stored(signature)

    def collect_stored(signature: bytes) -> None:
        bakes, plans = cache.load(signature)
        call = signature.partition(b"\0")[2]
        speed[call] |= looked_at
        entries[call] = [shipped.Entry(shipped.needs_of(target_of(0), speed[call]), bakes, plans)]

    eager.compile_operator, cache.store, cache.store_bake = compile_watched, store_too, store_bake_too
    try:
        yield
    finally:
        eager.compile_operator, cache.store, cache.store_bake = compile_operator, store, store_bake


def collect(run: Callable[[], None]) -> Entries:
    """What ``run`` had compiled in this process, whose caches are empty."""
    entries: Entries = {}
    with collected(entries):
        run()
    return entries


def portable_programs() -> dict[str, bytes]:
    """Binaries of the programs that the first device of this process has, of those that run on other machines, too."""
    from outboard import _C

    return {digest: binary for digest, binary in _C.program_binaries(0).items() if _PORTABLE.match(binary)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where to write the files")
    parser.add_argument("--collect", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.collect:
        options.folder.write_bytes(pickle.dumps((collect(tour), portable_programs())))
        return 0
    write(options.folder, [_on(device) for device in DEVICES])
    return 0


def write(folder: Path, collected_on: list[tuple[Entries, dict[str, bytes]]]) -> None:
    """Writes both files, of what was collected on each device."""
    from outboard.compiler.plans import shipped

    entries: Entries = {}
    programs: Programs = {}
    for plans, binaries in collected_on:
        for call, known in plans.items():
            entries.setdefault(call, []).extend(each for each in known if each not in entries.get(call, []))
        for digest, binary in binaries.items():
            programs.setdefault(digest, []).append(binary)
    shipped.write(folder / "shipped", entries)
    shipped.write_programs(folder / "programs", programs)
    for name, count in (("shipped", f"{len(entries)} calls"), ("programs", f"{len(programs)} programs")):
        print(f"{folder / name}: {count}, {(folder / name).stat().st_size / 1024:.0f} KiB")


def _on(device: dict[str, str]) -> tuple[Entries, dict[str, bytes]]:
    """What the tour needs on the first device that these variables choose; nothing without such a device."""
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | device | {"OUTBOARD_CACHE_DIR": f"{folder}/cache"}
        check = "import torch, sys; sys.exit(0 if torch.accelerator.is_available() else 1)"
        if subprocess.run([sys.executable, "-c", check], env=environment, capture_output=True).returncode != 0:
            print(f"no device with {' '.join(f'{name}={value}' for name, value in device.items())}: nothing for it")
            return {}, {}
        file = f"{folder}/entries"
        subprocess.run([sys.executable, __file__, "--collect", file], env=environment, check=True)
        found: tuple[Entries, dict[str, bytes]] = pickle.loads(Path(file).read_bytes())
        return found


if __name__ == "__main__":
    sys.exit(main())
