# SPDX-License-Identifier: Apache-2.0
"""docs/operators.md says where each operator runs: it names all of PyTorch's, and some are tried again each day."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import opinfo  # noqa: E402
import opinfo_case  # noqa: E402
import supported  # noqa: E402

PAGE = (ROOT / "docs" / "operators.md").read_text()
ENTRIES = supported.parse(PAGE)
#: Other operators every day; a failure names them.
SEED = int(time.time()) // 86400
#: How many are tried in each run of the tests.
SOME = 6

is_of_this_release = pytest.mark.skipif(
    f"with PyTorch {torch.__version__.split('+')[0]} " not in PAGE, reason="the page is of another release of PyTorch"
)


@is_of_this_release
def test_the_page_names_every_operator_and_dtype() -> None:
    assert {name: set(entry.forward) for name, entry in ENTRIES.items()} == supported.expected()


@is_of_this_release
def test_the_page_is_as_the_tool_writes_it() -> None:
    assert supported.page(list(ENTRIES.values())) == PAGE


def _some() -> list[tuple[str, str, str, str]]:
    """Some of the page's operators with a dtype, a way and where it ran."""
    every = [
        (name, dtype, way, word)
        for name, entry in ENTRIES.items()
        for way, states in zip(supported.WAYS, (entry.forward, entry.backward), strict=True)
        for dtype, word in states.items()
    ]
    step = len(every) // SOME
    return every[SEED * 7919 % step :: step][:SOME]


@is_of_this_release
@pytest.mark.parametrize(("name", "dtype", "way", "word"), _some())
def test_some_run_where_the_page_says(name: str, dtype: str, way: str, word: str, device: str) -> None:
    if torch.get_device_module(device).get_device_properties().driver != "host":
        pytest.skip("the page is of the driver `host`")
    op, *_ = opinfo.selected(f"^{re.escape(name)}$", getattr(torch, dtype))
    outcome = opinfo_case.run(op, getattr(torch, dtype), device, 1, way)
    assert supported.WORDS[outcome.kind] == word, (outcome, f"seed {SEED}: `make opinfo` writes the page anew")
