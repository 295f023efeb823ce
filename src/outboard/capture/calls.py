# SPDX-License-Identifier: Apache-2.0
"""Calls of a module that are captured when they repeat.

A capture repeats what a call did on the device, and nothing of what it did in Python. So a call is captured only if it
left the Python objects within reach as it found them, and replayed only while they are the same as then: those of the
module (submodules, hooks, parameters, settings), those that it was called with (caches of keys and values, say), and
those that its functions read elsewhere (globals, closures, attributes of classes). To know the latter, the first call
of a kind is observed while it runs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import threading
import weakref
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from outboard.compiler import statistics
from outboard.compiler.adapter.graphs.modes import is_observed
from outboard.compiler.isolation import uncollected
from outboard.compiler.replay import Replayed

from .observation import Observation, is_observed_here
from .state import State

ModuleT = TypeVar("ModuleT", bound=torch.nn.Module)
Key = tuple[Any, ...]

_log = logging.getLogger(__name__)

#: Kinds of calls that a module remembers; the one used longest ago is forgotten, with its captures.
KINDS = 8
#: Calls in a row of no known kind, after which most of them are not looked at any more.
UNKNOWN_CALLS = 4
#: Of the others, every so many-th is.
RARELY = 256

# What is compared by its value; of everything else it matters whether it is the same object.
_VALUES = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.layout)


def graphed(model: ModuleT) -> ModuleT:
    """Lets a module replay calls that repeat, without Python and dispatch. Returns the module.

    What ``torch.cuda.make_graphed_callables`` does for given examples, and ``mode="reduce-overhead"`` for a compiled
    module, this does for any call without gradients: when arguments of the same kind come for the second time (shapes,
    dtypes, numbers, the same caches), the call is captured in a ``torch.accelerator.Graph``, and replayed from then on.
    It pays where many small operators follow one another, above all in the decoding steps of ``model.generate`` with
    ``cache_implementation="static"``.

    Only ``model(...)`` changes, as by ``model.compile()``; of a compiled module, the compiled call is captured. New
    values of parameters and buffers in place are seen; when anything of the module was replaced, calls are captured
    anew. Results belong to the caller, as always. Calls that cannot be replayed run as they did: with gradients, or
    where they wait for the device, write to an input, or change objects of Python. A warning of the logger
    ``outboard.capture.calls`` tells why, once per reason; ``torch.<device>.compile_stats()`` counts ``captures``,
    ``replays`` and ``capture_refusals``.

    Globals, variables of closures, attributes of classes and defaults that the module's functions read are compared as
    well. What can change unseen (an array of numpy, say) keeps calls that can reach it from being captured. Settings of
    PyTorch beside hooks, default dtype, default device, deterministic algorithms, autocast and inference mode are taken
    as they were; so are those that the standard library keeps for itself. :func:`graphed_refusals` tells what was not
    captured, and why.

    Args:
        model: the module, in evaluation mode if that is what should be replayed.

    Raises:
        TypeError: if ``model`` is not a module.
    """
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"graphed() expects a torch.nn.Module, not {type(model).__name__}")
    if not isinstance(model._compiled_call_impl, _Calls):
        model._compiled_call_impl = _Calls(model, model._compiled_call_impl or model._call_impl)
    return model


def graphed_refusals(model: torch.nn.Module) -> dict[str, int]:
    """Why calls of a module that :func:`graphed` returned were not captured: reasons, each with a number of calls.

    Calls that are not looked at (with gradients, and most of those after several of no known kind) are in none.

    Raises:
        TypeError: if ``model`` is not a module that ``graphed`` returned.
    """
    calls = getattr(model, "_compiled_call_impl", None)
    if not isinstance(calls, _Calls):
        raise TypeError(f"graphed_refusals() expects a module that graphed() returned, not {type(model).__name__}")
    return dict(calls.refusals)


class _Calls:
    """What the ``__call__`` of a module is: its call, or a replay of it."""

    def __init__(self, module: torch.nn.Module, call: Callable[..., Any]) -> None:
        self._module = module
        self._call = call
        self._kinds: OrderedDict[Key, _Kind] = OrderedDict()
        self._unknown = 0  #: calls of no known kind since one was found
        #: whether calls run what torch.compile compiled; of parts of the module, the first call tells
        self._compiled = hasattr(call, "_torchdynamo_orig_callable")
        self.refusals: Counter[str] = Counter()
        self._told: set[str] = set()
        self._lock = threading.RLock()  # a thread that holds it may collect garbage, and forget a kind

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        leaves, spec = pytree.tree_flatten((args, kwargs))
        if is_observed_here() or not _may_replay(leaves):
            return self._call(*args, **kwargs)
        key = _key(leaves, spec)
        kind = self._find(key)
        if kind is not None and self._compiled and kind.uses == 1:
            return self._run_second(key, kind, args, kwargs)
        if kind is not None:
            return kind.replay(leaves)
        self._unknown += 1
        if self._unknown > UNKNOWN_CALLS and self._unknown % RARELY:
            return self._call(*args, **kwargs)
        return self._run_first(key, leaves, spec)

    def _find(self, key: Key) -> _Kind | None:
        """The kind of a call, if it is known and what it stands on has not changed."""
        with self._lock:
            kind = self._kinds.pop(key, None)
            if kind is None:
                return None
            if not kind.state.is_unchanged():
                self._count(kind.state.change())
                return None
            self._kinds[key] = kind
            kind.uses += 1
            if kind.uses > 1 + self._compiled:  # to capture alone is no gain
                self._unknown = 0
            return kind

    def _forget(self, key: Key) -> None:
        with self._lock:
            self._kinds.pop(key, None)

    def _run_first(self, key: Key, leaves: list[Any], spec: pytree.TreeSpec) -> Any:
        """Runs a call of no known kind, and finds out whether its like can be replayed."""
        before = self._state_of(leaves)
        device = _device_of(self._module, leaves)
        kind = _Kind(self._call, leaves, spec, device or 0, self._refuse, lambda: self._forget(key))
        with self._observed() as observation:
            result = kind.run(leaves)  # the first time there is nothing to replay
        obstacle = "it is not on one device" if device is None else before.obstacle() or before.change()
        if not obstacle and self._sees_all(observation):
            kind.observation = observation
            kind.state = self._state_of(leaves, observation)
            obstacle = kind.state.obstacle()
            if not obstacle:
                self._remember(key, kind)
        if obstacle:
            self._count(obstacle)
        return result

    def _run_second(self, key: Key, kind: _Kind, args: Any, kwargs: Any) -> Any:
        """Runs the compiled call after the first one, which ran without what was compiled: that may not be there yet.

        What compiling leaves behind (marks on parameters, say) is no doing of the call, which the first one showed to
        change nothing."""
        result = self._call(*args, **kwargs)
        if not kind.state.is_unchanged():
            state = self._state_of(pytree.tree_leaves((args, kwargs)), kind.observation)
            if state.obstacle():
                self._forget(key)
                self._count(state.obstacle())
            kind.state = state
        return result

    def _state_of(self, leaves: list[Any], observation: Observation | None = None) -> State:
        """What a call with these arguments depends on, as it is now."""
        objects = (value for value in leaves if not isinstance(value, (Tensor, *_VALUES)))
        return State([self._module, *objects], _graphed_within(self._module), observation)

    @contextlib.contextmanager
    def _observed(self) -> Iterator[Observation]:
        """Inside, calls are observed; once it is known that they run what was compiled, as if it were not, because
        compiled code does not tell what it was made of. What the garbage collector calls is none of theirs."""
        eagerly = torch.compiler.set_stance("force_eager") if self._compiled else contextlib.nullcontext()
        with uncollected(), eagerly, Observation() as observation:
            yield observation

    def _sees_all(self, observation: Observation) -> bool:
        """Whether a call was observed wholly. If not, the next one of no known kind will be."""
        seen = self._compiled or not observation.compiled
        self._compiled = self._compiled or observation.compiled
        return seen

    def _count(self, reason: str) -> None:
        """Counts a call that cannot be captured, and tells why if that was not for once."""
        self.refusals[reason] += 1
        if self._unknown >= UNKNOWN_CALLS:
            statistics.add("capture_refusals", reason not in self._told)
            self._tell(reason)

    def _refuse(self, reason: str) -> None:
        self.refusals[reason] += 1
        self._tell(reason)

    def _remember(self, key: Key, kind: _Kind) -> None:
        with self._lock:
            self._kinds[key] = kind
            if len(self._kinds) > KINDS:
                self._kinds.popitem(last=False)

    def _tell(self, reason: str) -> None:
        if reason in self._told:
            return
        self._told.add(reason)
        _log.warning("a call of %s is not replayed: %s", type(self._module).__name__, reason)


class _Kind:
    """Calls that differ in the contents of tensors only.

    ``forget`` is called when an object among the arguments, a cache for instance, is gone: there will be no such call.
    """

    def __init__(
        self,
        call: Callable[..., Any],
        leaves: Sequence[Any],
        spec: pytree.TreeSpec,
        device: int,
        refuse: Callable[[str], None],
        forget: Callable[[], None],
    ) -> None:
        self.state: State  #: what a replay stands on; set when the first call has run
        self.observation: Observation  #: of the first call
        self.uses = 0
        self._written: list[int] | None = None  #: the tensors that a call writes, as numbers among ``_tensors``
        self._places = [i for i, value in enumerate(leaves) if isinstance(value, Tensor)]
        others = [None if isinstance(value, Tensor) else _reference(value, forget) for value in leaves]
        # Nothing that refers to this object, so that captures are gone as soon as it is.
        on_tensors = functools.partial(_call_with_tensors, call, spec, self._places, others)
        self._replayed = Replayed(on_tensors, device, (), (), refuse)

    def replay(self, leaves: Sequence[Any]) -> Any:
        """The call with other contents. What it writes counts as written: a gradient that needs what was there raises.
        The first time there is no replay yet, and versions tell what that is."""
        if self._written is None:
            before = _versions(self._tensors(leaves))
            result = self.run(leaves)
            after = _versions(self._tensors(leaves))
            self._written = [n for n, (old, new) in enumerate(zip(before, after, strict=True)) if old != new]
            return result
        result = self.run(leaves)
        if self._written:
            tensors = self._tensors(leaves)
            torch.autograd.graph.increment_version(tensors[n] for n in self._written)
        return result

    def run(self, leaves: Sequence[Any]) -> Any:
        """The call, or a replay, if there is one that can be used now."""
        *values, spec = self._replayed([leaves[i] for i in self._places])
        return pytree.tree_unflatten([leaves[v.place] if isinstance(v, _Argument) else v for v in values], spec)

    def _tensors(self, leaves: Sequence[Any]) -> list[Tensor]:
        return [*(leaves[i] for i in self._places), *self.state.tensors]


def _versions(tensors: Sequence[Tensor]) -> list[int]:
    """How often each tensor was written; those of inference mode do not know, and no gradient needs them."""
    return [0 if tensor.is_inference() else tensor._version for tensor in tensors]


def _call_with_tensors(
    call: Callable[..., Any],
    spec: pytree.TreeSpec,
    places: Sequence[int],
    others: Sequence[Callable[[], Any] | None],
    tensors: list[Any],
) -> Sequence[Any]:
    """The leaves of a call's result, and how they are put together. Empties the list of tensors."""
    leaves = [other and other() for other in others]
    for place, tensor in zip(places, tensors, strict=True):
        leaves[place] = tensor
    tensors.clear()
    args, kwargs = pytree.tree_unflatten(leaves, spec)
    values, result_spec = pytree.tree_flatten(call(*args, **kwargs))
    objects = {id(leaf): _Argument(i) for i, leaf in enumerate(leaves) if i not in places}
    return [*(value if isinstance(value, Tensor) else objects.get(id(value), value) for value in values), result_spec]


@dataclasses.dataclass(frozen=True)
class _Argument:
    """A result that is an argument of the call, which nobody needs to hold until the next call."""

    place: int


def _reference(value: Any, forget: Callable[[], None]) -> Callable[[], Any]:
    """What returns an argument, and does not keep it alive if it is an object of the caller's."""
    if isinstance(value, _VALUES) or not hasattr(value, "__weakref__"):
        return lambda: value
    return weakref.ref(value, lambda _: forget())


def _may_replay(leaves: Sequence[Any]) -> bool:
    """Whether a call is ordinary: nobody records gradients, traces, or watches operators, and tensors are tensors."""
    if torch.is_grad_enabled() or is_observed():
        return False
    return all(_is_plain(value) for value in leaves if isinstance(value, Tensor))


def _is_plain(tensor: Tensor) -> bool:
    return type(tensor) in (Tensor, torch.nn.Parameter) and tensor.layout == torch.strided


def _graphed_within(module: torch.nn.Module) -> list[object]:
    """What remembers calls of a module and its submodules, and changes while they are called."""
    return [part._compiled_call_impl for part in module.modules() if isinstance(part._compiled_call_impl, _Calls)]


def _key(leaves: Sequence[Any], spec: pytree.TreeSpec) -> Key:
    """What calls have in common that one capture can serve."""
    name = torch._C._get_privateuse1_backend_name()
    modes = (
        torch.accelerator.current_device_index(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled(name) and torch.get_autocast_dtype(name),
        torch.get_default_dtype(),
        torch.get_default_device(),
        torch.are_deterministic_algorithms_enabled(),
    )
    return (spec, *modes, *map(_kind_of, leaves))


def _kind_of(value: Any) -> Any:
    if isinstance(value, Tensor):
        return type(value), value.shape, value.stride(), value.dtype, value.device
    return (type(value), value) if isinstance(value, _VALUES) else id(value)


def _device_of(module: torch.nn.Module, leaves: Sequence[Any]) -> int | None:
    """The device that all tensors of a call are on; those of its arguments that have no dimensions may be elsewhere."""
    tensors = [value for value in leaves if isinstance(value, Tensor) and value.dim()]
    devices = {tensor.device for tensor in (*tensors, *module.parameters())}
    here = devices.pop() if len(devices) == 1 else None
    return here.index if here is not None and here.type == torch._C._get_privateuse1_backend_name() else None
