# SPDX-License-Identifier: Apache-2.0
"""The picture of a run: each way's time relative to CPU eager."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.engine import CPU_EAGER
from benchmarks.results import Row

# Where bars are cut off: one slow operator must not squeeze the others.
LONGEST = 4.0


def draw(rows: Sequence[Row], title: str, path: Path) -> None:
    """Writes a PNG with one panel for each section and one group of bars for each workload; shorter is faster.

    Rows that failed or are wrong are named and have no bar.
    """
    from matplotlib.figure import Figure

    shown = [row for row in rows if row.way != CPU_EAGER]
    sections = list(dict.fromkeys(row.section for row in shown))
    ways = list(dict.fromkeys(row.way for row in shown))
    heights = [len({row.workload for row in shown if row.section == section}) + 1 for section in sections]
    figure = Figure(figsize=(9, 1.5 + 0.45 * sum(heights)), layout="constrained")
    figure.suptitle(title, fontsize=9)
    panels = figure.subplots(len(sections), 1, squeeze=False, height_ratios=heights)[:, 0]
    for panel, section in zip(panels, sections, strict=True):
        _panel(panel, [row for row in shown if row.section == section], ways, section)
    panels[0].legend(fontsize=8)
    panels[-1].set_xlabel("time relative to CPU eager: shorter is faster", fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)


def _panel(panel, rows: Sequence[Row], ways: Sequence[str], section: str) -> None:  # type: ignore[no-untyped-def]
    workloads = list(dict.fromkeys(row.workload for row in rows))
    thickness = 0.8 / len(ways)
    for index, way in enumerate(ways):
        mine = {row.workload: row for row in rows if row.way == way}
        for place, workload in enumerate(workloads):
            if workload not in mine:
                continue
            row, y = mine[workload], place + (index - (len(ways) - 1) / 2) * thickness
            ratio = row.ratios.get(CPU_EAGER, 0.0)
            panel.barh(y, ratio, thickness, color=f"C{index}")
            text = f" {ratio:.2f}" if ratio else f" {way}: {row.status}"
            panel.text(min(ratio, LONGEST), y, text, va="center", fontsize=6)
        panel.barh(0, 0, color=f"C{index}", label=way)
    longest = max((row.ratios.get(CPU_EAGER, 0.0) for row in rows), default=0.0)
    panel.set_xlim(0, min(max(longest * 1.1, 1.5), LONGEST * 1.08))
    panel.axvline(1.0, color="black", linewidth=0.8)
    panel.set_yticks(range(len(workloads)), workloads, fontsize=7)
    panel.invert_yaxis()
    panel.set_title(section, fontsize=9, loc="left")
    panel.tick_params(axis="x", labelsize=7)
