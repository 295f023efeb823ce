"""The device as PyTorch's users have it."""

import torch
from torch import nn


def test_it_is_the_default_device():
    assert torch.accelerator.current_accelerator().type == "mychip"
    assert (torch.arange(3, device="mychip") + 1).tolist() == [1, 2, 3]


def test_a_model_trains_as_on_the_cpu():
    def model():
        torch.manual_seed(0)
        layers = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(8 * 16, 10))

    images, labels = torch.randn(4, 3, 8, 8), torch.randint(10, (4,))
    losses = {}
    for device in ("cpu", "mychip"):
        net = model().to(device)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(images.to(device)), labels.to(device))
            loss.backward()
            optimizer.step()
        losses[device] = loss.detach().cpu()
    torch.testing.assert_close(losses["mychip"], losses["cpu"])
    assert torch.mychip.fallbacks() == {}
