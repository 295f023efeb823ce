# SPDX-License-Identifier: Apache-2.0
"""Dialects: who writes which, what their words are, and what becomes of a device whose dialect nobody writes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

import outboard
from outboard.compiler import dialects
from outboard.compiler.dialects import Dialect, Unsupported
from outboard.compiler.target import Target
from tests.conftest import RunPython

#: What OpenCL C and CUDA C++ have of their own, and the words of programs stand for.
OWN_NAMES = re.compile(
    r"__(kernel|global|local|constant|shared|device)\b|__global__|get_(global|local)_(id|size)\(|get_group_id\("
    r"|get_num_(sub_)?groups\(|get_sub_group_\w+\(|sub_group_\w+\(|vload_half\(|vstore_half_rte\("
    r"|\bbarrier\(|__attribute__|__launch_bounds__|atomicAdd|atomic_add\(|blockIdx|threadIdx|#pragma OPENCL"
)
#: Vectors of a type of our own are for languages that have vectors.
ELSEWHERE = re.compile(r"__attribute__\(\(ext_vector_type")


@pytest.fixture
def others(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, object]]:
    """Dialects that packages bring, by name: what an entry point loads."""
    brought: dict[str, object] = {}

    class Found(EntryPoint):
        def load(self) -> object:
            return brought[self.name]

    def entry_points(group: str) -> list[EntryPoint]:
        return [Found(name, "brought", group) for name in brought]

    monkeypatch.setattr(dialects, "entry_points", entry_points)
    dialects.find.cache_clear()
    yield brought
    dialects.find.cache_clear()


def test_ours() -> None:
    assert {"opencl-c", "cuda", "hip"} <= set(dialects.names())
    for name in ("opencl-c", "cuda", "hip"):
        assert dialects.is_known(name) and dialects.find(name).name == name
        assert dialects.find(name).program("text").endswith("text")


def test_a_package_brings_one(others: dict[str, object]) -> None:
    others["esperanto"] = mine = Dialect("esperanto", "#define OB_KERNEL kerno\n", vectors=False)
    assert dialects.is_known("esperanto") and dialects.find("esperanto") is mine
    assert "esperanto" in dialects.names()
    assert Target(dialect="esperanto").has_dialect


def test_a_package_brings_something_else(others: dict[str, object]) -> None:
    others["volapuk"] = "words"
    with pytest.raises(Unsupported, match="not a Dialect of that name"):
        dialects.find("volapuk")


def test_nobody_brings_it() -> None:
    assert not dialects.is_known("esperanto") and not dialects.is_known("")
    assert not Target(dialect="esperanto").has_dialect and not Target(dialect="").has_dialect
    with pytest.raises(Unsupported, match=r"no package here knows the dialect 'esperanto' \(known: .*cuda"):
        dialects.find("esperanto")


@pytest.mark.parametrize(
    ("text", "needs"),
    [
        ("float x;", False),
        ("double x;", True),
        ("convert_double4(x)", False),
        ("double4 x;", True),
        ("/* double */ float x; // double", False),
        ("#ifdef OB_HAS_DOUBLES\ndouble x;\n#endif\n", False),
        ("#ifdef OB_HAS_DOUBLES\nfloat x;\n#else\ndouble x;\n#endif\n", True),
        ("#ifdef OB_HAS_DOUBLES\n#if 1\ndouble x;\n#endif\ndouble y;\n#endif\n", False),
        ("#ifdef OB_HAS_DOUBLES\n#endif\ndouble x;\n", True),
        ("#define T double\n", True),
    ],
)
def test_who_needs_doubles(text: str, needs: bool) -> None:
    assert dialects.uses_doubles(text) == needs


def test_every_dialect_has_every_word() -> None:
    """What programs say, each of our dialects defines."""
    root = Path(outboard.__file__).parent / "compiler"
    sources = [path for path in root.rglob("*.py") if path.name != "words.py"]
    used = set(re.findall(r"\bOB_[A-Z_]+\b", "\n".join(path.read_text() for path in sources)))
    local = set(re.findall(r"#define (OB_[A-Z_]+)", "\n".join(path.read_text() for path in sources)))
    for name in ("opencl-c", "cuda", "hip"):
        words = dialects.find(name).words
        missing = sorted(word for word in used - local if not re.search(rf"#define {word}\b", words))
        assert missing == [], f"{name} lacks {missing}"


def test_nobody_else_names_a_language() -> None:
    """Printers and kernels write words; what languages call them stands in ``dialects/<name>`` alone."""
    root = Path(outboard.__file__).parent / "compiler"
    own = {root / "dialects" / name for name in ("opencl", "cuda", "hip")}
    found = []
    for path in root.rglob("*.py"):
        if own & set(path.parents):
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if OWN_NAMES.search(ELSEWHERE.sub("", line)):
                found.append(f"{path.relative_to(root)}:{number}: {line.strip()}")
    assert found == []


def test_a_device_that_nobody_writes_for(run_python: RunPython) -> None:
    """Its operators run on the CPU, eager and in graphs, counted; doctor says why."""
    printed = run_python(
        """
import torch, torch.nn.functional as F
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.LayerNorm(5), torch.nn.GELU(), torch.nn.Linear(5, 2))
x, y = torch.randn(7, 6), torch.randint(2, (7,))
def losses(device, wrap):
    from copy import deepcopy
    mine = deepcopy(model).to(device)
    optimizer = torch.optim.AdamW(mine.parameters(), lr=0.1)
    run = wrap(mine)
    seen = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = F.cross_entropy(run(x.to(device)), y.to(device))
        loss.backward()
        optimizer.step()
        seen.append(loss.detach().cpu())
    return torch.stack(seen)
expected = losses("cpu", lambda m: m)
torch.testing.assert_close(losses("ocl", lambda m: m), expected, rtol=1e-4, atol=1e-5)
before = sum(torch.ocl.fallbacks().values())
assert before > 0
torch.testing.assert_close(losses("ocl", torch.compile), expected, rtol=1e-4, atol=1e-5)
assert sum(torch.ocl.fallbacks().values()) > before
with torch.no_grad():
    torch.testing.assert_close(torch.randn(3, 4).to("ocl").t().contiguous().cpu().shape, torch.Size([4, 3]))
from outboard.cli import inspection
print(inspection.smoke_test("ocl:0"))
""",
        OUTBOARD_DRIVER="strict",
        OUTBOARD_STRICT_DIALECT="esperanto",
    )
    assert "'esperanto'" in printed and "docs/dialects.md" in printed


@pytest.mark.parametrize(
    ("text", "needs"),
    [
        ("OB_ATOMIC_ADD(p, v);", False),
        ("OB_ATOMIC_ADD_LONG(p, v);", True),
        ("old = OB_EXCHANGE_LONG(q, seen, v);", True),
        ("/* OB_EXCHANGE_LONG */ OB_EXCHANGE(q, seen, v); // OB_ATOMIC_ADD_LONG", False),
    ],
)
def test_who_needs_atomics_of_64_bits(text: str, needs: bool) -> None:
    assert dialects.uses_long_atomics(text) == needs


def test_sub_groups_larger_than_work_groups_are_none() -> None:
    assert Target.from_properties({"sub_group_size": 32, "max_work_group_size": 1}).sub_group_size == 1
    assert Target.from_properties({"sub_group_size": 32, "max_work_group_size": 64}).sub_group_size == 32
