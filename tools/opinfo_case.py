# SPDX-License-Identifier: Apache-2.0
"""One OpInfo on the device against the CPU. Runs in a process of its own; see ``opinfo.py``."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any
from unittest import mock

import opinfo_ways
import torch
from on_cpu import new_fallbacks
from torch import Tensor
from torch.testing._internal.common_device_type import precisionOverride, toleranceOverride
from torch.testing._internal.opinfo.core import OpInfo, SampleInput
from torch.utils._pytree import tree_leaves, tree_map

#: Results of these are memory as it was found: only their shape, dtype and device can be compared.
UNINITIALISED = ("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided")
#: Operators with a tensor argument that PyTorch wants on the CPU, whatever device the input is on.
CPU_ARGUMENTS = ("tensor_split",)
#: Operators that name elements of their input, and may name another one that is equal.
NAMING = ("argsort", "kthvalue", "sort", "topk")
#: Operators that draw one number for each channel, and leave its elements equal.
DRAWN_BY_CHANNEL = ("nn.functional.dropout2d", "nn.functional.dropout3d", "nn.functional.feature_alpha_dropout")
#: Who says why an operator runs on the host.
COMPILER_LOG = "outboard.compiler.eager"
#: Two samples of one distribution exceed this multiple of the usual Kolmogorov-Smirnov scale once in 10^5 times.
SMIRNOV_LIMIT = 2.5


#: Runs a sample.
Call = Callable[[SampleInput], Any]


@dataclass
class Outcome:
    """``kind`` is native, host, wrong, error or skipped; ``detail`` says why; ``fallbacks`` counts CPU fallbacks."""

    kind: str
    detail: str
    fallbacks: dict[str, int]


class WrongResult(Exception):
    """The device's result differs from the CPU's."""


class Reasons(logging.Handler):
    """Collects why operators run on the host: ``found`` has the compiler's words by operator."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.found: dict[str, str] = {}

    def emit(self, record: logging.LogRecord) -> None:
        if "runs on the host" in str(record.msg) and isinstance(record.args, tuple):
            name, reason = record.args
            self.found[str(name)] = str(reason)

    def detail(self, names: dict[str, int]) -> str:
        """The operators that ran on the host, each with the reason, where one was given."""
        reasons = {name: self.found.get(name.partition(".")[0]) for name in sorted(names)}
        return ", ".join(name if reason is None else f"{name} ({reason})" for name, reason in reasons.items())


@contextlib.contextmanager
def reasons() -> Iterator[Reasons]:
    """Inside, the compiler's reasons are collected."""
    logger, handler = logging.getLogger(COMPILER_LOG), Reasons()
    level, propagate = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    try:
        yield handler
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagate


def tolerances(op: OpInfo, dtype: torch.dtype) -> dict[str, float]:
    """``rtol`` and ``atol`` where PyTorch's own comparison of this operator between devices overrides the defaults."""
    found: dict[str, float] = {}
    for decorator in _active_decorators(op):
        if isinstance(decorator, toleranceOverride) and dtype in decorator.d:
            found = {"atol": decorator.d[dtype].atol, "rtol": decorator.d[dtype].rtol}
        if isinstance(decorator, precisionOverride) and dtype in decorator.d:
            found = {"atol": decorator.d[dtype], "rtol": found.get("rtol", 1.3e-6)}
    return found


def _active_decorators(op: OpInfo) -> Iterator[Any]:
    for entry in op.decorators:
        if not hasattr(entry, "decorators"):
            yield entry
        elif entry.cls_name in (None, "TestCommon") and entry.test_name in (None, "test_compare_cpu"):
            yield from entry.decorators


def run(
    op: OpInfo,
    dtype: torch.dtype,
    device: str,
    samples: int,
    way: str = "called",
    inputs: Iterable[SampleInput] | None = None,
) -> Outcome:
    """Runs the first ``samples`` of ``inputs`` (the operator's sample inputs, unless others are given) in one of the
    ways of ``opinfo_ways``, and classifies the operator."""
    inputs = op.sample_inputs("cpu", dtype, requires_grad=False) if inputs is None else inputs
    with reasons() as why:
        outcome = _classified(op, device, islice(inputs, samples), tolerances(op, dtype), way)
    if outcome.kind == "host":
        outcome.detail = why.detail(outcome.fallbacks)
    return outcome


def _classified(op: OpInfo, device: str, samples: Iterable[SampleInput], limits: dict[str, float], way: str) -> Outcome:
    call = partial(_call, opinfo_ways.WAYS[way], op)
    module = getattr(torch, torch.device(device).type)
    fallbacks: dict[str, int] = {}
    compared = 0
    for sample in samples:
        try:
            expected = call(sample)
        except Exception:  # noqa: BLE001 - what the CPU refuses is not a question to the device
            continue
        moved = _to_device(op, sample, device)
        before = dict(module.fallbacks())
        try:
            actual = call(moved)
            torch.accelerator.synchronize()
        except Exception as error:  # noqa: BLE001 - any failure is a row of the table
            return Outcome("error", f"{type(error).__name__}: {error}", fallbacks)
        for name, count in new_fallbacks(device, before).items():
            fallbacks[name] = fallbacks.get(name, 0) + count
        try:
            _compare(op, sample, actual, expected, limits, call)
        except (AssertionError, WrongResult) as error:
            if not _as_exact(sample, actual, expected, call) and not _as_named(op, sample, actual, expected):
                return Outcome("wrong", f"sample {compared}: {error}", fallbacks)
        compared += 1
    if compared == 0:
        return Outcome("skipped", "the CPU has no sample that works", fallbacks)
    return Outcome("host" if fallbacks else "native", "", fallbacks)


def _call(way: Callable[[OpInfo, SampleInput], Any], op: OpInfo, sample: SampleInput) -> Any:
    torch.manual_seed(0)
    # In-place operators among the OpInfos must not change the sample, which is used again.
    own = sample.transform(lambda value: value.clone() if isinstance(value, Tensor) and not value.is_sparse else value)
    return way(op, own)


def _call_with_other_numbers(sample: SampleInput, call: Call) -> Any:
    """The result with other random numbers, even for OpInfos that set a seed of their own."""
    seed = torch.manual_seed
    with mock.patch.object(torch, "manual_seed", lambda number: seed(number + 1)):
        return call(sample)


def _to_device(op: OpInfo, sample: SampleInput, device: str) -> SampleInput:
    def move(value: Any) -> Any:
        if isinstance(value, Tensor):
            return value.to(device).requires_grad_(value.requires_grad)  # `transform` has no gradients
        return torch.device(device) if isinstance(value, torch.device) else value

    moved = sample.transform(move)
    if op.name in CPU_ARGUMENTS:
        moved.args, moved.kwargs = sample.args, sample.kwargs
    if "device" in moved.kwargs:
        moved.kwargs["device"] = device
    return moved


def _compare(op: OpInfo, sample: SampleInput, actual: Any, expected: Any, limits: dict[str, float], call: Call) -> None:
    actual = tree_map(lambda leaf: leaf.cpu() if isinstance(leaf, Tensor) else leaf, actual)
    if op.name in UNINITIALISED:
        return _for_each_pair(actual, expected, _compare_kind)
    again = _call_with_other_numbers(sample, call)
    if _same(expected, again):
        torch.testing.assert_close(actual, expected, equal_nan=True, check_stride=False, **limits)
        return None
    if op.name in DRAWN_BY_CHANNEL:
        actual, expected = (
            tree_map(lambda leaf: leaf.flatten(2)[..., 0] if leaf.dim() > 2 else leaf, side)
            for side in (actual, expected)
        )
    return _for_each_pair(actual, expected, _compare_distribution)


def _as_exact(sample: SampleInput, actual: Any, expected: Any, call: Call) -> bool:
    """Whether the device's floats are no further from a float64 computation than twice the CPU's own: sums may be taken
    in any order, and where terms cancel the CPU's order is no better than another."""
    try:
        exact = call(sample.transform(lambda v: v.to(_widest(v)) if _is_float(v) else v))
    except Exception:  # noqa: BLE001 - no float64 variant: no second opinion
        return False
    ours, theirs, truths = (tree_leaves(value) for value in (actual, expected, exact))
    if not len(ours) == len(theirs) == len(truths):
        return False
    for one, other, truth in zip(ours, theirs, truths, strict=True):
        if not _is_float(other):
            if not _same(one.cpu() if isinstance(one, Tensor) else one, other):
                return False
            continue
        if one.shape != other.shape or not torch.equal(other.isfinite(), one.cpu().isfinite()):
            return False
        finite = other.isfinite()
        error, limit = ((side.cpu()[finite].to(_widest(truth)) - truth[finite]).abs() for side in (one, other))
        if error.numel() and error.max() > 2 * limit.max():
            return False
    return True


def _is_float(value: Any) -> bool:
    if not isinstance(value, Tensor) or value.layout != torch.strided:
        return False
    return value.is_floating_point() or value.is_complex()


def _widest(value: Tensor) -> torch.dtype:
    return torch.complex128 if value.is_complex() else torch.float64


def _as_named(op: OpInfo, sample: SampleInput, actual: Any, expected: Any) -> bool:
    """Whether the device names other elements of the input than the CPU, but equal ones."""
    if op.name not in NAMING or sample.kwargs.get("stable"):
        return False
    *ours, named = tree_leaves(tree_map(lambda leaf: leaf.cpu() if isinstance(leaf, Tensor) else leaf, actual))
    *theirs, wanted = tree_leaves(expected)
    if named.shape != wanted.shape or not all(map(_same, ours, theirs)):
        return False
    pairs = (
        (_gathered(sample.input, dim, named), _gathered(sample.input, dim, wanted)) for dim in _dims(sample, named)
    )
    return any(_same(one, other) for one, other in pairs)


def _dims(sample: SampleInput, named: Tensor) -> list[int]:
    """The dimensions of the input along which elements may have been named: shapes differ by their length alone."""
    shape = [*sample.input.shape]
    if named.dim() < len(shape):
        return [dim for dim in range(len(shape)) if shape[:dim] + shape[dim + 1 :] == [*named.shape]]
    return [dim for dim in range(len(shape)) if all(named.shape[i] == shape[i] for i in range(len(shape)) if i != dim)]


def _gathered(input: Tensor, dim: int, named: Tensor) -> Tensor:
    """The elements of the input that are named."""
    named = named if named.dim() == input.dim() else named.unsqueeze(dim)
    return input.gather(dim, named.clamp(max=input.shape[dim] - 1))


def _same(first: Any, second: Any) -> bool:
    """Whether two runs on the CPU with different seeds agree, that is, the operator is not random."""
    try:
        torch.testing.assert_close(first, second, equal_nan=True, rtol=0, atol=0)
    except AssertionError:
        return False
    return True


def _for_each_pair(actual: Any, expected: Any, check: Callable[[Tensor, Tensor], None]) -> None:
    ours, theirs = tree_leaves(actual), tree_leaves(expected)
    if len(ours) != len(theirs):
        raise WrongResult(f"{len(ours)} results instead of {len(theirs)}")
    for one, other in zip(ours, theirs, strict=True):
        if isinstance(other, Tensor):
            check(one, other)


def _compare_kind(actual: Tensor, expected: Tensor) -> None:
    if (actual.shape, actual.dtype) != (expected.shape, expected.dtype):
        raise WrongResult(f"{actual.dtype}{list(actual.shape)} instead of {expected.dtype}{list(expected.shape)}")


def _compare_distribution(actual: Tensor, expected: Tensor) -> None:
    """Two-sample Kolmogorov-Smirnov test on all values."""
    _compare_kind(actual, expected)
    count = expected.numel()
    if count == 0:
        return
    ours = actual.detach().flatten().double().sort().values
    theirs = expected.detach().flatten().double().sort().values
    points = torch.cat((ours, theirs))
    shares = [torch.searchsorted(side, points, right=True) / count for side in (ours, theirs)]
    distance = (shares[0] - shares[1]).abs().max().item()
    limit = SMIRNOV_LIMIT * math.sqrt(2 / count)
    if distance > limit:
        raise WrongResult(f"random values are distributed differently: distance {distance:.3f} > {limit:.3f}")
