# SPDX-License-Identifier: Apache-2.0
"""What is decided about nests, without text and without a device; and that text follows from it and nothing else."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import sympy
import torch

from outboard.compiler import printing
from outboard.compiler.loops.nest import Entry, LoopKernel, Region, Root, Store, Value, structure
from outboard.compiler.loops.passes import run_passes
from outboard.compiler.loops.schedule import Order, Schedule, Sharing, SimtSchedule, Stream, VectorSchedule
from outboard.compiler.loops.scheduling import schedule_for
from outboard.compiler.loops.simt import schedule_simt
from outboard.compiler.loops.vector import schedule_vector
from outboard.compiler.target import Limits, Target
from outboard.compiler.units import COMPUTE_UNITS

FLOAT = torch.float32
BUFFERS = {"in": FLOAT, "out": FLOAT}
ONE = sympy.Integer(1)
LANES = [4, 8, 16, 256]
S0, S1 = sympy.symbols("s0 s1", integer=True, positive=True)
POINT, TERM = sympy.symbols("i j", integer=True, nonnegative=True)
ceildiv, floordiv = sympy.Function("CeilDiv"), sympy.Function("FloorDiv")
greatest, least = sympy.Function("Max"), sympy.Function("Min")

PROCESSOR = Target(vector_width=16)
GPU = Limits(work_group=256, sub_group=1, local_memory=32768)


def whole(symbol: sympy.Symbol, root: Root) -> dict[sympy.Symbol, Entry]:
    """A root that is one range."""
    return {symbol: Entry(symbol, root, ONE, root.numel, True, 1, root.hint)}


def nest(points: sympy.Expr, terms: sympy.Expr, hints: tuple[int, int], *regions: Region) -> LoopKernel:
    """``regions`` over so many points and terms, typically ``hints``, which read ``in`` and write ``out``."""
    x, r = Root("x", points, False, hints[0]), Root("r", terms, True, hints[1])
    return LoopKernel([x, r], whole(POINT, x) | whole(TERM, r), list(regions), dict(BUFFERS), {"out"}, {}, set())


def softmax(length: sympy.Expr = S1, hint: int = 1000) -> LoopKernel:
    """A softmax of each of ``S0`` rows: three loops."""
    place = POINT * length + TERM

    def shifted(number: int) -> list[Value]:
        load = Value(f"t{number}", "load", FLOAT, buffer="in", index=place)
        difference = Value(f"t{number + 1}", "sub", FLOAT, (load, largest))
        return [load, difference, Value(f"t{number + 2}", "exp", FLOAT, (difference,))]

    first = Value("t0", "load", FLOAT, buffer="in", index=place)
    largest = Value("t1", "reduce", FLOAT, (first,), kind="max")
    second, third = shifted(2), shifted(6)
    total = Value("t5", "reduce", FLOAT, (second[-1],), kind="sum")
    quotient = Value("t9", "truediv", FLOAT, (third[-1], total))
    return nest(
        S0,
        length,
        (64, hint),
        Region(True, [first, largest]),
        Region(True, [*second, total]),
        Region(True, [*third, quotient, Store("out", place, quotient)]),
    )


def sums(points: sympy.Expr, terms: sympy.Expr, index: sympy.Expr, hints: tuple[int, int] = (1000, 64)) -> LoopKernel:
    """``out[POINT] = sum(in[index])``."""
    term = Value("t0", "load", FLOAT, buffer="in", index=index)
    total = Value("t1", "reduce", FLOAT, (term,), kind="sum")
    return nest(points, terms, hints, Region(True, [term, total], [Store("out", POINT, total)]))


def column_sum(columns: sympy.Expr = S1, hints: tuple[int, int] = (1000, 64)) -> LoopKernel:
    """The sums of the columns of a matrix of ``S0`` rows."""
    return sums(columns, S0, TERM * columns + POINT, hints)


def full_sum(terms: sympy.Expr = S0) -> LoopKernel:
    """One sum of all elements."""
    return sums(ONE, terms, TERM, (1, 64))


def transpose(rows: sympy.Expr = S0, columns: sympy.Expr = S1, hint: int = 1000) -> LoopKernel:
    """``out``, of rows of ``columns`` elements, from ``in``, which is the other way round."""
    x = Root("x", rows * columns, False, 64 * hint)
    entries = {
        TERM: Entry(TERM, x, ONE, columns, False, 1, hint),
        POINT: Entry(POINT, x, columns, rows, True, hint, 64),
    }
    load = Value("t0", "load", FLOAT, buffer="in", index=TERM * rows + POINT)
    region = Region(False, [load, Store("out", POINT * columns + TERM, load)])
    return LoopKernel([x], entries, [region], dict(BUFFERS), {"out"}, {}, set())


def vectors(kernel: LoopKernel, lanes: int = 16) -> VectorSchedule:
    """The schedule for a device with vectors of so many lanes."""
    tuning = dataclasses.replace(PROCESSOR.tuning, lanes=lanes)
    run_passes(kernel, tuning)
    return schedule_vector(kernel, tuning)


def items(kernel: LoopKernel, **limits: int) -> SimtSchedule:
    """The schedule for a device of short work-items with these limits."""
    return schedule_simt(kernel, dataclasses.replace(GPU, **limits))


# ---- vectors ----


@pytest.mark.parametrize("lanes", LANES)
def test_rows_of_a_softmax(lanes: int) -> None:
    found = vectors(softmax(), lanes)
    assert found.r is not None
    assert (found.order, found.lanes, found.lane) == (Order.POINTS, lanes, found.r.inner)
    assert [(split.length, split.rows) for split in (found.x, found.r)] == [(S0, None), (S1, None)]
    assert found.assumptions == (lanes <= S1,)
    assert (found.stages, found.beside, found.kept) == (((0,), (1,), (2,)), 8, ("t1", "t5"))
    # The second loop of three asks for the rows that come next.
    assert found.streams == (Stream("t2", None),)
    per_item, rows = greatest(1, floordiv(8192, S1)), greatest(1, least(8, floordiv(2048, S1)))
    assert found.launch.grid == (ceildiv(S0, per_item), 1)
    assert found.launch.extra == (per_item, rows, least(rows * S1, 4096))
    largest, total, quotient = found.terms
    assert largest is not None and total is not None and quotient is not None
    assert (largest.apart, largest.in_parts, largest.block) == (("t1",), (), 8192 * lanes)
    assert (total.apart, total.in_parts, total.tails) == ((), ("t5",), ())
    assert (total.each, total.all, total.block) == (16, 64 * lanes, 64 * lanes)
    assert [terms.vectors for terms in (largest, total, quotient)] == [4, 4, 4]
    # Only vectors of AVX-512 have an exponential of several at once. The last loop takes what this one left behind.
    assert total.together == (("t4",) if lanes == 16 else ()) and quotient.together == ()
    assert [far.buffer for far in quotient.far] == []  # it is read again


@pytest.mark.parametrize("lanes, together", [(4, 4), (8, 4), (16, 1)])
def test_rows_too_short_for_several_vectors(lanes: int, together: int) -> None:
    found = vectors(softmax(sympy.Integer(100), 100), lanes)
    assert found.assumptions == ()
    assert {terms.vectors for terms in found.terms if terms} == {together}


def test_rows_that_fill_no_vector() -> None:
    found = vectors(softmax(sympy.Integer(100), 100), 256)
    assert (found.order, found.lane, found.stages) == (Order.POINTS, None, ())
    assert found.assumptions == (S0 < 256,)


@pytest.mark.parametrize("lanes", LANES)
def test_columns(lanes: int) -> None:
    found = vectors(column_sum(), lanes)
    assert (found.order, found.lane, found.columns) == (Order.CHUNKS, found.x.inner, 4)
    chunk = greatest(64, floordiv(floordiv(32768, S0), 64) * 64)
    assert (found.launch.grid, found.launch.extra) == ((ceildiv(S1, chunk), 1), (chunk,))
    (terms,) = found.terms
    assert terms is not None and (terms.in_parts, terms.all, terms.block) == (("t1",), 16, 16)
    assert found.assumptions == (lanes <= S1,)


@pytest.mark.parametrize("lanes", LANES)
def test_a_transposition(lanes: int) -> None:
    found = vectors(transpose(), lanes)
    assert (found.x.rows, found.x.length, found.r) == (S0, S1, None)
    assert (found.order, found.lane, found.tile, found.crossing) == (Order.TILES, found.x.inner, 16, ("t0",))
    rows = greatest(16, floordiv(greatest(1, floordiv(8192, S1)), 16) * 16)
    assert found.launch.extra == (8192, rows)
    assert found.launch.grid == (ceildiv(S1, 8192), ceildiv(S0, rows))
    assert found.assumptions == (lanes <= S1,)


def test_a_transposition_to_rows_that_fill_no_vector() -> None:
    found = vectors(transpose(columns=sympy.Integer(100), hint=100), 256)
    assert (found.order, found.lane, found.tile, found.assumptions) == (Order.CHUNKS, None, 0, ())


@pytest.mark.parametrize("lanes", LANES)
def test_a_sum_of_everything(lanes: int) -> None:
    found = vectors(full_sum(), lanes)
    assert found.r is not None and (found.order, found.lane) == (Order.PIECE, found.r.inner)
    pieces = greatest(1, least(ceildiv(8 * COMPUTE_UNITS, 1), floordiv(S0, 1 << 19) * 8))
    length = ceildiv(ceildiv(S0, pieces), 1024) * 1024
    assert (found.launch.grid, found.launch.extra) == ((pieces, 1), (length, pieces))
    assert found.combination is not None
    assert found.combination.grid == (least(1, pieces - 1), 1)
    assert (found.combination.scratch, found.combination.local_size) == (8 * pieces, (1, 1, 1))
    assert found.assumptions == ()  # the one range that there is, is taken for a long one


def test_a_short_sum_is_in_one_piece() -> None:
    found = vectors(full_sum(sympy.Integer(1000)))
    assert (found.order, found.combination) == (Order.POINTS, None)
    assert found.launch.extra == (greatest(1, floordiv(8192, 1000)),)
    assert vectors(full_sum(sympy.Integer(1 << 19))).in_pieces


def test_caches_decide_what_goes_past_them() -> None:
    size = 4 * S0 * S1
    for limit, rows, expected in [
        (1 << 20, S0, [("out", floordiv(size, sympy.Integer(1 << 20)))]),
        (1 << 20, sympy.Integer(1 << 10), []),
        (1 << 12, sympy.Integer(1 << 10), [("out", None)]),
    ]:
        length = S1 if rows is S0 else sympy.Integer(100)
        kernel = transpose(rows, length)
        load = next(kernel.values())
        load.index = POINT * length + TERM  # a copy
        tuning = dataclasses.replace(PROCESSOR.tuning, far=limit)
        found = schedule_vector(kernel, tuning)
        assert [(far.buffer, far.times) for far in found.far] == expected


# ---- work-items ----


@pytest.mark.parametrize("work_group, group", [(1, 1), (32, 32), (256, 128)])
def test_a_softmax_by_groups(work_group: int, group: int) -> None:
    found = items(softmax(), work_group=work_group)
    assert (found.sharing, found.together, found.sub_group) == (Sharing.GROUP, 4, 1)
    assert (found.launch.grid, found.launch.local_size, found.launch.extra) == ((S0 * group, 1), (group, 1, 1), ())
    assert found.assumptions == (S1 >= 32,)
    assert [terms.in_parts for terms in found.terms if terms] == [(), ("t5",), ()]


@pytest.mark.parametrize("work_group, points", [(32, 1), (256, 8)])
def test_a_softmax_by_sub_groups(work_group: int, points: int) -> None:
    found = items(softmax(hint=64), work_group=work_group, sub_group=32)
    assert (found.sharing, found.points, found.sub_group) == (Sharing.SUB_GROUP, points, 32)
    assert found.launch.grid == (ceildiv(S0, points) * work_group, 1)
    assert found.assumptions == (S1 >= 16, S1 < 256)


def test_short_rows_by_items() -> None:
    found = items(softmax(hint=10))
    assert (found.sharing, found.by_rows, found.launch.local_size) == (Sharing.ITEM, True, (64, 1, 1))
    assert found.assumptions == (S1 < 32,)


@pytest.mark.parametrize("columns, sharing", [(1000, Sharing.GROUP), (20000, Sharing.ITEM)])
def test_columns_by_items_if_they_are_many(columns: int, sharing: Sharing) -> None:
    found = items(column_sum(hints=(columns, 64)))
    assert found.sharing is sharing
    few = {S1 < 1 << 14, S0 < 256}  # rows, too, or pieces would pay
    assert set(found.assumptions) == {S0 >= 32} | ({S1 >= 1 << 14} if sharing is Sharing.ITEM else few)


def test_few_long_columns_by_items_in_pieces() -> None:
    found = items(column_sum(hints=(1000, 5000)), sub_group=32)
    pieces = greatest(1, least(floordiv(2048 * COMPUTE_UNITS, greatest(1, S1)), floordiv(S0, 64)))
    assert (found.sharing, found.launch.grid) == (Sharing.ITEM, (ceildiv(S1, 64) * 64, pieces))
    assert found.launch.extra == (ceildiv(S0, pieces), pieces)
    assert found.combination is not None
    assert found.combination.grid == (least(1, pieces - 1) * 64, S1)
    assert set(found.assumptions) == {S1 < 1 << 14, S0 >= 256}


def test_few_long_rows_by_groups_in_pieces() -> None:
    found = items(sums(S0, S1, POINT * S1 + TERM, hints=(64, 200_000)))
    pieces = greatest(1, least(floordiv(8 * COMPUTE_UNITS, greatest(1, S0)), floordiv(S1, 1 << 13)))
    assert (found.sharing, found.launch.grid) == (Sharing.GROUP, (pieces * 128, S0))
    assert set(found.assumptions) == {S0 < 1 << 10, S1 >= 1 << 14}
    assert items(sums(S0, S1, POINT * S1 + TERM, hints=(5000, 200_000))).combination is None


@pytest.mark.parametrize("work_group, group", [(1, 1), (32, 32), (256, 256)])
def test_a_transposition_by_items(work_group: int, group: int) -> None:
    found = items(transpose(), work_group=work_group)
    assert (found.sharing, found.by_rows, found.in_turn) == (Sharing.ITEM, True, True)
    assert found.launch.grid == (ceildiv(S1, group) * group, least(S0, 65535))
    assert (found.launch.local_size, found.assumptions) == ((group, 1, 1), (S1 >= 8,))
    assert (found.each, found.packed) == (1, ())  # loads go from line to line
    assert not items(transpose(rows=sympy.Integer(100))).in_turn


def test_short_rows_share_a_group() -> None:
    found = items(transpose(hint=10))
    assert (found.by_rows, found.in_turn, found.launch.local_size) == (True, True, (16, 16, 1))
    assert found.launch.grid == (ceildiv(S1, 16) * 16, least(ceildiv(S0, 16), 65535) * 16)


def test_rows_too_short_for_items_of_their_own() -> None:
    found = items(transpose(hint=5))
    assert (found.by_rows, found.launch.grid) == (False, (ceildiv(S0 * S1, 256) * 256, 1))
    assert found.assumptions == (S1 < 8,)


@pytest.mark.parametrize("work_group, group", [(1, 1), (32, 32), (256, 128)])
def test_a_sum_of_everything_by_groups(work_group: int, group: int) -> None:
    found = items(full_sum(), work_group=work_group)
    pieces = greatest(1, least(floordiv(8 * COMPUTE_UNITS, 1), floordiv(S0, 1 << 13)))
    assert (found.sharing, found.launch.grid) == (Sharing.GROUP, (pieces * group, 1))
    assert found.combination is not None
    assert found.combination.grid == (least(1, pieces - 1) * group, 1)
    assert found.combination.local_size == (group, 1, 1)


def test_local_memory_has_room_for_all_that_meet() -> None:
    kernel = softmax()
    terms = kernel.regions[0].body
    load = terms[0]
    assert isinstance(load, Value)
    terms += [Value(f"m{number}", "reduce", FLOAT, (load,), kind="min") for number in range(3)]
    room = {(1 << 16): (4, 128), 4 * 4 * 128 - 1: (2, 128), 4 * 128 - 1: (1, 64)}
    for bytes_, expected in room.items():
        found = items(kernel, local_memory=bytes_)
        assert (found.together, found.launch.group) == expected


# ---- schedules are data ----


NESTS: dict[str, Callable[[], LoopKernel]] = {
    "softmax": softmax,
    "columns": column_sum,
    "everything": full_sum,
    "transposition": transpose,
}
TARGETS = {
    "processor": PROCESSOR,
    "narrow": Target(vector_width=4),
    "gpu": Target(type="gpu", vector_width=1, max_work_group_size=256),
    "one item": Target(type="gpu", vector_width=1, max_work_group_size=1),
}


@pytest.fixture(params=NESTS)
def make(request: pytest.FixtureRequest) -> Callable[[], LoopKernel]:
    """Makes a nest."""
    return NESTS[request.param]


def test_equal_ones_are_equal(make: Callable[[], LoopKernel]) -> None:
    for target in TARGETS.values():
        one, other = schedule_for(make(), target), schedule_for(make(), target)
        assert one is not other and one == other and hash(one) == hash(other)


def test_devices_differ(make: Callable[[], LoopKernel]) -> None:
    assert len({schedule_for(make(), target) for target in TARGETS.values()}) == len(TARGETS)


def test_typical_sizes_count_by_what_they_decide() -> None:
    assert vectors(softmax(hint=1000)) == vectors(softmax(hint=2000)) != vectors(softmax(hint=10))


def test_they_can_be_read() -> None:
    assert str(items(full_sum(sympy.Integer(10000)))).splitlines() == [
        "SimtSchedule",
        "  x: x = 1",
        "  r: r = 10000",
        "  terms: ([in parts: (t1); each: 16; all: 16; block: 16; pack: 4; packed: (t0)])",
        "  launch: 256 x 1 by 256",
        "  sharing: group",
        "  together: 4",
    ]
    assert "  streams: (t2 + extra2)" in str(vectors(softmax())).splitlines()


def test_they_are_shown_on_request(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    printing.emit(softmax(), PROCESSOR)
    assert "VectorSchedule" not in capsys.readouterr().err
    monkeypatch.setenv("OUTBOARD_LOG", "kernels,schedules")
    printing.emit(softmax(), PROCESSOR)
    assert "// ---- VectorSchedule\n  x: x = s0\n" in capsys.readouterr().err


# ---- text follows ----


def test_printers_ask_for_nothing_that_a_device_likes() -> None:
    folder = Path(printing.__file__).parent
    texts = {path.name: path.read_text() for path in folder.glob("*.py")}
    assert texts
    assert [name for name, text in texts.items() if re.search(r"tuning|limits|max_work_group|local_memory", text)] == []


def test_nothing_but_one_driver_rewrites_nests() -> None:
    folder = Path(printing.__file__).parents[1]
    texts = {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*.py")}
    callers = {name for name, text in texts.items() if re.search(r"\b(prune|find_normal_cdf|keep_terms)\(", text)}
    assert callers == {"loops/passes.py"}
    assert [name for name, text in texts.items() if re.search(r"^ +run_passes\(", text, re.M)] == ["adapter/kernel.py"]


def test_decisions_know_no_printer() -> None:
    folder = Path(printing.__file__).parents[1] / "loops"
    texts = {path.name: path.read_text() for path in folder.glob("*.py")}
    assert len(texts) > 5
    assert [name for name, text in texts.items() if re.search(r"^from \.\.(printing|adapter|plans)", text, re.M)] == []


def test_text_follows_from_the_schedule(make: Callable[[], LoopKernel]) -> None:
    """Whatever device it is printed for."""
    for target in TARGETS.values():
        kernel = make()
        schedule: Schedule = schedule_for(kernel, target)
        texts = {printing.print_kernel(kernel, schedule, other).source for other in TARGETS.values()}
        assert texts == {printing.emit(make(), target).source}


def test_nests_stay_as_passes_left_them(make: Callable[[], LoopKernel]) -> None:
    for target in TARGETS.values():
        kernel = make()
        run_passes(kernel, target.tuning)
        before = structure(kernel)
        printing.emit(kernel, target)
        assert structure(kernel) == before
