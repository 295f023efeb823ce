# SPDX-License-Identifier: Apache-2.0
"""``outboard.graphed`` never replays what a change in Python has made stale: it sees the change, or refuses."""

from __future__ import annotations

import array
import collections
import contextvars
import enum
import functools
import gc
import itertools
import random
import sys
import time
import types
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import outboard


class Slotted:
    """An object without a dictionary."""

    __slots__ = ("__weakref__", "empty", "value")

    def __init__(self, value: Any) -> None:
        self.value = value


class Derived(Slotted):
    """Slots below slots, and a dictionary."""


class Numbers(list[Any]):
    """A list with attributes."""


class Colour(enum.Enum):
    """A member of an enumeration holds what it was given."""

    RED: ClassVar[Any] = [2.0]


class Reading(nn.Module):
    """Multiplies by what a function finds in an object."""

    def __init__(self, kept: Any, read: Callable[[Any], Any]) -> None:
        super().__init__()
        self.kept = kept
        self.read = read

    def forward(self, x: Tensor) -> Tensor:
        """x * what is read."""
        return x * float(self.read(self.kept))


@pytest.fixture
def replays(device_module: ModuleType) -> Callable[[], int]:
    """How many replays there have been since the last time."""
    before = [0]

    def count() -> int:
        now = int(device_module.compile_stats().get("replays", 0))
        found, before[0] = now - before[0], now
        return found

    count()
    return count


@torch.no_grad()
def result(module: nn.Module, device: str) -> float:
    """The first element of a call with ones."""
    return float(module(torch.ones(3, device=device))[0])


def check(module: nn.Module, device: str, change: Callable[[], Any], after: float, times: int = 4) -> None:
    """Calls before and after something changed."""
    outboard.graphed(module)
    for _ in range(times):
        assert result(module, device) == 2.0
    change()
    for _ in range(times):
        assert result(module, device) == after


def item(kept: Any) -> Any:
    """What most containers below are asked for."""
    return kept[0]


partial = functools.partial(lambda settings: settings["scale"], {"scale": 2.0})
keyword = functools.partial(lambda settings: settings["scale"], settings={"scale": 2.0})
ordered = collections.OrderedDict(a=2.0, b=3.0)
Pair = collections.namedtuple("Pair", "first second")  # noqa: PYI024
variable: contextvars.ContextVar[float] = contextvars.ContextVar("variable", default=2.0)


def by_default(kept: Any, settings: list[float] = [2.0]) -> float:  # noqa: B006
    """Reads a default of its own."""
    return settings[0]


def replace_defaults() -> None:
    by_default.__defaults__ = ([3.0],)


#: What is kept, what reads it, what changes it to 3: all of it is seen, and captured again.
WATCHED: dict[str, tuple[Any, Callable[[Any], Any], Callable[[Any], Any]]] = {
    "slots": (Slotted(2.0), lambda kept: kept.value, lambda kept: setattr(kept, "value", 3.0)),
    "empty slot": (
        Slotted(2.0),
        lambda kept: getattr(kept, "empty", kept.value),
        lambda kept: setattr(kept, "empty", 3.0),
    ),
    "slots of a base": (Derived(2.0), lambda kept: kept.value, lambda kept: setattr(kept, "value", 3.0)),
    "dictionary beside slots": (
        Derived(2.0),
        lambda kept: vars(kept).get("more", 2.0),
        lambda kept: setattr(kept, "more", 3.0),
    ),
    "slots in a list": ([Slotted(2.0)], lambda kept: kept[0].value, lambda kept: setattr(kept[0], "value", 3.0)),
    "partial": (partial, lambda kept: kept(), lambda kept: kept.args[0].update(scale=3.0)),
    "partial's keyword": (keyword, lambda kept: kept(), lambda kept: kept.keywords["settings"].update(scale=3.0)),
    "deque": (collections.deque([2.0]), item, lambda kept: kept.__setitem__(0, 3.0)),
    "order": (ordered, lambda kept: next(iter(kept.values())), lambda kept: kept.move_to_end("a")),
    "key": ({"a": 2.0}, lambda kept: kept.get("a", 3.0), lambda kept: kept.update(b=kept.pop("a"))),
    "key of a set": ({2.0}, lambda kept: max(kept), lambda kept: kept.add(3.0)),
    "key that is an object": (
        {Slotted(2.0): 1},
        lambda kept: next(iter(kept)).value,
        lambda kept: setattr(next(iter(kept)), "value", 3.0),
    ),
    "named tuple": (Pair([2.0], 0), lambda kept: kept.first[0], lambda kept: kept.first.__setitem__(0, 3.0)),
    "list with attributes": (
        Numbers([2.0]),
        lambda kept: getattr(kept, "more", kept[0]),
        lambda kept: setattr(kept, "more", 3.0),
    ),
    "namespace": (types.SimpleNamespace(a=2.0), lambda kept: kept.a, lambda kept: setattr(kept, "a", 3.0)),
    "bound method": ([2.0].copy().__getitem__, lambda kept: kept(0), lambda kept: kept.__self__.__setitem__(0, 3.0)),
    "enumeration": (Colour, lambda kept: kept.RED.value[0], lambda kept: kept.RED.value.__setitem__(0, 3.0)),
    "weak reference": (weakref.ref(sliced := Slotted(2.0)), lambda kept: kept().value, lambda _: sliced.__init__(3.0)),
    "context variable": (variable, lambda kept: kept.get(), lambda kept: kept.set(3.0)),
    "CPU tensor": (torch.tensor(2.0), lambda kept: kept.item(), lambda kept: kept.fill_(3.0)),
    "attribute of a tensor": (torch.ones(1), lambda kept: getattr(kept, "a", 2), lambda kept: setattr(kept, "a", 3)),
    "attribute of a function": (lambda: 0, lambda kept: getattr(kept, "a", 2), lambda kept: setattr(kept, "a", 3)),
    "attribute of a module": (
        types.ModuleType("settings"),
        lambda kept: getattr(kept, "a", 2),
        lambda kept: setattr(kept, "a", 3),
    ),
    "default": (None, by_default, lambda _: replace_defaults()),
}


@pytest.mark.parametrize("name", WATCHED)
def test_changes_that_are_seen(device: str, replays: Callable[[], int], name: str) -> None:
    kept, read, change = WATCHED[name]
    check(module := Reading(kept, read), device, lambda: change(kept), 3.0)
    assert replays() == 6, outboard.graphed_refusals(module)


def test_what_the_garbage_collector_calls_is_none_of_the_call(device: str, replays: Callable[[], int]) -> None:
    thresholds, times = gc.get_threshold(), []
    gc.callbacks.append(watch := lambda *unused: times.append(time.perf_counter()))
    gc.set_threshold(1)
    try:
        module = outboard.graphed(Reading([2.0], lambda kept: len([[] for _ in range(9)]) - 9 + kept[0]))
        for _ in range(3):
            assert result(module, device) == 2.0
        assert gc.isenabled()
    finally:
        gc.set_threshold(*thresholds)
        gc.callbacks.remove(watch)
    assert times
    assert replays() == 2, outboard.graphed_refusals(module)


def generator() -> Any:
    """Something that goes on by itself."""
    yield from itertools.repeat(2.0)


#: What cannot be watched: what is kept, what reads it, what changes it to 3.
UNWATCHED: dict[str, tuple[Any, Callable[[Any], Any], Callable[[Any], Any]]] = {
    "numpy": (np.full(1, 2.0), item, lambda kept: kept.__setitem__(0, 3.0)),
    "numpy in slots": (Slotted(np.full(1, 2.0)), lambda k: k.value[0], lambda k: k.value.__setitem__(0, 3.0)),
    "numpy as a key's value": ({"a": [np.full(1, 2.0)]}, lambda k: k["a"][0][0], lambda k: k["a"][0].fill(3.0)),
    "bytearray": (bytearray(b"\2"), item, lambda kept: kept.__setitem__(0, 3)),
    "array": (array.array("d", [2.0]), item, lambda kept: kept.__setitem__(0, 3.0)),
    "memory": (memoryview(bytearray(b"\2")), item, lambda kept: kept.__setitem__(0, 3)),
    "proxy": (types.MappingProxyType(under := {"a": 2.0}), lambda kept: kept["a"], lambda _: under.update(a=3.0)),
    "default of a dictionary": (
        collections.defaultdict(lambda: 2.0),
        lambda kept: kept.default_factory(),
        lambda kept: setattr(kept, "default_factory", lambda: 3.0),
    ),
    "partial": (functools.partial(item, np.full(1, 2.0)), lambda kept: kept(), lambda kept: kept.args[0].fill(3.0)),
}


@pytest.mark.parametrize("name", UNWATCHED)
def test_what_cannot_be_seen_is_not_captured(device: str, replays: Callable[[], int], name: str) -> None:
    kept, read, change = UNWATCHED[name]
    check(module := Reading(kept, read), device, lambda: change(kept), 3.0)
    assert replays() == 0
    (reason,) = outboard.graphed_refusals(module)
    assert "cannot be seen" in reason


STREAMS: dict[str, Callable[[], Any]] = {
    "iterator": iter([2.0] * 99).__next__,
    "generator": generator().__next__,
    "count": functools.partial(next, itertools.repeat(2.0)),
    "random numbers": lambda: 2.0 + 0 * random.random(),
    "random numbers of numpy": lambda: 2.0 + 0 * np.random.rand(),
    "clock": lambda: 2.0 + 0 * time.time(),
}


@pytest.mark.parametrize("name", STREAMS)
def test_what_is_new_with_each_call_is_not_captured(device: str, replays: Callable[[], int], name: str) -> None:
    module = outboard.graphed(Reading(STREAMS[name], lambda kept: kept()))
    assert [result(module, device) for _ in range(5)] == [2.0] * 5
    assert replays() == 0 and outboard.graphed_refusals(module)


class Scaled(nn.Module):
    """What programs keep where no module holds it."""

    factor = 1.0

    def forward(self, x: Tensor) -> Tensor:
        """x * factor * what is global."""
        return x * self.factor * SCALE * settings.scale * NESTED["a"]["b"] * helper()


class Halves(Scaled):
    """Its attributes are those of its base."""


def helper() -> float:
    """A function that the module calls."""
    return FURTHER * max(1.0, 0.5)


SCALE = 2.0
FURTHER = 1.0
NESTED = {"a": {"b": 1.0}}
settings = types.ModuleType("settings")
settings.scale = 1.0  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "change",
    [
        lambda patch: patch.setitem(globals(), "SCALE", 6.0),
        lambda patch: patch.setitem(globals(), "FURTHER", 3.0),
        lambda patch: patch.setitem(NESTED["a"], "b", 3.0),
        lambda patch: patch.setattr(settings, "scale", 3.0),
        lambda patch: patch.setattr(Scaled, "factor", 3.0),
        lambda patch: patch.setattr(Halves, "factor", 3.0, raising=False),
        lambda patch: patch.setitem(globals(), "helper", lambda: 3.0),
        lambda patch: patch.setattr(helper, "__code__", (lambda: 3.0).__code__),
        lambda patch: patch.setitem(globals(), "max", lambda *_: 3.0),
        lambda patch: patch.setattr(Scaled, "forward", lambda self, x: x * 6.0),
    ],
)
def test_globals_and_classes(
    device: str, replays: Callable[[], int], monkeypatch: pytest.MonkeyPatch, change: Callable[[Any], None]
) -> None:
    check(module := Halves(), device, lambda: change(monkeypatch), 6.0)
    assert replays() == 6, outboard.graphed_refusals(module)


def made(scale: float) -> tuple[Callable[[], float], Callable[[float], None]]:
    """A function with a variable of its own, and what changes it."""

    def read() -> float:
        return scale

    def change(value: float) -> None:
        nonlocal scale
        scale = value

    return read, change


@pytest.mark.parametrize("wrap", [lambda function: function, functools.partial, torch.no_grad()])
def test_variables_of_closures(device: str, replays: Callable[[], int], wrap: Callable[[Any], Any]) -> None:
    read, change = made(2.0)
    check(module := Reading(wrap(read), lambda kept: kept()), device, lambda: change(3.0), 3.0)
    assert replays() == 6, outboard.graphed_refusals(module)


COUNT = 0


class Global(nn.Module):
    """Counts where no module holds it."""

    def forward(self, x: Tensor) -> Tensor:
        """x * the number of the call."""
        global COUNT
        COUNT += 1
        return x * COUNT


def test_counters_among_globals(device: str, caplog: pytest.LogCaptureFixture) -> None:
    module = outboard.graphed(Global())
    assert [result(module, device) for _ in range(40)] == [float(call + 1) for call in range(40)]
    assert "it changes 'COUNT'" in caplog.text


def test_hooks_of_all_modules(device: str) -> None:
    module = nn.Sequential(nn.Identity())
    handles: list[Any] = []

    def change() -> None:
        hook = nn.modules.module.register_module_forward_hook(lambda module, args, output: output + 1)
        handles.append(hook)

    try:
        x = torch.ones(3, device=device)
        with torch.no_grad():
            outboard.graphed(module)
            assert [module(x).tolist() for _ in range(4)] == [[1.0] * 3] * 4
            change()
            assert [module(x).tolist() for _ in range(4)] == [[3.0] * 3] * 4
    finally:
        for handle in handles:
            handle.remove()


def test_a_compiled_module_reads_globals(
    device: str, replays: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = Halves()
    module.compile()
    check(module, device, lambda: monkeypatch.setitem(globals(), "SCALE", 6.0), 6.0, times=5)
    assert replays() >= 3, outboard.graphed_refusals(module)


def test_a_module_within_that_was_replayed_before(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = outboard.graphed(Halves())
    assert [result(inner, device) for _ in range(4)] == [2.0] * 4
    check(nn.Sequential(inner, nn.Identity()), device, lambda: monkeypatch.setattr(settings, "scale", 3.0), 6.0)


def test_profilers_of_python_keep_their_place(device: str, replays: Callable[[], int]) -> None:
    module, seen = outboard.graphed(Halves()), []
    sys.setprofile(lambda frame, event, argument: seen.append(event))
    try:
        assert [result(module, device) for _ in range(4)] == [2.0] * 4
        assert sys.getprofile() is not None
    finally:
        sys.setprofile(None)
    assert seen and replays() == 0
    assert "profiler" in next(iter(outboard.graphed_refusals(module)))
    assert [result(module, device) for _ in range(600)] == [2.0] * 600
    assert replays() > 0 and sys.getprofile() is None


def test_reasons_belong_to_graphed_modules() -> None:
    assert outboard.graphed_refusals(outboard.graphed(Halves())) == {}
    with pytest.raises(TypeError, match=r"graphed\(\) returned"):
        outboard.graphed_refusals(Halves())
