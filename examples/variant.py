# SPDX-License-Identifier: Apache-2.0
"""The same model on different devices, eager or compiled, so that results and times can be compared."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from examples.measure import synchronize

CPU = torch.device("cpu")

# Relative to the largest reference value.
FORWARD_ERROR = 1e-4
LOSS_ERROR = 1e-4
# Rectifiers and batch statistics of few samples make the gradients of an untrained ResNet-50 so sensitive to rounding
# that two float32 implementations differ by percents. The yardstick is therefore the CPU's own float32 error, measured
# against float64 in the same run.
GRADIENT_ERROR_FACTOR = 3.0

#: Takes the name of a value, the value, and the largest value allowed.
Check = Callable[[str, float, float], None]

#: Makes the optimizer of a model's parameters.
MakeOptimizer = Callable[[Iterator[nn.Parameter]], torch.optim.Optimizer]


def sgd(parameters: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
    """Plain gradient descent with a small step."""
    return torch.optim.SGD(parameters, lr=1e-3)


class Variant:
    """One way to run a model: a device, eager or compiled, with weights of its own.

    ``model`` maps ``inputs`` to logits (..., classes); ``labels`` (...) int64 are the right classes.
    """

    def __init__(
        self,
        model: nn.Module,
        inputs: Tensor,
        labels: Tensor,
        device: torch.device = CPU,
        compiled: bool = False,
        dtype: torch.dtype = torch.float32,
        make_optimizer: MakeOptimizer = sgd,
    ) -> None:
        self.device = device
        self.model = copy.deepcopy(model).to(device, dtype)
        self.inputs = inputs.to(device, dtype) if inputs.is_floating_point() else inputs.to(device)
        self.labels = labels.to(device)
        self.call: Callable[[Tensor], Tensor] = torch.compile(self.model) if compiled else self.model
        self.optimizer = make_optimizer(self.model.parameters())

    def forward(self) -> Tensor:
        """Logits in inference mode; waits for them."""
        self.model.eval()
        with torch.no_grad():
            logits = self.call(self.inputs)
        synchronize(self.device)
        return logits

    def step(self) -> Tensor:
        """One training step; waits for it and returns the loss. Gradients stay in place for comparison."""
        self.model.train()
        self.optimizer.zero_grad()
        logits = self.call(self.inputs)
        loss = F.cross_entropy(logits.flatten(0, -2), self.labels.flatten())
        loss.backward()
        self.optimizer.step()
        synchronize(self.device)
        return loss.detach()

    def gradients(self) -> Tensor:
        """All gradients in one float64 vector on the CPU."""
        gradients = (parameter.grad for parameter in self.model.parameters())
        return torch.cat([gradient.flatten().cpu().double() for gradient in gradients if gradient is not None])


class Reference:
    """What a first forward pass and training step give in float64, and how far float32 on the CPU is from that."""

    def __init__(self, model: nn.Module, inputs: Tensor, labels: Tensor) -> None:
        exact = Variant(model, inputs, labels, dtype=torch.float64)
        self.logits, self.loss, self.gradients = exact.forward(), exact.step(), exact.gradients()
        single = Variant(model, inputs, labels)
        single.step()
        self.gradient_limit = GRADIENT_ERROR_FACTOR * self.gradient_error(single)

    def gradient_error(self, variant: Variant) -> float:
        """2-norm of the difference of all gradients, relative to the 2-norm of the gradients."""
        return ((variant.gradients() - self.gradients).norm() / self.gradients.norm()).item()

    def compare(self, check: Check, name: str, variant: Variant) -> None:
        """Checks logits, loss and gradients of a variant whose weights are still the initial ones."""
        check(f"{name}: error of the logits", relative_error(variant.forward(), self.logits), FORWARD_ERROR)
        check(f"{name}: error of the loss", relative_error(variant.step(), self.loss), LOSS_ERROR)
        check(f"{name}: error of all gradients", self.gradient_error(variant), self.gradient_limit)


def relative_error(value: Tensor, reference: Tensor) -> float:
    """Largest difference, relative to the largest reference value."""
    return ((value.cpu() - reference).abs().max() / reference.abs().max()).item()


def ways(
    model: nn.Module, inputs: Tensor, labels: Tensor, device: torch.device, cpu_compiled: bool
) -> dict[str, Variant]:
    """The CPU, eager and, if asked for, compiled, and the device, both ways, by name."""
    variants = {"CPU eager": Variant(model, inputs, labels)}
    if cpu_compiled:
        variants["CPU compiled"] = Variant(model, inputs, labels, compiled=True)
    variants[f"{device.type} eager"] = Variant(model, inputs, labels, device)
    variants[f"{device.type} compiled"] = Variant(model, inputs, labels, device, compiled=True)
    return variants
