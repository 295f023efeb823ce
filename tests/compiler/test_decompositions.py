# SPDX-License-Identifier: Apache-2.0
"""Every decomposition that we compile with computes what the operator itself computes on the CPU.

Operators are taken from what OpInfo's samples call, with the samples as they are, with special values in them, and
empty. Nothing is compiled: decompositions are run eagerly, on the CPU, beside the kernels they stand for.
"""

from __future__ import annotations

import itertools
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._inductor.decomposition import select_decomp_table
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo, SampleInput
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from outboard.compiler.adapter.operators.corrections import corrected
from outboard.compiler.adapter.operators.decompositions import eager_decompositions
from tests.conftest import FULL

Overload = torch._ops.OpOverload
Recorded = tuple[Overload, tuple[Any, ...], dict[str, Any]]
aten = torch.ops.aten

FULL_DTYPES = (torch.float32, torch.int64, torch.bool, torch.uint8, torch.float16, torch.float64)
DTYPES = FULL_DTYPES if FULL else (torch.float32,)
#: Every so many operators are looked at.
STRIDE = 1 if FULL else 6
SAMPLES = 6 if FULL else 2
SPECIAL = (0.0, -0.0, 1.0, -1.0, float("inf"), -float("inf"), float("nan"), 0.5, 1e-30, -1e-30, 1e30, -2.0, 88.0)

#: Decompositions that are not the kernel's algorithm: what differs, and why that is no error.
KNOWN = {
    "aten.isin.Tensor_Tensor": "the CPU sorts long sets, and NaN among them spoils the order",
    "aten.native_batch_norm.default": "statistics of infinities: NaN or infinity by the order of the sum",
    "aten._native_batch_norm_legit.default": "as native_batch_norm",
    "aten._batch_norm_with_update.default": "as native_batch_norm",
    "aten.native_group_norm.default": "as native_batch_norm",
    "aten._softmax_backward_data.default": "0 * inf appears or not by the order of the factors",
    "aten.grid_sampler_2d.default": "the CPU turns coordinates that are not finite into integers",
    "aten.gelu.default": "of infinity, the CPU's vectors make NaN",
    "aten.elu_backward.default": "of NaN, the CPU's vectors of AVX2 make NaN, its single elements 1",
    "aten.hardtanh_backward.default": "of NaN, the CPU's vectors make 0, its single elements 1",
    "aten.hardswish_backward.default": "of NaN, the CPU's vectors make NaN, its single elements 1",
    "aten.hardshrink_backward.default": "as hardtanh_backward",
    "aten.softshrink_backward.default": "as hardtanh_backward",
    "aten.logit_backward.default": "the sign of an infinity at -0",
}


def _table() -> dict[Any, Callable[..., Any]]:
    table = dict(select_decomp_table())
    table.update(corrected(table))
    table.update(eager_decompositions())
    return table


#: Tags of operators whose results no two runs share.
_SKIPPED = {torch.Tag.nondeterministic_seeded}


class _Recorder(TorchDispatchMode):
    """Notes the calls of operators that have a decomposition."""

    def __init__(self, table: dict[Any, Callable[..., Any]]) -> None:
        super().__init__()
        self.table = table
        self.calls: list[Recorded] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in self.table and not _SKIPPED & set(func.tags) and not re.search(r"empty|\.out$", str(func)):
            self.calls.append((func, *_copied((args, kwargs))))
        return func(*args, **kwargs)


def _copied(value: Any) -> Any:
    return tree_map(lambda leaf: leaf.detach().clone() if isinstance(leaf, Tensor) else leaf, value)


def _special(value: Any) -> Any:
    """Floats with special values among them."""
    if not isinstance(value, Tensor) or not value.dtype.is_floating_point or not value.numel():
        return value
    filled = torch.empty_like(value, requires_grad=False)
    numbers = torch.tensor(list(itertools.islice(itertools.cycle(SPECIAL), value.numel())), dtype=torch.float64)
    return filled.copy_(numbers.reshape(value.shape)).requires_grad_(value.requires_grad)


def _with_special_values(sample: SampleInput) -> SampleInput:
    return sample.transform(_special)


def _empty(sample: SampleInput) -> SampleInput:
    """The same without a batch. Parameters stay as long as they are: some of the CPU's kernels read past the end of
    those that are too short."""
    first = sample.input[0] if isinstance(sample.input, list | tuple) else sample.input

    def emptied(value: Any) -> Any:
        if not isinstance(value, Tensor) or not value.dim():
            return value
        if value.dim() != first.dim() and value.shape[:1] != first.shape[:1]:
            return value
        return value[:0].detach().requires_grad_(value.requires_grad)

    return sample.transform(emptied)


#: Samples that end the process in the CPU's own kernel, or whose results it leaves unwritten. Gradients of norms divide
#: by the number of samples, those of grid_sample go where coordinates say that are not finite, and there is no mean of
#: no margin losses.
CRASHES = {
    "native_batch_norm": _empty,
    "_native_batch_norm_legit": _empty,
    "nn.functional.pdist": _empty,
    "nn.functional.multi_margin_loss": _empty,
    "nn.functional.multilabel_margin_loss": _empty,
    "nn.functional.grid_sample": _with_special_values,
    "grid_sampler_2d": _with_special_values,
}


def _samples(op: OpInfo, dtype: torch.dtype) -> Iterator[SampleInput]:
    differentiable = op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")
    for sample in itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=differentiable), SAMPLES):
        yield sample
        for change in (_with_special_values, _empty):
            if CRASHES.get(op.name) is not change:
                yield change(sample)


def _differentiate(results: Any) -> None:
    outputs = [leaf for leaf in tree_leaves(results) if isinstance(leaf, Tensor) and leaf.requires_grad]
    torch.autograd.backward(outputs, [torch.ones_like(output) for output in outputs])


def _recorded(op: OpInfo, dtype: torch.dtype, table: dict[Any, Callable[..., Any]]) -> list[Recorded]:
    recorder = _Recorder(table)
    for sample in _samples(op, dtype):
        torch.manual_seed(0)
        try:
            with recorder:
                _differentiate(op(sample.input, *sample.args, **sample.kwargs))
        except Exception:  # noqa: BLE001, S112 - what the CPU refuses is no call of an operator
            continue
    return recorder.calls


def difference(call: Recorded, decomposition: Callable[..., Any]) -> str | None:
    """What is wrong with a decomposition for one call on the CPU; None if nothing is."""
    func, args, kwargs = call
    expected_args, actual_args = _copied((args, kwargs)), _copied((args, kwargs))
    try:
        expected = func(*expected_args[0], **expected_args[1])
    except Exception:  # noqa: BLE001 - wrong arguments are another test's matter
        return None
    try:
        actual = decomposition(*actual_args[0], **actual_args[1])
    except (NotImplementedError, AssertionError):
        return None  # cannot be taken apart: the operator stays whole
    except Exception as error:  # noqa: BLE001 - the operator accepts the call
        return f"raises {type(error).__name__}: {error}"
    if actual is NotImplemented:
        return None
    pairs = zip(tree_leaves((actual, actual_args)), tree_leaves((expected, expected_args)), strict=False)
    for place, (ours, theirs) in enumerate(pairs):
        if not isinstance(theirs, Tensor):
            continue
        if ours.dtype != theirs.dtype or ours.shape != theirs.shape:
            return f"{ours.dtype} {tuple(ours.shape)} for {theirs.dtype} {tuple(theirs.shape)}"
        try:
            torch.testing.assert_close(ours, theirs, equal_nan=True)
        except AssertionError as error:
            if theirs.dtype not in (torch.float16, torch.bfloat16) or not _is_nearer(call, place, ours, theirs):
                return " ".join(str(error).split())[:300]
    return None


def _is_nearer(call: Recorded, place: int, ours: Tensor, theirs: Tensor) -> bool:
    """Whether a result in halves is as near to float64's as the CPU's, which rounds on the way."""
    func, args, kwargs = call
    wide = tree_map(lambda leaf: leaf.double() if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf, args)
    exact = tree_leaves((func(*_copied(wide), **kwargs), wide))[place]
    mine, its = (torch.where(each == exact, 0, (each - exact).abs()) for each in (ours.double(), theirs.double()))
    info = torch.finfo(theirs.dtype)
    is_near = (mine <= its + info.eps * (exact.abs() + 8 * info.smallest_normal)) | its.isnan() & ~mine.isnan()
    return bool((is_near | ours.isnan() & exact.isnan()).all())


def _operators() -> list[OpInfo]:
    found = [op for op in op_db if not re.search("empty|sparse|bernoulli|rand|normal|dropout", op.name)]
    return found[::STRIDE]


def differences(op: OpInfo) -> dict[str, str]:
    """What is wrong with the decompositions of the operators that an OpInfo's samples call, by operator and dtype."""
    table, wrong = _table(), {}
    for dtype in DTYPES:
        if not op.supports_dtype(dtype, "cpu"):
            continue
        for call in _recorded(op, dtype, table):
            name = str(call[0])
            if name in KNOWN:
                continue
            found = difference(call, table[call[0]])
            if found is not None:
                wrong.setdefault(f"{name} {dtype}", f"{found}\n    {call[1]} {call[2]}")
    return wrong


@pytest.mark.parametrize("op", _operators(), ids=lambda op: op.formatted_name)
@pytest.mark.filterwarnings("ignore")
def test_decompositions(op: OpInfo) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wrong = differences(op)
    assert not wrong, "\n".join(f"{name}: {found}" for name, found in wrong.items())
