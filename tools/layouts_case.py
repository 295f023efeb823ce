# SPDX-License-Identifier: Apache-2.0
"""One OpInfo on sparse tensors, on the device and on the CPU: coordinates and the four compressed layouts, batches of
the latter among them. Runs in a process of its own; see ``opinfo.py --check sparse``.

PyTorch has samples of its own for few operators; of the others, dense samples are made sparse: the first tensor, and
all that are floats. What the CPU refuses is no question to the device."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch
from opinfo_case import UNINITIALISED, Outcome, _call_with_other_numbers, new_fallbacks, tolerances
from torch import Tensor
from torch.testing._internal.opinfo.core import OpInfo, SampleInput
from torch.utils._pytree import tree_leaves, tree_map

LAYOUTS = {
    "coo": torch.sparse_coo,
    "csr": torch.sparse_csr,
    "csc": torch.sparse_csc,
    "bsr": torch.sparse_bsr,
    "bsc": torch.sparse_bsc,
}
#: Operators whose samples PyTorch's own CPU kernels do not survive in these layouts.
CRASHES: dict[str, tuple[str, ...]] = {}


def samples_of(op: OpInfo, name: str, dtype: torch.dtype, samples: int) -> Iterator[tuple[str, SampleInput]]:
    """Samples on the CPU in a layout, by what they are: PyTorch's, and dense ones made sparse."""
    layout = LAYOUTS[name]
    try:
        own = list(islice(op.sample_inputs_sparse(layout, "cpu", dtype), samples))
    except Exception:  # noqa: BLE001 - PyTorch has none for this operator
        own = []
    for number, sample in enumerate(own):
        yield f"{name} {number}", sample
    matrices = (sample for sample in op.sample_inputs("cpu", dtype, requires_grad=False) if _first(sample).dim() >= 2)
    for number, sample in enumerate(islice(matrices, samples)):
        for what, only_first in (("first", True), ("all", False)):
            for batch in ((), (2,)) if layout is not torch.sparse_coo else ((),):
                try:
                    yield f"{name} of dense {number}, {what}, batch {batch}", _made(sample, layout, only_first, batch)
                except Exception:  # noqa: BLE001, S112 - no such tensor can be
                    continue


def _first(sample: SampleInput) -> Tensor:
    """The first tensor among the arguments; one without dimensions where there is none."""
    leaves = tree_leaves((sample.input, sample.args, sample.kwargs))
    return next((leaf for leaf in leaves if isinstance(leaf, Tensor)), torch.zeros(()))


def _made(sample: SampleInput, layout: torch.layout, only_first: bool, batch: tuple[int, ...]) -> SampleInput:
    """A dense sample with tensors of a layout, of which a third of the elements are zero. Raises where nothing changes,
    or PyTorch has no such tensor."""
    first, made = _first(sample), 0

    def make(value: Any) -> Any:
        nonlocal made
        is_meant = value is first or (not only_first and isinstance(value, Tensor) and value.dtype == first.dtype)
        if not is_meant:
            return value
        made += 1
        holes = torch.arange(value.numel()).remainder(3).eq(1).view(value.shape)
        dense = value.detach().masked_fill(holes, 0).expand(*batch, *value.shape).contiguous()
        block = (1, 1) if layout in (torch.sparse_bsr, torch.sparse_bsc) else None
        return dense.to_sparse(layout=layout, blocksize=block)

    changed = sample.transform(make)
    if not only_first and made < 2:
        raise ValueError("only the first")
    return changed


def _plain(x: Tensor) -> Tensor:
    """On the CPU; dense if compressed, as the CPU's products leave indices in the order in which they come."""
    x = x.cpu()
    return x if x.layout in (torch.strided, torch.sparse_coo) else x.to_dense()


def _difference(actual: Any, expected: Any, limits: dict[str, float]) -> str:
    ours, theirs = tree_leaves(actual), tree_leaves(expected)
    if len(ours) != len(theirs):
        return f"{len(ours)} results instead of {len(theirs)}"
    for one, other in zip(ours, theirs, strict=True):
        if not isinstance(other, Tensor):
            continue
        forms = [(x.layout, x.dtype, tuple(x.shape)) for x in (one, other)]
        if forms[0] != forms[1]:
            return f"{forms[0]} for {forms[1]}"
        if other.layout == torch.sparse_coo and one.is_coalesced() != other.is_coalesced():
            return f"coalesced: {one.is_coalesced()} for {other.is_coalesced()}"
        if other.layout not in (torch.strided, torch.sparse_coo) and one._nnz() != other._nnz():
            return f"{one._nnz()} elements for {other._nnz()}"
        try:
            torch.testing.assert_close(_plain(one), _plain(other), equal_nan=True, check_stride=False, **limits)
        except AssertionError as error:
            return str(error)
    return ""


def _call(op: OpInfo, sample: SampleInput) -> Any:
    torch.manual_seed(0)
    own = sample.transform(lambda value: value.clone() if isinstance(value, Tensor) else value)
    result = op(own.input, *own.args, **own.kwargs)
    torch.accelerator.synchronize()
    return result


def _moved(sample: SampleInput, device: str) -> SampleInput:
    return sample.transform(lambda v: v.to(device) if isinstance(v, Tensor) else v)


def _is_as_dense(op: OpInfo, sample: SampleInput, actual: Any, limits: dict[str, float]) -> bool:
    """Whether a result that is not the CPU's has the elements that dense tensors give: then it is the CPU's that has
    not, as where a product broadcasts the sparse one."""
    try:
        dense = _call(op, sample.transform(_to_dense))
    except Exception:  # noqa: BLE001 - no second opinion
        return False
    return not _difference(tree_map(lambda x: _to_dense(x.cpu()), actual), dense, limits)


def _to_dense(value: Any) -> Any:
    return value.to_dense() if isinstance(value, Tensor) and value.layout != torch.strided else value


def run(op: OpInfo, dtype: torch.dtype, device: str, samples: int) -> Outcome:
    """Compares the first ``samples`` sample inputs of each kind and layout. ``error`` names every call that only the
    CPU carries out."""
    if op.name in UNINITIALISED or "empty" in op.name:
        return Outcome("skipped", "its results are not written", {})
    module, count = getattr(torch, torch.device(device).type), 0
    before = dict(module.fallbacks())
    wrong, errors = [], []
    limits = tolerances(op, dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for layout in LAYOUTS:
            if layout in CRASHES.get(op.name, ()):
                continue
            for name, sample in samples_of(op, layout, dtype, samples):
                try:
                    expected = _call(op, sample)
                    others = _call_with_other_numbers(sample, lambda given: _call(op, given))
                    if _difference(others, expected, {"rtol": 0, "atol": 0}):
                        continue  # random numbers
                except Exception:  # noqa: BLE001 - what the CPU refuses is not a question to the device
                    continue
                count += 1
                try:
                    actual = _call(op, _moved(sample, device))
                    text = _difference(actual, expected, limits)
                except Exception as error:  # noqa: BLE001 - the row's result
                    errors.append(f"{name}: {type(error).__name__}: {' '.join(str(error).split())[:160]}")
                    continue
                if text and not _is_as_dense(op, sample, actual, limits):
                    wrong.append(f"{name}: {' '.join(text.split())[:300]}")
    fallbacks = new_fallbacks(device, before)
    if wrong or errors:
        return Outcome("wrong" if wrong else "error", "\n".join(wrong + errors), fallbacks)
    return Outcome("host" if fallbacks else "native" if count else "skipped", f"{count} calls", fallbacks)
