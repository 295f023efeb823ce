# SPDX-License-Identifier: Apache-2.0
"""What carries out a product, a convolution or attention, kernels of our own or the driver's library: the faster.

The two are compared once per device and *shape class* (operator, dtype, how the operands lie, sizes by powers of two),
on made-up operands of typical sizes of the class, each followed by a small kernel: a library whose threads do not rest
after their work holds up whatever comes next. The winner is kept in ``libraries`` of the cache directory, a small file
for each class. Who finds none, or a damaged one, measures again.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import logging
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import sympy
import torch

from outboard import settings, trusted

from .. import progress, statistics
from ..kernels import common
from ..kernels.call import ExternCall
from ..plans import files
from ..plans import plan as p
from ..plans.builder import PlanBuilder, Size, TensorArg
from ..plans.schema import serialize
from ..plans.strided import product, span
from . import functions

if TYPE_CHECKING:
    from ..target import Target

_log = logging.getLogger(__name__)

#: Products of fewer operations are not worth a switch between libraries, which takes tens of microseconds; where
#: ``images`` are computed at once, those of one image, of which there may be as many.
TINY = 1 << 21
#: Most operations of a typical case on a processor, and images of a convolution: a few milliseconds.
MOST, IMAGES = 1 << 30, 1
#: The same where thousands of work-items run at once, which one image may not keep busy.
MOST_SIMT, IMAGES_SIMT = 1 << 34, 16
#: As many of one product of two matrices are measured on any device: some libraries are slow with large ones alone
#: (oneDNN 3.2 on a Cascade Lake: half of MKL's speed for squares of 1536, and 0.9 of it for a part of them with an
#: eighth of the operations).
MOST_PRODUCT = 1 << 32
#: Most elements of a matrix of which a typical case is a part.
_WHOLE = 1 << 24
#: Seconds after which no further round is measured, and most rounds.
RACE_SECONDS, ROUNDS = 0.03, 8
#: The driver's library must be this much faster.
MARGIN = 0.97
#: The operator of attention, and a length that its sequences keep in a typical case.
_ATTENTION, _SHORT = "_scaled_dot_product_flash_attention_for_cpu", 64
#: Attention of fewer queries is our own: a step of a generation has one more key each time, and libraries may compile a
#: kernel for each number of them, for about a second (cuDNN).
LEAST_QUERIES = 32
#: Calls in one run: work follows work.
CALLS = 2

_FOLLOW = r"""
OB_KERNEL void follow(OB_GLOBAL Y_T* y, const long count) {
  OB_FOR(i, count) { Y_STORE(y, i, (Y_LOAD(y, i)) / 2); }
}
"""


@dataclasses.dataclass(frozen=True)
class ShapeClass:
    """What is decided alike. ``exact`` numbers count as they are, ``sizes`` by their number of binary digits."""

    operator: str  #: "mm", "bmm", "convolution", "convolution_backward" or "attention"
    dtype: torch.dtype
    exact: tuple[int, ...]
    sizes: tuple[int, ...]


@dataclasses.dataclass
class Case:
    """A typical call of a class; ``tensors`` are those that its plan takes, in order."""

    call: ExternCall
    tensors: list[TensorArg]


def driver_is_faster(builder: PlanBuilder, call: ExternCall) -> bool:
    """Whether a call goes to the driver's library, which has a function for it. For sizes that a plan knows at run time
    only, it is then restricted to those of the class. Measures if that has not been done on this machine, which takes
    some 50 ms."""
    found = _classify(builder, call)
    return found is not None and _decide(builder.target, found)


def attention_is_faster(
    target: Target, dtype: torch.dtype, query: Sequence[int], key: Sequence[int], causal: bool
) -> bool:
    """The same of attention without a plan: for sizes of queries and keys, (batches, heads, number, width)."""
    try:
        shapes = _attention_class(dtype, query, key, causal, _KnownSizes())
    except _Unknown:
        return False
    return operations(shapes) >= TINY and _decide(target, shapes)


@functools.lru_cache(maxsize=4096)
def _decide(target: Target, shapes: ShapeClass) -> bool:
    path = _path(target, shapes)
    winner = None if path is None else read(path)
    if winner is None:
        try:
            with progress.task(f"measured {shapes.operator}", graphs=0):
                seconds = measure(target, typical(shapes, *_budget(target)))
        except RuntimeError:
            _log.warning("%s: kernels of our own, because nothing could be measured", shapes, exc_info=True)
            return False
        statistics.add("measurements")
        winner = "driver" if seconds["driver"] < MARGIN * seconds["dialect"] else "dialect"
        _log.info("%s: %s (%s)", shapes, winner, seconds)
        if path is not None:
            write(path, winner)
    return winner == "driver"


# ---- classes ----


class _Unknown(Exception):
    """A size without a value to go by, or a call that no class is for."""


class _Sizes:
    """Makes classes of sizes, and has the builder assume that run-time sizes are of the same class."""

    def __init__(self, builder: PlanBuilder) -> None:
        self._builder = builder
        self._conditions: list[sympy.Basic] = []

    def value(self, size: Size) -> int:
        value = self._builder.hint(size)
        if value is None:
            raise _Unknown
        return value

    def exact(self, size: Size) -> int:
        value = self.value(size)
        self._conditions.append(sympy.Eq(sympy.sympify(size), value))
        return value

    def digits(self, size: Size) -> int:
        expr, count = sympy.sympify(size), self.value(size).bit_length()
        if count:
            self._conditions += [sympy.Ge(expr, 1 << (count - 1)), sympy.Lt(expr, 1 << count)]
        return count

    def assume(self) -> None:
        for condition in self._conditions:
            self._builder.assume(condition)


def _classify(builder: PlanBuilder, call: ExternCall) -> ShapeClass | None:
    """The class of a call; None if there is a rule: tiny work, and what is not listed here, is our own kernels'."""

    name = call.name.removeprefix("aten::").partition(".")[0]
    sizes = _Sizes(builder)
    try:
        values = call.bind()
        if name in ("convolution", "convolution_backward"):
            shapes = _convolution_class(name, values, sizes)
        elif name == _ATTENTION:
            query, key = values["query"], values["key"]
            shapes = _attention_class(query.dtype, query.sizes, key.sizes, bool(values["is_causal"]), sizes)
        else:
            shapes = _product_class(name, values, sizes)
    except _Unknown:
        return None
    sizes.assume()
    return None if operations(shapes) * _budget(builder.target)[1] < TINY else shapes


def _product_class(name: str, values: dict[str, Any], sizes: _Sizes) -> ShapeClass:
    if name == "linear":
        a, weight = values["input"], values["weight"]
        if len(weight.sizes) != 2 or not a.sizes:
            raise _Unknown
        b_along_k = weight.strides[1] == 1
        counts = [1, product(a.sizes[:-1]), weight.sizes[0], weight.sizes[1]]
    elif name in ("mm", "bmm", "addmm", "baddbmm"):
        pairs = (("self", "mat2"), ("mat1", "mat2"), ("batch1", "batch2"))
        a, b = next((values[i], values[j]) for i, j in reversed(pairs) if i in values and j in values)
        b_along_k = b.strides[-2] == 1 and b.strides[-1] != 1
        counts = [1 if len(a.sizes) == 2 else a.sizes[0], a.sizes[-2], b.sizes[-1], a.sizes[-1]]
    else:
        raise _Unknown
    if not a.dtype.is_floating_point:
        raise _Unknown
    operator = "mm" if counts[0] == 1 else "bmm"
    exact = (int(a.strides[-1] == 1), int(b_along_k))
    return ShapeClass(operator, a.dtype, exact, tuple(sizes.digits(count) for count in counts))


def _convolution_class(name: str, values: dict[str, Any], sizes: _Sizes) -> ShapeClass:
    """Its sizes are the weight's channels, of a group, and the places of the source."""
    x, weight = values["input"], values["weight"]
    rank = len(weight.sizes) - 2
    if not 1 <= rank <= 3 or not x.dtype.is_floating_point:
        raise _Unknown
    lists = [common.int_list(values[key], rank) for key in ("stride", "padding", "dilation", "output_padding")]
    groups = sizes.exact(values["groups"])
    if any(items is None for items in lists) or groups < 1:
        raise _Unknown
    # Of images of one place nothing says how they lie.
    last = sizes.value(x.strides[1]) == 1 and any(sizes.value(size) > 1 for size in x.sizes[2:])
    exact = [rank, int(bool(values["transposed"])), int(last), groups, *map(sizes.exact, weight.sizes[2:])]
    exact += [sizes.exact(item) for items in lists for item in items or ()]
    if name == "convolution_backward":
        mask = [int(flag) for flag in list(values["output_mask"])[:2]]
        if not any(mask):
            raise _Unknown
        exact += mask
    outer = weight.sizes[0] if groups == 1 else sizes.exact(weight.sizes[0]) // groups
    counts = [sizes.digits(size) for size in (outer, weight.sizes[1], *x.sizes[2:])]
    return ShapeClass(name, x.dtype, tuple(exact), tuple(counts))


def _attention_class(
    dtype: torch.dtype, query: Sequence[Size], key: Sequence[Size], causal: bool, sizes: _Sizes | _KnownSizes
) -> ShapeClass:
    if sizes.value(query[2]) < LEAST_QUERIES:
        raise _Unknown
    exact = (sizes.exact(query[1]), sizes.exact(key[1]), sizes.exact(query[3]), int(causal))
    return ShapeClass("attention", dtype, exact, tuple(sizes.digits(size) for size in (query[0], query[2], key[2])))


class _KnownSizes:
    """The same for sizes that are known, where there is no plan."""

    def value(self, size: Size) -> int:
        return int(size)

    exact = value

    def digits(self, size: Size) -> int:
        return int(size).bit_length()


# ---- typical cases ----


def _middle(digits: int) -> int:
    """The middle of the numbers with so many binary digits."""
    return digits if digits < 2 else 3 << (digits - 2)


def _budget(target: Target) -> tuple[int, int]:
    """Most operations of a typical case for a device, and most images of a convolution's."""
    return (MOST, IMAGES) if target.tuning.vectors else (MOST_SIMT, IMAGES_SIMT)


def operations(shapes: ShapeClass) -> int:
    """Floating-point operations of a typical call, if it were not made smaller (of a convolution: for one image)."""
    counts = [_middle(digits) for digits in shapes.sizes]
    if shapes.operator.startswith("convolution"):
        rank, _, _, groups = shapes.exact[:4]
        counts += [groups, *shapes.exact[4 : 4 + rank]]
    if shapes.operator == "attention":
        counts += [2, shapes.exact[0], shapes.exact[2]]
    return 2 * int(product(counts))


def typical(shapes: ShapeClass, most: int = MOST, images: int = IMAGES) -> Case:
    """A call in the middle of a class, of fewer batches, rows, columns or places if it would take more than ``most``
    operations (one product: than ``MOST_PRODUCT``, if that is more); a convolution of so many ``images`` if they take
    no more than that."""
    if shapes.operator == "attention":
        return _typical_attention(shapes, most)
    if shapes.operator.startswith("convolution"):
        return _typical_convolution(shapes, most, images)
    return _typical_product(shapes, max(most, MOST_PRODUCT) if shapes.operator == "mm" else most)


def _typical_product(shapes: ShapeClass, most: int) -> Case:
    batches, m, n, k = (_middle(digits) for digits in shapes.sizes)
    whole_m, whole_n = (size if size * k <= _WHOLE else 0 for size in (m, n))
    while 2 * batches * m * n * k > most and max(batches, m, n) > 1:
        if batches > 1:
            batches = (batches + 1) // 2
        elif m >= n:
            m = (m + 1) // 2
        else:
            n = (n + 1) // 2
    a_along_k, b_along_k = shapes.exact
    # Rows that were cut lie as far apart as whole ones: where these are a multiple of a page, libraries take longer.
    m_step, n_step = max(m, whole_m), max(n, whole_n)
    a_strides = (m * k, k, 1) if a_along_k else (m_step * k, 1, m_step)
    b_strides = (n * k, 1, k) if b_along_k else (n_step * k, n_step, 1)
    parts = [((batches, m, k), a_strides), ((batches, k, n), b_strides), ((batches, m, n), (m * n, n, 1))]
    first = 1 if shapes.operator == "mm" else 0
    a, b, out = (
        TensorArg(number, shapes.dtype, _sizes(size[first:]), _sizes(stride[first:]))
        for number, (size, stride) in enumerate(parts)
    )
    return Case(ExternCall(f"aten::{shapes.operator}.out", [a, b], {"out": out}, []), [a, b, out])


def _typical_convolution(shapes: ShapeClass, most: int, images: int) -> Case:
    rank, transposed, last, groups, *rest = shapes.exact
    kernel, stride, padding, dilation, more = (rest[i * rank : (i + 1) * rank] for i in range(5))
    mask = rest[5 * rank :]
    reach = [(size - 1) * step + 1 for size, step in zip(kernel, dilation, strict=True)]
    steps = [*zip(reach, stride, padding, more, strict=True)]
    outer, inner, *places = (_middle(digits) for digits in shapes.sizes)
    # A transposed one makes at least one place of as many.
    least = [1 + max(0, (2 * pad - taps - extra) // step + 1) for taps, step, pad, extra in steps]
    least = least if transposed else reach
    places = [max(size, few) for size, few in zip(places, least, strict=True)]
    weights = [groups * outer, inner, *kernel]
    while 2 * int(product([*weights, *places])) > most and places != least:
        places = [max((size + 1) // 2, few) for size, few in zip(places, least, strict=True)]
    images = max(1, min(images, most // (2 * int(product([*weights, *places])))))
    made = [
        (size - 1) * step - 2 * pad + taps + extra if transposed else (size + 2 * pad - taps) // step + 1
        for size, (taps, step, pad, extra) in zip(places, steps, strict=True)
    ]
    channels = (outer, inner) if transposed else (inner, outer)
    source_sizes, target_sizes = (
        [images, groups * each, *sizes] for each, sizes in zip(channels, (places, made), strict=True)
    )
    source, weight, target, grad_source, grad_weight = (
        _dense(number, shapes.dtype, sizes, bool(last))
        for number, sizes in enumerate([source_sizes, weights, target_sizes, source_sizes, weights])
    )
    shared: list[Any] = [stride, padding, dilation, bool(transposed), more, groups]
    if shapes.operator == "convolution":
        call = ExternCall("aten::convolution", [source, weight, None, *shared], {}, [target])
        return Case(call, [source, weight, target])
    wanted = [bool(flag) for flag in mask]
    results = [result for result, flag in zip((grad_source, grad_weight), wanted, strict=True) if flag]
    arguments = [target, source, weight, None, *shared, [*wanted, False]]
    call = ExternCall("aten::convolution_backward", arguments, {}, results)
    return Case(call, [source, weight, target, grad_source, grad_weight])


def _typical_attention(shapes: ShapeClass, most: int) -> Case:
    """Heads lie as a model's projections leave them, inside of the sequence. A sequence is not made shorter than what
    libraries are for."""
    heads, key_heads, width, causal = shapes.exact
    batches, queries, keys = (_middle(digits) for digits in shapes.sizes)
    while 4 * batches * heads * queries * keys * width > most and max(batches - 1, queries - _SHORT, keys - _SHORT) > 0:
        if batches > 1:
            batches = (batches + 1) // 2
        elif queries >= keys:
            queries = max((queries + 1) // 2, _SHORT)
        else:
            keys = max((keys + 1) // 2, _SHORT)

    def tensor(number: int, count: int, length: int) -> TensorArg:
        strides = (length * count * width, width, count * width, 1)
        return TensorArg(number, shapes.dtype, _sizes((batches, count, length, width)), _sizes(strides))

    query, key, value, out = (
        tensor(number, count, length)
        for number, (count, length) in enumerate(
            [(heads, queries), (key_heads, keys), (key_heads, keys), (heads, queries)]
        )
    )
    strides = _sizes((queries * heads, 1, heads))
    logarithms = TensorArg(4, torch.float32, _sizes((batches, heads, queries)), strides)
    call = ExternCall(f"aten::{_ATTENTION}", [query, key, value, 0.0, bool(causal)], {}, [out, logarithms])
    return Case(call, [query, key, value, out, logarithms])


def _sizes(values: Sequence[int]) -> tuple[Size, ...]:
    return tuple(sympy.Integer(value) for value in values)


def _dense(number: int, dtype: torch.dtype, sizes: Sequence[int], channels_last: bool) -> TensorArg:
    order = [0, *range(2, len(sizes)), 1] if channels_last else range(len(sizes))
    strides, step = [0] * len(sizes), 1
    for dim in reversed(order):
        strides[dim] = step
        step *= sizes[dim]
    return TensorArg(number, dtype, _sizes(sizes), _sizes(strides))


# ---- measuring ----


def measure(target: Target, case: Case) -> dict[str, float]:
    """Seconds that "dialect" and "driver" take for a case (see :func:`race`). Raises RuntimeError if a
    program cannot be built, the library has no function for the case, or memory is short.

    Another thread does it, whose streams and modes are its own: whatever this one traces, or records, goes on after."""
    found: dict[str, float] = {}
    failure: list[BaseException] = []

    def work() -> None:
        try:
            found.update(_measure(target, case))
        except BaseException as error:  # handed to the thread that waits
            failure.append(error)

    thread = threading.Thread(target=work, name="outboard-measure")
    thread.start()
    thread.join()
    if failure:
        raise RuntimeError("the libraries could not be compared") from failure[0]
    return found


def _measure(target: Target, case: Case) -> dict[str, float]:
    from outboard import _C

    from ..target import index_of

    index = index_of(target)
    device = torch.device(torch._C._get_privateuse1_backend_name(), index)
    operands = [
        torch.ones(span(tensor.sizes, tensor.strides), dtype=tensor.dtype).to(device) for tensor in case.tensors
    ]
    runs = {name: _C.Plan(serialize(_plan(target, case, name)), index) for name in ("dialect", "driver")}
    return race({name: functools.partial(_run, plan, operands, device) for name, plan in runs.items()})


def _run(plan: Any, operands: list[torch.Tensor], device: torch.device) -> None:
    plan.run(list(operands))
    torch.accelerator.synchronize(device)


def race(runs: dict[str, Callable[[], None]], clock: Callable[[], float] = time.perf_counter) -> dict[str, float]:
    """The median time of each run, in seconds, in turns after one turn that does not count. (The least would forgive a
    library that now and then waits for cores which others use.)"""
    for run in runs.values():
        run()
    times: dict[str, list[float]] = {name: [] for name in runs}
    begun = clock()
    for _ in range(ROUNDS):
        for name, run in runs.items():
            start = clock()
            run()
            times[name].append(clock() - start)
        if clock() - begun > RACE_SECONDS:
            break
    return {name: median(seconds) for name, seconds in times.items()}


def _plan(target: Target, case: Case, name: str) -> p.Plan:
    from .. import kernels

    builder = PlanBuilder(target)
    for _ in case.tensors:
        builder.add_input(p.InputKind.TENSOR)
    for _ in range(CALLS):
        if name == "driver":
            functions.append(builder, case.call)
        elif not kernels.lower(builder, case.call):
            builder.call(case.call.name, case.call.args, case.call.kwargs, case.call.results, fallback=True)
        written = case.call.outputs()[0]
        follow = builder.kernel(common.source(builder, _FOLLOW, {}, {"Y": written.dtype}), "follow")
        count = written.numel()
        common.launch_items(builder, follow, count, [builder.pointer(written), builder.int64(count)])
    return builder.finish()


# ---- what is known ----


def _path(target: Target, shapes: ShapeClass) -> Path | None:
    base = settings.cache_directory()
    if base is None:
        return None
    what = f"{target.plan_key} {shapes}"
    name = hashlib.sha256(files.compiler_fingerprint() + what.encode()).hexdigest()
    return base / "libraries" / name


def read(path: Path) -> str | None:
    """The winner that a file names; None if there is no file, or it is damaged."""
    try:
        text = trusted.read(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        trusted.say_once("which library is faster is not known", error)
        return None
    winner = next((name for name in ("dialect", "driver") if text == _text(path, name)), None)
    if winner is None:
        _log.warning("ignoring damaged cache file %s", path)
        return None
    trusted.mark_used(path)
    return winner


def write(path: Path, winner: str) -> None:
    """Keeps a winner; the file appears as a whole. What cannot be written is measured again in the next process."""
    if settings.writable_cache_directory() is None:
        return
    try:
        trusted.write(path, _text(path, winner))
    except OSError as error:
        trusted.say_once("which library is faster is not kept", error)


def _text(path: Path, winner: str) -> bytes:
    """A file's content; its name is the whole key."""
    return json.dumps({"version": 3, "key": path.name, "winner": winner}).encode() + b"\n"
