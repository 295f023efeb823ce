# SPDX-License-Identifier: Apache-2.0
"""Rooms of the house: what a file may use is decided by where it lies, so that imports and includes point one way."""

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

from tools import architecture

SOURCES = architecture.ROOT / "csrc"

#: Rooms of the runtime, and those below, whose headers a room's own headers may include.
HEADERS = {
    "runtime/base": set(),
    "runtime/memory": {"runtime/base"},
    "runtime/programs": {"runtime/base"},
    "runtime/streams": {"runtime/base", "runtime/programs"},
    "runtime/plans": {"runtime/base", "runtime/memory", "runtime/programs", "runtime/streams"},
}
INCLUDE = re.compile(r'^#include "((?:runtime|torch)/[^"]+)"', re.MULTILINE)


@pytest.mark.parametrize("room", HEADERS)
def test_headers_of_the_runtime_include_what_lies_below(room: str) -> None:
    headers = sorted((SOURCES / room).glob("*.h"))
    assert headers
    above = {path.name: included(path) - HEADERS[room] - {room} for path in headers}
    assert {name: rooms for name, rooms in above.items() if rooms} == {}


def included(path: Path) -> set[str]:
    """The rooms that a file includes something of."""
    return {str(Path(name).parent) for name in INCLUDE.findall(path.read_text())}


def test_no_arrow_goes_up() -> None:
    """Each file lies in a room of the table, and uses rooms of floors below its own, also lazily and for types."""
    assert architecture.up(architecture.arrows()) == []


def test_arrows_that_go_up_are_seen() -> None:
    up = {("csrc/runtime", "csrc/torch/eager"): 1, ("src/outboard/device", "src/outboard/compiler/target.py"): 1}
    through_a_wall = {("csrc/torch/bridge", "csrc/drivers/common"): 1}
    assert len(architecture.up(up)) == 2 and len(architecture.up(through_a_wall)) == 1


def test_no_imports_go_in_a_circle() -> None:
    """Not in functions either."""
    assert architecture.circle() == []


def test_circles_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "src/outboard"
    (package / "rooms").mkdir(parents=True)
    (package / "__init__.py").write_text("from outboard.rooms import first\n")
    (package / "rooms/__init__.py").write_text("")
    (package / "rooms/first.py").write_text("def late():\n    from . import second\n")
    (package / "rooms/second.py").write_text("if TYPE_CHECKING:\n    from .first import late\n")
    monkeypatch.setattr(architecture, "ROOT", tmp_path)
    assert architecture.circle() == []
    (package / "rooms/second.py").write_text("from .first import late\n")
    assert set(architecture.circle()) == {"outboard/rooms/first.py", "outboard/rooms/second.py"}


def test_rooms_exist() -> None:
    assert [room for room in architecture.FLOOR_OF if not (architecture.ROOT / room).exists()] == []


def test_the_picture_is_of_this_code() -> None:
    """Run ``python -m tools.architecture`` if this fails."""
    found = architecture.arrows()
    assert architecture.PICTURE.read_text() == architecture.picture(found)
    assert architecture.DOCUMENT.read_text() == architecture.document(found)


def test_no_constant_has_two_values() -> None:
    """The second would serve the first one's tests, too, which then try nothing of their own."""
    folders = [architecture.ROOT / name for name in ("src", "tests", "tools", "benchmarks")]
    files = [path for folder in folders for path in folder.rglob("*.py")]
    assert files
    assert {path.name: twice for path in files if (twice := named_twice(path.read_text()))} == {}


def test_a_constant_of_two_values_is_seen() -> None:
    assert named_twice("ONCE = 1\nTWICE = 1\nTWICE: int = 2\nnothing = 3\nnothing = 4\n") == ["TWICE"]


def named_twice(text: str) -> list[str]:
    """The constants that a module's own lines give a value more than once."""
    lines = [each for each in ast.parse(text).body if isinstance(each, ast.Assign | ast.AnnAssign)]
    targets = [target for each in lines for target in (each.targets if isinstance(each, ast.Assign) else [each.target])]
    names = Counter(target.id for target in targets if isinstance(target, ast.Name) and target.id.isupper())
    return [name for name, times in names.items() if times > 1]
