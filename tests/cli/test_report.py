# SPDX-License-Identifier: Apache-2.0
"""``outboard report``: a page about what a program did."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import textwrap
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import profile
from torch.utils.flop_counter import FlopCounterMode

from outboard.reporting import roofline
from tests.cli.test_cli import outboard

PROGRAM = """
import sys
import torch

model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.Linear(128, 4)).to("ocl")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(32, 64).to("ocl")
compiled = torch.compile(lambda value: value.sin() * 2)


def spectrum(value):
    return torch.linalg.eigvalsh(value @ value.T)


for _ in range(3):
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
    compiled(x)
spectrum(x)
big = torch.ones(1 << 20, device="ocl") + 1
print("printed", sys.argv[1:], "<b>", big[0].item())
sys.exit(3)
"""

_VOID = {"meta", "br", "line", "polyline"}


class Page(HTMLParser):
    """The cells of a page's tables by the table's id; every tag has to be closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.table = ""
        self.tables: dict[str, list[list[str]]] = {}
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        name = dict(attrs).get("id")
        if name is not None:
            self.ids.append(name)
        if tag == "table":
            self.table = str(name)
            self.tables[self.table] = []
        elif tag == "tr" and self.table:
            self.tables[self.table].append([])
        elif tag in ("td", "th"):
            self.tables[self.table][-1].append("")
        if tag not in _VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in _VOID:
            return
        assert self.open.pop() == tag
        if tag == "table":
            self.table = ""

    def handle_data(self, data: str) -> None:
        if self.table and self.tables[self.table] and self.tables[self.table][-1]:
            self.tables[self.table][-1][-1] += data


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    folder = tmp_path_factory.mktemp("report")
    (folder / "program.py").write_text(textwrap.dedent(PROGRAM))
    output, trace = folder / "page.html", folder / "trace.json"
    done = outboard("report", "-o", str(output), "--trace", str(trace), str(folder / "program.py"), "<i>", "2")
    assert done.returncode == 3, done.stderr
    return folder, done


def test_the_page_tells_what_the_program_did(made: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    folder, done = made
    assert "printed ['<i>', '2'] <b> 2.0" in done.stdout
    assert done.stdout.rstrip().endswith(f"outboard report: {folder / 'page.html'}")
    text = (folder / "page.html").read_text()
    page = Page(text)
    assert "<i>" not in text.split("<style>")[0]
    operators = {row[0]: row for row in page.tables["operators"][1:]}
    assert operators["aten::addmm"][1] == "6" and operators["aten::gelu"][1] == "3"
    assert float(operators["aten::addmm"][6]) >= 1  # no faster than its floor
    assert any(name.startswith("torch.compile: ") for name in operators)
    kernels = {row[0]: row for row in page.tables["kernels"][1:]}
    assert kernels["gelu_0"][1] == "3" and kernels["gelu_0"][5].strip() == "aten::gelu"
    place = (folder / "program.py").read_text().splitlines().index("    return torch.linalg.eigvalsh(value @ value.T)")
    fallback = next(row for row in page.tables["fallbacks"][1:] if row[0] == "aten::_linalg_eigh")
    assert fallback[1:3] == ["1", "unsupported"]
    hurt = next(row for row in page.tables["findings"][1:] if row[0] == "fallback")
    assert hurt[1:3] == ["aten::_linalg_eigh", "1"] and f"program.py:{place + 1}" in hurt[4]
    assert f"program.py:{place + 1}" in fallback[3] and "return torch.linalg.eigvalsh" in fallback[3]
    assert "memory" in page.ids and "At most 8." in text  # the big tensors and little more
    wall = re.search("wall time</dt><dd>([^<]+)<", text)
    assert wall and f'text-anchor="end">{wall[1]}</text></svg>' in text  # the chart of memory ends with the program
    assert [
        event
        for event in json.loads((folder / "trace.json").read_text())["traceEvents"]
        if event.get("cat") == "kernel"
    ]


def test_a_browser_shows_the_page(made: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        pytest.skip("no Chromium is installed")
    folder, _ = made
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'browser'}"]
    page = (folder / "page.html").as_uri()
    picture = folder / "page.png"
    shown = subprocess.run(
        [*command, f"--screenshot={picture}", "--dump-dom", page], capture_output=True, text=True, timeout=120
    )
    assert "aten::addmm" in shown.stdout or picture.stat().st_size > 20000, shown.stderr


def test_programs_that_fail_are_reported_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text(
        "import torch\ntorch.ones(3, device='ocl').exp()\nraise ValueError('as planned')\n"
    )
    done = outboard("report", "-o", str(tmp_path / "page.html"), str(tmp_path / "bad.py"))
    assert done.returncode == 1
    assert "ValueError: as planned" in done.stderr
    assert "aten::exp" in (tmp_path / "page.html").read_text()
    missing = outboard("report", str(tmp_path / "missing.py"))
    assert missing.returncode == 2 and "there is no file" in missing.stderr


def _events(work: Any) -> dict[str, Any]:
    with profile(record_shapes=True, profile_memory=True) as profiled:
        work()
    return {event.name: event for event in profiled.events() if event.name.startswith("aten::")}


def test_floors_count_what_operators_touch_and_compute() -> None:
    a, b = torch.randn(32, 48).to("ocl"), torch.randn(48, 64).to("ocl")
    image = torch.randn(2, 6, 11, 13).to("ocl").requires_grad_()
    plain = torch.nn.Conv2d(6, 8, (3, 2), stride=2, padding=1, dilation=(2, 1)).to("ocl")
    across = torch.nn.ConvTranspose2d(6, 4, 3, stride=2).to("ocl")

    for layer in (plain, across):
        layer(image).sum().backward()

        def work(layer: torch.nn.Module = layer) -> None:
            layer(image).sum().backward()

        with FlopCounterMode(display=False) as counter:
            work()
        counts = {str(name): count for name, count in counter.get_flop_counts()["Global"].items()}
        events = _events(work)
        for name in ("convolution", "convolution_backward"):
            assert roofline.flops_of(events[f"aten::{name}"]) == counts[f"aten.{name}"]
    events = _events(lambda: (a @ b, a.add_(1), torch.cat([a, a])))
    assert roofline.flops_of(events["aten::mm"]) == 2 * 32 * 48 * 64
    assert roofline.bytes_moved(events["aten::mm"]) == 4 * (32 * 48 + 48 * 64 + 32 * 64)
    assert roofline.bytes_moved(events["aten::add_"]) - 8 * 32 * 48 in (0, 8)  # the number, too
    roof = roofline.Roof(1e9, {torch.float32: 1e10, torch.float16: 4e10})
    assert roof.floor(1000, 0, "float") == 1e-6
    assert roof.floor(0, 10**6, "c10::Half") == 2.5e-5
    assert roof.floor(0, 10**6, "c10::BFloat16") == 1e-4  # not measured: as float32
