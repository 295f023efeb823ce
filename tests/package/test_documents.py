# SPDX-License-Identifier: Apache-2.0
"""The documents: their programs print what stands below them, their links lead somewhere, their tables are whole."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import unicodedata
from pathlib import Path
from types import ModuleType

import pytest

import outboard.device
from tests.conftest import RunPython

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.glob("*.md"))]
#: Pages whose Python is one program from top to bottom; other tests run those of the others.
PROGRAMS = ["index.md", "use.md", "custom-operators.md", "own-code.md", "simulate.md"]
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", flags=re.MULTILINE | re.DOTALL)
_MARK = "-- end of block --"


def prose(page: Path) -> str:
    """A page without its code blocks."""
    return _BLOCK.sub("", page.read_text())


def anchors(page: Path) -> set[str]:
    """What links to places in a page may name, as GitHub and MkDocs make it of headings."""
    found = set()
    for heading in re.findall(r"^#+ (.*)$", prose(page), flags=re.MULTILINE):
        text = unicodedata.normalize("NFKD", re.sub(r"\[(.*?)\]\(.*?\)", r"\1", heading))
        text = text.encode("ascii", "ignore").decode()
        found.add(re.sub(r"[^\w\s-]", "", text).strip().lower().replace(" ", "-"))
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    dead = []
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if re.match(r"(https?|mailto):", target):
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        if not file.exists() or (anchor and file.suffix == ".md" and anchor not in anchors(file)):
            dead.append(target)
    assert dead == []


@pytest.mark.parametrize("page", PROGRAMS)
def test_programs_print_what_stands_below_them(page: str, run_python: RunPython) -> None:
    blocks = _BLOCK.findall((DOCS / page).read_text())
    program, expected = [], []
    for (kind, text), (next_kind, next_text) in zip(blocks, [*blocks[1:], ("", "")], strict=True):
        if kind == "python":
            program.append(f"{text}\nprint({_MARK!r})\n")
            expected.append(next_text if next_kind == "text" else "")
    printed = run_python("\n".join(program)).split(f"{_MARK}\n")
    assert printed[:-1] == expected


def test_every_page_is_in_the_navigation() -> None:
    navigation = set(re.findall(r": ([\w-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), flags=re.MULTILINE))
    assert navigation == {page.name for page in DOCS.glob("*.md")}


def variables_in_sources() -> set[str]:
    """Variables that the package or a driver reads, as their names stand in the sources."""
    pattern = re.compile(r'"((?:OUTBOARD|RBLN|TORCH_RBLN|ASCEND)_[A-Z][A-Z0-9_]*[A-Z0-9])"')
    found: set[str] = set()
    for folder, endings in (("src", ("py",)), ("packages", ("py",)), ("csrc", ("cpp", "h"))):
        for file in (file for ending in endings for file in (ROOT / folder).rglob(f"*.{ending}")):
            found |= set(pattern.findall(file.read_text()))
    strict = (ROOT / "csrc/drivers/strict/options.cpp").read_text()
    found |= {f"OUTBOARD_STRICT_{name}" for name in re.findall(r'"([A-Z][A-Z0-9_]*[A-Z0-9])"', strict)}
    return found - {"OUTBOARD_FAULTS_DRIVER"}  # of the tests' own driver


def test_every_variable_is_in_the_table() -> None:
    in_table = set(re.findall(r"`([A-Z][A-Z0-9]*_[A-Z0-9_]+)`", (DOCS / "environment.md").read_text()))
    missing = {name for name in variables_in_sources() if name not in in_table}
    assert missing == set()
    ours = {name for name in in_table if name.startswith("OUTBOARD_") and not name.startswith("OUTBOARD_TEST_")}
    assert ours - variables_in_sources() == set()


def test_quoted_messages_are_the_sources_own() -> None:
    """The headings of docs/troubleshooting.md are parts of messages that the sources, or what we stand on, print."""
    page = (DOCS / "troubleshooting.md").read_text()
    sources = [file for folder in ("src", "csrc") for file in (ROOT / folder).rglob("*")]
    texts = "".join(file.read_text() for file in sources if file.suffix in (".py", ".cpp", ".h"))
    # Literals that the compiler or Python joins, as one text.
    texts = re.sub(r'"\s*f?"', "", texts)
    messages = re.findall(r"^## `(.*?)`$", page, flags=re.MULTILINE)
    assert len(messages) >= 10
    assert [message for message in messages if not all(part in texts for part in message.split(" … "))] == []


@pytest.mark.skipif(importlib.util.find_spec("mkdocs") is None, reason="the site needs the extra `docs`")
def test_nobody_is_told_to_fetch_another_project() -> None:
    """PyPI's ``outboard`` is one: a command names the wheel's file, its version, or the packages of an extra."""
    sources = [
        path
        for part in ("src", "csrc")
        for kind in ("py", "cpp", "h", "md")
        for path in (ROOT / part).rglob(f"*.{kind}")
    ]
    told = re.compile(r"pip\s+install[^\n;&]*?[ \t]['\"]?outboard(?!-|==|\.)\b")
    assert told.search("pip install 'outboard[cpu]'") and told.search("pip install -U outboard")
    assert [str(page) for page in [*PAGES, *sources] if told.search(page.read_text())] == []


def test_site_builds(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stdout + result.stderr
    assert (tmp_path / "index.html").exists()
    described = set(re.findall(r'id="outboard\.[\w.]*?(\w+)"', (tmp_path / "api.html").read_text()))
    others = {"AcceleratorError", "OutOfMemoryError", "__version__"}  # PyTorch's own classes, and no function
    functions = {
        name
        for module in (outboard, outboard.device)
        for name in module.__all__
        if not name.startswith("_") and not isinstance(getattr(module, name), ModuleType)
    }
    assert functions - described - others == set()
