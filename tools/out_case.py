# SPDX-License-Identifier: Apache-2.0
"""One OpInfo, and each ATen operator that it calls, with ``out=`` tensors that already are something: on the device and
on the CPU, the memory around them, their shape and strides, warnings and exceptions are compared; where numbers differ,
float64 decides. What the CPU does is seen in processes of their own: some of its kernels write beside such tensors.
Runs in a process of its own; see ``opinfo.py --check out``."""

from __future__ import annotations

import io
import itertools
import os
import re
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import torch
from messages import plain
from metadata_case import LAYOUTS, UNDEFINED_STRIDES, _moved
from opinfo_case import UNINITIALISED, Outcome, new_fallbacks, tolerances
from torch import Tensor
from torch.testing._comparison import default_tolerances
from torch.testing._internal.opinfo.core import OpInfo, SampleInput
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

#: What memory holds before a call. Nothing computes it.
FILLED_WITH = 97
#: Operators whose results are random: only what is around them is compared.
_RANDOM = re.compile(
    r"rand|normal|bernoulli|multinomial|poisson|binomial|dropout|exponential|gamma|dirichlet|uniform|rrelu"
)


@dataclass(frozen=True)
class Geometry:
    """Where an ``out=`` tensor lies in its memory, in elements."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0

    def made(self, dtype: torch.dtype, device: str) -> tuple[Tensor, Tensor]:
        """The tensor and all of its memory, with some elements behind it."""
        reach = (
            sum((n - 1) * s for n, s in zip(self.sizes, self.strides, strict=True)) + 1 if 0 not in self.sizes else 0
        )
        # Kernels that take any strides for contiguous ones stay inside.
        size = self.offset + max(reach, torch.Size(self.sizes).numel()) + 5
        base = torch.full((size,), FILLED_WITH, dtype=torch.float32).to(dtype).to(device)
        return base.as_strided(self.sizes, self.strides, self.offset), base


def _dense(sizes: tuple[int, ...], offset: int = 0) -> Geometry:
    return Geometry(sizes, torch.empty(sizes, device="meta").stride(), offset)


def _gaps(sizes: tuple[int, ...]) -> Geometry:
    return Geometry(sizes, tuple(2 * step for step in _dense(sizes).strides), 1)


def _transposed(sizes: tuple[int, ...]) -> Geometry:
    return Geometry(sizes, tuple(reversed(_dense(sizes[::-1]).strides)))


def _channels_last(sizes: tuple[int, ...]) -> Geometry | None:
    if len(sizes) not in (4, 5):
        return None
    kept = torch.channels_last if len(sizes) == 4 else torch.channels_last_3d
    return Geometry(sizes, torch.empty(sizes, device="meta").to(memory_format=kept).stride())


def _rows(sizes: tuple[int, ...]) -> Geometry | None:
    """As many elements in two dimensions, with a gap behind each row."""
    count = torch.Size(sizes).numel()
    divisor = next((n for n in (2, 3, 5) if count % n == 0 and count), None)
    if divisor is None or tuple(sizes) == (divisor, count // divisor):
        return None
    return Geometry((divisor, count // divisor), (count // divisor + 1, 1), 1)


def _expanded(sizes: tuple[int, ...]) -> Geometry | None:
    return Geometry(sizes, (0,) * len(sizes)) if torch.Size(sizes).numel() > 1 else None


#: Ways for an ``out=`` tensor to lie, by the shape of the result; nothing where one does not exist.
GEOMETRIES: dict[str, Callable[[tuple[int, ...]], Geometry | None]] = {
    "empty": lambda sizes: _dense((0,)),
    "right": _dense,
    "offset": lambda sizes: _dense(sizes, 3),
    "gaps": _gaps,
    "transposed": _transposed,
    "channels_last": _channels_last,
    "rows": _rows,
    "flat": lambda sizes: _dense((torch.Size(sizes).numel(),)) if len(sizes) != 1 else None,
    "larger": lambda sizes: _dense((torch.Size(sizes).numel() + 3,)),
    "smaller": lambda sizes: _dense((max(1, torch.Size(sizes).numel() - 1), 1)),
    "transposed empty": lambda sizes: (
        Geometry((*sizes[:-1], 0), _transposed((*sizes[:-1], 0)).strides) if sizes else None
    ),
    "expanded": _expanded,
}
#: Seconds that a process may take which makes calls on the CPU: one that has written beside its memory may never end.
_LONGEST = 60
#: Other dtypes that are asked for.
DTYPES = (torch.float64, torch.int64, torch.complex64, torch.float16, torch.bool)


class _Recorder(TorchDispatchMode):
    """Remembers the calls of ATen operators below autograd."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kept = tree_map(
            lambda x: x.detach().clone(memory_format=torch.preserve_format) if isinstance(x, Tensor) else x,
            (args, kwargs or {}),
        )
        self.calls.append((func, *kept))
        return func(*args, **(kwargs or {}))


def out_variant(operator: Any) -> tuple[Any, list[str]] | None:
    """The overload of an ATen operator that writes its results to arguments, and the names of these."""
    schema = operator._schema
    if schema.is_mutable:
        return None
    given = [(a.name, str(a.type)) for a in schema.arguments]
    factory = ("dtype", "layout", "device", "pin_memory")
    given = [entry for entry in given if entry[0] not in factory]
    packet = operator.overloadpacket
    for name in packet.overloads():
        other = getattr(packet, name)
        outs = [a.name for a in other._schema.arguments if a.is_out]
        rest = [(a.name, str(a.type)) for a in other._schema.arguments if not a.is_out]
        if outs and [entry for entry in rest if entry[0] not in factory] == given:
            return other, outs
    return None


@dataclass
class Call:
    """A call without ``out=`` tensors, and how to make it with them."""

    name: str
    function: Callable[[SampleInput], Any]
    into: Callable[[SampleInput, tuple[Tensor, ...]], Any]
    sample: SampleInput


_seen: dict[str, int] = {}


def calls(op: OpInfo, dtype: torch.dtype, samples: int) -> Iterator[Call]:
    """The OpInfo itself, where it takes ``out=``, and the ATen operators below it that were not met before."""
    recorded: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = []
    for number, sample in enumerate(islice(op.sample_inputs("cpu", dtype, requires_grad=False), samples)):
        if any(
            isinstance(leaf, Tensor) and leaf.layout != torch.strided
            for leaf in tree_leaves((sample.input, sample.args, sample.kwargs))
        ):
            continue
        if op.supports_out:
            yield Call(
                f"{op.name}[{number}]",
                lambda s: op(s.input, *s.args, **s.kwargs),
                lambda s, outs: op(s.input, *s.args, **s.kwargs, out=outs if len(outs) > 1 else outs[0]),
                sample,
            )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            recorded += _recorded(op, sample)
    for operator, args, kwargs in recorded:
        found = out_variant(operator)
        if found is None or _seen.setdefault(str(operator), 0) >= samples:
            continue
        _seen[str(operator)] += 1
        other, names = found
        accepted = {a.name for a in other._schema.arguments}

        def into(
            s: SampleInput, outs: tuple[Tensor, ...], other: Any = other, names: Any = names, accepted: Any = accepted
        ) -> Any:
            kept = {key: value for key, value in s.kwargs.items() if key in accepted}
            return other(*s.args, **kept, **dict(zip(names, outs, strict=True)))

        yield Call(
            str(other),
            lambda s, operator=operator: operator(*s.args, **s.kwargs),
            into,
            SampleInput(None, args=args, kwargs=kwargs),
        )


def _recorded(op: OpInfo, sample: SampleInput) -> list[Any]:
    """The ATen calls of a sample, forward and, where it has one, backward."""
    wanted = sample.transform(
        lambda v: (
            v.clone().requires_grad_()
            if isinstance(v, Tensor) and op.supports_autograd and (v.is_floating_point() or v.is_complex())
            else v
        )
    )
    with _Recorder() as recorder:
        try:
            result = op(wanted.input, *wanted.args, **wanted.kwargs)
            parts = [x for x in tree_leaves(result) if isinstance(x, Tensor) and x.requires_grad]
            if parts:
                torch.autograd.backward(parts, [torch.ones_like(x) for x in parts])
        except Exception:  # noqa: BLE001 - what the CPU does not do is not asked for
            return recorder.calls
    return recorder.calls


#: Makes ``out=`` tensors, and all of the memory of each, for a sample on a device.
Make = Callable[[str, SampleInput], tuple[list[Tensor], list[Tensor]]]


@dataclass
class Seen:
    """What a call with ``out=`` did: warnings, the exception, and the tensors with the memory that they had before."""

    warnings: list[str]
    error: str
    message: str
    outs: tuple[Tensor, ...]
    bases: tuple[Tensor, ...]

    def raised(self) -> str:
        return f"{self.error or 'nothing'}: {self.message[:120]!r}"

    def forms(self) -> list[Any]:
        return [
            (tuple(x.shape), _steps(x), x.storage_offset(), x.dtype, x.device.type == self.bases[0].device.type)
            for x in self.outs
        ]


def _steps(x: Tensor) -> Any:
    return tuple(s if n > 1 else "-" for n, s in zip(x.shape, x.stride(), strict=True)) if x.numel() else "any"


def observed(call: Call, sample: SampleInput, outs: list[Tensor], bases: list[Tensor], device: str) -> Seen:
    """Makes a call with ``out=`` tensors."""
    torch.manual_seed(0)
    error = message = ""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            call.into(sample, tuple(outs))
            if bases[0].device.type == device:
                torch.accelerator.synchronize()
        except Exception as raised:  # noqa: BLE001 - compared
            error, message = type(raised).__name__, plain(str(raised), device)
    texts = [f"{one.category.__name__}: {plain(str(one.message), device)[:200]}" for one in caught]
    return Seen([text for text in texts if "runs on the CPU" not in text], error, message, tuple(outs), tuple(bases))


def on_cpu(call: Call, makes: list[Make], device: str) -> list[Seen | None]:
    """What a call does on the CPU with each kind of ``out=``; None where that ends the process."""
    seen: list[Seen | None] = []
    while len(seen) < len(makes):
        seen += _in_child(call, makes[len(seen) :], device)
        if len(seen) < len(makes):
            seen.append(None)
    return seen


def _in_child(call: Call, makes: list[Make], device: str) -> list[Seen]:
    """What a process that makes these calls has seen before its end."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.alarm(_LONGEST)
        try:
            with os.fdopen(writer, "wb") as pipe:
                for make in makes:
                    sample, found = own_storages(call.sample), io.BytesIO()
                    torch.save(observed(call, sample, *make("cpu", sample), device), found)
                    pipe.write(len(found.getvalue()).to_bytes(8, "little") + found.getvalue())
                    pipe.flush()
        except BaseException:  # noqa: BLE001 - the parent sees what is missing
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(0)
    os.close(writer)
    seen = []
    with os.fdopen(reader, "rb") as pipe:
        while len(head := pipe.read(8)) == 8:
            size = int.from_bytes(head, "little")
            if len(data := pipe.read(size)) == size:
                seen.append(torch.load(io.BytesIO(data), weights_only=False))
    os.waitpid(pid, 0)
    return seen


def _results(value: Any) -> tuple[Tensor, ...] | None:
    parts = (value,) if isinstance(value, Tensor) else tuple(value) if isinstance(value, (tuple, list)) else ()
    if not parts or not all(isinstance(x, Tensor) and x.layout == torch.strided for x in parts):
        return None
    return parts


def kinds(parts: tuple[Tensor, ...], sample: SampleInput) -> Iterator[tuple[str, Make]]:
    """Ways to make the ``out=`` tensors of a call, by name: each takes the device and the sample there."""
    for name, geometry in GEOMETRIES.items():
        places = [geometry(tuple(x.shape)) for x in parts]
        if any(place is None for place in places):
            continue

        def made(device: str, own: SampleInput, places: Any = places) -> tuple[list[Tensor], list[Tensor]]:
            pairs = [place.made(x.dtype, device) for place, x in zip(places, parts, strict=True)]
            return [pair[0] for pair in pairs], [pair[1] for pair in pairs]

        yield name, made
    for dtype in DTYPES:
        if any(x.dtype == dtype for x in parts):
            continue

        def typed(device: str, own: SampleInput, dtype: Any = dtype) -> tuple[list[Tensor], list[Tensor]]:
            pairs = [_dense(tuple(x.shape)).made(dtype, device) for x in parts]
            return [pair[0] for pair in pairs], [pair[1] for pair in pairs]

        yield str(dtype), typed

    def elsewhere(device: str, own: SampleInput) -> tuple[list[Tensor], list[Tensor]]:
        pairs = [_dense(tuple(x.shape)).made(x.dtype, "cpu" if device != "cpu" else "meta") for x in parts]
        return [pair[0] for pair in pairs], [pair[1] for pair in pairs]

    yield "other device", elsewhere  # of which PyTorch's CPU knows only `meta`
    if parts[0].is_floating_point():

        def graded(device: str, own: SampleInput) -> tuple[list[Tensor], list[Tensor]]:
            pairs = [_dense(tuple(x.shape)).made(x.dtype, device) for x in parts]
            return [
                pair[0].clone().requires_grad_(x.is_floating_point()) for pair, x in zip(pairs, parts, strict=True)
            ], [pair[1] for pair in pairs]

        yield "requires grad", graded
    if len(parts) == 1:
        yield from _overlapping(parts[0], sample)


def _overlapping(part: Tensor, sample: SampleInput) -> Iterator[tuple[str, Make]]:
    leaves = tree_leaves((sample.input, sample.args, sample.kwargs))
    for number, leaf in enumerate(leaves):
        if not isinstance(leaf, Tensor) or leaf.dtype != part.dtype or leaf.numel() < 2:
            continue

        def whole(device: str, own: SampleInput, number: int = number) -> tuple[list[Tensor], list[Tensor]]:
            base = tree_leaves((own.input, own.args, own.kwargs))[number]
            return [base], [base]

        def partly(device: str, own: SampleInput, number: int = number) -> tuple[list[Tensor], list[Tensor]]:
            base = tree_leaves((own.input, own.args, own.kwargs))[number]
            flat = torch.empty(0, dtype=base.dtype, device=base.device).set_(base.untyped_storage())
            return [flat.as_strided(part.shape, torch.empty(part.shape, device="meta").stride(), 1)], [flat]

        yield f"input {number}", whole
        if part.numel() < leaf.untyped_storage().nbytes() // leaf.itemsize and part.numel():
            yield f"part of input {number}", partly


@dataclass
class Results:
    """What a call makes without ``out=``: on the device, on the CPU, and there in float64, if it can be computed so."""

    ours: tuple[Tensor, ...]
    theirs: tuple[Tensor, ...]
    exact: tuple[Tensor, ...] | None
    limits: dict[str, float]
    is_random: bool

    def are_close(self, index: int, one: Tensor, other: Tensor) -> bool:
        """Whether what an ``out=`` tensor holds, or all of its memory, is as on the CPU, as far as the dtypes in which
        it was computed tell, or differs from float64 no more than twice as much."""
        part = self.theirs[index % len(self.theirs)]
        rtol, atol = default_tolerances(one, part)
        limits = {"rtol": rtol, "atol": atol} if one.dtype != part.dtype else self.limits
        if one.dtype == torch.float16:  # the CPU sums in it
            limits = {"rtol": 0.05, "atol": 0.05}
        try:
            torch.testing.assert_close(one, other, equal_nan=True, **limits)
        except AssertionError:
            return self._is_as_exact(index, one, other)
        return True

    def _is_as_exact(self, index: int, one: Tensor, other: Tensor) -> bool:
        if self.exact is None or index >= len(self.exact) or self.exact[index].shape != one.shape:
            return False
        exact = self.exact[index]
        finite = exact.isfinite()
        errors = [(side.to(exact.dtype)[finite] - exact[finite]).abs() for side in (one, other)]
        same = torch.equal(one.isfinite(), other.isfinite())
        return same and bool((errors[0] <= 2 * errors[1].max()).all()) if finite.any() else same


def difference(call: Call, kind: str, ours: Seen, theirs: Seen, results: Results) -> str:
    """How what the device did is not what the CPU did; or ''."""
    if any(x.device.type == "meta" for x in theirs.outs):  # some of PyTorch's operators run there
        is_right = not theirs.error or ours.error or call.name.startswith("aten.")
        return "" if is_right else f"raises nothing for {theirs.error}"
    if kind == "expanded" and "more than one element" in ours.message:
        return ""  # the CPU writes in any order where it does not look
    if ours.error != theirs.error:
        return f"raises {ours.raised()} for {theirs.raised()}"
    if ours.message != theirs.message:
        return f"says {ours.message[:160]!r} for {theirs.message[:160]!r}"
    if theirs.error:
        return ""
    if sorted(ours.warnings) != sorted(theirs.warnings) and not call.name.startswith("aten."):
        return f"warns {[w[:90] for w in ours.warnings]} for {[w[:90] for w in theirs.warnings]}"
    if ours.forms() != theirs.forms():
        return f"form {ours.forms()} for {theirs.forms()}"
    if results.is_random or kind == "expanded":
        return ""
    for index, (one, other) in enumerate(zip((*ours.outs, *ours.bases), (*theirs.outs, *theirs.bases), strict=True)):
        if "input" in kind and index >= len(ours.outs):
            continue
        one, other = one.detach().cpu(), other.detach()
        # What the CPU reads while it writes there is no result.
        is_result = "input" in kind and not torch.equal(one, other)
        wanted = results.ours[index].to(one.dtype).cpu() if is_result else other
        if results.are_close(index, one, wanted):
            continue
        if "input" not in kind and _is_written_there(ours, results.ours):
            return ""  # where the CPU is wrong about strides
        what = "out" if index < len(ours.outs) else "memory"
        return f"{what}: {one.flatten()[:6].tolist()} for {other.flatten()[:6].tolist()}"
    return ""


def _is_written_there(ours: Seen, functional: tuple[Tensor, ...]) -> bool:
    """Whether the results are in their places, and nothing is beside them."""
    for out, base, exact in zip(ours.outs, ours.bases, functional, strict=True):
        if out.untyped_storage().nbytes() > base.nbytes:
            return False  # it was given other memory
        beside = torch.full_like(base, FILLED_WITH).cpu()
        beside.as_strided(out.shape, out.stride(), out.storage_offset()).copy_(exact.cpu())
        if not torch.allclose(base.cpu(), beside, equal_nan=True, rtol=1e-4, atol=1e-4):
            return False
    return True


def laid_out(call: Call) -> Iterator[tuple[Call, bool]]:
    """The call, and the call with tensors in other orders of memory; whether only an empty ``out=`` is to be tried: its
    layout is that of the arguments."""
    yield call, False
    for name in ("transposed", "channels_last"):
        sample = call.sample.transform(lambda v, lay=LAYOUTS[name]: lay(v) if isinstance(v, Tensor) else v)
        if _strides(sample) != _strides(call.sample):
            yield replace(call, name=f"{call.name} of {name}", sample=sample), True


def _strides(sample: SampleInput) -> list[tuple[int, ...]]:
    return [x.stride() for x in tree_leaves((sample.input, sample.args, sample.kwargs)) if isinstance(x, Tensor)]


def own_storages(sample: SampleInput) -> SampleInput:
    """The sample with tensors that nothing else shares."""
    return sample.transform(lambda v: v.clone(memory_format=torch.preserve_format) if isinstance(v, Tensor) else v)


def moved(op: OpInfo, sample: SampleInput, device: str) -> SampleInput:
    """The sample on the device, what it is to be made there included."""
    there = _moved(op, sample, device)
    if "device" in there.kwargs:
        there.kwargs["device"] = torch.device(device)
    return there


def without_out(op: OpInfo, call: Call, device: str, limits: dict[str, float]) -> Results | None:
    """What a call makes without ``out=``; None where that fails, or is no tensor."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            theirs = _results(call.function(own_storages(call.sample)))
            if theirs is None:
                return None
            ours = _results(call.function(moved(op, own_storages(call.sample), device)))
            exact = _in_float64(call)
    except Exception:  # noqa: BLE001 - values are another check's question
        return None
    if ours is None:
        return None
    found = Results(ours, theirs, exact, limits, bool(_RANDOM.search(call.name)))
    differ = not all(found.are_close(index, one.cpu(), theirs[index]) for index, one in enumerate(ours))
    return replace(found, is_random=found.is_random or differ)


def _in_float64(call: Call) -> tuple[Tensor, ...] | None:
    def widened(value: Any) -> Any:
        if not isinstance(value, Tensor) or not (value.is_floating_point() or value.is_complex()):
            return value
        return value.to(torch.complex128 if value.is_complex() else torch.float64)

    try:
        return _results(call.function(call.sample.transform(widened)))
    except Exception:  # noqa: BLE001 - no second opinion
        return None


def run(op: OpInfo, dtype: torch.dtype, device: str, samples: int) -> Outcome:
    """Compares the first ``samples`` sample inputs with each kind of ``out=``."""
    wrong: list[str] = []
    module = getattr(torch, torch.device(device).type)
    before = dict(module.fallbacks())
    limits, count, ended = tolerances(op, dtype), 0, 0
    if op.name in UNINITIALISED:
        return Outcome("skipped", "its results are not written", {})
    torch.set_warn_always(True)
    for call, only_empty in itertools.chain.from_iterable(map(laid_out, calls(op, dtype, samples))):
        if any(name in call.name for name in ("empty", "resize", "as_strided")):
            continue
        results = without_out(op, call, device, limits)
        if results is None:
            continue
        chosen = [
            (name, make) for name, make in kinds(results.theirs, call.sample) if name == "empty" or not only_empty
        ]
        expected = on_cpu(call, [make for _, make in chosen], device)
        for (name, make), theirs in zip(chosen, expected, strict=True):
            if theirs is None:
                ended += 1
                continue
            print(call.name, name, file=sys.stderr, flush=True)  # a crash is then told of with it
            here = moved(op, own_storages(call.sample), device)
            ours = observed(call, here, *make(device, here), device)
            count += 1
            text = difference(call, name, ours, theirs, results)
            if text and (alone := on_cpu(call, [make], device)[0]) is not None:  # nothing has run before it
                text = difference(call, name, ours, alone, results)
            if text and not (op.name.startswith(UNDEFINED_STRIDES) and text.startswith("form")):
                wrong.append(f"{call.name} {name}: {text}")
    fallbacks = new_fallbacks(device, before)
    if wrong:
        return Outcome("wrong", "\n".join(wrong), fallbacks)
    kind = "host" if fallbacks else "native" if count else "skipped"
    return Outcome(kind, f"{count} calls; {ended} end the process on the CPU", fallbacks)
