# SPDX-License-Identifier: Apache-2.0
"""Errors of reductions, for ``accuracy.py``: sums, variances, norms, softmax and losses of shifted, scaled, sorted and
cancelling data of 10^3 to 2^26 elements, beside those of PyTorch's CPU, against float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as F

#: Root of the mean squared error, in units in the last place, that is right whatever the CPU's is: half a unit is what
#: rounding a result costs at most.
ALLOWED = 0.5
#: Beyond, that much of the CPU's error is.
LUCK = 1.1
#: Single results are taken this often, each time of other data; long ones less often.
REPEATS = 16


@dataclass(frozen=True)
class Reduction:
    """A function of a matrix that reduces each row. Its results are of one size, so that errors are counted in units of
    the usual result: where one comes out close to 0, its error is no smaller. ``each``: they are not, and each error is
    in units of its own result. ``whole``: there is a result for each element."""

    name: str
    call: Callable[[torch.Tensor], torch.Tensor]
    kinds: tuple[str, ...]
    each: bool = False
    whole: bool = False


@dataclass
class Row:
    """Errors of one reduction of data of one shape, in units in the last place: root of mean squares and largest."""

    name: str
    kind: str
    shape: tuple[int, ...]
    ours: float
    ours_most: float
    cpu: float
    cpu_most: float
    count: int

    @property
    def allowed(self) -> float:
        """The bound: that of the CPU's error, with two standard deviations of what two errors of so few results differ
        by chance."""
        return max(ALLOWED, LUCK * (1 + 2 / math.sqrt(self.count)) * self.cpu)

    @property
    def key(self) -> tuple[str, str, tuple[int, ...]]:
        """What tells the row from all others."""
        return self.name, self.kind, self.shape

    @property
    def holds(self) -> bool:
        """Whether the error is within the bound."""
        return self.ours <= self.allowed

    @staticmethod
    def loaded(values: dict[str, Any]) -> Row:
        """A row from what ``asdict`` made of it, by way of JSON."""
        return Row(**values | {"shape": tuple(values["shape"])})


def _shifted(shape: tuple[int, ...]) -> torch.Tensor:
    return torch.rand(shape) + 1e4


def _sorted(shape: tuple[int, ...]) -> torch.Tensor:
    return torch.rand(shape).sort(-1).values


def _cancelling(shape: tuple[int, ...]) -> torch.Tensor:
    x = torch.randn(shape)
    half = shape[-1] // 2
    x[..., -half:] = -x[..., :half].flip(-1) * (1 + 1e-4 * torch.rand(half))
    return x


KINDS: dict[str, Callable[[tuple[int, ...]], torch.Tensor]] = {
    "uniform": torch.rand,
    "normal": torch.randn,
    "shifted": _shifted,
    "tiny": lambda shape: torch.rand(shape) * 1e-30,
    "huge": lambda shape: torch.rand(shape) * 1e15,
    "sorted": _sorted,
    "cancelling": _cancelling,
}
_ALL = tuple(KINDS)
_MODERATE = ("uniform", "normal", "sorted")


def _target(x: torch.Tensor) -> torch.Tensor:
    return x.flip(-1) * 0.5


def _gradient(call: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """The gradient for one of the result that is no constant."""
    leaf = x.detach().requires_grad_()
    value = call(leaf)
    return torch.autograd.grad(value, leaf, x.flip(-1))[0]


def _classes(x: torch.Tensor) -> torch.Tensor:
    """Each row as the scores of so many classes."""
    return x if x.dim() > 1 else x.reshape(1, -1)


def _examples(x: torch.Tensor) -> torch.Tensor:
    """Many examples of few classes."""
    return x.flatten()[: x.numel() // 64 * 64].view(-1, 64)


def _labels(x: torch.Tensor) -> torch.Tensor:
    rows, classes = _classes(x).shape
    return (torch.arange(rows) * 7919 % classes).to(x.device)


def _flat(x: torch.Tensor) -> torch.Tensor:
    return x.reshape(1, 1, -1) if x.dim() == 1 else x


REDUCTIONS = [
    Reduction("sum", lambda x: x.sum(-1), _ALL),
    Reduction("mean", lambda x: x.mean(-1), _ALL),
    Reduction("var", lambda x: x.var(-1), ("uniform", "normal", "shifted", "huge", "sorted", "cancelling")),
    Reduction("std", lambda x: x.std(-1), ("uniform", "normal", "shifted", "huge", "sorted", "cancelling")),
    Reduction("var_mean", lambda x: torch.var_mean(x, -1)[0], ("normal", "shifted")),
    Reduction("norm", lambda x: torch.linalg.vector_norm(x, 2, -1), ("uniform", "normal", "shifted", "huge", "sorted")),
    Reduction("norm1", lambda x: torch.linalg.vector_norm(x, 1, -1), _ALL),
    Reduction("logsumexp", lambda x: torch.logsumexp(x, -1), _MODERATE),
    Reduction("softmax", lambda x: x.softmax(-1), _MODERATE, each=True, whole=True),
    Reduction("softmax'", lambda x: _gradient(lambda y: y.softmax(-1), x), _MODERATE, whole=True),
    Reduction("log_softmax", lambda x: x.log_softmax(-1), _MODERATE, whole=True),
    Reduction("cross_entropy", lambda x: F.cross_entropy(_classes(x), _labels(x), reduction="none"), _MODERATE),
    Reduction("cross_entropy_mean", lambda x: F.cross_entropy(_examples(x), _labels(_examples(x))), _MODERATE),
    Reduction("mse_loss", lambda x: F.mse_loss(x, _target(x), reduction="none").mean(-1), _ALL),
    Reduction("l1_loss", lambda x: F.l1_loss(x, _target(x), reduction="none").mean(-1), _ALL),
    Reduction(
        "bce_logits", lambda x: F.binary_cross_entropy_with_logits(x, x.sigmoid(), reduction="none").mean(-1), _MODERATE
    ),
    Reduction("columns", lambda x: x.sum(0) if x.dim() > 1 else x.sum(), _ALL),
    Reduction("columns_var", lambda x: x.var(0) if x.dim() > 1 else x.var(), ("normal", "shifted")),
    Reduction("layer_norm", lambda x: F.layer_norm(x, x.shape[-1:]), ("normal", "sorted"), whole=True),
    Reduction(
        "layer_norm'",
        lambda x: _gradient(lambda y: F.layer_norm(y, y.shape[-1:]), x),
        ("normal",),
        whole=True,
    ),
    Reduction(
        "batch_norm_var",
        lambda x: torch.native_batch_norm(_flat(x), None, None, None, None, True, 0.1, 0.0)[2],
        ("normal", "shifted"),
    ),
]


def _units(result: torch.Tensor, exact: torch.Tensor, each: bool) -> torch.Tensor:
    size = exact.abs() if each else exact.square().mean().sqrt().clamp(min=1e-300)
    exponent = torch.frexp(size).exponent.clamp(min=-125)
    return ((result.double() - exact) / torch.ldexp(torch.ones_like(size), exponent - 24)).abs()


def shapes(smallest: int, largest: int) -> Iterator[tuple[int, ...]]:
    """Matrices of rows of about a thousand, of odd lengths, long ones, unless only larger ones are asked for; then
    vectors of 2^``smallest`` to 2^``largest``."""
    if smallest < 17:
        yield from ((256, 1000), (128, 4097), (16, 100_003))
    for size in (17, 20, 23, 25, 26):
        if smallest <= size <= largest:
            yield ((1 << size) + (3 if size < 23 else 0),)


def compare(reductions: list[Reduction], kind: str, shape: tuple[int, ...], device: str) -> Iterator[Row]:
    """A row for each of some reductions, all of the same data; a single result says nothing."""
    found: dict[str, list[list[torch.Tensor]]] = {reduction.name: [[], [], []] for reduction in reductions}
    repeats = 1 if len(shape) > 1 else max(6, REPEATS >> max(0, shape[0].bit_length() - 21))
    for number in range(repeats):
        x = KINDS[kind](shape)
        forms = x.double(), x, x.to(device)
        for reduction in reductions:
            if number and reduction.whole:
                continue
            for results, given in zip(found[reduction.name], forms, strict=True):
                results.append(reduction.call(given).cpu().flatten())
            if number + 1 == repeats or reduction.whole:
                row = _row(reduction, kind, shape, *(torch.cat(some) for some in found.pop(reduction.name)))
                if row.count > 1 or reduction.whole:
                    yield row


def _row(
    reduction: Reduction, kind: str, shape: tuple[int, ...], exact: torch.Tensor, cpu: torch.Tensor, ours: torch.Tensor
) -> Row:
    (rms, most), (cpu_rms, cpu_most) = (_summary(_units(r, exact, reduction.each)) for r in (ours, cpu))
    # The errors of a row's results are mostly those of its sum.
    count = max(len(exact) // shape[-1], 1) if reduction.whole else len(exact)
    return Row(reduction.name, kind, shape, rms, most, cpu_rms, cpu_most, count)


def _summary(errors: torch.Tensor) -> tuple[float, float]:
    errors = torch.nan_to_num(errors, nan=math.inf)
    return float(errors.square().mean().sqrt()), float(errors.max())


def measure(smallest: int, largest: int, seed: int, names: list[str]) -> Iterator[Row]:
    """The rows of the reductions named."""
    torch.manual_seed(seed)
    device = torch._C._get_privateuse1_backend_name()
    for shape in shapes(smallest, largest) if names else ():
        for kind in KINDS:
            chosen = [reduction for reduction in REDUCTIONS if reduction.name in names and kind in reduction.kinds]
            if chosen:
                yield from compare(chosen, kind, shape, device)


def describe(row: Row) -> str:
    """One line about a row."""
    numbers = f"{row.ours:8.3g} ({row.ours_most:.3g}) cpu {row.cpu:8.3g} ({row.cpu_most:.3g})"
    return f"{'ok' if row.holds else 'BAD':4} {row.name:18} {row.kind:10} {row.shape!s:14} {numbers}"


def table(rows: list[Row]) -> list[str]:
    """The section on reductions of docs/accuracy.md."""
    lines = [
        "## Reductions of float32", "",
        "Root of the mean squared error in units in the last place, and in brackets that of PyTorch's CPU; the worst",
        "of all sizes up to the one named, as a share of what is allowed: half a unit, or 1.1 times the CPU's error,",
        "with two standard deviations of what that is by chance where results are few (1 + 2 / sqrt(results)).",
        f"{len(rows)} combinations of reduction, data and shape, {sum(row.holds for row in rows)} within the bound", "",
        "| reduction | data | largest | error | of what is allowed |", "|---|---|---|---|---|",
    ]  # fmt: skip
    for name, kind in dict.fromkeys((row.name, row.kind) for row in rows):
        found = [row for row in rows if (row.name, row.kind) == (name, kind)]
        worst = max(found, key=_share)
        size = max(math.prod(row.shape) for row in found)
        share = f"{_share(worst):.2f}"
        share = share if worst.holds else f"**{share}** {worst.shape}"
        lines.append(f"| `{name}` | {kind} | {size} | {worst.ours:.3g} ({worst.cpu:.3g}) | {share} |")
    return lines


def _share(row: Row) -> float:
    return row.ours / row.allowed
