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
    """README's example, then what most programs do: creating, copying, printing, arithmetic, reductions, products,
    training of small networks with common layers and optimizers."""
    import torch
    import torch.nn.functional as F
    from torch import nn

    name = torch._C._get_privateuse1_backend_name()

    def snippet() -> None:
        x = torch.randn(4, 4, device=name)
        model = torch.nn.Linear(4, 2).to(name)
        model(x).sum().backward()

    snippet()
    x = torch.ones(3, device=name)
    str(x), str(x * 2 + 1), str(torch.arange(10, device=name))
    (torch.randn(4, 4, device=name).to(name) @ torch.randn(4, 4, device=name)).cpu()
    for a, b in ((torch.randn(5, 7), torch.randn(5, 7)), (torch.randn(5, 7), torch.randn(7))):
        a, b = a.to(name), b.to(name)
        for pair in (torch.add, torch.sub, torch.mul, torch.div, torch.maximum, torch.minimum, torch.pow):
            pair(a, b)
        (a == b, a < b, a > b, a != b, a + 1, a - 1, 1 - a, a * 2, a / 2, 1 / a, a**2, -a)
    for function in (torch.exp, torch.log, torch.sqrt, torch.rsqrt, torch.abs, torch.sin, torch.cos, torch.tanh):
        function(a)
    for function in (torch.sigmoid, F.relu, F.gelu, F.silu):
        function(a)
    for shape in ((6,), (4, 6)):
        y = torch.randn(shape, device=name)
        y.sum(), y.mean(), y.max(), y.min(), y.argmax(-1), y.sum(-1), y.mean(-1), y.max(-1), y.std(), y.var()
        y.softmax(-1), y.log_softmax(-1), y.cumsum(-1), y.sort(), y.topk(2), y.norm(), y.any(), y.all()
    y[0], y[:, 1], y[y > 0], torch.cat([y, y]), torch.stack([y, y]), y.T.contiguous(), y.half().float(), y.long()
    y.fill_(1), y.zero_(), torch.zeros(3, device=name), torch.eye(3, device=name), torch.where(y > 0, y, -y)
    torch.equal(y, y), torch.allclose(y, y), torch.rand(3, device=name), torch.randint(5, (3,), device=name)
    mlp = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.LayerNorm(32), nn.Dropout(0.1), nn.Linear(32, 5))
    features = (nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2))
    network = nn.Sequential(*features, nn.Flatten(), nn.Linear(128, 5))
    for model, shape in ((mlp, (8, 20)), (network, (8, 1, 8, 8))):
        model.to(name)
        data, labels = torch.randn(shape, device=name), torch.randint(5, (8,), device=name)
        for optimizer in (
            torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9),
            torch.optim.Adam(model.parameters()),
            torch.optim.AdamW(model.parameters()),
        ):
            for _ in range(2):
                optimizer.zero_grad()
                loss = F.cross_entropy(model(data), labels)
                loss.backward()
                optimizer.step()
            loss.item()
        with torch.no_grad():
            (model.eval()(data).argmax(1) == labels).float().mean().item()
    torch.accelerator.synchronize()


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
