# SPDX-License-Identifier: Apache-2.0
"""What a training step of a transformer would take on 8 to 1,024 devices, and how far that prediction can be trusted.

``python -m examples.size_a_cluster --device h100 --layers 32 --width 4096`` predicts the steps of DDP, FSDP2, tensor
parallelism, and FSDP2 with tensor parallelism inside each machine, from data sheets and the costs of collectives
(``costs.py``). It prints a table, draws it into ``out/``, and says what the same model of collectives
makes of the measurements of ``python -m benchmarks.network``: for each number of ranks, predicted from the others.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from . import costs, step_times
from .costs import Cluster, Sample
from .step_times import Step, Transformer

COUNTS = tuple(8 << i for i in range(8))  #: devices, 8 to 1,024
MEASURED = Path(__file__).with_name("measured.json")
#: Bytes of DDP's first bucket, which is small so that sums begin early.
_FIRST_BUCKET = 1 << 20
#: Bytes from which the link takes longer than the processes' turns at the processor.
_LARGE = 256 << 10

Strategy = Callable[[Transformer, Cluster, int], Step]


def strategies(cluster: Cluster) -> dict[str, Strategy]:
    """What is compared. Tensor parallelism alone has one model on all devices and the tokens of one."""
    split = cluster.device.per_machine
    return {
        "DDP": step_times.ddp,
        "FSDP2": step_times.fsdp,
        "TP": step_times.tensor,
        f"FSDP2 x TP {split}": lambda model, on, tokens: step_times.fsdp(model, on, tokens * split, split),
    }


def predict(model: Transformer, device: costs.Device, tokens: int, efficiency: float) -> dict[str, list[Step]]:
    """Steps by strategy, one for each number of devices in ``COUNTS``; ``tokens`` are those of a device."""
    clusters = [Cluster(device, count, efficiency) for count in COUNTS]
    names = strategies(clusters[0])
    return {name: [strategy(model, cluster, tokens) for cluster in clusters] for name, strategy in names.items()}


def rate(name: str, step: Step, count: int, tokens: int) -> float:
    """Tokens a second of all devices together."""
    return (tokens if name == "TP" else tokens * count) / step.seconds


def table(steps: dict[str, list[Step]], device: costs.Device, tokens: int) -> str:
    """Milliseconds of a step, the part of it that waits for others, and millions of tokens a second."""
    lines = ["| devices | " + " | ".join(steps) + " |", "|---" * (len(steps) + 1) + "|"]
    for place, count in enumerate(COUNTS):
        cells = []
        for name, row in steps.items():
            step = row[place]
            waits = 100 * step.exposed / step.seconds
            millions = rate(name, step, count, tokens) / 1e6
            full = "" if step.memory <= device.memory else ", does not fit"
            cells.append(f"{step.seconds * 1e3:,.0f} ms, {waits:.0f} % waits, {millions:.2f} M tokens/s{full}")
        lines.append(f"| {count:,} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def draw(steps: dict[str, list[Step]], device: costs.Device, tokens: int, path: Path) -> None:
    """Step times and tokens a second over the number of devices; hollow where a device's memory is too small."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4.5))
    for name, row in steps.items():
        rates = [rate(name, step, count, tokens) for step, count in zip(row, COUNTS, strict=True)]
        (line,) = left.loglog(COUNTS, [step.seconds for step in row], label=name)
        right.loglog(COUNTS, rates, color=line.get_color(), label=name)
        for axes, values in ((left, [step.seconds for step in row]), (right, rates)):
            for count, value, step in zip(COUNTS, values, row, strict=True):
                fits = line.get_color() if step.memory <= device.memory else "white"
                axes.plot(count, value, "o", color=line.get_color(), markerfacecolor=fits)
    left.set_ylabel("seconds of a step")
    right.set_ylabel("tokens a second")
    for axes in (left, right):
        axes.set_xlabel(f"devices ({device.name})")
        axes.set_xticks(COUNTS, [str(count) for count in COUNTS])
        axes.grid(alpha=0.3)
    left.legend()
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def samples_of(measured: dict[str, Any], collective: str) -> list[Sample]:
    """What was measured of one collective."""
    rows = [row for row in measured["samples"] if row["collective"] == collective]
    return [Sample(row["ranks"], row["bytes"], row["seconds"]) for row in rows]


def held_out(measured: dict[str, Any]) -> dict[tuple[str, int], tuple[costs.Link, dict[int, float]]]:
    """By collective and ranks: the link that the other numbers of ranks give, and its relative error at each size."""
    found = {}
    for collective in costs.ALGORITHMS:
        samples = samples_of(measured, collective)
        for ranks in sorted({sample.ranks for sample in samples}):
            link = costs.fit(collective, [sample for sample in samples if sample.ranks != ranks])
            own = [sample for sample in samples if sample.ranks == ranks]
            errors = costs.errors(collective, link, own)
            found[collective, ranks] = link, {s.size: error for s, error in zip(own, errors, strict=True)}
    return found


def predicted_step(step: dict[str, float], link: costs.Link) -> float:
    """Seconds of a measured step of DDP, from that without sums: the sums of both buckets come on top, since on a link
    of this kind they take far longer than what they could hide behind."""
    ranks, size = int(step["ranks"]), step["bytes"]
    sums = [link.time("all_reduce", ranks, part) for part in (_FIRST_BUCKET, size - _FIRST_BUCKET)]
    return step["alone"] + sum(sums)


def _errors(by_size: dict[int, float]) -> str:
    large = [error for size, error in by_size.items() if size >= _LARGE]
    small = [error for size, error in by_size.items() if size < _LARGE]
    return f"{100 * costs.mean_error(large):.0f} % / {100 * costs.mean_error(small):.0f} %"


def check(measured: dict[str, Any]) -> str:
    """The model's errors where it could be measured, as tables."""
    links = held_out(measured)
    columns = sorted({ranks for _, ranks in links})
    lines = [
        f"Measured on {measured['processor']}, {measured['cores']} cores, links of {measured['rate']}. Mean error of "
        f"predictions from the other numbers of ranks, of {_LARGE:,} bytes and more / of less:\n",
        "| collective | algorithm | " + " | ".join(f"{n} ranks" for n in columns) + " |",
        "|---" * (len(columns) + 2) + "|",
    ]
    for name, algorithm in costs.ALGORITHMS.items():
        cells = [_errors(links[name, n][1]) for n in columns]
        lines.append(f"| {name} | {algorithm.name} | " + " | ".join(cells) + " |")
    lines += ["\n| DDP, ranks | predicted | measured | error |", "|---|---|---|---|"]
    for step in measured["steps"]:
        ranks = int(step["ranks"])
        link = links["all_reduce", ranks][0] if ranks > 1 else costs.Link(0.0, 0.0)
        predicted = predicted_step(step, link)
        error = 100 * (predicted / step["seconds"] - 1)
        lines.append(f"| {ranks} | {predicted * 1e3:.0f} ms | {step['seconds'] * 1e3:.0f} ms | {error:+.0f} % |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=sorted(costs.DEVICES), default="h100")
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--hidden", type=int, default=14336, help="width of the feed-forward")
    parser.add_argument("--vocabulary", type=int, default=128256)
    parser.add_argument("--sequence", type=int, default=8192)
    parser.add_argument("--tokens", type=int, default=8192, help="of each device in a step")
    parser.add_argument("--efficiency", type=float, default=0.5, help="of products, as part of the peak: an assumption")
    parser.add_argument("--measured", type=Path, default=MEASURED, help="what benchmarks.network wrote")
    parser.add_argument("--output", type=Path, default=Path("out/size_a_cluster.png"))
    options = parser.parse_args(arguments)
    model = Transformer(options.layers, options.width, options.hidden, options.vocabulary, options.sequence)
    device = costs.DEVICES[options.device]
    steps = predict(model, device, options.tokens, options.efficiency)
    print(f"{model.parameters / 1e9:.1f} billion parameters on {device.name} ({device.source})\n")
    print(table(steps, device, options.tokens))
    draw(steps, device, options.tokens, options.output)
    print(f"\nDrawn in {options.output}\n\n{check(json.loads(options.measured.read_text()))}")


if __name__ == "__main__":
    main()
