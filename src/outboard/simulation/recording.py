# SPDX-License-Identifier: Apache-2.0
"""The operators of a function, counted while it is called with tensors that have no data."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, cast

import sympy
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

#: A number of bytes, elements or operations: an expression of PyTorch's symbols where sizes are not known.
Count: TypeAlias = int | sympy.Expr
Kind = Literal["product", "pointwise", "other", "upload", "collective"]

#: Operators that read of their first tensor what their result has, and no more.
_GATHERS = frozenset({"_embedding_bag", "embedding", "gather", "index", "index_select", "take"})
#: Operators that write into a larger tensor what they are given.
_SCATTERS = frozenset({"index_add_", "index_copy_", "index_put_", "scatter_", "scatter_add_"})
#: Operators that do not read what they write.
_OVERWRITES = frozenset({"copy_", "fill_", "index_copy_", "index_put_", "scatter_", "zero_"})
#: Of how many of its first tensors an operator has to know all before it can begin with any: it reads them twice.
_TWICE = {"native_batch_norm": 1, "native_batch_norm_backward": 2}
#: Memory that nobody has written yet.
_EMPTY = frozenset({"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"})
#: Element by element, without PyTorch's tag for it. So are all that begin with _foreach_.
_POINTWISE = frozenset(
    {"_to_copy", "arange", "cat", "constant_pad_nd", "copy_", "fill_", "full", "full_like", "native_dropout",
     "native_dropout_backward", "new_full", "new_ones", "new_zeros", "ones", "ones_like", "scalar_tensor", "stack",
     "tril", "triu", "zero_", "zeros", "zeros_like"}
)  # fmt: skip
#: Collectives, in torch.distributed's namespace of operators. What else is there has no work to do.
_COLLECTIVES = ("all_gather", "all_reduce", "all_to_all", "broadcast", "reduce_scatter")
#: Place of the argument of batch norm without which it is an affine function of each element.
_BATCH_NORM_TRAINS = 5
#: The gradients of attention are five products, and attention is two.
_ATTENTION_BACKWARD = 2.5


@dataclass(frozen=True)
class Operation:
    """One call of an operator.

    Attributes:
        name: the operator's, "aten::mm".
        kind: "product" (of matrices, a convolution, attention), "pointwise", "other", "upload" from the host's memory,
            or "collective".
        dtype: of its first tensor.
        flops: operations of a product; 0 of all others, which memory bounds.
        size: elements of a product's result; of all others, those of the largest tensor.
        reads, writes: bytes, by the number of the memory that they are in.
    """

    name: str
    kind: Kind
    dtype: torch.dtype
    flops: Count
    size: Count
    reads: Mapping[int, Count]
    writes: Mapping[int, Count]


@dataclass(frozen=True)
class Record:
    """What a function did.

    Attributes:
        operations: in the order of the calls.
        sizes: bytes of each memory that they touch, by its number.
        given: numbers of the memories that were there before, such as parameters and inputs.
        kept: numbers of those that are alive when the function is done.
    """

    operations: tuple[Operation, ...]
    sizes: Mapping[int, Count]
    given: frozenset[int]
    kept: frozenset[int]


def record(function: Callable[..., Any], inputs: Sequence[Any]) -> Record:
    """Calls a function with tensors without data, on PyTorch's device ``meta`` or fake ones, and counts what it does
    there. What it returns counts as kept. Operators on tensors of the CPU alone are the host's and do not count."""
    recorder = _Recorder()
    with _WholeAttention(recorder), recorder:
        result = function(*inputs)
    recorded = recorder.record()
    del result
    return recorded


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the operators that are called while it is open, but on the CPU."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._operations: list[Operation] = []
        # The references keep addresses from being used again, so that they tell one memory from another.
        self._numbers: dict[StorageWeakRef, int] = {}
        self._sizes: dict[int, Count] = {}
        self._made: set[int] = set()
        self._paused = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not self._paused:
            self._note(func, args, kwargs or {}, result)
        return result

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Nothing inside counts."""
        before, self._paused = self._paused, True
        try:
            yield
        finally:
            self._paused = before

    def add(
        self,
        name: str,
        kind: Kind,
        flops: Count,
        reads: Sequence[Tensor],
        writes: Sequence[Tensor],
        most_read: Count | None = None,
        most_written: Count | None = None,
        twice: int = 0,
    ) -> None:
        """An operation, how many bytes of its first tensor it reads at most, and of each that it writes, and how many
        of the first it reads ``twice``."""
        read: dict[int, Count] = {}
        for place, tensor in enumerate(reads):
            number = self._number(tensor, made=False)
            bytes_read = (2 if place < twice else 1) * _least(_touched(tensor), None if place else most_read)
            read[number] = most(read.get(number, 0), bytes_read)
        written = {self._number(tensor, made=True): _least(_touched(tensor), most_written) for tensor in writes}
        counted = writes if kind == "product" else [*reads, *writes]
        size = max((tensor.numel() for tensor in counted), default=0, key=_hint)
        dtype = [*reads, *writes][0].dtype
        self._operations.append(Operation(name, kind, dtype, flops, _expression(size), read, written))

    def record(self) -> Record:
        """What was counted so far."""
        kept = frozenset(number for reference, number in self._numbers.items() if not _is_gone(reference))
        return Record(tuple(self._operations), dict(self._sizes), frozenset(self._sizes) - self._made, kept)

    def _note(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        results = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        name = func._schema.name.partition("::")[2]
        if all(tensor.is_cpu for tensor in [*given, *results]):
            return
        if func.namespace == "_c10d_functional" and not name.startswith(_COLLECTIVES):
            self._numbers.update(dict.fromkeys(map(_memory_of, results), self._number(given[0], made=False)))
            return
        inputs = {_memory_of(tensor) for tensor in given}
        fresh = [tensor for tensor in results if _memory_of(tensor) not in inputs]
        changed = _changed(func, args, kwargs)
        if name in _EMPTY or not (fresh or changed):
            for tensor in fresh:
                self._number(tensor, made=True)
            return
        overwritten = changed[:1] if name in _OVERWRITES else []
        reads = [tensor for tensor in given if not tensor.is_cpu and not any(tensor is one for one in overwritten)]
        count = flop_registry.get(func.overloadpacket)
        flops = 0 if count is None else _expression(count(*args, **kwargs, out_val=result))
        kind: Kind = "product" if flops else _kind(func, name, args, given)
        most_read = sum(map(_bytes, fresh)) if name in _GATHERS else None
        most_written = functools.reduce(most, map(_bytes, given[1:])) if name in _SCATTERS else None
        twice = _TWICE.get(name, 0) if kind == "other" else 0
        self.add(func._schema.name, kind, flops, reads, [*fresh, *changed], most_read, most_written, twice)

    def _number(self, tensor: Tensor, made: bool) -> int:
        """The number of a tensor's memory, which is new if it was not seen before."""
        key = _memory_of(tensor)
        number = self._numbers.setdefault(key, len(self._numbers))
        if number not in self._sizes:
            self._sizes[number] = _expression(tensor.untyped_storage().nbytes())
            if made:
                self._made.add(number)
        return number


def _memory_of(tensor: Tensor) -> StorageWeakRef:
    return StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]


def _is_gone(memory: StorageWeakRef) -> bool:
    return bool(memory.expired())  # type: ignore[no-untyped-call]


def _kind(func: Any, name: str, args: Sequence[Any], given: Sequence[Tensor]) -> Kind:
    """Of an operator that is no product."""
    if func.namespace == "_c10d_functional":
        return "collective"
    if name in ("_to_copy", "copy_") and any(tensor.is_cpu for tensor in given):
        return "upload"
    if name == "native_batch_norm" and not args[_BATCH_NORM_TRAINS]:
        return "pointwise"
    pointwise = torch.Tag.pointwise in func.tags or name in _POINTWISE or name.startswith("_foreach_")
    return "pointwise" if pointwise else "other"


def _changed(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Tensor]:
    """Arguments that an operator writes to."""
    found: list[Tensor] = []
    for place, argument in enumerate(func._schema.arguments):
        if argument.is_write:
            value = args[place] if place < len(args) else kwargs.get(argument.name)
            found += [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]
    return found


def _touched(tensor: Tensor) -> Count:
    """Bytes of the elements that a tensor has, those that are expanded once."""
    sizes, strides = map(_expression, tensor.shape), map(_expression, tensor.stride())
    different = (size for size, stride in zip(sizes, strides, strict=True) if stride != 0 or size == 0)
    return math.prod(different) * tensor.element_size()


def _bytes(tensor: Tensor) -> Count:
    return math.prod(map(_expression, tensor.shape)) * tensor.element_size()


def most(a: Count, b: Count) -> Count:
    """The larger of two counts."""
    return max(a, b) if isinstance(a, int) and isinstance(b, int) else sympy.Max(a, b)


def _least(count: Count, bound: Count | None) -> Count:
    if bound is None:
        return count
    return min(count, bound) if isinstance(count, int) and isinstance(bound, int) else sympy.Min(count, bound)


def _expression(number: Any) -> Count:
    return cast(Count, number.node.expr if isinstance(number, torch.SymInt) else number)


def _hint(size: Any) -> int:
    """What a size was when it was traced."""
    return int(size.node.hint if isinstance(size, torch.SymInt) else size)


# ---- attention ----


class _WholeAttention(TorchFunctionMode):
    """Leaves attention one operation. PyTorch takes it apart on ``meta``, and stores all scores."""

    def __init__(self, recorder: _Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not torch.nn.functional.scaled_dot_product_attention:
            return func(*args, **(kwargs or {}))
        return self._attention(*args, **(kwargs or {}))

    def _attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        **others: Any,
    ) -> Tensor:
        if not query.is_meta:
            return torch.nn.functional.scaled_dot_product_attention(
                query, key, value, attn_mask, dropout_p, is_causal, **others
            )
        applied = _Attention.apply(self._recorder, is_causal, query, key, value, attn_mask)  # type: ignore[no-untyped-call]
        return cast(Tensor, applied)


class _Attention(torch.autograd.Function):
    """Counts attention and its gradients."""

    @staticmethod
    def forward(
        ctx: Any, recorder: _Recorder, causal: bool, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None
    ) -> Tensor:
        with recorder.paused():  # heads lie beside one another, as those of kernels on devices
            *outer, heads, queries, _ = query.shape if query.dim() > 3 else (1, *query.shape)
            result = query.new_empty(*outer, queries, heads, value.shape[-1]).transpose(-2, -3)
            result = result if query.dim() > 3 else result[0]
        ctx.recorder = recorder
        ctx.flops = attention_flops(query.shape, key.shape, value.shape, causal)
        ctx.save_for_backward(query, key, value, result)
        reads = [query, key, value] + ([] if mask is None else [mask])
        recorder.add("aten::scaled_dot_product_attention", "product", ctx.flops, reads, [result])
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        saved = ctx.saved_tensors
        with ctx.recorder.paused():
            gradients = [torch.empty_like(tensor) for tensor in saved[:3]]
        name = "aten::scaled_dot_product_attention_backward"
        ctx.recorder.add(name, "product", int(_ATTENTION_BACKWARD * ctx.flops), [gradient, *saved], gradients)
        return None, None, *gradients, None


def attention_flops(query: Sequence[int], key: Sequence[int], value: Sequence[int], causal: bool) -> int:
    """Operations of attention over tensors of these shapes, (..., heads, length, width), without what a causal mask
    hides."""
    queries, keys = query[-2], key[-2]
    seen = sum(min(place + 1, keys) for place in range(queries)) if causal else queries * keys
    return 2 * math.prod(query[:-2]) * seen * (query[-1] + value[-1])
