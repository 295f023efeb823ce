# SPDX-License-Identifier: Apache-2.0
"""``outboard new``: writes a package that brings a chip to PyTorch: driver, build, tests. It works as written."""

from __future__ import annotations

import argparse
import keyword
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

from outboard import torch_release
from outboard.version import __version__

HELP = "write a package for a chip of your own"

#: The packages as files, in which a chip is called "mychip": by language, and of each what all kinds have, and what
#: each has of its own.
TEMPLATES = Path(__file__).parents[1] / "templates"
_COMMON = "common"
#: What the driver's part for the code of each kind is called. A kind has the name of the level of `outboard conform`
#: that says most about it.
_KINDS = {"graph": "executables", "kernels": "programs"}
#: Of each language: its folders, with "extension" for what setuptools compiles itself, and how its files end.
_LANGUAGES = {
    "c": (("extension", "c"), "c"),
    "c++": (("extension", "c"), "cpp"),
    "python": (("extension", "python"), "py"),
    "rust": (("rust",), "rs"),
}
#: A part of a table, which goes into the README.
_FILES = "files.md"


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    parser.add_argument("name", help="the chip's name: of the device, the driver and the Python package")
    parser.add_argument(
        "--kind",
        choices=list(_KINDS),
        default="kernels",
        help="kernels: the chip runs programs of a language like C (the default); graph: its compiler takes graphs",
    )
    parser.add_argument("--language", choices=list(_LANGUAGES), default="c", help="of the driver; default: c")
    parser.add_argument("--directory", type=Path, help="where to; default: a new folder of the chip's name")


def run(options: argparse.Namespace) -> int:
    """Writes the package. Returns 2 if the name or the folder will not do."""
    name, folder = options.name, options.directory or Path(options.name)
    if problem := _problem(name):
        print(f"{name!r} cannot be a chip's name: {problem}")
        return 2
    if folder.exists() and any(folder.iterdir()):
        print(f"{folder} is not empty")
        return 2
    for path, text in package(name, options.kind, options.language):
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    print(f"{folder} is written; {folder / 'README.md'} says what is where. To try it:")
    print(f"  cd {folder} && pip install --no-build-isolation .")
    print(f"  outboard conform --driver {name} --level {options.kind}")
    return 0


def _problem(name: str) -> str:
    """Why neither PyTorch nor Python could have a device and a package of that name; "" if they can."""
    if re.fullmatch("[a-z]+", name) is None:
        return "PyTorch's names of devices have letters alone, and a package's are lower-case"
    if keyword.iskeyword(name) or name in sys.stdlib_module_names:
        return "Python has it already"
    if hasattr(torch, name):
        return f"there is a torch.{name}"
    return ""


def package(name: str, kind: str, language: str) -> Iterator[tuple[str, str]]:
    """The files of a package, by path."""
    folders, ending = _LANGUAGES[language]
    code = _KINDS[kind]
    roots = [TEMPLATES / folder / part for folder in (_COMMON, *folders) for part in (_COMMON, kind)]
    table = "".join((root / _FILES).read_text() for root in roots if (root / _FILES).exists())
    words = {
        "LEVEL_OF_KIND": kind,
        "VERSION_OF_OUTBOARD": f"{__version__}+torch{torch_release.release(torch.__version__)}",
        "FILES_OF_THE_PACKAGE": table.rstrip(),
        "CODE_OF_KIND": code,
        "CODE_FILE": f"{code}.{ending}",
    }
    for root in roots:
        for file in sorted(path for path in root.rglob("*") if path.is_file() and "__pycache__" not in path.parts):
            path, text = str(file.relative_to(root)), file.read_text()
            if path == _FILES:
                continue
            for word, meaning in words.items():
                text = text.replace(word, meaning)
            if language == "c++":
                text = re.sub(
                    r"(driver|programs|executables|\*)\.c\b", r"\1.cpp", text.replace("-std=c11", "-std=c++20")
                )
                path = re.sub(r"\.c$", ".cpp", path)
            yield _named(path, name), _named(text, name)


def _named(text: str, name: str) -> str:
    return text.replace("mychip", name).replace("MYCHIP", name.upper())
