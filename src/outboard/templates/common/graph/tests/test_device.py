"""The device as PyTorch's users have it."""

import torch


def test_it_is_the_default_device():
    assert torch.accelerator.current_accelerator().type == "mychip"
    assert torch.ones(3, device="mychip").tolist() == [1, 1, 1]


def test_graphs_run_on_the_chip():
    def step(x, w, b):
        return torch.relu(torch.mm(x, w) + b) * b

    inputs = [torch.randn(4, 5), torch.randn(5, 6), torch.randn(4, 6)]
    moved = [each.to("mychip") for each in inputs]
    for function in (step, torch.compile(step)):
        torch.testing.assert_close(function(*moved).cpu(), step(*inputs))
    assert torch.mychip.fallbacks() == {}
    torch.testing.assert_close(torch.sin(moved[0]).cpu(), torch.sin(inputs[0]))  # by the CPU, counted
    assert "aten::sin" in str(torch.mychip.fallbacks(reasons=True))
