# SPDX-License-Identifier: Apache-2.0
"""Plans that come with Outboard: a fresh cache plans nothing, and nothing is used that is another's or untrusted."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from outboard.compiler.plans import cache, files, shipped
from outboard.compiler.target import target_of
from tests.conftest import RunPython

ROOT = Path(__file__).resolve().parents[2]
CALL = b"aten::example" + b"\0signature"


def _snippet() -> str:
    """README's first example."""
    found = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    assert found is not None
    return found[1].replace('"ocl"', "name")


_START = "import torch\nname = torch._C._get_privateuse1_backend_name()\nmodule = getattr(torch, name)\n"
_BODY = "torch.manual_seed(1)\n" + _snippet() + "result = x.cpu() @ model.weight.detach().cpu().T\n"


def _making(folder: Path) -> str:
    """A program that makes the files as a wheel's are made."""
    return f"""{_START}
import sys
sys.path.insert(0, {str(ROOT / "tools")!r})
import ship_plans
from pathlib import Path
from outboard.compiler.plans import shipped
def run():
    exec({_BODY!r}, {{"name": name, "torch": torch}})
entries = ship_plans.collect(run)
assert len(entries) > 3, entries
assert all(set(shipped.ALWAYS_NEEDED) <= set(entry.needs) for known in entries.values() for entry in known)
ship_plans.write(Path({str(folder)!r}), [(entries, ship_plans.portable_programs())])
"""


def _using(folder: Path) -> str:
    """A program that has the files, and plans nothing."""
    return f"""{_START}
from pathlib import Path
from outboard import _C
from outboard.compiler.plans import shipped
shipped.FILE = Path({str(folder / "shipped")!r})
_C.set_shipped_programs({str(folder / "programs")!r})
{_BODY}
stats = module.compile_stats()
assert stats["compiled"] == 0 and stats["disk_hits"] > 3, stats
assert module.fallbacks() == {{}}
torch.testing.assert_close(model(x).cpu(), result + model.bias.cpu())
torch.testing.assert_close(model.bias.grad.cpu(), torch.full((2,), 4.0))
programs = _C.program_statistics(0)
"""


def test_the_example_of_readme_plans_nothing_with_an_empty_cache(run_python: RunPython, tmp_path: Path) -> None:
    """The first process makes the files, the second has them and an empty cache."""
    run_python(_making(tmp_path), OUTBOARD_CACHE_DIR=str(tmp_path / "first"))
    run_python(_using(tmp_path), OUTBOARD_CACHE_DIR=str(tmp_path / "second"))


def test_the_example_of_readme_builds_nothing_on_the_host_driver(run_python: RunPython, tmp_path: Path) -> None:
    """Programs made for a level of processors run on all that have it, however these compile for themselves."""
    host = {"OUTBOARD_DRIVER": "host"}
    try:
        run_python(_making(tmp_path), **host, OUTBOARD_HOST_MARCH="x86-64-v3", OUTBOARD_CACHE_DIR=str(tmp_path / "1"))
    except AssertionError as error:
        if "cannot run code for" in str(error):
            pytest.skip("the processor has no AVX2")
        raise
    # The same vectors: plans for others' would be other plans.
    using = _using(tmp_path) + "assert programs['built'] == 0 and programs['loaded_from_disk'] > 3, programs\n"
    run_python(using, **host, OUTBOARD_HOST_MARCH="haswell", OUTBOARD_CACHE_DIR=str(tmp_path / "2"))
    # A processor without them builds its own.
    using = _using(tmp_path) + "assert programs['built'] > 3 and programs['loaded_from_disk'] == 0, programs\n"
    using = using.replace('stats["compiled"] == 0 and stats["disk_hits"] > 3', "True")
    run_python(using, **host, OUTBOARD_HOST_MARCH="x86-64-v2", OUTBOARD_CACHE_DIR=str(tmp_path / "3"))


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with an entry for the device, under ``CALL``."""
    path = tmp_path / "plans"
    entry = shipped.Entry(shipped.needs_of(target_of(0), {"lanes"}), False, [b"a plan"])
    shipped.write(path, {CALL: [entry]})
    monkeypatch.setattr(shipped, "FILE", path)
    return path


def _signature() -> bytes:
    return target_of(0).cache_key.encode() + b"\0" + CALL


def test_an_entry_is_found_by_device_and_call(file: Path) -> None:
    assert shipped.find(_signature()) == (False, [b"a plan"])
    assert cache.load(_signature()) == (False, [b"a plan"])
    assert shipped.find(_signature() + b"x") is None
    assert shipped.find(b"another device\0" + CALL) is None


def test_only_what_was_looked_at_must_be_alike() -> None:
    target = target_of(0)
    entry = shipped.Entry(shipped.needs_of(target, {"lanes", "cache_key"}), False, [])
    assert "cache_key" not in entry.needs
    assert entry.fits(dataclasses.replace(target, cache_key="other", compute_units=99, local_memory=5))
    assert entry.fits(dataclasses.replace(target, has_fp16=not target.has_fp16))
    assert not entry.fits(dataclasses.replace(target, vector_width=1))
    assert not entry.fits(dataclasses.replace(target, has_fp64=not target.has_fp64))


def test_another_compilers_plans_are_not_used(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_sources", lambda package: b"another compiler")
    assert shipped.find(_signature()) is None


def test_another_builds_of_pytorch_are_alike(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    release = torch.__version__.split("+")[0]
    monkeypatch.setattr(torch, "__version__", f"{release}+cu999")
    assert shipped.find(_signature()) is not None
    monkeypatch.setattr(torch, "__version__", "9.9.9")
    assert shipped.find(_signature()) is None


@pytest.mark.parametrize("damage", ["writable", "cut", "flipped"])
def test_what_is_damaged_or_others_could_write_is_not_used(file: Path, damage: str) -> None:
    content = file.read_bytes()
    if damage == "writable":
        file.chmod(0o666)
    elif damage == "cut":
        file.write_bytes(content[:-1])
    else:
        file.write_bytes(content[:60] + bytes([content[60] ^ 1]) + content[61:])
    assert shipped.find(_signature()) is None


def test_a_new_plan_is_kept_beside_those_that_were_shipped(file: Path, tmp_path: Path, run_python: RunPython) -> None:
    """Else the next process would find the new one alone in its cache."""
    run_python(
        f"""
        from pathlib import Path
        import torch
        from outboard.compiler.plans import cache, shipped
        shipped.FILE = Path({str(file)!r})
        cache.store({_signature()!r}, False, b"another")
        assert cache.load({_signature()!r}) == (False, [b"a plan", b"another"])
        """,
        OUTBOARD_CACHE_DIR=str(tmp_path / "cache"),
    )
