# SPDX-License-Identifier: Apache-2.0
"""Decompositions and lowerings against the CPU's own kernels, over grids of arguments (``decomposition_grid``).

Each combination of a function, its options and tensors is computed by PyTorch's eager kernels on the CPU and on the
device, forward and backward, twice where it says so, and compared: dtypes, sizes, exceptions, integers exactly, floats
within rounding, for which float64 decides where they differ. What PyTorch's CPU itself has wrong stands in
``EXPLAINED`` with the reason. Exit code 1 if anything differs beside it.

What costs is to compile, so each group is given tensors of many sizes and numbers, in turns, until it has had
``--per-group`` of them; every other group also tensors that are not dense. ``--way static`` gives some tensors of a
group to one graph of ``torch.compile``, ``--way dynamic`` all of them to graphs whose sizes are symbols. With
``--state FILE`` what was done is kept, so that a later run goes on; ``--seed`` decides which groups come first,
``--count`` how many combinations are taken.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import random
import re
import sys
import time
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools.decomposition_grid import FAMILIES, Group, Source
from tools.fuzz.compare import CLOSE, is_close, within_rounding

Change = Callable[[Tensor], Tensor]

#: What of a group's label and of the two outcomes is known to differ, and why.
EXPLAINED: list[tuple[re.Pattern[str], str]] = [
    (re.compile(pattern), reason)
    for pattern, reason in {
        r"^interpolate nearest [13]d .*scale_factor.*: result 1": "the CPU's gradient is of copies, its result is not",
        r"^(std|var)_mean .*: result 1:.*(inf|nan)": "the CPU moves the mean on, so that an infinity makes NaN of it",
        r"^(hardshrink|softshrink|relu6|hardtanh|elu|celu|selu|hardswish|logit) .*: result [12]": "of NaN, the CPU's "
        "vectors take another piece of the function than its single elements",
        r"^(std|var)(_mean)? .*: result [1-3]: [^a]*e-(0[6-9]|[1-3])": "deviations of equal numbers are what the mean "
        "has lost in rounding",
        r"^max_pool3d .*: channels last: result [12]": "for NaN, the CPU's kernel gives a place in its plane",
        r"^hardsigmoid float64 .*: result [12]": "the CPU multiplies by a sixth that is rounded to float32",
    }.items()
]
#: How many sources a static graph takes.
TOGETHER = 6
#: How many graphs a group may become when sizes are symbols: those of 0 and 1 are numbers.
GRAPHS = 4
#: How many calls of a group that the CPU refuses are made: each is looked at anew on the device.
REFUSALS = 24
#: How often sizes and numbers are drawn again at most.
TURNS = 40
WAYS = ("eager", "static", "dynamic")
#: How many differences of a group are shown.
SHOWN = 2
#: Seconds after which what was found is kept.
SAVED = 20.0
#: The dtypes of floats that float64 can judge.
_WIDE = (torch.float32, torch.bfloat16, torch.float16)
#: How tensors lie in memory: what makes one lie so of one that is dense.
_LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "dense": lambda x: x,
    "gaps": lambda x: x.new_empty((*x.shape, 2))[..., 0].copy_(x),
    "channels last": lambda x: x.movedim(1, -1).contiguous().movedim(-1, 1) if x.dim() > 1 else x,
}


@dataclass
class Row:
    """What was found of a family."""

    combinations: int = 0
    different: int = 0
    explained: int = 0
    examples: list[str] = field(default_factory=list)


class Refused:
    """An exception in the place of results."""

    def __init__(self, error: Exception) -> None:
        self.kind, self.text = type(error).__name__, str(error).split("\n")[0][:150]

    def __repr__(self) -> str:
        return f"{self.kind}: {self.text}"


def outcome(group: Group, source: Source, device: str, layout: str = "dense") -> list[Tensor] | Refused:
    """Results, gradients and their gradients, as tensors on the device; or what was raised."""
    try:
        return _differentiated(group.function, [_placed(value, device, layout) for value in source], group.orders)
    except (RuntimeError, IndexError, ValueError, TypeError, NotImplementedError, ZeroDivisionError) as error:
        return Refused(error)


def _placed(value: Any, device: str, layout: str = "dense") -> Any:
    if not isinstance(value, Tensor):
        return value
    return _LAYOUTS[layout](value.to(device)).detach().requires_grad_(value.is_floating_point())


def _differentiated(function: Callable[..., Any], arguments: list[Any], orders: int) -> list[Tensor]:
    found = [result for result in _flat(function(*arguments))]
    leaves = [value for value in arguments if isinstance(value, Tensor) and value.requires_grad]
    results = list(found)
    for order in range(orders):
        last = order == orders - 1
        outputs = [result for result in found if result.requires_grad]
        if not outputs or not leaves:
            break
        weights = [_weights(output) for output in outputs]
        found = [
            gradient
            for gradient in torch.autograd.grad(outputs, leaves, weights, create_graph=not last, allow_unused=True)
            if gradient is not None
        ]
        results += found
    return [result.detach() for result in results]


def _flat(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _flat(item)


def _weights(output: Tensor) -> Tensor:
    """What gradients of an output are weighted with: a few numbers that every dtype holds, the same on every device."""
    count = torch.arange(output.numel(), device="cpu").view(output.shape)
    return ((count % 7 - 3) / 4).to(output.dtype).to(output.device)


def fetched(results: list[Tensor] | Refused) -> list[Tensor] | Refused:
    """Results on the CPU; what the device finds wrong only while it runs is raised here."""
    if isinstance(results, Refused):
        return results
    try:
        return [result.cpu() for result in results]
    except (RuntimeError, IndexError, ZeroDivisionError) as error:
        return Refused(error)


def difference(ours: Any, theirs: Any, again: Callable[[Change], Any], terms: int) -> str:
    """What of the device's outcome is not as the CPU's, or ''. ``again`` computes that for tensors that are changed; as
    many numbers as ``terms`` may have been added for one."""
    if isinstance(theirs, Refused) or isinstance(ours, Refused):
        same = isinstance(theirs, Refused) and isinstance(ours, Refused) and ours.kind == theirs.kind
        return "" if same else f"{_shown(ours)} instead of {_shown(theirs)}"
    if len(ours) != len(theirs):
        return f"{len(ours)} results instead of {len(theirs)}"
    truth: Any = None
    for place, (one, other) in enumerate(zip(ours, theirs, strict=True)):
        if one.dtype != other.dtype or one.shape != other.shape:
            return f"{one.dtype} {tuple(one.shape)} instead of {other.dtype} {tuple(other.shape)}"
        one, other = _as_computed(one, theirs[0].dtype), _as_computed(other, theirs[0].dtype)
        if is_close(one, other):
            continue
        if other.dtype in _WIDE or other.dtype == torch.float64:
            truth = again(_widened) if truth is None else truth
            shaken = again(_shaken) if place and other.numel() < theirs[0].numel() else None  # a sum of gradients
            known, moved = (_at(place, each, theirs) for each in (truth, shaken))
            if within_rounding(one, other, known, moved, terms):
                continue
        apart = _apart(one, other)
        return f"result {place}: {_shown(one[apart])} instead of {_shown(other[apart])}"
    return ""


def _as_computed(gradient: Tensor, dtype: torch.dtype) -> Tensor:
    """The gradient of a number that is wider than the result, which has the result's ``dtype``, is computed in that."""
    is_float = gradient.dtype.is_floating_point and dtype.is_floating_point
    is_wider = is_float and torch.finfo(gradient.dtype).eps < torch.finfo(dtype).eps
    return gradient.to(dtype) if is_wider else gradient


def _apart(one: Tensor, other: Tensor) -> Tensor:
    """Where two tensors differ by more than a few units in the last place."""
    wide = torch.complex128 if other.is_complex() else torch.float64
    scale = CLOSE.get(other.real.dtype, 0) * (torch.finfo(other.dtype).eps if other.dtype in CLOSE else 0)
    return ~torch.isclose(one.to(wide), other.to(wide), rtol=scale, atol=0, equal_nan=True)


def _shown(value: Any) -> str:
    return str(value.tolist() if isinstance(value, Tensor) else value)[:160]


def _again(group: Group, source: Source, layout: str) -> Callable[[Change], Any]:
    def compute(change: Change) -> Any:
        changed = tuple(change(value) if isinstance(value, Tensor) else value for value in source)
        return outcome(group, changed, "cpu", layout)

    return compute


def _widened(value: Tensor) -> Tensor:
    return value.double() if value.dtype in _WIDE else value


def _shaken(value: Tensor) -> Tensor:
    """Elements that differ in their last bit, now up, now down."""
    if not value.is_floating_point():
        return value
    signs = 1 - 2 * (torch.arange(value.numel()).view(value.shape) % 2)
    return value * (1 + signs * torch.finfo(value.dtype).eps).to(value.dtype)


def _at(place: int, found: Any, theirs: list[Tensor]) -> Tensor | None:
    """A result of what was computed once more, if there are as many."""
    return found[place] if isinstance(found, list) and len(found) == len(theirs) else None


def turns(group: Group, least: int) -> Iterator[tuple[list[Source], str]]:
    """Tensors for a group and their layout, until there are ``least``; then a turn of another layout for every other
    group."""
    count = turn = 0
    while count < least and turn < TURNS:
        sources = group.make_sources(turn)
        yield sources, "dense"
        count, turn = count + len(sources), turn + 1
    chosen = zlib.crc32(group.label.encode()) % (2 * len(_LAYOUTS) - 2)
    if least > 1 and chosen in range(1, len(_LAYOUTS)):
        yield group.make_sources(turn), list(_LAYOUTS)[chosen]


def check(group: Group, device: str, way: str = "eager", least: int = 1) -> Iterator[tuple[Source, str]]:
    """What differs for each source of a group, '' where nothing does."""
    if way == "static":
        yield from _check_static(group, device)
        return
    call = outcome
    if way == "dynamic":
        group = dataclasses.replace(group, orders=1)
        call = _in_graphs_of_symbols(group)
    refusals = 0 if way == "eager" else REFUSALS
    for sources, layout in turns(group, least):
        for source in sources:
            theirs = outcome(group, source, "cpu", layout)
            refusals += isinstance(theirs, Refused)
            if isinstance(theirs, Refused) and refusals > REFUSALS:
                continue
            try:
                mine = fetched(call(group, source, device, layout))
            except torch._dynamo.exc.FailOnRecompileLimitHit:
                continue
            yield source, _judged(mine, theirs, group, source, layout)


def _in_graphs_of_symbols(group: Group) -> Callable[..., list[Tensor] | Refused]:
    """An :func:`outcome` that calls the group's function compiled, by at most as many graphs as ``GRAPHS``."""
    torch._dynamo.reset()
    compiled = dataclasses.replace(group, function=torch.compile(group.function, dynamic=True))
    limits = torch._dynamo.config.patch(recompile_limit=GRAPHS, fail_on_recompile_limit_hit=True)
    # Sizes that happen to be equal in the first call may differ later.
    apart = torch.fx.experimental._config.patch(use_duck_shape=False)
    return apart(limits(lambda _, *given: outcome(compiled, *given)))  # type: ignore[no-any-return]


def _judged(mine: Any, theirs: Any, group: Group, source: Source, layout: str = "dense") -> str:
    terms = max(64, *(value.numel() for value in source if isinstance(value, Tensor)))
    found = difference(mine, theirs, _again(group, source, layout), terms)
    return f"{layout}: {found}" if found and layout != "dense" else found


def _check_static(group: Group, device: str) -> Iterator[tuple[Source, str]]:
    group = dataclasses.replace(group, orders=1)
    sources = [s for s in group.make_sources(0) if not isinstance(outcome(group, s, "cpu"), Refused)][:TOGETHER]
    for source, mine in zip(sources, _compiled(group, sources, device), strict=True):
        yield source, _judged(mine, outcome(group, source, "cpu"), group, source)


def _compiled(group: Group, sources: Sequence[Source], device: str) -> list[list[Tensor] | Refused]:
    """The outcomes of one graph that computes all of them."""
    torch._dynamo.reset()
    run: Any = torch.compile(lambda arguments: [group.function(*each) for each in arguments], dynamic=False)
    placed = [[_placed(value, device) for value in source] for source in sources]
    try:
        results = [list(_flat(result)) for result in run(placed)]
        outputs = [result for each in results for result in each if result.requires_grad]
        leaves = [value for each in placed for value in each if isinstance(value, Tensor) and value.requires_grad]
        grads = torch.autograd.grad(outputs, leaves, list(map(_weights, outputs)), allow_unused=True) if outputs else ()
    except Exception as error:  # noqa: BLE001 - what the compiler raises is a finding
        return [Refused(error)] * len(sources)
    of_leaf = dict(zip(map(id, leaves), grads, strict=False))
    return [
        fetched([
            *(result.detach() for result in each),
            *(grad for value in values if (grad := of_leaf.get(id(value))) is not None),
        ])
        for each, values in zip(results, placed, strict=True)
    ]  # fmt: skip


def explanation(label: str, text: str, way: str) -> str:
    """Why a difference is known, or ''; patterns that begin with "compiled" are for graphs alone."""
    lines = [f"{label}: {text}", *([f"compiled {label}: {text}"] if way != "eager" else [])]
    return next((reason for pattern, reason in EXPLAINED if any(map(pattern.search, lines))), "")


def groups(families: Sequence[str], seed: int) -> list[tuple[str, Group]]:
    """The groups of these families, in an order that the seed decides."""
    found = [(name, group) for name in families for group in FAMILIES[name]()]
    random.Random(seed).shuffle(found)
    return found


@dataclass
class Sweep:
    """A run: how much of it, and what was found. ``path`` is where that is kept, every ``SAVED`` seconds."""

    device: str
    way: str = "eager"
    per_group: int = 1
    count: int = sys.maxsize
    seconds: float = float("inf")
    path: Path | None = None
    rows: dict[str, Row] = field(default_factory=dict)
    done: set[str] = field(default_factory=set)
    total: int = 0

    def run(self, found: Sequence[tuple[str, Group]]) -> None:
        """Takes groups, and their families, until there is enough."""
        begin = saved = time.monotonic()
        for name, group in found:
            if self.total >= self.count or time.monotonic() - begin > self.seconds:
                break
            if group.label in self.done:
                continue
            self._take(self.rows.setdefault(name, Row()), group)
            self.done.add(group.label)
            if time.monotonic() - saved > SAVED:
                saved = self.save()
        self.save()

    def _take(self, row: Row, group: Group) -> None:
        shown = 0
        for source, text in check(group, self.device, self.way, self.per_group):
            self.total += 1
            row.combinations += 1
            if not text:
                continue
            is_explained = bool(explanation(group.label, text, self.way))
            row.explained += is_explained
            row.different += not is_explained
            if not is_explained and shown < SHOWN:
                shown += 1
                row.examples.append(f"{group.label} {_described(source)}: {text}")
                print(row.examples[-1], flush=True)

    def load(self) -> None:
        """Goes on from what is kept."""
        if self.path is not None and self.path.exists():
            kept = json.loads(self.path.read_text())
            self.rows = {name: Row(**row) for name, row in kept["rows"].items()}
            self.done = set(kept["done"])

    def save(self) -> float:
        """Keeps what was found; returns the time."""
        if self.path is not None:
            rows = {name: vars(row) for name, row in self.rows.items()}
            self.path.write_text(json.dumps({"rows": rows, "done": sorted(self.done)}))
        return time.monotonic()


def main() -> int:
    """Runs the sweep; see the module."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--family", action="append", choices=FAMILIES, help="only these (all)")
    parser.add_argument("--match", default="", help="only groups whose label this regular expression finds")
    parser.add_argument("--count", type=int, default=sys.maxsize, help="combinations at most")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="how long groups are begun")
    parser.add_argument("--seed", type=int, default=0, help="decides which groups come first")
    parser.add_argument("--way", choices=WAYS, default="eager", help="how functions are called")
    parser.add_argument("--per-group", type=int, default=500, help="combinations that a group is given at least")
    parser.add_argument("--state", type=Path, help="a file of what was done, to go on from")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    device = torch._C._get_privateuse1_backend_name()
    sweep = Sweep(device, options.way, options.per_group, options.count, options.seconds, options.state)
    sweep.load()
    found = groups(options.family or list(FAMILIES), options.seed)
    sweep.run([(name, group) for name, group in found if re.search(options.match, group.label)])
    print(f"{sweep.total} combinations now, in all:\n\n{table(sweep.rows)}")
    return int(any(row.different for row in sweep.rows.values()))


def _described(source: Source) -> str:
    return ", ".join(
        f"{tuple(v.shape)} {v.flatten()[:4].tolist()}" if isinstance(v, Tensor) else repr(v) for v in source
    )


def table(rows: dict[str, Row]) -> str:
    """The rows and their sums, as a table."""
    whole = Row(
        *(sum(getattr(row, name) for row in rows.values()) for name in ("combinations", "different", "explained"))
    )
    lines = [f"{'family':16}{'combinations':>14}{'differences':>13}{'explained':>11}"]
    for name, row in [*sorted(rows.items()), ("all", whole)]:
        lines.append(f"{name:16}{row.combinations:14,}{row.different:13,}{row.explained:11,}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
