# SPDX-License-Identifier: Apache-2.0
"""How programs look follows from what a driver reports: never from the kind of device, nor from this machine's."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import outboard
from outboard.compiler.plans import plan as p
from outboard.compiler.plans.schema import serialize
from outboard.compiler.target import Target
from tests.lowering import compiling_for, plan_of_call, plan_of_operator

PROCESSOR = Target(vector_width=16, compute_units=4, max_work_group_size=256, local_memory=1 << 20)
GPU = Target(type="gpu", vector_width=1, compute_units=40, max_work_group_size=256, local_memory=32768)
MIB = 1 << 20

#: Operators of each family whose work is shared among compute units.
CALLS: list[tuple[str, tuple[Any, ...]]] = [
    ("aten::convolution", (torch.ones(2, 8, 9, 9), torch.ones(8, 8, 3, 3), None, [1], [1], [1], False, [0], 1)),
    ("aten::sort", (torch.ones(3, 50),)),
    ("aten::cumsum", (torch.ones(3, 50), 1)),
]
OPERATORS: list[tuple[str, tuple[Any, ...]]] = [
    ("aten::add.Tensor", (torch.ones(3, 5), torch.ones(5))),
    ("aten::sum", (torch.ones(1 << 16),)),
    ("aten::_softmax", (torch.ones(3, 5), 1, False)),
]


def sources(plan: p.Plan) -> list[str]:
    """The programs of a plan, without the words of the dialect."""
    return [source for source, _ in plan.programs]


@pytest.mark.parametrize("kind", ["cpu", "gpu", "accelerator"])
def test_the_kind_of_device_decides_nothing(kind: str) -> None:
    for device in (PROCESSOR, GPU):
        other = dataclasses.replace(device, type=kind)
        assert other.tuning == device.tuning
        for op, arguments in OPERATORS:
            with compiling_for(device):
                expected = serialize(plan_of_operator(op, arguments, device))
            with compiling_for(other):
                assert serialize(plan_of_operator(op, arguments, other)) == expected, op


@pytest.mark.parametrize("name", [r"\bis_cpu\b", r"target\.type\b"])
def test_no_code_asks_for_the_kind_of_device(name: str) -> None:
    folder = Path(outboard.__file__).parent / "compiler"
    texts = {path: path.read_text() for path in folder.rglob("*.py")}
    assert [path for path, text in texts.items() if re.search(name, text)] == []


def test_how_work_items_run() -> None:
    assert PROCESSOR.tuning.vectors and not GPU.tuning.vectors
    # A vector engine says so; a processor whose work-items are to run side by side, too.
    assert Target(type="accelerator", execution="vector", vector_width=1).tuning.vectors
    assert not dataclasses.replace(PROCESSOR, execution="simt").tuning.vectors
    assert not dataclasses.replace(PROCESSOR, execution="simt").tuning.sums_in_doubles
    assert not dataclasses.replace(PROCESSOR, has_fp64=False).tuning.sums_in_doubles


@pytest.mark.parametrize(
    "width, lanes, register", [(1, 4, 32), (2, 4, 32), (4, 8, 32), (8, 16, 32), (16, 16, 64), (256, 16, 64)]
)
def test_lanes(width: int, lanes: int, register: int) -> None:
    tuning = dataclasses.replace(PROCESSOR, vector_width=width, execution="vector").tuning
    assert (tuning.lanes, tuning.register) == (lanes, register)


def test_caches() -> None:
    unknown = PROCESSOR.tuning
    assert (unknown.k_block, unknown.ahead, unknown.far) == (256, 8192, 32 * MIB)

    def of(near: int, last: int) -> tuple[int, int, int]:
        tuning = dataclasses.replace(PROCESSOR, near_cache=near, last_cache=last).tuning
        return tuning.k_block, tuning.ahead, tuning.far

    assert of(49152, 256 * MIB) == (256, 8192, 256 * MIB)  # what is not a power of two is rounded down
    assert of(65536, MIB) == (512, 16384, MIB)
    assert of(16384, MIB) == (128, 4096, MIB)
    assert of(1024, MIB) == (64, 256, MIB)
    assert of(1 << 20, MIB) == (512, 1 << 18, MIB)


@pytest.mark.parametrize("device", [PROCESSOR, GPU], ids=["processor", "gpu"])
def test_a_plan_serves_any_number_of_compute_units(device: Target) -> None:
    for plan_of, calls in ((plan_of_operator, OPERATORS), (plan_of_call, CALLS)):
        for op, arguments in calls:
            plans = []
            for units in (1, 2, 64):
                target = dataclasses.replace(device, compute_units=units)
                with compiling_for(target):
                    plans.append(serialize(plan_of(op, arguments, target)))
            assert plans[0] == plans[1] == plans[2], op


def test_blocks_of_products_follow_the_first_cache() -> None:
    a = torch.ones(100, 700)
    depths = []
    for near in (16384, 32768, 65536):
        target = dataclasses.replace(PROCESSOR, near_cache=near)
        (text, *_) = sources(plan_of_call("aten::mm", (a, torch.ones(700, 100)), target))
        depths += re.findall(r"#define K_BLOCK (\d+)", text)
    assert depths == ["128", "256", "512"]
