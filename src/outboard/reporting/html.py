# SPDX-License-Identifier: Apache-2.0
"""What pages are made of: one HTML file that needs nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape

from outboard.reporting import quantities

#: Points of the chart of memory.
_POINTS = 600
WIDTH, _HEIGHT = 960, 220

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --bar: #4a7ebb; --floor: #e0a030; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; margin-bottom: 0; } h2 { font-size: 1.1rem; margin-top: 2.2rem; }
code, td.name { font-family: ui-monospace, monospace; font-size: .88em; overflow-wrap: anywhere; }
table { border-collapse: collapse; width: 100%; } th, td { text-align: right; padding: .2rem .6rem; }
th { font-weight: 600; border-bottom: 1px solid var(--line); } tr + tr td { border-top: 1px solid var(--line); }
td { white-space: nowrap; } td.name, td.text { white-space: normal; }
th:first-child, td:first-child, td.text, th.text { text-align: left; }
td.bar { width: 22%; } .bar div { height: .8em; background: var(--bar); position: relative; }
.bar i { position: absolute; inset: 0 auto 0 0; background: var(--floor); }
dl { display: grid; grid-template-columns: repeat(auto-fit, minmax(11rem, 1fr)); gap: .6rem 1.2rem; }
dt { opacity: .7; font-size: .85em; } dd { margin: 0; font-size: 1.25rem; }
svg { width: 100%; height: auto; } svg text { font-size: 12px; fill: currentColor; } .note { opacity: .75; }
"""


def document(title: str, subtitle: str, sections: Iterable[str]) -> str:
    """A page with a headline and a line below it."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Outboard: {escape(title)}</title><style>{_STYLE}</style></head>\n<body>\n"
        f"<h1>{escape(title)}</h1>\n<p>{escape(subtitle)}</p>\n" + "\n".join(sections) + "\n</body></html>\n"
    )


def summary(entries: Mapping[str, str]) -> str:
    """Numbers with their names."""
    cells = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in entries.items())
    return f'<dl id="summary">{cells}</dl>\n'


def table(name: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Rows of cells, which are HTML, below titles."""
    titles = "".join(
        f'<th class="text">{escape(title)}</th>'
        if title in ("operators", "what", "why", "where")
        else f"<th>{escape(title)}</th>"
        for title in head
    )
    body = "\n".join("<tr>" + "".join(row) + "</tr>" for row in rows)
    return f'<table id="{name}"><thead><tr>{titles}</tr></thead>\n<tbody>{body}</tbody></table>\n'


def cell(text: str) -> str:
    """A cell with a number."""
    return f"<td>{escape(text)}</td>"


def memory_chart(changes: Sequence[tuple[float, int]], last: float, highest: int) -> str:
    """The memory in use over time: of several changes that share a point, the highest.

    Args:
        changes: seconds, and bytes in use from then on.
        last: seconds at the right end.
        highest: bytes at the top.
    """
    points: dict[int, int] = {}
    level = 0
    for moment, size in changes:
        place = int(min(max(0.0, moment) / last, 1.0) * _POINTS)
        points[place] = max(points.get(place, size), size)
        level = size
    steps, before = [], 0
    for place in sorted(points):
        x, y = place / _POINTS * WIDTH, _HEIGHT * (1 - points[place] / highest)
        steps.append(f"{x:.1f},{_HEIGHT * (1 - before / highest):.1f} {x:.1f},{y:.1f}")
        before = points[place]
    line = " ".join([f"0,{_HEIGHT}", *steps, f"{WIDTH},{_HEIGHT * (1 - level / highest):.1f}"])
    return (
        f'<svg id="memory" viewBox="-70 -10 {WIDTH + 80} {_HEIGHT + 40}" role="img" '
        f'aria-label="memory in use over time">'
        f'<polyline points="{line} {WIDTH},{_HEIGHT}" fill="var(--bar)" fill-opacity=".35" stroke="var(--bar)"/>'
        f'<line x1="0" y1="{_HEIGHT}" x2="{WIDTH}" y2="{_HEIGHT}" stroke="currentColor"/>'
        f'<text x="-8" y="10" text-anchor="end">{escape(quantities.size(highest))}</text>'
        f'<text x="-8" y="{_HEIGHT}" text-anchor="end">0</text>'
        f'<text x="0" y="{_HEIGHT + 20}">0</text>'
        f'<text x="{WIDTH}" y="{_HEIGHT + 20}" text-anchor="end">{escape(quantities.seconds(last))}</text></svg>'
    )
