# SPDX-License-Identifier: Apache-2.0
"""Rooms of the house: what a file may include is decided by where it lies, so that includes point one way."""

import ast
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

SOURCES = Path(__file__).parents[2] / "csrc"

#: Rooms of the runtime and of the extension, and those below, whose headers a room's own headers may include.
HEADERS = {
    "runtime/base": set(),
    "runtime/memory": {"runtime/base"},
    "runtime/programs": {"runtime/base"},
    "runtime/streams": {"runtime/base", "runtime/programs"},
    "runtime/plans": {"runtime/base", "runtime/memory", "runtime/programs", "runtime/streams"},
}


def _floors(*floors: tuple[str, ...]) -> dict[str, set[str]]:
    """Rooms of the backend of torch.distributed: each file of a floor may include those of the floors before it."""
    below = {"runtime", "torch/bridge"}
    allowed: dict[str, set[str]] = {}
    for floor in floors:
        allowed |= {room: set(below) for room in floor}
        below |= {f"torch/distributed/{room}" for room in floor}
    return allowed


DISTRIBUTED = _floors(("staging",), ("terms",), ("works",), ("by_driver", "by_host", "host_backends"))

#: The same for all files of a room. ``runtime`` is the runtime as a whole.
FILES = {
    "torch/bridge": {"runtime"},
    "torch/eager": {"runtime", "torch/bridge"},
    "torch/operators": {"runtime", "torch/bridge", "torch/eager"},
    **{f"torch/distributed/{room}": below for room, below in DISTRIBUTED.items()},
    "torch/distributed": {"runtime", "torch/bridge", "torch/python"}  # bindings of its own
    | {f"torch/distributed/{room}" for room in DISTRIBUTED},
}
INCLUDE = re.compile(r'^#include "((?:runtime|torch)/[^"]+)"', re.MULTILINE)


def included(path: Path) -> set[str]:
    """The rooms that a file includes something of."""
    return {str(Path(name).parent) for name in INCLUDE.findall(path.read_text())}


@pytest.mark.parametrize("room", HEADERS)
def test_headers_of_the_runtime_include_what_lies_below(room: str) -> None:
    headers = sorted((SOURCES / room).glob("*.h"))
    assert headers
    above = {path.name: included(path) - HEADERS[room] - {room} for path in headers}
    assert {name: rooms for name, rooms in above.items() if rooms} == {}


@pytest.mark.parametrize("room", FILES)
def test_files_of_the_extension_include_what_lies_below(room: str) -> None:
    files = sorted(path for path in (SOURCES / room).iterdir() if path.suffix in (".h", ".cpp"))
    assert files
    allowed = FILES[room] | {room}
    found = {path.name: {name for name in included(path) if not _is_allowed(name, allowed)} for path in files}
    assert {name: rooms for name, rooms in found.items() if rooms} == {}


def _is_allowed(room: str, allowed: set[str]) -> bool:
    return room in allowed or ("runtime" in allowed and room.partition("/")[0] == "runtime")


#: Modules and packages of the compiler, floor by floor: each imports only from floors before it, also lazily and
#: for types.
COMPILER = (
    {"operators", "units", "tuning", "dialects", "statistics", "progress", "isolation"},
    {"target", "generated_modules"},
    {"loops", "plans"},
    {"printing"},
    {"kernels"},
    {"choice"},
    {"adapter"},
    {"eager", "on_import"},
)

#: The same for the compiler's ``adapter``.
ADAPTER = (
    {"ambient", "releases", "overrides", "interface", "epilogues", "optimizers"},
    {"operators", "kernel"},
    {"scheduling", "wrapper"},
    {"graphs"},
    {"registration"},
    {"lowering", "exported", "traces"},
)


@pytest.mark.parametrize(("package", "floors"), [("compiler", COMPILER), ("compiler/adapter", ADAPTER)])
def test_packages_import_what_lies_below(package: str, floors: Sequence[set[str]]) -> None:
    folder = Path(__file__).parents[2] / "src/outboard" / package
    floor_of = {room: floor for floor, rooms in enumerate(floors) for room in rooms}
    rooms = {path.stem for path in folder.iterdir() if path.stem not in ("__init__", "__pycache__")}
    assert rooms == set(floor_of), "each module and package has its floor here"
    up = []
    for path in sorted(folder.rglob("*.py")):
        room = path.relative_to(folder).parts[0].removesuffix(".py")
        others = _imported(path, folder) - {room}
        up += [f"{path.relative_to(folder)}: {other}" for other in others if floor_of[other] >= floor_of.get(room, 0)]
    assert up == []


def _imported(path: Path, folder: Path) -> set[str]:
    """The rooms of a package that a module of it imports from, anywhere in its text."""
    root = folder.parts[folder.parts.index("outboard") :]
    package = root + path.parent.relative_to(folder).parts
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.ImportFrom):
            continue
        base = package[: len(package) + 1 - node.level] if node.level else ()
        module = (*base, *(node.module or "").split(".")) if node.module else base
        names = [(*module, alias.name) for alias in node.names]
        found |= {name[len(root)] for name in names if name[: len(root)] == root and len(name) > len(root)}
    return found
