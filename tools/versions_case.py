# SPDX-License-Identifier: Apache-2.0
"""Which tensors a call counts as written (``Tensor._version``), on the device as on the CPU: by these numbers alone
autograd refuses a gradient that needs what was overwritten. One OpInfo, its form in place and with ``out=``, and those
of the ATen operators below it, with ordinary tensors, in inference mode, and, of the first sample, compiled and
``graphed``. Runs in a process of its own; see ``opinfo.py --check versions``."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import torch
from metadata_case import _moved
from opinfo_case import UNINITIALISED, Outcome
from out_case import _recorded, out_variant, own_storages
from torch import Tensor
from torch.testing._internal.opinfo.core import OpInfo, SampleInput
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

aten = torch.ops.aten
#: Calls that differ, or those in one way, with the reason.
EXPLAINED = {
    "nn.functional.max_pool1d": "without gradients the CPU has a kernel of one dimension; others a view of two",
    "resize__ graphed": "what a replay writes its kernels have written, and a resize has none",
    "addbmm_": "the CPU resizes a tensor that is too small, and says that it will not for long",
}
#: ATen operators that were met before, in this process.
_seen: set[str] = set()


@dataclass(frozen=True)
class Written:
    """A call: ``function`` takes the sample and the ``out=`` tensors, of which ``outs`` has shapes and dtypes. It is
    run in each of ``ways`` (:data:`WAYS`)."""

    name: str
    function: Callable[..., Any]
    sample: SampleInput
    outs: tuple[Tensor, ...] = ()
    ways: tuple[str, ...] = ("called",)


def calls(op: OpInfo, dtype: torch.dtype, samples: int, seen: set[str]) -> Iterator[Written]:
    """The first ``samples`` samples of an OpInfo as it is, in place and with ``out=``, then the ATen operators below it
    that are not in ``seen``, which they join."""
    for number, sample in enumerate(islice(op.sample_inputs("cpu", dtype, requires_grad=False), samples)):
        ways = ("called",) if number or op.name in UNINITIALISED else tuple(WAYS)
        leaves = tree_leaves((sample.input, sample.args, sample.kwargs))
        if any(isinstance(leaf, Tensor) and leaf.layout != torch.strided for leaf in leaves):
            continue
        yield Written(op.name, partial(_call, op), sample, ways=ways)
        if op.inplace_variant is not None:
            yield Written(f"{op.name}_", partial(_call, op.inplace_variant), sample, ways=ways)
        if op.supports_out and (outs := _tensors(partial(_call, op), sample)):
            yield Written(f"{op.name} out", partial(_call_into, op), sample, outs, ways)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            recorded = _recorded(op, sample)
        for operator, args, kwargs in recorded:
            if str(operator) not in seen:
                seen.add(str(operator))
                yield from _below(operator, SampleInput(None, args=args, kwargs=kwargs))


def _below(operator: Any, sample: SampleInput) -> Iterator[Written]:
    """The forms of an ATen operator that write to arguments."""
    if operator._schema.is_mutable:
        yield Written(str(operator), partial(_call_aten, operator), sample)
        return
    packet = getattr(aten, operator.overloadpacket.__name__ + "_", None)
    if packet is not None and operator._overloadname in packet.overloads():
        other = getattr(packet, operator._overloadname)
        yield Written(str(other), partial(_call_aten, other), sample)
    if (found := out_variant(operator)) and (outs := _tensors(partial(_call_aten, operator), sample)):
        other, names = found
        accepted = {argument.name for argument in other._schema.arguments}
        kept = SampleInput(None, args=sample.args, kwargs={k: v for k, v in sample.kwargs.items() if k in accepted})
        yield Written(str(other), lambda s, *o: _call_aten(other, s, **dict(zip(names, o, strict=True))), kept, outs)


def _call(function: Callable[..., Any], sample: SampleInput) -> Any:
    return function(sample.input, *sample.args, **sample.kwargs)


def _call_into(function: Callable[..., Any], sample: SampleInput, *outs: Tensor) -> Any:
    return function(sample.input, *sample.args, **sample.kwargs, out=outs if len(outs) > 1 else outs[0])


def _call_aten(operator: Any, sample: SampleInput, **outs: Tensor) -> Any:
    return operator(*sample.args, **sample.kwargs, **outs)


def _tensors(function: Callable[..., Any], sample: SampleInput) -> tuple[Tensor, ...]:
    """The results of a call; nothing where they are not all tensors, or where it raises."""
    try:
        result = function(own_storages(sample))
    except Exception:  # noqa: BLE001 - there is nothing to write, then
        return ()
    parts = (result,) if isinstance(result, Tensor) else tuple(result) if isinstance(result, (tuple, list)) else ()
    return parts if all(isinstance(part, Tensor) and part.layout == torch.strided for part in parts) else ()


class _Holder(torch.nn.Module):
    """A module whose buffers a call reads and writes: what ``graphed`` replays."""

    def __init__(self, function: Callable[..., Any], tensors: list[Tensor]) -> None:
        super().__init__()
        self.function, self.count = function, len(tensors)
        for number, tensor in enumerate(tensors):
            self.register_buffer(f"b{number}", tensor)

    def forward(self) -> Any:
        return self.function(*(getattr(self, f"b{number}") for number in range(self.count)))


def _graphed(function: Callable[..., Any], tensors: list[Tensor]) -> Callable[[], Any]:
    import outboard  # opens the device

    module = outboard.graphed(_Holder(function, tensors).eval())
    for _ in range(3):  # as it is, captured, replayed
        module()
    return module


def _compiled(function: Callable[..., Any], tensors: list[Tensor]) -> Callable[[], Any]:
    torch._dynamo.reset()
    # Of the CPU only what the tracer does is asked for.
    backend = "aot_eager" if all(tensor.device.type == "cpu" for tensor in tensors) else "inductor"
    return partial(torch.compile(function, dynamic=False, backend=backend), *tensors)


#: How a function of tensors is run: what makes the call that is observed.
WAYS: dict[str, Callable[[Callable[..., Any], list[Tensor]], Callable[[], Any]]] = {
    "called": lambda function, tensors: partial(function, *tensors),
    "compiled": _compiled,
    "graphed": _graphed,
}


def observed(op: OpInfo, written: Written, device: str, way: str, inference: bool) -> Any:
    """What a call counts as written: for each tensor among its arguments whether its version moved, and whether those
    of a view and of a detached tensor, made before, are the same; for each result the argument that it is, and whether
    it is of inference mode. Or the type of the exception."""
    sample = _moved(op, own_storages(written.sample), device) if device != "cpu" else own_storages(written.sample)
    if "device" in sample.kwargs:
        sample.kwargs["device"] = torch.device(device)
    leaves, structure = tree_flatten(((sample.input, sample.args, sample.kwargs), [*written.outs]))
    places = [n for n, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
    for place in places[len(places) - len(written.outs) :]:
        leaves[place] = torch.zeros_like(leaves[place], device=device)
    tensors = [leaves[place] for place in places]
    aliases = [(tensor.view_as(tensor), tensor.detach()) for tensor in tensors]

    def function(*given: Tensor) -> Any:
        own = list(leaves)
        for place, tensor in zip(places, given, strict=True):
            own[place] = tensor
        (input_, args, kwargs), outs = tree_unflatten(own, structure)
        return written.function(SampleInput(input_, args=args, kwargs=kwargs), *outs)

    torch.manual_seed(0)
    try:
        with torch.inference_mode(inference), torch.set_grad_enabled(False):
            call = WAYS[way](function, tensors)
            before = [tensor._version for tensor in tensors]
            results = [leaf for leaf in tree_leaves(call()) if isinstance(leaf, Tensor)]
    except Exception as error:  # noqa: BLE001 - its type is what is compared
        return f"raises {type(error).__name__}"
    moved = [
        (tensor._version > old, all(alias._version == tensor._version for alias in both))
        for tensor, old, both in zip(tensors, before, aliases, strict=True)
    ]
    return moved, [_identity(result, tensors) for result in results]


def _identity(result: Tensor, tensors: list[Tensor]) -> tuple[int | None, bool, bool, bool]:
    """The argument that a result is, whether it is of inference mode, whether it is a view, and, if none of these,
    whether it counts as written."""
    same = next((n for n, tensor in enumerate(tensors) if tensor is result), None)
    is_new = same is None and not result.is_inference() and not result._is_view()
    return same, result.is_inference(), result._is_view(), is_new and result._version > 0


#: What of :func:`_identity` a way keeps: a compiler makes no views of intermediate results, a capture's are copies.
_KEPT = {"called": slice(4), "compiled": slice(2), "graphed": slice(1, 2)}


def difference(way: str, ours: Any, theirs: Any) -> str:
    """How what was observed on the device is not what it is on the CPU; or ''."""
    if isinstance(ours, str) or isinstance(theirs, str):
        is_same = (
            ours == theirs if way == "called" else type(ours) is type(theirs)
        )  # compilers have exceptions of theirs
        return "" if is_same else f"{ours} for {theirs}"
    ours, theirs = ((moved, [one[_KEPT[way]] for one in found]) for moved, found in (ours, theirs))
    return "" if ours == theirs else f"{ours} for {theirs}"


def run(op: OpInfo, dtype: torch.dtype, device: str, samples: int) -> Outcome:
    """Compares the first ``samples`` samples, with and without inference mode; the first is also compiled and graphed.
    ``native`` stands for "the same"."""
    wrong: list[str] = []
    count = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for written in calls(op, dtype, samples, _seen):
            for inference, way in itertools.product((False, True), written.ways):
                there = observed(op, written, "cpu", "compiled" if way == "compiled" else "called", inference)
                text = difference(way, observed(op, written, device, way, inference), there)
                count += 1
                if text and not {written.name, f"{written.name} {way}"} & EXPLAINED.keys():
                    wrong.append(f"{written.name} {way}{' in inference mode' * inference}: {text}")
    return Outcome("wrong" if wrong else "native" if count else "skipped", " | ".join(wrong) or f"{count} calls", {})
