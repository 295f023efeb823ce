# SPDX-License-Identifier: Apache-2.0
"""Numbers that are baked into plans: each operator's number arguments get other values, and compilations are counted.

The operators are those that PyTorch's OpInfos reach, forward and backward, as the device sees them. Of each, the first
call that takes a number is repeated with ``VALUES`` other values of it, if the CPU accepts them. The first two may be
compiled anew: 0, 1, or what equals a size has code of its own. Later ones may not. Each result is compared with the
CPU's. What may be baked stands in ``EXPLAINED``, with its reason. Exit code 1 if anything else is, or is wrong.

``python -m tools.baked_numbers --match 'addmm|lerp'``; ``--rows FILE`` writes a line of JSON for each number, with a
digest of the results, by which two runs can be compared bit for bit.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import hashlib
import itertools
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

#: How many values each number gets.
VALUES = 5
#: Numbers that say which elements there are, or choose among kinds of code, by name.
FORMS = re.compile(
    "dims?|dim[0-9]|dim[AB]|axis[0-9]?|batch_dim|output_dim|start_dim|end_dim|source|destination|size|stride|dtype|layout"
    "|reduction|.*_?mode|normalization|memory_format|groups|bits|side|storage_offset|seed|step|levels|correction"
    "|kernel_size|dilation|output_padding"
)
#: What may be compiled for each value, by operator and argument, with the reason.
EXPLAINED: dict[str, str] = {
    "_trilinear:expand3": "it says which dimensions there are",
    "_trilinear:sumdim": "it says which dimensions there are",
    "_trilinear:unroll_dim": "it says which dimensions there are",
    "_adaptive_avg_pool2d:output_size": "windows are unrolled",
    "mvlgamma:p": "its terms are unrolled",
    "narrow_copy:length": "sizes of 0 and 1 have code of their own",
    "polygamma:n": "each order is a function of its own",
    "rot90:k": "each quarter turn moves elements in its own way",
    "topk:k": "sizes of 1 have code of their own",
    "unfold_copy:dimension": "it says which dimension there is",
    "_histogramdd_bin_edges:bins": "the CPU's kernel computes it",
    "_histogramdd_from_bin_cts:bins": "the CPU's kernel computes it",
    "_pdist_backward:p": "the CPU's kernel computes it",
    "linalg_lstsq:rcond": "the CPU's kernel computes it",
}


@dataclasses.dataclass
class Row:
    """One number of one operator: how many plans each value needed, a digest of the results on the device, and for how
    many values they are the CPU's bit for bit."""

    operator: str
    argument: str
    values: list[Any]
    made: list[int]
    digest: str
    exact: int
    wrong: str

    @property
    def name(self) -> str:
        return f"{self.operator}:{self.argument}"

    @property
    def baked(self) -> bool:
        """Whether values after the second were compiled anew."""
        return sum(self.made[2:]) > 0


@dataclasses.dataclass
class Call:
    """A call of an operator, with tensors of its own."""

    overload: Any
    arguments: dict[str, Any]

    def run(self, on: str, name: str, value: Any) -> Any:
        """The result, on a kind of device, with another value of one argument. Tensors that are written are copies."""
        moved = tree_map_only(Tensor, lambda x: x.clone() if on == "cpu" else x.to(on), self.arguments)
        moved = {key: torch.device(on) if isinstance(each, torch.device) else each for key, each in moved.items()}
        torch.manual_seed(0)
        return self.overload(**(moved | {name: value}))


class Recorder(TorchDispatchMode):
    """Keeps the first call of each operator for each of its numbers, as ``calls``."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: dict[str, tuple[Call, str]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        new = [name for name in numbers(func) if f"{func}:{name}" not in self.calls]
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        if new and all(map(_is_dense, tensors)) and any(each.numel() > 1 for each in tensors):
            given = dict(zip((each.name for each in func._schema.arguments), args, strict=False)) | kwargs
            on_host = tree_map_only(Tensor, lambda x: x.detach().cpu().clone(), given)
            for name in new:
                self.calls[f"{func}:{name}"] = Call(func, on_host), name
        return func(*args, **kwargs)


def numbers(overload: Any) -> list[str]:
    """The names of arguments that are numbers, or lists of numbers, of a functional operator."""
    schema = overload._schema
    if "_ctc_loss" in schema.name:  # whose lengths the CPU does not check: it writes beyond its memory
        return []
    if any(each.kwarg_only and each.alias_info is not None for each in schema.arguments):
        return []
    kinds = re.compile(r"(float|int|SymInt|number|Scalar|List\[(int|SymInt|float)\])")
    return [
        each.name
        for each in schema.arguments
        if kinds.fullmatch(re.sub(r"Optional\[(.*)\]", r"\1", str(each.real_type))) and not FORMS.fullmatch(each.name)
    ]


def other_values(call: Call, name: str) -> Iterator[Any]:
    """Values to try in place of the one that is given."""
    schema = next(each for each in call.overload._schema.arguments if each.name == name)
    given = call.arguments.get(name, schema.default_value)
    if isinstance(given, bool) or isinstance(given, (list, tuple)) and not given:
        return
    real = any(isinstance(x, Tensor) and x.is_floating_point() for x in tree_leaves(call.arguments))
    kind = str(schema.real_type)
    if "List" in kind and given is not None:
        for delta in (1, 2, 3, 5, 0, -1, -2):
            yield [each + delta for each in given] if isinstance(given, (list, tuple)) else given + delta
    elif "float" in kind or (("number" in kind or "Scalar" in kind) and (real or isinstance(given, float))):
        base = given if isinstance(given, (int, float)) and given not in (0, 1, -1) else 1.0
        yield from (base * factor for factor in (0.37, 0.45, 0.61, 0.83, 0.7))
        yield from (base * factor for factor in (1.37, 2.45, -0.61, 4.83, -0.7))
    elif "List" not in kind:
        base = given if isinstance(given, int) else 2
        yield from (base + delta for delta in (1, 2, 3, 5, 4, -1, -2, 6))


def judge(call: Call, name: str, device: str) -> Row | None:
    """The row of one number; None if the CPU accepts too few values of it."""
    operator = str(call.overload).removesuffix(".default").removeprefix("aten.")
    row = Row(operator, name, [], [], "", 0, "")
    digest = hashlib.sha256()
    for value in other_values(call, name):
        try:
            expected = call.run("cpu", name, value)
        except Exception:  # noqa: BLE001 - what the CPU refuses is not a question to the device
            continue
        before = _asked(device)
        try:
            found = call.run(device, name, value)
        except Exception as error:  # noqa: BLE001 - a finding
            row.wrong = row.wrong or f"{name}={value}: {type(error).__name__}: {error}"
            continue
        row.values.append(value)
        row.made.append(_asked(device) - before)
        leaves = [leaf.cpu() for leaf in tree_leaves(found) if _is_dense(leaf)]
        for leaf in leaves:
            digest.update(repr(leaf.tolist()).encode())
        wanted = [leaf for leaf in tree_leaves(expected) if _is_dense(leaf)]
        row.exact += repr([leaf.tolist() for leaf in leaves]) == repr([leaf.tolist() for leaf in wanted])
        row.wrong = row.wrong or _difference(call, leaves, wanted, f"{name}={value}")
        if len(row.values) == VALUES:
            break
    row.digest = digest.hexdigest()[:16]
    return row if len(row.values) > 2 or row.wrong else None


def _is_dense(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.layout == torch.strided


def _asked(device: str) -> int:
    return int(torch.get_device_module(device).compile_stats()["misses"])


def _difference(call: Call, found: list[Tensor], wanted: list[Tensor], title: str) -> str:
    if torch.Tag.nondeterministic_seeded in call.overload.tags or "empty" in str(call.overload):
        return ""
    try:
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one, other, equal_nan=True, rtol=1e-3, atol=1e-4, check_stride=False)
    except AssertionError as error:
        return f"{title}: {' '.join(str(error).split())}"
    return ""


def record(op: Any, device: str, dtype: torch.dtype, samples: int, recorder: Recorder) -> None:
    """Runs an OpInfo's first samples on the device, forward and backward, under the recorder."""
    torch.manual_seed(0)
    differentiable = op.supports_autograd and dtype.is_floating_point
    for sample in itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=differentiable), samples):

        def move(value: Any) -> Any:
            if isinstance(value, torch.device):
                return torch.device(device)
            return value.detach().to(device).requires_grad_(value.requires_grad) if isinstance(value, Tensor) else value

        moved = sample.transform(move)
        if "device" in moved.kwargs:
            moved.kwargs["device"] = device
        with contextlib.suppress(Exception), recorder:  # what fails is for tools/opinfo.py to say
            result = op(moved.input, *moved.args, **moved.kwargs)
            roots = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor) and leaf.requires_grad]
            if roots:
                torch.autograd.backward(roots, [torch.ones_like(root) for root in roots])


def judge_all(device: str, ops: list[Any], samples: int, tell: Callable[[Row], None]) -> list[Row]:
    """The rows of all numbers that the OpInfos reach; ``tell`` gets each as it is known."""
    recorder = Recorder()
    rows: list[Row] = []
    done: set[str] = set()
    for op in ops:
        for dtype in (torch.float32, torch.int64):
            if op.supports_dtype(dtype, "cpu"):
                record(op, device, dtype, samples, recorder)
                break
        for key in [key for key in recorder.calls if key not in done]:
            done.add(key)
            row = judge(*recorder.calls[key], device)
            if row is not None:
                rows.append(row)
                tell(row)
    return rows


def findings(rows: list[Row]) -> list[Row]:
    """Rows that are wrong, or baked without a reason."""
    return [row for row in rows if row.wrong or (row.baked and row.name not in EXPLAINED)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--match", default="", help="regular expression over names of OpInfos")
    parser.add_argument("--samples", type=int, default=2, help="samples of each OpInfo")
    parser.add_argument("--part", default="0/1", help="I/N: every Nth OpInfo, from the Ith on")
    parser.add_argument("--rows", type=Path, help="a file of lines of JSON to write")
    options = parser.parse_args()
    from torch.testing._internal.common_methods_invocations import op_db

    first, every = map(int, options.part.split("/"))
    ops = [op for op in op_db if re.search(options.match, op.name)][first::every]
    device = torch.accelerator.current_accelerator().type
    with options.rows.open("w") if options.rows else contextlib.nullcontext() as file:

        def tell(row: Row) -> None:
            if file is not None:
                print(json.dumps(dataclasses.asdict(row), default=str), file=file, flush=True)
            if row.baked or row.wrong:
                print(f"{row.name}  {row.made}  {row.values}  {row.wrong[:200]}", flush=True)

        rows = judge_all(device, ops, options.samples, tell)
    bad = findings(rows)
    print(f"{len(ops)} OpInfos, {len(rows)} numbers, {sum(row.baked for row in rows)} baked, {len(bad)} findings")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
