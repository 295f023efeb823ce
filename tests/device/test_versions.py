# SPDX-License-Identifier: Apache-2.0
"""Which tensors a call counts as written; ``tools/opinfo.py --check versions`` has all operators."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing._internal.common_methods_invocations import foreach_unary_op_db, op_db

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
import versions_case

OPERATORS = {op.name: op for op in (*op_db, *foreach_unary_op_db)}


@pytest.mark.parametrize("name", ["add", "sort", "index_put", "native_batch_norm", "_foreach_neg"])
def test_versions(device: str, name: str) -> None:
    outcome = versions_case.run(OPERATORS[name], torch.float32, device, 1)
    assert outcome.kind == "native", outcome.detail


def test_a_write_that_is_not_counted_is_found(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def silently(x: Any, *args: Any, **kwargs: Any) -> Any:
        with torch.autograd._unsafe_preserve_version_counter(x):
            return torch.neg_(x)

    monkeypatch.setattr(OPERATORS["neg"], "inplace_variant", lambda x: (silently if x.is_cpu else torch.neg_)(x))
    assert versions_case.run(OPERATORS["neg"], torch.float32, device, 1).kind == "wrong"
