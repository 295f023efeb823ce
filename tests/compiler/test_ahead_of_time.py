# SPDX-License-Identifier: Apache-2.0
"""torch.export works on the device; AOTInductor refuses it with words that help, and still compiles for the CPU."""

from __future__ import annotations

import pytest
import torch
from torch import nn


def _exported(device: str) -> tuple[torch.export.ExportedProgram, torch.Tensor, nn.Module]:
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8)).to(device).eval()
    inputs = torch.randn(3, 4, device=device)
    batch = torch.export.Dim("batch", min=1, max=64)
    return torch.export.export(model, (inputs,), dynamic_shapes=({0: batch},)), inputs, model


def test_exported_program(device: str) -> None:
    """Traced, run with another size, and decomposed."""
    program, _, model = _exported(device)
    more = torch.randn(7, 4, device=device)
    for each in (program, program.run_decompositions()):
        torch.testing.assert_close(each.module()(more), model(more), rtol=1e-5, atol=1e-6)
    assert all(parameter.device.type == device for parameter in program.parameters())


def test_refusal(device: str) -> None:
    program, _, _ = _exported(device)
    with pytest.raises(NotImplementedError, match=r"outboard\.export"):
        torch._inductor.aoti_compile_and_package(program)


def test_refusal_of_a_model_that_makes_its_tensors(device: str) -> None:
    class Ramp(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.arange(4, device=device) + x.sum().item()

    program = torch.export.export(Ramp(), (torch.ones(2),))
    with pytest.raises(NotImplementedError, match=r"outboard\.export"):
        torch._inductor.aoti_compile_and_package(program)


def test_cpu_is_let_through(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model on the CPU reaches AOTInductor itself."""

    def reached(*args: object, **kwargs: object) -> None:
        raise LookupError("reached")

    monkeypatch.setattr("torch._inductor.compile_fx._maybe_wrap_and_compile_fx_main", reached, raising=True)
    program, _, _ = _exported("cpu")
    with pytest.raises(LookupError, match="reached"):
        torch._inductor.aoti_compile_and_package(program)
