# SPDX-License-Identifier: Apache-2.0
"""For tests of the hand-written kernels: every test fails if any operator of it ran on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
import torch

#: ``agree(function, *arguments, **keywords)``: calls the function on the CPU and on the device and compares.
Agree = Callable[..., None]
DOUBLES = {torch.float64, torch.complex128}


@pytest.fixture
def _given() -> set[torch.dtype]:
    """The dtypes that a test has called functions with."""
    return set()


@pytest.fixture
def needs_doubles(device_module: ModuleType) -> None:
    """For tests that hand float64 to a kernel itself, which a device without it never has."""
    if not device_module.get_device_properties(0).has_fp64:
        pytest.skip("the device has no double precision")


@pytest.fixture
def given_doubles(_given: set[torch.dtype]) -> None:
    """For tests that compute in float64 beside all else: a device without it leaves that to the CPU."""
    _given.add(torch.float64)


@pytest.fixture
def needs_fused_attention(device_module: ModuleType) -> None:
    """For tests of attention as one operator: only kernels for processors multiply in tiles that fit a cache."""
    if device_module.get_device_properties(0).type != "cpu":
        pytest.skip("attention is taken apart where it has no kernel that multiplies in tiles")


def _parametrized(request: pytest.FixtureRequest) -> set[torch.dtype]:
    """The dtypes among the test's parameters."""
    parameters = getattr(request.node, "callspec", None)
    return {value for value in parameters.params.values() if isinstance(value, torch.dtype)} if parameters else set()


@pytest.fixture(autouse=True)
def _native(device_module: ModuleType, _given: set[torch.dtype], request: pytest.FixtureRequest) -> Iterator[None]:
    device_module.reset_fallbacks()
    yield
    has_doubles = device_module.get_device_properties(0).has_fp64
    computed = _given | _parametrized(request)
    if has_doubles or not computed & DOUBLES:
        assert device_module.fallbacks() == {}


@pytest.fixture
def agree(device: str, _given: set[torch.dtype]) -> Agree:
    """Function ``agree(function, *arguments, rtol=None, atol=None, **keywords)``."""

    def check(
        function: Callable[..., Any],
        *arguments: Any,
        rtol: float | None = None,
        atol: float | None = None,
        **keywords: Any,
    ) -> None:
        expected = function(*arguments, **keywords)
        moved = [value.to(device) if isinstance(value, torch.Tensor) else value for value in arguments]
        moved_keywords = {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in keywords.items()}
        _given.update(tensor.dtype for tensor in _tensors([*arguments, *keywords.values()]))
        actual = function(*moved, **moved_keywords)
        for ours, theirs in zip(_tensors(actual), _tensors(expected), strict=True):
            assert ours.device.type == device
            torch.testing.assert_close(ours.cpu(), theirs, rtol=rtol, atol=atol, equal_nan=True)

    return check


def _tensors(value: Any) -> list[torch.Tensor]:
    return [value] if isinstance(value, torch.Tensor) else [item for item in value if isinstance(item, torch.Tensor)]
