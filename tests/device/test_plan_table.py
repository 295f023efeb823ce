# SPDX-License-Identifier: Apache-2.0
"""The table of plans is bounded: what was not used lately goes, comes back when it is needed, and nobody is hurt."""

from __future__ import annotations

import textwrap
from collections.abc import Callable

import pytest

#: 90 signatures, whose results are checked against the CPU; the table holds 64.
SIGNATURES = """
import itertools, torch
DEVICE = torch._C._get_privateuse1_backend_name()
stats = torch.get_device_module(DEVICE).compile_stats
OPERATORS = [torch.add, torch.sub, torch.mul, torch.maximum, torch.minimum, torch.eq, torch.ne, torch.lt, torch.le]
TYPES = [torch.float32, torch.int64, torch.int32, torch.int16, torch.int8]
PAIRS = [torch.arange(6).reshape(2, 3), torch.arange(6).reshape(3, 2).t()]
CASES = list(itertools.product(OPERATORS, TYPES, PAIRS))

def check(cases):
    for operator, dtype, value in cases:
        a, b = value.to(dtype), value.flip(0).to(dtype)
        torch.testing.assert_close(operator(a.to(DEVICE), b.to(DEVICE)).cpu(), operator(a, b))
"""


def test_plans_that_are_not_used_go_and_come_back(run_python: Callable[..., str]) -> None:
    source = """
    for _ in range(2):
        check(CASES)
        assert stats()["plans"] <= 64, stats()
    check(CASES[:20])
    before = stats()
    for _ in range(5):
        check(CASES[:20])
    after = stats()
    assert after["misses"] == before["misses"], (before, after)
    assert after["hits"] > before["hits"]
    print("bounded")
    """
    assert "bounded" in run_python(SIGNATURES + textwrap.dedent(source), OUTBOARD_MAX_PLANS="64")


def test_plans_in_use_stay_while_others_come(run_python: Callable[..., str]) -> None:
    """A few signatures are called between all others: they are never asked for again."""
    source = """
    wanted = CASES[:6]
    check(wanted)
    again = 0
    for case in CASES[6:] * 2:
        check([case])
        before = stats()["misses"]
        check(wanted)
        again += stats()["misses"] - before
    assert again == 0, again
    print("kept")
    """
    assert "kept" in run_python(SIGNATURES + textwrap.dedent(source), OUTBOARD_MAX_PLANS="64")


def test_threads_compute_while_plans_go(run_python: Callable[..., str]) -> None:
    source = """
    import concurrent.futures, random
    def work(seed):
        cases = CASES * 3
        random.Random(seed).shuffle(cases)
        check(cases)
        parameters = [torch.ones(3, device=DEVICE, requires_grad=True) for _ in range(3)]
        optimizer = torch.optim.Adam(parameters, lr=0.5)
        for step in range(20):
            check(random.Random(step).sample(CASES, 5))
            for parameter in parameters:
                parameter.grad = torch.ones_like(parameter)
            optimizer.step()
        return [parameter.detach().cpu() for parameter in parameters]
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        results = list(pool.map(work, range(3)))
    for result in results:
        for parameter in result:  # each step of Adam with constant gradients is one of the learning rate
            torch.testing.assert_close(parameter, torch.full((3,), 1 - 20 * 0.5))
    assert stats()["plans"] <= 64, stats()
    print("right")
    """
    assert "right" in run_python(SIGNATURES + textwrap.dedent(source), OUTBOARD_MAX_PLANS="64")


def test_programs_that_no_plan_uses_go_and_come_back(run_python: Callable[..., str]) -> None:
    """A process can have some thousands of programs in memory: plans go because of their programs, too."""
    source = """
    from outboard import _C
    FUNCTIONS = [torch.exp, torch.sin, torch.cos, torch.tan, torch.tanh, torch.sinh, torch.cosh, torch.atan, torch.erf,
                 torch.sigmoid, torch.log1p, torch.expm1, torch.exp2, torch.asinh, torch.erfc, torch.sinc, torch.lgamma]
    most = 0
    for _ in range(2):
        for case in CASES:
            check([case])
        for function, dtype in itertools.product(FUNCTIONS, [torch.float32, torch.float64]):
            x = torch.rand(7, dtype=dtype)
            torch.testing.assert_close(function(x.to(DEVICE)).cpu(), function(x))
            most = max(most, _C.program_statistics(0)["held"])
    # A sixteenth of the number later, and what is kept of those that nobody uses.
    assert 60 < most <= 64 + 4 + 16 + 4, most
    model = torch.compile(torch.nn.Linear(3, 3).to(DEVICE))
    x = torch.randn(2, 3)
    before = model(x.to(DEVICE)).cpu()
    check(CASES)
    torch.testing.assert_close(model(x.to(DEVICE)).cpu(), before)
    print("bounded")
    """
    assert "bounded" in run_python(SIGNATURES + textwrap.dedent(source), OUTBOARD_MAX_PROGRAMS="64")


@pytest.mark.parametrize("value", ["0", "-5", "many", "1e9"])
def test_a_number_of_plans_that_is_none(run_python: Callable[..., str], value: str) -> None:
    source = """
    try:
        check(CASES[:1])
    except ValueError as error:
        print(error)
    """
    said = run_python(SIGNATURES + textwrap.dedent(source), OUTBOARD_MAX_PLANS=value)
    assert f"OUTBOARD_MAX_PLANS='{value}' is not a positive number of plans" in said
