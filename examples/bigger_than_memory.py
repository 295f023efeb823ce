# SPDX-License-Identifier: Apache-2.0
"""Trains models in a half and a quarter of the device memory they need, and compares every bit with a run in all of it.

    python -m examples.bigger_than_memory                    # both models, a table and out/bigger_than_memory.png
    python -m examples.bigger_than_memory --model gpt2 --steps 5

Each training runs in a process of its own, because OUTBOARD_MEMORY_LIMIT is read when the device is opened.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from examples.measure import table
from examples.models import GPT2, GPT2Config, resnet50

MODELS = ("resnet50", "gpt2")
FRACTIONS = (1.0, 0.5, 0.25)


@dataclass
class Training:
    """What one run did. Memory in bytes, time in seconds per step."""

    limit: int  #: 0: none
    digest: str = ""  #: of the losses and of every parameter at the end
    losses: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    peak: int = 0  #: most device memory that tensors held
    peak_reserved: int = 0
    spilled: int = 0  #: moved to the host, in all
    restored: int = 0  #: moved back, in all
    resident: list[int] = field(default_factory=list)  #: device memory of tensors after each step
    away: list[int] = field(default_factory=list)  #: on the host after each step


def model_and_data(name: str, device: torch.device) -> tuple[nn.Module, torch.optim.Optimizer, Tensor, Tensor]:
    """The model on the device, its optimizer, inputs and labels: ResNet-50 with SGD, or six layers with AdamW."""
    if name == "resnet50":
        model: nn.Module = resnet50().to(device)
        optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        return model, optimizer, torch.randn(4, 3, 64, 64).to(device), torch.randint(1000, (4,)).to(device)
    config = GPT2Config(vocabulary=2048, positions=128, width=256)
    model = GPT2(config).to(device)
    # All different: the gradient of a row that is looked up three times depends on the order of atomic additions.
    tokens = torch.randperm(config.vocabulary)[: 4 * 65].view(4, 65).to(device)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3), tokens[:, :-1], tokens[:, 1:]


def train(name: str, steps: int, device: torch.device) -> Training:
    """Trains for ``steps`` steps and tells what happened."""
    torch.manual_seed(0)
    module = torch.get_device_module(device)
    training = Training(limit=int(os.environ.get("OUTBOARD_MEMORY_LIMIT", "0")))
    model, optimizer, inputs, labels = model_and_data(name, device)
    for _ in range(steps):
        start = time.perf_counter()
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs).flatten(0, -2), labels.flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        training.losses.append(loss.item())
        training.seconds.append(time.perf_counter() - start)
        stats = module.memory_stats(device)
        training.resident.append(stats["allocated.current"])
        training.away.append(stats["lazy.spilled.bytes"] + stats["lazy.host.bytes"])
    digest = hashlib.sha256(repr(training.losses).encode())
    for value in model.state_dict().values():
        digest.update(value.cpu().numpy().tobytes())
    stats = module.memory_stats(device)
    training.digest = digest.hexdigest()
    training.peak, training.peak_reserved = stats["allocated.peak"], stats["reserved.peak"]
    training.spilled, training.restored = stats["lazy.spills.bytes"], stats["lazy.restores.bytes"]
    return training


def run(name: str, steps: int, limit: int = 0) -> Training:
    """Trains in a fresh process with at most ``limit`` bytes of device memory (0: all there is).

    Raises:
        RuntimeError: if the process fails.
    """
    command = [sys.executable, "-m", "examples.bigger_than_memory", "--worker", "--model", name, "--steps", str(steps)]
    environment = {key: value for key, value in os.environ.items() if key != "OUTBOARD_MEMORY_LIMIT"}
    if limit:
        environment["OUTBOARD_MEMORY_LIMIT"] = str(limit)
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} with {limit} bytes failed:\n{done.stderr}")
    return Training(**json.loads(done.stdout.splitlines()[-1]))


def compare(name: str, steps: int) -> Iterator[Training]:
    """One unlimited training, then the same in each fraction of its peak."""
    whole = run(name, steps)
    yield whole
    for fraction in FRACTIONS[1:]:
        yield run(name, steps, int(whole.peak * fraction))


def time_of(training: Training) -> float:
    """Median seconds of a step, the first ones left out: they compile and load."""
    return statistics.median(training.seconds[min(2, len(training.seconds) - 1) :])


def row(name: str, training: Training, whole: Training) -> list[str]:
    mebibytes = 1 << 20
    return [
        name,
        f"{(training.limit or training.peak) / mebibytes:.0f} MiB",
        f"{training.peak_reserved / mebibytes:.0f} MiB",
        f"{training.spilled / mebibytes / len(training.seconds):.0f} MiB",
        f"{time_of(training):.3f} s",
        f"{time_of(training) / time_of(whole):.2f}",
        "yes" if training.digest == whole.digest else "NO",
    ]


def plot(results: dict[str, list[Training]], path: Path) -> None:
    """Step time against the memory allowed, and where the bytes are after each step."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 1 + len(results), figsize=(5 * (1 + len(results)), 4), layout="constrained")
    for name, trainings in results.items():
        slow_down = [time_of(training) / time_of(trainings[0]) for training in trainings]
        axes[0].plot(FRACTIONS, slow_down, marker="o", label=name)
    axes[0].set(xlabel="memory allowed / peak", ylabel="time of a step / unlimited", ylim=(0, None))
    axes[0].legend()
    for axis, (name, trainings) in zip(axes[1:], results.items(), strict=True):
        smallest = trainings[-1]
        steps = range(1, len(smallest.resident) + 1)
        resident = [value / (1 << 20) for value in smallest.resident]
        away = [value / (1 << 20) for value in smallest.away]
        axis.bar(steps, resident, label="device")
        axis.bar(steps, away, bottom=resident, label="host")
        axis.axhline(smallest.limit / (1 << 20), color="black", linestyle="--", label="limit")
        axis.set(title=f"{name} in a quarter", xlabel="step", ylabel="MiB after the step")
        axis.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, help="only this one")
    parser.add_argument("--steps", type=int, default=8, help="training steps (default 8)")
    parser.add_argument("--output", type=Path, default=Path("out/bigger_than_memory.png"), help="where the plot goes")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        device = torch.accelerator.current_accelerator()
        if device is None:
            raise RuntimeError("there is no device; run `outboard doctor`")
        print(json.dumps(asdict(train(arguments.model, arguments.steps, device))))
        return 0
    models = (arguments.model,) if arguments.model else MODELS
    results = {name: list(compare(name, arguments.steps)) for name in models}
    rows = [row(name, each, trainings[0]) for name, trainings in results.items() for each in trainings]
    print(table(["model", "allowed", "reserved", "moved out per step", "step", "slow-down", "same bits"], rows))
    plot(results, arguments.output)
    print(f"plot: {arguments.output}")
    return 0 if all(cells[-1] == "yes" for cells in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
