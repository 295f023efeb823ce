# SPDX-License-Identifier: Apache-2.0
"""A part of ``tools/distributions.py``, with few draws, and that it finds what is wrong."""

from __future__ import annotations

import dataclasses
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from scipy import stats

TOOLS = Path(__file__).resolve().parents[2] / "tools"


@pytest.fixture(scope="module")
def judge() -> ModuleType:
    """``tools/distributions.py``."""
    specification = importlib.util.spec_from_file_location("distributions", TOOLS / "distributions.py")
    assert specification is not None and specification.loader is not None
    module = sys.modules["distributions"] = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


#: One of each kind of draw, in each dtype that it has.
PART = (
    "randn", "uniform_(-3, 5)", "uniform_(0, 1e+300)", "uniform_(0, 1e+37)", "exponential_(1)", "cauchy_()",
    "log_normal_(0.5, 0.25)", "lowest 12 of 53 digits of rand", "lowest 12 of 24 digits of rand",
    "lowest 11 of 11 digits of rand", "lowest 8 of 8 digits of rand", "bernoulli_(0.3)", "geometric_(0.001)",
    "random_()", "random_(-7, 1000)", "dropout(0.1)", "multinomial with replacement", "multinomial without",
    "imaginary parts of complex randn", "place of the first in randperm",
)  # fmt: skip


@pytest.mark.parametrize("name", PART)
def test_draws_follow_their_laws(judge: ModuleType, device: str, name: str) -> None:
    """Seeds are fixed, so that what is improbable is so on each run."""
    chosen = [case for case in judge.cases() if case.name == name]
    assert chosen
    for case in chosen:
        verdict = judge.judge(case, 50_000, device)
        assert not verdict.failed, verdict


def test_what_is_wrong_is_found(judge: ModuleType, device: str) -> None:
    [case] = [case for case in judge.cases() if case.label == "randn, float32"]
    draw = case.draw
    wrong = {
        "another law": {"law": stats.norm(0, 1.05)},
        "a wrong end": {"support": "(-inf, 2)"},
        "few digits": {"draw": lambda n, d: torch.round(draw(n, d) * 64) / 64},
        "neighbours": {"draw": lambda n, d: (x := draw(n + 1, d))[1:] + 0.1 * x[:-1], "law": stats.norm(0, 1.01**0.5)},
        "repeated numbers": {"draw": lambda n, d: draw(n // 2, d).repeat_interleave(2)},
    }
    for name, change in wrong.items():
        verdict = judge.judge(dataclasses.replace(case, **change), 100_000, device)
        assert verdict.failed, name
