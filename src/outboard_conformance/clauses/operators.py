# SPDX-License-Identifier: Apache-2.0
"""Operators of PyTorch on the device, forward and backward, against the CPU's."""

from __future__ import annotations

import importlib.util
import math
import os
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from outboard_conformance.bench import Bench
from outboard_conformance.clause import clause, expect, need

if TYPE_CHECKING:
    import torch


def pytorch(bench: Bench) -> tuple[Any, str]:
    """The module ``torch``, whose device is the bench's driver, and the device's name."""
    need(importlib.util.find_spec("torch") is not None, "PyTorch is not installed")
    os.environ["OUTBOARD_DRIVER"] = bench.driver.path
    warnings.simplefilter("ignore")  # fallbacks are counted, and said in the report
    import torch  # noqa: PLC0415 - from here on

    name: str = torch._C._get_privateuse1_backend_name()
    need(hasattr(torch, name) and getattr(torch, name).is_available(), f"torch.{name} has no device")
    return torch, name


def counted(torch: Any, device: str, calls: int) -> str:
    """What there is to say of a run: how many calls there were, and which operators went to the CPU."""
    fallbacks: dict[str, int] = getattr(torch, device).fallbacks()
    names = ", ".join(sorted(fallbacks))
    return f"{calls} calls" + (f"; on the CPU: {names}" if names else "; none on the CPU")


def compare(bench: Bench, calls: dict[str, Callable[..., Any]], inputs: Callable[[Any, Any], tuple[Any, ...]]) -> str:
    """Runs functions on the CPU and on the device, in float32 and bfloat16. Raises Broken where results or gradients
    differ by more than rounding."""
    torch, device = pytorch(bench)
    wrong = []
    for name, call in calls.items():
        for dtype in (torch.float32, torch.bfloat16):
            torch.manual_seed(0)
            given = inputs(torch, dtype)
            found = [_outcome(torch, call, given, where) for where in ("cpu", device)]
            tolerance = {torch.float32: 2e-4, torch.bfloat16: 5e-2}[dtype]
            try:
                torch.testing.assert_close(found[1], found[0], rtol=tolerance, atol=tolerance, equal_nan=True)
            except AssertionError as error:
                wrong.append(f"{name} {dtype}: {' '.join(str(error).split())[:200]}")
    expect(not wrong, "\n".join(wrong))
    return counted(torch, device, 2 * len(calls))


def _outcome(torch: Any, call: Callable[..., Any], given: tuple[Any, ...], where: str) -> list[torch.Tensor]:
    moved = []
    for each in given:
        moved.append(each.detach().to(where))
        moved[-1].requires_grad_(each.dtype.is_floating_point)
    result = call(torch, *moved)
    results = list(result) if isinstance(result, (tuple, list)) else [result]
    smooth = [each for each in results if each.requires_grad]
    if smooth:
        sum((each.float() * _weights(torch, each)).sum() for each in smooth).backward()
    gradients = [each.grad for each in moved if each.grad is not None]
    return [each.detach().cpu() for each in (*results, *gradients)]


def _weights(torch: Any, like: Any) -> Any:
    """Gradients of results that do not depend on how these are rounded."""
    return torch.arange(like.numel(), dtype=torch.float32).cos().view(like.shape).to(like.device)


def _vectors(torch: Any, dtype: Any) -> tuple[Any, ...]:
    return torch.randn(7, 33).to(dtype), torch.rand(33).add(0.5).to(dtype)


_POINTWISE: dict[str, Callable[..., Any]] = {
    "add": lambda t, a, b: a + b,
    "sub with alpha": lambda t, a, b: t.sub(a, b, alpha=2),
    "mul": lambda t, a, b: a * b,
    "div": lambda t, a, b: a / b,
    "pow": lambda t, a, b: b**2.5 + a,
    "exp": lambda t, a, b: t.exp(a),
    "log": lambda t, a, b: t.log(b),
    "sin": lambda t, a, b: t.sin(a),
    "tanh": lambda t, a, b: t.tanh(a),
    "sigmoid": lambda t, a, b: t.sigmoid(a),
    "gelu": lambda t, a, b: t.nn.functional.gelu(a),
    "silu": lambda t, a, b: t.nn.functional.silu(a),
    "relu": lambda t, a, b: t.relu(a),
    "where": lambda t, a, b: t.where(a > 0, a, b),
    "clamp": lambda t, a, b: t.clamp(a, -0.5, 0.5),
    "compare": lambda t, a, b: (a < b, a == b, t.isnan(a)),
    "to other dtypes": lambda t, a, b: (a.double(), a.half(), (a * 10).to(t.int32), (a * 10).to(t.int64), a > 0),
    "integers": lambda t, a, b: ((a * 9).long() // 4, (a * 9).long() % 4, (a * 9).int() & 5, (a * 9).short() << 2),
}
_SHAPES: dict[str, Callable[..., Any]] = {
    "transpose": lambda t, a, b: a.t().contiguous(),
    "cat": lambda t, a, b: t.cat([a, a * 2], 1),
    "stack": lambda t, a, b: t.stack([a, a + 1]),
    "slices": lambda t, a, b: a[1:5, 3::2] * 2,
    "pad": lambda t, a, b: t.nn.functional.pad(a, (1, 2, 3, 0)),
    "flip": lambda t, a, b: t.flip(a, [1]),
    "index": lambda t, a, b: a[:, t.tensor([3, 1, 3], device=a.device)],
    "gather": lambda t, a, b: t.gather(a, 1, t.tensor([[0], [5], [2]], device=a.device)),
    "scatter_add": lambda t, a, b: t.zeros_like(a).index_add(0, t.arange(7, device=a.device) // 3, a),
    "write a slice": lambda t, a, b: _written(a),
    "masked_fill": lambda t, a, b: a.masked_fill(a > 0.3, 2.0),
    "embedding": lambda t, a, b: t.nn.functional.embedding(t.tensor([1, 0, 6, 1], device=a.device), a),
}
_REDUCTIONS: dict[str, Callable[..., Any]] = {
    "sum": lambda t, a, b: (a.sum(), a.sum(0), a.sum(1, keepdim=True)),
    "mean": lambda t, a, b: a.mean(1),
    "amax": lambda t, a, b: a.float().amax(1),
    "argmax": lambda t, a, b: a.argmax(1),
    "var": lambda t, a, b: a.float().var(1),
    "norm": lambda t, a, b: a.norm(dim=1),
    "softmax": lambda t, a, b: t.softmax(a, 1),
    "log_softmax": lambda t, a, b: t.log_softmax(a, 1),
    "layer_norm": lambda t, a, b: t.nn.functional.layer_norm(a, (33,), b, b),
    "cumsum": lambda t, a, b: a.float().cumsum(1),
    "sort": lambda t, a, b: t.sort(a.float(), dim=1, stable=True),
    "topk": lambda t, a, b: t.topk(a.float(), 5, 1).values,
    "any and all": lambda t, a, b: ((a > 2).any(1), (a > -3).all(1)),
    "cross_entropy": lambda t, a, b: t.nn.functional.cross_entropy(a, t.arange(7, device=a.device)),
}


def _written(a: Any) -> Any:
    copy = a.clone()
    copy[2:4, ::3] = a[:2, ::3] * 3
    return copy


def _images(torch: Any, dtype: Any) -> tuple[Any, ...]:
    return torch.randn(2, 4, 9, 11).to(dtype), torch.randn(6, 4, 3, 3).to(dtype), torch.randn(44, 10).to(dtype)


_PRODUCTS: dict[str, Callable[..., Any]] = {
    "mm": lambda t, x, w, m: x.reshape(-1, 44) @ m,
    "linear": lambda t, x, w, m: t.nn.functional.linear(m, x.reshape(-1, 11)[:, :10]),
    "bmm": lambda t, x, w, m: t.bmm(x.reshape(8, 9, 11), x.reshape(8, 9, 11).transpose(1, 2)),
    "conv2d": lambda t, x, w, m: t.nn.functional.conv2d(x, w, padding=1, stride=2),
    "conv_transpose2d": lambda t, x, w, m: t.nn.functional.conv_transpose2d(x, w.transpose(0, 1), stride=2),
    "depthwise": lambda t, x, w, m: t.nn.functional.conv2d(x, w[:4, :1], groups=4),
    "max_pool2d": lambda t, x, w, m: t.nn.functional.max_pool2d(x, 2),
    "avg_pool2d": lambda t, x, w, m: t.nn.functional.avg_pool2d(x, 3, 2, 1),
    "batch_norm": lambda t, x, w, m: t.nn.functional.batch_norm(x.float(), None, None, training=True),
    "attention": lambda t, x, w, m: t.nn.functional.scaled_dot_product_attention(x, x, x),
    "interpolate": lambda t, x, w, m: t.nn.functional.interpolate(x, scale_factor=2.0),
}


@clause("operators", "Pointwise operators give the CPU's results and gradients.")
def pointwise_operators_are_right(bench: Bench) -> str:
    return compare(bench, _POINTWISE, _vectors)


#: Of which every bit is fixed, by IEEE 754 or by what integers are.
_EXACT: dict[str, Callable[..., Any]] = {
    "add": lambda t, a, b: a + b,
    "sub": lambda t, a, b: a - b,
    "mul": lambda t, a, b: a * b,
    "div": lambda t, a, b: a / t.where(b == 0, 3, b),
    "div by 3": lambda t, a, b: a / 3,
    "rounded down": lambda t, a, b: t.div(a, t.where(b == 0, 3, b), rounding_mode="floor"),
    "compare": lambda t, a, b: t.stack([a < b, a <= b, a == b, a != b]),
    "abs and neg": lambda t, a, b: t.stack([a.abs(), -a, a.sign()]),
    "whole numbers": lambda t, a, b: t.stack([a.floor(), a.ceil(), a.trunc(), a.round()]),
    "to int32 and back": lambda t, a, b: a.clamp(-100, 100).nan_to_num().int().to(a.dtype),
    "to float32 and bfloat16": lambda t, a, b: a.float() + a.bfloat16(),
}


@clause(
    "operators", "Arithmetic, comparisons, roundings and conversions have every bit of the CPU's, signs of zeros too."
)
def arithmetic_is_exact(bench: Bench) -> str:
    torch, device = pytorch(bench)
    wrong, dtypes = [], (torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.int8)
    for dtype in dtypes:
        a, b = _pairs_of_edges(torch, dtype)
        for name, call in _EXACT.items():
            found, wanted = call(torch, a.to(device), b.to(device)).cpu(), call(torch, a, b)
            signs = wanted.is_floating_point() and (found.signbit() != wanted.signbit()) & ~wanted.isnan()
            apart = ((found != wanted) & ~(found.isnan() & wanted.isnan())) | signs
            if apart.any():
                numbers = f"{found[apart][:3].tolist()} for {wanted[apart][:3].tolist()}"
                wrong.append(f"{name} of {dtype}: {int(apart.sum())} of {apart.numel()} are wrong: {numbers}")
    expect(not wrong, "\n".join(wrong))
    return counted(torch, device, len(dtypes) * len(_EXACT))


def _pairs_of_edges(torch: Any, dtype: Any) -> tuple[Any, Any]:
    """Every pair of numbers near which arithmetic has other cases."""
    if dtype.is_floating_point:
        info = torch.finfo(dtype)
        positive = [0.0, 0.1, 0.5, 1.0, 1.5, 2.5, 3.0, 7.0, 100.25, info.tiny, info.tiny / 8, info.max, float("inf")]
        values = [*positive, *(-each for each in positive), float("nan")]
    else:
        info = torch.iinfo(dtype)
        values = [0, 1, 2, 3, 7, 100, -1, -2, -3, -7, -100, info.max, info.min + 1]
    edges = torch.tensor(values, dtype=torch.float64 if dtype.is_floating_point else dtype).to(dtype)
    return edges.repeat_interleave(len(values)), edges.repeat(len(values))


@clause("operators", "Contents have every bit behind a way to a layout of the compiler's and back.")
def layouts_keep_every_bit(bench: Bench) -> str:
    torch, device = pytorch(bench)
    import outboard  # noqa: PLC0415 - with PyTorch
    from outboard import compilers
    from outboard.compiler.target import target_of

    compiler = compilers.find(target_of(0))
    need(isinstance(compiler, compilers.Layouts), "the device's compiler has no layouts")
    wrong, names = [], set()
    for dtype, bits in ((torch.float32, torch.int32), (torch.bfloat16, torch.int16), (torch.int64, torch.int64)):
        for sizes in ((2, 3), (31, 33), (64, 32), (1, 70), (3, 5, 40), (2, 16, 7, 9)):
            for given in (_edges_of(torch, dtype, sizes), _edges_of(torch, dtype, sizes).transpose(0, -1)):
                layout = _chosen(torch, compiler, target_of(0), given)
                if layout is None:
                    continue
                names.add(layout.name)
                found = outboard.relayout(given.to(device), layout).cpu()
                if (apart := found.view(bits) != given.view(bits)).any():
                    numbers = f"{found[apart][:3].tolist()} for {given[apart][:3].tolist()}"
                    wrong.append(f"{layout.name} of {dtype} {[*given.shape]}: {int(apart.sum())} differ: {numbers}")
    need(bool(names), "the compiler has none of the kit's tensors in a layout")
    expect(not wrong, "\n".join(wrong))
    return f"layouts {', '.join(sorted(names))}"


def _edges_of(torch: Any, dtype: Any, sizes: tuple[int, ...]) -> Any:
    edges = _pairs_of_edges(torch, dtype)[1]
    count = math.prod(sizes)
    return edges.repeat(count // edges.numel() + 1)[:count].view(sizes).clone()


def _chosen(torch: Any, compiler: Any, target: Any, value: Any) -> Any:
    """The layout that a compiler chooses for an operand of ``relu``."""
    from outboard.compilers import Operand

    graph = torch.fx.Graph()
    given = graph.placeholder("given")
    given.meta["val"] = value.to("meta")
    made = graph.call_function(torch.ops.aten.relu.default, (given,))
    made.meta["val"] = value.to("meta")
    graph.output((made,))
    operand = Operand(value.dtype, tuple(value.shape), tuple(value.stride()))
    return compiler.layouts(graph, [operand, operand], target)[0]


@clause("operators", "Operators that move and index give the CPU's results and gradients.")
def moves_and_indices_are_right(bench: Bench) -> str:
    return compare(bench, _SHAPES, _vectors)


@clause("operators", "Reductions, sorting and normalisation give the CPU's results and gradients.")
def reductions_are_right(bench: Bench) -> str:
    return compare(bench, _REDUCTIONS, _vectors)


@clause("operators", "Products, convolutions, pooling and attention give the CPU's results and gradients.")
def products_are_right(bench: Bench) -> str:
    return compare(bench, _PRODUCTS, _images)


@clause("operators", "Random numbers repeat with their seed, and lie where they should.")
def random_numbers_repeat(bench: Bench) -> str:
    torch, device = pytorch(bench)
    drawn = []
    for _ in range(2):
        torch.manual_seed(5)
        x = torch.rand(10000, device=device)
        drawn.append((x, torch.randn(10000, device=device), torch.nn.functional.dropout(x + 1, 0.3)))
    expect(all(torch.equal(a, b) for a, b in zip(*drawn, strict=True)), "the same seed gave other numbers")
    uniform, normal, dropped = (each.cpu() for each in drawn[0])
    expect(uniform.min() >= 0 and uniform.max() < 1 and abs(uniform.mean() - 0.5) < 0.02, "torch.rand")
    expect(abs(normal.mean()) < 0.05 and abs(normal.std() - 1) < 0.05, "torch.randn")
    expect(abs((dropped == 0).float().mean() - 0.3) < 0.03, "dropout of three in ten")
    return counted(torch, device, 6)


@clause("operators", "An index out of range raises PyTorch's IndexError, and the device stays usable.")
def wrong_indices_are_refused(bench: Bench) -> None:
    torch, device = pytorch(bench)
    x = torch.arange(5.0, device=device)
    refused = False
    try:
        x[torch.tensor([7], device=device)].cpu()
    except IndexError:
        refused = True
    expect(refused, "x[[7]] of five elements raised no IndexError")
    expect((x + 1).cpu().tolist() == [1.0, 2.0, 3.0, 4.0, 5.0], "the device computes wrongly after it")
