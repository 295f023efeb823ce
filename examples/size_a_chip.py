# SPDX-License-Identifier: Apache-2.0
"""What a chip would make of ResNet-50 and a Llama of 7 billion weights, and how far that prediction can be trusted.

``python -m examples.size_a_chip --chip a100`` simulates images a second, and tokens a second of a prompt and of the
generation after it, over the chip's bandwidth and arithmetic: as they are, halves and multiples. It prints tables,
draws them into ``out/``, and puts numbers that others published for three chips beside what ``outboard.simulate`` makes
of their specifications. Nothing runs but Python: the weights need no memory.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

import outboard
from examples.models import Llama, LlamaConfig, resnet50

FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)  #: of bandwidth and of arithmetic
LLAMA = LlamaConfig(vocabulary=32000, positions=4096, width=4096, layers=32, heads=32, key_value_heads=32, hidden=11008)


@dataclass(frozen=True)
class Workload:
    """A simulation on some chip, and how many of what ``unit`` says it gives."""

    simulation: outboard.Simulation
    count: int
    unit: str

    def rate(self, chip: outboard.Chip) -> float:
        """So many a second, on a chip."""
        return self.count / self.simulation.on(chip).seconds


def resnet(chip: outboard.Chip, batch: int = 256, dtype: torch.dtype = torch.float16, fused: bool = True) -> Workload:
    """ResNet-50's inference, of images of 224 x 224."""
    with torch.device("meta"):
        model, images = resnet50().to(dtype).eval(), torch.empty(batch, 3, 224, 224, dtype=dtype)
    with torch.no_grad():
        return Workload(outboard.simulate(model, [images], chip=chip, fused=fused), batch, "images/s")


def prefill(chip: outboard.Chip, length: int = 2048) -> Workload:
    """A Llama's logits of a prompt in bfloat16."""
    with torch.device("meta"):
        model, tokens = Llama(LLAMA).bfloat16(), torch.empty(1, length, dtype=torch.int64)
    with torch.no_grad():
        return Workload(outboard.simulate(model, [tokens], chip=chip), length, "tokens/s")


def decode(chip: outboard.Chip, batch: int = 1, context: int = 100) -> Workload:
    """A token after so many others, of so many sequences, in bfloat16."""
    with torch.device("meta"):
        model, tokens = Llama(LLAMA).bfloat16(), torch.empty(batch, 1, dtype=torch.int64)
        shape = batch, LLAMA.key_value_heads, context, LLAMA.width // LLAMA.heads
        past = [(torch.empty(shape, dtype=torch.bfloat16),) * 2 for _ in range(LLAMA.layers)]
    with torch.no_grad():
        return Workload(outboard.simulate(model, [tokens, past], chip=chip), batch, "tokens/s")


def variants(chip: outboard.Chip) -> Iterator[tuple[float, float, outboard.Chip]]:
    """Factors of bandwidth and of arithmetic, and the chip that has them."""
    for bandwidth in FACTORS:
        for arithmetic in FACTORS:
            flops = {dtype: arithmetic * peak for dtype, peak in chip.flops.items()}
            yield bandwidth, arithmetic, dataclasses.replace(chip, bandwidth=bandwidth * chip.bandwidth, flops=flops)


def table(workload: Workload, chip: outboard.Chip) -> str:
    """Rates: a row for each bandwidth, a column for each factor of arithmetic."""
    rates = {(bandwidth, arithmetic): workload.rate(variant) for bandwidth, arithmetic, variant in variants(chip)}
    lines = ["| bandwidth | " + " | ".join(f"arithmetic x {factor:g}" for factor in FACTORS) + " |"]
    lines.append("|---" * (len(FACTORS) + 1) + "|")
    for bandwidth in FACTORS:
        cells = " | ".join(f"{rates[bandwidth, arithmetic]:,.0f}" for arithmetic in FACTORS)
        lines.append(f"| x {bandwidth:g} ({bandwidth * chip.bandwidth / 1e9:,.0f} GB/s) | {cells} |")
    return "\n".join(lines)


def draw(workloads: dict[str, Workload], chip: outboard.Chip, path: Path) -> None:
    """A panel for each workload, a line for each factor of arithmetic, over the bandwidth."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(workloads), figsize=(4 * len(workloads), 4), layout="constrained")
    for axis, (name, workload) in zip(axes, workloads.items(), strict=True):
        for factor in FACTORS:
            found = [(one.bandwidth / 1e9, workload.rate(one)) for _, each, one in variants(chip) if each == factor]
            axis.loglog(*zip(*found, strict=True), marker="o", label=f"arithmetic x {factor:g}")
        axis.set_title(name.replace(", ", ",\n", 1), fontsize=9)
        axis.set_xticks([factor * chip.bandwidth / 1e9 for factor in FACTORS])
        axis.xaxis.set_major_formatter("{x:,.0f}")
        axis.minorticks_off()
        axis.set_xlabel("GB/s")
        axis.set_ylabel(workload.unit)
    axes[0].legend(fontsize=8)
    figure.suptitle(chip.name, fontsize=10)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


@dataclass(frozen=True)
class Published:
    """What others measured."""

    chip: str
    what: str
    workload: Callable[[outboard.Chip], Workload]
    rate: float
    source: str


_NVIDIA = "github.com/NVIDIA/DeepLearningExamples, ResNet-50 v1.5 for PyTorch, inference on DGX-1; not compiled"
_GPT_FAST = "github.com/pytorch-labs/gpt-fast, README"
PUBLISHED = (
    Published(
        "v100", "ResNet-50, 256 images, float32", lambda c: resnet(c, dtype=torch.float32, fused=False), 1261, _NVIDIA
    ),
    Published("v100", "ResNet-50, 256 images, mixed", lambda c: resnet(c, fused=False), 3382, _NVIDIA),
    Published("a100", "Llama 2 7B decode, batch 1", decode, 104.9, f"{_GPT_FAST}; limited to 330 W"),
    Published("mi250x", "Llama 2 7B decode, batch 1", decode, 76.33, _GPT_FAST),
)


def comparison(published: Sequence[Published] = PUBLISHED) -> str:
    """A row for each published number: what is predicted of the specification alone, and how much that is beside it."""
    lines = ["| chip | what | published | predicted | deviation | source |", "|---|---|---|---|---|---|"]
    for one in published:
        chip = outboard.Chip.known(one.chip)
        workload = one.workload(chip)
        rate = workload.rate(chip)
        lines.append(
            f"| {chip.name} | {one.what} | {one.rate:,.0f} {workload.unit} | {rate:,.0f} | {rate / one.rate - 1:+.0%} "
            f"| {one.source} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Prints tables and draws them."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument(
        "--chip", default="a100", help="a100, h100, mi250x, tpu-v5e, v100, or a TOML file (%(default)s)"
    )
    parser.add_argument("--output", type=Path, default=Path("out"), help="folder of the picture (%(default)s)")
    options = parser.parse_args()
    chip = outboard.Chip.load(options.chip) if Path(options.chip).is_file() else outboard.Chip.known(options.chip)
    workloads = {
        "ResNet-50 inference, 256 images, float16": resnet(chip),
        "Llama 7B, prompt of 2048 tokens, bfloat16": prefill(chip),
        "Llama 7B, next token of 8 sequences of 1000, bfloat16": decode(chip, batch=8, context=1000),
    }
    for name, workload in workloads.items():
        print(f"{chip.name}: {name}, {workload.unit}\n\n{table(workload, chip)}\n")
    draw(workloads, chip, options.output / "chip.png")
    print(f"{options.output / 'chip.png'}\n\nPublished numbers, and what is predicted of specifications:\n")
    print(comparison())


if __name__ == "__main__":
    main()
