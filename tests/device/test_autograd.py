# SPDX-License-Identifier: Apache-2.0
"""PyTorch's machinery around operators: autograd, checkpointing, data loading, functional transforms, profiling."""

from __future__ import annotations

import copy
import threading

import pytest
import torch
from torch.utils.checkpoint import checkpoint


def test_backward_with_hooks(device: str) -> None:
    seen: list[str] = []
    x = torch.tensor([1.0, 2.0, 3.0]).to(device).requires_grad_()
    y = x * x
    y.register_hook(lambda grad: seen.append(grad.device.type))
    y.sum().backward()
    assert x.grad is not None and x.grad.tolist() == [2, 4, 6] and seen == [device]
    assert x.grad.device == x.device


def test_double_backward(device: str) -> None:
    x = torch.tensor([2.0, 3.0]).to(device).requires_grad_()
    (first,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    assert second.tolist() == [12, 18]


def test_gradients_cross_devices(device: str) -> None:
    x = torch.ones(3, requires_grad=True)
    (x.to(device) * 2).cpu().sum().backward()
    assert x.grad is not None and x.grad.device.type == "cpu" and x.grad.tolist() == [2, 2, 2]


def test_module_hooks(device: str) -> None:
    seen = []
    model = torch.nn.Linear(2, 2).to(device)
    model.register_forward_hook(lambda module, inputs, output: seen.append(output.device.type))
    model.register_full_backward_hook(lambda module, grads, outputs: seen.append(outputs[0].device.type))
    model(torch.ones(1, 2, device=device)).sum().backward()
    assert seen == [device, device]


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpoint_replays_random_numbers(device: str, use_reentrant: bool) -> None:
    x = torch.ones(100, device=device, requires_grad=True)
    y = checkpoint(lambda v: torch.nn.functional.dropout(v, 0.5), x, use_reentrant=use_reentrant)
    y.sum().backward()
    assert x.grad is not None and torch.equal(x.grad.cpu(), y.detach().cpu())


def test_inference_mode_and_no_grad(device: str) -> None:
    x = torch.ones(2, device=device, requires_grad=True)
    with torch.no_grad():
        assert not (x + 1).requires_grad
    with torch.inference_mode():
        y = x + 1
    assert y.is_inference()


def test_functional_transforms(device: str) -> None:
    x = torch.tensor([1.0, 2.0]).to(device)
    assert torch.func.grad(lambda v: (v**2).sum())(x).tolist() == [2, 4]
    assert torch.vmap(lambda v: v * 2)(x).tolist() == [2, 4]
    value, tangent = torch.func.jvp(lambda v: v * v, (x,), (torch.ones_like(x),))
    assert value.tolist() == [1, 4] and tangent.tolist() == [2, 4]


@pytest.mark.parametrize("dtype", (torch.float32, torch.complex64), ids=str)
@pytest.mark.parametrize("name", ("dot", "vdot"))
def test_second_derivatives_of_products_of_vectors(device: str, name: str, dtype: torch.dtype) -> None:
    """Forward over reverse multiplies by zeros without memory."""
    product, zeros = getattr(torch, name), torch._efficientzerotensor((3,), device=device, dtype=dtype)
    x = torch.arange(3.0, device=device).to(dtype)
    for left, right in ((x, zeros), (zeros, x), (zeros, zeros)):
        assert product(left, right).item() == 0
    with pytest.raises(RuntimeError, match="inconsistent tensor size"):
        product(zeros, x[:2])
    if dtype.is_complex:
        return
    found = torch.func.hessian(product)(x, x + 1)
    assert torch.equal(found.cpu(), torch.func.hessian(product)(x.cpu(), x.cpu() + 1))


@pytest.mark.parametrize("name", ("mul", "add", "sub", "div"))
def test_zeros_without_memory_and_a_number(device: str, name: str) -> None:
    operation = getattr(torch.ops.aten, name).Scalar
    zeros = torch._efficientzerotensor((3,), device=device)
    assert torch.equal(operation(zeros, 3).cpu(), operation(torch.zeros(3), 3))


def test_backward_in_several_threads(device: str) -> None:
    results: list[list[float]] = []

    def work(value: float) -> None:
        x = torch.full((4,), value).to(device).requires_grad_()
        for _ in range(20):
            x.grad = None
            (x * x).sum().backward()
        assert x.grad is not None
        results.append(x.grad.tolist())

    threads = [threading.Thread(target=work, args=(float(value),)) for value in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == [[2.0 * value] * 4 for value in range(4)]


def test_loader_with_workers(device: str) -> None:
    torch.zeros(1, device=device)
    loader = torch.utils.data.DataLoader(torch.arange(8.0), batch_size=4, num_workers=2, pin_memory=True)
    assert [batch.to(device, non_blocking=True).sum().item() for batch in loader] == [6, 22]


def test_optimizer_state_follows_the_parameters(device: str) -> None:
    model = torch.nn.Linear(3, 2).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    model(torch.ones(1, 3, device=device)).sum().backward()
    optimizer.step()
    assert all(state["exp_avg"].device.type == device for state in optimizer.state.values())
    before = model.weight.detach().cpu()
    optimizer.load_state_dict(optimizer.state_dict())
    optimizer.step()
    assert not torch.equal(model.weight.detach().cpu(), before)


def test_meta_modules_are_materialised(device: str) -> None:
    layer = torch.nn.Linear(2, 2, device="meta").to_empty(device=device)
    torch.nn.init.ones_(layer.weight)
    assert layer.weight.device.type == device and layer.weight.cpu().sum() == 4
    assert layer.weight.to("meta").is_meta


def test_profiler(device: str) -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        (torch.ones(3, device=device) + 1).cpu()
    assert any(event.key == "aten::add" for event in profile.key_averages())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", [torch.nn.LayerNorm, torch.nn.BatchNorm1d])
def test_statistics_of_halves_are_saved_wide(device: str, kind: type[torch.nn.Module], dtype: torch.dtype) -> None:
    """In float32, as on CUDA; the CPU, which is asked whether a call is right, has halves there."""
    layer, x = kind(16), torch.randn(6, 16)
    ours, theirs = (copy.deepcopy(layer).to(d, t) for d, t in ((device, dtype), ("cpu", torch.float32)))
    input_of_ours, input_of_theirs = x.to(device, dtype).requires_grad_(), x.to(dtype).float().requires_grad_()
    for module, value in ((ours, input_of_ours), (theirs, input_of_theirs)):
        (module(value) * torch.arange(16, device=value.device)).sum().backward()
    for one, other in ((ours.weight.grad, theirs.weight.grad), (input_of_ours.grad, input_of_theirs.grad)):
        torch.testing.assert_close(one.cpu().float(), other, rtol=5e-2, atol=5e-1)
