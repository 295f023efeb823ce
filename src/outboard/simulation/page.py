# SPDX-License-Identifier: Apache-2.0
"""A simulation as one HTML file that needs nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from outboard.reporting import quantities
from outboard.reporting.html import WIDTH, cell, document, memory_chart, summary, table

if TYPE_CHECKING:
    from outboard.simulation.timeline import Timed, Timeline

#: Rows of the table of steps.
_ROWS = 40
#: Height of an engine's row in the timeline.
_ROW = 26
#: Places in a row that tell one step from another; shorter ones are drawn together.
_PLACES = 960


def render(timeline: Timeline) -> str:
    """The page's text."""
    sections = [_summary(timeline), _timeline(timeline), _steps(timeline), _memory(timeline)]
    return document("Simulation", timeline.chip.name, sections)


def _summary(timeline: Timeline) -> str:
    whole = timeline.seconds
    bound = {kind: sum(one.seconds for one in timeline.steps if one.bound == kind) for kind in _bounds(timeline)}
    entries = {
        "time": quantities.seconds(whole),
        "steps": f"{len(timeline.steps)}",
        "operations": f"{timeline.flops / 1e9:.4g} G",
        "moved": quantities.size(timeline.moved),
        "memory, at most": quantities.size(timeline.peak_memory),
    }
    entries |= {f"{name} in use": quantities.percent(part, 1.0) for name, part in timeline.utilisation.items()}
    entries |= {f"{name} busy": quantities.percent(timeline.busy(name), whole) for name in _engines(timeline)}
    entries |= {f"bound by {name}": quantities.percent(seconds, whole) for name, seconds in bound.items()}
    return summary(entries)


def _engines(timeline: Timeline) -> list[str]:
    return list(dict.fromkeys(one.step.engine for one in timeline.steps))


def _bounds(timeline: Timeline) -> list[str]:
    return list(dict.fromkeys(one.bound for one in timeline.steps))


def _timeline(timeline: Timeline) -> str:
    whole = timeline.seconds or 1.0
    names = _engines(timeline)
    rows = []
    for place, name in enumerate(names):
        own = [one for one in timeline.steps if one.step.engine == name]
        rows.append(f'<text x="-8" y="{place * _ROW + 15}" text-anchor="end">{escape(name)}</text>')
        rows += [_mark(marked, begin, end, whole, place) for marked, begin, end in _visible(own, whole)]
    height = len(names) * _ROW
    return (
        f'<h2>Timeline</h2>\n<svg id="timeline" viewBox="-70 0 {WIDTH + 80} {height + 20}" role="img" '
        f'aria-label="engines over time">{"".join(rows)}<text x="0" y="{height + 14}">0</text>'
        f'<text x="{WIDTH}" y="{height + 14}" text-anchor="end">{escape(quantities.seconds(whole))}</text></svg>'
    )


def _visible(steps: Sequence[Timed], whole: float) -> list[tuple[str, float, float]]:
    """Names and times of an engine's steps; those that begin in one place of the row are one."""
    found: dict[int, tuple[str, float, float]] = {}
    for one in steps:
        place = int(one.begin / whole * _PLACES)
        if place in found:
            name, begin, _ = found[place]
            found[place] = name if name.endswith(", ...") else f"{name}, ...", begin, one.end
        else:
            found[place] = one.step.name, one.begin, one.end
    return list(found.values())


def _mark(name: str, begin: float, end: float, whole: float, place: int) -> str:
    left, width = begin / whole * WIDTH, max(0.3, (end - begin) / whole * WIDTH)
    shade = "var(--bar)" if int(left) % 2 else "var(--floor)"
    return (
        f'<rect x="{left:.1f}" y="{place * _ROW}" width="{width:.1f}" height="{_ROW - 4}" fill="{shade}">'
        f"<title>{escape(name)}: {escape(quantities.seconds(end - begin))}</title></rect>"
    )


def _steps(timeline: Timeline) -> str:
    found = timeline.by_operators()
    rows = [
        [
            f'<td class="name">{escape(name)}</td>',
            cell(f"{count}"),
            cell(quantities.seconds(seconds)),
            cell(quantities.percent(seconds, timeline.seconds)),
            cell(quantities.seconds(seconds / count)),
        ]
        for name, count, seconds in found[:_ROWS]
    ]
    rest = found[_ROWS:]
    note = f"<p>and {len(rest)} more, {quantities.seconds(sum(seconds for *_, seconds in rest))}.</p>" if rest else ""
    return "<h2>Steps</h2>\n" + table("steps", ["step", "times", "time", "share", "each"], rows) + note


def _memory(timeline: Timeline) -> str:
    chart = memory_chart(timeline.memory, timeline.seconds or 1.0, timeline.peak_memory or 1)
    limit = timeline.chip.memory
    has = "" if limit == float("inf") else f"; the chip has {escape(quantities.size(limit))}"
    return f"<h2>Memory</h2>\n{chart}<p>At most {escape(quantities.size(timeline.peak_memory))} in use{has}.</p>"
