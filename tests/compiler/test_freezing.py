# SPDX-License-Identifier: Apache-2.0
"""``torch._inductor.config.freezing`` on our device; without it, weights may change from call to call."""

from __future__ import annotations

import copy
import gc
from collections.abc import Iterator
from types import ModuleType

import pytest
import torch
from torch import nn
from torch._inductor.codecache import PyCodeCache

from outboard.compiler import generated_modules
from outboard.compiler.adapter.graphs import compiled
from outboard.compiler.plans import plan as p
from outboard.compiler.target import target_of


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    """Graphs hold constants, and so device memory, for as long as Dynamo and Inductor keep them."""
    yield
    torch._dynamo.reset()
    PyCodeCache.cache_clear()
    gc.collect()


@pytest.fixture
def model() -> nn.Module:
    """Convolutions with batch normalisation, statistics that are not the initial ones, and a linear layer."""
    torch.manual_seed(0)
    layers = nn.Sequential(
        nn.Conv2d(3, 24, 3, padding=1, bias=False),
        nn.BatchNorm2d(24),
        nn.ReLU(),
        nn.Conv2d(24, 24, 1),
        nn.BatchNorm2d(24),
        nn.Flatten(),
        nn.Linear(24 * 49, 10),
    ).eval()
    for buffer in layers.buffers():
        if buffer.is_floating_point():
            buffer.uniform_(0.5, 1.5)
    return layers


@torch.no_grad()
def test_frozen_weights_are_folded(model: nn.Module, device: str) -> None:
    """Scales of the statistics are part of the weights: what is left is the padding of the input and one launch for
    each layer with weights."""
    torch._dynamo.reset()
    x = torch.randn(2, 3, 7, 7)
    ours = copy.deepcopy(model).to(device)
    with torch._inductor.config.patch(freezing=True, force_disable_caches=True), compiled.capturing() as capture:
        found = torch.compile(ours)(x.to(device))
    torch.testing.assert_close(found.cpu(), model(x), rtol=1e-4, atol=1e-4)
    plan = capture.plan
    assert plan is not None
    launches = [plan.kernels[step.kernel][1] for step in plan.steps if isinstance(step, p.Launch)]
    assert launches == ["arrange_planes", "multiply", "multiply", "multiply"]
    assert any(constant.shape == (24, 3, 3, 3) for constant in capture.constants)


@torch.no_grad()
def test_a_frozen_module_read_from_the_cache(model: nn.Module, device: str) -> None:
    """A second compilation finds what the first one left, and the constants are those of the model at hand."""
    x = torch.randn(2, 3, 7, 7)
    for scale in (1.0, 2.0):
        torch._dynamo.reset()
        model[0].weight.mul_(scale)
        ours = copy.deepcopy(model).to(device)
        with torch._inductor.config.patch(freezing=True):
            found = torch.compile(ours)(x.to(device))
        torch.testing.assert_close(found.cpu(), model(x), rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_weights_and_statistics_may_change_between_calls(model: nn.Module, device: str) -> None:
    """Without freezing: in place, by replacing data, and by loading a state."""
    torch._dynamo.reset()
    x = torch.randn(2, 3, 7, 7)
    ours = copy.deepcopy(model).to(device)
    compiled = torch.compile(ours)
    compiled(x.to(device))
    for change in range(3):
        for module in (model, ours):
            if change == 0:
                module[0].weight.mul_(2)
                module[1].running_var.add_(0.5)
            elif change == 1:
                module[6].weight.data = module[6].weight.data * -1
            else:
                module.load_state_dict({name: value * 0.9 for name, value in module.state_dict().items()})
        torch.testing.assert_close(compiled(x.to(device)).cpu(), model(x), rtol=1e-4, atol=1e-4)


TOLERANCES = {torch.float32: 1e-4, torch.float64: 1e-9, torch.bfloat16: 1e-2, torch.float16: 2e-3}


def _products() -> nn.Module:
    """Sizes that no block divides, and one that fills several."""
    return nn.Sequential(nn.Linear(77, 130), nn.GELU(), nn.Linear(130, 300, bias=False), nn.Linear(300, 33)).eval()


@torch.no_grad()
@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
def test_weights_are_packed_once(
    device: str, dtype: torch.dtype, mode: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And their products, of many rows, have the bits of those that pack at each call."""
    packed = []
    original = generated_modules.Packed._pack
    monkeypatch.setattr(
        generated_modules.Packed,
        "_pack",
        lambda self, constants: packed.append(len(constants)) or original(self, constants),
    )
    layers = _products().to(dtype)
    ours, inputs = copy.deepcopy(layers).to(device), [torch.randn(rows, 77, dtype=dtype) for rows in (400, 400, 400)]
    torch._dynamo.reset()
    plain = [torch.compile(ours)(x.to(device)).cpu() for x in inputs]
    assert packed == []
    torch._dynamo.reset()
    with torch._inductor.config.patch(freezing=True):
        compiled = torch.compile(ours, mode=mode)
        found = [compiled(x.to(device)).cpu() for x in inputs]
    assert packed == [3]
    for x, one, other in zip(inputs, plain, found, strict=True):
        assert torch.equal(one, other)
        exact, tolerance = copy.deepcopy(layers).double()(x.double()), TOLERANCES[dtype]
        torch.testing.assert_close(other.double(), exact, rtol=tolerance, atol=tolerance)


@torch.no_grad()
def test_what_the_library_multiplies_is_not_packed(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if target_of(0).library == "":
        pytest.skip("the driver has no library of ready functions (pip install onednn-cpu-gomp)")
    torch._dynamo.reset()
    ours, x = _products().to(device), torch.randn(40, 77).to(device)
    expected = ours(x)  # while products are ours: the process keeps the plans of single operators
    monkeypatch.setenv("OUTBOARD_LIBRARY", "driver")
    monkeypatch.setattr(generated_modules.Packed, "_pack", lambda self, constants: pytest.fail("packed"))
    with torch._inductor.config.patch(freezing=True, force_disable_caches=True):
        found = torch.compile(ours)(x)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rows", [1, 2, 3, 9])
def test_products_of_few_rows(device: str, rows: int, dtype: torch.dtype) -> None:
    """Which read packed weights in other ways."""
    torch._dynamo.reset()
    layers, x = _products().to(dtype), torch.randn(rows, 77, dtype=dtype)
    with torch._inductor.config.patch(freezing=True):
        found = torch.compile(copy.deepcopy(layers).to(device))(x.to(device))
    tolerance = TOLERANCES[dtype]
    torch.testing.assert_close(found.cpu().double(), layers.double()(x.double()), rtol=tolerance, atol=tolerance)


@torch.no_grad()
def test_unpacked_weights_are_given_back(device: str, device_module: ModuleType) -> None:
    """With ``freezing_discard_parameters``, under which a module gives up its parameters."""
    torch._dynamo.reset()
    ours, x = nn.Linear(512, 1024, bias=False).eval().to(device), torch.randn(8, 512).to(device)
    expected, weight = ours(x).cpu(), 512 * 1024 * 4
    gc.collect()
    before = device_module.memory_allocated()
    with torch._inductor.config.patch(freezing=True, freezing_discard_parameters=True, force_disable_caches=True):
        compiled = torch.compile(ours)
        for _ in range(2):
            torch.testing.assert_close(compiled(x).cpu(), expected, rtol=1e-4, atol=1e-4)
    gc.collect()
    assert device_module.memory_allocated() - before < weight // 2
