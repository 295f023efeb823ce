# SPDX-License-Identifier: Apache-2.0
"""Part c: a small convolutional network learns handwritten digits on the device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from examples.demo.context import Context, progress_bar

LEAST_ACCURACY = 0.97
BATCH = 64
TRAINING_SET = 1437  # of 1797: the split that scikit-learn's own examples use


@dataclass
class Data:
    """Images (N, 1, 8, 8) float32 in 0..1 and labels (N,) int64."""

    images: Tensor
    labels: Tensor

    def batches(self, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
        """Shuffled whole batches. The order comes from a CPU generator, so that every device sees the same."""
        order = torch.randperm(len(self.labels), generator=generator).to(self.labels.device)
        for chosen in order[: len(order) // BATCH * BATCH].split(BATCH):
            yield self.images[chosen], self.labels[chosen]


def load(device: torch.device) -> tuple[Data, Data]:
    """Training and test set of scikit-learn's digits, on the device."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    order = torch.randperm(len(digits.target), generator=torch.Generator().manual_seed(0))
    images = torch.tensor(digits.images, dtype=torch.float32)[order].unsqueeze(1) / 16
    labels = torch.tensor(digits.target, dtype=torch.int64)[order]
    parts = [slice(None, TRAINING_SET), slice(TRAINING_SET, None)]
    training, test = (Data(images[part].to(device), labels[part].to(device)) for part in parts)
    return training, test


def network() -> nn.Module:
    """8x8 images to 10 logits."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 16, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


def train(model: nn.Module, optimizer: torch.optim.Optimizer, data: Data, epochs: int, name: str) -> list[float]:
    """Loss of every step. Losses stay on the device until an epoch is over: reading one would wait for the queue."""
    generator = torch.Generator().manual_seed(1)
    losses: list[float] = []
    model.train()
    with progress_bar(name, epochs * (len(data.labels) // BATCH)) as progress:
        for _ in range(epochs):
            epoch: list[Tensor] = []
            for images, labels in data.batches(generator):
                optimizer.zero_grad()
                loss = F.cross_entropy(model(images), labels)
                loss.backward()
                optimizer.step()
                epoch.append(loss.detach())
                progress.update()
            losses += torch.stack(epoch).tolist()
            progress.set_postfix(loss=f"{losses[-1]:.3f}", refresh=False)
    return losses


@torch.no_grad()
def accuracy(model: nn.Module, data: Data) -> float:
    """Share of right answers."""
    model.eval()
    right = (model(data.images).argmax(1) == data.labels).sum()
    return right.item() / len(data.labels)


def plot(context: Context, curves: dict[str, list[float]]) -> None:
    """Writes the loss of every step, one colour per optimizer, to ``digits-loss.png``."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4))
    start = 0
    for name, losses in curves.items():
        axes.plot(range(start, start + len(losses)), losses, label=name, linewidth=1)
        start += len(losses)
    axes.set(xlabel="step", ylabel="cross entropy", yscale="log", title=f"digits on {context.device}")
    axes.legend()
    context.output.mkdir(parents=True, exist_ok=True)
    path = context.output / "digits-loss.png"
    figure.savefig(path, dpi=120, bbox_inches="tight")
    pyplot.close(figure)
    print(f"  loss curve: {path}")


def run(context: Context) -> None:
    """Trains with SGD, then with AdamW, draws the curve and checks the accuracy on unseen digits."""
    before = context.fallbacks()
    torch.manual_seed(0)
    training, test = load(context.device)
    model = network().to(context.device)
    epochs = 3 if context.short else 8
    sgd = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    adamw = torch.optim.AdamW(model.parameters(), lr=1e-3)
    curves = {"SGD": train(model, sgd, training, epochs, "SGD  ")}
    curves["AdamW"] = train(model, adamw, training, epochs, "AdamW")
    plot(context, curves)
    context.check("accuracy on the test set", accuracy(model, test), LEAST_ACCURACY, at_least=True)
    context.print_fallbacks("training", before)
