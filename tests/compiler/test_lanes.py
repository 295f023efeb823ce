# SPDX-License-Identifier: Apache-2.0
"""Loops in vectors of fewer lanes than those of the processor that runs the tests: as on a CPU of 16-byte vectors, of
which float32 has 4 (8 lanes: two vectors), and on one of 8-byte vectors."""

from __future__ import annotations

import pytest

from tests.conftest import RunPython

PROGRAM = """
import itertools, torch

device = torch._C._get_privateuse1_backend_name()
DTYPES = (torch.float32, torch.float16, torch.float8_e5m2, torch.int64, torch.bool)
#: Functions of two matrices, of which either may lie across the other's rows.
FUNCTIONS = {
    "copy": lambda x, y: x.contiguous(),
    "cat": lambda x, y: torch.cat([x, y], 1),
    "where": lambda x, y: torch.where(y > 1, x, y),
    "product": lambda x, y: x * y + x,
    "sum": lambda x, y: (x + y).sum(0),
    "largest": lambda x, y: torch.maximum(x, y).amax(1),
    "softmax": lambda x, y: torch.softmax(x - y, 1),
    "running": lambda x, y: x.cumsum(0) + y.cumsum(1),
}
torch.manual_seed(0)
for dtype, (rows, columns) in itertools.product(DTYPES, ((70, 33), (16, 16), (5, 40))):
    values = torch.randn(2, rows, columns, dtype=torch.float64).mul(4).to(dtype)
    plain = values.unbind()
    across = [each.t().contiguous().t() for each in plain]
    moved_alone = dtype.itemsize == 1 and dtype.is_floating_point
    for name, function in FUNCTIONS.items():
        if moved_alone and name not in ("copy", "cat") or dtype == torch.bool and name in ("sum", "softmax"):
            continue
        if name == "softmax" and not dtype.is_floating_point:
            continue
        for x, y in itertools.product((plain[0], across[0]), (plain[1], across[1])):
            expected, found = function(x, y), function(x.to(device), y.to(device)).cpu()
            assert found.dtype == expected.dtype
            near = (1e-5 if dtype.itemsize > 2 else 3e-2) if dtype.is_floating_point else 0
            say = lambda text: f"{name} of {dtype}, {rows} rows: {text}"
            torch.testing.assert_close(found.double(), expected.double(), rtol=near, atol=near, msg=say)
"""


@pytest.mark.parametrize("width", [pytest.param(2, marks=pytest.mark.full("as with 4")), 4])
def test_loops(width: int, run_python: RunPython) -> None:
    settings = {"OUTBOARD_DRIVER": "strict", "OUTBOARD_STRICT_DRIVER": "host", "OUTBOARD_STRICT_DELAY": "0"}
    run_python(PROGRAM, OUTBOARD_STRICT_VECTOR_WIDTH=str(width), **settings)
