# SPDX-License-Identifier: Apache-2.0
"""Makes the file of plans that a wheel brings: runs a tour of common operators and keeps what it needed.

``python -m tools.ship_plans FILE`` runs the tour on each driver that has a device here, in processes of their own with
empty caches. See ``outboard.compiler.shipped``.
"""

from __future__ import annotations

import argparse
import os
import pickle
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

#: Drivers whose devices most people have. Plans of one that has no device here are not shipped.
DRIVERS = ("opencl", "host")


def tour() -> None:
    """The tour on the first device there is."""
    import torch
    from tour import run

    run(torch._C._get_privateuse1_backend_name())


@contextmanager
def collected(entries: dict[bytes, list[Any]]) -> Iterator[None]:
    """Collects the entries of what is compiled meanwhile, and what of the device was looked at for each."""
    from outboard.compiler import cache, eager, shipped
    from outboard.compiler.target import Target, target_of

    looked_at: set[str] = set()
    speed: dict[bytes, set[str]] = defaultdict(set)  # of all plans of a call
    compile_operator, store = eager.compile_operator, cache.store

    def watch(self: Target, name: str) -> Any:
        looked_at.add(name)
        return object.__getattribute__(self, name)

    def compile_watched(*call: Any) -> tuple[str, bytes]:
        looked_at.clear()
        Target.__getattribute__ = watch  # type: ignore[method-assign, assignment]
        try:
            return compile_operator(*call)
        finally:
            del Target.__getattribute__

    def store_too(signature: bytes, bake: bool, plan: bytes) -> None:
        store(signature, bake, plan)
        bakes, plans = cache.load(signature)
        call = signature.partition(b"\0")[2]
        speed[call] |= looked_at
        entries[call] = [shipped.Entry(shipped.needs_of(target_of(0), speed[call]), bakes, plans)]

    eager.compile_operator, cache.store = compile_watched, store_too
    try:
        yield
    finally:
        eager.compile_operator, cache.store = compile_operator, store


def collect(run: Callable[[], None]) -> dict[bytes, list[Any]]:
    """What ``run`` had compiled in this process, whose caches are empty."""
    entries: dict[bytes, list[Any]] = {}
    with collected(entries):
        run()
    return entries


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path, help="file to write")
    parser.add_argument("--collect", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.collect:
        options.file.write_bytes(pickle.dumps(collect(tour)))
        return 0
    from outboard.compiler import shipped

    entries: dict[bytes, list[Any]] = {}
    for driver in DRIVERS:
        for call, known in _on(driver).items():
            entries.setdefault(call, []).extend(each for each in known if each not in entries.get(call, []))
    shipped.write(options.file, entries)
    print(f"{options.file}: {len(entries)} calls, {options.file.stat().st_size / 1024:.0f} KiB")
    return 0


def _on(driver: str) -> dict[bytes, list[Any]]:
    """What the tour needs on the first device of a driver; nothing without such a device."""
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"OUTBOARD_DRIVER": driver, "OUTBOARD_CACHE_DIR": f"{folder}/cache"}
        check = "import torch, sys; sys.exit(0 if torch.accelerator.is_available() else 1)"
        if subprocess.run([sys.executable, "-c", check], env=environment, capture_output=True).returncode != 0:
            print(f"no device of the driver {driver}: no plans for it")
            return {}
        file = f"{folder}/entries"
        subprocess.run([sys.executable, __file__, "--collect", file], env=environment, check=True)
        entries: dict[bytes, list[Any]] = pickle.loads(Path(file).read_bytes())
        return entries


if __name__ == "__main__":
    sys.exit(main())
