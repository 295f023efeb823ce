# SPDX-License-Identifier: Apache-2.0
"""Each public name of ``torch.cuda`` is there under ``torch.<device>``, or docs/cuda-names.md says why not."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import cuda_names  # noqa: E402
import torch_requirement  # noqa: E402

#: The page is about the newest release; names that came with it are not there in others.
IS_NEWEST = torch_requirement.release(torch.__version__) == torch_requirement.RELEASES[-1]


def test_each_name_is_there_or_explained(device_module: ModuleType) -> None:
    missing = {name for name in cuda_names.names() if not hasattr(device_module, name)}
    assert missing == set(cuda_names.WHY) if IS_NEWEST else missing <= set(cuda_names.WHY)


@pytest.mark.skipif(not IS_NEWEST, reason="the page has the names of the newest release")
def test_the_page_is_what_the_tool_writes() -> None:
    assert (ROOT / "docs" / "cuda-names.md").read_text() == cuda_names.page()


def test_functions_take_the_same_arguments(device_module: ModuleType) -> None:
    different = {}
    for name in torch.cuda.__all__:
        theirs, ours = getattr(torch.cuda, name), getattr(device_module, name, None)
        if not inspect.isfunction(theirs) or not callable(ours):
            continue
        wanted = [p.name for p in inspect.signature(theirs).parameters.values() if p.kind is not p.VAR_KEYWORD]
        found = list(inspect.signature(ours).parameters)
        if found[: len(wanted)] != wanted:
            different[name] = (wanted, found)
    assert not different
