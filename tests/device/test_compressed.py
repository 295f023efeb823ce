# SPDX-License-Identifier: Apache-2.0
"""Compressed sparse layouts (CSR, CSC, BSR, BSC) against the CPU's: construction with checks, conversions, functions of
entries, sums and products."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest
import torch
from torch import Tensor

LAYOUTS = [torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc]
MATRIX = torch.tensor([[0, 2, 0, 0, 1, 0], [0, 0, 0, 0, 0, 0], [5, 0, 0, 3, 0, 4], [0, 0, 7, 0, 0, 6]]).float()


def compressed(layout: torch.layout, dense: Tensor = MATRIX) -> Tensor:
    blocks = {"blocksize": (2, 2)} if layout in (torch.sparse_bsr, torch.sparse_bsc) else {}
    return dense.to_sparse(layout=layout, **blocks)


def parts(tensor: Tensor) -> list[Tensor]:
    if tensor.layout == torch.strided:
        return [tensor]
    if tensor.layout == torch.sparse_coo:
        merged = tensor.coalesce()
        return [merged.indices(), merged.values()]
    by_rows = tensor.layout in (torch.sparse_csr, torch.sparse_bsr)
    outer = tensor.crow_indices() if by_rows else tensor.ccol_indices()
    return [outer, tensor.col_indices() if by_rows else tensor.row_indices(), tensor.values()]


def same(actual: Tensor, expected: Tensor) -> None:
    assert actual.device.type == "ocl"
    assert (actual.layout, actual.shape) == (expected.layout, expected.shape)
    for of_actual, of_expected in zip(parts(actual), parts(expected), strict=True):
        torch.testing.assert_close(of_actual.cpu(), of_expected)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_conversions(device_module: ModuleType, layout: torch.layout) -> None:
    expected = compressed(layout)
    device_module.reset_fallbacks()
    moved = compressed(layout, MATRIX.to("ocl"))
    same(moved, expected)
    same(expected.to("ocl"), expected)
    same(compressed(layout, MATRIX.to("ocl").to_sparse()), expected)
    same(moved.to_dense(), MATRIX)
    same(moved.to_sparse(), expected.to_sparse())
    same(moved.clone(), expected)
    torch.testing.assert_close(moved.cpu().to_dense(), MATRIX)
    assert device_module.fallbacks() == {}


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_invariants_are_checked(layout: torch.layout) -> None:
    outer, inner, values = parts(compressed(layout))
    arguments = {"size": MATRIX.shape, "layout": layout, "check_invariants": True}
    made = torch.sparse_compressed_tensor(outer.to("ocl"), inner.to("ocl"), values.to("ocl"), **arguments)
    same(made, compressed(layout))
    wrong = inner.clone()
    wrong[0] = 17
    with pytest.raises(RuntimeError) as expected:
        torch.sparse_compressed_tensor(outer, wrong, values, **arguments)
    with pytest.raises(RuntimeError) as raised:
        torch.sparse_compressed_tensor(outer.to("ocl"), wrong.to("ocl"), values.to("ocl"), **arguments)
    assert str(raised.value).splitlines()[0] == str(expected.value).splitlines()[0]


#: Name -> a function of a matrix in CSR layout and of a dense one of its shape.
OPERATIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add of both": lambda s, d: s + s * 2,
    "add to dense": lambda s, d: torch.add(d, s, alpha=3),
    "addmm": lambda s, d: torch.addmm(torch.ones(4, 4, device=d.device), s, d.t(), beta=2, alpha=3),
    "addmv": lambda s, d: torch.addmv(torch.ones(4, device=d.device), s, d[0]),
    "dense times sparse": lambda s, d: d.t() @ s,
    "relu": lambda s, d: torch.relu(s),
    "sampled_addmm": lambda s, d: torch.sparse.sampled_addmm(s, d[:, :3], d[:3], beta=0.5, alpha=2),
    "scalar": lambda s, d: s * 3,
    "select": lambda s, d: s[2],
    "sin": lambda s, d: s.sin(),
    "sparse times dense": lambda s, d: s @ d.t(),
    "sparse times sparse": lambda s, d: (s @ s.to_dense().t().to_sparse_csr()).to_dense(),
    "sum": lambda s, d: s.sum(),
    "sum of columns": lambda s, d: s.sum(0, keepdim=True),
    "sum of rows": lambda s, d: s.sum(1, keepdim=True, dtype=torch.float64),
    "product of columns": lambda s, d: torch._sparse_csr_prod(s, 0, True),
    "product of rows": lambda s, d: torch._sparse_csr_prod(s, -1, True),
    "add of dense": lambda s, d: torch.add(s, d),
    "sum of both": lambda s, d: s.sum((0, 1), keepdim=True),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations(name: str) -> None:
    dense = torch.arange(24.0).view(4, 6) / 5
    expected = OPERATIONS[name](compressed(torch.sparse_csr), dense)
    actual = OPERATIONS[name](compressed(torch.sparse_csr, MATRIX.to("ocl")), dense.to("ocl"))
    same(actual, expected)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_products_with_dense_matrices(layout: torch.layout) -> None:
    right = torch.arange(18.0).view(6, 3)
    same(compressed(layout, MATRIX.to("ocl")) @ right.to("ocl"), MATRIX @ right)


def test_gradient_of_a_product() -> None:
    def run(device: str) -> list[Tensor]:
        sparse = compressed(torch.sparse_csr).to(device).requires_grad_()
        dense = torch.arange(18.0).view(6, 3).to(device).requires_grad_()
        (sparse @ dense).square().sum().backward()
        return [sparse.grad, dense.grad]

    for actual, expected in zip(run("ocl"), run("cpu"), strict=True):
        same(actual, expected)


def test_what_has_no_kernel_says_so() -> None:
    with pytest.raises(NotImplementedError):
        torch.triangular_solve(torch.ones(4, 1, device="ocl"), torch.eye(4, device="ocl").to_sparse_csr())
