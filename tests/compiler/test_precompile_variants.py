# SPDX-License-Identifier: Apache-2.0
"""A process whose program differs from the one that traced, in whatever a trace may depend on, computes what it would
compute without compiling. One program has the cases; each case differs from variant to variant of the program. A third
of them is tried each day, all in ``make test-full``."""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path

from processes import run_program

from tests.conftest import of_today

PROGRAM = '''
import contextlib, dataclasses, enum, functools, json, os, sys, types
import torch
import torch.nn.functional as F
from torch import nn
from torch._dynamo.utils import counters
import helpers

VARIANT = int(sys.argv[1])
FACTOR = 2.0 + VARIANT
CHOICES = {"scale": FACTOR, "names": ["a"] * VARIANT}
device = torch._C._get_privateuse1_backend_name()
x = torch.arange(12.0, device=device).reshape(3, 4)
CONSTANT = torch.full((4,), FACTOR, device=device)
pick = helpers.double if VARIANT == 0 else helpers.triple
CASES = {}

def case(function):
    CASES[function.__name__] = function
    return function

class Linear(nn.Module):
    def __init__(self, **attributes):
        super().__init__()
        self.inner = nn.Linear(4, 4)
        nn.init.constant_(self.inner.weight, 0.5)
        nn.init.constant_(self.inner.bias, 1.0)
        self.__dict__.update(attributes)

    def forward(self, x):
        return self.after(self.inner(x))

    def after(self, x):
        return x

    def scaled(self, x):
        return x * FACTOR

def model(kind=Linear, **attributes):
    return kind(**attributes).to(device)

GLOBAL = model(number=3.0)
if VARIANT == 1:
    GLOBAL.after = types.MethodType(helpers.after, GLOBAL)

@case
def the_environment():
    class_ = helpers.Environment
    return model(class_), x

@case
def a_global_number():
    return lambda x: x * FACTOR, x

@case
def a_global_container():
    return lambda x: x * CHOICES["scale"] + len(CHOICES["names"]), x

@case
def a_global_tensor():
    return lambda x: x * CONSTANT, x

@case
def a_global_function():
    return lambda x: pick(x), x

@case
def a_module_attribute_of_a_module():
    helpers.chosen = helpers.double if VARIANT == 0 else helpers.triple
    return lambda x: helpers.chosen(x), x

@case
def a_closure():
    factor = 3 + VARIANT
    return lambda x: x * factor, x

@case
def a_default():
    def f(x, factor=5):
        return x * factor
    f.__defaults__ = (5 + VARIANT,)
    return f, x

@case
def a_cached_function():
    return lambda x: x * helpers.cached(), x

@case
def arguments_of_the_program():
    return lambda x: x * (1 + int(sys.argv[1])), x

@case
def a_class_attribute():
    helpers.WithFactor.factor = FACTOR
    return model(helpers.WithFactor), x

@case
def a_class_attribute_that_is_an_object():
    helpers.WithClassConfig.config = helpers.Config(FACTOR)
    return model(helpers.WithClassConfig), x

@case
def a_class_as_a_name_space():
    helpers.Names.factor = FACTOR
    return lambda x: x * helpers.Names.factor, x

@case
def a_class_as_a_name_space_elsewhere():
    helpers.Names.other = FACTOR
    return model(helpers.WithNames), x

@case
def a_global_of_another_module():
    helpers.FACTOR = FACTOR
    return model(helpers.WithGlobal), x

@case
def a_global_object_of_another_module():
    helpers.config.factor = FACTOR
    return model(helpers.WithGlobalConfig), x

@case
def a_tensor_of_another_module():
    helpers.TENSOR = torch.ones(4, device=device, dtype=torch.float32 if VARIANT == 0 else torch.bfloat16)
    return lambda x: x * helpers.TENSOR, x

@case
def a_method_of_an_object():
    if VARIANT == 1:
        helpers.ThirdConfig.scale = helpers.scale
    return model(helpers.WithConfig, config=helpers.ThirdConfig(2.0)), x

@case
def a_method_that_a_decorator_wrapped():
    if VARIANT == 1:
        helpers.Decorated.after = helpers.decorate(helpers.after_times_five)
    return model(helpers.Decorated), x

@case
def a_wrapper_with_another_number():
    helpers.Decorated.after = helpers.decorate(helpers.after_times_five, VARIANT)
    return model(helpers.Decorated), x

@case
def a_method_that_dataclasses_wrote():
    return model(helpers.WithWritten), x

@case
def a_member_of_an_enumeration():
    return model(helpers.WithLevel, level=helpers.Level.LOW), x

@case
def a_default_of_another_module():
    helpers.with_default.__defaults__ = (FACTOR,)
    return lambda x: helpers.with_default(x), x

@case
def a_property():
    helpers.WithProperty.offset = VARIANT
    return model(helpers.WithProperty), x

@case
def a_global_model():
    return lambda x: GLOBAL(x) * 2, x

@case
def an_object_that_is_called():
    return model(helpers.WithFunction, function=helpers.Caller(FACTOR)), x

@case
def a_function_of_a_module_replaced():
    if VARIANT == 1:
        helpers.replaced = helpers.triple
    return model(helpers.WithReplaced), x

@case
def the_number_of_a_dictionary():
    helpers.table["size"] = FACTOR
    return lambda x: x * sum(helpers.table.values()) + len(helpers.table), x

@case
def an_imported_module():
    import math, cmath
    helpers.mathematics = math
    math.outboard = FACTOR
    return lambda x: x * helpers.mathematics.outboard, x

@case
def a_patched_class():
    if VARIANT == 1:
        helpers.Patched.forward = lambda self, x: self.inner(x) * 7
    return model(helpers.Patched), x

@case
def a_class_patched_with_a_named_function():
    if VARIANT == 1:
        helpers.PatchedByName.after = helpers.after
    return model(helpers.PatchedByName), x

@case
def a_class_patched_first():
    if VARIANT == 0:
        helpers.PatchedFirst.after = helpers.after
    return model(helpers.PatchedFirst), x

@case
def a_method_of_the_object():
    made = model()
    if VARIANT == 1:
        made.after = types.MethodType(lambda self, x: x * 11, made)
    return made, x

@case
def a_function_of_the_object():
    return model(helpers.WithFunction, function=F.relu if VARIANT == 0 else torch.neg), x

@case
def a_partial_of_the_object():
    return model(helpers.WithFunction, function=functools.partial(torch.mul, other=FACTOR)), x

@case
def a_number_of_the_object():
    return model(helpers.WithNumber, number=FACTOR), x

@case
def a_list_of_the_object():
    return model(helpers.WithList, numbers=[1.0, FACTOR]), x

@case
def a_configuration():
    return model(helpers.WithConfig, config=helpers.Config(FACTOR, helpers.Mode(VARIANT % 2))), x

@case
def a_configuration_by_another_class():
    config = helpers.Config(2.0) if VARIANT == 0 else helpers.OtherConfig(2.0)
    return model(helpers.WithConfig, config=config), x

@case
def a_tensor_of_the_object():
    return model(helpers.WithNumber, number=torch.tensor(FACTOR, device=device)), x

@case
def a_tensor_made_from_a_global():
    return lambda x: x + torch.tensor([1.0, 2.0, 3.0, FACTOR], device=x.device), x

@case
def weights():
    made = model()
    with torch.no_grad():
        made.inner.weight.mul_(FACTOR)
    return made, x

@case
def the_dtype():
    kind = torch.float32 if VARIANT == 0 else torch.bfloat16
    return model().to(kind), x.to(kind)

@case
def layers():
    return nn.Sequential(*[model() for _ in range(1 + VARIANT)]), x

@case
def shared_weights():
    made = nn.Sequential(model(), model())
    if VARIANT == 1:
        made[1].inner.weight = made[0].inner.weight
    return made, x

@case
def training():
    torch.manual_seed(3)
    made = nn.Sequential(model(), nn.BatchNorm1d(4).to(device))
    return made.train(VARIANT == 0), x

@case
def gradients():
    made = model()
    made.inner.weight.requires_grad_(VARIANT == 0)
    def step(x):
        result = made(x).square().sum()
        result.backward()
        gradient = made.inner.bias.grad + (0 if made.inner.weight.grad is None else made.inner.weight.grad.sum(1))
        made.zero_grad()
        return gradient
    return made, x, step

@case
def the_default_dtype():
    return lambda x: x + torch.ones(4, device=x.device).to(x.dtype) + torch.get_default_dtype().itemsize, x

@case
def arguments_that_are_one():
    def f(a, b):
        a.add_(1)
        return a * b
    other = x.clone()
    return f, other, lambda f: f(other.copy_(x), other if VARIANT == 1 else x)

@case
def arguments_that_overlap():
    def f(a, b):
        a.add_(1)
        return a * b
    whole = torch.zeros(24, device=device)
    def call(f):
        whole.copy_(torch.arange(24.0))
        return f(whole[:12], whole[12:] if VARIANT == 0 else whole[6:18])
    return f, whole, call

@case
def an_argument_that_is_none():
    return lambda x, y=None: x if y is None else x * y, x, lambda f: f(x, None if VARIANT == 0 else x)

@case
def strides():
    return lambda x: x.reshape(-1)[:5] * 2, x if VARIANT == 0 else x.t()

@case
def an_operator_replaced():
    before = torch.sqrt
    def call(f):
        if VARIANT == 1:
            torch.sqrt = lambda x: x * 13
        try:
            return f(x)
        finally:
            torch.sqrt = before
    return lambda x: torch.sqrt(x), x, call

@case
def a_function_of_pytorch_replaced():
    before = F.softplus
    def call(f):
        if VARIANT == 1:
            F.softplus = lambda x: x * 17
        try:
            return f(x)
        finally:
            F.softplus = before
    return lambda x: F.softplus(x), x, call

@case
def autocast():
    made = model()
    def call(f):
        with torch.autocast(device, dtype=torch.bfloat16, enabled=VARIANT == 1):
            return f(x)
    return made, x, call

@case
def side_effects():
    made = model(helpers.Counting)
    def call(f):
        made.calls = 10 * VARIANT
        helpers.seen.clear()
        f(x), f(x)
        return torch.tensor([made.calls, len(helpers.seen)])
    return made, x, call

@case
def random_numbers():
    def call(f):
        torch.manual_seed(VARIANT)
        return f(torch.ones(64, 64, device=device)).ne(0).float().mean().round(decimals=1)
    return nn.Dropout(0.2 if VARIANT == 0 else 0.7).to(device), x, call

@case
def results_of_a_class():
    return lambda x: helpers.Result(x * FACTOR, {"y": x}), x, lambda f: f(x).first

@case
def changed_after_the_first_call():
    """In the process that loads a trace as well as in the one that made it."""
    made = model(helpers.WithNumber, number=2.0)
    def call(f):
        made.number = 2.0
        first = f(x)
        made.number = 5.0 + VARIANT
        return torch.cat([first, f(x), f(x[:2])])
    return made, x, call

@case
def a_global_function_changed_after_the_first_call():
    def call(f):
        global later
        later = helpers.double
        first = f(x)
        later = helpers.triple
        return torch.cat([first, f(x)])
    return lambda x: later(x), x, call

@case
def many_shapes():
    def call(f):
        return torch.cat([f(torch.ones(size, 4, device=device)) for size in (3 + VARIANT, 5, 6, 7)])
    return model(), x, call

def run(name):
    torch._dynamo.reset()
    counters.clear()
    function, value, *call = CASES[name]()
    if name == "the_default_dtype" and VARIANT == 1:
        torch.set_default_dtype(torch.float64)
    call = call[0] if call else lambda f: f(value)
    if name == "gradients":
        step, call = call, lambda f: step(value)
        eager = call(function)
        function.compile()
        return eager, call(function)
    state = {key: value.clone() for key, value in getattr(function, "state_dict", dict)().items()}
    with contextlib.nullcontext() if name == "gradients" else torch.no_grad():
        eager = call(function)
        if state:
            function.load_state_dict(state)
        compiled = call(torch.compile(function))
    torch.set_default_dtype(torch.float32)
    return eager, compiled

report = {}
for name in sys.argv[2:]:
    eager, compiled = run(name)
    same = eager.dtype == compiled.dtype and torch.allclose(eager.cpu().double(), compiled.cpu().double(), 1e-2, 1e-4)
    report[name] = [bool(same), counters["dynamo_cache"]["dynamo_cache_hit"], counters["stats"]["unique_graphs"]]
print(json.dumps(report))
'''

HELPERS = """
import dataclasses, enum, functools, os, sys
import torch
from torch import nn

def double(x):
    return x * 2

def triple(x):
    return x * 3

def after(self, x):
    return x * 19

@functools.lru_cache
def cached():
    return 2 + int(sys.argv[1])

seen = []

class Base(nn.Module):
    def __init__(self, **attributes):
        super().__init__()
        self.inner = nn.Linear(4, 4)
        nn.init.constant_(self.inner.weight, 0.5)
        nn.init.constant_(self.inner.bias, 1.0)
        for name, value in attributes.items():
            setattr(self, name, value)

    def forward(self, x):
        return self.after(self.inner(x))

    def after(self, x):
        return x

class Environment(Base):
    def after(self, x):
        return x * (2 + int(os.environ.get("VARIANT", "0")))

class WithFactor(Base):
    factor = 1.0
    def after(self, x):
        return x * self.factor

class Patched(Base):
    pass

class PatchedByName(Base):
    pass

class PatchedFirst(Base):
    pass

class WithFunction(Base):
    def after(self, x):
        return self.function(x - 4)

class WithNumber(Base):
    def after(self, x):
        return x * self.number

class WithList(Base):
    def after(self, x):
        for number in self.numbers:
            x = x * number
        return x

class Mode(enum.Enum):
    ONE = 0
    TWO = 1

@dataclasses.dataclass
class Config:
    factor: float
    mode: Mode = Mode.ONE
    def scale(self):
        return self.factor

class OtherConfig(Config):
    def scale(self):
        return self.factor * 23

class WithConfig(Base):
    def after(self, x):
        return x * self.config.scale() + (1 if self.config.mode is Mode.TWO else 0)

FACTOR = 0.0
TENSOR = None
table = {"one": 1.0}

def replaced(x):
    return x * 29

def scale(self):
    return self.factor * 31

def with_default(x, factor=1.0):
    return x * factor

class Names:
    factor = 0.0
    other = 0.0

class WithClassConfig(Base):
    def after(self, x):
        return x * self.config.scale()

class WithNames(Base):
    def after(self, x):
        return x * Names.other

class WithGlobal(Base):
    def after(self, x):
        return x * FACTOR

class WithReplaced(Base):
    def after(self, x):
        return replaced(x)

config = Config(0.0)

class WithGlobalConfig(Base):
    def after(self, x):
        return x * config.factor

def decorate(function, number=0):
    def wrapped(self, x):
        return function(self, x) + number
    return wrapped

def after_times_five(self, x):
    return x * 5

class Decorated(Base):
    @decorate
    def after(self, x):
        return x * 3

@dataclasses.dataclass
class Written:
    x: torch.Tensor
    scale: float = 2.0 + int(os.environ["VARIANT"])

class WithWritten(Base):
    def after(self, x):
        written = Written(x)
        return written.x * written.scale

class Level(enum.Enum):
    LOW = 2 + int(os.environ["VARIANT"])
    HIGH = 7

class WithLevel(Base):
    def after(self, x):
        return x * self.level.value if self.level is Level.LOW else x

class ThirdConfig(Config):
    def scale(self):
        return self.factor * 37

class WithProperty(Base):
    offset = 0
    @property
    def number(self):
        return 2.0 + self.offset
    def after(self, x):
        return x * self.number

class Caller:
    def __init__(self, factor):
        self.factor = factor
    def __call__(self, x):
        return x * self.factor

class Counting(Base):
    calls = 0
    def after(self, x):
        self.calls += 1
        seen.append(1)
        return x

@dataclasses.dataclass
class Result:
    first: torch.Tensor
    second: dict
"""


#: Of the cases, those of today.
NAMES = of_today(re.findall(r"^@case\ndef (\w+)", PROGRAM, re.MULTILINE), 3)


def _run(folder: Path, variant: int, cold: bool) -> dict[str, tuple[bool, int, int]]:
    # PyTorch's own caches are left out: that of AOTAutograd does not tell arguments that overlap from others.
    inductor = tempfile.mkdtemp(dir=folder)
    caches = {"OUTBOARD_CACHE_DIR": str(folder / "cache"), "TORCHINDUCTOR_CACHE_DIR": inductor}
    environment = caches | {"VARIANT": str(variant)}
    result = run_program(
        ["program.py", str(variant), *NAMES], cwd=folder, environment=environment, timeout=600, cold=cold
    )
    assert result.returncode == 0, result.stderr
    report: dict[str, tuple[bool, int, int]] = json.loads(result.stdout.splitlines()[-1])
    return report


def test_processes_that_differ(tmp_path: Path) -> None:
    """Each of them, in turn, finds the traces of those before; the last two are interpreters of their own."""
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "helpers.py").write_text(HELPERS)
    reports = [_run(tmp_path, variant, cold=index > 1) for index, variant in enumerate((0, 1, 0, 1))]
    wrong = [(index, name) for index, report in enumerate(reports) for name, each in report.items() if not each[0]]
    assert not wrong
    again = [name for name, (_, loaded, traced) in reports[-1].items() if loaded and not traced]
    assert len(again) > len(reports[-1]) // 2, "most are found by a process like an earlier one"
