# SPDX-License-Identifier: Apache-2.0
"""``outboard new``: what it writes installs, is the default device, conforms and passes its own tests, as printed in
docs/write-a-driver.md."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from processes import run_program

import outboard
from outboard.cli import main
from outboard.cli.new import package

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/write-a-driver.md"
#: One of each kind, and the rest, which differs from these in the languages' parts alone.
SOME = [("kernels", "c"), ("graph", "c++"), ("kernels", "python")]
OTHERS = [("kernels", "c++"), ("graph", "c"), ("graph", "python"), ("kernels", "rust"), ("graph", "rust")]
COMPILERS = {
    "c": ("cc", "-std=c11", "*.c", 2),
    "c++": ("c++", "-std=c++20", "*.cpp", 2),
    "python": ("cc", "-std=c11", "*.c", 1),
}
FULL = pytest.mark.full("builds and installs packages, and compiles many kernels with the system's compiler")


def write(folder: Path, name: str, kind: str, language: str) -> Path:
    assert main(["new", name, "--kind", kind, "--language", language, "--directory", str(folder / name)]) == 0
    return folder / name


def install(source: Path, target: Path) -> None:
    """As the README says, but beside the environment instead of into it."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-build-isolation", "--no-deps"]
    result = subprocess.run([*command, "--target", str(target), "."], cwd=source, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


def run(arguments: list[str], installed: Path) -> str:
    """What a program prints in an environment that has the package, too, and names no driver."""
    path = os.pathsep.join([str(installed), *filter(None, [os.environ.get("PYTHONPATH")]), str(ROOT)])
    environment = {"PYTHONPATH": path, "OUTBOARD_DRIVER": "", "OUTBOARD_PROFILE": ""}
    result = run_program(arguments, environment=environment, timeout=300, cold=True)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def make_library(folder: Path, language: str) -> Path:
    """Compiles the driver, in which nothing is worth a warning."""
    if language == "rust":
        if shutil.which("cargo") is None:
            pytest.skip("there is no cargo")
        environment = {**os.environ, "RUSTFLAGS": "-D warnings"}
        subprocess.run(["cargo", "build", "--quiet", "--offline"], cwd=folder, env=environment, check=True)
        return folder / "target/debug/libacme.so"
    compiler, standard, ending, count = COMPILERS[language]
    sources = [str(path) for path in (folder / "src/acme").glob(ending)]
    assert len(sources) == count
    command = [compiler, standard, "-Wall", "-Wextra", "-Wno-missing-field-initializers", "-Werror", "-shared", "-fPIC"]
    library = folder / "src/acme/libacme.so"
    subprocess.run([*command, f"-I{outboard.get_include()}", *sources, "-o", str(library)], check=True)
    return library


@pytest.mark.parametrize(
    ("kind", "language"), [*SOME, *(pytest.param(*each, marks=pytest.mark.full("as the others")) for each in OTHERS)]
)
def test_drivers_compile_without_a_warning(kind: str, language: str, tmp_path: Path) -> None:
    folder = write(tmp_path, "acme", kind, language)
    assert not [path for path in folder.rglob("*") if "mychip" in str(path)]
    words = "mychip|OF_KIND|CODE_FILE|OF_THE_PACKAGE|OF_OUTBOARD"
    assert not [path for path, text in package("acme", kind, language) if re.search(words, text, re.IGNORECASE)]
    library = str(make_library(folder, language))
    result = run_program(["-m", "outboard_conformance", "--driver", library, "--level", "memory"], timeout=300)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(("kind", "language"), [("kernels", "c"), ("graph", "c++")])
def test_optional_functions_are_added_as_the_guide_says(kind: str, language: str, tmp_path: Path) -> None:
    functions, entries = re.findall(r"^```c\n(.*?)^```", PAGE.read_text(), flags=re.MULTILINE | re.DOTALL)
    [driver] = write(tmp_path, "acme", kind, language).glob("src/acme/driver.c*")
    text, mark = driver.read_text(), "/* ---- what Outboard asks for ---- */"
    assert text.count(mark) == text.count("ACME_OPTIONAL_FUNCTIONS") == 1
    text = text.replace(mark, functions + mark).replace("ACME_OPTIONAL_FUNCTIONS", entries + "ACME_OPTIONAL_FUNCTIONS")
    driver.write_text(text)
    library = str(make_library(tmp_path / "acme", language))
    only = ["pinned_memory_is_memory", "pinned_memory_is_copied_as_any"]
    arguments = ["--driver", library, "--level", "memory", *(word for name in only for word in ("--only", name))]
    result = run_program(["-m", "outboard_conformance", *arguments], timeout=300)
    assert result.returncode == 0 and "2 kept" in result.stdout, result.stdout + result.stderr


def test_a_build_without_outboard_says_what_to_do(tmp_path: Path) -> None:
    folder = write(tmp_path, "acme", "kernels", "c")
    program = "import importlib.util, runpy; importlib.util.find_spec = lambda name: None; runpy.run_path('setup.py')"
    result = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True)
    assert result.returncode == 1 and "Outboard is not here: install its wheel first" in result.stderr


def test_a_driver_in_python_is_short(tmp_path: Path) -> None:
    folder = write(tmp_path, "acme", "kernels", "python") / "src/acme"
    count = sum(line_count(folder, name) for name in ("driver.py", "errors.py", "programs.py", "trampoline.c"))
    assert count <= 250


def with_driver_in_python(program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs a program with the driver as it is written, and tensors that take its memory at once."""
    library = make_library(write(folder, "acme", "kernels", "python"), "python")
    environment = {"OUTBOARD_DRIVER": str(library), "OUTBOARD_DRIVER_PYTHON": sys.executable, "OUTBOARD_PROFILE": ""}
    return run_program(["-c", program], environment={**environment, "OUTBOARD_LAZY": "0"}, timeout=120)


#: One thread gives memory back while it holds Python's lock, others take and give some without it.
CONTENTION = """
import threading, torch

def churn(number):
    for size in range(1, 40):
        kept = [torch.full((size * 20000,), number, dtype=torch.int32, device="ocl") for _ in range(3)]
        assert [int(each.cpu()[-1]) for each in kept] == [number] * 3
        torch.ocl.empty_cache()

threads = [threading.Thread(target=churn, args=[number]) for number in range(4)]
for each in threads: each.start()
for each in threads: each.join()
print("done")
"""


def test_threads_do_not_wait_for_each_other_for_ever_in_a_driver_in_python(tmp_path: Path) -> None:
    result = with_driver_in_python(CONTENTION, tmp_path)
    assert (result.returncode, result.stdout) == (0, "done\n"), result.stdout + result.stderr


#: The driver's process ends by itself.
LOSS = """
import os, pathlib, signal, torch

x = torch.arange(3).to("ocl")
torch.ocl.synchronize()

def is_driver(process):
    try:
        parent = (process / "stat").read_text().rpartition(")")[2].split()[1]
        return int(parent) == os.getpid() and b"acme.driver" in (process / "cmdline").read_bytes()
    except OSError:  # it has ended
        return False

[child] = filter(is_driver, pathlib.Path("/proc").glob("[0-9]*"))
os.kill(int(child.name), signal.SIGKILL)
try:
    x.cpu()
except RuntimeError as error:
    print(error)
"""


def test_a_driver_in_python_that_ends_is_a_device_that_is_lost(tmp_path: Path) -> None:
    result = with_driver_in_python(LOSS, tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "the process of the driver acme has ended" in result.stdout


@FULL
@pytest.mark.parametrize(("kind", "language"), [*SOME, *OTHERS])
def test_a_package_works_as_written(kind: str, language: str, tmp_path: Path) -> None:
    if language == "rust" and shutil.which("cargo") is None:
        pytest.skip("there is no cargo")
    folder = write(tmp_path, "acme", kind, language)
    install(folder, tmp_path / "installed")
    run(["-m", "outboard.cli", "conform", "--driver", "acme", "--level", kind], tmp_path / "installed")
    run(["-m", "pytest", "-q", "-p", "no:cacheprovider", str(folder / "tests")], tmp_path / "installed")


@FULL
def test_the_guide_does_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"^```(sh|python|text)\n(.*?)^```", PAGE.read_text(), flags=re.MULTILINE | re.DOTALL)
    commands = [line for kind, text in blocks if kind == "sh" for line in text.splitlines()]
    monkeypatch.chdir(tmp_path)
    for command in commands:
        words = command.split()
        if words[:2] == ["outboard", "new"]:
            assert main(words[1:]) == 0
        elif words[0] == "cd":
            monkeypatch.chdir(words[1])
        elif words[:2] == ["pip", "install"]:
            install(Path.cwd(), tmp_path / "installed")
        else:
            assert words[0] == "outboard"
            run(["-m", "outboard.cli", *words[1:]], tmp_path / "installed")
    programs = [(text, blocks[i + 1][1]) for i, (kind, text) in enumerate(blocks) if kind == "python"]
    assert programs
    lines = {kind: line_count(tmp_path / "acme/src/acme", kind) for kind in ("*.[ch]", "dialect.py")}
    assert f"{lines['*.[ch]']} lines of C so far, and {lines['dialect.py']} of a dialect" in PAGE.read_text()
    for program, printed in programs:
        assert run(["-c", program], tmp_path / "installed") == printed


def line_count(folder: Path, files: str) -> int:
    """Of all of them together."""
    return sum(len(path.read_text().splitlines()) for path in folder.glob(files))


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("chip3", "letters alone"),
        ("Chip", "letters alone"),
        ("json", "Python has it already"),
        ("lambda", "Python has it already"),
        ("cuda", "there is a torch.cuda"),
    ],
)
def test_names_that_cannot_be(name: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new", name, "--directory", str(tmp_path / "chip")]) == 2
    assert says in capsys.readouterr().out and not (tmp_path / "chip").exists()


def test_nothing_is_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "setup.py").write_text("mine")
    assert main(["new", "acme", "--directory", str(tmp_path)]) == 2
    assert "is not empty" in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["setup.py"]
