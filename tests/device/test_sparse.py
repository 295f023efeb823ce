# SPDX-License-Identifier: Apache-2.0
"""Sparse tensors in COO layout, against the CPU's: construction, conversion, arithmetic, gradients of embeddings."""

import copy
import io
from collections.abc import Callable, Iterator
from types import ModuleType

import pytest
import torch

DTYPES = [torch.float32, torch.float64, torch.float16, torch.int64, torch.bool, torch.complex64]


@pytest.fixture(autouse=True)
def no_fallback_on_sparse(request: pytest.FixtureRequest, device_module: ModuleType) -> Iterator[None]:
    """Nothing here may run on the CPU, but complex sums, which have no kernel."""
    device_module.reset_fallbacks()
    yield
    if "complex" not in request.node.name:
        assert device_module.fallbacks() == {}


def example(dtype: torch.dtype = torch.float32, dense: tuple[int, ...] = ()) -> torch.Tensor:
    """A sparse tensor of shape (5, 7, *dense) on the CPU whose entries repeat places."""
    generator = torch.Generator().manual_seed(3)
    indices = torch.stack([torch.randint(0, size, (12,), generator=generator) for size in (5, 7)])
    indices[:, 5] = indices[:, 2]
    values = torch.randint(-4, 5, (12, *dense), generator=generator).to(dtype)
    return torch.sparse_coo_tensor(indices, values, (5, 7, *dense))


def same(actual: torch.Tensor, expected: torch.Tensor) -> None:
    assert actual.device.type == "ocl"
    assert actual.layout == expected.layout
    if actual.is_sparse:
        assert actual.is_coalesced() == expected.is_coalesced()
        actual, expected = actual.coalesce(), expected.coalesce()
        torch.testing.assert_close(actual.indices().cpu(), expected.indices())
        torch.testing.assert_close(actual.values().cpu(), expected.values())
        return
    torch.testing.assert_close(actual.cpu(), expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("dense", [(), (3,)], ids=["scalars", "rows"])
def test_conversions(dtype: torch.dtype, dense: tuple[int, ...]) -> None:
    cpu = example(dtype, dense)
    moved = cpu.to("ocl")
    same(moved, cpu)
    same(moved.coalesce(), cpu.coalesce())
    same(moved.to_dense(), cpu.to_dense())
    same(moved.clone(), cpu)
    same(cpu.to_dense().to("ocl").to_sparse(2), cpu.to_dense().to_sparse(2))
    torch.testing.assert_close(moved.cpu().to_dense(), cpu.to_dense())


def test_construction_and_accessors() -> None:
    cpu = example()
    made = torch.sparse_coo_tensor(cpu._indices(), cpu._values(), cpu.shape, device="ocl")
    same(made, cpu)
    assert (made._nnz(), made.sparse_dim(), made.dense_dim(), made.is_coalesced()) == (12, 2, 0, False)
    same(torch.zeros(2, 3, layout=torch.sparse_coo, device="ocl"), torch.zeros(2, 3, layout=torch.sparse_coo))
    same(torch.zeros(2, 3, device="ocl").to_sparse(), torch.zeros(2, 3).to_sparse())
    assert "nnz=12" in repr(made)
    same(made.to(torch.float64), cpu.to(torch.float64))
    same(torch.empty_like(made).copy_(made), cpu)
    same(copy.deepcopy(made), cpu)
    assert made.clone().zero_()._nnz() == 0
    file = io.BytesIO()
    torch.save(made, file)
    file.seek(0)
    same(torch.load(file), cpu)


OPERATIONS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "add": lambda a, d: a + a.coalesce() * 2,
    "add coalesced": lambda a, d: a.coalesce() + a.coalesce().neg(),
    "sub": lambda a, d: a.coalesce() - (a * 3).coalesce(),
    "dense add": lambda a, d: d + a,
    "dense add_": lambda a, d: d.clone().add_(a, alpha=-0.5),
    "add_ into a transposed tensor": lambda a, d: d.t().contiguous().t().add_(a),
    "scalar": lambda a, d: a * 2.5,
    "sparse by sparse": lambda a, d: (
        a * torch.sparse_coo_tensor(a._indices()[:, 3:8], a._values()[3:8], a.shape)
    ).coalesce(),
    "sum": lambda a, d: a.sum(),
    "mask": lambda a, d: d.sparse_mask(a.coalesce()),
    "mm": lambda a, d: torch.sparse.mm(a, d.t()),
    "addmm": lambda a, d: torch.sparse.addmm(d[:, :5], a, d.t(), beta=0.5, alpha=2),
    "hspmm": lambda a, d: torch.hspmm(a, d.t()),
    "hspmm of rows in order": lambda a, d: torch.hspmm(a.coalesce(), d.t()),
    "hspmm of nothing": lambda a, d: torch.hspmm(a.clone().zero_(), d.t()),
    "mul by a row": lambda a, d: a * d[0],
    "mul by a batch": lambda a, d: a * d.expand(2, 5, 7),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_arithmetic(name: str) -> None:
    cpu, dense = example(), torch.randn(5, 7)
    same(OPERATIONS[name](cpu.to("ocl"), dense.to("ocl")), OPERATIONS[name](cpu, dense))


def test_products_that_broadcast_the_sparse_one() -> None:
    """PyTorch's kernel for the CPU forgets all but the first of what an entry becomes."""
    column, dense = example().coalesce().sum(1, keepdim=True), torch.randn(5, 7)
    for factor in (dense, dense[0]):
        result = column.to("ocl") * factor.to("ocl")
        torch.testing.assert_close(result.to_dense().cpu(), column.to_dense() * factor)


def test_product_with_dense() -> None:
    cpu, dense = example().coalesce(), torch.randn(5, 7)
    torch.testing.assert_close((cpu.to("ocl") * dense.to("ocl")).cpu().to_dense(), cpu.to_dense() * dense)


def test_gradients_of_mm() -> None:
    gradients = []
    for device in ("cpu", "ocl"):
        sparse = example().coalesce().to(device).requires_grad_()
        dense = torch.linspace(-1, 1, 21).reshape(7, 3).to(device).requires_grad_()
        torch.sparse.mm(sparse, dense).square().sum().backward()
        assert sparse.grad is not None and dense.grad is not None
        gradients.append((sparse.grad.to_dense().cpu(), dense.grad.cpu()))
    torch.testing.assert_close(gradients[1], gradients[0])


OPTIMIZERS: dict[str, Callable[[list[torch.Tensor]], torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "SGD with momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "SparseAdam": lambda p: torch.optim.SparseAdam(p, lr=0.1),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("bag", [False, True], ids=["Embedding", "EmbeddingBag"])
def test_training(optimizer: str, bag: bool) -> None:
    results = []
    for device in ("cpu", "ocl"):
        torch.manual_seed(0)
        kind = torch.nn.EmbeddingBag if bag else torch.nn.Embedding
        module = kind(20, 4, sparse=True).to(device)
        steps = OPTIMIZERS[optimizer](list(module.parameters()))
        for step in range(3):
            steps.zero_grad()
            words = (torch.arange(12).reshape(3, 4) * (step + 3) % 11).to(device)
            module(words).square().sum().backward()
            assert module.weight.grad is not None and module.weight.grad.is_sparse
            assert module.weight.grad.device.type == device
            steps.step()
        results.append(module.weight.detach().cpu())
    torch.testing.assert_close(results[1], results[0])


BAD: dict[str, Callable[[str], object]] = {
    "index out of range": lambda d: torch.sparse_coo_tensor(
        torch.tensor([[7]]), torch.tensor([1.0]), (3,), device=d, check_invariants=True
    ),
    "negative index": lambda d: torch.sparse_coo_tensor(
        torch.tensor([[-1]]), torch.tensor([1.0]), (3,), device=d, check_invariants=True
    ),
    "lengths differ": lambda d: torch.sparse_coo_tensor(torch.tensor([[0, 1]]), torch.tensor([1.0]), (3,), device=d),
    "values of what is not coalesced": lambda d: example().to(d).values(),
    "sizes of sums differ": lambda d: example().to(d) + example().to(d).to_dense().t().to_sparse(),
    "dense size differs": lambda d: torch.zeros(3, device=d) + example().to(d),
    "sparse plus dense": lambda d: example().to(d) + example().to(d).to_dense(),
    "rows out of range": lambda d: example().to(d).index_select(0, torch.tensor([5], device=d)),
    "rows that are not integers": lambda d: example().to(d).index_select(0, torch.tensor([1.0], device=d)),
    "quotient of two": lambda d: example().to(d) / example().to(d),
    "shapes of mm": lambda d: torch.sparse.mm(example().to(d), torch.zeros(3, 3, device=d)),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name: str) -> None:
    with pytest.raises(Exception) as expected:
        BAD[name]("cpu")
    with pytest.raises(expected.type):
        BAD[name]("ocl")


def test_devices_do_not_mix() -> None:
    with pytest.raises(RuntimeError, match="same device"):
        torch.zeros(5, 7, device="ocl").add_(example())


def test_what_has_no_kernel_says_so() -> None:
    with pytest.raises(NotImplementedError):
        torch.sspaddmm(*[example().to("ocl")] * 2, torch.ones(7, 7, device="ocl"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64], ids=str)
def test_product_of_two_sparse_matrices(dtype: torch.dtype) -> None:
    cpu = example(dtype), example(dtype).t()
    same(torch.sparse.mm(*(each.to("ocl") for each in cpu)), torch.sparse.mm(*cpu))
    empty = torch.zeros(7, 3, dtype=dtype).to_sparse()
    same(torch.sparse.mm(cpu[0].to("ocl"), empty.to("ocl")), torch.sparse.mm(cpu[0], empty))


def test_gradient_of_a_product_of_sparse_matrices() -> None:
    def gradients(device: str) -> list[torch.Tensor]:
        factors = [each.coalesce().to(device).requires_grad_() for each in (example(), example().t())]
        torch.sparse.mm(*factors).to_dense().square().sum().backward()
        return [each.grad for each in factors]

    for actual, expected in zip(gradients("ocl"), gradients("cpu"), strict=True):
        same(actual, expected)


def test_products_of_batches() -> None:
    cpu = torch.stack([example().to_dense(), example().to_dense() * 2, torch.zeros(5, 7)]).to_sparse()
    dense = torch.arange(42.0).view(3, 7, 2)
    same(torch.bmm(cpu.to("ocl"), dense.to("ocl")), torch.bmm(cpu, dense))


@pytest.mark.parametrize("merged", [False, True], ids=["repeated", "coalesced"])
@pytest.mark.parametrize("dense", [(), (3,)], ids=["scalars", "rows"])
def test_masks_of_sparse_tensors(dense: tuple[int, ...], merged: bool) -> None:
    cpu = example(dense=dense)
    mask = torch.sparse_coo_tensor(cpu._indices().flip(1)[:, 3:], cpu._values()[3:], cpu.shape)
    if merged:
        cpu, mask = cpu.coalesce(), mask.coalesce()
    moved = cpu.to("ocl"), mask.to("ocl")
    same(moved[0].sparse_mask(moved[1]), cpu.sparse_mask(mask))
    for repeated in (False, True):
        project = torch.ops.aten._sparse_mask_projection
        same(project(*moved, repeated), project(cpu, mask, repeated))


def test_gradient_of_a_mask_and_of_construction() -> None:
    def gradients(device: str) -> list[torch.Tensor]:
        indices, values = (each.to(device) for each in (example().coalesce().indices(), example().coalesce().values()))
        values.requires_grad_()
        made = torch.sparse_coo_tensor(indices, values, (5, 7))
        made.to_dense().square().sum().backward()
        source = example().coalesce().to(device).requires_grad_()
        source.sparse_mask(example().coalesce().to(device)).to_dense().square().sum().backward()
        return [values.grad, source.grad]

    for actual, expected in zip(gradients("ocl"), gradients("cpu"), strict=True):
        same(actual, expected)


def test_product_with_a_sparse_number() -> None:
    number = torch.tensor(3.0).to_sparse()
    moved = example().to("ocl")
    same(moved * number.to("ocl"), example() * number)
    same(number.to("ocl") * moved, number * example())


def test_sums_of_complex_entries_stay_on_the_device(device_module: ModuleType) -> None:
    moved = example(torch.complex64).to("ocl")
    device_module.reset_fallbacks()
    moved.coalesce()
    torch.zeros(5, 7, dtype=torch.complex64, device="ocl") + moved
    assert "aten::index_add" not in str(device_module.fallbacks())


FUNCTIONS = [
    "abs",
    "asin",
    "asinh",
    "atan",
    "atanh",
    "ceil",
    "deg2rad",
    "erf",
    "erfinv",
    "expm1",
    "floor",
    "frac",
    "isinf",
    "isnan",
    "isneginf",
    "isposinf",
    "log1p",
    "nan_to_num",
    "neg",
    "rad2deg",
    "relu",
    "round",
    "sgn",
    "sign",
    "signbit",
    "sin",
    "sinh",
    "sqrt",
    "tan",
    "tanh",
    "trunc",
]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_entries(name: str) -> None:
    cpu = example(dense=(2,)) * 0.3
    cpu._values()[0, 0] = float("nan")
    cpu._values()[1, 0] = float("inf")
    for value in (cpu, cpu.coalesce()):
        same_with_nan(getattr(torch, name)(value.to("ocl")), getattr(torch, name)(value))
    in_place = getattr(torch.Tensor, f"{name}_", None)
    if in_place is not None and not name.startswith("is"):
        same_with_nan(in_place(cpu.coalesce().to("ocl")), in_place(cpu.coalesce()))


def same_with_nan(actual: torch.Tensor, expected: torch.Tensor) -> None:
    assert actual.device.type == "ocl" and actual.layout == expected.layout and actual.dtype == expected.dtype
    torch.testing.assert_close(actual.to_dense().cpu(), expected.to_dense(), equal_nan=True)


REDUCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sum of all": lambda x: torch.sparse.sum(x),
    "sum of rows": lambda x: torch.sparse.sum(x, 0),
    "sum of columns": lambda x: torch.sparse.sum(x, [1]),
    "sum of the dense dimension": lambda x: torch.sparse.sum(x, 2),
    "sum of both kinds": lambda x: torch.sparse.sum(x, [0, 2]),
    "sum of the sparse dimensions": lambda x: torch.sparse.sum(x, [0, 1]),
    "softmax of columns": lambda x: torch.sparse.softmax(x, 0),
    "softmax of rows": lambda x: torch.sparse.softmax(x, 1),
    "softmax of the dense dimension": lambda x: torch.sparse.softmax(x, 2),
    "log_softmax of columns": lambda x: torch.sparse.log_softmax(x, 0),
    "log_softmax of the dense dimension": lambda x: torch.sparse.log_softmax(x, 2),
}


@pytest.mark.parametrize("name", REDUCTIONS)
def test_along_dimensions(name: str) -> None:
    results = []
    for device in ("cpu", "ocl"):
        x = (example(dense=(3,)) * 0.7).coalesce().to(device).requires_grad_()
        result = REDUCTIONS[name](x)
        dense = result.to_dense() if result.is_sparse else result
        weights = torch.arange(dense.numel(), dtype=torch.float32, device=device).reshape(dense.shape)
        (dense * weights).sum().backward()
        assert x.grad is not None
        results.append((result.detach(), x.grad))
    for actual, expected in zip(results[1], results[0], strict=True):
        assert actual.layout == expected.layout
        torch.testing.assert_close(actual.to_dense().cpu(), expected.to_dense())


def test_softmax_of_few_entries() -> None:
    """Rows of minus infinities are not numbers, rows without entries are empty, and wrong dtypes are refused."""
    indices = torch.tensor([[0, 0, 2], [1, 2, 0]])
    values = torch.tensor([-float("inf"), -float("inf"), 3.0])
    cpu = torch.sparse_coo_tensor(indices, values, (4, 3))
    same_with_nan(torch.sparse.softmax(cpu.to("ocl"), 1), torch.sparse.softmax(cpu, 1))
    assert torch.sparse.softmax(torch.sparse_coo_tensor((4, 3), device="ocl"), 0)._nnz() == 0
    with pytest.raises(NotImplementedError, match="softmax"):
        torch.sparse.softmax(example(torch.int64).to("ocl"), 0)


OTHERS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "quotient": lambda x: x / 3,
    "rounded quotient": lambda x: torch.div(x, 3, rounding_mode="trunc"),
    "floor_divide": lambda x: x // 2,
    "in-place quotient": lambda x: x.clone().div_(4),
    "power": lambda x: x.coalesce() ** 2,
    "norm": lambda x: x.coalesce().norm(),
    "1-norm": lambda x: x.coalesce().norm(1),
    "cat of rows": lambda x: torch.cat([x, x.coalesce()], 0),
    "cat of dense dimensions": lambda x: torch.cat([x, x], 2),
    "permuted": lambda x: x.permute(1, 0, 2),
    "narrow_copy": lambda x: x.narrow_copy(1, 2, 3),
    "rows that repeat": lambda x: x.index_select(0, torch.tensor([3, 0, 3, 1], device=x.device)),
    "columns": lambda x: x.index_select(1, torch.tensor([6, 6], device=x.device)),
    "of the dense dimension": lambda x: x.index_select(2, torch.tensor([1, 0, 1], device=x.device)),
    "no rows": lambda x: x.index_select(0, torch.empty(0, dtype=torch.int64, device=x.device)),
    "any": lambda x: torch.any(x.coalesce()),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_functions(name: str) -> None:
    cpu = example(dense=(2,))
    expected = OTHERS[name](cpu)
    actual = OTHERS[name](cpu.to("ocl"))
    assert actual.layout == expected.layout and actual.shape == expected.shape and actual.dtype == expected.dtype
    if actual.is_sparse:
        actual, expected = actual.to_dense(), expected.to_dense()
    torch.testing.assert_close(actual.cpu(), expected)


def test_matrix_times_vector() -> None:
    vector = torch.arange(7.0)
    torch.testing.assert_close(torch.mv(example().to("ocl"), vector.to("ocl")).cpu(), torch.mv(example(), vector))


def test_training_with_scaled_and_clipped_gradients(device: str) -> None:
    """What Trainers do between backward and step, with gradients that are sparse."""
    results = []
    for where in ("cpu", device):
        torch.manual_seed(0)
        module = torch.nn.Embedding(20, 4, sparse=True).to(where)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler(where, init_scale=128.0)
        for step in range(2):
            words = (torch.arange(12) * (step + 3) % 11).to(where)
            scaler.scale(module(words).square().sum()).backward()
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        results.append(module.weight.detach().cpu())
    torch.testing.assert_close(results[1], results[0])


def test_conjugates_and_gradients_of_complex_entries(device: str) -> None:
    def results(device: str) -> list[torch.Tensor]:
        places, values = torch.tensor([[0, 1, 1], [1, 0, 2]]), torch.tensor([1 + 2j, 3 - 1j, 2j])
        x = torch.sparse_coo_tensor(places, values, (2, 3)).to(device).requires_grad_()
        (x * x).to_dense().abs().sum().backward()
        assert x.grad is not None
        return [x.grad.to_dense().cpu(), x.detach().conj().to_dense().cpu()]

    torch.testing.assert_close(results(device), results("cpu"))
