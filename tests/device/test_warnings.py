# SPDX-License-Identifier: Apache-2.0
"""What PyTorch's CPU kernels warn of the device's calls warn of, as often, and of nothing else."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
import warnings_case

CALLS: dict[str, Callable[[str], Any]] = {
    "bytes_index": lambda d: torch.arange(3.0, device=d)[torch.tensor([1, 0, 1], dtype=torch.uint8, device=d)],
    "bytes_place": lambda d: torch.arange(3.0, device=d).index_put_(
        (torch.tensor([1, 0, 1], dtype=torch.uint8, device=d),), torch.ones(2, device=d)
    ),
    "bytes_choose": lambda d: torch.where(
        torch.tensor([1, 0], dtype=torch.uint8, device=d), torch.ones(2, device=d), torch.zeros(2, device=d)
    ),
    "bytes_fill": lambda d: torch.arange(3.0, device=d).__setitem__(
        torch.tensor([1, 0, 1], dtype=torch.uint8, device=d), 7.0
    ),
    "bytes_scatter": lambda d: torch.arange(3.0, device=d).masked_scatter_(
        torch.tensor([1, 0, 1], dtype=torch.uint8, device=d), torch.ones(3, device=d)
    ),
    "place_in_expanded": lambda d: (
        torch.zeros(1, device=d).expand(3).index_put_((torch.tensor([0], device=d),), torch.ones(1, device=d))
    ),
    "real_of_complex": lambda d: torch.ones(3, dtype=torch.complex64, device=d).to(torch.float32),
    "deviation_of_one": lambda d: torch.ones(1, device=d).std(),
    "variance_along_one": lambda d: torch.ones(3, 1, device=d).var(1),
    "variance_of_a_number": lambda d: torch.ones((), device=d).var(0),
    "variance_of_nothing": lambda d: torch.ones(2, 0, device=d).var(1),
    "variance_without_results": lambda d: torch.ones(0, 2, device=d).var(1),
    "corrected_too_far": lambda d: torch.var_mean(torch.ones(3, device=d), correction=5),
    "enough": lambda d: torch.ones(3, device=d).std(),
    "reduced_by_index": lambda d: torch.zeros(3, device=d).index_reduce(
        0, torch.tensor([0, 1], device=d), torch.ones(2, device=d), "prod"
    ),
    **{
        f"scattered_{name}": lambda d, function=function: function(
            torch.zeros(2, 3, device=d), torch.tensor([[1, 0, 1]], device=d), torch.ones(2, 3, device=d)
        )
        for name, function in {
            "sum": lambda x, i, y: torch.scatter(x, 0, i, y, reduce="add"),
            "in_place": lambda x, i, y: x.scatter_(0, i, y, reduce="multiply"),
            "into": lambda x, i, y: torch.scatter(x, 0, i, y, reduce="add", out=torch.empty(0, device=x.device)),
            "number": lambda x, i, y: torch.scatter(x, 0, i, 2.0, reduce="add"),
        }.items()
    },
    "absolute_of_complex": lambda d: torch.ones(3, dtype=torch.complex64, device=d).abs(),
    "resized quotient": lambda d: torch.fmod(
        torch.ones(3, dtype=torch.int64, device=d), 2, out=torch.ones(5, dtype=torch.int64, device=d)
    ),
    "resized": lambda d: torch.add(torch.ones(3, device=d), 1, out=torch.ones(5, device=d)),
}


@pytest.fixture(autouse=True)
def _each_time() -> Iterator[None]:
    """Also what PyTorch says once in a process."""
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    yield
    torch.set_warn_always(before)


def heard(call: Callable[[str], Any], device: str) -> tuple[list[str], str]:
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        try:
            call(device)
        except RuntimeError as error:
            complaint = str(error)
        else:
            complaint = ""
    texts = (str(warning.message).partition(" (Triggered")[0] for warning in given)
    return [text for text in texts if "runs on the CPU" not in text], complaint


@pytest.mark.parametrize("name", CALLS)
def test_warnings_are_the_cpus(device: str, name: str) -> None:
    """At the first call, which compiles, and at the next."""
    expected = heard(CALLS[name], "cpu")
    assert [heard(CALLS[name], device) for _ in range(2)] == [expected] * 2


#: A few operators that PyTorch warns of, or might; ``tools/opinfo.py --check warnings`` has all.
@pytest.mark.parametrize("name", ["var_mean", "index_reduce.prod", "sgn", "to_sparse", "where"])
def test_warnings_of_operators(device: str, name: str) -> None:
    op = next(op for op in op_db if name == ".".join(filter(None, (op.name, op.variant_test_name))))
    outcome = warnings_case.run(op, torch.float32, device, 2)
    assert outcome.kind == "native", outcome.detail
