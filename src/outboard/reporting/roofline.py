# SPDX-License-Identifier: Apache-2.0
"""The least time that an operator can take on a device: by the memory it touches and by the arithmetic it does.

(Williams, Waterman, Patterson: Roofline: an insightful visual performance model, 2009.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

#: Elements of the arrays whose copies are timed; less where the device is small.
_COPIED = 1 << 24
#: Rows of the matrices whose products are timed.
_MULTIPLIED = 1024
_RUNS = 5

BYTES = {
    "double": 8, "float": 4, "c10::Half": 2, "c10::BFloat16": 2, "long int": 8, "long": 8, "int": 4, "short int": 2,
    "short": 2, "signed char": 1, "unsigned char": 1, "bool": 1, "c10::complex<float>": 8, "c10::complex<double>": 16,
}  # fmt: skip
_DTYPES = {"double": torch.float64, "float": torch.float32, "c10::Half": torch.float16, "c10::BFloat16": torch.bfloat16}


@dataclass(frozen=True)
class Roof:
    """What a device reaches: bytes per second in a copy, and operations per second in a matrix product by dtype."""

    bandwidth: float
    peaks: dict[torch.dtype, float]

    def floor(self, moved: int, flops: int, dtype: str) -> float:
        """Seconds that so much takes at least. A dtype whose products were not measured is taken as float32."""
        peak = self.peaks.get(_DTYPES.get(dtype, torch.float32)) or self.peaks[torch.float32]
        return max(moved / self.bandwidth, flops / peak)


def measure(device: torch.device) -> Roof:
    """Times copies and products on the device, the best of some runs each."""
    module = torch.get_device_module(device)
    count = int(min(_COPIED, module.mem_get_info(device)[0] // 64))
    source = torch.ones(count, device=device)
    target = torch.empty_like(source)
    bandwidth = 2 * source.nbytes / _best(lambda: target.copy_(source), device)
    return Roof(bandwidth, {torch.float32: _peak(device, torch.float32)})


def with_peaks(roof: Roof, device: torch.device, dtypes: set[str]) -> Roof:
    """The same with the peaks of what else a program multiplied."""
    peaks = dict(roof.peaks)
    for dtype in {_DTYPES[name] for name in dtypes if name in _DTYPES} - set(peaks):
        peaks[dtype] = _peak(device, dtype)
    return Roof(roof.bandwidth, peaks)


def _peak(device: torch.device, dtype: torch.dtype) -> float:
    a = torch.ones(_MULTIPLIED, _MULTIPLIED, device=device, dtype=dtype)
    return 2 * _MULTIPLIED**3 / _best(lambda: a @ a, device)


def _best(work: Callable[[], Any], device: torch.device) -> float:
    """Seconds of the fastest run, on the device's clock."""
    work()
    best = math.inf
    for _ in range(_RUNS):
        begin, end = torch.Event(device, enable_timing=True), torch.Event(device, enable_timing=True)
        begin.record()
        work()
        end.record()
        end.synchronize()
        best = min(best, begin.elapsed_time(end) / 1000)
    return best


def bytes_moved(event: Any) -> int:
    """Bytes that an operator, an event of the profiler's, reads and writes at least: its tensors, and what it made."""
    moved = max(0, int(event.self_device_memory_usage))
    tensors = [
        math.prod(shape) * BYTES[dtype]
        for shape, dtype in zip(event.input_shapes or (), event.input_dtypes or (), strict=False)
        if dtype in BYTES
    ]
    if event.name.endswith("_") and tensors:
        moved += tensors[0]  # it is written, too
    return int(moved + sum(tensors))


def flops_of(event: Any) -> int:
    """Operations of a matrix product or a convolution; 0 for what memory bounds."""
    count = _FLOPS.get(event.name)
    if count is None:
        return 0
    try:
        return int(count(event.input_shapes, event.concrete_inputs))
    except (IndexError, TypeError):  # shapes were not recorded
        return 0


def _product(a: Sequence[int], b: Sequence[int]) -> int:
    return 2 * math.prod(a) * int(b[-1])


def _convolution(shapes: Sequence[Sequence[int]], values: Sequence[Any]) -> int:
    x, weight = shapes[0], shapes[1]
    stride, padding, dilation, transposed = values[3:7]
    if transposed:
        return 2 * math.prod(x) * math.prod(weight[1:])
    out = [
        (size + 2 * _at(padding, i) - _at(dilation, i) * (kernel - 1) - 1) // _at(stride, i) + 1
        for i, (size, kernel) in enumerate(zip(x[2:], weight[2:], strict=True))
    ]
    return 2 * x[0] * weight[0] * math.prod(out) * math.prod(weight[1:])


def _convolution_backward(shapes: Sequence[Sequence[int]], values: Sequence[Any]) -> int:
    small = shapes[1] if values[7] else shapes[0]  # the input of one that is transposed, else the result's gradient
    weight = shapes[2]
    return 2 * math.prod(small) * math.prod(weight[1:]) * int(sum(values[10][:2]))


def _at(values: Sequence[int], place: int) -> int:
    return values[place] if place < len(values) else values[-1]


_FLOPS: dict[str, Callable[[Any, Any], int]] = {
    "aten::mm": lambda shapes, _: _product(shapes[0], shapes[1]),
    "aten::bmm": lambda shapes, _: _product(shapes[0], shapes[1]),
    "aten::addmm": lambda shapes, _: _product(shapes[1], shapes[2]),
    "aten::baddbmm": lambda shapes, _: _product(shapes[1], shapes[2]),
    "aten::convolution": _convolution,
    "aten::convolution_overrideable": _convolution,
    "aten::convolution_backward": _convolution_backward,
}
