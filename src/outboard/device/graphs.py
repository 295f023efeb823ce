# SPDX-License-Identifier: Apache-2.0
"""Captured work under the names of ``torch.cuda``: ``Graph``, ``graph``, ``make_graphed_callables``.

What captures is ``torch.accelerator.Graph``; docs/graphs.md says what it records and refuses.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from outboard import _C
from outboard.device import devices, memory, streams

__all__ = ["Graph", "graph", "graph_pool_handle", "is_current_stream_capturing", "make_graphed_callables"]

#: Names a pool of memory: of a graph (:meth:`Graph.pool`), or one to come (:func:`graph_pool_handle`,
#: :attr:`outboard.device.memory.MemPool.id`).
Pool = tuple[int, int]

_handles = itertools.count(1)
#: The graphs whose memory is that of a handle; the first of them has made it.
_made_for: WeakValueDictionary[Pool, torch.accelerator.Graph] = WeakValueDictionary()


def graph_pool_handle() -> Pool:
    """A name for memory that graphs are to share: the first that is captured with it makes the pool."""
    return -next(_handles), 0


def is_current_stream_capturing() -> bool:
    """Whether what is queued on the current stream is being captured."""
    return bool(_C.is_capturing())


class Graph:
    """Work of the device that is captured once and replayed, as ``torch.cuda.CUDAGraph``."""

    def __init__(self, keep_graph: bool = False) -> None:
        """``keep_graph`` is accepted and makes no difference: a recording is ready when it ends."""
        self._graph: torch.accelerator.Graph | None = None

    def capture_begin(self, pool: Pool | None = None, capture_error_mode: Any = "global") -> None:
        """Begins to capture what is queued on the current stream. ``pool``: memory to share."""
        is_name = pool is not None and (pool[0] < 0 or pool[0] == memory.USERS)
        maker = _made_for.get(pool) if pool is not None else None
        known = pool if not is_name else maker.pool() if maker is not None else None
        self._graph = torch.accelerator.Graph(pool=known, capture_error_mode=capture_error_mode)
        self._graph.capture_begin()
        if pool is not None and is_name and maker is None:
            _made_for[pool] = self._graph

    def capture_end(self) -> None:
        """Ends the capture."""
        self._captured().capture_end()

    def instantiate(self) -> None:
        """Nothing to do: a recording is ready when it ends."""
        self._captured().instantiate()

    def replay(self) -> None:
        """Queues the captured work on the current stream."""
        self._captured().replay()

    def reset(self) -> None:
        """Forgets the captured work."""
        self._captured().reset()

    def pool(self) -> Pool:
        """Names the memory of the graph, for another's ``capture_begin``."""
        return self._captured().pool()

    def enable_debug_mode(self) -> None:
        """Allows :meth:`debug_dump`."""
        self._captured().enable_debug_mode()

    def debug_dump(self, debug_path: str) -> None:
        """Writes the captured commands, a line of text each."""
        self._captured().debug_dump(debug_path)

    def _captured(self) -> torch.accelerator.Graph:
        if self._graph is None:
            raise RuntimeError("nothing was captured: call capture_begin() first")
        return self._graph


class graph:  # noqa: N801 - the name of PyTorch
    """Context manager that captures what is queued in it, as ``torch.cuda.graph``.

    Args:
        device_graph: takes the captured work.
        pool: memory to share (see :meth:`Graph.pool`, :func:`graph_pool_handle`).
        stream: where to capture (default: a stream of its own).
        capture_error_mode: accepted as PyTorch's; only the capturing thread's stream is recorded in any case.
    """

    def __init__(
        self,
        device_graph: Graph,
        pool: Pool | None = None,
        stream: torch.Stream | None = None,
        capture_error_mode: str = "global",
    ) -> None:
        self._graph = device_graph
        self._arguments = (pool, capture_error_mode)
        self._stream = streams.StreamContext(torch.Stream(devices.name()) if stream is None else stream)

    def __enter__(self) -> None:
        torch.accelerator.synchronize()
        self._stream.__enter__()
        self._graph.capture_begin(*self._arguments)

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._graph.capture_end()
        finally:
            self._stream.__exit__(kind, value, trace)


# ---- callables whose forward and backward passes are graphs ----


@dataclass
class _Pass:
    """A captured pass: its graph, what it reads, and what it leaves, in the same memory each time."""

    graph: Graph
    inputs: tuple[Tensor | None, ...]
    outputs: tuple[Tensor | None, ...]

    def run(self, values: Sequence[Tensor | None]) -> tuple[Tensor | None, ...]:
        """Replays it for other ``values`` of the inputs."""
        for place, value in zip(self.inputs, values, strict=False):
            if place is not None and value is not None and place.data_ptr() != value.data_ptr():
                place.copy_(value)
        self.graph.replay()
        return tuple(None if output is None else output.detach() for output in self.outputs)


class _Sample:
    """A callable with the arguments that it is captured for."""

    def __init__(self, function: Callable[..., Any], arguments: Any) -> None:
        if isinstance(function, nn.Module):
            _refuse_hooks(function)
        self.function = function
        self.arguments = tuple(arguments)
        flat, self.arguments_form = pytree.tree_flatten(self.arguments)
        if not all(isinstance(argument, Tensor) for argument in flat):
            raise TypeError("make_graphed_callables() takes tensors as sample_args, in tuples, lists and dictionaries")
        self.given: tuple[Tensor, ...] = tuple(flat)
        parameters = tuple(function.parameters()) if isinstance(function, nn.Module) else ()
        self.inputs = self.given + parameters
        self.results_form: Any = None

    def forward(self) -> tuple[Tensor, ...]:
        """Its results, flat."""
        results, self.results_form = pytree.tree_flatten(self.function(*self.arguments))
        return tuple(results)

    def backward(
        self, results: tuple[Tensor, ...], slopes: tuple[Tensor | None, ...], allow_unused: bool
    ) -> tuple[Tensor | None, ...]:
        """Gradients of the inputs that need one, with None for all others."""
        pairs = [(result, slope) for result, slope in zip(results, slopes, strict=True) if slope is not None]
        needed = [value for value in self.inputs if value.requires_grad]
        if not pairs or not needed:
            return tuple(None for _ in self.inputs)
        found = iter(
            torch.autograd.grad(
                [result for result, _ in pairs],
                needed,
                grad_outputs=[slope for _, slope in pairs],
                only_inputs=True,
                allow_unused=allow_unused,
            )
        )
        return tuple(next(found) if value.requires_grad else None for value in self.inputs)


def _refuse_hooks(module: nn.Module) -> None:
    """Raises RuntimeError for what a replay would leave out."""
    if module._backward_hooks or module._forward_hooks or module._forward_pre_hooks:
        raise RuntimeError("make_graphed_callables() takes modules without hooks: register them on the result")
    if any(buffer.requires_grad for buffer in module.buffers()):
        raise RuntimeError("make_graphed_callables() takes modules whose buffers need no gradient")


def _slopes(results: tuple[Tensor, ...]) -> tuple[Tensor | None, ...]:
    """Memory for the gradients of results."""
    return tuple(torch.empty_like(result) if result.requires_grad else None for result in results)


def _warm_up(samples: list[_Sample], times: int, allow_unused: bool) -> None:
    """Runs each a few times on a stream of its own, so that all is compiled before it is captured."""
    torch.accelerator.synchronize()
    with streams.StreamContext(torch.Stream(devices.name())):
        for sample in samples:
            for _ in range(times):
                results = sample.forward()
                sample.backward(results, _slopes(results), allow_unused)
    torch.accelerator.synchronize()


def _capture_forward(sample: _Sample, pool: Pool) -> _Pass:
    taken = Graph()
    with graph(taken, pool=pool):
        results = sample.forward()
    return _Pass(taken, sample.given, results)


def _capture_backward(sample: _Sample, results: tuple[Any, ...], pool: Pool, allow_unused: bool) -> _Pass:
    taken, slopes = Graph(), _slopes(results)
    with graph(taken, pool=pool):
        gradients = sample.backward(results, slopes, allow_unused)
    return _Pass(taken, slopes, gradients)


def _graphed(sample: _Sample, ahead: _Pass, back: _Pass) -> Callable[..., Any]:
    """A function that replays both passes, as one operation of autograd."""

    class Graphed(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: Tensor) -> Any:
            return ahead.run(inputs)

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx: Any, *slopes: Tensor) -> Any:
            return back.run(slopes)

    others = sample.inputs[len(sample.given) :]

    def call(*arguments: Any) -> Any:
        flat, form = pytree.tree_flatten(arguments)
        if form != sample.arguments_form:
            raise TypeError("the arguments are not of the form of sample_args, for which the callable was captured")
        return pytree.tree_unflatten(list(Graphed.apply(*flat, *others)), sample.results_form)  # type: ignore[no-untyped-call]

    return call


def _replaced(sample: _Sample, call: Callable[..., Any]) -> Callable[..., Any]:
    """What the user gets: the function, or the module with another ``forward`` for the mode it was captured in."""
    module = sample.function
    if not isinstance(module, nn.Module):
        return call
    mode, original = module.training, module.forward

    def forward(*arguments: Any, **named: Any) -> Any:
        return call(*arguments) if module.training == mode and not named else original(*arguments, **named)

    module.forward = forward
    return module


def make_graphed_callables(
    callables: Any,
    sample_args: Any,
    num_warmup_iters: int = 3,
    allow_unused_input: bool = False,
    pool: Pool | None = None,
    capture_error_mode: str = "global",
    enable_annotations: bool = False,
) -> Any:
    """Functions or modules whose forward and backward passes are replayed graphs, as
    ``torch.cuda.make_graphed_callables``.

    Args:
        callables: one, or a tuple of those that run in this order. A module gets another ``forward`` for the mode
            (training or not) in which it was captured.
        sample_args: the tuple of arguments of the callable, or a tuple of such tuples. Later arguments have their
            shapes, dtypes, layouts and ``requires_grad``.
        num_warmup_iters: how often each is run before it is captured.
        allow_unused_input: whether inputs may have no part in the results.
        pool: memory to share with other graphs.
        capture_error_mode: accepted and makes no difference, as in :class:`graph`.
        enable_annotations: accepted and makes no difference: kernels have their names in ``torch.profiler``.

    Raises:
        RuntimeError: of modules with hooks or buffers that need gradients, with autocast's cache on, and of what a
            capture refuses.
        TypeError: if arguments are not all tensors.
    """
    if torch.is_autocast_enabled(devices.name()) and torch.is_autocast_cache_enabled():
        raise RuntimeError("make_graphed_callables() does not go with autocast's cache: pass cache_enabled=False")
    alone = not isinstance(callables, tuple)
    pairs = [(callables, sample_args)] if alone else list(zip(callables, sample_args, strict=True))
    samples = [_Sample(function, arguments) for function, arguments in pairs]
    _warm_up(samples, num_warmup_iters, allow_unused_input)
    shared = graph_pool_handle() if pool is None else pool
    ahead = [_capture_forward(sample, shared) for sample in samples]
    back: list[_Pass] = []
    for sample, before in zip(reversed(samples), reversed(ahead), strict=True):
        back.insert(0, _capture_backward(sample, before.outputs, shared, allow_unused_input))
    for before in ahead:  # the graph of autograd has served its purpose
        before.outputs = tuple(None if output is None else output.detach() for output in before.outputs)
    made = [
        _replaced(sample, _graphed(sample, *passes))
        for sample, passes in zip(samples, zip(ahead, back, strict=True), strict=True)
    ]
    return made[0] if alone else tuple(made)
