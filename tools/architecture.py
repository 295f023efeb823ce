# SPDX-License-Identifier: Apache-2.0
"""Draws the picture of the whole in docs/architecture.md from the code: rooms, floors, and who uses whom.

``python -m tools.architecture`` reads every import and include, writes ``docs/images/architecture.svg`` and the table
of rooms in ``docs/architecture.md``, and fails if an arrow goes up or imports go in a circle. ``FLOORS`` is the one
place that says which rooms there are and on which floor each lies; ``tests/package/test_layout.py`` holds the code and
both files to it.
"""

from __future__ import annotations

import ast
import graphlib
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[1]
DOCUMENT = ROOT / "docs/architecture.md"
PICTURE = ROOT / "docs/images/architecture.svg"

#: Floors from the ground up: each room's path, and what is in it. A file belongs to the longest path that it lies in.
#: It uses rooms of floors below its own, and others of its own room.
FLOORS: tuple[dict[str, str], ...] = (
    {
        "include/outboard": "driver.h, the contract with hardware",
        "csrc/portability": "what older C++ libraries lack",
    },
    {"csrc/runtime/base": "errors, logs, trusted files, checks: nothing here knows a device"},
    {
        "csrc/runtime": "devices, memory, streams, programs, plans and their executor; no PyTorch",
        "csrc/distributed": "collectives between processes of one machine, through shared memory; no PyTorch",
        "csrc/drivers/common": "what drivers for processors share",
        "csrc/drivers/null": "the shortest driver, to copy",
    },
    {
        "csrc/drivers/sim": "a device in host memory, with or without a compiler of graphs, for tests",
        "csrc/drivers/faults": "around another driver: fails on request",
        "csrc/drivers/host": "the processor, by Clang",
        "csrc/drivers/opencl": "OpenCL devices",
        "csrc/drivers/cuda": "NVIDIA's GPUs",
        "csrc/drivers/strict": "around another driver: checks its caller",
        "csrc/builder": "outboard-build: builds programs beside the process that needs them",
        "csrc/runner": "exported models without Python: a library in C, and a program",
        "csrc/torch/bridge": "storages, tensors, guard, hooks, generator, graphs: nothing here knows an operator",
    },
    {
        "csrc/torch/eager": "a call of an operator: signature, plan, copies, CPU fallback",
        "csrc/torch/distributed/staging": "messages and copies between device and host",
    },
    {
        "csrc/torch/operators": "operators that need more than a plan",
        "csrc/torch/distributed/terms": "what collectives are made of: tensors, reductions, sizes",
    },
    {"csrc/torch/distributed/works": "what a caller waits for, and the order of collectives"},
    {
        "csrc/torch/distributed/by_driver": "collectives that the driver carries out",
        "csrc/torch/distributed/by_host": "collectives on the host, on copies or in place",
        "csrc/torch/distributed/cpu_backends": "what the host calls: shared memory, MPI, a comparison of all ranks",
    },
    {"csrc/torch/distributed": "torch.distributed's backend: backend.h decides who carries a collective out"},
    {
        "csrc/torch/python": "the extension module, outboard._C",
        "src/outboard/version.py": "the version of Outboard",
        "src/outboard/torch_release.py": "the release of PyTorch that runs",
        "src/outboard/trusted.py": "files that only the user can have written",
        "src/outboard/on_open.py": "what waits until a device is opened",
    },
    {
        "src/outboard/settings.py": "environment variables",
        "src/outboard/patches.py": "every function of PyTorch's that is replaced",
        "src/outboard/drivers": "where drivers are found",
        "src/outboard/reporting": "what a program did, and what hurt: as a page, and in ten lines",
        "src/outboard/compiler/operators": "what is special about an operator, one row each",
        "src/outboard/compiler/units.py": "the number of compute units, which plans ask for",
        "src/outboard/compiler/tuning.py": "what follows from a device's properties",
        "src/outboard/compiler/dialects": "what kernel languages have in common, and what each calls differently",
        "src/outboard/compiler/statistics.py": "counters",
        "src/outboard/compiler/progress.py": "a line on the terminal while programs are built",
        "src/outboard/compiler/isolation.py": "compilers at work, spared what slows them",
    },
    {"src/outboard/simulation": "how long programs take on chips that are not there"},
    {
        "src/outboard/signing.py": "files with a key of the user's",
        "src/outboard/expected_memory.py": "what the last run needed, made ready early",
        "src/outboard/device": "torch.<device>: devices, streams, memory, random numbers, autocast",
        "src/outboard/compiler/target.py": "the device that is compiled for",
        "src/outboard/compiler/generated_modules.py": "what generated modules call",
        "src/outboard/compiler/replay.py": "calls captured once and replayed",
    },
    {
        "src/outboard/compiler/loops": "a kernel as a nest of loops, its rewrites and its schedule",
        "src/outboard/compiler/plans": "the plan: its parts, how it is written, built, and kept on disk",
    },
    {
        "src/outboard/compiler/printing": "a nest and its schedule as text, for vectors and for SIMT",
        "src/outboard/compilers": "compilers of graphs: what they are asked, who offers one, the simulator's",
    },
    {"src/outboard/compiler/kernels": "products, convolutions, attention, sorting, ...: kernels written by hand"},
    {
        "src/outboard/compiler/choice": "which kernel or library carries out an operator",
        "src/outboard/compiler/adapter/memory_layouts.py": "operands of executables in layouts of a compiler's",
    },
    {
        "src/outboard/compiler/adapter/implemented.py": "operators that the program implements for the device",
        "src/outboard/compiler/adapter/schemas.py": "operators by name, and implementations of them",
        "src/outboard/compiler/adapter/symbols.py": "numbers that a trace does not know",
        "src/outboard/compiler/adapter/overrides.py": "Inductor's vocabulary, recorded",
        "src/outboard/compiler/adapter/interface.py": "what Dynamo and Inductor ask a device",
        "src/outboard/compiler/adapter/epilogues.py": "products that the launch after them finishes",
        "src/outboard/compiler/adapter/trial.py": "a new executable against the CPU",
        "src/outboard/compiler/adapter/optimizers": "steps of optimizers as graphs",
    },
    {
        "src/outboard/compiler/adapter/operators": "operators as graphs; shapes, strides and rounding of results",
        "src/outboard/compiler/adapter/ambient.py": "state of PyTorch's that decides what a graph computes",
        "src/outboard/compiler/adapter/kernel.py": "Inductor's kernel, recorded as a nest",
        "src/outboard/compiler/adapter/executables.py": "a graph for a compiler of graphs, as a step of a plan",
    },
    {
        "src/outboard/compiler/adapter/scheduling.py": "how Inductor fuses for our devices",
        "src/outboard/compiler/adapter/wrapper.py": "Inductor's wrapper lines as a plan",
        "src/outboard/compiler/adapter/padding": "sizes that vary, padded to those of buckets, exactly",
    },
    {"src/outboard/compiler/adapter/graphs": "whole graphs of torch.compile"},
    {"src/outboard/compiler/adapter/registration.py": "makes Inductor know our device"},
    {
        "src/outboard/compiler/adapter/lowering.py": "one operator, lowered",
        "src/outboard/compiler/adapter/exported.py": "an exported program, lowered",
        "src/outboard/compiler/adapter/traces": "Dynamo's traces, and those of earlier processes",
    },
    {
        "src/outboard/compiler/eager.py": "one operator, compiled: a plan, or why there is none",
        "src/outboard/compiler/on_import.py": "registers the device when a program imports the compiler",
    },
    {
        "src/outboard/compiler/requests.py": "what C++ asks: a plan for a call, from disk or compiled",
        "src/outboard/capture": "outboard.graphed: calls that repeat, captured",
        "src/outboard/exporting": "models as files: outboard.export, outboard.load",
        "src/outboard/optimization.py": "outboard.optimize",
        "src/outboard/own_code": "outboard.borrow, kernel, library: code of users' and vendors' own",
        "src/outboard/distributed": "the process group's backend for torch.distributed",
        "src/outboard/integrations": "what libraries keep in a hard-coded list of devices",
        "src/outboard/profiles": "a device's public face: name, autocast dtypes, extra functions, hooks",
    },
    {
        "src/outboard/activation.py": "what `import torch` runs: the device is there",
        "src/outboard_conformance": "what driver.h says, tried on a driver clause by clause",
    },
    {
        "src/outboard/cli": "outboard devices, doctor, conform, new, warmup, report, bench",
        "src/outboard/__init__.py": "the package's functions",
        "src/outboard/templates": "the packages that `outboard new` writes",
    },
)

#: Rooms that only these use, whatever their floor: a driver is known by driver.h alone.
DOORS = {"csrc/drivers": "csrc/drivers"}

FLOOR_OF = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
_SOURCES = ("src/outboard/**/*.py", "src/outboard_conformance/**/*.py", "csrc/**/*.[ch]*", "include/**/*.h")
_INCLUDE = re.compile(r'^#include "([\w./]+)"', re.MULTILINE)
_BEGIN, _END = "<!-- rooms: written by python -m tools.architecture -->\n", "<!-- end of rooms -->"


def room_of(path: str) -> str | None:
    """The room that a file or folder (relative to the repository) lies in."""
    place = PurePosixPath(path)
    return next((str(each) for each in (place, *place.parents) if str(each) in FLOOR_OF), None)


def arrows() -> Counter[tuple[str, str]]:
    """How many imports and includes go from a room to another. Raises ValueError for a file outside of all rooms."""
    found: Counter[tuple[str, str]] = Counter()
    for path in sorted(path for pattern in _SOURCES for path in ROOT.glob(pattern)):
        name = path.relative_to(ROOT).as_posix()
        room = room_of(name)
        if room is None:
            if path.name == "__init__.py":  # of a package that is nothing but its rooms
                continue
            raise ValueError(f"{name} lies in no room of FLOORS")
        used = _imports(path) if path.suffix == ".py" else _includes(path)
        found.update((room, other) for other in map(room_of, used) if other not in (None, room))
    return found


def _includes(path: Path) -> Iterator[str]:
    for include in _INCLUDE.findall(path.read_text()):
        folders = (ROOT / "include", ROOT / "csrc", ROOT / "csrc/drivers", path.parent)
        at = next((folder / include for folder in folders if (folder / include).exists()), None)
        if at is not None:
            yield at.relative_to(ROOT).as_posix()


def _imports(path: Path, for_types: bool = True) -> Iterator[str]:
    package = path.relative_to(ROOT / "src").with_suffix("").parts[:-1]
    tree = ast.parse(path.read_text())
    checks = [node for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)]
    spared = {id(node) for check in checks if not for_types for node in check.body}
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom) or id(node) in spared:
            continue
        base = package[: len(package) + 1 - node.level] if node.level else ()
        module = (*base, *(node.module.split(".") if node.module else ()))
        if module[:1] not in (("outboard",), ("outboard_conformance",)):
            continue
        for alias in node.names:
            yield "csrc/torch/python" if "_C" in (*module, alias.name) else _file(module, alias.name)


def _file(module: tuple[str, ...], name: str) -> str:
    """The file or folder of what is imported: ``name`` is a module of the package ``module``, or in that module."""
    at = Path("src", *module)
    places = (at / name, at / f"{name}.py", at.with_suffix(".py"), at / "__init__.py")
    return next(place for place in places if (ROOT / place).exists()).as_posix()


def up(found: Mapping[tuple[str, str], int]) -> list[str]:
    """Arrows that do not go down, or through a wall."""
    wrong = []
    for user, used in sorted(found):
        walled = any(used.startswith(inside) and not user.startswith(users) for inside, users in DOORS.items())
        if FLOOR_OF[used] >= FLOOR_OF[user] or walled:
            wrong.append(f"{user} -> {used}")
    return wrong


def circle() -> list[str]:
    """Modules of Python of which each imports the next, and the last the first, be it in a function. Empty if there
    are none. The package itself, whose ``__init__`` imports all, counts as imported by none."""
    graph = {path: {_module(used) for used in _imports(path, for_types=False)} for path in _modules()}
    for used in graph.values():
        used.discard(ROOT / "src/outboard/__init__.py")
    try:
        graphlib.TopologicalSorter({path: used - {path} for path, used in graph.items()}).prepare()
    except graphlib.CycleError as error:
        return [path.relative_to(ROOT / "src").as_posix() for path in error.args[1][::-1]]
    return []


def _modules() -> list[Path]:
    return sorted((ROOT / "src").rglob("*.py"))


def _module(imported: str) -> Path:
    at = ROOT / imported
    return at / "__init__.py" if at.is_dir() else at


def reduced(found: Mapping[tuple[str, str], int]) -> list[tuple[str, str]]:
    """Arrows that no way over others stands for: those which a picture needs."""
    below: dict[str, set[str]] = {}
    for user, used in found:
        below.setdefault(user, set()).add(used)
    reach: dict[str, set[str]] = {}
    for room in sorted(FLOOR_OF, key=FLOOR_OF.__getitem__):
        reach[room] = below.get(room, set()).union(*(reach[each] for each in below.get(room, ())))
    return [(a, b) for a, b in sorted(found) if not any(b in reach[other] for other in below[a] - {b})]


def _short(room: str) -> str:
    return room.removeprefix("src/outboard/").removeprefix("src/").removeprefix("csrc/").removesuffix(".py")


def picture(found: Mapping[tuple[str, str], int]) -> str:
    """The rooms as boxes, a row for each floor, with the arrows that :func:`reduced` leaves, as SVG."""
    height, gap = 26, 26
    sizes_of = [[9 + 6.8 * len(_short(room)) for room in rooms] for rooms in FLOORS]
    width = round(max(sum(sizes) + 12 * (len(sizes) + 1) for sizes in sizes_of))
    at: dict[str, tuple[float, float, float]] = {}
    top = len(FLOORS) * (height + gap)
    for floor, (rooms, sizes) in enumerate(zip(FLOORS, sizes_of, strict=True)):
        space = (width - sum(sizes)) / (len(sizes) + 1)
        x = space
        for room, size in zip(rooms, sizes, strict=True):
            at[room] = (x, top - (floor + 1) * (height + gap) + gap / 2, size)
            x += size + space
    lines = [
        f'<line x1="{at[a][0] + at[a][2] / 2:.0f}" y1="{at[a][1] + height:.0f}" '
        f'x2="{at[b][0] + at[b][2] / 2:.0f}" y2="{at[b][1]:.0f}"/>'
        for a, b in reduced(found)
    ]
    boxes = [
        f'<g class="{"python" if room.startswith("src") else "cpp"}"><title>{escape(says[room])}</title>'
        f'<rect x="{x:.0f}" y="{y:.0f}" width="{size:.0f}" height="{height}" rx="4"/>'
        f'<text x="{x + size / 2:.0f}" y="{y + 17:.0f}">{escape(_short(room))}</text></g>'
        for says in FLOORS
        for room, (x, y, size) in ((room, at[room]) for room in says)
    ]
    style = (
        "text{font:11px monospace;text-anchor:middle;fill:#222}line{stroke:#90a4ae;stroke-width:1;opacity:.6}"
        ".python rect{fill:#e3f2fd;stroke:#1e88e5}.cpp rect{fill:#fff3e0;stroke:#fb8c00}"
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {top}">',
            f'<style>{style}</style><rect width="{width}" height="{top}" fill="white"/>',
            *lines,
            *boxes,
            "</svg>\n",
        ]
    )


def table(found: Mapping[tuple[str, str], int]) -> str:
    """All rooms, from the roof down, as Markdown."""
    rows = ["| Room | What is in it | Uses directly |\n|---|---|---|\n"]
    for rooms in reversed(FLOORS):
        for room, says in rooms.items():
            used = sorted(_short(b) for a, b in found if a == room)
            rows.append(f"| `{room}` | {says} | {', '.join(used)} |\n")
    return "".join(rows)


def document(found: Mapping[tuple[str, str], int]) -> str:
    """docs/architecture.md with a new table."""
    text = DOCUMENT.read_text()
    before, _, rest = text.partition(_BEGIN)
    return before + _BEGIN + "\n" + table(found) + "\n" + _END + rest.partition(_END)[2]


def main() -> int:
    """Writes the picture and the table. Returns 1, and says so, if arrows go up or imports go in a circle."""
    found = arrows()
    wrong = up(found)
    if wrong:
        print("\n".join(f"up: {each}" for each in wrong))
        return 1
    if around := circle():
        print(f"a circle of imports: {' -> '.join(around)}")
        return 1
    PICTURE.write_text(picture(found))
    DOCUMENT.write_text(document(found))
    print(f"{len(FLOOR_OF)} rooms, {len(FLOORS)} floors, {len(found)} arrows, none of them up")
    return 0


if __name__ == "__main__":
    sys.exit(main())
