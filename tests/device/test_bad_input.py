# SPDX-License-Identifier: Apache-2.0
"""Wrong calls raise what PyTorch raises on the CPU, and the device goes on working."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from tests.conftest import RunPython

Call = Callable[[str], object]


def _ones(device: str, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(*shape, dtype=dtype, device=device)


def _index(device: str, *values: int) -> torch.Tensor:
    return torch.tensor(values, device=device)


def _resized_away(device: str) -> torch.Tensor:
    tensor = _ones(device, 4)
    tensor.untyped_storage().resize_(0)
    return tensor


def _leaf(device: str) -> torch.Tensor:
    return torch.ones(3, device=device, requires_grad=True)


#: name -> call. Every one raises on the CPU, which is the oracle for the exception type.
WRONG_CALLS: dict[str, Call] = {
    # shapes
    "add_shapes": lambda d: _ones(d, 3) + _ones(d, 4),
    "mul_shapes": lambda d: _ones(d, 2, 3) * _ones(d, 2, 4),
    "where_shapes": lambda d: torch.where(_ones(d, 2, dtype=torch.bool), _ones(d, 3), _ones(d, 3)),
    "add_inplace_broadcast": lambda d: _ones(d, 3).add_(_ones(d, 2, 3)),
    "addr_inplace_broadcast": lambda d: _ones(d, 1, 3).addr_(_ones(d, 2), _ones(d, 3)),
    "addr_inplace_rank": lambda d: _ones(d, 3).addr_(_ones(d, 2), _ones(d, 3)),
    "copy_shapes": lambda d: _ones(d, 3).copy_(_ones(d, 4)),
    "mm_shapes": lambda d: _ones(d, 2, 3) @ _ones(d, 2, 3),
    "mm_rank": lambda d: torch.mm(_ones(d, 2), _ones(d, 2, 2)),
    "bmm_batch": lambda d: torch.bmm(_ones(d, 2, 3, 4), _ones(d, 3, 4, 5)),
    "addmm_bias": lambda d: torch.addmm(_ones(d, 7), _ones(d, 2, 3), _ones(d, 3, 5)),
    "dot_sizes": lambda d: torch.dot(_ones(d, 3), _ones(d, 4)),
    "linear_shapes": lambda d: F.linear(_ones(d, 2, 3), _ones(d, 5, 4)),
    "conv_channels": lambda d: F.conv2d(_ones(d, 1, 3, 8, 8), _ones(d, 4, 2, 3, 3)),
    "conv_kernel_too_big": lambda d: F.conv2d(_ones(d, 1, 1, 2, 2), _ones(d, 1, 1, 3, 3)),
    "conv_groups": lambda d: F.conv2d(_ones(d, 1, 3, 8, 8), _ones(d, 4, 1, 3, 3), groups=2),
    "conv_bias": lambda d: F.conv2d(_ones(d, 1, 3, 8, 8), _ones(d, 4, 3, 3, 3), _ones(d, 5)),
    "cat_shapes": lambda d: torch.cat([_ones(d, 2, 3), _ones(d, 2, 4)]),
    "cat_empty": lambda d: torch.cat([]),
    "stack_shapes": lambda d: torch.stack([_ones(d, 2), _ones(d, 3)]),
    "view_size": lambda d: _ones(d, 6).view(4),
    "view_strides": lambda d: _ones(d, 2, 3).t().view(6),
    "reshape_size": lambda d: _ones(d, 6).reshape(5, -1),
    "expand_size": lambda d: _ones(d, 3).expand(4),
    "as_strided_beyond": lambda d: _ones(d, 3).as_strided((5,), (1,)).sum(),
    "squeeze_dim": lambda d: _ones(d, 3).squeeze(2),
    "transpose_dim": lambda d: _ones(d, 3, 3).transpose(0, 2),
    "permute_repeat": lambda d: _ones(d, 3, 3).permute(0, 0),
    "unfold_size": lambda d: _ones(d, 3).unfold(0, 4, 1),
    "split_sizes": lambda d: _ones(d, 5).split([2, 2]),
    "layer_norm_shape": lambda d: F.layer_norm(_ones(d, 2, 3), (4,)),
    "batch_norm_stats": lambda d: F.batch_norm(_ones(d, 2, 3), _ones(d, 4), _ones(d, 4)),
    "group_norm_groups": lambda d: F.group_norm(_ones(d, 2, 3, 4), 2),
    "max_pool_kernel": lambda d: F.max_pool2d(_ones(d, 1, 1, 2, 2), 5),
    "max_pool_padding": lambda d: F.max_pool2d(_ones(d, 1, 1, 8, 8), 2, padding=2),
    "pad_negative": lambda d: F.pad(_ones(d, 3), (-2, -2)),
    "reflect_pad": lambda d: F.pad(_ones(d, 1, 1, 3), (4, 0), mode="reflect"),
    "interpolate_rank": lambda d: F.interpolate(_ones(d, 3), scale_factor=2),
    "nll_shapes": lambda d: F.nll_loss(_ones(d, 2, 3), _index(d, 0, 1, 2)),
    "mse_shapes": lambda d: F.mse_loss(_ones(d, 2, 3), _ones(d, 3, 4)),
    "sdpa_heads": lambda d: F.scaled_dot_product_attention(
        _ones(d, 1, 2, 4, 8), _ones(d, 1, 2, 4, 8), _ones(d, 1, 3, 4, 8)
    ),
    # dimensions out of range
    "sum_dim": lambda d: _ones(d, 3).sum(1),
    "softmax_dim": lambda d: _ones(d, 3).softmax(2),
    "cumsum_dim": lambda d: _ones(d, 3).cumsum(1),
    "select_index": lambda d: _ones(d, 3).select(0, 3),
    "narrow_range": lambda d: _ones(d, 3).narrow(0, 2, 2),
    "argmax_dim": lambda d: _ones(d, 3).argmax(1),
    "argmax_empty": lambda d: torch.empty(0, device=d).argmax(),
    "max_empty": lambda d: torch.empty(0, device=d).max(),
    "topk_k": lambda d: _ones(d, 3).topk(4),
    "kthvalue_k": lambda d: _ones(d, 3).kthvalue(0),
    "sum_repeated_dim": lambda d: _ones(d, 3, 3).sum((0, 0)),
    "flip_repeated_dim": lambda d: _ones(d, 3).flip((0, 0)),
    # dtypes
    "mm_dtypes": lambda d: _ones(d, 2, 2) @ _ones(d, 2, 2, dtype=torch.float64),
    "int_add_inplace_float": lambda d: _ones(d, 3, dtype=torch.int64).add_(1.5),
    "int_mean": lambda d: _ones(d, 3, dtype=torch.int64).mean(),
    "int_softmax": lambda d: _ones(d, 3, dtype=torch.int64).softmax(0),
    "bool_sub": lambda d: _ones(d, 3, dtype=torch.bool) - _ones(d, 3, dtype=torch.bool),
    "bool_neg": lambda d: -_ones(d, 3, dtype=torch.bool),
    "float_shift": lambda d: _ones(d, 3) << 1,
    "float_bitwise": lambda d: _ones(d, 3) & _ones(d, 3),
    "out_dtype": lambda d: torch.add(_ones(d, 3), 1.5, out=torch.empty(3, dtype=torch.int64, device=d)),
    "int_requires_grad": lambda d: torch.ones(3, dtype=torch.int64, device=d, requires_grad=True),
    "float_index": lambda d: _ones(d, 3)[_ones(d, 2)],
    "gather_float_index": lambda d: _ones(d, 3).gather(0, _ones(d, 3)),
    "embedding_float_index": lambda d: F.embedding(_ones(d, 2), _ones(d, 3, 4)),
    "scatter_dtype": lambda d: _ones(d, 3).scatter_(0, _index(d, 0), _ones(d, 1, dtype=torch.float64)),
    "index_put_dtype": lambda d: _ones(d, 3).index_put_((_index(d, 0),), _ones(d, 1, dtype=torch.float64)),
    "cross_entropy_int": lambda d: F.cross_entropy(_ones(d, 2, 3, dtype=torch.int64), _index(d, 0, 1)),
    "gelu_of_integers": lambda d: F.gelu(_ones(d, 3, dtype=torch.int32)),
    "gelu_of_unsigned_integers": lambda d: F.gelu(_ones(d, 3, dtype=torch.uint16)),
    "masked_fill_mask": lambda d: _ones(d, 3).masked_fill(_ones(d, 3), 0.0),
    # values out of range
    "bernoulli_above": lambda d: torch.bernoulli(torch.tensor([0.5, 1.5], device=d)),
    "bernoulli_nan": lambda d: torch.bernoulli(torch.tensor([0.5, float("nan")], device=d)),
    "bernoulli_inplace": lambda d: torch.empty(2, device=d).bernoulli_(torch.tensor([-0.5, 0.5], device=d)),
    # indices out of range
    "gather_index": lambda d: _ones(d, 3).gather(0, _index(d, 5)),
    "gather_negative": lambda d: _ones(d, 3).gather(0, _index(d, -1)),
    "index_select_index": lambda d: _ones(d, 3).index_select(0, _index(d, 3)),
    "embedding_index": lambda d: F.embedding(_index(d, 3), _ones(d, 3, 4)),
    "index_tensor": lambda d: _ones(d, 3)[_index(d, 0, 7)],
    "index_put_index": lambda d: _ones(d, 3).index_put_((_index(d, 4),), _ones(d, 1)),
    "scatter_index": lambda d: _ones(d, 3).scatter(0, _index(d, 3), _ones(d, 1)),
    "scatter_add_index": lambda d: _ones(d, 3).scatter_add(0, _index(d, 9), _ones(d, 1)),
    "index_add_index": lambda d: _ones(d, 3).index_add(0, _index(d, 3), _ones(d, 1)),
    "index_int": lambda d: _ones(d, 3)[3],
    "cross_entropy_target": lambda d: F.cross_entropy(_ones(d, 2, 3), _index(d, 0, 3)),
    "take_index": lambda d: torch.take(_ones(d, 3), _index(d, 3)),
    # values
    "dropout_p": lambda d: F.dropout(_ones(d, 3), 1.5),
    "celu_alpha": lambda d: (F.celu(_ones(d, 3), 1.5), F.celu(_ones(d, 3), 0.0)),
    "celu_alpha_inplace": lambda d: (F.celu_(_ones(d, 3), 1.5), F.celu_(_ones(d, 3), 0.0)),
    "normal_std": lambda d: torch.normal(0.0, -1.0, (3,), device=d),
    "uniform_range": lambda d: _ones(d, 3).uniform_(2.0, 1.0),
    "random_range": lambda d: torch.randint(3, 3, (2,), device=d),
    "item_many": lambda d: _ones(d, 3).item(),
    "bool_many": lambda d: bool(_ones(d, 3)),
    "empty_negative": lambda d: torch.empty(-1, device=d),
    "arange_step": lambda d: torch.arange(0, 3, -1, device=d),
    "linspace_steps": lambda d: torch.linspace(0, 1, -1, device=d),
    "eye_negative": lambda d: torch.eye(-1, device=d),
    "interpolate_float8": lambda d: F.interpolate(
        _ones(d, 1, 1, 2, 2).to(torch.float8_e5m2), scale_factor=2, mode="bilinear"
    ),
    "one_hot_range": lambda d: F.one_hot(_index(d, 3), 2),
    # storage and aliasing
    "set_beyond": lambda d: torch.empty(0, device=d).set_(_ones(d, 2).untyped_storage()[:0], 0, (4,)),
    "write_expanded": lambda d: _ones(d, 1).expand(3).add_(1),
    "partial_overlap": lambda d: (lambda t: t[1:].add_(t[:-1]))(_ones(d, 4)),
    # autograd
    "backward_non_scalar": lambda d: (_leaf(d) * 2).backward(),
    "backward_twice": lambda d: (lambda y: (y.backward(), y.backward()))((_leaf(d) ** 2).sum()),
    "inplace_leaf": lambda d: _leaf(d).add_(1),
    "backward_modified": lambda d: (lambda x, y: (y.add_(1), x.backward()))(
        *(lambda y: ((y * y).sum(), y))(_leaf(d) * 1)
    ),
    "grad_shape": lambda d: torch.autograd.backward(_leaf(d) * 2, _ones(d, 4)),
}


def _raised(call: Call, device: str) -> BaseException | None:
    try:
        call(device)
        if device != "cpu":
            torch.accelerator.synchronize()
    except Exception as error:  # noqa: BLE001 - the type is what the test is about
        return error
    return None


def _still_works(device: str) -> None:
    result = (torch.arange(6.0, device=device) * 2 + 1).cpu()
    torch.testing.assert_close(result, torch.arange(6.0) * 2 + 1)


@pytest.mark.parametrize("name", sorted(WRONG_CALLS))
def test_same_exception_as_cpu(name: str, device: str) -> None:
    call = WRONG_CALLS[name]
    expected = _raised(call, "cpu")
    assert expected is not None, "the CPU accepts this call: it does not belong in the table"
    actual = _raised(call, device)
    assert actual is not None, f"no error; the CPU raises {type(expected).__name__}: {expected}"
    assert isinstance(actual, type(expected)) or isinstance(expected, type(actual)), (
        f"{type(actual).__name__}: {actual}\nthe CPU raises {type(expected).__name__}: {expected}"
    )
    assert str(actual)
    _still_works(device)


def test_refused_calls_leave_no_plan_behind(run_python: RunPython, device: str, tmp_path: Path) -> None:
    """A plan made for a call that the CPU refuses was kept on disk, and accepted by the next process."""
    source = f"""
        import torch
        try:
            torch.ones(3, dtype=torch.bool, device="{device}") - torch.ones(3, dtype=torch.bool, device="{device}")
        except RuntimeError:
            print("refused")
    """
    for _ in range(2):
        assert "refused" in run_python(source, OUTBOARD_CACHE_DIR=str(tmp_path))


def test_table_is_large_enough() -> None:
    assert len(WRONG_CALLS) >= 60


@pytest.mark.parametrize("index", [99, 127])
def test_no_such_device(device: str, index: int) -> None:
    with pytest.raises(RuntimeError, match="device"):
        torch.ones(2, device=f"{device}:{index}")
    _still_works(device)


def test_mixed_devices(device: str) -> None:
    for call in (
        lambda: torch.ones(3, device=device) + torch.ones(3),
        lambda: torch.ones(2, 2) @ torch.ones(2, 2, device=device),
        lambda: torch.cat([torch.ones(2), torch.ones(2, device=device)]),
        lambda: F.embedding(torch.tensor([0]), torch.ones(3, 4, device=device)),
    ):
        with pytest.raises(RuntimeError, match="same device"):
            call()
    _still_works(device)


def test_cpu_scalars_mix(device: str) -> None:
    mixed = torch.ones(3, device=device) * torch.tensor(2.0)
    torch.testing.assert_close(mixed.cpu(), torch.full((3,), 2.0))


def test_use_after_storage_is_gone(device: str) -> None:
    """The CPU dereferences a null pointer here; we owe an exception."""
    with pytest.raises(RuntimeError, match="storage"):
        (_resized_away(device) + 1).cpu()
    _still_works(device)


def test_numpy_says_what_to_do(device: str) -> None:
    with pytest.raises(TypeError, match="cpu"):
        torch.ones(3, device=device).numpy()


def test_right_values_are_not_refused(device: str) -> None:
    """Whether a call is right is tried on the CPU with zeros, which not every operator accepts."""
    weights = torch.tensor([[0.0, 3.0, 1.0], [1.0, 0.0, 2.0]], device=device)
    drawn = weights.multinomial(2)
    assert (weights.gather(1, drawn) > 0).all()


#: Calls of which the CPU has no kernel but for other types, with these arguments, and the same in those.
LACKING: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], torch.dtype, torch.dtype]] = {
    "distances": (lambda x: torch.cdist(x, x + x), torch.float16, torch.float32),
    "maximum": (lambda x: torch.maximum(x, x + x), torch.uint32, torch.int64),
    "sums": (lambda x: x.cumsum(0, dtype=x.dtype), torch.uint16, torch.int64),
}


@pytest.mark.parametrize("name", LACKING)
def test_element_types_that_only_the_cpu_lacks_are_taken(name: str, device: str) -> None:
    call, dtype, common = LACKING[name]
    x = torch.arange(1, 7).reshape(3, 2)
    with pytest.raises(NotImplementedError, match="not implemented for"):
        call(x.to(dtype))
    result = call(x.to(dtype).to(device))
    assert result.dtype == dtype
    torch.testing.assert_close(result.cpu().to(common), call(x.to(common)), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("call", [torch.floor_divide, torch.remainder, torch.fmod])
def test_divisors_are_no_zeros_though_those_of_a_rehearsal_are(
    call: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], device: str
) -> None:
    numbers, divisors = torch.tensor([7, -7, 5], dtype=torch.int16), torch.tensor([2, 3, -2], dtype=torch.int16)
    with pytest.raises(RuntimeError, match="^ZeroDivisionError$"):  # in these words, which are looked for
        call(numbers, torch.zeros_like(divisors))
    assert torch.equal(call(numbers.to(device), divisors.to(device)).cpu(), call(numbers, divisors))
