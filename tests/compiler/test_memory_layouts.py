# SPDX-License-Identifier: Apache-2.0
"""Contents of tensors in a layout of the compiler's: tiles of the simulator's, 32 x 32."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import RunPython

PRELUDE = """
import dataclasses, io, warnings
import torch, outboard
from torch import nn

warnings.simplefilter("ignore")
device = torch._C._get_privateuse1_backend_name()
ours = getattr(torch, device)
TILES = "tiles 32x32"
torch.manual_seed(0)

def relayouts():
    return ours.memory_stats()["lazy.relayouts.count"]

def close(a, b):
    torch.testing.assert_close(a.cpu(), b, rtol=1e-4, atol=1e-3)
"""

KEPT = """
weight, x = torch.randn(50, 70), torch.randn(40, 70)
w, a = weight.to(device), x.to(device)
made = a @ w.t()
assert [outboard.layout_of(each) for each in (w, a, made)] == [TILES] * 3
assert relayouts() == 2, relayouts()
for _ in range(3):
    made = torch.relu(a @ w.t()) * 2  # what an executable makes in tiles, the next one reads in tiles
assert outboard.layout_of(made) == TILES and relayouts() == 2, relayouts()
close(made, torch.relu(x @ weight.t()) * 2)
assert outboard.layout_of(made) is None and relayouts() == 3

# Once for each version of a weight; as it is and transposed it is in one layout.
w[3:5].mul_(2)
weight[3:5] *= 2
assert outboard.layout_of(w) is None and relayouts() == 4, relayouts()
for _ in range(3):
    close((a @ w.t()).sum(), (x @ weight.t()).sum())
    close((w @ a.t()).sum(), (weight @ x.t()).sum())
assert relayouts() == 5, relayouts()

# What is read both ways is kept both ways, until it is written.
def relaid(factor, expected):
    before = relayouts()
    close((a @ w.t()) * factor, (x @ weight.t()) * expected)
    return relayouts() - before

column, other = weight[:40, 3:4], weight.to(device)
alone = [relaid(other[:40, 3:4], column) for _ in range(3)]
both = [relaid(w[:40, 3:4], column) for _ in range(3)]
assert (alone, both) == ([1, 1, 1], [2, 1, 1]), (alone, both)  # the CPU reads the result
for _ in range(2):
    w[2] = weight[2] = weight[2] + 1
    relaid(w[:40, 3:4], column)
    close(w, weight)
relaid(w[:40, 3:4], column)

# A batch that is a higher matrix is in the layout of that one.
before = relayouts()
cube = (a.view(4, 10, 70) @ w.t()).view(40, 50) @ w
assert relayouts() == before and outboard.layout_of(cube) == TILES
close(cube, x @ weight.t() @ weight)

# Halves and doubles, edges that are whole tiles, one row; integers lie by rows.
kinds = (torch.float64, (32, 64)), (torch.bfloat16, (31, 33)), (torch.float16, (3, 2)), (torch.float32, (1, 5))
for dtype, sizes in kinds:
    y = torch.randn(sizes).to(dtype)
    z = torch.compile(lambda t: t + t)(y.to(device))
    assert outboard.layout_of(z) == (TILES if sizes[0] > 1 else None)
    torch.testing.assert_close(z.cpu(), y + y)
integers = torch.arange(6).view(2, 3).to(device)
assert outboard.layout_of(torch.compile(lambda t: t + t)(integers)) is None
special = torch.tensor([[float("nan"), -0.0, float("inf")], [1e-45, -float("inf"), 0.0]])
back = outboard.relayout(torch.compile(lambda t: -t)(special.to(device)), None).cpu()
assert torch.equal(back.view(torch.int32), (-special).view(torch.int32))
"""

UNDONE = """
weight, x = torch.randn(50, 70), torch.randn(40, 70)

def tiled():
    w = weight.to(device)
    (x.to(device) @ w.t())
    assert outboard.layout_of(w) == TILES
    return w

file = io.BytesIO()
torch.save(tiled(), file)
file.seek(0)
assert torch.load(file).cpu().equal(weight)
readers = {
    "item": lambda w: w[1, 2].item() == weight[1, 2].item(),
    "view": lambda w: w.view(70, 50)[2:4].cpu().equal(weight.view(70, 50)[2:4]),
    "part": lambda w: w[1:3].cpu().equal(weight[1:3]),
    "transposed": lambda w: w.t().contiguous().cpu().equal(weight.t()),
    "clone": lambda w: w.clone().cpu().equal(weight),
    "numpy": lambda w: (w.cpu().numpy() == weight.numpy()).all(),
    "storage": lambda w: w.untyped_storage().cpu().tolist() == weight.untyped_storage().tolist(),
    "other dtype": lambda w: w.view(torch.int32).cpu().equal(weight.view(torch.int32)),
    "fill": lambda w: w[2:].fill_(3).sum().item() == 48 * 70 * 3 and w[:2].cpu().equal(weight[:2]),
    "copy": lambda w: w[1:].copy_(weight[:-1]).cpu().equal(weight[:-1]) and w[0].cpu().equal(weight[0]),
    "overwritten": lambda w: w.copy_(weight * 2).cpu().equal(weight * 2),
    "zero": lambda w: w.zero_().cpu().count_nonzero().item() == 0,
    "set": lambda w: torch.empty(0, device=device).set_(w.untyped_storage(), 70, (1, 70)).cpu().equal(weight[1:2]),
    "resized": lambda w: w.resize_(2, 70).cpu().equal(weight[:2]),
    "stream": lambda w: on_another_stream(w).cpu().equal(weight + 0),
    "borrowed": lambda w: outboard.borrow(w).__enter__().address(w) != 0,
    "sorted": lambda w: w.sort(0).values.cpu().equal(weight.sort(0).values),
    "fallback": lambda w: torch.linalg.svdvals(w).cpu().allclose(torch.linalg.svdvals(weight), atol=1e-4),
}
def on_another_stream(w):
    stream = torch.Stream(device)
    with stream:
        made = w + 0
    ours.current_stream().wait_stream(stream)
    return made
for name, reads in readers.items():
    assert reads(tiled()), name

# What may not move is copied for each call, and as right.
held = weight.to(device)
ours.memory.pin(held)
close(x.to(device) @ held.t(), x @ weight.t())
assert outboard.layout_of(held) is None
part = torch.cat([weight, weight]).to(device)[50:]
close(x.to(device) @ part.t(), x @ weight.t())
assert outboard.layout_of(part) is None
into = torch.zeros(2, 40, 50, device=device)
torch.mm(x.to(device), weight.to(device).t(), out=into[1])
close(into, torch.stack([torch.zeros(40, 50), x @ weight.t()]))

# Under pressure tiles move to the host as all memory does.
ours.empty_cache()
limit = 1 << 20
ours.set_per_process_memory_fraction(limit / ours.get_device_properties().total_memory)
many = [torch.full((100, 100), float(number), device=device) for number in range(60)]
doubled = [torch.compile(lambda t: t + t)(each) for each in many]
assert ours.memory_stats()["lazy.spills.count"] > 0
assert all(each.cpu().eq(2.0 * number).all() for number, each in enumerate(doubled))
ours.set_per_process_memory_fraction(1.0)

# Captured calls read what is there when they are replayed.
w, a, made = weight.to(device), x.to(device), torch.zeros(40, 50, device=device)
def step():
    torch.mm(a, w.t(), out=made)
step()
graph = ours.Graph()
with ours.graph(graph):
    step()
w.mul_(2)
graph.replay()
close(made, x @ weight.t() * 2)
a.copy_(x * 3)
w @ w.t()
graph.replay()
close(made, x @ weight.t() * 6)

# By hand.
layout = outboard.compilers.Layout(TILES, torch.float32, (50, 70), torch.float32, (2, 3, 32, 32))
w = outboard.relayout(weight.to(device), layout)
assert outboard.layout_of(w) == TILES and outboard.layout_of(outboard.relayout(w, None)) is None
assert w.cpu().equal(weight)
def refused(kind, call):
    try:
        call()
    except kind as error:
        return str(error)
    raise AssertionError("nothing was raised")
part, small = torch.zeros(51, 70, device=device)[1:], torch.zeros(5, 7, device=device)
assert "all of its storage" in refused(ValueError, lambda: outboard.relayout(part, layout))
assert "the operand" in refused(ValueError, lambda: outboard.relayout(small, layout))
assert "its own tensors" in refused(RuntimeError, lambda: outboard.relayout(weight, layout))
assert "has to stay" in refused(RuntimeError, lambda: outboard.relayout(held, layout))
w = weight.to(device)
no_layouts = {"arranged_sizes": (1, 1, 32, 32)}, {"arranged_dtype": torch.float16}, {"name": "tiles"}
for other in no_layouts:
    assert "the chip has no" in refused(ValueError, lambda: outboard.relayout(w, dataclasses.replace(layout, **other)))
for other in {"sizes": [50, 70]}, {"sizes": (-50, -70)}, {"arranged_sizes": (2, 3, 32.0, 32)}:
    assert "sizes" in refused(TypeError, lambda: outboard.relayout(w, dataclasses.replace(layout, **other)))
for other in {"name": 7}, {"arranged_dtype": "float32"}:
    assert "a text and a dtype" in refused(
        TypeError, lambda: outboard.relayout(w, dataclasses.replace(layout, **other))
    )
assert w.cpu().equal(weight)
refused(RuntimeError, lambda: outboard.layout_of(weight))
"""

ORDERED = """
weight, x, large = torch.randn(50, 70), torch.randn(40, 70), torch.randn(600, 600).to(device)
streams = torch.Stream(device), torch.Stream(device)
readers = {
    "executable": (lambda w: a @ w.t(), x @ weight.t()),
    "rows": (lambda w: w[1:] + 0, weight[1:]),
}

def read(reader):
    # One stream is busy, and brings the weight to tiles then; the other one reads what was there before both.
    with streams[0]:
        busy = large
        for _ in range(3):
            busy = (busy @ large) * 0.01
        a @ w.t()
    with streams[1]:
        made = reader(w)
        return made.cpu()

for reader, expected in readers.values():
    for _ in range(3):
        w, a = weight.to(device) + 0, x.to(device) + 0
        outboard.relayout(w, None), outboard.relayout(a, None)
        ours.synchronize()
        close(read(reader), expected)
        ours.synchronize()
"""

TRAINED = """
def train(model, x, y, step):
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for _ in range(4):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(step(model)(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach().cpu())
    return torch.stack(losses), [each.detach().cpu() for each in model.parameters()]

def network():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(20, 40), nn.GELU(), nn.LayerNorm(40), nn.Linear(40, 7))

x, y = torch.randn(9, 20), torch.randn(9, 7)
expected = train(network(), x, y, lambda model: model)
for step in (lambda model: model, torch.compile):
    losses, parameters = train(network().to(device), x.to(device), y.to(device), step)
    torch.testing.assert_close(losses, expected[0], rtol=1e-4, atol=1e-5)
    for ours_, theirs in zip(parameters, expected[1]):
        torch.testing.assert_close(ours_, theirs, rtol=1e-3, atol=1e-4)
assert ours.fallbacks() == {}
"""


@pytest.mark.parametrize("program", [KEPT, UNDONE, ORDERED, TRAINED], ids=["kept", "undone", "ordered", "trained"])
def test_tiles(program: str, run_python: RunPython, tmp_path: Path) -> None:
    run_python(
        PRELUDE + program,
        OUTBOARD_DRIVER="sim",
        OUTBOARD_SIM_COMPILER="1",
        OUTBOARD_SIM_TILE="32",
        OUTBOARD_CHECK_EXECUTABLES="1" if program is TRAINED else "0",
        OUTBOARD_CACHE_DIR=str(tmp_path),
    )
