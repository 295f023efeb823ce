# SPDX-License-Identifier: Apache-2.0
"""What a run found, as text, as JSON and as a page."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from outboard_conformance.runner import Result

_COLOURS = {"kept": "#1a7f37", "not applicable": "#6e7781"}
_PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>Conformance of {name}</title><style>
body {{ font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem; color: #1f2328; }}
table {{ border-collapse: collapse; width: 100%; }} td, th {{ text-align: left; vertical-align: top; padding: .3rem
.6rem; border-bottom: 1px solid #d0d7de; }} pre {{ white-space: pre-wrap; margin: 0; }} code {{ font-size: 13px; }}
</style></head><body><h1>Conformance of {name}</h1><p>{driver}</p><p><strong>{summary}</strong></p>
<table><thead><tr><th>Clause</th><th>Level</th><th>driver.h says</th><th>Outcome</th></tr></thead><tbody>
{rows}
</tbody></table></body></html>
"""


def line(result: Result) -> str:
    """One result, for a terminal."""
    text = f"{result.outcome:>14}  {result.level:<9} {result.name} ({result.seconds:.2f} s)"
    if result.is_good:
        return text + (f": {result.text}" if result.text else "")
    details = "".join(f"\n{'':16}{each}" for each in result.text.splitlines())
    return f"{text}\n{'':16}driver.h: {result.says}{details}"


def summary(results: Sequence[Result]) -> str:
    """How many clauses had which outcome."""
    counts = Counter(result.outcome for result in results)
    order = ("kept", "broken", "crashed", "hung", "not applicable")
    return ", ".join(f"{counts[each]} {each}" for each in order if counts[each]) or "no clauses"


def write_json(path: Path, driver: str, device: dict[str, Any], results: Sequence[Result]) -> None:
    """Writes a run so that a later one can go on from it, though this one be killed while it writes."""
    found = {"driver": driver, "device": device, "results": [dataclasses.asdict(each) for each in results]}
    unfinished = path.with_name(f"{path.name}.unfinished")
    unfinished.write_text(json.dumps(found, indent=1) + "\n")
    unfinished.replace(path)


def read_json(path: Path, driver: str, device: dict[str, Any]) -> list[Result]:
    """The results of an earlier run. Raises ValueError if it was of another driver or device, or is no such file."""
    try:
        found = json.loads(path.read_text())
        of, results = (found["driver"], found["device"]), [Result(**each) for each in found["results"]]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} holds no results of this command; remove it, or name another one") from error
    if of != (driver, device):
        raise ValueError(f"{path} is of another driver or device: {of[0]}")
    return results


def write_html(path: Path, driver: str, device: dict[str, Any], results: Sequence[Result]) -> None:
    """Writes a page that needs nothing but itself."""
    rows = "\n".join(_row(each) for each in sorted(results, key=lambda each: each.is_good))
    name = escape(str(device.get("name", "a device")))
    page = _PAGE.format(name=name, driver=escape(driver), summary=escape(summary(results)), rows=rows)
    path.write_text(page, encoding="utf-8")


def _row(result: Result) -> str:
    colour = _COLOURS.get(result.outcome, "#cf222e")
    text = f"<pre>{escape(result.text)}</pre>" if result.text else ""
    return (
        f"<tr><td><code>{escape(result.name)}</code></td><td>{result.level}</td><td>{escape(result.says)}</td>"
        f'<td><strong style="color:{colour}">{result.outcome}</strong>{text}</td></tr>'
    )
