# SPDX-License-Identifier: Apache-2.0
"""Text by which the work-items of a group make one value of what each of them has.

With sub-groups, whose items read each other's registers ("shuffle"), items meet in a tree in their sub-group; each
sub-group then leaves one value in local memory, and all of them combine these values in the same way. Without, items
meet in a tree in local memory, with a barrier for each of its levels (after M. Harris, "Optimizing Parallel Reduction
in CUDA", 2007).

Orders are fixed: each run gives the same bits. The functions are right for sub-groups of any size, also the last one of
a group, which may be smaller. The tree in local memory wants groups whose size is a power of two.
"""

from __future__ import annotations

import dataclasses

import torch

from .prelude import Prelude
from .reductions import better, combine, identity_of
from .types import type_name

#: As many times as many terms as a sub-group has work-items are worth more than one sub-group.
STEPS = 8
#: Between stores of some items and loads of others.
BARRIER = "OB_BARRIER();"
SUB_GROUP_BARRIER = "OB_SUB_GROUP_BARRIER();"


@dataclasses.dataclass(frozen=True)
class Part:
    """What one work-item has of a reduction: a value, or for ``argmax`` and ``argmin`` a value and its place, which is
    -1 where the item has seen none. ``dtype`` is a compute dtype."""

    kind: str
    dtype: torch.dtype

    @property
    def dtypes(self) -> list[torch.dtype]:
        """The dtypes of the variables that hold it."""
        return [self.dtype, torch.int64] if self.kind in ("argmax", "argmin") else [self.dtype]

    @property
    def types(self) -> list[str]:
        """Their types in C."""
        return [type_name(dtype) for dtype in self.dtypes]

    def nothing(self) -> list[str]:
        """What an item has that has seen nothing."""
        return [identity_of(self.kind, self.dtype), "-1"][: len(self.dtypes)]

    def merge(self, prelude: Prelude, own: list[str], other: list[str]) -> str:
        """The statement that adds ``other`` to ``own``. Raises Unsupported."""
        if len(own) == 1:
            return f"{own[0]} = {combine(prelude, self.kind, own[0], other[0], self.dtype, 1)};"
        (best, where), (there, place) = own, other
        replaces = better(self.kind, there, best, place, where, self.dtype)
        return f"if ({place} >= 0 && ({where} < 0 || {replaces})) {{ {best} = {there}; {where} = {place}; }}"


class Meeting:
    """The functions by which work-items meet. Each method gives the name of one and adds its text to ``prelude``.

    ``sub_group_size`` is that of the device, 1 if it has no sub-groups."""

    def __init__(self, prelude: Prelude, sub_group_size: int) -> None:
        self.prelude = prelude
        self.sub_group_size = sub_group_size

    def attribute(self) -> str:
        """What a kernel that uses the functions says of itself, for sub-groups to have the size that is expected."""
        if self.sub_group_size == 1:
            return ""
        return f"OB_SUB_GROUPS_OF({self.sub_group_size})"

    def near(self, part: Part) -> str:
        """``near(T* value, ...)``: makes the items' parts that of their sub-group."""
        self.attribute()
        own, other = _pointed(part), [f"o{n}" for n in range(len(part.types))]
        fetch = [f"const {t} {o} = {_shuffled(t, v, 'from')};" for t, v, o in zip(part.types, own, other, strict=True)]
        first = [f"{v} = {_shuffled(t, v, '0u')};" for t, v in zip(part.types, own, strict=True)]
        return self._function("near", part, _pointers(part), [
            "const uint size = OB_SUB_GROUP_SIZE(), lane = OB_SUB_GROUP_ITEM();",
            "for (uint reach = 1; reach < size; reach *= 2) {",
            "  const uint from = min(lane + reach, size - 1);",
            *(f"  {line}" for line in fetch),
            f"  if (lane + reach < size) {{ {part.merge(self.prelude, own, other)} }}",
            "}",
            *first,
        ])  # fmt: skip

    def leave(self, part: Part) -> str:
        """``leave(T value, ..., OB_LOCAL T* shared, ...)``: the first half of a meeting of the whole group. A barrier
        follows. ``shared`` has room for a value of each work-item."""
        values = [f"v{n}" for n in range(len(part.types))]
        parameters = [f"{t} {v}" for t, v in zip(part.types, values, strict=True)] + _arrays(part)
        if self.sub_group_size == 1:
            stores = [f"s{n}[OB_LOCAL_ID(0)] = {v};" for n, v in enumerate(values)]
            return self._function("leave", part, parameters, stores)
        stores = [f"s{n}[OB_SUB_GROUP_ID()] = {v};" for n, v in enumerate(values)]
        return self._function("leave", part, parameters, [
            f"{self.near(part)}({', '.join(f'&{v}' for v in values)});",
            f"if (OB_SUB_GROUP_ITEM() == 0) {{ {' '.join(stores)} }}",
        ])  # fmt: skip

    def learn(self, part: Part) -> str:
        """``learn(T* value, ..., OB_LOCAL T* shared, ...)``: the second half; all items get to know the whole. A
        barrier must follow before ``shared`` is used again."""
        parameters = [*_pointers(part), *_arrays(part)]
        return self._function(
            "learn", part, parameters, self._tree(part) if self.sub_group_size == 1 else self._few(part)
        )

    def meet(self, part: Part) -> str:
        """``meet(T* value, ..., OB_LOCAL T* shared, ...)``: both halves and the barriers."""
        own, arrays = [f"v{n}" for n in range(len(part.types))], [f"s{n}" for n in range(len(part.types))]
        leave, learn = self.leave(part), self.learn(part)
        return self._function("meet", part, [*_pointers(part), *_arrays(part)], [
            f"{leave}({', '.join([*_pointed(part), *arrays])});", BARRIER,
            f"{learn}({', '.join([*own, *arrays])});", BARRIER,
        ])  # fmt: skip

    def _few(self, part: Part) -> list[str]:
        """Every sub-group combines what all of them have left."""
        own = _pointed(part)
        left = [f"s{n}[place]" for n in range(len(own))]
        start = [f"{v} = {nothing};" for v, nothing in zip(own, part.nothing(), strict=True)]
        return [
            *start,
            "const uint size = OB_SUB_GROUP_SIZE(), count = OB_SUB_GROUP_COUNT();",
            "for (uint place = OB_SUB_GROUP_ITEM(); place < count; place += size) {",
            f"  {part.merge(self.prelude, own, left)}",
            "}",
            f"{self.near(part)}({', '.join(f'v{n}' for n in range(len(own)))});",
        ]

    def _tree(self, part: Part) -> list[str]:
        """Half of the items add what the other half has, half of them again, and so on."""
        count = range(len(part.types))
        merge = part.merge(self.prelude, [f"s{n}[t]" for n in count], [f"s{n}[t + reach]" for n in count])
        return [
            "const int t = OB_LOCAL_ID(0);",
            "for (int reach = OB_LOCAL_COUNT(0) / 2; reach > 0; reach /= 2) {",
            f"  if (t < reach) {{ {merge} }}",
            f"  {BARRIER}",
            "}",
            *(f"*v{n} = s{n}[0];" for n in count),
        ]

    def _function(self, name: str, part: Part, parameters: list[str], lines: list[str]) -> str:
        full = f"ob_{name}_{part.kind}_{str(part.dtype).removeprefix('torch.')}"
        body = "\n".join(f"  {line}" for line in lines)
        self.prelude.snippets.setdefault(full, f"void {full}({', '.join(parameters)}) {{\n{body}\n}}")
        return full


def _pointers(part: Part) -> list[str]:
    return [f"{t}* v{n}" for n, t in enumerate(part.types)]


def _pointed(part: Part) -> list[str]:
    return [f"*v{n}" for n in range(len(part.types))]


def _arrays(part: Part) -> list[str]:
    return [f"OB_LOCAL {t}* s{n}" for n, t in enumerate(part.types)]


def _shuffled(kind: str, value: str, lane: str) -> str:
    """Another item's value; those of less than four bytes travel as int, which every extension knows."""
    if kind in ("char", "uchar", "short", "ushort"):
        return f"({kind})OB_SHUFFLE((int)({value}), {lane})"
    return f"OB_SHUFFLE({value}, {lane})"
