# SPDX-License-Identifier: Apache-2.0
"""Decompositions and lowerings against the CPU's own kernels, over grids of arguments (``decomposition_grid``).

Each combination of a function, its options and tensors is computed by PyTorch's eager kernels on the CPU and on the
device, forward and backward, twice where it says so, and compared: dtypes, sizes, exceptions, integers exactly, floats
within rounding, for which float64 decides where they differ; and nothing may run on the CPU but what ``on_cpu`` has a
reason for. What PyTorch's CPU itself has wrong stands in ``EXPLAINED`` with the reason. Exit code 1 if anything differs
beside it.

What costs is to compile, so each group is given tensors of many sizes and numbers, in turns, until it has had
``--per-group`` of them; every other group also tensors that are not dense. ``--way static`` gives some tensors of a
group to one graph of ``torch.compile``, ``--way dynamic`` all of them to graphs whose sizes are symbols. With
``--state FILE`` what was done is kept, so that a later run goes on; ``--seed`` decides which groups come first,
``--count`` how many combinations are taken.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import functools
import json
import logging
import math
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
import torch.nn.functional as F
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools import on_cpu
from tools.decomposition_grid import FAMILIES as FAMILIES_WITHIN_ROUNDING
from tools.decomposition_grid import Group, Source
from tools.exact_grid import exact
from tools.fuzz.compare import CLOSE, is_close, within_rounding

Change = Callable[[Tensor], Tensor]

#: Family -> its groups.
FAMILIES: dict[str, Callable[[], Iterator[Group]]] = {**FAMILIES_WITHIN_ROUNDING, "exact": exact}


@dataclass
class Difference:
    """What of a call of a group differs, in words; ``ours`` and ``theirs`` are the results in that ``place``, or None
    where the outcomes differ otherwise; ``part``: which of the group's functions, if it has several."""

    text: str
    place: int = -1
    ours: Any = None
    theirs: Any = None
    source: Source = ()
    layout: str = "dense"
    part: str = ""

    def apart(self) -> Tensor:
        """Where the results differ."""
        return _apart(self.ours, self.theirs)

    def apart_in_bits(self) -> Tensor:
        """Where the results differ in any bit."""
        return ~_same_bits(self.ours, self.theirs)


def _gradient_of_copies(label: str, found: Difference) -> bool:
    """The gradient of ``nearest`` in one and three dimensions, or of ``bicubic`` that keeps all sizes, where ours is of
    what the CPU computes."""
    if found.place != 1 or not re.match(r"(interpolate|upsample) (nearest\S* [13]d|bicubic) .*factor", label):
        return False
    group = next(group for group in FAMILIES["interpolation"]() if group.label == label)
    x, *options = found.source
    direction = torch.cos(torch.arange(x.numel(), dtype=torch.float64)).view(x.shape).to(x.dtype)
    result = group.function(direction, *options).double()
    ours = (found.ours.double() * direction.double()).sum()
    near = max(1e-4, 4 * torch.finfo(x.dtype).eps)
    return bool(torch.isclose(ours, (_weights(result) * result).sum(), rtol=near, atol=near))


def _antialiased(label: str, found: Difference) -> bool:
    """A result with ``antialias`` of which the CPU's own gradient is the gradient."""
    if found.place != 0 or "'antialias': True" not in label:
        return False
    group = next(group for group in FAMILIES["interpolation"]() if group.label == label)
    x = found.source[0].double()
    _, gradient = outcome(group, (x,), "cpu", found.layout)
    ours = found.ours.double()
    return bool(torch.isclose((_weights(ours) * ours).sum(), (gradient * x).sum(), rtol=1e-4, atol=1e-4))


def _nearest_of_two_dimensions(label: str, found: Difference) -> bool:
    """``nearest`` of one or three dimensions, where ours is what the CPU's kernel for two, or channels last, gives."""
    matched = re.match(r"interpolate (nearest\S*) ([13])d \S+ (\{.*)", label)
    if matched is None or found.place != 0:
        return False
    mode, dims, options = matched[1], int(matched[2]), ast.literal_eval(matched[3])
    (x,) = found.source
    if dims == 3:
        x = x.to(memory_format=torch.channels_last_3d)
    elif "size" in options:
        x, options["size"] = x.unsqueeze(2), (1, *options["size"])
    else:
        x, options["scale_factor"] = x.unsqueeze(2), (1.0, options["scale_factor"])
    return torch.equal(F.interpolate(x, mode=mode, **options).view(found.ours.shape), found.ours)


def _overflowing_factor(label: str, found: Difference) -> bool:
    """A difference of integers and a multiple of others, by a factor whose negative overflows: what wraps, as sums do
    on the CPU."""
    refused = isinstance(found.theirs, Refused) and "without overflow" in found.theirs.text
    if not label.startswith("sub alpha ") or not refused or isinstance(found.ours, Refused):
        return False
    x, factor = found.source
    exact = [(value - factor * (value + 3)) for value in x.tolist()]
    bits = torch.iinfo(x.dtype).bits
    return all((one - other) % 2**bits == 0 for one, other in zip(found.ours[0].tolist(), exact, strict=True))


def _refused_by_dtype(label: str, found: Difference) -> bool:
    """A wrong index in a dtype for which there is no kernel, on the CPU neither: whichever is found first."""
    both = isinstance(found.ours, Refused) and isinstance(found.theirs, Refused)
    return both and "not implemented for" in found.ours.text


def _power_beyond_exponents(label: str, found: Difference) -> bool:
    """``ldexp`` by integers beyond all exponents, where ours is zero or infinite as it must be."""
    if not label.startswith("ldexp ") or found.place != 0:
        return False
    x, exponent = torch.broadcast_tensors(*found.source)
    apart = found.apart()
    exact = x[apart].double() * torch.where(exponent[apart] > 0, torch.inf, 0.0)
    return bool((exponent[apart].double().abs() > 2**31).all()) and torch.equal(found.ours[apart].double(), exact)


def _mean_of_infinities(label: str, found: Difference) -> bool:
    """A mean, of numbers that are not all finite, that the CPU has as NaN."""
    if found.place != 1 or not re.match("(std|var)_mean ", label):
        return False
    finite = found.ours.isfinite() & found.theirs.isfinite()
    rest = within_rounding(found.ours[finite], found.theirs[finite], None, terms=found.source[0].numel())
    return rest and not found.source[0].isfinite().all() and bool(found.theirs[found.apart() & ~finite].isnan().all())


def _piece_for_nan(label: str, found: Difference) -> bool:
    """A gradient of a function in pieces, which differs only where the number is NaN."""
    if found.place < 1 or not re.match("(hardshrink|softshrink|relu6|hardtanh|elu|celu|selu|hardswish|logit) ", label):
        return False
    return bool(found.source[0][found.apart()].isnan().all())


def _nan_in_channels_last(label: str, found: Difference) -> bool:
    """Places of maxima, and gradients that go there, in a volume that has NaN and lies as channels last."""
    is_such = label.startswith("max_pool3d ") and found.layout == "channels last" and found.place > 0
    return is_such and bool(found.source[0].isnan().any())


def _rounded_sixth(label: str, found: Difference) -> bool:
    """Gradients of ``hardsigmoid`` in float64 that differ by no more than a sixth that is rounded to float32 does."""
    if not label.startswith("hardsigmoid float64 ") or found.place < 1:
        return False
    return torch.allclose(found.ours, found.theirs, rtol=2**-24, atol=0, equal_nan=True)


def _in_halves(label: str, found: Difference) -> bool:
    """A sum or a product of halves, where ours is the exact one, rounded."""
    matched = re.match(r"(prod|nansum) \S+ \((\d), torch\.float16\)", label)
    if matched is None or found.place != 0:
        return False
    function: Any = getattr(torch, matched[1])
    return is_close(found.ours, function(found.source[0].half().double(), int(matched[2])).half())


def _power_that_the_dtype_rounds(label: str, found: Difference) -> bool:
    """A power by a number, or its gradient, where ours is that by the number as the dtype rounds it."""
    if not re.match("pow .* float$", label) or found.place > 1:
        return False
    (x, number), apart = found.source, found.apart()
    exponent = torch.tensor(number - found.place, dtype=x.dtype).double()
    exact = x.double().pow(exponent)
    if found.place == 1:
        exact *= number * _weights(exact)
    return is_close(found.ours[apart], exact[apart].to(x.dtype))


def _bound_that_the_dtype_rounds(label: str, found: Difference) -> bool:
    """A gradient of ``logit`` of halves that differs only at the bounds, as the dtype rounds them, and of NaN."""
    if found.place < 1 or not label.startswith(("logit eps float16", "logit eps bfloat16")):
        return False
    x = found.source[0][found.apart()]
    return bool(((x == torch.tensor(0.1).to(x.dtype)) | (x == torch.tensor(0.9).to(x.dtype)) | x.isnan()).all())


def _graph_of_another_zero(label: str, found: Difference) -> bool:
    """A call with -0.0 whose results are those of 0.0."""
    numbers = [value for value in found.source if isinstance(value, float)]
    if numbers != [0.0] or math.copysign(1, numbers[0]) > 0 or not isinstance(found.ours, Tensor):
        return False
    group = next(group for group in FAMILIES["numbers"]() if group.label == label)
    other = outcome(group, tuple(abs(v) if isinstance(v, float) else v for v in found.source), "cpu", found.layout)
    return not isinstance(other, Refused) and is_close(found.ours, other[found.place])


def _untraced(label: str, found: Difference) -> bool:
    """A gradient that PyTorch's compiler cannot trace on the CPU, either: of a variance of as many elements as are
    taken off it divides by a number that is 0 in its example, of a power it compares a base that is a symbol with 0."""
    is_failure = isinstance(found.ours, Refused) and found.ours.kind is torch._dynamo.exc.BackendCompilerFailed
    if not is_failure or not re.match("((std|var)(_mean)?|rpow) ", label):
        return False
    group = next(group for family in FAMILIES.values() for group in family() if group.label == label)
    cpus = _in_graphs_of_symbols(dataclasses.replace(group, orders=1))(group, found.source, "cpu", found.layout)
    return isinstance(cpus, Refused) and cpus.kind is found.ours.kind


#: Of which differences it is known why, and why. Each is judged by its numbers.
EXPLAINED: list[tuple[Callable[[str, Difference], bool], str]] = [
    (_gradient_of_copies, "the CPU's gradient is of copies, its result is not"),
    (
        _antialiased,
        "the CPU copies sides that keep their sizes, and mistakes strides beside a side of 1; CUDA does not",
    ),
    (_nearest_of_two_dimensions, "the CPU's kernels round places in two ways; CUDA's as ours, and gradients on both"),
    (_overflowing_factor, "the CPU checks the factor of differences in some dtypes, and of sums in none"),
    (_refused_by_dtype, "the CPU looks at indices before it finds that there is no kernel"),
    (_power_beyond_exponents, "the CPU's vectors take the lowest bits of such exponents"),
    (_mean_of_infinities, "the CPU moves the mean on, so that an infinity makes NaN of it"),
    (_piece_for_nan, "of NaN, the CPU's vectors take another piece of the function than its single elements"),
    (_nan_in_channels_last, "for NaN, the CPU's kernel gives a place in its plane"),
    (_rounded_sixth, "the CPU multiplies by a sixth that is rounded to float32"),
    (_in_halves, "the CPU adds and multiplies in halves; CUDA in float32, as ours"),
    (
        _power_that_the_dtype_rounds,
        "the CPU takes exponents of single elements in float64, of vectors not; nor does CUDA",
    ),
    (_bound_that_the_dtype_rounds, "the CPU rounds bounds to the dtype; CUDA compares in float32, as ours"),
    (_untraced, "PyTorch's compiler cannot trace the gradient, on the CPU neither"),
    (_graph_of_another_zero, "PyTorch takes a graph that was made for 0.0 for -0.0"),
]


def _either_zero(found: Difference) -> bool:
    """Which of two zeros is the smaller or greater one, or the sign of one that has been made."""
    is_extreme = re.match("f?(min|max)|clamp_m|a?(min|max)( |$)|aminmax|cum(min|max) |softshrink", found.part)
    return is_extreme is not None and bool((found.ours[found.apart_in_bits()] == 0).all())


def _zero_of_halves(found: Difference) -> bool:
    """The sign of a zero that is chosen from float16 and a constant."""
    is_choice = re.match("where|relu|hardtanh", found.part) is not None and found.ours.dtype == torch.float16
    return is_choice and bool((found.ours[found.apart_in_bits()] == 0).all())


def _beyond_integers(found: Difference) -> bool:
    """Floats that the integers of 32 bits do not hold, as shorter ones."""
    apart = found.apart_in_bits()
    return re.match(r"to torch.u?int(8|16)", found.part) is not None and bool(
        (found.source[0][apart].abs() >= 2**31).all()
    )


def _remainder(a: float, b: float) -> float:
    """As PyTorch defines it: a zero has the dividend's sign, where Python's has the divisor's."""
    rest = math.fmod(a, b)
    return rest + b if rest and (rest < 0) != (b < 0) else rest


_EXACT: dict[str, Callable[..., float]] = {
    "sqrt": math.sqrt,
    "fmod": math.fmod,
    "remainder": _remainder,
    "sub 2": lambda a, b: a - 2 * b,
}


def _of_exact(found: Difference) -> bool:
    """Roots and remainders of floats, and sums of halves and multiples, where ours is the exact one, rounded once."""
    exact = _EXACT.get(found.part)
    if exact is None or (found.part == "sub 2" and found.ours.dtype not in (torch.float16, torch.bfloat16)):
        return False
    apart, dtype = found.apart_in_bits(), found.ours.dtype
    operands = [torch.as_tensor(x).to(dtype).expand(apart.shape)[apart].tolist() for x in found.source]
    truth = torch.tensor([exact(*each) for each in zip(*operands, strict=True)], dtype=torch.float64)
    return bool(_same_bits(found.ours[apart], truth.to(dtype)).all())


def _signalling(found: Difference) -> bool:
    """The other number than one of float32 that is a signalling NaN."""
    if found.part not in ("fmin", "fmax") or found.ours.dtype != torch.float32:
        return False
    apart = found.apart_in_bits()
    bits = torch.stack([x.expand(apart.shape)[apart].to(torch.float32).view(torch.int32) for x in found.source])
    is_signalling = (bits & 0x7FFFFFFF > 0x7F800000) & (bits & 0x400000 == 0)
    return bool(is_signalling.any(0).all() and found.theirs[apart].isnan().all())


#: The same, of results of which every bit is compared.
EXPLAINED_BITS: list[tuple[Callable[[Difference], bool], str]] = [
    (_either_zero, "the CPU's vectors have another zero than its single elements, by operator and dtype"),
    (_zero_of_halves, "clang has one instruction for two choices between a converted half and 0, whatever 0 it is"),
    (_beyond_integers, "C++ does not say what they become; on the CPU it is what its processor has"),
    (
        _of_exact,
        "the CPU's libraries of vectors round roots twice, and have no remainders of distant numbers; it rounds "
        "multiples of single halves",
    ),
    (_signalling, "C's libraries differ in whether a signalling NaN counts as missing; CUDA's does as ours"),
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
        self.kind, self.text = type(error), str(error).split("\n")[0][:150]

    def __repr__(self) -> str:
        return f"{self.kind.__name__}: {self.text}"


def _as_it_is(value: Tensor) -> Tensor:
    return value


def outcome(
    group: Group, source: Source, device: str, layout: str = "dense", change: Change = _as_it_is
) -> list[Tensor] | Refused:
    """Results, gradients and their gradients, as tensors on the device; or what was raised. ``change`` is made of the
    tensors and of what gradients are weighted with."""
    changed = [change(value) if isinstance(value, Tensor) else value for value in source]
    values = [_placed(value, device, layout, group.orders > 0) for value in changed]
    try:
        return _differentiated(group.function, values, group.orders, change)
    except (RuntimeError, IndexError, ValueError, TypeError, NotImplementedError, ZeroDivisionError) as error:
        return Refused(error)


def _placed(value: Any, device: str, layout: str, is_smooth: bool) -> Any:
    if not isinstance(value, Tensor):
        return value
    return _LAYOUTS[layout](value.to(device)).detach().requires_grad_(is_smooth and value.is_floating_point())


def _differentiated(
    function: Callable[..., Any], arguments: list[Any], orders: int, change: Change = _as_it_is
) -> list[Tensor]:
    found = [result for result in _flat(function(*arguments))]
    leaves = [value for value in arguments if isinstance(value, Tensor) and value.requires_grad]
    results = list(found)
    for order in range(orders):
        last = order == orders - 1
        outputs = [result for result in found if result.requires_grad]
        if not outputs or not leaves:
            break
        weights = [change(_weights(output)).to(output.dtype) for output in outputs]
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


def difference(ours: Any, theirs: Any, again: Callable[[Change], Any], source: Source = ()) -> Difference | None:
    """What of the device's outcome for ``source`` is not as the CPU's, or None. ``again`` computes that for tensors
    that are changed."""
    if isinstance(theirs, Refused) or isinstance(ours, Refused):
        same = isinstance(theirs, Refused) and isinstance(ours, Refused) and issubclass(ours.kind, theirs.kind)
        return None if same else Difference(f"{_shown(ours)} instead of {_shown(theirs)}", ours=ours, theirs=theirs)
    if len(ours) != len(theirs):
        return Difference(f"{len(ours)} results instead of {len(theirs)}")
    sizes = {value.numel() for value in (*source, *theirs) if isinstance(value, Tensor)}
    truth = shaken = None
    for place, (one, other) in enumerate(zip(ours, theirs, strict=True)):
        if one.dtype != other.dtype or one.shape != other.shape:
            form = f"{one.dtype} {tuple(one.shape)} instead of {other.dtype} {tuple(other.shape)}"
            return Difference(form, place)
        one, other = _as_computed(one, theirs[0].dtype), _as_computed(other, theirs[0].dtype)
        if is_close(one, other):
            continue
        if other.dtype in _WIDE or other.dtype == torch.float64:
            truth = again(_widened) if truth is None else truth
            # Where elements are added, what cancels is as exact as the elements are.
            shaken = [again(shake) for shake in _shakes(other.dtype) if _mixes(again)] if shaken is None else shaken
            known, *moved = (_at(place, each, theirs) for each in (truth, *shaken))
            if any(within_rounding(one, other, known, each, max(64, *sizes)) for each in (None, *moved)):
                continue
        found = Difference("", place, one, other)
        apart = found.apart()
        found.text = f"result {place}: {_shown(one[apart])} instead of {_shown(other[apart])}"
        return found
    return None


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
    has_floats = any(isinstance(value, Tensor) and value.is_floating_point() for value in source)
    if has_floats:
        return lambda change: outcome(group, source, "cpu", layout, change)
    plain = dataclasses.replace(group, orders=0)
    wide = tuple(value.double() if isinstance(value, Tensor) else value for value in source)
    return lambda change: outcome(plain, wide, "cpu", layout, change)


def _widened(value: Tensor) -> Tensor:
    return value.double() if value.dtype in _WIDE else value


def _shakes(dtype: torch.dtype) -> list[Change]:
    """Changes of tensors in the last bits with which a result of ``dtype`` is computed."""
    return [functools.partial(shake, least=torch.finfo(dtype).eps) for shake in (_shaken, _raised)]


def _shaken(value: Tensor, least: float) -> Tensor:
    """Elements that differ in their last bit, or by ``least``, some up, some down, along every dimension."""
    if not value.is_floating_point():
        return value
    up = torch.randint(0, 2, value.shape, generator=torch.Generator().manual_seed(0)).to(value.dtype)
    return value * (1 + (2 * up - 1) * max(torch.finfo(value.dtype).eps, least))


def _raised(value: Tensor, least: float) -> Tensor:
    """Elements that are greater in their last bit, or by ``least``."""
    return value + value.abs() * max(torch.finfo(value.dtype).eps, least) if value.is_floating_point() else value


def _first_changed(value: Tensor) -> Tensor:
    if not value.is_floating_point() or not value.numel():
        return value
    changed = value.clone()
    first = changed.view(-1)[0]
    changed.view(-1)[0] = 0.5 if not first.isfinite() or first + 1 == first else first + 1
    return changed


def _mixes(again: Callable[[Change], Any]) -> bool:
    """Whether elements of results are made of more than those in their places."""
    before, after = again(_as_it_is), again(_first_changed)
    if isinstance(before, Refused) or isinstance(after, Refused):
        return False
    return any(
        one.shape != other.shape or not torch.equal(one.flatten()[1:].nan_to_num(), other.flatten()[1:].nan_to_num())
        for one, other in zip(before, after, strict=True)
    )


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


def check(group: Group, device: str, way: str = "eager", least: int = 1) -> Iterator[tuple[Source, Difference | None]]:
    """What differs for each source of a group, None where nothing does."""
    if group.parts:
        yield from _check_bits(group, device, way, least)
        return
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
            fallbacks = torch.get_device_module(device).fallbacks()
            try:
                mine = fetched(call(group, source, device, layout))
            except torch._dynamo.exc.FailOnRecompileLimitHit:
                continue
            yield source, _judged(mine, theirs, group, source, layout) or _on_host(device, fallbacks, source, theirs)


def _on_host(device: str, before: dict[str, int], source: Source, theirs: list[Tensor] | Refused) -> Difference | None:
    """What ran on the CPU since ``before`` for no known reason."""
    if isinstance(theirs, Refused):
        return None
    dtypes = {value.dtype for value in (*source, *theirs) if isinstance(value, Tensor)}
    found = on_cpu.unexplained(on_cpu.new_fallbacks(device, before), dtypes)
    return Difference(f"{', '.join(found)} on the CPU") if found else None


def _in_graphs_of_symbols(group: Group) -> Callable[..., list[Tensor] | Refused]:
    """An :func:`outcome` that calls the group's function compiled, by at most as many graphs as ``GRAPHS``."""
    torch._dynamo.reset()
    compiled = dataclasses.replace(group, function=torch.compile(group.function, dynamic=True))
    limits = torch._dynamo.config.patch(recompile_limit=GRAPHS, fail_on_recompile_limit_hit=True)
    # Sizes that happen to be equal in the first call may differ later.
    apart = torch.fx.experimental._config.patch(use_duck_shape=False)
    return apart(limits(lambda _, *given: outcome(compiled, *given)))  # type: ignore[no-any-return]


def _judged(mine: Any, theirs: Any, group: Group, source: Source, layout: str = "dense") -> Difference | None:
    found = difference(mine, theirs, _again(group, source, layout), source)
    if found is not None:
        found.source, found.layout = source, layout
    return found


def _check_static(group: Group, device: str) -> Iterator[tuple[Source, Difference | None]]:
    group = dataclasses.replace(group, orders=1)
    sources = [s for s in group.make_sources(0) if not isinstance(outcome(group, s, "cpu"), Refused)][:TOGETHER]
    for source, mine in zip(sources, _compiled(group, sources, device), strict=True):
        yield source, _judged(mine, outcome(group, source, "cpu"), group, source)


def _check_bits(group: Group, device: str, way: str, least: int) -> Iterator[tuple[Source, Difference | None]]:
    """What differs in any bit from what the CPU's vectors and its single elements have, which ``gaps`` are."""
    if way == "static":
        sources = [(source, "dense") for source in group.make_sources(0)]
        apart = max(1, len(sources) // TOGETHER)
        sources = sources[::apart][:TOGETHER]
    else:
        sources = [(source, layout) for found, layout in turns(group, least) for source in found]
    calls = [(source, layout, _parts_on_cpu(group, source)) for source, layout in sources]
    if way == "eager":
        outcomes: Any = (_parts_of(group, source, device, layout) for source, layout, _ in calls)
    else:
        outcomes = _parts_compiled(group, calls, device, way)
    fallbacks = torch.get_device_module(device).fallbacks()
    for (source, layout, theirs), ours in zip(calls, outcomes, strict=True):
        for part, mine in ours.items():
            found = _bits_apart(mine, *theirs[part])
            found = found or _on_host(device, fallbacks, source, theirs[part][0])
            if found is not None:
                found.source, found.layout, found.part = source, layout, part
                found.text = f"{part}: {found.text}"
            yield source, found
        fallbacks = torch.get_device_module(device).fallbacks()


def _parts_of(group: Group, source: Source, device: str, layout: str) -> dict[str, list[Tensor] | Refused]:
    return {
        part: fetched(outcome(dataclasses.replace(group, function=function), source, device, layout))
        for part, function in group.parts.items()
    }


def _parts_on_cpu(group: Group, source: Source) -> dict[str, list[Any]]:
    """Each part's outcomes in vectors, and one element at a time."""
    both = [_parts_of(group, source, "cpu", layout) for layout in ("dense", "gaps")]
    return {part: [each[part] for each in both] for part in group.parts}


def _parts_compiled(group: Group, calls: Any, device: str, way: str) -> Iterator[dict[str, list[Tensor] | Refused]]:
    """The outcomes of one graph of all the parts that the CPU does not refuse: for all sources, or for each anew."""
    refused = {part for *_, theirs in calls for part, (one, _) in theirs.items() if isinstance(one, Refused)}
    parts = {part: function for part, function in group.parts.items() if part not in refused}
    whole = dataclasses.replace(group, function=lambda *x: [f(*x) for f in parts.values()])
    sources = [source for source, *_ in calls]
    if way == "static":
        results: Any = _compiled(whole, sources, device) if parts else [[]] * len(calls)
    else:
        run = _in_graphs_of_symbols(whole)
        results = (fetched(run(whole, source, device, layout)) for source, layout, _ in calls)
    for (*_, theirs), found in zip(calls, results, strict=True):
        rest = iter([] if isinstance(found, Refused) else found)
        yield {part: found if isinstance(found, Refused) else [next(rest) for _ in theirs[part][0]] for part in parts}


def _bits_apart(ours: Any, theirs: Any, singly: Any) -> Difference | None:
    """Where our results have other bits than both of the CPU's, NaN aside, whose bits say nothing."""
    if isinstance(ours, Refused) or isinstance(theirs, Refused):
        return difference(ours, theirs, lambda change: None)
    for place, (one, other, single) in enumerate(zip(ours, theirs, singly, strict=True)):
        if one.dtype != other.dtype or one.shape != other.shape:
            form = f"{one.dtype} {tuple(one.shape)} instead of {other.dtype} {tuple(other.shape)}"
            return Difference(form, place)
        wrong = ~(_same_bits(one, other) | _same_bits(one, single))
        if wrong.any():
            text = f"{int(wrong.sum())} of {wrong.numel()}, {_shown(one[wrong])} instead of {_shown(other[wrong])}"
            return Difference(text, place, one, other)
    return None


def _same_bits(one: Tensor, other: Tensor) -> Tensor:
    if not one.dtype.is_floating_point:
        return one == other
    return ((one == other) & (one.signbit() == other.signbit())) | (one.isnan() & other.isnan())


def _compiled(group: Group, sources: Sequence[Source], device: str) -> list[list[Tensor] | Refused]:
    """The outcomes of one graph that computes all of them."""
    torch._dynamo.reset()
    run: Any = torch.compile(lambda arguments: [group.function(*each) for each in arguments], dynamic=False)
    placed = [[_placed(value, device, "dense", group.orders > 0) for value in source] for source in sources]
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


def explanation(label: str, found: Difference) -> str:
    """Why a difference of a group is known, or ''."""
    if found.ours is None:
        return ""
    if found.part:
        if not isinstance(found.ours, Tensor):
            return ""
        return next((reason for is_known, reason in EXPLAINED_BITS if is_known(found)), "")
    return next((reason for is_known, reason in EXPLAINED if is_known(label, found)), "")


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
        for source, found in check(group, self.device, self.way, self.per_group):
            self.total += 1
            row.combinations += 1
            if found is None:
                continue
            is_explained = bool(explanation(group.label, found))
            row.explained += is_explained
            row.different += not is_explained
            if not is_explained and (shown < SHOWN or group.parts):
                shown += 1
                row.examples.append(f"{group.label} {_described(source)}: {found.layout}: {found.text}")
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
