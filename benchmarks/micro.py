# SPDX-License-Identifier: Apache-2.0
"""Single operators, chains of tiny ones, an optimizer, and the matrix products of the models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.engine import CPU_EAGER, Answer, Job, Way, Workload
from benchmarks.models import ADAM_STATE, optimizer_traffic
from benchmarks.probes import Traffic
from benchmarks.roofline import FLOAT, LARGEST, Phase, onednn_linear
from examples.measure import synchronize
from examples.variant import CPU

MILLION = 1 << 20
#: Seconds in which caches, threads and clocks get used to an operator: some tens of runs.
REHEARSAL = 0.02


@dataclass(frozen=True)
class Operator:
    """A function of tensors, and what it must read and write."""

    function: Callable[..., Tensor]
    inputs: Callable[[], list[Tensor]]
    traffic: Traffic
    memory_bound: bool


def floats(reads: int, writes: int) -> Traffic:
    """So many floats, read and written each once."""
    return Traffic(FLOAT * reads, FLOAT * writes)


OPERATORS: dict[str, Operator] = {
    "softmax 4096x1024": Operator(
        lambda x: torch.softmax(x, -1),
        lambda: [torch.randn(4096, 1024)],
        floats(4 * MILLION, 4 * MILLION),
        memory_bound=True,
    ),
    "layer_norm 4096x1024": Operator(
        lambda x, weight, bias: functional.layer_norm(x, (1024,), weight, bias),
        lambda: [torch.randn(4096, 1024), torch.randn(1024), torch.randn(1024)],
        floats(4 * MILLION, 4 * MILLION),
        memory_bound=True,
    ),
    "gelu 16 M": Operator(
        functional.gelu,
        lambda: [torch.randn(16 * MILLION)],
        floats(16 * MILLION, 16 * MILLION),
        memory_bound=True,
    ),
    # Positive numbers: a sum that is nearly zero would say nothing about the error.
    "sum 16 M": Operator(torch.sum, lambda: [torch.rand(16 * MILLION)], floats(16 * MILLION, 0), memory_bound=True),
    "matmul 1024^3": Operator(
        torch.matmul,
        lambda: [torch.randn(1024, 1024), torch.randn(1024, 1024)],
        floats(2 * MILLION, MILLION),
        memory_bound=False,
    ),
    "conv 3x3 8x64x56x56": Operator(
        lambda x, weight: functional.conv2d(x, weight, padding=1),
        lambda: [torch.randn(8, 64, 56, 56), torch.randn(64, 64, 3, 3)],
        floats(8 * 64 * 56 * 56, 8 * 64 * 56 * 56),
        memory_bound=False,
    ),
    "embedding 4096 of 30522x768": Operator(
        functional.embedding,
        lambda: [torch.randint(30522, (4096,)), torch.randn(30522, 768)],
        # The same rows each time, as they are in the cache then, but anywhere in the table.
        Traffic(FLOAT * 4096 * 768, FLOAT * 4096 * 768, row=FLOAT * 768, table=FLOAT * 30522 * 768),
        memory_bound=True,
    ),
}


class Micro(Workload):
    """One operator, waited for."""

    more_repeats = 5
    rehearsal = REHEARSAL

    def __init__(self, name: str) -> None:
        self.name = name
        self.operator = OPERATORS[name]
        self.memory_bound = self.operator.memory_bound
        self.inputs = self.operator.inputs()

    def job(self, way: Way, dtype: torch.dtype) -> Job:
        inputs = [x.to(way.device, dtype if x.is_floating_point() else x.dtype) for x in self.inputs]
        function = torch.compile(self.operator.function) if way.compiled else self.operator.function

        def run() -> Tensor:
            with torch.no_grad():
                result: Tensor = function(*inputs)
            synchronize(way.device)
            return result

        return Job(lambda: {"result": [run()]}, run)

    def phases(self, flops: int) -> list[Phase]:
        return [Phase(self.operator.traffic, flops)]


class Adam(Workload):
    """Adam, foreach, over 100 parameters of 256 x 256."""

    memory_bound = True
    more_repeats = 5
    rehearsal = REHEARSAL
    steps_checked = 3

    def __init__(self, name: str) -> None:
        self.name = name
        self.weights = [torch.randn(256, 256) for _ in range(100)]
        self.gradients = [torch.randn(256, 256) for _ in range(100)]

    def job(self, way: Way, dtype: torch.dtype) -> Job:
        parameters = [weight.to(way.device, dtype, copy=True).requires_grad_() for weight in self.weights]
        for parameter, gradient in zip(parameters, self.gradients, strict=True):
            parameter.grad = gradient.to(way.device, dtype)
        optimizer = torch.optim.Adam(parameters, lr=1e-3, foreach=True)
        step = torch.compile(optimizer.step) if way.compiled else optimizer.step

        def run() -> None:
            step()
            synchronize(way.device)

        def answer() -> Answer:
            for _ in range(self.steps_checked):
                run()
            after = (parameter.detach().cpu().double() for parameter in parameters)
            return {"changes": [new - old for new, old in zip(after, self.weights, strict=True)]}

        return Job(answer, run)

    def phases(self, flops: int) -> list[Phase]:
        return [Phase(optimizer_traffic(ADAM_STATE, FLOAT * 100 * 256 * 256))]


class TinyAdds(Workload):
    """Adds of 16 floats, each waiting for the one before it; eager, because a compiler would fuse them.

    With ``submit`` the time ends when the last call has returned, else when the last result is there. The device is
    idle at the start of each run.
    """

    calls = 500
    more_repeats = 5
    rehearsal = REHEARSAL
    silence = 0.0  # no way uses OpenMP here

    def __init__(self, name: str, *, submit: bool) -> None:
        self.name = name
        self.submit = submit

    def ways(self, device: torch.device) -> list[Way]:
        return [way for way in super().ways(device) if not way.compiled]

    def job(self, way: Way, dtype: torch.dtype) -> Job:
        start, right = (torch.ones(16, device=way.device, dtype=dtype) for _ in range(2))
        add = torch.add

        def submit() -> Tensor:
            total = start
            for _ in range(self.calls):
                total = add(total, right)
            return total

        def finish() -> Tensor:
            total = submit()
            synchronize(way.device)
            return total

        return Job(lambda: {"total": [finish()]}, submit if self.submit else finish)

    def phases(self, flops: int) -> list[Phase]:
        return []


ONEDNN = "CPU oneDNN"

#: The linear layers of the models, (rows, inputs, outputs).
GEMM_SHAPES: dict[str, Sequence[tuple[int, int, int]]] = {
    "BERT-base": [(512, 768, 768), (512, 768, 2304), (512, 768, 3072), (512, 3072, 768), (512, 768, 30522)],
    "Llama prefill": [(256, 512, 512), (256, 512, 1408), (256, 1408, 512), (256, 512, 8192)],
    "Llama decode": [(1, 512, 512), (1, 512, 1408), (1, 1408, 512), (1, 512, 8192)],
    "GPT-2-small": [(256, 768, 2304), (256, 768, 768), (256, 768, 3072), (256, 3072, 768), (256, 768, 50257)],
    "ResNet-50": [(4, 2048, 1000)],
}


class Gemm(Workload):
    """A linear layer on each library: eager PyTorch's choice, oneDNN, the device."""

    more_repeats = 5
    rehearsal = REHEARSAL

    def __init__(self, name: str, rows: int, inputs: int, outputs: int) -> None:
        self.name = name
        self.x = torch.randn(rows, inputs)
        # Enough products for a run to take a millisecond: a single small one would mostly measure waiting. Each has
        # weights of its own, as in a model, or small ones would come from the cache.
        weight_bytes = FLOAT * inputs * outputs
        self.calls = max(1, min(round(2e8 / (2 * rows * inputs * outputs)), LARGEST // weight_bytes))
        self.weights = torch.randn(self.calls, outputs, inputs)

    def ways(self, device: torch.device) -> list[Way]:
        eager = [way for way in super().ways(device) if not way.compiled]
        libraries = [Way(ONEDNN, CPU)] if torch.backends.mkldnn.is_available() else []
        return [eager[0], *libraries, *eager[1:]]

    def job(self, way: Way, dtype: torch.dtype) -> Job:
        x, weights = self.x.to(way.device, dtype), list(self.weights.to(way.device, dtype))
        linear: Callable[[Tensor, Tensor], Tensor] = onednn_linear if way.name == ONEDNN else functional.linear

        def run() -> list[Tensor]:
            with torch.no_grad():
                products = [linear(x, weight) for weight in weights]
            synchronize(way.device)
            return products

        return Job(lambda: {"products": run()}, run)

    def phases(self, flops: int) -> list[Phase]:
        return [Phase(Traffic(reads=FLOAT * self.weights.numel()), flops)]


SUBMIT, FINISH = "tiny add, submit", "tiny add, finish"
GEMM_LIBRARIES = (CPU_EAGER, ONEDNN)

MICROS: dict[str, Callable[[], Workload]] = {
    SUBMIT: lambda: TinyAdds(SUBMIT, submit=True),
    FINISH: lambda: TinyAdds(FINISH, submit=False),
    **{name: partial(Micro, name) for name in OPERATORS},
    "Adam, 100 parameters": lambda: Adam("Adam, 100 parameters"),
}

GEMMS: dict[str, Callable[[], Workload]] = {
    name: partial(Gemm, name, *shape)
    for model, shapes in GEMM_SHAPES.items()
    for shape in shapes
    for name in [f"{model} {'x'.join(map(str, shape))}"]
}
