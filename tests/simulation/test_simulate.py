# SPDX-License-Identifier: Apache-2.0
"""outboard.simulate: what is counted is what the definition of each operator says, and times follow from it."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from processes import run_program
from torch import Tensor, nn
from torch.nn import functional as F

import outboard
from outboard.simulation.recording import Operation, Record, record
from outboard.simulation.steps import fuse

FLOPS, BANDWIDTH = 1e12, 1e11
CHIP = outboard.Chip("a chip", {"float32": FLOPS}, BANDWIDTH)


def empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def names(simulation: outboard.Simulation) -> list[str]:
    return [one.step.name for one in simulation.steps]


def test_a_product_is_bound_by_arithmetic_or_by_memory() -> None:
    large = outboard.simulate(torch.mm, [empty(1000, 2000), empty(2000, 3000)], chip=CHIP)
    assert large.flops == 2 * 1000 * 2000 * 3000
    assert large.moved == 4 * (1000 * 2000 + 2000 * 3000 + 1000 * 3000)
    assert large.seconds == pytest.approx(large.flops / FLOPS)
    assert [one.bound for one in large.steps] == ["arithmetic"]
    assert large.utilisation == pytest.approx({"arithmetic": 1.0, "memory": large.moved / BANDWIDTH / large.seconds})
    thin = outboard.simulate(torch.mm, [empty(1, 2000), empty(2000, 3000)], chip=CHIP)
    assert thin.seconds == pytest.approx(4 * (2000 + 2000 * 3000 + 3000) / BANDWIDTH)
    assert [one.bound for one in thin.steps] == ["memory"]


def test_dtypes_have_peaks_of_their_own() -> None:
    chip = outboard.Chip("halves", {"float32": FLOPS, "bfloat16": 8 * FLOPS}, 1e15)
    times = {
        dtype: outboard.simulate(torch.mm, [empty(64, 64, dtype=dtype)] * 2, chip=chip).seconds
        for dtype in (torch.float32, torch.bfloat16, torch.float16)
    }
    assert times[torch.float32] == pytest.approx(8 * times[torch.bfloat16])
    assert times[torch.float16] == times[torch.float32]  # which the chip does not have


def test_a_product_reaches_the_part_of_the_peak_that_its_operator_has() -> None:
    chip = outboard.Chip("half", {"float32": FLOPS}, 1e15, efficiency={"aten::mm": 0.5})
    product, sum_of_it = (
        outboard.simulate(function, [empty(64, 64)] * 2, chip=chip) for function in (torch.mm, lambda a, b: (a @ b) + 1)
    )
    assert product.seconds == sum_of_it.seconds == pytest.approx(2 * 64**3 / FLOPS * 2)
    assert product.utilisation["arithmetic"] == pytest.approx(0.5)
    other = outboard.simulate(torch.addmm, [empty(64), empty(64, 64), empty(64, 64)], chip=chip)
    assert other.seconds == pytest.approx(2 * 64**3 / FLOPS)


def test_latency_is_added_to_each_step() -> None:
    chip = outboard.Chip("slow to begin", {"float32": FLOPS}, BANDWIDTH, latency=1e-3)
    simulation = outboard.simulate(lambda x: (x.sum(), x.max()), [empty(8)], chip=chip)
    assert simulation.seconds == pytest.approx(len(simulation.steps) * 1e-3, rel=1e-3)
    assert {one.bound for one in simulation.steps} == {"latency"}


def test_what_works_element_by_element_joins_what_is_before_it() -> None:
    layer = lambda x, w, b, r: F.gelu(F.linear(x, w, b)) * 2 + r  # noqa: E731
    inputs = [empty(128, 256), empty(512, 256), empty(512), empty(128, 512)]
    simulation = outboard.simulate(layer, inputs, chip=CHIP)
    assert names(simulation) == ["addmm + gelu + mul + add"]
    assert simulation.moved == sum(one.nbytes for one in inputs) + 4 * 128 * 512


def test_without_fusion_each_operator_is_a_step() -> None:
    simulation = outboard.simulate(lambda x: (x * 2).relu().exp(), [empty(1000)], chip=CHIP, fused=False)
    assert names(simulation) == ["mul", "relu", "exp"]
    assert simulation.moved == 3 * 2 * 4000
    assert simulation.on(CHIP).moved == simulation.moved


def test_sums_do_not_join_products() -> None:
    simulation = outboard.simulate(
        lambda x, w: F.layer_norm(x @ w, (64,)).relu(), [empty(8, 8), empty(8, 64)], chip=CHIP
    )
    assert names(simulation) == ["mm", "native_layer_norm + relu"]


def test_a_tensor_that_two_steps_read_is_written_once() -> None:
    def function(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        shared = (x * 2).relu()
        return shared @ w, shared @ w

    simulation = outboard.simulate(function, [empty(64, 64), empty(64, 64)], chip=CHIP)
    size = 4 * 64 * 64
    assert [one.step.moved for one in simulation.steps] == [2 * size, 3 * size, 3 * size]


def test_an_update_in_place_reads_and_writes_its_parameter() -> None:
    simulation = outboard.simulate(lambda p, g: p.add_(g, alpha=-0.1), [empty(1000), empty(1000)], chip=CHIP)
    assert [(one.step.read, one.step.written) for one in simulation.steps] == [(8000, 4000)]


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
def test_an_optimizer_is_a_step_for_each_parameter(optimizer: Callable[..., torch.optim.Optimizer]) -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(64, 32), nn.Linear(32, 16))
    chosen = optimizer(model.parameters(), lr=1e-3)
    for parameter in model.parameters():
        parameter.grad = torch.empty_like(parameter)
    chosen.step()  # makes the state
    simulation = outboard.simulate(chosen.step, [], chip=CHIP)
    assert len(simulation.steps) == 4
    states = 0 if optimizer is torch.optim.SGD else 2
    assert simulation.moved == 4 * sum(one.numel() for one in model.parameters()) * (3 + 2 * states)


def test_rows_are_all_that_is_read_of_a_table_and_written_of_a_cache() -> None:
    places = empty(3, dtype=torch.int64)
    read = outboard.simulate(F.embedding, [places, empty(50_000, 8)], chip=CHIP)
    assert read.moved == 8 * 3 + 2 * (4 * 3 * 8)
    written = outboard.simulate(
        lambda c, i, x: c.index_copy_(0, i, x), [empty(5000, 8), places, empty(3, 8)], chip=CHIP
    )
    assert written.moved == 8 * 3 + 2 * (4 * 3 * 8)


@pytest.mark.parametrize("trains", [True, False])
def test_batch_norm_reads_a_batch_twice_to_normalise_it(trains: bool) -> None:
    x, channel = empty(8, 4, 16, 16), empty(4)
    norm = lambda x, w, b, m, v: F.batch_norm(x, m, v, w, b, training=trains)  # noqa: E731
    simulation = outboard.simulate(norm, [x, *([channel] * 4)], chip=CHIP)
    assert simulation.steps[0].step.read - 4 * 4 * 4 <= (2 if trains else 1) * x.nbytes <= simulation.steps[0].step.read
    assert simulation.steps[0].step.written >= x.nbytes


@pytest.mark.parametrize("heads", [8, 2])
def test_attention_stores_no_scores(heads: int) -> None:
    query, key = empty(2, 8, 512, 64), empty(2, heads, 512, 64)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=heads != 8)

    simulation = outboard.simulate(attend, [query, key, key.clone()], chip=CHIP)
    assert names(simulation) == ["scaled_dot_product_attention"]
    assert simulation.flops == 2 * (2 * 8) * (512 * 513 // 2) * (64 + 64)  # the lower triangle
    assert simulation.moved == 2 * query.nbytes + 2 * key.nbytes


def test_gradients_of_attention() -> None:
    inputs = [empty(2, 4, 128, 32).requires_grad_() for _ in range(3)]
    simulation = outboard.simulate(lambda *x: F.scaled_dot_product_attention(*x).sum().backward(), inputs, chip=CHIP)
    forward = 2 * (2 * 4) * 128 * 128 * (32 + 32)
    assert simulation.flops == 3.5 * forward
    assert all(one.grad is not None and one.grad.is_meta and one.grad.shape == one.shape for one in inputs)


def test_memory_over_time() -> None:
    def function(x: Tensor) -> Tensor:
        hidden = x @ x
        return hidden @ x

    size = 4 * 64 * 64
    simulation = outboard.simulate(function, [empty(64, 64)], chip=CHIP)
    assert simulation.resident == size
    assert simulation.peak_memory == 3 * size
    assert [level // size for _, level in simulation.memory][-1] == 2  # input and result
    small = simulation.on(outboard.Chip("small", {"float32": 1.0}, 1.0, memory=2 * size))
    assert not small.fits
    assert "more than its" in str(small)


def test_what_the_chip_lacks_goes_to_the_host() -> None:
    chip = outboard.Chip(
        "products alone", {"float32": FLOPS}, BANDWIDTH, host_bandwidth=1e9, operators=frozenset({"aten::mm"})
    )
    simulation = outboard.simulate(lambda x: (x @ x).relu() @ x, [empty(64, 64)], chip=chip)
    assert names(simulation) == ["mm", "relu", "mm"]
    assert simulation.on_host == {"aten::relu": 1}
    assert simulation.busy("host") == pytest.approx(2 * 4 * 64 * 64 / 1e9)
    assert "on the host: aten::relu (1)" in str(simulation)


def test_copies_from_the_host_run_beside_other_steps() -> None:
    chip = outboard.Chip("linked", {"float32": FLOPS}, BANDWIDTH, host_bandwidth=1e9)
    weights = empty(1024, 1024)
    batch = torch.empty(1024, 1024)

    def function() -> Tensor:
        loaded = batch.to("meta")
        return (weights @ weights) @ loaded

    simulation = outboard.simulate(function, [], chip=chip)
    assert simulation.busy("upload") == pytest.approx(batch.nbytes / 1e9)
    first, second = (one for one in simulation.steps if one.step.name == "mm")
    assert (first.begin, second.begin) == (0, simulation.busy("upload"))


COLLECTIVES = """
import torch, outboard
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.testing._internal.distributed.fake_pg import FakeStore
dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=8)
chip = outboard.Chip("linked", {"float32": 1e12}, 1e11, link_bandwidth=1e10, link_latency=1e-6, devices=8)
x = torch.empty(1000, 1000, device="meta")

def function(x):
    reduced = functional.all_reduce(x @ x, "sum", list(range(8)))
    return x @ x + reduced

simulation = outboard.simulate(function, [x], chip=chip)
first, link, second, last = simulation.steps
assert [one.step.name for one in simulation.steps] == ["mm", "all_reduce", "mm", "add"], simulation
assert abs(link.seconds - 14 * (1e-6 + x.nbytes / 8 / 1e10)) < 1e-12  # there and back around a ring of 8
assert link.begin == second.begin == first.end and last.begin == max(link.end, second.end)
"""


def test_collectives_run_beside_other_steps() -> None:
    result = run_program(["-c", COLLECTIVES])
    assert result.returncode == 0, f"{result.stdout}\n{result.stderr}"


def test_a_module_on_another_device_stays_as_it_is() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
    before = {name: value.clone() for name, value in model.state_dict().items()}
    here = outboard.simulate(model, [torch.randn(2, 3, 16, 16)], chip=CHIP)
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, before[name])
    assert all(parameter.grad is None for parameter in model.parameters())
    with torch.device("meta"):
        other = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
    there = outboard.simulate(other, [empty(2, 3, 16, 16)], chip=CHIP)
    assert (here.seconds, here.flops, here.moved) == (there.seconds, there.flops, there.moved)


def test_models_may_be_larger_than_this_machine() -> None:
    with torch.device("meta"):
        model = nn.Sequential(*(nn.Linear(1 << 17, 1 << 17, bias=False) for _ in range(64)))  # 4 TiB
    with torch.no_grad():
        simulation = outboard.simulate(model, [empty(1, 1 << 17)], chip=outboard.Chip.known("h100"))
    assert simulation.seconds == pytest.approx(simulation.moved / 3.35e12)
    assert simulation.resident > 64 << 36
    assert not simulation.fits


def test_values_that_nobody_has_raise() -> None:
    with pytest.raises(RuntimeError, match="meta"):
        outboard.simulate(lambda x: x.sum().item(), [empty(3)], chip=CHIP)


def test_the_page_shows_every_engine(tmp_path: Path) -> None:
    chip = outboard.Chip("<chip>", {"float32": FLOPS}, BANDWIDTH, operators=frozenset({"aten::mm"}), host_bandwidth=1e9)
    simulation = outboard.simulate(
        lambda x: (x @ x).relu() @ torch.empty(64, 64).to("meta"), [empty(64, 64)], chip=chip
    )
    simulation.save(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "&lt;chip&gt;" in page
    assert all(f">{engine}<" in page for engine in ("compute", "upload", "host"))
    assert page.count("<rect") == len(simulation.steps)
    assert "arithmetic in use" in page


# ---- fusion ----


def random_record(seed: int) -> Record:
    """Operators of all kinds on a few memories, some in place."""
    choose = random.Random(seed)
    operations = []
    for _ in range(40):
        reads = {choose.randrange(12): 4 for _ in range(choose.randrange(4))}
        kind = choose.choice(["product", "pointwise", "pointwise", "pointwise", "other", "upload"])
        operations.append(
            Operation(f"aten::{kind}", kind, torch.float32, 0, choose.choice([1, 2]), reads, {choose.randrange(12): 4})  # type: ignore[arg-type]
        )
    return Record(tuple(operations), dict.fromkeys(range(12), 4), frozenset({0, 1}), frozenset({2}))


@pytest.mark.parametrize("seed", range(200))
def test_fusion_keeps_the_order_of_what_touches_the_same_memory(seed: int) -> None:
    recorded = random_record(seed)
    tagged = Record(
        tuple(
            Operation(f"aten::{place}", one.kind, one.dtype, one.flops, one.size, one.reads, one.writes)
            for place, one in enumerate(recorded.operations)
        ),
        recorded.sizes,
        recorded.given,
        recorded.kept,
    )
    steps = fuse(tagged, lambda name, dtype: True)
    order = [int(name.partition("::")[2]) for step in steps for name in step.operators]
    assert sorted(order) == list(range(len(tagged.operations)))
    at = {operation: place for place, operation in enumerate(order)}
    step_of = {int(name.partition("::")[2]): place for place, step in enumerate(steps) for name in step.operators}
    for later, second in enumerate(tagged.operations):
        for earlier, first in enumerate(tagged.operations[:later]):
            touched = {*second.reads, *second.writes}
            if not (set(first.writes) & touched or set(second.writes) & {*first.reads, *first.writes}):
                continue
            assert at[earlier] < at[later]
    assert all(place > need for place, step in enumerate(steps) for need in step.needs)
    assert max(step_of.values()) == len(steps) - 1
    level = sum(recorded.sizes[number] for number in recorded.given)
    for step in steps:
        level += step.makes - step.frees
        assert level >= 0


# ---- chips ----


@pytest.mark.parametrize("name", ["a100", "h100", "mi250x", "tpu-v5e", "v100"])
def test_known_chips_say_where_their_numbers_come_from(name: str) -> None:
    chip = outboard.Chip.known(name)
    assert chip.source
    assert chip.peak(torch.float32) <= chip.peak(torch.bfloat16)


def test_chips_from_files(tmp_path: Path) -> None:
    file = tmp_path / "chip.toml"
    file.write_text('name = "mine"\nbandwidth = 1e11\noperators = ["aten::mm"]\n[flops]\nfloat32 = 1e12\n')
    assert outboard.Chip.load(file) == outboard.Chip("mine", {"float32": 1e12}, 1e11, operators=frozenset({"aten::mm"}))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('name = "x"\nbandwidth = 1\nspeed = 3\n[flops]\nfloat32 = 1', "speed says nothing of a chip"),
        ('name = "x"\n[flops]\nfloat32 = 1', "bandwidth is missing"),
        ('name = "x"\nbandwidth = 1\n[flops]\nfloat16 = 1', "flops has to have float32"),
        ('name = "x"\nbandwidth = 1\n[flops]\nfloat32 = 1\nfloat33 = 1', "'float33' is none"),
        ('name = "x"\nbandwidth = 0\n[flops]\nfloat32 = 1', "bandwidth has to be more than 0, not 0"),
        ('name = "x"\nbandwidth = 1\nlatency = -1\n[flops]\nfloat32 = 1', "latency has to be 0 or more, not -1"),
        ('name = "x"\nbandwidth = "fast"\n[flops]\nfloat32 = 1', "bandwidth has to be a number, not 'fast'"),
        ('name = "x"\nbandwidth = 1\n[flops]\nfloat32 = 1\n[dtypes]\n"aten::mm" = ["float33"]', "'float33' is none"),
        ('name = "x"\nbandwidth = 1\nbuckets = [0, 8]\n[flops]\nfloat32 = 1', "buckets are sizes such as 64"),
        (
            'name = "x"\nbandwidth = 1\n[flops]\nfloat32 = 1\n[efficiency]\n"aten::mm" = 0',
            "efficiency.aten::mm has to be more than 0, not 0",
        ),
        ("name = ", "chip.toml"),
    ],
)
def test_files_that_are_no_chips(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "chip.toml"
    file.write_text(text)
    with pytest.raises(ValueError, match=message):
        outboard.Chip.load(file)


def test_unknown_chips() -> None:
    with pytest.raises(ValueError, match="there is no chip 'abacus', only a100"):
        outboard.Chip.known("abacus")


def test_recording_leaves_nothing_open() -> None:
    with pytest.raises(ZeroDivisionError):
        record(lambda: 1 // 0, [])
    assert record(lambda x: x + 1, [empty(2)]).operations[0].name == "aten::add"


def test_dtypes_and_buckets_of_a_chip(tmp_path: Path) -> None:
    file = tmp_path / "chip.toml"
    numbers = 'name = "mine"\nbandwidth = 1e11\nbuckets = [64, 16]\n[flops]\nfloat32 = 1e12\n'
    file.write_text(f'{numbers}[dtypes]\n"aten::mm" = ["bfloat16"]\n')
    chip = outboard.Chip.load(file)
    assert [chip.bucket(size) for size in (3, 16, 17, 65)] == [16, 16, 64, None]
    assert chip.has("aten::mm", torch.bfloat16) and chip.has("aten::add", torch.float32)
    simulation = outboard.simulate(lambda x: x @ x, [empty(8, 8)], chip=chip)
    assert simulation.on_host == {"aten::mm": 1}
