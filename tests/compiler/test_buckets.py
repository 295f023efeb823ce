# SPDX-License-Identifier: Apache-2.0
"""Sizes that vary on a device whose compiler knows fixed ones: one executable for many, by padding."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from processes import run_program
from test_graph_compilers import PRELUDE

from tests.conftest import of_today

#: Steps of training; prints how many executables there were after each.
TRAINING = """
sizes = [5, 7, 6, 8, 3, 13, 16, 11]
inputs = {
    "perceptron": lambda n: torch.randn(n, 8),
    "convolutional": lambda n: torch.randn(n, 3, 8, 8),
    "language_model": lambda n: torch.randint(0, 11, (2 + n % 3, n)),
}
made = []
expected, model = globals()[chosen](), globals()[chosen]()
model.load_state_dict(expected.state_dict())
model.to(device)

@torch.compile
def step(x):
    result = model(x)
    return result, result.square().mean()

for n in sizes:
    x = inputs[chosen](n)
    y = x.to(device)
    for dim in range(2 if chosen == "language_model" else 1):
        torch._dynamo.maybe_mark_dynamic(y, dim)
    expected.zero_grad(), model.zero_grad()
    wanted = expected(x)
    wanted.square().mean().backward()
    result, loss = step(y)
    loss.backward()
    close(result.detach(), wanted.detach())
    for one, other in zip(model.parameters(), expected.parameters()):
        close(one.grad, other.grad)
    for one, other in zip(model.buffers(), expected.buffers()):
        close(one, other)
    made.append(int(ours.compile_stats()["executables_made"]))
assert ours.fallbacks() == {}, ours.fallbacks(reasons=True)
print(made)
"""


#: Buckets for what has several sizes in one, such as the number of elements.
SIZES = "8,16,32,64,128,256,512,1024,2048,4096"


def run(code: str, cache: Path, **environment: str) -> str:
    """Runs code on the simulator, whose compiler has two buckets; returns what it printed."""
    settings = {"OUTBOARD_DRIVER": "sim", "OUTBOARD_SIM_COMPILER": "1", "OUTBOARD_SIM_BUCKETS": "8,16"}
    settings |= {"OUTBOARD_CACHE_DIR": str(cache), **environment}
    result = run_program(["-c", PRELUDE + code], environment=settings)
    assert result.returncode == 0, f"{result.stdout}\n{result.stderr}"
    assert "contract of driver.h is broken" not in result.stderr
    return result.stdout


@pytest.mark.parametrize("model", of_today(["perceptron", "convolutional", "language_model"], 3))
def test_steps_of_training_share_executables(tmp_path: Path, model: str) -> None:
    """One for each bucket, whatever the batch's sizes; a second process makes none."""
    code = f"chosen = {model!r}\n" + TRAINING
    made = ast.literal_eval(run(code, tmp_path))
    assert len(set(made[:5])) == len(set(made[5:])) == 1 and made[5] <= 2 * made[0], made
    driver = {"OUTBOARD_DRIVER": "strict", "OUTBOARD_STRICT_DRIVER": "sim"} if model == "language_model" else {}
    again = ast.literal_eval(run(code, tmp_path, **driver))
    assert driver or not any(again), again


#: Integers that no double is, as padded rows of integers would be.
INTEGERS = """
x = torch.randint(-5, 5, (5, 3))
greatest = 2**63 - 1
def extremes(x):
    return x.amin(0), x.amax(0), x.int().amin(0), torch.full((3,), greatest, dtype=torch.int64, device=x.device)
y = x.to(device)
torch._dynamo.maybe_mark_dynamic(y, 0)
for found, wanted in zip(torch.compile(extremes)(y), extremes(x), strict=True):
    assert torch.equal(found.cpu(), wanted), (found, wanted)
"""


def test_long_integers_are_exact(tmp_path: Path) -> None:
    run(INTEGERS, tmp_path)


#: Calls without ``torch.compile`` of tensors of n rows; prints how many executables each had after every size. A third
#: of the functions each day.
EAGER = f"thirds = {of_today(range(3), 3)}"
EAGER += """
import torch.nn.functional as F

def in_place(x):
    return x.clone().add_(x, alpha=0.3).mul_(2)

def out(x):
    result = torch.empty(x.shape[0], 3, device=x.device)
    torch.mul(x, 2.5, out=result)
    return result

def square(x):
    return F.scaled_dot_product_attention(x[None, None], x[None, None], x[None, None])

functions = {
    "softmax": lambda x: x.softmax(0), "transposed": lambda x: x.t().softmax(1), "sum": lambda x: x.sum(),
    "mean": lambda x: x.mean(0), "largest": lambda x: x.amax(0), "gram": lambda x: x @ x.t(),
    "product": lambda x: x.t() @ x, "in place": in_place, "out": out, "norm": lambda x: F.layer_norm(x, (3,)),
    "slice": lambda x: x[::2].sin(), "copy": lambda x: x.t().contiguous(), "expanded": lambda x: x + x[:1].expand_as(x),
    "cat": lambda x: torch.cat([x, x[:2]]), "cat of columns": lambda x: torch.cat([x.t(), x.t()[:, :2]], 1),
    "attention": square, "half": lambda x: x.half() * 3, "integers": lambda x: (x * 10).int().amin(0),
    "where": lambda x: torch.where(x > 0, x, -x), "last": lambda x: x[-1:] * 2,
    "variance": lambda x: x.var(0), "scan": lambda x: x.cumsum(0),
    "infinite": lambda x: x.masked_fill(x > 0, -torch.inf).softmax(0),
    "count": lambda x: x.argmax(0), "least": lambda x: x.t().argmin(1), "of all": lambda x: x.argmax(),
    "order": lambda x: torch.sort(x, dim=0, stable=True)[1], "sorted": lambda x: x.sort(0, descending=True)[0],
    "indexed": lambda x: tables[x.device.type][(x[:, 0] * 2).long().clamp(-6, 5)],
    "quotient": lambda x: (x * 10).int() // ((x * 10).int().abs() + 1),
    "towards zero": lambda x: torch.div((x * 9).int(), x.abs().ceil().int(), rounding_mode="trunc"),
    "columns": lambda x: x[:, places[x.device.type]], "logarithm": lambda x: x.logsumexp(0),
}
tables, places = torch.arange(12.0).view(6, 2), torch.tensor([2, 0, -1])
tables, places = ({"cpu": each, device: each.to(device)} for each in (tables, places))
for number, (name, function) in enumerate(functions.items()):
    if number % 3 not in thirds:
        continue
    before, made = int(ours.compile_stats()["executables_made"]), []
    for n in (5, 6, 7, 8, 4, 13, 14, 16, 15, 7):
        torch.manual_seed(n)
        x = torch.randn(n, 3)
        wanted, found = function(x), function(x.to(device))
        assert (found.dtype, found.stride()) == (wanted.dtype, wanted.stride()), (name, n, found.stride())
        options = {"rtol": 2e-5, "atol": 2e-6, "equal_nan": True}
        torch.testing.assert_close(found.cpu(), wanted, **options, msg=lambda text: f"{name} of {n}: {text}")
        made.append(int(ours.compile_stats()["executables_made"]) - before)
    print(name, made)
assert ours.fallbacks() == {}, ours.fallbacks(reasons=True)
"""


#: What padding could be taken for: NaN, infinities, ties, the least and the greatest number, and nothing at all.
EDGES = """
inf, nan = float("inf"), float("nan")
def drawn(n, dtype):
    values = [-inf, -1.0, -1.0, 2.0, inf, nan] if dtype.is_floating_point else [-128, -1, -1, 2, 127]
    return torch.tensor(values, dtype=dtype)[torch.randint(len(values), (n, 7))]

functions = {
    "argmax": lambda x: x.argmax(0), "argmin": lambda x: x.argmin(0), "flat": lambda x: x.argmax(),
    "ascending": lambda x: torch.sort(x, dim=0, stable=True),
    "descending": lambda x: torch.sort(x, dim=0, stable=True, descending=True),
    "variance": lambda x: x.double().var(0), "of few": lambda x: x.float().var(0, correction=5),
    "close": lambda x: torch.var_mean(1e4 + 1e-3 * (x > 0), 0),
}
for name, function in functions.items():
    for dtype in (torch.float32, torch.bfloat16, torch.int8):
        for n in (6, 5, 7, 8, 13, 2, 1, 0):
            torch.manual_seed(n)
            x = drawn(n, dtype)
            try:
                wanted = function(x)
            except IndexError:
                with pytest.raises(IndexError):
                    function(x.to(device))
                continue
            found = function(x.to(device))
            for one, other in zip(*(each if isinstance(each, tuple) else (each,) for each in (found, wanted))):
                says = lambda text: f"{name} of {n} in {dtype}: {text}"
                torch.testing.assert_close(one.cpu(), other, rtol=2e-5, atol=0, equal_nan=True, msg=says)
for n in (6, 5, 7):  # the gradient of x is not asked for
    x, scales = torch.rand(n, 3), [torch.ones(3, device=each, requires_grad=True) for each in ("cpu", device)]
    for scale in scales:
        torch.nn.functional.layer_norm(x.to(scale.device), (3,), scale).square().sum().backward()
    torch.testing.assert_close(scales[1].grad.cpu(), scales[0].grad)
assert all("without elements" in str(why) for _, why in ours.fallbacks(reasons=True).values())
"""


def test_padding_is_told_from_what_is_like_it(tmp_path: Path) -> None:
    run("import pytest\n" + EDGES, tmp_path, OUTBOARD_SIM_BUCKETS=SIZES)


def test_calls_of_varying_sizes_share_executables(tmp_path: Path) -> None:
    """One for the first size, which nobody knows to vary, and then one for each bucket; a third of them each day."""
    made = {}
    for line in run(EAGER, tmp_path, OUTBOARD_SIM_BUCKETS=SIZES).splitlines():
        name, _, counts = line.partition(" [")
        made[name] = ast.literal_eval(f"[{counts}")
    for name, counts in made.items():
        growths = sum(before != after for before, after in zip(counts, counts[1:], strict=False))
        assert growths <= 4, (name, counts)
    again = run(EAGER, tmp_path, OUTBOARD_DRIVER="strict", OUTBOARD_STRICT_DRIVER="sim")
    assert len(again.splitlines()) == len(made)


#: A Llama that writes 16 tokens behind 4; prints how many executables there were after each.
GENERATION = """
from examples import generation
expected, model = generation.llama(101, 32, 48, 2, 2), generation.llama(101, 32, 48, 2, 2)
model.load_state_dict(expected.state_dict())
model.to(device)
prompt = torch.randint(101, (2, 4))
made = []

def count(*unused):
    made.append(int(ours.compile_stats()["executables_made"]))
    return False

def written(model, prompt, **options):
    mask = torch.ones_like(prompt)
    return model.generate(prompt, attention_mask=mask, max_new_tokens=16, do_sample=False, pad_token_id=0, **options)

wanted = written(expected, prompt)
if compiled:
    model.compile()
found = written(model, prompt.to(device), stopping_criteria=[count])
assert torch.equal(found.cpu(), wanted)
assert ours.fallbacks() == {}, ours.fallbacks(reasons=True)
print(made)
"""


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.full("as without"))])
def test_a_growing_cache_compiles_for_buckets_alone(tmp_path: Path, compiled: bool) -> None:
    """Not for each of the lengths from 5 to 19."""
    pytest.importorskip("transformers")
    code = f"compiled = {compiled}\n" + GENERATION
    made = ast.literal_eval(run(code, tmp_path, OUTBOARD_SIM_BUCKETS=SIZES))
    grows = [token for token in range(1, len(made)) if made[token] != made[token - 1]]
    assert len(grows) <= 6, (grows, made)  # lengths 5 to 7, which tell what varies, 9, 10 and 17
    again = ast.literal_eval(run(code, tmp_path, OUTBOARD_SIM_BUCKETS=SIZES))
    assert not any(again), again


#: Each norm is another graph, and so is each case of a number that steers one.
STEERED = """
for order in (0, 1, 2, 3, 0.5, 2.0, 3.0, -1):
    for rows in (3, 2, 5):
        x = torch.randn(rows, 5)
        for dim in (0, -1):
            wanted = torch.linalg.vector_norm(x, order, dim)
            assert_close(torch.linalg.vector_norm(x.to(device), order, dim).cpu(), wanted)
"""


def test_numbers_steer_padded_calls(tmp_path: Path) -> None:
    """What a padded graph assumes of its numbers is asked at each call."""
    run("from torch.testing import assert_close\n" + STEERED, tmp_path, OUTBOARD_SIM_BUCKETS=SIZES)


#: Answers that are no buckets: sizes are then compiled for themselves.
NO_BUCKETS = """
from importlib.metadata import EntryPoint
from outboard import compilers
from outboard.compilers import sim

class Odd(sim.SimCompiler):
    def bucket(self, size):
        return answer(size)

compilers._OWN = (EntryPoint("outboard-sim", "__main__:Odd", compilers.GROUP),)
answers = [lambda size: size - 1, lambda size: -8, lambda size: 1 / 0, lambda size: "16", lambda size: 16.5]
answers.append(lambda size: 2**62)  # more than a tensor can have
for columns, answer in enumerate(answers, 2):
    for rows in (3, 5, 6):
        x = torch.randn(rows, columns)
        close(x.to(device).softmax(0), x.softmax(0))
    y = x.to(device)
    torch._dynamo.maybe_mark_dynamic(y, 0)
    close(torch.compile(lambda x: x.softmax(0).sum(0))(y), x.softmax(0).sum(0))
assert ours.fallbacks() == {}, ours.fallbacks(reasons=True)
"""


def test_answers_that_are_no_buckets(tmp_path: Path) -> None:
    run(NO_BUCKETS, tmp_path)


def test_buckets_beyond_the_memory_are_named(tmp_path: Path) -> None:
    """No message of too little memory for tensors that nobody made."""
    settings = {"OUTBOARD_DRIVER": "sim", "OUTBOARD_SIM_COMPILER": "1", "OUTBOARD_SIM_BUCKETS": str(2**36)}
    result = run_program(["-c", PRELUDE + BEYOND], environment={**settings, "OUTBOARD_CACHE_DIR": str(tmp_path)})
    assert result.returncode == 0, result.stdout + result.stderr
    said = f"sizes are not padded: buckets ({2**36} of 5) make a tensor of {2**40} bytes; {2**32} fit"
    assert said in result.stderr, result.stderr


BEYOND = """
for rows in (3, 5, 6):
    x = torch.randn(rows, 4)
    close(x.to(device).softmax(0), x.softmax(0))
y = x.to(device)
torch._dynamo.maybe_mark_dynamic(y, 0)
close(torch.compile(lambda x: x.softmax(0).sum(0))(y), x.softmax(0).sum(0))
assert ours.fallbacks() == {}, ours.fallbacks(reasons=True)
"""
