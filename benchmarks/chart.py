# SPDX-License-Identifier: Apache-2.0
"""The picture of a run: each way's time relative to CPU eager."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.engine import CPU_EAGER
from benchmarks.results import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Where bars are cut off: one slow operator must not squeeze the others.
LONGEST = 4.0


def draw(rows: Sequence[Row], title: str, path: Path) -> None:
    """Writes a PNG with one panel for each section and one group of bars for each workload; shorter is faster.

    Rows that failed or are wrong are named and have no bar.
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    shown = [row for row in rows if row.way != CPU_EAGER]
    colors = {way: f"C{index}" for index, way in enumerate(_distinct(row.way for row in shown))}
    sections = _distinct(row.section for row in shown)
    panels = {section: [row for row in shown if row.section == section] for section in sections}
    heights = [len(_distinct(row.workload for row in panel)) + 1 for panel in panels.values()]
    figure = Figure(figsize=(9, 1.5 + 0.45 * sum(heights)), layout="constrained")
    figure.suptitle(title, fontsize=9)
    axes = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axis, (section, panel) in zip(axes, panels.items(), strict=True):
        _panel(axis, panel, colors)
        axis.set_title(section, fontsize=9, loc="left")
    axes[-1].set_xlabel("time relative to CPU eager: shorter is faster", fontsize=8)
    legend = [Patch(color=color, label=way) for way, color in colors.items()]
    figure.legend(handles=legend, loc="outside lower center", ncols=len(legend), fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)


def _panel(axis: Axes, rows: Sequence[Row], colors: dict[str, str]) -> None:
    workloads, ways = _distinct(row.workload for row in rows), _distinct(row.way for row in rows)
    thickness = 0.8 / len(ways)
    for row in rows:
        y = workloads.index(row.workload) + (ways.index(row.way) - (len(ways) - 1) / 2) * thickness
        ratio = row.ratios.get(CPU_EAGER, 0.0)
        axis.barh(y, ratio, thickness, color=colors[row.way])
        text = f" {ratio:.2f}" if ratio else f" {row.way}: {row.status}"
        axis.text(min(ratio, LONGEST), y, text, va="center", fontsize=6)
    longest = max((row.ratios.get(CPU_EAGER, 0.0) for row in rows), default=0.0)
    axis.set_xlim(0, min(max(longest * 1.1, 1.5), LONGEST * 1.08))
    axis.axvline(1.0, color="black", linewidth=0.8)
    axis.set_yticks(range(len(workloads)), workloads, fontsize=7)
    axis.invert_yaxis()
    axis.tick_params(axis="x", labelsize=7)


def _distinct(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))
