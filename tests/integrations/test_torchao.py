# SPDX-License-Identifier: Apache-2.0
"""torchao's quantized layers on the device: made there, and the CPU's numbers, with no operator elsewhere."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

pytestmark = pytest.mark.skipif(os.environ.get("OUTBOARD_TEST_ECOSYSTEM") != "1", reason="make test-ecosystem")


@pytest.fixture(scope="module")
def library() -> Any:
    return pytest.importorskip("torchao.quantization")


@pytest.fixture(autouse=True)
def nothing_elsewhere(device_module: ModuleType) -> Iterator[None]:
    before = device_module.fallbacks()
    yield
    assert device_module.fallbacks() == before


#: What is quantized -> its configuration.
CONFIGURATIONS: dict[str, Callable[[Any], Any]] = {
    "int8 weights": lambda ao: ao.Int8WeightOnlyConfig(),
    "int8 weights, int8 activations": lambda ao: ao.Int8DynamicActivationInt8WeightConfig(),
    "int4 weights in groups": lambda ao: ao.IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=ao.PerGroup(32)),
    "int2 weights": lambda ao: ao.IntxWeightOnlyConfig(weight_dtype=torch.int2, granularity=ao.PerAxis(0)),
    "int4 weights, int8 activations": lambda ao: ao.Int8DynamicActivationIntxWeightConfig(
        weight_dtype=torch.int4, weight_granularity=ao.PerGroup(32)
    ),
}


def _model(width: int = 64) -> nn.Module:
    return nn.Sequential(nn.Linear(width, 128), nn.GELU(), nn.Linear(128, 32)).eval()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", CONFIGURATIONS)
def test_layers(library: Any, device: str, kind: str, dtype: torch.dtype) -> None:
    model, inputs = _model().to(dtype), torch.randn(5, 64).to(dtype)
    other = copy.deepcopy(model).to(device)
    for each in (model, other):
        library.quantize_(each, CONFIGURATIONS[kind](library))
    for one, two in zip(other.parameters(), model.parameters(), strict=True):
        assert one.device.type == device and type(one) is type(two)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-2
    torch.testing.assert_close(other(inputs.to(device)).cpu(), model(inputs), rtol=tolerance, atol=tolerance)


def test_layers_moved(library: Any, device: str) -> None:
    """Quantized on the CPU, then moved; and back."""
    model, inputs = _model(), torch.randn(5, 64)
    library.quantize_(model, library.Int8WeightOnlyConfig())
    expected = model(inputs)
    torch.testing.assert_close(model.to(device)(inputs.to(device)).cpu(), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(model.to("cpu")(inputs), expected, rtol=0, atol=0)


def test_long_sums_of_integers_are_exact(library: Any, device: str) -> None:
    """Products of int8 that add up to more than float32 has digits for."""
    safe_int_mm = pytest.importorskip("torchao.kernel").safe_int_mm
    left = torch.randint(100, 128, (24, 4096), dtype=torch.int8)
    right = torch.randint(100, 128, (4096, 16), dtype=torch.int8)
    expected = left.long() @ right.long()
    assert int(expected.max()) > 2**24
    assert torch.equal(safe_int_mm(left.to(device), right.to(device)).cpu().long(), expected)


def test_compiled(library: Any, device: str) -> None:
    model, inputs = _model(), torch.randn(5, 64)
    other = copy.deepcopy(model).to(device)
    for each in (model, other):
        library.quantize_(each, library.Int8WeightOnlyConfig())
    found = torch.compile(other)(inputs.to(device))
    torch.testing.assert_close(found.detach().cpu(), model(inputs).detach(), rtol=1e-4, atol=1e-5)
