# SPDX-License-Identifier: Apache-2.0
"""Python's integers in compiled graphs, which compute with 64 bits."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch


@pytest.mark.parametrize("function", [lambda n: n * n, lambda n: n**3, lambda n: n + 2**63 - 1, lambda n: n << 40])
def test_integers_that_do_not_fit_are_refused(function: Callable[[int], int], device: str) -> None:
    x = torch.ones(3, device=device)
    compiled = torch.compile(lambda x, n: (x + n, function(n)), dynamic=True)
    for n in (3, 5):
        if function(n) < 2**63:
            assert compiled(x, n)[1] == function(n)
    with pytest.raises(RuntimeError, match="does not fit 64 bits"):
        compiled(x, 2**33)
    torch.testing.assert_close((x + 1).cpu(), torch.full((3,), 2.0))
