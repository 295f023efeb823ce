# SPDX-License-Identifier: Apache-2.0
"""Part d: ResNet-50, forward and one training step, eager and compiled, against the CPU."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from examples.demo.context import Context
from examples.measure import Timing, interleave, synchronize, table
from examples.models import resnet50

# Relative to the largest reference value.
FORWARD_ERROR = 1e-4
LOSS_ERROR = 1e-4
# Rectifiers and batch statistics of few samples make the gradients of an untrained ResNet-50 so sensitive to rounding
# that two float32 implementations differ by percents. The yardstick is therefore the CPU's own float32 error, measured
# against float64 in the same run.
GRADIENT_ERROR_FACTOR = 3.0

CPU = torch.device("cpu")


class Variant:
    """One way to run the model: a device, eager or compiled, with weights of its own."""

    def __init__(
        self,
        model: nn.Module,
        images: Tensor,
        labels: Tensor,
        device: torch.device = CPU,
        compiled: bool = False,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.device = device
        self.model = copy.deepcopy(model).to(device, dtype)
        self.images, self.labels = images.to(device, dtype), labels.to(device)
        self.call: Callable[[Tensor], Tensor] = torch.compile(self.model) if compiled else self.model
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)

    def forward(self) -> Tensor:
        """Logits in inference mode; waits for them."""
        self.model.eval()
        with torch.no_grad():
            logits = self.call(self.images)
        synchronize(self.device)
        return logits

    def step(self) -> Tensor:
        """One training step; waits for it. Gradients stay in place for comparison."""
        self.model.train()
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.call(self.images), self.labels)
        loss.backward()
        self.optimizer.step()
        synchronize(self.device)
        return loss.detach()

    def gradients(self) -> Tensor:
        """All gradients in one vector on the CPU."""
        return torch.cat([parameter.grad.flatten().cpu().double() for parameter in self.model.parameters()])


class Reference:
    """What a first forward pass and training step give in float64, and how far float32 on the CPU is from that."""

    def __init__(self, model: nn.Module, images: Tensor, labels: Tensor) -> None:
        exact = Variant(model, images, labels, dtype=torch.float64)
        self.logits, self.loss, self.gradients = exact.forward(), exact.step(), exact.gradients()
        single = Variant(model, images, labels)
        single.step()
        self.gradient_limit = GRADIENT_ERROR_FACTOR * self.gradient_error(single)

    def gradient_error(self, variant: Variant) -> float:
        """2-norm of the difference of all gradients, relative to the 2-norm of the gradients."""
        return ((variant.gradients() - self.gradients).norm() / self.gradients.norm()).item()

    def compare(self, context: Context, name: str, variant: Variant) -> None:
        """Checks logits, loss and gradients of a variant whose weights are still the initial ones."""
        context.check(f"{name}: error of the logits", relative_error(variant.forward(), self.logits), FORWARD_ERROR)
        context.check(f"{name}: error of the loss", relative_error(variant.step(), self.loss), LOSS_ERROR)
        context.check(f"{name}: error of all gradients", self.gradient_error(variant), self.gradient_limit)


def relative_error(value: Tensor, reference: Tensor) -> float:
    """Largest difference, relative to the largest reference value."""
    return ((value.cpu() - reference).abs().max() / reference.abs().max()).item()


def timing_rows(job: str, timings: dict[str, Timing]) -> list[list[str]]:
    eager, inductor = timings["CPU eager"].median, timings["CPU compiled"].median
    return [
        [job, name, str(timing), f"{timing.median / eager:.2f}", f"{timing.median / inductor:.2f}"]
        for name, timing in timings.items()
    ]


def run(context: Context) -> None:
    """Compares eager and compiled results with CPU eager, then times all four ways in turns."""
    before = context.fallbacks()
    torch.manual_seed(0)
    size, repeats = (96, 2) if context.short else (224, 5)
    images, labels = torch.randn(4, 3, size, size), torch.randint(1000, (4,))
    model = resnet50()
    kinds = {
        "CPU eager": (CPU, False),
        "CPU compiled": (CPU, True),
        f"{context.device.type} eager": (context.device, False),
        f"{context.device.type} compiled": (context.device, True),
    }
    variants = {name: Variant(model, images, labels, device, compiled) for name, (device, compiled) in kinds.items()}
    print(f"  images 4x3x{size}x{size}; {torch.get_num_threads()} CPU threads")
    reference = Reference(model, images, labels)
    for name, variant in variants.items():
        start = time.perf_counter()
        reference.compare(context, name, variant)
        print(f"  {name}: first forward and training step took {time.perf_counter() - start:.1f} s", flush=True)
    rows = timing_rows("forward", interleave({name: each.forward for name, each in variants.items()}, repeats))
    rows += timing_rows("training", interleave({name: each.step for name, each in variants.items()}, repeats))
    print(table(["job", "where", "median", "x CPU eager", "x CPU compiled"], rows))
    context.print_fallbacks("ResNet-50", before)
