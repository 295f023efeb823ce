# SPDX-License-Identifier: Apache-2.0
"""Operators whose indices or counts are data: what is out of range raises what the CPU raises, and nothing behind a
tensor is read or written. The CPU is the oracle: where it accepts, the results are compared."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

Call = Callable[[str, list[int]], object]

#: What stands for an index: in range for the tables below, or past either end.
INDICES = {"good": [0, 2, 1], "past": [0, 5, 1], "far": [0, 1 << 40, 1], "negative": [0, -1, 1], "before": [0, -9, 1]}


def _ints(device: str, values: list[int], dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.tensor(values, dtype=dtype, device=device)


def _table(device: str, *shape: int) -> Tensor:
    return torch.arange(float(torch.Size(shape).numel()), device=device).reshape(shape)


def _put(d: str, i: list[int], accumulate: bool = False) -> Tensor:
    return _table(d, 3).put(_ints(d, i), torch.ones(3, device=d), accumulate)


CALLS: dict[str, Call] = {
    "index": lambda d, i: _table(d, 3, 2)[_ints(d, i)],
    "index_second": lambda d, i: _table(d, 2, 3)[:, _ints(d, i)],
    "index_pair": lambda d, i: _table(d, 3, 3)[_ints(d, [0, 1, 2]), _ints(d, i)],
    "index_int32": lambda d, i: _table(d, 3, 2)[_ints(d, [max(min(x, 99), -99) for x in i], torch.int32)],
    "index_put": lambda d, i: _table(d, 3).index_put((_ints(d, i),), torch.ones(3, device=d)),
    "index_put_add": lambda d, i: _table(d, 3).index_put((_ints(d, i),), torch.ones(3, device=d), accumulate=True),
    "index_put_inplace": lambda d, i: _table(d, 3, 2).index_put_((_ints(d, i),), torch.ones(2, device=d)),
    "setitem": lambda d, i: _table(d, 3, 2).__setitem__(_ints(d, i), 1.0),
    "gather": lambda d, i: _table(d, 3).gather(0, _ints(d, i)),
    "gather_inner": lambda d, i: _table(d, 2, 3).gather(1, _ints(d, i).reshape(1, 3)),
    "gather_backward": lambda d, i: (lambda t: (t.gather(0, _ints(d, i)).sum().backward(), t.grad)[1])(
        _table(d, 3).requires_grad_()
    ),
    "take_along_dim": lambda d, i: torch.take_along_dim(_table(d, 3), _ints(d, i), 0),
    "scatter": lambda d, i: _table(d, 3).scatter(0, _ints(d, i), torch.ones(3, device=d)),
    "scatter_value": lambda d, i: _table(d, 3).scatter(0, _ints(d, i), 7.0),
    "scatter_inplace": lambda d, i: _table(d, 3).scatter_(0, _ints(d, i), 7.0),
    "scatter_reduce_old": lambda d, i: _table(d, 3).scatter(0, _ints(d, i), torch.ones(3, device=d), reduce="add"),
    "scatter_add": lambda d, i: _table(d, 3).scatter_add(0, _ints(d, i), torch.ones(3, device=d)),
    "scatter_add_2d": lambda d, i: _table(d, 3, 2).scatter_add(
        0, _ints(d, i).reshape(3, 1), torch.ones(3, 1, device=d)
    ),
    "scatter_reduce": lambda d, i: _table(d, 3).scatter_reduce(0, _ints(d, i), torch.ones(3, device=d), "prod"),
    "scatter_reduce_mean": lambda d, i: _table(d, 3).scatter_reduce_(0, _ints(d, i), torch.ones(3, device=d), "mean"),
    "index_select": lambda d, i: _table(d, 3, 2).index_select(0, _ints(d, i)),
    "index_select_inner": lambda d, i: _table(d, 2, 3).index_select(1, _ints(d, i)),
    "index_select_vector": lambda d, i: _table(d, 3).index_select(0, _ints(d, i)),
    "index_select_innermost": lambda d, i: _table(d, 2, 2, 3).index_select(2, _ints(d, i)),
    "index_add": lambda d, i: _table(d, 3, 2).index_add(0, _ints(d, i), torch.ones(3, 2, device=d)),
    "index_add_vector": lambda d, i: _table(d, 3).index_add_(0, _ints(d, i), torch.ones(3, device=d)),
    "index_add_inner": lambda d, i: _table(d, 2, 3).index_add_(1, _ints(d, i), torch.ones(2, 3, device=d)),
    "index_add_middle": lambda d, i: _table(d, 2, 3, 2).index_add(1, _ints(d, i), torch.ones(2, 3, 2, device=d)),
    "index_add_alpha": lambda d, i: _table(d, 3, 2).index_add(0, _ints(d, i), torch.ones(3, 2, device=d), alpha=2),
    "index_add_int32": lambda d, i: _table(d, 3, 2).index_add(0, _ints(d, i).int(), torch.ones(3, 2, device=d)),
    "index_copy": lambda d, i: _table(d, 3, 2).index_copy(0, _ints(d, i), torch.ones(3, 2, device=d)),
    "index_copy_inplace": lambda d, i: _table(d, 3).index_copy_(0, _ints(d, i), torch.ones(3, device=d)),
    "index_fill": lambda d, i: _table(d, 3, 2).index_fill(0, _ints(d, i), 7.0),
    "index_fill_tensor": lambda d, i: _table(d, 3, 2).index_fill(0, _ints(d, i), torch.tensor(7.0, device=d)),
    "index_fill_inplace": lambda d, i: _table(d, 3).index_fill_(0, _ints(d, i), 7.0),
    "index_reduce": lambda d, i: _table(d, 3, 2).index_reduce(0, _ints(d, i), torch.ones(3, 2, device=d), "amax"),
    "index_reduce_inplace": lambda d, i: _table(d, 3).index_reduce_(0, _ints(d, i), torch.ones(3, device=d), "prod"),
    "take": lambda d, i: torch.take(_table(d, 3), _ints(d, i)),
    "take_2d": lambda d, i: torch.take(_table(d, 3, 1), _ints(d, i).reshape(1, 3)),
    "put": _put,
    "put_add": lambda d, i: _put(d, i, True),
    "put_inplace": lambda d, i: _table(d, 3).put_(_ints(d, i), torch.ones(3, device=d)),
    "embedding": lambda d, i: F.embedding(_ints(d, i), _table(d, 3, 2)),
    "embedding_padding": lambda d, i: F.embedding(_ints(d, i), _table(d, 3, 2), padding_idx=0),
    "embedding_max_norm": lambda d, i: F.embedding(_ints(d, i), _table(d, 3, 2), max_norm=1.0),
    "embedding_bag": lambda d, i: F.embedding_bag(_ints(d, i), _table(d, 3, 2), _ints(d, [0, 1])),
    "embedding_bag_mean": lambda d, i: F.embedding_bag(_ints(d, i).reshape(1, 3), _table(d, 3, 2), mode="mean"),
    "nll_loss": lambda d, i: F.nll_loss(_table(d, 3, 3), _ints(d, i)),
    "nll_loss_none": lambda d, i: F.nll_loss(_table(d, 3, 3), _ints(d, i), reduction="none"),
    "nll_loss_weight": lambda d, i: F.nll_loss(_table(d, 3, 3), _ints(d, i), weight=torch.ones(3, device=d)),
    "nll_loss_2d": lambda d, i: F.nll_loss(_table(d, 1, 3, 1, 3), _ints(d, i).reshape(1, 1, 3)),
    "nll_loss_backward": lambda d, i: (lambda t: (F.nll_loss(t, _ints(d, i)).backward(), t.grad)[1])(
        _table(d, 3, 3).requires_grad_()
    ),
    "cross_entropy": lambda d, i: F.cross_entropy(_table(d, 3, 3), _ints(d, i)),
    "cross_entropy_smooth": lambda d, i: F.cross_entropy(_table(d, 3, 3), _ints(d, i), label_smoothing=0.1),
    "multi_margin_loss": lambda d, i: F.multi_margin_loss(_table(d, 3, 3), _ints(d, i)),
    "multilabel_margin_loss": lambda d, i: F.multilabel_margin_loss(_table(d, 1, 3), _ints(d, i).reshape(1, 3)),
    "one_hot": lambda d, i: F.one_hot(_ints(d, i), 3),
    "repeat_interleave": lambda d, i: torch.repeat_interleave(_table(d, 3), _ints(d, [min(x, 6) for x in i])),
    "bincount": lambda d, i: torch.bincount(_ints(d, [min(x, 6) for x in i])),
    "bincount_weights": lambda d, i: torch.bincount(_ints(d, [min(x, 6) for x in i]), torch.ones(3, device=d)),
    "searchsorted": lambda d, i: torch.searchsorted(_ints(d, [0, 1, 2]), _ints(d, [5]), sorter=_ints(d, i)),
    "bucketize": lambda d, i: torch.bucketize(_ints(d, i), _ints(d, [0, 1, 2])),
    "max_unpool1d": lambda d, i: F.max_unpool1d(_table(d, 1, 1, 3), _ints(d, i).reshape(1, 1, 3), 1),
    "max_unpool2d": lambda d, i: F.max_unpool2d(_table(d, 1, 1, 1, 3), _ints(d, i).reshape(1, 1, 1, 3), 1),
    "max_unpool3d": lambda d, i: F.max_unpool3d(_table(d, 1, 1, 1, 1, 3), _ints(d, i).reshape(1, 1, 1, 1, 3), 1),
    "ctc_loss": lambda d, i: F.ctc_loss(
        _table(d, 4, 1, 3).log_softmax(2), _ints(d, [1, 2]).reshape(1, 2), (4,), (min(max(i[1], -2), 9),)
    ),
    "masked_scatter": lambda d, i: _table(d, 4).masked_scatter(
        torch.ones(4, dtype=torch.bool, device=d), torch.ones(4 if i[1] == 2 else 3, device=d)
    ),
    "unravel_index": lambda d, i: torch.unravel_index(_ints(d, [x % 6 for x in i]), (2, 3)),
}

MASKS: dict[str, Call] = {
    "masked_scatter_empty": lambda d, i: _table(d, 3).masked_scatter(_ints(d, i) > 0, torch.ones(0, device=d)),
    "masked_scatter_one": lambda d, i: _table(d, 3).masked_scatter(_ints(d, i) > 0, torch.ones(1, device=d)),
    "masked_scatter_inplace": lambda d, i: _table(d, 3).masked_scatter_(_ints(d, i) > 0, torch.ones(1, device=d)),
    "masked_scatter_wide": lambda d, i: _table(d, 2, 3).masked_scatter(_ints(d, i) > 0, torch.ones(3, device=d)),
    "masked_scatter_long": lambda d, i: _table(d, 3).masked_scatter(_ints(d, i) > 0, torch.ones(9, device=d)),
    "masked_select": lambda d, i: _table(d, 3).masked_select(_ints(d, i) > 0),
    "index_mask": lambda d, i: _table(d, 3)[_ints(d, i) > 0],
    "index_put_mask": lambda d, i: _table(d, 3).index_put_((_ints(d, i) > 0,), torch.ones(1, device=d)),
    "index_put_mask_pair": lambda d, i: _table(d, 3).index_put_((_ints(d, i) > 0,), torch.ones(2, device=d)),
    "nonzero": lambda d, i: torch.nonzero(_ints(d, i)),
    "repeat_interleave": lambda d, i: torch.repeat_interleave(_ints(d, i)),
    "multinomial": lambda d, i: torch.multinomial(_ints(d, i).float(), 1).shape,
    "multinomial_rows": lambda d, i: torch.multinomial(_ints(d, [i, [1, 1, 1]]).float(), 2).shape,  # type: ignore[list-item]
}
MASK_VALUES = {"none": [0, 0, 0], "one": [0, 1, 0], "two": [1, 0, 1], "all": [1, 1, 1], "negative": [0, -1, 1]}


def _outcome(call: Call, device: str, values: list[int]) -> object:
    try:
        result = call(device, values)
        if device != "cpu":
            torch.accelerator.synchronize()
    except Exception as error:  # noqa: BLE001 - its type is what is compared
        return error
    return result


def _compare(call: Call, device: str, values: list[int]) -> None:
    expected, actual = _outcome(call, "cpu", values), _outcome(call, device, values)
    if isinstance(expected, Exception) or isinstance(actual, Exception):
        assert type(expected) is type(actual), f"{actual!r}\nthe CPU: {expected!r}"
        return
    torch.testing.assert_close(actual, expected, check_device=False)


@pytest.mark.parametrize("name", sorted(CALLS))
def test_indices(device: str, name: str) -> None:
    for values in INDICES.values():
        _compare(CALLS[name], device, values)


@pytest.mark.parametrize("name", sorted(MASKS))
def test_counts(device: str, name: str) -> None:
    for values in MASK_VALUES.values():
        _compare(MASKS[name], device, values)
