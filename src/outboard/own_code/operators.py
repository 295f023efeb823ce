# SPDX-License-Identifier: Apache-2.0
"""Kernels and functions of libraries as operators of PyTorch: ``outboard.kernel`` and ``outboard.library``."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import torch

from outboard.compiler.adapter.schemas import Operator

from .arguments import device_index, flat, number_of
from .borrowing import borrow
from .kernels import RawKernel

Function = Callable[..., Any]
Numbers = int | Sequence[int] | Function
#: Implementations in use: without these, their registrations would end.
_in_use: set[Implementation] = set()


def kernel(
    operator: str,
    source: str | None = None,
    entry: str = "",
    *,
    grid: Numbers,
    group: Numbers = 1,
    binary: bytes | None = None,
    dialect: str | None = None,
    options: str = "",
    arguments: Function | None = None,
    results: Function | None = None,
    when: Function | None = None,
    contiguous: bool = True,
) -> Implementation:
    """Has a kernel of one's own carry out an operator on the device: in single calls, in backward passes, and as a step
    of compiled graphs::

        outboard.kernel(
            "shop::scale(Tensor x, float factor) -> Tensor",
            source, "scale",
            grid=lambda x, factor, y: -(-x.numel() // 64), group=64,
            arguments=lambda x, factor, y: (x, y, factor, x.numel()),
        )

    Functions among the arguments are given the operator's arguments, all of them and in the schema's order, and, but
    for ``results`` and ``when``, its results.

    Args:
        operator: the name of an operator, ``"aten::silu"``, or the schema of one that is defined hereby.
        source, entry, binary, dialect, options: as of :class:`RawKernel`.
        grid: the number of work-groups, in up to three dimensions, or a function that gives it.
        group: work-items of a work-group, likewise.
        arguments: gives what the kernel is launched with; if left out, the operator's arguments and its results, in
            this order.
        results: makes the results, empty: a tensor or a tuple of them. It is also how tracing learns sizes and dtypes
            of an operator that is defined here. If left out, an operator with one result gets one like its first
            tensor.
        when: whether the kernel takes a call. What it does not take runs as if there were no kernel; so do calls on
            devices of another dialect.
        contiguous: whether the kernel, and the functions beside it but ``results`` and ``when``, get contiguous
            tensors: others are copied first, and copied back if the operator writes to them.

    Returns:
        The implementation, whose ``remove()`` ends it.

    Raises:
        ValueError: for an operator that does not exist, or whose results need ``results``; as :class:`RawKernel`.
    """
    own = RawKernel(source, entry, binary=binary, dialect=dialect, options=options)

    def launch(given: list[Any], made: tuple[torch.Tensor, ...], written: list[torch.Tensor]) -> None:
        values = (*given, *made)
        own(_of(grid, values), _of(group, values), values if arguments is None else arguments(*values))

    return Implementation(operator, launch, results, when, contiguous, own.refusal)


def library(
    operator: str,
    path: str,
    entry: str,
    *,
    arguments: Function | None = None,
    results: Function | None = None,
    when: Function | None = None,
    contiguous: bool = True,
) -> Implementation:
    """Has a function of a shared library carry out an operator on the device, as :func:`kernel` has a kernel do it.

    The function is called as ``int entry(const ob_driver*, ob_stream, ...)`` and submits its work to the driver's
    stream; 0 says that it did. Tensors arrive as addresses on the device (``ob_ptr``), numbers as for
    :class:`RawKernel`. It cannot be called while a graph is captured.

    Args:
        operator, arguments, results, when, contiguous: as of :func:`kernel`.
        path: the shared library. It is loaded at the first call.
        entry: the function's name.

    Raises:
        ValueError: for an operator that does not exist, or whose results need ``results``. Calls raise OSError if the
            library cannot be loaded, AttributeError if it has no such function, and RuntimeError for any status but 0.
    """
    loaded: list[Any] = []

    def call(given: list[Any], made: tuple[torch.Tensor, ...], written: list[torch.Tensor]) -> None:
        if not loaded:
            loaded.append(getattr(ctypes.CDLL(path), entry))
        values = flat((*given, *made) if arguments is None else arguments(*given, *made))
        tensors = [value for value in values if isinstance(value, torch.Tensor)]
        with borrow(*tensors, writes=[*written, *made]) as borrowed:
            passed = [
                ctypes.c_void_p(value if value is None else borrowed.address(value))
                if value is None or isinstance(value, torch.Tensor)
                else number_of(value, place)
                for place, value in enumerate(values)
            ]
            status = loaded[0](ctypes.c_void_p(borrowed.driver), ctypes.c_void_p(borrowed.stream), *passed)
        if status != 0:
            raise RuntimeError(f"{entry} of {path} failed with status {status}")

    return Implementation(operator, call, results, when, contiguous, lambda index: None)


class Implementation:
    """A program's own implementation of an operator on the device, in use until :meth:`remove`."""

    def __init__(
        self,
        operator: str,
        run: Callable[[list[Any], tuple[torch.Tensor, ...], list[torch.Tensor]], None],
        results: Function | None,
        when: Function | None,
        contiguous: bool,
        refusal: Callable[[int], str | None],
    ) -> None:
        self._operator = Operator(operator)
        if results is None and self._operator.results not in (0, 1):
            self._operator.remove()
            raise ValueError(
                f"{self._operator.name} has other results than one tensor: give `results`, which makes them"
            )
        self._run, self._when, self._contiguous, self._refusal = run, when, contiguous, refusal
        self._results = results or self._like_the_first
        self._operator.implement(self._call, self._fake)
        _in_use.add(self)

    def remove(self) -> None:
        """Ends it: calls run as before, and an operator that was defined with it is gone."""
        self._operator.remove()
        _in_use.discard(self)

    def _like_the_first(self, *values: Any) -> Any:
        if self._operator.results == 0:
            return ()
        first = next(value for value in values if isinstance(value, torch.Tensor))
        return torch.empty_like(first, memory_format=torch.contiguous_format)

    def _fake(self, *values: Any) -> Any:
        made = self._made(values)
        return None if self._operator.results == 0 else made

    def _made(self, values: Sequence[Any]) -> Any:
        """The results of a call, empty. Raises TypeError for others than the operator has."""
        made, wanted = self._results(*values), self._operator.results
        if not wanted:
            return made
        tensors = made if isinstance(made, (tuple, list)) else (made,)
        if len(tensors) != wanted or not all(isinstance(each, torch.Tensor) for each in tensors):
            found = ", ".join(type(each).__name__ for each in tensors)
            raise TypeError(f"`results` of {self._operator.name} is to make {wanted} tensors, and made: {found}")
        return tuple(tensors) if wanted > 1 else tensors[0]

    def _call(self, elsewhere: Callable[[], Any], values: list[Any]) -> Any:
        refusal = self._refusal(device_index(flat(values)))
        if refusal is not None and not self._operator.runs_elsewhere:
            raise NotImplementedError(f"{self._operator.name} has no other implementation for the call, and {refusal}")
        if refusal is not None or (self._when is not None and not self._when(*values)):
            return elsewhere()
        made = self._made(values)
        _refuse_shared(self._operator.name, flat(made), flat(values))
        given, results = values, made if isinstance(made, tuple) else (made,)
        if self._contiguous:
            given, results = [_contiguous(value) for value in values], tuple(map(_contiguous, results))
        pairs = [
            pair
            for place in self._operator.written
            for pair in zip(flat(values[place]), flat(given[place]), strict=True)
            if pair[0] is not None
        ]
        self._run(given, results, [passed for _, passed in pairs])
        for target, passed in [*pairs, *zip(flat(made), flat(results), strict=True)]:
            if passed is not target:
                target.copy_(passed)
        for target, _ in pairs:
            torch.autograd.graph.increment_version(target)
        if self._operator.results != 0:
            return made
        returned = [values[place] for place in self._operator.written[: len(self._operator.overload._schema.returns)]]
        return returned[0] if len(returned) == 1 else tuple(returned) or None


def _refuse_shared(name: str, made: list[Any], given: list[Any]) -> None:
    """Raises ValueError for results that lie in the memory of arguments, which nobody expects to be written to."""
    found, others = (
        {each.untyped_storage().data_ptr() for each in values if isinstance(each, torch.Tensor) and each.numel()}
        for values in (made, given)
    )
    if found & others:
        raise ValueError(f"`results` of {name} made one that shares memory with an argument: give it memory of its own")


def _contiguous(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.contiguous()
    return [_contiguous(each) for each in value] if isinstance(value, (list, tuple)) else value


def _of(numbers: Numbers, values: tuple[Any, ...]) -> Any:
    return numbers(*values) if callable(numbers) else numbers
