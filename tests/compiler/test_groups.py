# SPDX-License-Identifier: Apache-2.0
"""How the work-items of a group meet: groups and sub-groups of unusual sizes, by each extension."""

from __future__ import annotations

import pytest
import torch

from outboard import _C
from outboard.compiler.dialects.c import Prelude, groups
from outboard.compiler.plans import plan as p
from outboard.compiler.plans.builder import PlanBuilder, TensorArg
from outboard.compiler.plans.schema import serialize
from outboard.compiler.target import Target, target_of

KINDS = ["sum", "prod", "min", "max", "any", "xor_sum", "argmax", "argmin"]


@pytest.fixture
def gpu() -> Target:
    real = target_of(0)
    if real.sub_group_size == 1:
        pytest.skip("the OpenCL runtime has no sub-groups that can shuffle; Intel's for CPUs has")
    return real


def _source(kind: str, dtype: torch.dtype, group: int, sub_group_size: int) -> str:
    """A kernel whose groups meet twice, at the same place in local memory; items tell what they know if it is the same
    both times."""
    prelude, part = Prelude(), groups.Part(kind, dtype)
    meeting = groups.Meeting(prelude, sub_group_size)
    meet, term = meeting.meet(part), part.types[0]
    count = len(part.types)
    variables, arrays = ["v", "w"][:count], [f"s{n}" for n in range(count)]
    declarations = [f"  OB_SHARED {t} {name}[{group}];" for t, name in zip(part.types, arrays, strict=True)]
    head = f"OB_KERNEL {meeting.attribute()} void meet(OB_GLOBAL const {term}* p, OB_GLOBAL long* q)"
    lines = [
        *prelude.snippets.values(),
        f"{head} {{",
        *declarations,
        "  long known[2];",
        "  for (int time = 0; time < 2; ++time) {",
        f"    {term} v = p[OB_ITEM_ID(0)];",
        "    long w = OB_ITEM_ID(0);",
        f"    {meet}({', '.join([*(f'&{v}' for v in variables), *arrays])});",
        f"    known[time] = {variables[-1]};",
        "  }",
        "  q[OB_ITEM_ID(0)] = known[0] == known[1] ? known[0] : LONG_MIN;",
        "}",
    ]
    return "\n".join(lines) + "\n"


def _run(target: Target, source: str, x: torch.Tensor, group: int) -> torch.Tensor:
    builder = PlanBuilder(target)
    given = TensorArg(builder.add_input(p.InputKind.TENSOR), x.dtype, x.shape, x.stride())
    out = builder.allocate(8 * len(x))
    arguments = [builder.pointer(given), builder.pointer(out)]
    builder.launch(builder.kernel(source, "meet"), (len(x),), arguments, (group, 1, 1))
    builder.output_tensor(TensorArg(out, torch.int64, (len(x),), (1,)))
    return _C.Plan(serialize(builder.finish()), 0).run([x])[0].cpu()


def _expected(kind: str, rows: torch.Tensor) -> torch.Tensor:
    if kind in ("argmax", "argmin"):
        places = getattr(rows, kind)(1)
        return places + torch.arange(len(rows)) * rows.shape[1]
    if kind == "xor_sum":
        result = rows[:, 0].clone()
        for column in rows.unbind(1)[1:]:
            result ^= column
        return result
    if kind == "any":
        return (rows != 0).any(1).long()
    result = getattr(rows, {"min": "amin", "max": "amax"}.get(kind, kind))(1)
    return result.long()


@pytest.mark.parametrize("group", [1, 7, 32, 40, 96, 200, 256])
@pytest.mark.parametrize("kind", KINDS)
def test_any_number_of_sub_groups(gpu: Target, device: str, kind: str, group: int) -> None:
    """Also numbers that are no powers of two, and a last sub-group that is not full."""
    x = torch.randint(0, 2, (3 * group,)) if kind == "any" else torch.randint(-5, 6, (3 * group,))
    if kind == "prod":
        x |= 1
    for size in (4, 32):
        found = _run(gpu, _source(kind, torch.int64, group, size), x.to(device), group)
        expected = _expected(kind, x.view(3, group))
        assert torch.equal(found.view(3, group), expected[:, None].expand(3, group)), size


@pytest.mark.parametrize("group", [1, 2, 64, 256])
@pytest.mark.parametrize("kind", KINDS)
def test_local_memory_alone(device: str, kind: str, group: int) -> None:
    x = torch.randint(0, 2, (3 * group,)) if kind == "any" else torch.randint(-5, 6, (3 * group,))
    if kind == "prod":
        x |= 1
    found = _run(target_of(0), _source(kind, torch.int64, group, 1), x.to(device), group)
    assert torch.equal(found.view(3, group), _expected(kind, x.view(3, group))[:, None].expand(3, group))


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8], ids=str)
def test_integers_of_each_size_are_shuffled_by_either_extension(gpu: Target, device: str, dtype: torch.dtype) -> None:
    x = torch.randint(0, 120, (256,)).to(dtype)
    source = _source("max", dtype, 128, 32)
    for text in (source, source.replace("#ifdef cl_khr_subgroup_shuffle", "#if 0")):
        found = _run(gpu, text, x.to(device), 128)
        assert torch.equal(found.view(2, 128), x.view(2, 128).amax(1).long()[:, None].expand(2, 128))
