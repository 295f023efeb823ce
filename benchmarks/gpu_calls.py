# SPDX-License-Identifier: Apache-2.0
"""What :mod:`benchmarks.gpu` times, and the process that does so for one device.

``python benchmarks/gpu_calls.py DEVICE``: a line of standard input is a call's name and the number of repetitions, or
``0`` for as many as take a twentieth of a second; the answer is a line of JSON. It needs PyTorch alone, so that a
PyTorch that has never heard of Outboard can be the peer.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # as a script of another Python's it knows no package

from examples.measure import synchronize  # noqa: E402
from examples.models import GPT2, GPT2Config, resnet50  # noqa: E402

#: A call without arguments whose work goes to the device, and whose result the peers compare.
Call = Callable[[], Any]
HALF = torch.bfloat16
FLOAT = torch.float32
NAMES = {FLOAT: "float32", HALF: "bfloat16"}
ENOUGH = 0.05  #: seconds that one measurement should take
COMPARED = 1 << 16  #: elements of a result that are compared
DRAWN = (1 << 22) - 3  #: numbers of a tensor that are drawn


def _random(*shape: int, dtype: torch.dtype = FLOAT, device: str, scale: float = 1.0) -> Tensor:
    """The same numbers on every device; in large tensors they repeat."""
    count = math.prod(shape)
    numbers = (torch.randn(min(count, DRAWN)) * scale).to(device=device, dtype=dtype)
    return numbers.repeat(-(-count // DRAWN))[:count].view(shape) if count > DRAWN else numbers.view(shape)


def _elementwise(device: str) -> Iterator[tuple[str, Callable[[], Call]]]:
    def of(function: Callable[..., Tensor], count: int, *shape: int, dtype: torch.dtype = FLOAT) -> Callable[[], Call]:
        def make() -> Call:
            inputs = [_random(*shape, dtype=dtype, device=device) for _ in range(count)]
            return lambda: function(*inputs)

        return make

    large = 1 << 26
    for dtype, name in NAMES.items():
        yield f"add, 64 M, {name}", of(torch.add, 2, large, dtype=dtype)
        yield f"gelu, 64 M, {name}", of(F.gelu, 1, large, dtype=dtype)
        yield f"softmax 16384 x 2048, {name}", of(lambda x: torch.softmax(x, 1), 1, 16384, 2048, dtype=dtype)
        yield f"layer_norm 16384 x 2048, {name}", of(lambda x: F.layer_norm(x, (2048,)), 1, 16384, 2048, dtype=dtype)
        yield f"sum of 64 M, {name}", of(torch.sum, 1, large, dtype=dtype)
        yield f"sum of columns 16384 x 2048, {name}", of(lambda x: x.sum(0), 1, 16384, 2048, dtype=dtype)
        yield f"transpose 8192 x 4096, {name}", of(lambda x: x.t().contiguous(), 1, 8192, 4096, dtype=dtype)
    yield "copy, 64 M, float32", of(torch.clone, 1, large)
    yield "cumsum 4096 x 4096", of(lambda x: x.cumsum(1), 1, 4096, 4096)
    yield "sort 1024 x 8192", of(lambda x: x.sort(1)[0], 1, 1024, 8192)
    yield "topk(50) 64 x 128256", of(lambda x: x.topk(50)[0], 1, 64, 128256)
    yield "argmax 64 x 128256", of(lambda x: x.argmax(1), 1, 64, 128256)
    yield "index_select 65536 of 50257 x 1024", _selection(device)
    yield "index_add 262144 x 256 onto 10000", _index_add(device)
    yield "add of 16 numbers", of(torch.add, 2, 16)


def _selection(device: str) -> Callable[[], Call]:
    def make() -> Call:
        table = _random(50257, 1024, device=device)
        index = torch.randint(50257, (65536,)).to(device)
        return lambda: F.embedding(index, table)

    return make


def _index_add(device: str) -> Callable[[], Call]:
    def make() -> Call:
        rows = _random(262144, 256, device=device)
        index = torch.randint(10000, (262144,)).to(device)
        return lambda: torch.zeros(10000, 256, device=device).index_add_(0, index, rows)

    return make


def _products(device: str) -> Iterator[tuple[str, Callable[[], Call]]]:
    def product(m: int, n: int, k: int, dtype: torch.dtype) -> Callable[[], Call]:
        def make() -> Call:
            a, b = _random(m, k, dtype=dtype, device=device), _random(n, k, dtype=dtype, device=device, scale=k**-0.5)
            return lambda: F.linear(a, b)

        return make

    def batched(dtype: torch.dtype) -> Callable[[], Call]:
        def make() -> Call:
            a = _random(96, 512, 64, dtype=dtype, device=device)
            b = _random(96, 64, 512, dtype=dtype, device=device, scale=0.125)
            return lambda: a @ b

        return make

    for dtype, name in NAMES.items():
        for size in (1024, 4096):
            yield f"linear {size}, {name}", product(size, size, size, dtype)
        yield f"linear 1 x 4096 x 14336, {name}", product(1, 14336, 4096, dtype)
        yield f"bmm 96 x 512 x 512 x 64, {name}", batched(dtype)


def _convolutions(device: str) -> Iterator[tuple[str, Callable[[], Call]]]:
    def convolution(
        width: int, size: int, window: int, groups: int, dtype: torch.dtype, train: bool
    ) -> Callable[[], Call]:
        def make() -> Call:
            x = _random(32, width, size, size, dtype=dtype, device=device)
            weight = _random(width, width // groups, window, window, dtype=dtype, device=device, scale=0.05)
            if not train:
                return lambda: F.conv2d(x, weight, padding=window // 2, groups=groups)
            x.requires_grad_()
            weight.requires_grad_()
            y = F.conv2d(x, weight, padding=window // 2, groups=groups)
            gradient = torch.ones_like(y)
            return lambda: torch.autograd.grad(y, (x, weight), gradient, retain_graph=True)[1]

        return make

    for dtype, name in NAMES.items():
        yield f"conv 3x3, 32 x 64 x 56 x 56, {name}", convolution(64, 56, 3, 1, dtype, False)
        yield f"its gradient, {name}", convolution(64, 56, 3, 1, dtype, True)
        yield f"depthwise 3x3, 32 x 384 x 28 x 28, {name}", convolution(384, 28, 3, 384, dtype, False)
        yield f"gradient of depthwise, {name}", convolution(384, 28, 3, 384, dtype, True)


def _attentions(device: str) -> Iterator[tuple[str, Callable[[], Call]]]:
    def attention(dtype: torch.dtype, train: bool) -> Callable[[], Call]:
        def make() -> Call:
            q, k, v = (_random(8, 16, 1024, 64, dtype=dtype, device=device) for _ in range(3))
            if not train:
                return lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True)
            for each in (q, k, v):
                each.requires_grad_()
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            gradient = torch.ones_like(y)
            return lambda: torch.autograd.grad(y, (q, k, v), gradient, retain_graph=True)[0]

        return make

    for dtype, name in NAMES.items():
        yield f"attention 8 x 16 x 1024 x 64, causal, {name}", attention(dtype, False)
        yield f"gradient of attention, {name}", attention(dtype, True)


def _models(device: str) -> Iterator[tuple[str, Callable[[], Call]]]:
    def gpt2() -> tuple[nn.Module, Tensor]:
        config = GPT2Config(vocabulary=50257, positions=1024, width=768, layers=12, heads=12)
        return GPT2(config), torch.randint(config.vocabulary, (8, 512))

    def resnet() -> tuple[nn.Module, Tensor]:
        return resnet50(), torch.randn(32, 3, 224, 224)

    def model(
        build: Callable[[], tuple[nn.Module, Tensor]], dtype: torch.dtype, train: bool, compiled: bool
    ) -> Callable[[], Call]:
        def make() -> Call:
            module, data = build()
            module.to(device=device, dtype=dtype).train(train)
            x = data.to(device) if not data.is_floating_point() else data.to(device, dtype)
            run = torch.compile(module) if compiled else module
            if not train:
                return torch.no_grad()(lambda: run(x).flatten()[:COMPARED])  # type: ignore[no-any-return]
            optimizer = torch.optim.SGD(module.parameters(), lr=1e-4)

            def step() -> Tensor:
                optimizer.zero_grad()
                loss: Tensor = run(x).float().square().mean()
                loss.backward()
                optimizer.step()
                return loss.detach()

            return step

        return make

    for title, build in (("ResNet-50 of 32", resnet), ("GPT-2 8 x 512", gpt2)):
        for dtype, name in NAMES.items():
            for compiled in (False, True):
                for train in (False, True):
                    what = f"{'training' if train else 'forward'}, {'compiled' if compiled else 'eager'}, {name}"
                    yield f"{title}, {what}", model(build, dtype, train, compiled)


def calls(device: str) -> dict[str, Callable[[], Call]]:
    """By name, what makes a call with inputs on ``device``; the same numbers for every device."""
    parts = (_elementwise, _products, _convolutions, _attentions, _models)
    return {name: make for part in parts for name, make in part(device)}


def _seconds(call: Call, count: int, device: torch.device) -> float:
    """Seconds of one of ``count`` calls, one after another, until the last has ended."""
    synchronize(device)
    start = time.perf_counter()
    for _ in range(count):
        call()
    synchronize(device)
    return (time.perf_counter() - start) / count


class Timer:
    """Keeps the call that was named last, warmed up."""

    def __init__(self, device: str) -> None:
        self.device = torch.device(device)
        self.calls = calls(device)
        self.name = ""
        self.call: Call = lambda: None

    def measure(self, name: str, count: int) -> dict[str, Any]:
        """Seconds a call, how many were made, and, the first time, seconds of the first one and some of its result."""
        answer: dict[str, Any] = {}
        if name != self.name:
            self.name, self.call = name, lambda: None
            torch._dynamo.reset()
            torch.manual_seed(0)
            self.call = self.calls[name]()
            synchronize(self.device)
            start = time.perf_counter()
            result = self.call()
            synchronize(self.device)
            answer["first"] = time.perf_counter() - start
            answer["result"] = result.detach().flatten()[:COMPARED].double().cpu().tolist()
        if not count:
            once = _seconds(self.call, 3, self.device)
            count = max(1, min(1000, int(ENOUGH / once)))
        return answer | {"count": count, "seconds": _seconds(self.call, count, self.device)}


def main() -> None:
    """Answers each line of standard input."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print is no answer
    torch.backends.cudnn.allow_tf32 = False  # float32 is float32 for both
    timer = Timer(sys.argv[1])
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = timer.measure(request["name"], request["count"])
        except Exception as error:  # the parent prints it in the call's row
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"[:300]}
        answers.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
