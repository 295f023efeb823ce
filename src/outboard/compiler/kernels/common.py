# SPDX-License-Identifier: Apache-2.0
"""What every kernel family needs: the dialect's prelude, element types, argument binding, row geometry, launches.

Kernel texts are static C; what varies (element types, number of dimensions, device class) enters as macros in front of
them, so a family has one program per such choice and none per shape.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import sympy
import torch
from torch.utils._sympy import functions

from ..dialects.c import Prelude, groups
from ..dialects.c.types import memory_type, type_name
from ..loops.nest import compute_dtype
from ..plans import plan as p
from ..plans import strided
from ..plans.builder import PlanBuilder, Size, TensorArg
from ..units import COMPUTE_UNITS

_SHARED_PRELUDE = r"""
/* Reports a failed assertion, unless a kernel before has: what went wrong first is what a user has to know. */
#define OB_FAIL(failed, code) do { if (*(failed) == 0) *(failed) = (code); } while (0)
float ob_load_bfloat16(OB_GLOBAL const ushort* p, long i) { return as_float((uint)p[i] << 16); }
void ob_store_bfloat16(OB_GLOBAL ushort* p, long i, float v) {
  uint bits = as_uint(v);
  p[i] = v != v ? (ushort)0x7fc0 : (ushort)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
"""

#: How work-items share a range: contiguous chunks suit caches, a grid stride suits coalescing.
_CHUNK_LOOP = r"""
#define OB_FOR(i, count) \
  for (long i = (count) * OB_ITEM_ID(0) / OB_ITEM_COUNT(0),                      \
            i##_end = (count) * (OB_ITEM_ID(0) + 1) / OB_ITEM_COUNT(0);             \
       i < i##_end; ++i)
"""
_GRID_LOOP = r"""
#define OB_FOR(i, count) for (long i = OB_ITEM_ID(0); i < (count); i += OB_ITEM_COUNT(0))
"""


@dataclasses.dataclass(frozen=True)
class ElementType:
    """How a dtype is stored (``storage``) and computed with (``compute``) in C."""

    storage: str
    compute: str
    load: str = "((p)[i])"
    store: str = "((p)[i] = ({storage})(v))"

    def macros(self, prefix: str) -> str:
        """``<prefix>_T`` (storage), ``<prefix>_C`` (compute), ``<prefix>_BITS`` (storage that can be copied),
        ``<prefix>_LOAD(p, i)``, ``<prefix>_STORE(p, i, v)``."""
        bits = "ushort" if self.storage == "ob_half" else self.storage
        return (
            f"#define {prefix}_BITS {bits}\n"
            f"#define {prefix}_T {self.storage}\n#define {prefix}_C {self.compute}\n"
            f"#define {prefix}_LOAD(p, i) {self.load}\n"
            f"#define {prefix}_STORE(p, i, v) {self.store.format(storage=self.storage)}\n"
        )


FLOAT_DTYPES = frozenset({torch.float32, torch.float64, torch.float16, torch.bfloat16})
INTEGER_DTYPES = frozenset({torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8})
#: How elements are loaded and stored where that is no assignment.
_ACCESS = {
    torch.float16: ("OB_LOAD_HALF(p, i)", "OB_STORE_HALF(p, i, v)"),
    torch.bfloat16: ("ob_load_bfloat16(p, i)", "ob_store_bfloat16(p, i, v)"),
    torch.bool: ("((p)[i])", "((p)[i] = (uchar)((v) != 0))"),
}


def _compute_type(dtype: torch.dtype) -> str:
    """Halves are widened, and integers promoted as C does it."""
    if not dtype.is_floating_point and dtype.itemsize < torch.int32.itemsize:
        return type_name(torch.int32)
    return type_name(compute_dtype(dtype))


ELEMENT_TYPES = {
    dtype: ElementType(memory_type(dtype), _compute_type(dtype), *_ACCESS.get(dtype, ()))
    for dtype in (*FLOAT_DTYPES, *INTEGER_DTYPES, torch.bool)
}


def compute_size(compute: str) -> int:
    """Bytes of a number of a compute type (``ElementType.compute``, or the accumulator of a product)."""
    return 8 if compute in ("double", "long") else 4


def stored_as(dtype: torch.dtype, compute: str) -> bool:
    """Whether elements of ``dtype`` lie in memory as they are computed with, so that vectors of them can be loaded."""
    return ELEMENT_TYPES[dtype].storage == compute


def supported(builder: PlanBuilder, *dtypes: torch.dtype) -> bool:
    """Whether kernels on the builder's device can hold every one of the dtypes."""
    if torch.float64 in dtypes and not builder.target.has_fp64:
        return False
    return all(dtype in ELEMENT_TYPES for dtype in dtypes)


def source(builder: PlanBuilder, body: str, defines: Mapping[str, object], types: Mapping[str, torch.dtype]) -> str:
    """The text of a program: prelude, macros for ``types`` (see :meth:`ElementType.macros`) and ``defines``, body."""
    target = builder.target
    parts = [_SHARED_PRELUDE, _CHUNK_LOOP if target.tuning.vectors else _GRID_LOOP]
    parts += [ELEMENT_TYPES[dtype].macros(prefix) for prefix, dtype in types.items()]
    parts += [f"#define {name} {value}\n" for name, value in defines.items()]
    return "".join(parts) + body


_COMPUTE_DTYPES = {"float": torch.float32, "double": torch.float64, "int": torch.int32, "long": torch.int64}


def has_sub_groups(builder: PlanBuilder) -> bool:
    """Whether kernels may shuffle in sub-groups."""
    return builder.target.sub_group_size > 1


def group_functions(builder: PlanBuilder, group: int, sum_of: str = "") -> str:
    """Text to put before a kernel that begins with ``GROUP_KERNEL`` and whose work-groups have ``group`` items, a power
    of two.

    With a compute type as ``sum_of``, ``GROUP_SUM(value, shared)`` makes the variable ``value`` of that type the sum
    over all items, for each of them; ``shared`` is an array in local memory with room for one number of each. With
    sub-groups (``has_sub_groups``), ``NEAR_SUM(value)`` makes it the sum over those of the sub-group, which pays for
    less than ``NEAR_TERMS`` terms, and there is ``OB_SHUFFLE`` of ``dialects.groups``."""
    if group == 1:
        return "#define GROUP_KERNEL OB_KERNEL\n"
    prelude = Prelude()
    meeting = groups.Meeting(prelude, builder.target.sub_group_size if has_sub_groups(builder) else 1)
    macros = f"#define GROUP_KERNEL OB_KERNEL {meeting.attribute()}\n"
    if sum_of:
        part = groups.Part("sum", _COMPUTE_DTYPES[sum_of])
        macros += f"#define GROUP_SUM(value, shared) {meeting.meet(part)}(&(value), shared)\n"
        if has_sub_groups(builder):
            macros += f"#define NEAR_SUM(value) {meeting.near(part)}(&(value))\n"
            macros += f"#define NEAR_TERMS {groups.STEPS * meeting.sub_group_size}\n"
    return "\n".join([*prelude.snippets.values(), macros])


def static_int(value: object) -> int | None:
    """The value as an int if it is known at compile time, else None."""
    if isinstance(value, (bool, int)):
        return int(value)
    if isinstance(value, sympy.Basic) and value.is_Integer:
        return int(value)
    return None


def int_list(value: object, length: int) -> list[Size] | None:
    """An ``int[length]`` argument, a single value repeated; None if it is no such thing."""
    if isinstance(value, (int, sympy.Basic)):
        return [value] * length
    if not isinstance(value, (list, tuple)) or len(value) not in (1, length):
        return None
    items = list(value)
    return items * length if len(items) == 1 else items


def wrap_dim(dim: object, rank: int) -> int | None:
    """A dimension counted from the front; None if it is unknown at compile time or out of range."""
    value = static_int(dim)
    rank = max(rank, 1)
    if value is None or not -rank <= value < rank:
        return None
    return value % rank


def floor_div(numerator: Size, denominator: Size) -> Size:
    """``floor(numerator / denominator)``."""
    quotient: Size = functions.FloorDiv(sympy.sympify(numerator), sympy.sympify(denominator))
    return quotient


def smaller(a: Size, b: Size) -> Size:
    """The smaller of two sizes."""
    result: Size = functions.Min(sympy.sympify(a), sympy.sympify(b))  # type: ignore[no-untyped-call]
    return result


def larger(a: Size, b: Size) -> Size:
    """The larger of two sizes."""
    result: Size = functions.Max(sympy.sympify(a), sympy.sympify(b))  # type: ignore[no-untyped-call]
    return result


def ceil_div(numerator: Size, denominator: Size) -> Size:
    """``ceil(numerator / denominator)`` of non-negative integers."""
    return floor_div(sympy.sympify(numerator) + denominator - 1, denominator)


def parity(count: Size) -> Size:
    """``count % 2`` of a non-negative integer."""
    count = sympy.sympify(count)
    return count - 2 * floor_div(count, 2)


def holds(builder: PlanBuilder, condition: sympy.Basic) -> bool:
    """Whether a condition on sizes and compute units holds for those at hand; the plan is restricted to what it holds
    for."""
    here = condition.subs(COMPUTE_UNITS, builder.target.compute_units)
    known = builder.hint(sympy.Piecewise((1, here), (0, True))) == 1
    builder.assume(condition if known else sympy.Not(condition))
    return known


def scalar_arguments(builder: PlanBuilder, value: object, double: bool) -> list[p.Argument] | None:
    """A number as two kernel arguments, ``float`` (``double`` if so asked) and ``long``, whose sum it is.

    A run-time value is one or the other, and plans convert between neither. None for anything but a real number.
    """
    if builder.is_float_symbol(value):
        return [float_value(builder, value, double), builder.int64(0)]
    if isinstance(value, (int, sympy.Integer)):
        if not -(2**63) <= int(value) < 2**63:
            return None
        return [float_value(builder, 0.0, double), builder.int64(int(value))]
    if isinstance(value, (float, sympy.Float)):
        return [float_value(builder, float(value), double), builder.int64(0)]
    if isinstance(value, sympy.Expr) and value.is_integer:
        return [float_value(builder, 0.0, double), builder.int64(value)]
    return None


def float_value(builder: PlanBuilder, value: Any, double: bool = False) -> p.Argument:
    """A ``float`` (or ``double``) argument: a float symbol, or the bits of a number as an integer of the same size."""
    if builder.is_float_symbol(value):
        return builder.float_symbol(value, double)
    value = float(value)
    if double:
        return builder.int64(struct.unpack("<q", struct.pack("<d", value))[0])
    return builder.int32(struct.unpack("<i", struct.pack("<f", value))[0])


class Rows:
    """The dimensions of tensors other than those a kernel walks itself, folded into one row number.

    ``strides`` gives each named tensor's strides for ``sizes``. Dimensions that every tensor steps through evenly are
    merged, so contiguous tensors have at most two. In C, :meth:`macros` defines ``ROW_PARAMETERS`` (to be appended to
    the parameter list) and ``ROW_OFFSETS(row)``, which declares ``long <name>_row``, in elements, for every tensor.
    """

    def __init__(self, sizes: Sequence[Size], strides: Mapping[str, Sequence[Size]]) -> None:
        self.names = list(strides)
        self.count = strided.product(sizes)
        self.dims: list[tuple[Size, list[Size]]] = []
        for position, size in enumerate(sizes):
            if size == 1:
                continue
            self._append(size, [strides[name][position] for name in self.names])

    def _append(self, size: Size, strides: list[Size]) -> None:
        if self.dims:
            outer_size, outer_strides = self.dims[-1]
            pairs = zip(outer_strides, strides, strict=True)
            if all(sympy.expand(outer - inner * size) == 0 for outer, inner in pairs):
                self.dims[-1] = (outer_size * size, strides)
                return
        self.dims.append((size, strides))

    def macros(self) -> str:
        """The two macros."""
        rank = len(self.dims)
        parameters = "".join(
            f", const long row_n{k}" + "".join(f", const long {name}_r{k}" for name in self.names) for k in range(rank)
        )
        declare = "".join(f"long {name}_row = 0; " for name in self.names)
        steps = ""
        for k in reversed(range(rank)):
            index = "row_q" if k == 0 else f"row_q % row_n{k}"
            adds = " ".join(f"{name}_row += row_i * {name}_r{k};" for name in self.names)
            divide = "" if k == 0 else f" row_q /= row_n{k};"
            steps += f"{{ const long row_i = {index}; {adds}{divide} }} "
        body = f"{declare}{{ long row_q = (row); {steps}}}" if rank else declare
        return f"#define ROW_PARAMETERS {parameters}\n#define ROW_OFFSETS(row) {body}\n"

    def arguments(self, builder: PlanBuilder) -> list[p.Argument]:
        """The values for ``ROW_PARAMETERS``."""
        result = []
        for size, strides in self.dims:
            result += [builder.int64(size), *(builder.int64(stride) for stride in strides)]
        return result


def launch_items(
    builder: PlanBuilder, kernel: int, count: Size, arguments: Sequence[p.Argument], grain: int = 512
) -> None:
    """Launches a kernel that shares ``count`` items with ``OB_FOR``; ``grain`` are worth a work-item of vectors."""
    tuning = builder.target.tuning
    if tuning.vectors:
        items = smaller(ceil_div(count, grain), 16 * COMPUTE_UNITS)
        builder.launch(kernel, (larger(1, items),), arguments, (1, 1, 1))
        return
    local = group_size(builder, tuning.group)
    launch_groups(builder, kernel, ceil_div(count, local), arguments, local)


def group_size(builder: PlanBuilder, wanted: int, bytes_each: int = 0) -> int:
    """The largest power of two up to ``wanted`` (one itself) that the device takes as the number of work-items of a
    work-group which needs ``bytes_each`` bytes of local memory for each of them; 1 where work-items do not meet."""
    target = builder.target
    size = 1 if target.tuning.vectors else wanted
    while size > 1 and (size > target.max_work_group_size or size * bytes_each > target.local_memory):
        size //= 2
    return size


def launch_groups(builder: PlanBuilder, kernel: int, count: Size, arguments: Sequence[p.Argument], local: int) -> None:
    """Launches at least one and at most 65535 groups of ``local`` work-items that stride over ``count`` pieces."""
    groups = larger(1, smaller(count, 65535))
    builder.launch(kernel, (groups * local,), arguments, (local, 1, 1))


def without(values: Sequence[Size], dim: int) -> list[Size]:
    """All but one entry; empty stays empty (a 0-dimensional tensor)."""
    return [value for position, value in enumerate(values) if position != dim]


def broadcast_strides(tensor: TensorArg, sizes: Sequence[Size]) -> list[Size]:
    """The tensor's strides when it is broadcast to ``sizes``, which it must be able to."""
    missing = len(sizes) - len(tensor.sizes)
    zero = sympy.Integer(0)
    own = zip(tensor.sizes, tensor.strides, sizes[missing:], strict=True)
    return [zero] * missing + [zero if size == 1 and target != 1 else stride for size, stride, target in own]


def size_at(tensor: TensorArg, dim: int) -> Size:
    """Size along a dimension; 1 for a 0-dimensional tensor."""
    return tensor.sizes[dim] if tensor.sizes else sympy.Integer(1)


def stride_at(tensor: TensorArg, dim: int) -> Size:
    """Stride along a dimension; 0 for a 0-dimensional tensor."""
    return tensor.strides[dim] if tensor.strides else sympy.Integer(0)
