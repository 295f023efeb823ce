# SPDX-License-Identifier: Apache-2.0
"""A report as one HTML file that needs nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from outboard.reporting import quantities
from outboard.reporting.findings import ADVICE, Finding
from outboard.reporting.recording import KernelTime, OperatorTime, Report

#: Rows of a table; the rest is summed up in a last one.
_ROWS = 30
#: Points of the chart of memory.
_POINTS = 600
_WIDTH, _HEIGHT = 960, 220

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


def render(report: Report) -> str:
    """The page's text."""
    sections = [_summary(report), _findings(report), _operators(report), _kernels(report), _fallbacks(report)]
    sections += [_compiling(report), _memory(report)]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Outboard: {escape(report.command)}</title><style>{_STYLE}</style></head>\n<body>\n"
        f"<h1>{escape(report.command)}</h1>\n<p>{escape(report.device)}</p>\n"
        + "\n".join(sections)
        + "\n</body></html>\n"
    )


def _summary(report: Report) -> str:
    stats = report.compile_stats
    compiled = f"{stats.get('compiled', 0):.0f} plans, {stats.get('programs_built', 0):.0f} programs"
    entries = {
        "wall time": quantities.seconds(report.wall),
        "device busy": f"{quantities.seconds(report.busy)} ({quantities.percent(report.busy, report.wall)})",
        "compiled": f"{compiled}, {quantities.seconds(sum(seconds for _, _, seconds in report.compiling))}",
        "on the CPU": f"{sum(one.count for one in _on_cpu(report))} calls",
        "memory, at most": quantities.size(report.peak),
        "exit code": str(report.exit_code),
    }
    cells = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in entries.items())
    roof = ""
    if report.roof is not None:
        peaks = ", ".join(f"{peak / 1e9:.0f} GFLOP/s in {str(d)[6:]}" for d, peak in report.roof.peaks.items())
        roof = (
            '<p class="note">The floor of an operator is the least time that its tensors and its arithmetic take on '
            f"this device, which copies {report.roof.bandwidth / 1e9:.1f} GB/s and multiplies matrices at {peaks} "
            "(measured before the program ran).</p>"
        )
    return f'<dl id="summary">{cells}</dl>\n{roof}'


def _operators(report: Report) -> str:
    total = sum(one.on_device for one in report.operators)
    longest = max((one.on_device for one in report.operators), default=0.0)
    rows = [
        [
            f'<td class="name">{escape(one.name)}</td>',
            _cell(f"{one.calls}"),
            _cell(quantities.seconds(one.on_device)),
            _cell(quantities.percent(one.on_device, total)),
            _bar(one, longest),
            _cell("?" if one.floor is None else quantities.seconds(one.floor)),
            _cell(_times(one)),
            _cell(quantities.seconds(one.on_host)),
        ]
        for one in report.operators[:_ROWS]
    ]
    head = ["operator", "calls", "device", "share", "", "floor", "device / floor", "host"]
    rest = report.operators[_ROWS:]
    note = f"<p>and {len(rest)} more, {quantities.seconds(sum(one.on_device for one in rest))}.</p>" if rest else ""
    return f"<h2>Operators</h2>\n{_table('operators', head, rows)}{note}"


def _kernels(report: Report) -> str:
    text = "<h2>Kernels</h2>\n" + _kernel_table("kernels", report.kernels)
    if report.moves:
        text += "<h2>Copies and fills</h2>\n" + _kernel_table("moves", report.moves)
    return text


def _kernel_table(name: str, kernels: Sequence[KernelTime]) -> str:
    total = sum(one.on_device for one in kernels)
    rows = [
        [
            f'<td class="name">{escape(one.name)}</td>',
            _cell(f"{one.launches}"),
            _cell(quantities.seconds(one.on_device)),
            _cell(quantities.percent(one.on_device, total)),
            _cell(quantities.seconds(one.on_device / max(1, one.launches))),
            f'<td class="text name">{escape(", ".join(sorted(one.operators)[:4]))}</td>',
        ]
        for one in kernels[:_ROWS]
    ]
    rest = kernels[_ROWS:]
    note = f"<p>and {len(rest)} more, {quantities.seconds(sum(one.on_device for one in rest))}.</p>" if rest else ""
    return _table(name, ["kernel", "launches", "device", "share", "each", "operators"], rows) + note


def _findings(report: Report) -> str:
    if not report.findings:
        return '<h2>What hurt</h2>\n<p id="findings">Nothing.</p>'
    rows = [
        [
            f'<td class="text">{escape(one.kind)}</td>',
            f'<td class="name">{escape(one.what)}</td>',
            _cell(f"{one.count}"),
            _cell(quantities.seconds(one.seconds)),
            _where(one),
        ]
        for one in report.findings[:_ROWS]
    ]
    rest = report.findings[_ROWS:]
    note = f"<p>and {len(rest)} more, {quantities.seconds(sum(one.seconds for one in rest))}.</p>" if rest else ""
    kinds = dict.fromkeys(one.kind for one in report.findings)
    advice = "".join(f"<li>{escape(kind)}: {escape(ADVICE[kind])}</li>" for kind in kinds)
    table = _table("findings", ["kind", "what", "times", "time", "where"], rows)
    return f"<h2>What hurt</h2>\n{table}{note}<ul>{advice}</ul>"


def _where(finding: Finding) -> str:
    if finding.place is None:
        return '<td class="text"></td>'
    return f'<td class="text"><code>{escape(str(finding.place))}<br>{escape(finding.place.text)}</code></td>'


def _fallbacks(report: Report) -> str:
    fallbacks = _on_cpu(report)
    if not fallbacks:
        return '<h2>On the CPU</h2>\n<p id="fallbacks">Nothing: every operator ran on the device.</p>'
    rows = [
        [
            f'<td class="name">{escape(one.what)}</td>',
            _cell(f"{one.count}"),
            f'<td class="text">{escape(one.cause)}</td>',
            _where(one),
        ]
        for one in fallbacks[:_ROWS]
    ]
    return "<h2>On the CPU</h2>\n" + _table("fallbacks", ["operator", "calls", "why", "where"], rows)


def _on_cpu(report: Report) -> list[Finding]:
    return [finding for finding in report.findings if finding.kind == "fallback"]


def _compiling(report: Report) -> str:
    if not report.compiling:
        return '<h2>Compiling</h2>\n<p id="compiling">Nothing: all was in memory or in the cache.</p>'
    rows = [
        [f'<td class="name">{escape(name)}</td>', _cell(f"{count}"), _cell(quantities.seconds(seconds))]
        for name, count, seconds in report.compiling[:_ROWS]
    ]
    return "<h2>Compiling</h2>\n" + _table("compiling", ["operator", "plans", "time"], rows)


def _memory(report: Report) -> str:
    """A chart of the memory in use: of several changes that share a point, the highest."""
    last = report.wall or 1.0
    highest = report.peak or 1
    points: dict[int, int] = {}
    level = 0
    for moment, size in report.memory:
        place = int(min(max(0.0, moment) / last, 1.0) * _POINTS)
        points[place] = max(points.get(place, size), size)
        level = size
    steps, before = [], 0
    for place in sorted(points):
        x, y = place / _POINTS * _WIDTH, _HEIGHT * (1 - points[place] / highest)
        steps.append(f"{x:.1f},{_HEIGHT * (1 - before / highest):.1f} {x:.1f},{y:.1f}")
        before = points[place]
    line = " ".join([f"0,{_HEIGHT}", *steps, f"{_WIDTH},{_HEIGHT * (1 - level / highest):.1f}"])
    chart = (
        f'<svg id="memory" viewBox="-70 -10 {_WIDTH + 80} {_HEIGHT + 40}" role="img" '
        f'aria-label="memory in use over time">'
        f'<polyline points="{line} {_WIDTH},{_HEIGHT}" fill="var(--bar)" fill-opacity=".35" stroke="var(--bar)"/>'
        f'<line x1="0" y1="{_HEIGHT}" x2="{_WIDTH}" y2="{_HEIGHT}" stroke="currentColor"/>'
        f'<text x="-8" y="10" text-anchor="end">{escape(quantities.size(highest))}</text>'
        f'<text x="-8" y="{_HEIGHT}" text-anchor="end">0</text>'
        f'<text x="0" y="{_HEIGHT + 20}">0</text>'
        f'<text x="{_WIDTH}" y="{_HEIGHT + 20}" text-anchor="end">{escape(quantities.seconds(last))}</text></svg>'
    )
    return (
        f"<h2>Memory</h2>\n{chart}<p>At most {escape(quantities.size(report.peak))} in use; the device has "
        f"{escape(quantities.size(report.memory_limit))}.</p>"
    )


# ---- pieces ----


def _table(name: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    titles = "".join(
        f'<th class="text">{escape(title)}</th>'
        if title in ("operators", "what", "why", "where")
        else f"<th>{escape(title)}</th>"
        for title in head
    )
    body = "\n".join("<tr>" + "".join(row) + "</tr>" for row in rows)
    return f'<table id="{name}"><thead><tr>{titles}</tr></thead>\n<tbody>{body}</tbody></table>\n'


def _cell(text: str) -> str:
    return f"<td>{escape(text)}</td>"


def _bar(one: OperatorTime, longest: float) -> str:
    if not longest or not one.on_device:
        return '<td class="bar"></td>'
    floor = 0.0 if one.floor is None else 100 * one.floor / one.on_device
    width = 100 * one.on_device / longest
    return f'<td class="bar"><div style="width:{width:.1f}%"><i style="width:{floor:.1f}%"></i></div></td>'


def _times(one: OperatorTime) -> str:
    return "" if not one.floor else f"{one.on_device / one.floor:.1f}"
