# SPDX-License-Identifier: Apache-2.0
"""Results of compiled graphs share memory with inputs and each other where eager PyTorch's do, and only there."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest
import torch
from torch import Tensor

from outboard.compiler.adapter.graphs import aliases
from outboard.compiler.plans.schema import serialize
from outboard.compiler.target import target_of
from tests.lowering import plan_of_operator


def written_with_gaps(x: Tensor) -> list[Tensor]:
    x.add_(1)
    return [x.flatten(0, 1), x.unflatten(1, (-1, 2)), x[:, : x.shape[1] // 2]]


def view_of_a_part(x: Tensor) -> list[Tensor]:
    y = x * 1
    flat = y.reshape(-1)
    y.unsqueeze_(0)
    return [flat.narrow(0, 1, flat.shape[0] - 2), y]


def view_of_a_written_part(x: Tensor) -> list[Tensor]:
    y = x * 1
    part = y[2:]
    part.index_put_((torch.arange(2, device=x.device).flip(0),), y[:2], accumulate=True)
    return [y, part.unsqueeze(1)[..., 1:]]


def view_of_a_copy_of_what_is_written(x: Tensor) -> list[Tensor]:
    y = x.clone()
    part = y[1:-1]
    x[x > 0] = 1
    y.copy_(x)
    return [y, part]


PROGRAMS = [written_with_gaps, view_of_a_part, view_of_a_written_part, view_of_a_copy_of_what_is_written]


def with_gaps(device: str) -> Tensor:
    return torch.arange(96.0, device=device).view(6, 16)[1:5, 1:13:2]


@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("program", PROGRAMS)
def test_results_share_what_they_share_in_eager_mode(
    program: Callable[[Tensor], list[Tensor]], gradient: bool, device: str
) -> None:
    torch._dynamo.reset()
    x, there = (with_gaps(each).requires_grad_(gradient) for each in ("cpu", device))
    if gradient:
        x, there = x * 1, there * 1
    expected, results = program(x), torch.compile(program, dynamic=True)(there)
    for _ in range(2):  # as they are returned, and when they have been written to
        assert torch.equal(there.cpu(), x)
        for result, wanted in zip(results, expected, strict=True):
            assert torch.equal(result.cpu(), wanted)
            assert result.storage_offset() == wanted.storage_offset()
        for each in (*results, *expected):
            each.detach().add_(1)


def copied_ahead(x: Tensor) -> list[Tensor]:
    y = x.clone()
    x.add_(1)
    y[:, 0].mul_(-1)
    return [y]


def scattered_ahead(x: Tensor) -> list[Tensor]:
    y = torch.diagonal_scatter(x, torch.ones(3, device=x.device))
    x.add_(1)
    return [y[1:]]


def placed_ahead(x: Tensor) -> list[Tensor]:
    rows = torch.arange(2, device=x.device)
    y = x.index_put((rows,), torch.ones(2, 3, device=x.device))
    x.copy_(y.index_put((rows + 2,), torch.zeros(2, 3, device=x.device)))
    return [y]


def placed_twice_ahead(x: Tensor) -> list[Tensor]:
    next_x, rows = x + 1, torch.arange(2, device=x.device)
    y = x.index_put((rows,), torch.ones(2, 3, device=x.device))
    y = y.index_put((rows + 1,), torch.zeros(2, 3, device=x.device))
    x.copy_(next_x)
    return [y]


@torch.library.custom_op("outboard_test_aliases::double_", mutates_args={"x"})
def double_(x: Tensor) -> None:
    x.mul_(2)


def changed_ahead(x: Tensor) -> list[Tensor]:
    y, next_x = x.clone(), x + 1
    double_(y)
    x.copy_(next_x)
    return [y]


AHEAD = [copied_ahead, scattered_ahead, placed_ahead, placed_twice_ahead, changed_ahead]


@pytest.mark.parametrize("program", AHEAD)
def test_what_was_made_of_an_input_before_it_is_written(program: Callable[[Tensor], list[Tensor]], device: str) -> None:
    torch._dynamo.reset()
    x = torch.arange(12.0).view(4, 3)
    there = x.to(device)
    (expected,), (result,) = program(x), torch.compile(program)(there)
    assert torch.equal(result.cpu(), expected) and torch.equal(there.cpu(), x)


def row(x: Tensor) -> Tensor:
    x[0] = torch.arange(4, device=x.device)
    return x


def rows(x: Tensor) -> Tensor:
    x[1:].copy_(x[0].real)
    return x.mul(1j)


@pytest.mark.parametrize("program", [row, rows])
def test_views_of_complex_tensors_are_written(program: Callable[[Tensor], Tensor], device: str) -> None:
    torch._dynamo.reset()
    x = torch.arange(12.0).view(3, 4) * 1j
    there = x.to(device)
    assert torch.equal(torch.compile(program)(there).cpu(), program(x)) and torch.equal(there.cpu(), x)


@pytest.mark.parametrize("dynamic", [False, True])
def test_arithmetic_that_changes_no_number_makes_a_tensor(dynamic: bool, device: str) -> None:
    def program(x: Tensor) -> list[Tensor]:
        y = x.sin()
        return [x + torch.zeros_like(x), x * 1, (x / 1).view(-1), y, (y - 0).unsqueeze(0)]

    torch._dynamo.reset()
    x = torch.arange(24.0, device=device).view(3, 8)[:, ::2]
    results = torch.compile(program, dynamic=dynamic)(x)
    assert len({each.untyped_storage().data_ptr() for each in (x, *results)}) == 6
    for result, expected in zip(results, program(x), strict=True):
        assert torch.equal(result, expected) and result.stride() == expected.stride()


def overlapping(device: str) -> tuple[Tensor, Tensor]:
    whole = torch.arange(48.0).view(8, 6).to(device)
    return whole[:6], whole[2:]


def test_results_that_are_views_of_overlapping_inputs(device: str) -> None:
    def write(x: Tensor, y: Tensor) -> list[Tensor]:
        y.add_(x[:, :1] + 1)
        return [x.view(-1), y[1:], y.t()]

    torch._dynamo.reset()
    results = torch.compile(write)(*overlapping(device))
    for result, expected in zip(results, write(*overlapping("cpu")), strict=True):
        assert torch.equal(result.cpu(), expected)
        assert result.stride() == expected.stride()
        assert result.storage_offset() == expected.storage_offset()


def test_a_copy_of_an_overlapping_input_is_no_view_of_it(device: str) -> None:
    def write(x: Tensor, y: Tensor) -> Tensor:
        x.mul_(-1)
        copied = y.clone()
        return copied.narrow(1, 1, copied.shape[1] - 2)

    torch._dynamo.reset()
    x, y = overlapping(device)
    result = torch.compile(write, dynamic=True)(x, y)
    y.zero_()
    assert torch.equal(result.cpu(), write(*overlapping("cpu")))


def test_a_copy_of_what_an_input_is_on_its_way_stays_one(device: str) -> None:
    def write(x: Tensor, y: Tensor) -> Tensor:
        following = (torch.arange(y.shape[0], device=y.device) + 1) % y.shape[0]
        torch.add(y[following], 1, out=x)
        copied = y.clone()
        y.index_add_(0, following, copied.clone())
        return copied

    torch._dynamo.reset()
    result = torch.compile(write, dynamic=True)(*overlapping(device))
    assert torch.equal(result.cpu(), write(*overlapping("cpu")))


@pytest.mark.parametrize("last", ["mask", "fill", "copy"])
def test_a_scatter_comes_before_what_is_written_next(last: str, device: str) -> None:
    def write(x: Tensor) -> tuple[Tensor, Tensor]:
        rows = torch.arange(x.shape[0], device=x.device).flip(0)
        x.index_put_((rows,), torch.select_scatter(x.view(x.shape), x.diagonal(), 0, 1))
        view = x[:, 1:]
        if last == "mask":
            x[x > 0] = 1
        elif last == "fill":
            x.clamp_(-2, 2)
        else:
            x.copy_(x.t() + x)
        return x, view

    torch._dynamo.reset()
    x = torch.arange(16).view(4, 4).t() - 8
    expected = write(x.clone(memory_format=torch.preserve_format))
    results = torch.compile(write)(x.to(device))
    for result, wanted in zip(results, expected, strict=True):
        assert torch.equal(result.cpu(), wanted)


def test_a_number_that_is_returned_twice_is_one(device: str) -> None:
    def total(x: Tensor) -> list[Tensor]:
        found = x.sum()
        return [found, found.view(1)]

    torch._dynamo.reset()
    number, same = torch.compile(total)(with_gaps(device))
    number.zero_()
    assert same.item() == 0


def test_plans_of_single_operators_are_as_inductor_makes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an operator returns is placed by its caller."""
    expected = serialize(plan_of_operator("aten::cummax", (torch.ones(3, 4), 0), target_of(0)))
    monkeypatch.setattr(aliases, "_Shared", None)
    assert serialize(plan_of_operator("aten::cummax", (torch.ones(3, 4), 0), target_of(0))) == expected


def test_a_tensor_that_gets_the_data_of_another_shares_its_memory(device: str) -> None:
    def give(x: Tensor, y: Tensor) -> Tensor:
        x.data = y
        return x + 1

    torch._dynamo.reset()
    x, y = torch.zeros(4, device=device), torch.ones(4, device=device)
    assert torch.compile(give)(x, y).tolist() == [2] * 4
    y.add_(1)
    assert x.tolist() == [2] * 4


def test_views_of_longer_dtypes_stay_on_the_device(device: str, device_module: ModuleType) -> None:
    def wide(x: Tensor) -> tuple[Tensor, Tensor]:
        return (x + 1).view(torch.float64), x.view(torch.float32) * 2

    torch._dynamo.reset()
    x = torch.arange(8, dtype=torch.int16)
    device_module.reset_fallbacks()
    results = torch.compile(wide)(x.to(device))
    assert device_module.fallbacks() == {}
    for result, wanted in zip(results, wide(x), strict=True):
        assert torch.equal(result.cpu(), wanted)


@pytest.mark.parametrize("dynamic", [False, True])
def test_what_is_made_of_an_expanded_tensor_is_not_made_in_it(device: str, dynamic: bool) -> None:
    def changed(rows: Tensor, places: Tensor) -> list[Tensor]:
        def expanded() -> Tensor:
            return (rows[:1] * 1).expand(4, -1)

        return [
            expanded().index_add(0, places, rows),
            expanded().index_copy(0, places, rows),
            expanded().index_fill(0, places, 7.0),
            expanded().index_put((places,), rows, accumulate=True),
            expanded().scatter_add(0, places[:, None].expand_as(rows), rows),
            expanded().slice_scatter(rows[:2], 0, 1, 3),
            expanded().select_scatter(rows[2], 0, 1),
        ]

    torch._dynamo.reset()
    rows, places = torch.arange(24.0).view(3, 8), torch.tensor([0, 1, 3])
    results = torch.compile(changed, dynamic=dynamic)(rows.to(device), places.to(device))
    for result, wanted in zip(results, changed(rows, places), strict=True):
        assert torch.equal(result.cpu(), wanted)


def _product(x: Tensor, w: Tensor) -> Tensor:
    return x * w


def _matrices(x: Tensor, w: Tensor) -> Tensor:
    return x @ w


def _part(x: Tensor, w: Tensor) -> Tensor:
    return x[1:].t() * w[1:].t()


def _batches(x: Tensor, w: Tensor) -> Tensor:
    return torch.einsum("bij,jk->bik", x[None], w)


def _beside_the_host(x: Tensor, w: Tensor) -> Tensor:
    return x @ w + torch.geqrf(w.detach().cpu())[0].to(w.device).sum()


def _sigmoid(x: Tensor, w: Tensor) -> Tensor:
    return (x + w).sigmoid()


@pytest.mark.parametrize("program", [_product, _matrices, _part, _batches, _beside_the_host])
def test_what_a_backward_pass_reads_is_not_to_be_written(program: Callable[..., Tensor], device: str) -> None:
    torch._dynamo.reset()
    x, w = torch.ones(4, 4, device=device), torch.eye(4, device=device, requires_grad=True)
    (expected,) = torch.autograd.grad(program(x, w).sum(), w)
    loss = torch.compile(program)(x, w).sum()
    x.add_(1)
    try:
        loss.backward()
    except RuntimeError as error:
        assert "modified by an inplace operation" in str(error)
    else:
        assert torch.equal(w.grad, expected)  # a compiler of graphs may have made a copy


def test_a_part_that_a_backward_pass_reads_is_not_to_be_written(device: str) -> None:
    torch._dynamo.reset()
    x = torch.ones(4, 4, device=device, requires_grad=True)
    part, square = torch.compile(lambda x: (part := (x + 1)[1:], part * part))(x)
    with torch.no_grad():
        part.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        square.sum().backward()


def test_a_result_that_a_backward_pass_reads_is_not_to_be_written(device: str) -> None:
    torch._dynamo.reset()
    x, w = torch.ones(4, 4, device=device), torch.eye(4, device=device, requires_grad=True)
    y = torch.compile(_sigmoid)(x, w)
    with torch.no_grad():
        y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
