# SPDX-License-Identifier: Apache-2.0
"""Memory reserved against memory in use, on traces of training with varying batch and sequence lengths.

    python -m benchmarks.fragmentation                  # records and replays; the traces go to out/fragmentation
    python -m benchmarks.fragmentation --replay-only    # replays the traces that are there

A trace is what a training asked of the allocator and gave back, from the first parameter to the last step. It is
replayed in a fresh process through ``caching_allocator_alloc`` and ``_delete``, so that the same trace can be compared
across versions of the allocator. The ratio is that of the peaks.
"""

from __future__ import annotations

import argparse
import json
import pickle
import random
import subprocess
import sys
from pathlib import Path

import torch
import torch.nn.functional as F

TARGET = 1.15  #: most that may be reserved for each byte in use
FOLDER = Path("out/fragmentation")
MODELS = ("resnet18", "gpt2")

#: An event: (True, block, bytes) for memory taken, (False, block, 0) for memory given back.
Event = tuple[bool, int, int]


def train(name: str, steps: int, device: str) -> None:
    """Trains with batches of random size: ResNet-18 with SGD, or GPT-2 with random lengths too and AdamW."""
    from examples.models import GPT2, GPT2Config, resnet18

    random.seed(0)
    torch.manual_seed(0)
    if name == "resnet18":
        model: torch.nn.Module = resnet18().to(device)
        optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    else:
        config = GPT2Config(vocabulary=2048, positions=128, width=256)
        model = GPT2(config).to(device)
        optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        if name == "resnet18":
            size = random.choice((48, 64, 96))
            inputs = torch.randn(random.randint(2, 12), 3, size, size)
            labels = torch.randint(1000, inputs.shape[:1])
        else:
            inputs = torch.randint(config.vocabulary, (random.randint(2, 8), random.randint(16, 128)))
            labels = inputs.flatten()
        optimizer.zero_grad()
        outputs = model(inputs.to(device))
        F.cross_entropy(outputs.flatten(0, -2), labels.to(device)).backward()
        optimizer.step()


def record(name: str, steps: int, path: Path) -> None:
    """Trains, and writes the trace."""
    device = torch._C._get_privateuse1_backend_name()
    memory = torch.get_device_module(device).memory
    memory._record_memory_history(max_entries=10_000_000)
    train(name, steps, device)
    events: list[Event] = []
    blocks: dict[int, int] = {}  # by address
    for entry in memory._snapshot()["device_traces"][0]:
        if entry["action"] == "alloc":
            blocks[entry["addr"]] = len(events)
            events.append((True, len(events), entry["size"]))
        elif entry["action"] == "free_completed":
            events.append((False, blocks.pop(entry["addr"]), 0))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(events))


def replay(path: Path) -> dict[str, int]:
    """The trace on an allocator of which nothing was asked before: peaks in bytes, and the number of allocations."""
    module = torch.get_device_module(torch._C._get_privateuse1_backend_name())
    pointers: dict[int, int] = {}
    for taken, block, size in pickle.loads(path.read_bytes()):
        if taken:
            pointers[block] = module.caching_allocator_alloc(size)
        else:
            module.caching_allocator_delete(pointers.pop(block))
    stats = module.memory_stats()
    asked = sum(1 for taken, _, _ in pickle.loads(path.read_bytes()) if taken)
    for pointer in pointers.values():
        module.caching_allocator_delete(pointer)
    return {"reserved": stats["reserved.peak"], "active": stats["active.peak"], "allocations": asked}


def in_process(*arguments: str) -> str:
    """What this program prints last with the given arguments.

    Raises:
        RuntimeError: if it fails.
    """
    command = [sys.executable, "-m", "benchmarks.fragmentation", *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr}")
    return done.stdout.splitlines()[-1] if done.stdout else ""


def measure(name: str, steps: int, folder: Path = FOLDER, replay_only: bool = False) -> dict[str, int]:
    """Records a training of ``steps`` steps, unless told not to, and replays it, each in a process of its own."""
    path = folder / f"{name}.pickle"
    if not replay_only:
        in_process("--record", name, "--steps", str(steps), "--folder", str(folder))
    result: dict[str, int] = json.loads(in_process("--replay", str(path)))
    return result


def main() -> int:
    from examples.measure import table

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40, help="training steps (default 40)")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where traces are")
    parser.add_argument("--replay-only", action="store_true", help="use the traces that are there")
    parser.add_argument("--record", choices=MODELS, help=argparse.SUPPRESS)
    parser.add_argument("--replay", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.record:
        record(arguments.record, arguments.steps, arguments.folder / f"{arguments.record}.pickle")
        return 0
    if arguments.replay:
        print(json.dumps(replay(arguments.replay)))
        return 0
    results = {name: measure(name, arguments.steps, arguments.folder, arguments.replay_only) for name in MODELS}
    ratios = {name: each["reserved"] / each["active"] for name, each in results.items()}
    rows = [
        [
            name,
            str(each["allocations"]),
            f"{each['active'] / (1 << 20):.1f} MiB",
            f"{each['reserved'] / (1 << 20):.1f} MiB",
            f"{ratios[name]:.3f}",
        ]
        for name, each in results.items()
    ]
    print(table(["trace", "allocations", "peak active", "peak reserved", f"ratio (at most {TARGET})"], rows))
    return 0 if all(ratio <= TARGET for ratio in ratios.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
