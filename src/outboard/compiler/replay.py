# SPDX-License-Identifier: Apache-2.0
"""Calls captured once per set of sizes and replayed: ``torch.compile(mode="reduce-overhead")``, ``outboard.graphed``.

A replay writes its results where the capture put them. So a capture is replayed only while nobody holds results of its
last run; a call that comes earlier gets a capture of its own, or runs without one. Results therefore stay what they are
for as long as somebody holds them, as everywhere else in PyTorch.
"""

from __future__ import annotations

import collections
import operator
import threading
import weakref
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import Tensor

from outboard.on_open import call_after_resets

from . import statistics

#: What runs a compiled graph: it takes its arguments in a list, which it empties.
Call = Callable[[list[Any]], Sequence[Any]]

#: Captures of one set of sizes. A loop that holds its last result while it computes the next needs two.
INSTANCES = 3
#: Sets of sizes of one graph that are remembered; the one used longest ago is forgotten.
FAMILIES = 32
#: Most bytes of inputs to copy per replay: beyond, copying costs more than submitting work again.
WORTH_COPYING = 4 << 20

# Captures of a device share the memory of their intermediate results, so that only one may be submitted at a time.
_lock = threading.RLock()
_captures: weakref.WeakSet[_Capture] = weakref.WeakSet()
_resets: collections.Counter[int] = collections.Counter()  # by device: captures of before are lost


def _forget(device: int) -> None:
    with _lock:
        _resets[device] += 1
        for capture in [each for each in _captures if each.device == device]:
            _captures.discard(capture)


call_after_resets(_forget)


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage().data_ptr())


def _fill(target: Tensor, value: Tensor) -> None:
    """Copies without waiting: a number of the host travels as an argument of a kernel."""
    if value.device.type == "cpu":
        target.fill_(value.item())
    else:
        target.copy_(value.detach())


class _Result:
    """How a result of a capture is made for a caller."""

    def __init__(self, value: Any, inputs: dict[int, int], arguments: Sequence[Any]) -> None:
        self.value = value
        self.input = inputs.get(_storage(value)) if isinstance(value, Tensor) else None
        self.storage = value.untyped_storage() if isinstance(value, Tensor) and self.input is None else None
        self.same = self.input is not None and value is arguments[self.input]
        if self.input is not None:
            self.offset = value.storage_offset() - arguments[self.input].storage_offset()

    def __call__(self, args: Sequence[Any]) -> Any:
        if self.storage is not None:
            return self.value.detach()
        if self.input is None:
            return self.value
        given = args[self.input]
        if self.same:
            return given
        offset = given.storage_offset() + self.offset
        return given.detach().as_strided(self.value.size(), self.value.stride(), offset)


class _Capture:
    """One captured call: where it reads its inputs, and its results."""

    def __init__(self, call: Call, device: int, args: Sequence[Any], copied: Sequence[int]) -> None:
        self.device = device
        with torch.inference_mode(False), torch.no_grad(), torch.accelerator.device_index(device):
            self.inputs = {i: _place_for(args[i], device) for i in copied}  #: what is copied, by position
            arguments = [self.inputs.get(i, value) for i, value in enumerate(args)]
            self.graph = torch.accelerator.Graph(pool=(1, _memory_of(device)))
            changes = [place._version for place in self.inputs.values()]
            self.graph.capture_begin()
            try:
                made = call(list(arguments))
            finally:
                self.graph.capture_end()
            if changes != [place._version for place in self.inputs.values()]:
                raise RuntimeError("an input is written to")
        tensors = {i: value for i, value in enumerate(arguments) if isinstance(value, Tensor)}
        storages = {_storage(value): i for i, value in tensors.items()}
        self.results = [_Result(value, storages, arguments) for value in made]
        # The graph keeps the memory of what it reads in place, so that an address means the same tensor for ever.
        places = {i: value.data_ptr() for i, value in tensors.items() if i not in self.inputs}
        self.addresses_of = operator.itemgetter(*places) if places else lambda _: ()
        self.places = tuple(places.values()) if len(places) != 1 else next(iter(places.values()))
        self.storages = [result.storage for result in self.results if result.storage is not None]
        self.counts = [self._count(storage) for storage in self.storages]
        self.written = {storage.data_ptr() for storage in self.storages}
        _captures.add(self)

    @staticmethod
    def _count(storage: torch.UntypedStorage) -> int:
        return int(torch._C._storage_Use_Count(storage._cdata))

    def free(self) -> bool:
        """Whether nobody holds a result."""
        return all(self._count(storage) == count for storage, count in zip(self.storages, self.counts, strict=True))

    def fits(self, addresses: Sequence[int]) -> bool:
        """Whether inputs that are read in place are where they were."""
        return bool(self.addresses_of(addresses) == self.places)

    def replay(self, args: list[Any]) -> list[Any]:
        """Runs with other arguments; empties their list."""
        for i, place in self.inputs.items():
            _fill(place, args[i])
        self.graph.replay()
        results = [result(args) for result in self.results]
        args.clear()
        return results


def _place_for(value: Tensor, device: int) -> Tensor:
    where = torch.device(torch._C._get_privateuse1_backend_name(), device)
    place = torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device=where)
    _fill(place, value)  # what a kernel reads while it is captured must exist
    return place


def _memory_of(device: int) -> int:
    """The memory that captures of a device share, or 0 if there is none yet."""
    return next((capture.graph.pool()[1] for capture in _captures if capture.device == device), 0)


class _Seen:
    """An argument of an earlier call."""

    def __init__(self, value: Tensor) -> None:
        self._value = weakref.ref(value)
        self._address = value.data_ptr()

    def stays(self, value: Tensor, static: bool) -> bool:
        """Whether ``value`` is the same. An address alone tells that only of tensors that are ``static``: those of
        others are used again when they are gone."""
        return self._value() is value or (static and self._address == value.data_ptr())


class _Family:
    """What is known of the calls with one set of sizes."""

    def __init__(self) -> None:
        self.before: Sequence[_Seen | None] = ()  #: the arguments of the last call without a capture
        self.captures: list[_Capture] = []  #: the one used last comes last
        self.misses = 0  #: calls without a capture since the last one was made
        self.patience = 1  #: as many misses before the next is made

    def find(self, addresses: Sequence[int]) -> _Capture | None:
        for capture in reversed(self.captures):
            if capture.fits(addresses) and capture.free():
                self.captures.remove(capture)
                self.captures.append(capture)
                return capture
        return None

    def add(self, capture: _Capture) -> None:
        """Adds a capture, in place of the one used longest ago if there are too many. Then the next has to wait longer:
        who holds all results gains nothing by captures."""
        if len(self.captures) == INSTANCES:
            del self.captures[0]
            self.patience = max(2 * self.patience, 8)
        self.captures.append(capture)
        self.misses = 0


class Replayed:
    """A compiled graph that is captured when a set of sizes comes for the second time, and replayed from then on.

    ``static`` are the positions of arguments that are likely to be the same tensors at each call, such as parameters,
    ``mutated`` those that it writes to. ``refuse`` is told why, once, if calls cannot be captured.
    """

    def __init__(
        self,
        call: Call,
        device: int,
        static: Collection[int],
        mutated: Collection[int],
        refuse: Callable[[str], None],
    ) -> None:
        self._call = call
        self._device = device
        self._static = frozenset(static) | frozenset(mutated)
        self._mutated = frozenset(mutated)
        self._refuse = refuse
        self._told = False
        self._impossible = False
        self._families: dict[tuple[Any, ...], _Family] = {}

    def __call__(self, args: list[Any]) -> Sequence[Any]:
        """Runs the graph; empties the list of arguments."""
        if self._impossible:
            return self._call(args)
        with _lock:
            capture = self._find(args)
            if capture is not None:
                statistics.add("replays")
                return capture.replay(args)
        return self._call(args)

    def _find(self, args: Sequence[Any]) -> _Capture | None:
        """A capture for these arguments, made if it is time for it."""
        family = self._family(args)
        addresses = [value.data_ptr() if isinstance(value, Tensor) else 0 for value in args]
        capture = family.find(addresses)
        if capture is None and family.misses >= family.patience:
            capture = self._capture(args, family.before)
            if capture is None:
                family.patience *= 2
            else:
                family.add(capture)
        if capture is None:
            family.misses += 1
            family.before = [_Seen(value) if isinstance(value, Tensor) else None for value in args]
        return capture

    def _family(self, args: Sequence[Any]) -> _Family:
        stream = torch._C._accelerator_getStream(self._device).stream_id
        key = (stream, _resets[self._device], *(value for value in args if not isinstance(value, Tensor)))
        family = self._families.pop(key, None) or _Family()
        self._families[key] = family
        if len(self._families) > FAMILIES:
            del self._families[next(iter(self._families))]
        return family

    def _capture(self, args: Sequence[Any], before: Sequence[_Seen | None]) -> _Capture | None:
        copied = self._copied(args, before)
        if copied is None:
            return None
        try:
            capture = _Capture(self._call, self._device, args, copied)
        except RuntimeError as error:
            # Inside of a capture of the user's, the call is simply part of that. Else it cannot be captured, and an
            # error that has other causes comes again when it runs.
            if "captured already" not in str(error):
                self._impossible = True
                self._tell(str(error))
            return None
        statistics.add("captures")
        return capture

    def _copied(self, args: Sequence[Any], before: Sequence[_Seen | None]) -> list[int] | None:
        """The inputs to be copied at each replay: all but those that were the same at the call before, and results of
        other captures, which come to the same places again. None if this call should not be captured."""
        written = {address for capture in _captures for address in capture.written}
        copied, size = [], 0
        for i, (value, seen) in enumerate(zip(args, before, strict=True)):
            if not isinstance(value, Tensor) or seen is None:
                continue
            on_host = value.device.type == "cpu"
            if on_host and value.dim() > 0:
                self._impossible = True
                self._tell("a CPU tensor among the inputs")
                return None
            stays = seen.stays(value, i in self._static) or _storage(value) in written
            if stays and not on_host:
                continue
            if i in self._mutated or torch._debug_has_internal_overlap(value) != 0:
                self._tell("an input that is written to or overlaps itself is a different one at each call")
                return None
            copied.append(i)
            size += value.numel() * value.element_size()
        if size > WORTH_COPYING:
            self._tell(f"{size} bytes of inputs that are somewhere else at each call")
            return None
        return copied

    def _tell(self, reason: str) -> None:
        if self._told:
            return
        self._told = True
        statistics.add("capture_refusals")
        self._refuse(reason)
