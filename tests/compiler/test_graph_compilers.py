# SPDX-License-Identifier: Apache-2.0
"""Devices that take graphs: the simulator, whose driver has no kernel language, with a compiler written in Python."""

from __future__ import annotations

import dataclasses
import os
import re
import textwrap
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from processes import run_program

from outboard import compilers
from outboard.compiler.target import Target

ROOT = Path(__file__).parents[2]

PRELUDE = """
import sys, torch
from torch import nn
device = torch._C._get_privateuse1_backend_name()
ours = getattr(torch, device)

class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.inward, self.outward = nn.Linear(16, 48), nn.Linear(16, 16)
    def forward(self, x):
        heads = (part.unflatten(-1, (2, 8)).transpose(1, 2) for part in self.inward(x).split(16, -1))
        attended = nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        return self.outward(attended.transpose(1, 2).flatten(2))

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.attention = nn.LayerNorm(16), Attention()
        self.rest = nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 16))
    def forward(self, x):
        x = x + self.attention(self.first(x))
        return x + self.rest(x)

def language_model():
    return nn.Sequential(nn.Embedding(11, 16), Block(), nn.Linear(16, 11))

def perceptron():
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4), nn.Softmax(-1))

def convolutional():
    return nn.Sequential(nn.Conv2d(3, 4, 3, stride=2, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(3, 1, 1),
                         nn.Conv2d(4, 6, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 3))

torch.manual_seed(0)
models = {perceptron: torch.randn(5, 8), convolutional: torch.randn(2, 3, 8, 8),
          language_model: torch.randint(0, 11, (2, 6))}

def close(a, b):
    torch.testing.assert_close(a.cpu(), b.cpu(), rtol=1e-5, atol=1e-6)

def reasons(name):
    count, known = ours.fallbacks(reasons=True)[name]
    return count, " ".join(known)
"""

#: A step of training of each model, eager and compiled.
TRAINING = """
for make, x in models.items():
    expected = make()
    state = {key: value.clone() for key, value in expected.state_dict().items()}
    expected(x).square().mean().backward()
    wanted = expected(x).detach() if make is not convolutional else None  # whose statistics have moved on
    for compiled in (False, True):
        model = make()
        model.load_state_dict(state)
        model.to(device)
        result = (torch.compile(model) if compiled else model)(x.to(device))
        result.square().mean().backward()
        if wanted is not None:
            close(result, wanted)
        for ours_, theirs in zip(model.parameters(), expected.parameters()):
            close(ours_.grad, theirs.grad)
        for ours_, theirs in zip(model.buffers(), make().buffers()):
            assert ours_.device.type == device
stats = ours.compile_stats()
assert ours.fallbacks() == {}, ours.fallbacks(reasons=True)
print("compiled", stats["compiled"] - stats["on_cpu"])
calls = stats["hits"] + stats["misses"]
print(f"on the device: {calls - sum(ours.fallbacks().values())} of {calls} calls")
"""

#: Calls whose operands lie in all ways.
LAYOUTS = """
x, y = torch.randn(4, 6), torch.randn(6)
a, b = x.to(device), y.to(device)
close(a.t() + 1, x.t() + 1)
close(a[:, 1:3] * b[1:3], x[:, 1:3] * y[1:3])
close(b.expand(4, 6).sum(0), y.expand(4, 6).sum(0))
a[:, 1:3].mul_(2), x[:, 1:3].mul_(2)
close(a, x)
a[::2] = b
x[::2] = y
close(a, x)
torch.add(a, 1, out=a), torch.add(x, 1, out=x)
close(a, x)
close(torch.cat([a, a[:1]]), torch.cat([x, x[:1]]))
for step in (1, 2, 3):
    close(a.mul(step / 7), x.mul(step / 7))  # a number is no part of the executable
assert ours.compile_stats()["hits"] >= 2
close(a[:0] + 1, x[:0] + 1)
function = torch.compile(lambda x: torch.nn.functional.silu(x).sum(-1) + x.shape[0], dynamic=True)
for rows in (2, 3, 4):
    close(function(a[:rows]), torch.nn.functional.silu(x[:rows]).sum(-1) + rows)
assert set(ours.fallbacks()) <= {"aten::add.Tensor"}, ours.fallbacks(reasons=True)  # of no elements
close(torch.topk(a, 2).values, torch.topk(x, 2).values)
count, why = reasons("aten::topk")
assert count == 1 and "no rule for this operator" in why and "<string>" not in why, why
close(((a + 0j) * 1j).exp(), ((x + 0j) * 1j).exp())  # as pairs of real numbers
close(a.flip(0, -1), x.flip(0, -1))
assert set(ours.fallbacks()) <= {"aten::add.Tensor", "aten::topk"}, ours.fallbacks(reasons=True)
close(nn.functional.silu(a + 0j), nn.functional.silu(x + 0j))
assert "no torch.complex64" in " ".join(reason for _, each in ours.fallbacks(reasons=True).values() for reason in each)
whole, there = torch.randn(4, 6), []
for place in ("cpu", device):  # what a graph returns of its input is that part of it, whatever symbols its sizes are
    given = whole.to(place, copy=True)
    views = torch.compile(lambda x: (x.narrow(1, 1, x.shape[1] - 2), (x + 1).expand(3, *x.shape), x * x), dynamic=True,
                          backend="eager" if place == "cpu" else "inductor")(given)
    views[0].add_(1)
    there.append([*views, given])
for expected, found in zip(*there):
    close(found, expected)
"""

#: What models need besides the usual: pools, masks, targets of losses, caches of nothing yet, random numbers.
OPERATORS = """
x, y, mask = torch.randn(4, 6, dtype=torch.float64), torch.randn(4, 6, dtype=torch.float64), torch.rand(4, 6) > 0.5
whole = torch.randint(-9, 9, (4, 6))
index = torch.randint(6, (4, 2))
image = torch.randn(2, 3, 7, 6)
image[0, 0, 2, 2] = torch.nan
calls = [
    lambda on: torch.addcmul(on(x), on(y), on(y), value=0.3),
    lambda on: torch.addcdiv(on(x), on(y), on(y) + 9, value=-2),
    lambda on: on(whole) & on(mask), lambda on: on(mask) | on(mask).t().reshape(4, 6), lambda on: on(whole) ^ 5,
    lambda on: torch.div(on(x), on(y), rounding_mode="floor"),
    lambda on: torch.div(on(whole), 4, rounding_mode="trunc"),
    lambda on: on(x).max() - on(y).min(), lambda on: torch.sign(on(image)),
    lambda on: nn.functional.pad(on(x), (2, -1, 0, 3), value=1.5),
    lambda on: on(x).scatter(1, on(index), 7), lambda on: on(x).scatter(1, on(index), on(y)[:, :2].contiguous()),
    lambda on: nn.functional.max_pool2d(on(image), 3, stride=2, padding=1),
    lambda on: nn.functional.max_pool2d(on(image), (2, 3), dilation=(2, 1), ceil_mode=True, return_indices=True)[1],
    lambda on: torch.cat([on(x)[:0, 0], on(x)]), lambda on: torch.cat([on(x)[:0], on(y)[:0]]),
    lambda on: on(torch.tensor([])), lambda on: on(x)[on(torch.tensor([], dtype=torch.int64))],
    lambda on: on(torch.arange(12.0).reshape(3, 4)).select_scatter(on(torch.ones(4)), 0, 2),
]
edges = torch.tensor([0.05, 0.1, 0.15, 0.3, 2.0, 257])
for dtype in (torch.float16, torch.bfloat16, torch.float32):  # numbers count as the dtype rounds them
    calls += [
        lambda on, x=edges.to(dtype): on(x) > 0.1, lambda on, x=edges.to(dtype): on(x) == 0.1,
        lambda on, x=edges.to(dtype): torch.where(on(x) <= 0.3, on(x), -on(x)),
        lambda on, x=edges.to(dtype): nn.functional.hardshrink(on(x), 0.1),
        lambda on, x=edges.to(dtype): torch.full_like(on(x), 0.1) == 0.1,
        lambda on, x=edges.to(dtype): torch.stack([on(x) * 1.7, on(x) / 1.7, on(x) - 1.7]).double(),
        lambda on, x=edges.to(dtype).repeat(64): torch.add(on(x), on(x).flip(0), alpha=-0.3).double(),
        lambda on, x=edges.to(dtype): nn.functional.conv2d(
            on(x).view(1, 6, 1, 1), on(x[:3].repeat(6, 2)).view(6, 6, 1, 1), -on(x) * 19
        ).float(),
    ]
for call in calls:
    wanted = call(lambda each: each)
    torch.testing.assert_close(call(lambda each: each.to(device)).cpu(), wanted, equal_nan=True)
a, b = image[1:].clone().requires_grad_(), image[1:].to(device).requires_grad_()
for each in (a, b):
    nn.functional.max_pool2d(each, 3, stride=2).square().sum().backward()
close(b.grad, a.grad)

drop = torch.compile(lambda x: nn.functional.dropout(x, 0.25))
ones = torch.ones(4000, device=device)
for call in (lambda: nn.functional.dropout(ones, 0.25), lambda: drop(ones)):
    torch.manual_seed(1)
    first, second = call().cpu(), call().cpu()
    torch.manual_seed(1)
    assert torch.equal(call().cpu(), first) and not torch.equal(first, second)
    assert set(first.tolist()) == {0.0, torch.tensor(1 / 0.75).item()} and 0.7 < first.bool().float().mean() < 0.8
drawn = torch.randn(4000, device=device).cpu()
assert abs(drawn.mean()) < 0.1 and 0.9 < drawn.std() < 1.1
drawn = torch.randint(-3, 4, (4000,), device=device).cpu()
assert drawn.unique().tolist() == [*range(-3, 4)]
assert set(ours.fallbacks()) <= {"aten::index.Tensor"}, ours.fallbacks(reasons=True)

library = torch.library.Library("aten", "IMPL")
library.impl("silu", lambda x: x * 0 + 7, "PrivateUse1")  # the program's own, also in graphs
close(torch.compile(lambda x: nn.functional.silu(x + 1) * 2)(ones[:3]), torch.full((3,), 14.0))
"""

#: Values that PyTorch refuses, with its exception, in a call and in a graph.
REFUSED = """
import pytest
table, many, none = torch.ones(5, 2), torch.tensor([1, 9]), torch.tensor([2, 0])
calls = {
    "embedding": (IndexError, lambda on: nn.functional.embedding(on(many), on(table))),
    "from the end": (IndexError, lambda on: nn.functional.embedding(on(torch.tensor([1, -1])), on(table))),
    "index": (IndexError, lambda on: on(table)[on(many)]),
    "index_select": (IndexError, lambda on: on(table).index_select(0, on(many))),
    "target": (IndexError, lambda on: nn.functional.cross_entropy(on(table[:2]), on(many))),
    "scatter": (RuntimeError, lambda on: on(torch.zeros(2, 3)).scatter(1, on(many[:, None]), 1.0)),
    "power": (RuntimeError, lambda on: (on(many) + 1) ** -2),
    "quotient": (RuntimeError, lambda on: on(many) // on(none)),
    "towards zero": (RuntimeError, lambda on: torch.div(on(many), on(none), rounding_mode="trunc")),
}
for name, (error, call) in calls.items():
    with pytest.raises(error):
        call(lambda each: each)
    for way in (lambda call: call, torch.compile):
        raised = (IndexError, error) if name == "scatter" else error
        with pytest.raises(raised, match="out of bounds|ZeroDivision|Integers to negative"):
            way(call)(lambda each: each.to(device)).cpu()
        close(table.to(device) * 3, table * 3)
for function in (
    nn.functional.silu, nn.functional.gelu, lambda x: x.round(decimals=2), lambda x: (x * 2).round(decimals=-1) + 1
):
    with pytest.raises(NotImplementedError, match="not implemented for 'Long'"):
        torch.compile(function)(many.to(device)).cpu()
"""

#: Compilers that do not what they should.
FAULTS = """
import os
from importlib.metadata import EntryPoint
from outboard import compilers
from outboard.compilers import Executable, sim

class Changed(sim.SimCompiler):
    def compile(self, graph, operands, target):
        return change(super().compile(graph, operands, target))

compilers._OWN = (EntryPoint("outboard-sim", "__main__:Changed", compilers.GROUP),)
x = torch.randn(3, 5)
a = x.to(device)

def change(made):
    raise ArithmeticError("no more registers")
close(a + 1, x + 1)
assert "outboard-sim failed: ArithmeticError: no more registers" in reasons("aten::add.Tensor")[1]

def change(made):
    program = made.code.partition(b"\\n")[2].replace(b"multiply", b"add")
    checked = sim.Program()
    checked.lines = program.decode().splitlines()
    return Executable(checked.code())
close(a * 3, x * 3)
assert "computes wrongly: result 0 is up to" in reasons("aten::mul.Tensor")[1]

class Unspeakable(Exception):
    def __str__(self):
        raise OSError

def change(made):
    raise Unspeakable
close(a * 4, x * 4)
assert "failed: Unspeakable: an exception without a text" in reasons("aten::mul.Tensor")[1]

def change(made):
    raise SystemExit(3)
close(a / 4, x / 4)
assert "outboard-sim failed: SystemExit: 3" in reasons("aten::div.Tensor")[1]

for number, (answer, text) in enumerate([
    (None, "compile() is to return an Executable, not NoneType"),
    (Executable("text"), "code is bytes, not str"),
    (Executable(b"", -1), "scratch is a number of bytes, not -1"),
    (Executable(b"", 2**63), "scratch is a number of bytes, not"),
    (Executable(b"", 1.5), "TypeError"),
    (Executable(b""), "outboard-sim 1 made does not run: loading an executable failed"),
    (Executable(b"", 2**60), "outboard-sim 1 made does not run: "),
]):
    def change(made):
        return answer
    ours.reset_fallbacks()
    close(a.reshape(-1)[: number + 2] + 1, x.reshape(-1)[: number + 2] + 1)
    assert text in reasons("aten::add.Tensor")[1], (text, reasons("aten::add.Tensor"))

class Mistaken(sim.SimCompiler):
    def compile(self, graph, operands, target):
        for node in graph.find_nodes(op="call_function", target=torch.ops.aten.sub.Tensor):
            node.target = torch.ops.aten.add.Tensor
        return super().compile(graph, operands, target)

changed, Changed = Changed, Mistaken
compilers.load.cache_clear()
close(a - x.to(device), x - x)
assert "computes wrongly: result 0 is up to" in reasons("aten::sub.Tensor")[1]
less = lambda each: each * 50 - 1  # by a number that is small beside the results
assert torch.equal(torch.compile(less)(torch.arange(7, device=device)).cpu(), less(torch.arange(7)))
Changed = changed
compilers.load.cache_clear()

def change(made):
    lines = [line for line in made.code.decode().splitlines()[1:] if not line.startswith("step ")]
    lines += ["full 0 64 #0x0p+0", f"result 0 64 %{len(lines)}"]
    checked = sim.Program()
    checked.lines = lines
    return Executable(checked.code(), scratch=64)
ours.reset_fallbacks()
close(a - 3, x - 3)
assert ours.fallbacks() == {}

def change(made):
    return Executable(made.code[:-9])
close(a.sin(), x.sin())
assert "made does not run: loading an executable failed" in reasons("aten::sin")[1]
os.environ["OUTBOARD_CHECK_EXECUTABLES"] = "0"
for call in (lambda: a.exp(), lambda: torch.compile(torch.tanh)(a)):
    try:
        call()
        torch.accelerator.synchronize()
        raise SystemExit("damaged bytes were run")
    except RuntimeError as error:
        assert "not an executable of sim" in str(error), error

compilers.load.cache_clear()
Changed.version = "2"
try:
    a.cos()
    raise SystemExit("a compiler of another version was taken")
except LookupError as error:
    assert "'outboard-sim 1'" in str(error) and "installed is outboard-sim 2" in str(error)
"""


#: Compilers that change what they are asked about, and that answer what is no answer.
SPOILING = """
from importlib.metadata import EntryPoint
from outboard import compilers
from outboard.compilers import sim

class Spoiling(sim.SimCompiler):
    def supports(self, node, target):
        answer = super().supports(node, target)
        return spoilt(node, answer)

def cut(node, answer):
    node.args = node.args[:1]
    return answer

def moved(node, answer):
    for each in (node, *node.all_input_nodes):
        if isinstance(each.meta["val"], torch.Tensor):
            each.meta["val"].unsqueeze_(0)
    return answer

def emptied(node, answer):
    for each in (node, *node.all_input_nodes):
        each.meta.clear()
    return answer

def erased(node, answer):
    for each in reversed(node.graph.nodes):
        node.graph.erase_node(each)
    return answer

def renamed(node, answer):
    node.target = torch.ops.aten.mul.Tensor
    return answer

compilers._OWN = (EntryPoint("outboard-sim", "__main__:Spoiling", compilers.GROUP),)
x = torch.randn(3, 5)
a = x.to(device)
for size, spoilt in enumerate((cut, moved, emptied, erased, renamed), 1):
    call = lambda each: ((each[:, :size] - 2) * each[:, :size]).sum(0)
    close(call(a), call(x))
    close(torch.compile(call)(a), call(x))
assert ours.fallbacks() == {}, ours.fallbacks(reasons=True)
for size, (answer, kind) in enumerate(((None, "NoneType"), (False, "bool"), (1, "int")), 2):
    spoilt = lambda node, was: answer
    ours.reset_fallbacks()
    close(a.view(-1)[:size] + 1, x.view(-1)[:size] + 1)
    wanted = f"aten::add: outboard-sim's supports() is to return True or a text, not {kind}"
    assert wanted in reasons("aten::add.Tensor")[1], reasons("aten::add.Tensor")
"""


#: The guide's programs, its compiler in the place of the simulator's.


#: Calls and a graph; prints how many executables were made.
SEVERAL = """
x = torch.randn(3, 4)
a = x.to(device)
close(a * a, x * x)
close(torch.compile(lambda a: (a + 1).sum(0))(a), (x + 1).sum(0))
assert ours.fallbacks() == {}
print("made", int(ours.compile_stats()["executables_made"]))
"""

#: The executables that the cache holds become another version's.
AGEING = """
import hashlib, os, pathlib
from outboard.compiler.plans import cache, files, schema
found = [path for path in pathlib.Path(os.environ["OUTBOARD_CACHE_DIR"], "plans").rglob("*") if path.is_file()]
kept = [path for path in found if path.read_bytes().startswith(cache._MAGIC)]
assert len(kept) == 2
for path in kept:
    data = files.unsealed(cache._MAGIC, path.read_bytes())
    begin = data.index(schema.MAGIC) + len(schema.MAGIC) + 12  # where the plan's own checksum is
    aged = data[begin + 16 :].replace(b"outboard-sim 1 ", b"outboard-sim 0 ")
    path.write_bytes(files.sealed(cache._MAGIC, data[:begin] + hashlib.sha256(aged).digest()[:16] + aged))
"""

#: Models as files of one executable, which another process loads, and a program without Python.
EXPORTED = """
import os, outboard, pathlib, subprocess
from outboard import drivers
folder = pathlib.Path(os.environ["OUTBOARD_CACHE_DIR"])
without_python = os.environ | {"OUTBOARD_DRIVER": drivers.sim()}
for make, x in models.items():
    path = folder / f"{make.__name__}.obm"
    torch.manual_seed(3)
    model = make().eval()
    expected = model(x).detach()
    if not path.exists():
        outboard.export(model.to(device), x.to(device), path=path)
    loaded = outboard.load(path)
    found = loaded(x.to(device)).cpu()
    close(found, expected)
    given, = (argument.name for argument in loaded.inputs)
    (folder / "given").write_bytes(x.numpy().tobytes())
    command = [pathlib.Path(outboard.cmake_prefix()) / "bin/outboard-run", path]
    command += [f"{given}={folder / 'given'}:{'x'.join(map(str, x.shape))}", "--out", folder]
    subprocess.run(command, env=without_python, check=True)
    result, = (argument.name for argument in loaded.outputs)
    assert (folder / f"{result}.bin").read_bytes() == found.numpy().tobytes()
assert ours.fallbacks() == {}
"""

#: Neighbours of a window's maximum; prints how many executables there are.
NEIGHBOURS = """
x = torch.randn(2, 3, 8, 8)
model = nn.Sequential(nn.Conv2d(3, 3, 3), nn.MaxPool2d(3, 2, 1), nn.ReLU())
expected = model(x).detach()
with torch.no_grad():
    close(torch.compile(model.to(device))(x.to(device)), expected)
print("made", int(ours.compile_stats()["executables_made"]))
"""


def run(code: str, cache: Path, **environment: str) -> str:
    """Runs code on the simulator with its compiler of graphs; returns what it printed."""
    settings = {"OUTBOARD_SIM_COMPILER": "1", "OUTBOARD_CACHE_DIR": str(cache), "OUTBOARD_DRIVER": "sim"} | environment
    result = run_program(["-c", PRELUDE + textwrap.dedent(code)], environment=settings)
    assert result.returncode == 0, f"{result.stdout}\n{result.stderr}"
    assert "contract of driver.h is broken" not in result.stderr
    return result.stdout


#: Integers that no double is, and those whose results wrap around.
INTEGERS = """
x, product = torch.tensor([2**62, -(2**63), 2**53 + 1, -7, 3, 0]), torch.arange(2**53 + 1, 2**53 + 10).view(3, 3)
least = 2**53 + 1
functions = [
    lambda x: x + 1, lambda x: x * 5, lambda x: x * x, lambda x: x - least, lambda x: least - x, lambda x: -x,
    lambda x: x.abs(), lambda x: x // 3, lambda x: torch.div(x, 3, rounding_mode="trunc"), lambda x: x // -7,
    lambda x: x.sum(), lambda x: x.cumsum(0), lambda x: x.sort(), lambda x: x.amin(), lambda x: x.argmin(),
    lambda x: x.clamp(-5, 2**60 + 1), lambda x: x ** 3, lambda x: x ^ 5, lambda x: x > 2**53, lambda x: x == least,
    lambda x: torch.where(x > 0, x, least), lambda x: x.masked_fill(x > 0, least), lambda x: torch.maximum(x, x + 1),
    lambda x: x.add(x, alpha=3), lambda x: torch.full_like(x, least), lambda x: x.to(torch.int32), lambda x: x / 3,
    lambda x: torch.arange(least, least + 3, device=x.device), lambda x: x[:, None] @ x[None],
    lambda x: torch.addcmul(x, x, x), lambda x: x.view(2, 3).sum(0), lambda x: x.float().long().clamp(max=2**60),
]
for number, function in enumerate(functions):
    for found, wanted in zip(torch.utils._pytree.tree_leaves(function(x.to(device))),
                             torch.utils._pytree.tree_leaves(function(x)), strict=True):
        assert torch.equal(found.cpu(), wanted), (number, found, wanted)
for function in (lambda x: x @ x, lambda x: torch.addmm(x, x, x, beta=3, alpha=5), lambda x: torch.addmm(x, x, x)):
    assert torch.equal(function(product.to(device)).cpu(), function(product))
assert ours.fallbacks() == {}, ours.fallbacks(reasons=True)
"""

#: Sizes that only the data tells, within graphs; and parameters of one element, whose kind of call is not that of
#: tensors of one dimension.
SIZES = """
@torch.compile(fullgraph=True)
def positive(x):
    return x[x > 0].cumsum(0) * 2
for seed in range(2):
    x = torch.randn(10 + seed)
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        close(positive(x.to(device)), positive(x))
with torch.no_grad():
    for x in (torch.ones(4), nn.Parameter(torch.ones(1)), torch.ones(5)):
        target, other = x.to(device), torch.ones(x.shape)
        target = nn.Parameter(target) if isinstance(x, nn.Parameter) else target
        close(target.add_(other.to(device), alpha=0.5), x + 0.5)
def branched(x):
    return torch.cond(x.sum() > 4, lambda x: x.sin(), lambda x: x * 2, (x,))
compiled = torch.compile(branched)
for size in (3, 5):  # the second time for any size
    close(compiled(torch.arange(float(size), device=device)), branched(torch.arange(float(size))))
"""


#: Operators that are told a dimension, of tensors that have none.
NO_DIMENSIONS = """
functions = [
    lambda x, i: x.gather(0, i), lambda x, i: x.scatter(0, i, x), lambda x, i: x.scatter(-1, i, 3.0),
    lambda x, i: x.scatter_add(0, i, x), lambda x, i: x.sort(-1), lambda x, i: x.squeeze(0), lambda x, i: x.all(-1),
    lambda x, i: x.argmax(0), lambda x, i: x.argmin(-1, keepdim=True), lambda x, i: x.amax(0), lambda x, i: x.amin(-1),
    lambda x, i: x.sum(0), lambda x, i: x.mean(-1, keepdim=True), lambda x, i: x.cumsum(0), lambda x, i: x.softmax(0),
    lambda x, i: x.log_softmax(-1), lambda x, i: x.logsumexp(0), lambda x, i: x.var(0), lambda x, i: x.norm(2, 0),
    lambda x, i: torch.var_mean(x, 0, correction=0), lambda x, i: (x > 1).any(0), lambda x, i: x.unsqueeze(0),
]
indexed = [lambda x, i: x.gather(0, i), lambda x, i: x.index_select(0, i), lambda x, i: x.scatter(0, i, 7.0)]
def all_of(x, row, square, i):
    made = [function(x, i) for function in functions] + [function(row, i) for function in indexed]
    return [*made, square.index_select(1, i)]
given = torch.tensor(2.5), torch.arange(4.0), torch.arange(16.0).reshape(4, 4), torch.tensor(0)
own, expected = [each.to(device) for each in given], all_of(*given)
for made in (all_of(*own), torch.compile(all_of)(*own)):
    torch.testing.assert_close(made, expected, check_device=False, equal_nan=True)
assert ours.fallbacks() == {}, ours.fallbacks(reasons=True)
"""


def test_tensors_without_dimensions_have_one_to_be_told(tmp_path: Path) -> None:
    run(NO_DIMENSIONS, tmp_path)


#: The CPU's kernel, which sums the bags, leaves a result empty that others fill.
BAGS = """
weight, factors = torch.randn(10, 5), torch.randn(5)
def bags(weight, index, starts, factors):
    return nn.functional.embedding_bag(index, weight, starts, mode="sum", per_sample_weights=factors)
def learned(function, where):
    own = [each.to(where).requires_grad_() for each in (weight, factors)]
    index, starts = torch.tensor([5, 1, 6, 5, 6]).to(where), torch.tensor([0, 3]).to(where)
    return torch.autograd.grad(function(own[0], index, starts, own[1]).sin().sum(), own)
for one, other in zip(learned(torch.compile(bags), device), learned(bags, "cpu")):
    close(one, other)
"""


def test_bags_that_the_cpu_sums_have_gradients_in_graphs(tmp_path: Path) -> None:
    run(BAGS, tmp_path)


def test_models_train_on_executables_and_a_second_process_compiles_none(tmp_path: Path) -> None:
    assert "compiled 0" not in run(TRAINING, tmp_path)
    assert "compiled 0" in run(TRAINING, tmp_path)


def test_executables_that_the_driver_refuses_are_made_again_once(tmp_path: Path) -> None:
    assert "made 2" in run(SEVERAL, tmp_path)
    run(AGEING, tmp_path)
    assert "made 2" in run(SEVERAL, tmp_path)
    assert "made 0" in run(SEVERAL, tmp_path)


def test_a_complaint_that_the_cpu_does_not_share_is_a_reason(tmp_path: Path) -> None:
    code = """
    from outboard.compiler.adapter import lowering
    a = torch.ones(3, device=device)
    lowering.lower_operator = lambda *given: torch.empty(-1)
    close(a.sin(), torch.ones(3).sin())
    count, (reason,) = ours.fallbacks(reasons=True)["aten::sin"]
    assert count == 1 and "negative dimension" in reason, reason
    """
    run(code, tmp_path)


#: Prints why a device's compiler is not taken.
MUST_RAISE = """
try:
    torch.ones(3, device=device) + 1
except LookupError as error:
    print(error)
else:
    raise SystemExit("nobody was told")
"""


def test_who_has_a_compiler_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    said = run(MUST_RAISE, tmp_path, OUTBOARD_SIM_BUCKETS="many")
    assert "'outboard-sim' (outboard.compilers.sim:SimCompiler) cannot be made: ValueError" in said


def test_who_has_another_version_of_the_compiler_is_told(tmp_path: Path) -> None:
    strict = {
        "OUTBOARD_DRIVER": "strict",
        "OUTBOARD_STRICT_DRIVER": "sim",
        "OUTBOARD_STRICT_COMPILER": "outboard-sim 2",
    }
    said = run(MUST_RAISE, tmp_path, **strict)
    assert "takes what 'outboard-sim 2' makes, and installed is outboard-sim 1" in said


def test_a_name_that_two_packages_offer_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [EntryPoint("mycc", f"{package}:Compiler", compilers.GROUP) for package in ("one", "other", "one")]
    monkeypatch.setattr(compilers, "entry_points", lambda group: entries)
    with pytest.raises(LookupError, match="'mycc': one:Compiler, other:Compiler; uninstall all but one"):
        compilers.load("mycc")


def test_operands_lie_in_any_way_and_refusals_have_reasons(tmp_path: Path) -> None:
    run(LAYOUTS, tmp_path, OUTBOARD_DRIVER="strict", OUTBOARD_STRICT_DRIVER="sim")


def test_values_that_pytorch_refuses(tmp_path: Path) -> None:
    run(REFUSED, tmp_path)


def test_operators_of_models_are_the_cpus(tmp_path: Path) -> None:
    run(OPERATORS, tmp_path)


def test_integers_of_64_bits_are_exact(tmp_path: Path) -> None:
    run(INTEGERS, tmp_path)


#: Quotients that are rounded, down, towards zero or not at all, by tensors and numbers; what else has fixed bits.
QUOTIENTS = """
values = [1.0, 0.1, 0.3, -1.0, torch.inf, -torch.inf, torch.nan, 0.0, -0.0, 3.0, 1e30, 7.5, -7.5, 2.9999998, 0.7]
tenths = torch.arange(1, 300) / 10
whole = (torch.int64, torch.int32, torch.int8)
for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
    a = torch.cat([torch.tensor(values).repeat_interleave(len(values)), tenths]).to(dtype)
    b = torch.cat([torch.tensor(values).repeat(len(values)), torch.full_like(tenths, 0.1)]).to(dtype)
    for rounding in ("floor", "trunc", None):
        for divisor in (0.1, 3, -0.7, b):
            there = divisor.to(device) if divisor is b else divisor
            found = torch.div(a.to(device), there, rounding_mode=rounding)
            wanted = torch.div(a, divisor, rounding_mode=rounding)
            torch.testing.assert_close(found.cpu(), wanted, rtol=0, atol=0, equal_nan=True)
    functions = [
        lambda a, b: a * -0.7, lambda a, b: torch.mul(0.1, a), lambda a, b: torch.sub(a, b, alpha=2),
        lambda a, b: torch.relu(a), lambda a, b: a.sign(), lambda a, b: a.round(decimals=2),
        lambda a, b: (a * torch.inf) ** 0.5, lambda a, b: (a * 0) ** -0.5,
        *(lambda a, b, d=d: a.to(d) for d in whole),
    ]
    for function in functions:
        found, wanted = function(a.to(device), b.to(device)).cpu(), function(a, b)
        torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)
        assert not ((found.signbit() != wanted.signbit()) & ~wanted.isnan()).any()
large = torch.tensor([2**62 + 2**38 + 1, 2**24 + 1, -(2**53) - 1])
for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
    assert torch.equal(large.to(device).to(dtype).cpu(), large.to(dtype))
assert ours.fallbacks() == {}, ours.fallbacks(reasons=True)
"""


def test_quotients_are_the_cpus_to_the_last_bit(tmp_path: Path) -> None:
    run(QUOTIENTS, tmp_path)


def test_sizes_that_data_tells_and_parameters_of_one_element(tmp_path: Path) -> None:
    run(SIZES, tmp_path)


def test_compilers_that_fail_or_lie_cost_a_counted_fallback_or_an_error(tmp_path: Path) -> None:
    run(FAULTS, tmp_path, OUTBOARD_CHECK_EXECUTABLES="1")


def test_compilers_may_change_what_they_are_asked_about(tmp_path: Path) -> None:
    run(SPOILING, tmp_path)


@pytest.mark.parametrize(("name", "classes", "program"), [("", 0, 1), ("Bert", 2, 3), ("Tiled", 4, 5)])
def test_the_guides_programs_run(name: str, classes: int, program: int, tmp_path: Path) -> None:
    """As printed: in a package that is installed beside Outboard, whose own compiler it replaces."""
    guide = (ROOT / "docs/write-a-graph-compiler.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", guide, flags=re.MULTILINE | re.DOTALL)
    assert len(blocks) == 6 and sum(len(block.splitlines()) for block in blocks) <= 300
    [entry] = re.findall(
        r"^```toml\n\[project.entry-points.\"(.*?)\"\]\n(.*?)^```", guide, flags=re.MULTILINE | re.DOTALL
    )
    metadata = tmp_path / "my_package-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1.0\n")
    offered = entry[1].replace('"', "").replace(":Compiler", f":{name}Compiler")
    (metadata / "entry_points.txt").write_text(f"[{entry[0]}]\n{offered}")
    (tmp_path / "my_package.py").write_text(blocks[0] + (blocks[classes] if classes else ""))
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")]), str(ROOT)])
    settings = {"OUTBOARD_SIM_COMPILER": "1", "OUTBOARD_CACHE_DIR": str(tmp_path / "cache"), "OUTBOARD_DRIVER": "sim"}
    result = run_program(["-c", blocks[program]], environment={**settings, "PYTHONPATH": path}, cold=True)
    assert result.returncode == 0, result.stdout + result.stderr
    assert name or "{'aten::sub.Tensor': (1, ['aten::sub: no such operation" in result.stdout


def test_a_window_is_part_of_its_neighbours_executable(tmp_path: Path) -> None:
    assert "made 1" in run(NEIGHBOURS, tmp_path)


def test_models_as_files_are_one_executable_in_python_and_without(tmp_path: Path) -> None:
    run(EXPORTED, tmp_path)
    run(EXPORTED, tmp_path)


def test_a_driver_that_comes_to_want_fixed_sizes_meets_no_plans_for_all_sizes() -> None:
    for_all = Target(compiler="mycc 1", cache_key="chip")
    assert for_all.plan_key != dataclasses.replace(for_all, static_sizes=True).plan_key
