# SPDX-License-Identifier: Apache-2.0
"""Errors of reductions, for ``accuracy.py``: sums, variances, norms, softmax and losses of shifted, scaled, sorted and
cancelling data of 10^3 to 2^26 elements, beside those of PyTorch's CPU, against float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch.nn import functional as F

#: Root of the mean squared error, in units in the last place, that is right whatever the CPU's is.
ALLOWED = 2.0
#: Beyond, that much of the CPU's error is.
LUCK = 1.1
#: Single results are taken this often, each time of other data; long ones less often.
REPEATS = 16


@dataclass(frozen=True)
class Reduction:
    """A function of a matrix that reduces each row. Its results are of one size, so that errors are counted in units of
    the usual result: where one comes out close to 0, its error is no smaller. ``each``: they are not, and each error is
    in units of its own result."""

    name: str
    call: Callable[[torch.Tensor], torch.Tensor]
    kinds: tuple[str, ...]
    largest: int = 26
    each: bool = False


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

    @property
    def holds(self) -> bool:
        """Whether the error is within the bound."""
        return self.ours <= max(ALLOWED, LUCK * self.cpu)


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
    Reduction("softmax", lambda x: x.softmax(-1), _MODERATE, 20, each=True),
    Reduction("log_softmax", lambda x: x.log_softmax(-1), _MODERATE, 20),
    Reduction("mse_loss", lambda x: F.mse_loss(x, _target(x), reduction="none").mean(-1), _ALL),
    Reduction("l1_loss", lambda x: F.l1_loss(x, _target(x), reduction="none").mean(-1), _ALL),
    Reduction(
        "bce_logits", lambda x: F.binary_cross_entropy_with_logits(x, x.sigmoid(), reduction="none").mean(-1), _MODERATE
    ),
    Reduction("columns", lambda x: x.sum(0) if x.dim() > 1 else x.sum(), _ALL),
    Reduction("columns_var", lambda x: x.var(0) if x.dim() > 1 else x.var(), ("normal", "shifted")),
    Reduction("layer_norm", lambda x: F.layer_norm(x, x.shape[-1:]), ("normal", "sorted"), 20),
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


def shapes(largest: int) -> Iterator[tuple[int, ...]]:
    """Matrices of rows of about a thousand, of odd lengths, long ones; then vectors up to 2^``largest``."""
    yield from ((256, 1000), (128, 4097), (16, 100_003))
    for size in (17, 20, 23, 25, 26):
        if size <= largest:
            yield ((1 << size) + (3 if size < 23 else 0),)


def compare(reduction: Reduction, kind: str, shape: tuple[int, ...], device: str) -> Row:
    """One row."""
    found: list[list[torch.Tensor]] = [[], [], []]
    repeats = 1 if len(shape) > 1 else max(2, REPEATS >> max(0, shape[0].bit_length() - 21))
    for _ in range(repeats):
        x = KINDS[kind](shape)
        for results, given in zip(found, (x.double(), x, x.to(device)), strict=True):
            results.append(reduction.call(given).cpu().flatten())
    exact, cpu, ours = (torch.cat(results) for results in found)
    (rms, most), (cpu_rms, cpu_most) = (_summary(_units(r, exact, reduction.each)) for r in (ours, cpu))
    return Row(reduction.name, kind, shape, rms, most, cpu_rms, cpu_most)


def _summary(errors: torch.Tensor) -> tuple[float, float]:
    errors = torch.nan_to_num(errors, nan=math.inf)
    return float(errors.square().mean().sqrt()), float(errors.max())


def measure(largest: int, seed: int, only: list[str]) -> Iterator[Row]:
    """The rows of all reductions, or of those named."""
    torch.manual_seed(seed)
    device = torch._C._get_privateuse1_backend_name()
    for reduction in REDUCTIONS:
        if only and reduction.name not in only:
            continue
        for shape in shapes(min(largest, reduction.largest)):
            for kind in reduction.kinds:
                yield compare(reduction, kind, shape, device)


def describe(row: Row) -> str:
    """One line about a row."""
    numbers = f"{row.ours:8.3g} ({row.ours_most:.3g}) cpu {row.cpu:8.3g} ({row.cpu_most:.3g})"
    return f"{'ok' if row.holds else 'BAD':3} {row.name:16} {row.kind:10} {row.shape!s:14} {numbers}"


def table(rows: list[Row]) -> list[str]:
    """The section on reductions of docs/accuracy.md."""
    lines = [
        "## Reductions of float32", "",
        "Root of the mean squared error in units in the last place, and in brackets that of PyTorch's CPU; the worst",
        "of all sizes up to the one named, as a share of what is allowed: 2 units, or 1.1 times the CPU's error.", "",
        "| reduction | data | largest | error | of what is allowed |", "|---|---|---|---|---|",
    ]  # fmt: skip
    for name, kind in dict.fromkeys((row.name, row.kind) for row in rows):
        found = [row for row in rows if (row.name, row.kind) == (name, kind)]
        worst = max(found, key=_share)
        size = max(math.prod(row.shape) for row in found)
        share = f"{_share(worst):.2f}"
        share = share if worst.holds else f"**{share}**"
        lines.append(f"| `{name}` | {kind} | {size} | {worst.ours:.3g} ({worst.cpu:.3g}) | {share} |")
    return lines


def _share(row: Row) -> float:
    return row.ours / max(ALLOWED, LUCK * row.cpu)
