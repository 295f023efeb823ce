# SPDX-License-Identifier: Apache-2.0
"""bitsandbytes has no kernels for the device: its layers say so, and what does the job."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

pytestmark = pytest.mark.skipif(os.environ.get("OUTBOARD_TEST_ECOSYSTEM") != "1", reason="make test-ecosystem")


@pytest.mark.parametrize("kind", ["Linear8bitLt", "Linear4bit"])
def test_refusal(device: str, kind: str) -> None:
    library: Any = pytest.importorskip("bitsandbytes")
    options = {"has_fp16_weights": False} if kind == "Linear8bitLt" else {}
    layer = getattr(library.nn, kind)(64, 64, **options)
    with pytest.raises(NotImplementedError, match="torchao"):
        layer.to(device)


def test_cpu_is_let_through(device: str) -> None:
    library: Any = pytest.importorskip("bitsandbytes")
    layer = library.nn.Linear4bit(64, 64).to("cpu")
    assert layer.weight.dtype == torch.uint8
