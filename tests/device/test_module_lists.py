# SPDX-License-Identifier: Apache-2.0
"""A part of the modules and optimizers of PyTorch's own tests; with all tests, another and larger part each day."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.conftest import FULL
from tools import module_lists

SEED, SHARE = (datetime.date.today().toordinal(), 1.0) if FULL else (5, 0.05)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("way", ["eager", pytest.param("compiled", marks=pytest.mark.full("compiles for minutes"))])
def test_modules_and_optimizers(device: str, way: str) -> None:
    compiled = way == "compiled"
    cases = module_lists.cases(SEED, SHARE / 10 if compiled else SHARE)
    found = {case.label: module_lists.difference(case, device, compiled) for case in cases}
    assert not {label: text for label, text in found.items() if text}


def test_differences_are_found(device: str) -> None:
    def case(run: Callable[[str], list[Any]]) -> module_lists.Case:
        return module_lists.Case("", lambda where, _: run(where))

    def refused(where: str) -> list[Any]:
        raise RuntimeError

    assert module_lists.difference(case(lambda where: [torch.ones(2) + (where == device)]), device)
    assert module_lists.difference(case(lambda where: [torch.ones(2)] if where == device else refused(where)), device)
    assert not module_lists.difference(case(refused), device)
    assert not module_lists.difference(case(lambda where: [torch.ones(2), None]), device)
