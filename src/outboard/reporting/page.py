# SPDX-License-Identifier: Apache-2.0
"""A report as one HTML file that needs nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from outboard.reporting import quantities
from outboard.reporting.findings import ADVICE, Finding
from outboard.reporting.html import cell, document, memory_chart, summary, table
from outboard.reporting.recording import KernelTime, OperatorTime, Report

#: Rows of a table; the rest is summed up in a last one.
_ROWS = 30


def render(report: Report) -> str:
    """The page's text."""
    sections = [_summary(report), _findings(report), _operators(report), _kernels(report), _fallbacks(report)]
    sections += [_compiling(report), _memory(report)]
    return document(report.command, report.device, sections)


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
    roof = ""
    if report.roof is not None:
        peaks = ", ".join(f"{peak / 1e9:.0f} GFLOP/s in {str(d)[6:]}" for d, peak in report.roof.peaks.items())
        roof = (
            '<p class="note">The floor of an operator is the least time that its tensors and its arithmetic take on '
            f"this device, which copies {report.roof.bandwidth / 1e9:.1f} GB/s and multiplies matrices at {peaks} "
            "(measured before the program ran).</p>"
        )
    return summary(entries) + roof


def _operators(report: Report) -> str:
    total = sum(one.on_device for one in report.operators)
    longest = max((one.on_device for one in report.operators), default=0.0)
    rows = [
        [
            f'<td class="name">{escape(one.name)}</td>',
            cell(f"{one.calls}"),
            cell(quantities.seconds(one.on_device)),
            cell(quantities.percent(one.on_device, total)),
            _bar(one, longest),
            cell("?" if one.floor is None else quantities.seconds(one.floor)),
            cell(_times(one)),
            cell(quantities.seconds(one.on_host)),
        ]
        for one in report.operators[:_ROWS]
    ]
    head = ["operator", "calls", "device", "share", "", "floor", "device / floor", "host"]
    rest = report.operators[_ROWS:]
    note = f"<p>and {len(rest)} more, {quantities.seconds(sum(one.on_device for one in rest))}.</p>" if rest else ""
    return f"<h2>Operators</h2>\n{table('operators', head, rows)}{note}"


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
            cell(f"{one.launches}"),
            cell(quantities.seconds(one.on_device)),
            cell(quantities.percent(one.on_device, total)),
            cell(quantities.seconds(one.on_device / max(1, one.launches))),
            f'<td class="text name">{escape(", ".join(sorted(one.operators)[:4]))}</td>',
        ]
        for one in kernels[:_ROWS]
    ]
    rest = kernels[_ROWS:]
    note = f"<p>and {len(rest)} more, {quantities.seconds(sum(one.on_device for one in rest))}.</p>" if rest else ""
    return table(name, ["kernel", "launches", "device", "share", "each", "operators"], rows) + note


def _findings(report: Report) -> str:
    if not report.findings:
        return '<h2>What hurt</h2>\n<p id="findings">Nothing.</p>'
    rows = [
        [
            f'<td class="text">{escape(one.kind)}</td>',
            f'<td class="name">{escape(one.what)}</td>',
            cell(f"{one.count}"),
            cell(quantities.seconds(one.seconds)),
            _where(one),
        ]
        for one in report.findings[:_ROWS]
    ]
    rest = report.findings[_ROWS:]
    note = f"<p>and {len(rest)} more, {quantities.seconds(sum(one.seconds for one in rest))}.</p>" if rest else ""
    kinds = dict.fromkeys(one.kind for one in report.findings)
    advice = "".join(f"<li>{escape(kind)}: {escape(ADVICE[kind])}</li>" for kind in kinds)
    found = table("findings", ["kind", "what", "times", "time", "where"], rows)
    return f"<h2>What hurt</h2>\n{found}{note}<ul>{advice}</ul>"


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
            cell(f"{one.count}"),
            f'<td class="text">{escape(one.cause)}</td>',
            _where(one),
        ]
        for one in fallbacks[:_ROWS]
    ]
    return "<h2>On the CPU</h2>\n" + table("fallbacks", ["operator", "calls", "why", "where"], rows)


def _on_cpu(report: Report) -> list[Finding]:
    return [finding for finding in report.findings if finding.kind == "fallback"]


def _compiling(report: Report) -> str:
    if not report.compiling:
        return '<h2>Compiling</h2>\n<p id="compiling">Nothing: all was in memory or in the cache.</p>'
    rows = [
        [f'<td class="name">{escape(name)}</td>', cell(f"{count}"), cell(quantities.seconds(seconds))]
        for name, count, seconds in report.compiling[:_ROWS]
    ]
    return "<h2>Compiling</h2>\n" + table("compiling", ["operator", "plans", "time"], rows)


def _memory(report: Report) -> str:
    chart = memory_chart(report.memory, report.wall or 1.0, report.peak or 1)
    return (
        f"<h2>Memory</h2>\n{chart}<p>At most {escape(quantities.size(report.peak))} in use; the device has "
        f"{escape(quantities.size(report.memory_limit))}.</p>"
    )


# ---- pieces ----


def _bar(one: OperatorTime, longest: float) -> str:
    if not longest or not one.on_device:
        return '<td class="bar"></td>'
    floor = 0.0 if one.floor is None else 100 * one.floor / one.on_device
    width = 100 * one.on_device / longest
    return f'<td class="bar"><div style="width:{width:.1f}%"><i style="width:{floor:.1f}%"></i></div></td>'


def _times(one: OperatorTime) -> str:
    return "" if not one.floor else f"{one.on_device / one.floor:.1f}"
