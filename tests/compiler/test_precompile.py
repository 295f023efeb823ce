# SPDX-License-Identifier: Apache-2.0
"""A second process traces nothing, and gets nothing that is not its own."""

from __future__ import annotations

import dataclasses
import os
import pickle
import sys
import types
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from processes import run_program

from outboard import settings
from outboard.compiler.adapter.traces import precompile, trace_keys

#: A model in a module of its own. Where the trace comes from is printed after the result.
MODEL = """
import torch
from torch import nn
import torch.nn.functional as F
from torch._dynamo.utils import counters

class Model(nn.Module):
    def __init__(self, activation=F.relu):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        nn.init.constant_(self.linear.weight, -0.5)
        nn.init.constant_(self.linear.bias, 1.0)
        self.activation = activation

    def forward(self, x):
        return self.activation(self.linear(x))

def double(x):
    return x * 2

def triple(x):
    return x * 3

scale = double

def scaled(x):
    return scale(x)

device = torch._C._get_privateuse1_backend_name()
x = torch.ones(3, 4, device=device)

def show(*values):
    sums = [round(float(value.sum().cpu()), 4) for value in values]
    print(*sums, dict(counters["dynamo_cache"]), counters["stats"]["unique_graphs"])
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "model.py").write_text(MODEL)
    return tmp_path


def run(
    folder: Path, source: str, name: str = "program.py", cold: bool = False, cwd: Path | None = None, **environment: str
) -> list[str]:
    """What a program in ``folder`` prints, in words, with a cache there. It is started in ``cwd``, or there."""
    (folder / name).write_text("from model import *\nimport model\n" + source)
    variables = {
        "OUTBOARD_CACHE_DIR": str(folder / "cache"),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
    }
    program = str(folder / name)
    result = run_program([program], cwd=cwd or folder, environment=variables | environment, cold=cold)
    assert result.returncode == 0, result.stderr
    return result.stdout.split()


def traces(folder: Path) -> list[Path]:
    return [path for path in (folder / "cache" / "traces").rglob("*") if path.is_file()]


def hits(words: list[str]) -> bool:
    return "{'dynamo_cache_hit':" in words


def test_a_second_process_traces_nothing(folder: Path) -> None:
    """Whatever differs between two interpreters, such as the order of sets or the directory that they are started in,
    is no part of what a trace is found by."""
    source = "with torch.no_grad(): show(torch.compile(Model(torch.nn.ReLU()).to(device))(x))"
    first, second = run(folder, source, cold=True), run(folder, source, cold=True, cwd=folder.parent)
    assert first[0] == second[0] == "0.0"
    assert not hits(first) and first[-1] == "1"
    assert hits(second) and second[-1] == "0"


def test_a_model_of_transformers_is_traced_once(folder: Path) -> None:
    """Its functions are decorated, its results are dataclasses, and it compares members of enumerations."""
    pytest.importorskip("transformers")
    source = """
from transformers import BertConfig, BertModel
torch.manual_seed(0)
settings = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, vocab_size=20)
bert = BertModel(BertConfig(**settings)).to(device).eval()
words = torch.arange(6, device=device)[None]
with torch.no_grad(): show(torch.compile(bert)(words).last_hidden_state - bert(words).last_hidden_state > 1e-4)
"""
    first, second = run(folder, source), run(folder, source)
    assert first[0] == second[0] == "0.0"
    assert not hits(first) and hits(second) and second[-1] == "0"


def test_what_reads_the_environment_is_kept_for_the_same_one(folder: Path) -> None:
    source = """
import os
def scaled_by_variable(x): return x * int(os.environ.get("SCALE", "2"))
show(torch.compile(scaled_by_variable)(torch.ones(3, device=device)))
"""
    assert not hits(run(folder, source, SCALE="3"))
    again, other = run(folder, source, SCALE="3", SHLVL="7"), run(folder, source, SCALE="4")
    assert hits(again) and again[0] == "9.0"
    assert not hits(other) and other[0] == "12.0"


def test_classes_that_are_defaults_of_each_other(folder: Path) -> None:
    source = """
class First(torch.nn.Module):
    def forward(self, x, kind=None): return x * 2
class Second(First):
    def after(self, kind=First): pass
First.forward.__defaults__ = (Second,)
show(torch.compile(Second().to(device))(torch.ones(3, device=device)))
"""
    assert [run(folder, source)[0] for _ in range(2)] == ["6.0", "6.0"]


def test_use_is_marked_for_eviction(folder: Path) -> None:
    source = "show(torch.compile(double)(x))"
    run(folder, source)
    (entry,) = traces(folder)
    os.utime(entry, (1.0, 1.0))
    run(folder, source)
    assert entry.stat().st_mtime > 1.0


def test_training_comes_from_the_cache_too(folder: Path) -> None:
    source = """
model = Model(torch.nn.Softplus()).to(device)
torch.compile(model)(x).sum().backward()
show(model.linear.weight.grad)
"""
    first, second = run(folder, source), run(folder, source)
    assert first[0] == second[0] != "0.0"
    assert hits(second) and second[-1] == "0"


def test_another_process_does_not_get_another_models_function(folder: Path) -> None:
    source = "show(torch.compile(Model({}).to(device))(x))"
    assert run(folder, source.format("F.relu"))[0] == "0.0"
    assert run(folder, source.format("torch.neg"))[0] == "12.0"


def test_another_process_does_not_get_what_a_name_meant_before(folder: Path) -> None:
    source = "model.scale = {}\nshow(torch.compile(scaled)(x))"
    assert run(folder, source.format("double"))[0] == "24.0"
    assert run(folder, source.format("triple"))[0] == "36.0"


def test_guards_hold_in_the_process_that_traced(folder: Path) -> None:
    source = """
made = Model().to(device)
compiled = torch.compile(made)
first = compiled(x)
made.activation = torch.neg
second = compiled(x)
scales = torch.compile(scaled)
third = scales(x)
model.scale = triple
show(first, second, third, scales(x))
"""
    assert run(folder, source)[:4] == ["0.0", "12.0", "24.0", "36.0"]


def test_functions_of_the_same_name_and_line_do_not_meet(folder: Path) -> None:
    source = "def f(x):\n    return x {} 2\nshow(torch.compile(f)(x))"
    assert run(folder, source.format("+"), "one.py")[0] == "36.0"
    assert run(folder, source.format("*"), "two.py")[0] == "24.0"
    assert run(folder, source.format("-"), "one.py")[0] == "-12.0"


def test_the_variable_turns_it_off(folder: Path) -> None:
    source = "show(torch.compile(double)(x))"
    for _ in range(2):
        assert not hits(run(folder, source, OUTBOARD_PRECOMPILE="0"))
    assert not (folder / "cache" / "traces").exists()


def test_a_later_process_may_compile_more(folder: Path) -> None:
    """Other shapes of a function whose trace was loaded are traced, and kept beside it."""
    run(folder, "show(torch.compile(double)(x))")
    source = "compiled = torch.compile(double)\nshow(compiled(x), compiled(torch.ones(5, 4, device=device)))"
    first, second = run(folder, source), run(folder, source)
    assert first[:2] == second[:2] == ["24.0", "40.0"]
    assert hits(first) and first[-1] == "1"
    assert hits(second) and second[-1] == "0"


def test_another_way_of_compiling_is_not_looked_up(folder: Path) -> None:
    run(folder, "show(torch.compile(double)(x))")
    source = """
calls = []

def backend(graph, inputs):
    calls.append(1)
    return graph.forward

result = torch.compile(double, backend=backend)(x)
print(len(calls))
show(result, torch.compile(double, mode="reduce-overhead")(x))
"""
    words = run(folder, source)
    assert words[:3] == ["1", "24.0", "24.0"]
    assert not hits(words)


def test_changed_code_is_traced_again(folder: Path) -> None:
    source = "show(torch.compile(scaled)(x))"
    assert run(folder, source)[0] == "24.0"
    (folder / "model.py").write_text(MODEL.replace("x * 2", "x * 5"))
    assert run(folder, source)[0] == "60.0"


def test_several_models_of_a_class(folder: Path) -> None:
    """Each has its own weights, sizes and attributes, in whichever order they come."""
    source = """
class Scaled(torch.nn.Module):
    def __init__(self, size, factor):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((size,), 2.0))
        self.factor = factor

    def forward(self, x):
        return x * self.weight * self.factor

models = [Scaled(size, factor).to(device) for size, factor in {}]
with torch.no_grad():
    show(*[torch.compile(each)(torch.ones(each.weight.shape[0], device=device)) for each in models])
"""
    assert run(folder, source.format("((4, 3), (8, 3), (4, 5))"))[:3] == ["24.0", "48.0", "40.0"]
    assert run(folder, source.format("((4, 5), (4, 7), (8, 3))"))[:3] == ["40.0", "56.0", "48.0"]


def test_graph_breaks_and_sizes_that_change(folder: Path) -> None:
    source = """
def broken(x):
    y = x * 2
    torch._dynamo.graph_break()
    return y.relu() + 1

compiled, dynamic = torch.compile(broken), torch.compile(double, dynamic=True)
show(compiled(x), dynamic(x), dynamic(torch.ones(7, 4, device=device)))
"""
    first, second = run(folder, source), run(folder, source)
    assert first[:3] == second[:3] == ["36.0", "24.0", "56.0"]


def test_what_modules_hold_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    class Proxy:
        @property
        def __class__(self) -> type:
            raise RuntimeError("there is no request")

    @dataclasses.dataclass
    class Point:
        x: int

    proxy, module = Proxy(), types.ModuleType("holding")
    Point.__module__ = "holding"
    vars(module).update(proxy=proxy, Point=Point)
    monkeypatch.setitem(sys.modules, "holding", module)
    found = trace_keys.method_written_for(Point.__init__.__code__)
    assert found == ("holding", Point.__qualname__ + ".__init__")


def test_keeping_a_trace_warns_of_nothing(folder: Path) -> None:
    """Of inputs that are no leaves Dynamo keeps the gradients, too, and who asks for these is warned."""
    source = """
import warnings
weight = torch.ones(4, 4, device=device, requires_grad=True)
with warnings.catch_warnings(record=True) as given:
    warnings.simplefilter("always")
    result = torch.compile(double)(weight + 1)
result.sum().backward()
print(sum("not a leaf" in str(each.message) for each in given))
show(result)
"""
    assert run(folder, source)[:2] == ["0", "64.0"] and traces(folder)


def test_hooks_of_another_process_are_not_kept(folder: Path) -> None:
    source = """
made = Model(torch.nn.ReLU()).to(device)
{}
with torch.no_grad(): show(torch.compile(made)(x))
"""
    hook = "made.linear.register_forward_hook(lambda module, inputs, result: result + 2)"
    assert run(folder, source.format(""))[0] == "0.0"
    assert run(folder, source.format(hook))[0] == "12.0"
    assert run(folder, source.format(""))[0] == "0.0"


def test_a_trace_belongs_to_a_device(folder: Path) -> None:
    source = (
        "y = torch.ones(3, 4, device=f'{{device}}:{}')\nz = torch.compile(double)(y)\nprint(z.device.index)\nshow(z)"
    )
    for index in ("0", "1"):
        assert run(folder, source.format(index), OUTBOARD_NUM_DEVICES="2")[:2] == [index, "24.0"]


def _cut(entry: Path) -> None:
    entry.write_bytes(entry.read_bytes()[:100])


def _lose(part: str) -> Callable[[Path], None]:
    """Writes a trace anew without a part of it."""

    def lose(entry: Path) -> None:
        trace = precompile._load(entry)
        setattr(trace, part, None)
        precompile._write(entry, pickle.dumps(trace))

    return lose


def test_a_trace_that_cannot_be_used_is_made_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is wrong with it: its file is cut, or a part of it is missing."""
    monkeypatch.setattr(settings, "_cache_directory", folder / "cache")
    source = "show(torch.compile(double)(x))"
    run(folder, source)
    for spoil in (_cut, *map(_lose, ("code", "graph", "guards", "sources"))):
        (entry,) = traces(folder)
        spoil(entry)
        again = run(folder, source)
        entry.unlink(missing_ok=True)
        assert again[0] == "24.0" and not hits(again)
    assert hits(run(folder, source))


def test_other_devices_are_left_alone(folder: Path) -> None:
    source = """
import torch._dynamo.guards
before = torch._dynamo.guards.CheckFunctionManager.__init__
made = Model(torch.nn.ReLU())
with torch.no_grad(): show(torch.compile(made)(torch.ones(3, 4)), torch.compile(double)(torch.ones(3, 4)))
print(torch._dynamo.guards.CheckFunctionManager.__init__ is before, torch._dynamo.config.caching_precompile)
"""
    for _ in range(2):
        assert run(folder, source) == ["0.0", "24.0", "{}", "2", "True", "False"]
    assert not traces(folder)


def test_another_backend_is_called_beside_a_trace_that_was_loaded(folder: Path) -> None:
    source = """
calls = []

def backend(graph, inputs):
    calls.append(1)
    return graph.forward

first, second = torch.compile(double)(x), torch.compile(double, backend=backend)(x)
print(len(calls))
show(first, second)
"""
    for _ in range(2):
        words = run(folder, source)
        assert words[:3] == ["1", "24.0", "24.0"]
    assert hits(words)


def test_a_function_that_a_model_holds(folder: Path) -> None:
    """It is the same one for later processes, and they notice when it is replaced."""
    source = """
made = Model(torch.neg).to(device)
compiled = torch.compile(made)
with torch.no_grad():
    first = compiled(x)
    made.activation = F.relu
    show(first, compiled(x))
"""
    first, second = run(folder, source), run(folder, source)
    assert first[:2] == second[:2] == ["12.0", "0.0"]
    assert hits(second)


def test_few_traces_are_kept_of_one_function(folder: Path) -> None:
    source = """
compiled = torch.compile(double, dynamic=False)
show(*[compiled(torch.ones(size, device=device)) for size in range(2, 8)])
"""
    assert run(folder, source)[:6] == ["4.0", "6.0", "8.0", "10.0", "12.0", "14.0"]
    assert len(traces(folder)) == 4
    assert run(folder, source)[:6] == ["4.0", "6.0", "8.0", "10.0", "12.0", "14.0"]
    assert len(traces(folder)) == 4


def test_processes_that_write_at_once(folder: Path) -> None:
    source = "show(torch.compile(double)(x))"
    with ThreadPoolExecutor(3) as pool:
        names = [f"program{index}.py" for index in range(3)]
        results = list(pool.map(lambda name: run(folder, source, name), names))
    assert [words[0] for words in results] == ["24.0"] * 3
    assert hits(run(folder, source))


def test_what_could_not_be_kept_is_remembered(folder: Path) -> None:
    """Later processes trace it, and do not try to write it down again."""
    source = """
import outboard.compiler.adapter.traces.precompile as precompile

def broken(x):
    y = x * 2
    torch._dynamo.graph_break()
    return y.relu() + 1

result = torch.compile(broken)(x)
print(precompile._prepare.cache_info().currsize)
show(result)
"""
    first, second = run(folder, source), run(folder, source)
    assert first[:2] == ["1", "36.0"]
    assert second[:2] == ["0", "36.0"]
    assert {path.name for path in traces(folder)} >= {"refused"}
