# SPDX-License-Identifier: Apache-2.0
"""docs/operators.md: every operator and dtype of PyTorch's OpInfos, forward and backward: where it runs.

``python tools/supported.py --write docs/operators.md`` runs ``tools/opinfo.py`` for each dtype, and for those that have
gradients once more with ``--way vjp``. It goes on from the rows that are there (``--rows``), and writes the page. To
begin anew, remove their folder. ``--no-run`` writes the page of the rows that are there. Other options are those of
``tools/opinfo.py``. Exit code 1 if a result is wrong for no known reason, or a process crashed.
tests/compiler/test_supported.py says when the page is stale.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db

TOOLS = Path(__file__).resolve().parent
sys.path.insert(0, str(TOOLS))

import opinfo  # noqa: E402

#: The page's names of dtypes, in the order in which they stand there, and of those that stand together.
SHORT = {
    "float32": "f32", "float64": "f64", "float16": "f16", "bfloat16": "bf16",
    "complex64": "c64", "complex128": "c128", "complex32": "c32",
    "int64": "i64", "int32": "i32", "int16": "i16", "int8": "i8",
    "uint8": "u8", "uint16": "u16", "uint32": "u32", "uint64": "u64", "bool": "bool",
    "float8_e4m3fn": "f8e4m3fn", "float8_e5m2": "f8e5m2",
    "float8_e4m3fnuz": "f8e4m3fnuz", "float8_e5m2fnuz": "f8e5m2fnuz",
}  # fmt: skip
GROUPS = {
    "floats": ("f32", "f64", "f16", "bf16"),
    "complex": ("c64", "c128"),
    "integers": ("i64", "i32", "i16", "i8", "u8"),
}
LONG = {short: name for name, short in SHORT.items()}
#: The page's words for the kinds of rows.
WORDS = {
    "native": "device",
    "host": "CPU",
    "unseen": "CPU",
    "error": "refused",
    "wrong": "differs",
    "crash": "crashes",
    "skipped": "no sample",
}
#: Those that the page counts.
COUNTED = ("device", "CPU", "refused", "differs", "no sample")
WAYS = ("called", "vjp")
#: Why results differ from the CPU's, where they do: (operator, dtype) -> the reason. Any other is a fault.
KNOWN = {
    **{
        (f"nn.functional.{name}", "uint8"): "the CPU weighs bytes in fixed point, which is off by 1 in places"
        for name in ("interpolate.bilinear", "upsample_bilinear")
    },
    ("nn.functional.conv_transpose3d", "complex64"): "differences of three real convolutions, rounded in another order",
}

#: Where an operator runs by dtype, and what is to be said of it.
States = dict[str, str]


@dataclass
class Entry:
    """A row of the page: where an operator runs, forward and backward, by dtype; and why not on the device."""

    name: str
    forward: States
    backward: States
    why: str


def has_gradients(dtype: str) -> bool:
    """Whether PyTorch differentiates numbers of the dtype."""
    kind: torch.dtype = getattr(torch, dtype)
    return (kind.is_floating_point or kind.is_complex) and kind.itemsize > 1


def runs() -> Iterator[tuple[str, str]]:
    """Each dtype with each way that it is run."""
    return ((dtype, way) for way in WAYS for dtype in SHORT if way == "called" or has_gradients(dtype))


def run(folder: Path, arguments: list[str]) -> None:
    """Runs what has no row yet."""
    for dtype, way in runs():
        command = [
            sys.executable,
            str(TOOLS / "opinfo.py"),
            "--dtype",
            dtype,
            "--way",
            way,
            "--min-native",
            "0",
            "--samples",
            "1",
        ]
        output = ["--resume", str(folder / f"{dtype}-{way}.jsonl"), "--output", str(folder / f"{dtype}-{way}.json")]
        subprocess.run([*command, *output, *arguments], check=False)


def read(folder: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """The rows of all runs, by dtype and way, each by the operator's name."""
    found = {}
    for dtype, way in runs():
        path = folder / f"{dtype}-{way}.jsonl"
        lines = path.read_text().splitlines()[1:] if path.exists() else []
        found[dtype, way] = {row["name"]: row for row in map(json.loads, lines)}
    return found


def entries(rows: dict[tuple[str, str], dict[str, Any]]) -> list[Entry]:
    """The page's rows."""
    names = sorted({name for by_name in rows.values() for name in by_name}, key=lambda name: (section(name), name))
    return [_entry(name, rows) for name in names]


def _entry(name: str, rows: dict[tuple[str, str], dict[str, Any]]) -> Entry:
    states: dict[str, States] = {way: {} for way in WAYS}
    on_cpu: set[str] = set()
    others: dict[str, None] = {}  # in their order, each once
    for (dtype, way), by_name in rows.items():
        if (row := by_name.get(name)) is None or (way == "vjp" and row["kind"] == "skipped"):
            continue
        states[way][dtype] = WORDS[row["kind"]]
        on_cpu |= set(row["fallbacks"])
        if row["kind"] in ("error", "wrong", "crash"):
            others[KNOWN.get((name, dtype)) or " ".join(row["detail"].split())[:120]] = None
    listed = [", ".join(f"`{operator}`" for operator in sorted(on_cpu))] if on_cpu else []
    why = "; ".join([*listed, *others]).replace("|", "\\|").replace("<", "&lt;")
    return Entry(name, states["called"], states["vjp"], why)


def section(name: str) -> str:
    """The page's section that an operator stands in: its module, or what is in ``torch`` by its first letter."""
    module = name.rpartition(".")[0] if name.startswith("nn.functional.") else name.partition(".")[0]
    if name.startswith("nn.functional."):
        return "nn.functional"
    if module in ("fft", "linalg", "masked", "sparse", "special", "signal", "torch") and module != name:
        return module
    letter = name.lstrip("_")[:1].lower()
    return "torch, a to f" if letter < "g" else "torch, g to m" if letter < "n" else "torch, n to z"


def _cell(states: States) -> str:
    """Where an operator runs, as ``**device** floats; **CPU** c64``."""
    parts = []
    for word in dict.fromkeys(WORDS.values()):
        shorts = [SHORT[dtype] for dtype in SHORT if states.get(dtype) == word]
        if shorts:
            parts.append(f"**{word}** {' '.join(_grouped(shorts))}")
    return "; ".join(parts)


def _grouped(shorts: list[str]) -> Iterator[str]:
    left = list(shorts)
    for group, members in GROUPS.items():
        if set(members) <= set(left):
            yield group
            left = [short for short in left if short not in members]
    yield from left


def states_of(cell: str) -> States:
    """What :func:`_cell` wrote: the page's words by dtype."""
    found = {}
    for word, listed in re.findall(r"\*\*([^*]+)\*\* ([^;|]+)", cell):
        for short in itertools.chain.from_iterable(GROUPS.get(part, (part,)) for part in listed.split()):
            found[LONG[short]] = word
    return found


def page(rows: list[Entry]) -> str:
    """The text of docs/operators.md."""
    release = torch.__version__.split("+")[0]
    counts = [(way, _counts(getattr(row, way) for row in rows)) for way in ("forward", "backward")]
    lines = [
        "# Supported operators", "",
        f"Made by `make opinfo` with PyTorch {release} and the driver `host`: every operator of PyTorch's own list, its"
        " OpInfos, with every dtype that PyTorch's CPU has it for, by its first sample, against the CPU's results.", "",
        f"| | {' | '.join(COUNTED)} |", "|---" * (1 + len(COUNTED)) + "|",
        *(f"| {way} | {' | '.join(str(by_word.get(word, 0)) for word in COUNTED)} |" for way, by_word in counts), "",
        "- **device**: on the device, without a single CPU fallback.",
        "- **CPU**: right, but the operators named last ran on the CPU, for want of a kernel of the device."
        " `torch.<device>.fallbacks()` counts them.",
        "- **refused**: an exception that the CPU does not raise. **differs**: another result than the CPU's. The last"
        " column has the reason.",
        "- **no sample**: the CPU can run none of PyTorch's samples.",
        f"- Dtypes: {_legend()}. Where none is named, PyTorch's CPU has no such operator for it, or no gradient.", "",
    ]  # fmt: skip
    for title, group in itertools.groupby(rows, key=lambda row: section(row.name)):
        lines += [f"## {title}", "", "| operator | forward | backward | why |", "|---|---|---|---|"]
        for row in group:
            lines.append(f"| `{row.name}` | {_cell(row.forward)} | {_cell(row.backward)} | {row.why} |")
        lines.append("")
    return "\n".join(lines)


def _legend() -> str:
    groups = [f"{name} are {', '.join(members)}" for name, members in GROUPS.items()]
    return "; ".join([*groups, "f32 is `float32`, c64 `complex64`, i64 `int64`, u8 `uint8`, and so on"])


def _counts(states: Iterable[States]) -> dict[str, int]:
    words = [word for by_dtype in states for word in by_dtype.values()]
    return {word: words.count(word) for word in set(words)}


def parse(text: str) -> dict[str, Entry]:
    """The rows of a page, by the operator's name."""
    found = {}
    for line in text.splitlines():
        if (match := re.fullmatch(r"\| `([^`]+)` \| (.*?) \| (.*?) \| (.*) \|", line)) is not None:
            found[match[1]] = Entry(match[1], states_of(match[2]), states_of(match[3]), match[4])
    return found


def expected() -> dict[str, set[str]]:
    """The dtypes that the page has to have of each operator."""
    found: dict[str, set[str]] = {}
    for op in op_db:
        for dtype in SHORT:
            if op.supports_dtype(getattr(torch, dtype), "cpu"):
                found.setdefault(opinfo.full_name(op), set()).add(dtype)
    return found


def main() -> int:
    """Runs what is missing, writes the page, and says what is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=Path, default=Path("build/opinfo"), help="folder of the rows that are known")
    parser.add_argument("--write", type=Path, help="file for the page")
    parser.add_argument("--no-run", action="store_true", help="only make the page")
    options, arguments = parser.parse_known_args()
    if not options.no_run:
        run(options.rows, arguments)
    rows = read(options.rows)
    if options.write:
        options.write.write_text(page(entries(rows)))
    wrong = [
        f"{row['kind']} {name} {dtype} {way}: {' '.join(row['detail'].split())[:200]}"
        for (dtype, way), by_name in rows.items()
        for name, row in by_name.items()
        if row["kind"] in ("wrong", "crash") and (name, dtype) not in KNOWN
    ]
    print("\n".join(wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
