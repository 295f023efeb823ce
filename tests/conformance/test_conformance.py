# SPDX-License-Identifier: Apache-2.0
"""The conformance kit: good drivers pass, each of many faults is found by the clause that it breaks, and what clauses
say stands in driver.h.

With OUTBOARD_TEST_FULL=1 all faults are tried, else some of them, other ones each day.
"""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from processes import run_program

from outboard import drivers
from outboard_conformance import clauses, runner  # noqa: F401 - registers them
from outboard_conformance.clause import CLAUSES, NotApplicable
from outboard_conformance.clauses.models import are_below
from outboard_conformance.clauses.tables import GROUPS
from outboard_conformance.driver import FUNCTIONS, REQUIRED
from outboard_conformance.language import Offer
from tests.conftest import FULL, of_today

REPOSITORY = Path(__file__).parents[2]
HEADER = REPOSITORY / "include/outboard/driver.h"

#: Each fault of ``wrong_driver.c``: the driver that has it, and the clause that must name it, with the outcome.
FAULTS: dict[str, tuple[str, str, str]] = {
    "another_version": ("sim", "the_version_is_ours", "broken"),
    "half_a_group": ("strict", "optional_groups_are_whole", "broken"),
    "no_fill": ("sim", "required_functions_are_there", "broken"),
    "no_error_text": ("sim", "errors_have_a_text", "broken"),
    "shared_error_text": ("sim", "errors_belong_to_their_thread", "broken"),
    "any_device_opens": ("sim", "devices_that_do_not_exist_are_refused", "broken"),
    "wrong_status_of_open": ("sim", "devices_that_do_not_exist_are_refused", "broken"),
    "another_handle": ("sim", "a_device_has_one_handle", "broken"),
    "devices_grow": ("sim", "the_number_of_devices_stays", "broken"),
    "writes_beyond_struct_size": ("sim", "properties_stay_within_their_size", "broken"),
    "alignment_of_8": ("sim", "the_alignment_is_a_multiple_of_16", "broken"),
    "alignment_not_kept": ("sim", "allocations_are_aligned", "broken"),
    "no_cache_key": ("sim", "properties_have_names", "broken"),
    "type_out_of_range": ("sim", "properties_are_possible", "broken"),
    "flag_of_255": ("sim", "properties_are_possible", "broken"),
    "allocation_above_total": ("sim", "properties_are_possible", "broken"),
    "compiler_in_name_only": ("host", "a_compiler_comes_with_its_functions", "broken"),
    "accessible_in_name_only": ("strict", "accessible_memory_can_be_read_in_place", "crashed"),
    "groups_too_large": ("host", "the_largest_group_works", "broken"),
    "properties_change": ("sim", "properties_stay_the_same", "broken"),
    "allocations_overlap": ("sim", "allocations_do_not_overlap", "broken"),
    "more_free_memory_than_there_is": ("sim", "memory_info_is_possible", "broken"),
    "wait_does_not_wait": ("sim", "a_wait_waits", "broken"),
    "ready_too_early": ("sim", "asking_a_stream_tells_the_truth", "broken"),
    "never_becomes_ready": ("sim", "an_idle_stream_is_ready", "broken"),
    "streams_ignore_events": ("sim", "streams_wait_for_events", "broken"),
    "hangs": ("sim", "streams_wait_for_events", "hung"),
    "event_does_not_wait": ("sim", "a_wait_for_an_event_waits", "broken"),
    "event_ready_too_early": ("sim", "a_wait_for_an_event_waits", "broken"),
    "event_recorded_once": ("sim", "an_event_stands_for_its_last_record", "broken"),
    "unrecorded_is_not_reached": ("sim", "events_without_a_record_are_reached", "broken"),
    "time_in_microseconds": ("sim", "events_tell_nanoseconds", "broken"),
    "time_goes_backwards": ("sim", "time_goes_forward", "broken"),
    "overlap_is_torn": ("sim", "copies_may_overlap", "broken"),
    "odd_addresses_rounded": ("sim", "copies_begin_anywhere", "broken"),
    "odd_sizes_rounded": ("sim", "copies_bring_back_what_they_took", "broken"),
    "copies_a_byte_more": ("sim", "copies_touch_their_bytes_alone", "broken"),
    "crashes": ("sim", "copies_bring_back_what_they_took", "crashed"),
    "long_patterns_cut": ("sim", "fills_repeat_their_pattern", "broken"),
    "fills_whole_blocks": ("sim", "fills_repeat_their_pattern", "broken"),
    "pattern_read_late": ("sim", "fills_read_their_pattern_at_once", "broken"),
    "build_failure_is_internal": ("host", "programs_with_errors_are_refused", "broken"),
    "build_without_log": ("host", "programs_with_errors_are_refused", "broken"),
    "options_ignored": ("host", "options_reach_the_compiler", "broken"),
    "loads_anything": ("host", "bytes_that_are_no_program_are_refused", "broken"),
    "binary_longer_than_said": ("host", "binaries_are_programs", "broken"),
    "any_kernel_name": ("host", "kernels_are_found_by_name", "broken"),
    "release_fails": ("host", "programs_are_independent", "broken"),
    "a_group_too_few": ("host", "work_items_know_their_places", "broken"),
    "two_dimensions": ("host", "work_items_know_their_places", "broken"),
    "no_choice_of_group": ("host", "the_driver_chooses_a_group", "broken"),
    "launch_out_of_order": ("strict", "launches_are_in_order", "broken"),
    "shared_argument_slots": ("host", "threads_launch_one_kernel", "broken"),
    "batch_loses_one": ("host", "batches_are_whole", "broken"),
    "kernel_needs_the_impossible": ("host", "kernels_say_what_they_need", "broken"),
    "capture_runs": ("strict", "captured_launches_do_not_run", "broken"),
    "graph_runs_once": ("strict", "graphs_are_submitted_again", "broken"),
    "unsupported_is_internal": ("sim", "libraries_refuse_what_they_do_not_have", "broken"),
    "executable_unchecked": ("sim", "damaged_executables_are_refused", "broken"),
    "executable_failure_is_internal": ("sim", "damaged_executables_are_refused", "broken"),
    "executable_operands_rounded": ("sim", "executables_take_interior_addresses", "broken"),
    "sizes_of_the_first_call": ("symbolic sim", "executables_are_for_all_sizes", "broken"),
    "executable_integers_are_doubles": ("sim", "integers_of_executables_have_64_bits", "broken"),
    "executable_integers_of_32_bits": ("sim", "integers_of_executables_have_64_bits", "broken"),
    "executable_indices_clamped": ("sim", "executables_refuse_wrong_indices", "broken"),
    "executable_index_error_is_internal": ("sim", "executables_refuse_wrong_indices", "broken"),
    "reset_does_nothing": ("sim", "a_reset_device_is_as_new", "broken"),
    "reset_leaves_the_old_one": ("sim", "what_was_before_a_reset_is_lost", "broken"),
    "reset_is_an_internal_error": ("sim", "what_was_before_a_reset_is_lost", "broken"),
    "busy_of_250": ("host", "sensors_are_possible", "broken"),
    "sensors_beyond_struct_size": ("host", "sensors_are_possible", "broken"),
}
#: The levels that are about driver.h.
DRIVER = ("contract", "memory", "kernels", "graph")
TRIED = of_today([*FAULTS], 7)


@pytest.fixture(scope="module")
def wrong(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The driver with faults, built with every warning an error."""
    built = tmp_path_factory.mktemp("wrong") / "libwrong.so"
    source = str(Path(__file__).parent / "wrong_driver.c")
    options = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-I", str(REPOSITORY / "include")]
    subprocess.run(["cc", *options, source, "-o", str(built), "-ldl", "-lpthread"], check=True)
    return built


@pytest.fixture(scope="module")
def symbolic(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A chip whose executables are for all sizes."""
    chip = tmp_path_factory.mktemp("chip") / "symbolic.toml"
    chip.write_text('name = "symbolic"\nbandwidth = 1e11\nsymbolic = true\n[flops]\nfloat32 = 1e12\n')
    return str(chip)


def conform(library: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs the kit on a driver."""
    from outboard.drivers import host_compiler

    host_compiler.expose()
    strict = {"OUTBOARD_STRICT_DRIVER": "host", "OUTBOARD_SIM_COMPILER": "1"}
    command = [sys.executable, "-m", "outboard_conformance", "--driver", library, *arguments]
    environment = os.environ | strict | environment
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=1500)


@pytest.mark.parametrize("driver", ["sim", "host"])
def test_our_drivers_keep_every_clause(driver: str, tmp_path: Path) -> None:
    library, kept = getattr(drivers, driver)(), tmp_path / "results.json"
    page = tmp_path / "results.html"
    result = conform(library, "--level", "graph", "--json", str(kept), "--html", str(page))
    assert result.returncode == 0, result.stdout + result.stderr
    outcomes = {each["name"]: each["outcome"] for each in json.loads(kept.read_text())["results"]}
    of_driver = {name for name, clause in CLAUSES.items() if clause.level in DRIVER}
    assert set(outcomes.values()) <= {"kept", "not applicable"} and set(outcomes) == of_driver
    tier = {"host": "kernels", "sim": "graph"}[driver]
    assert sum(outcomes[name] == "kept" for name in of_driver if CLAUSES[name].level == tier) >= 5, result.stdout
    assert all(name in page.read_text() for name in of_driver)


#: The simulator's compiler with the number of elements of a mean as it was at the first call.
BAKING = """
import argparse, sys
from outboard.compilers import sim
from outboard_conformance import command

hints = {}
stand_in, count = sim.SimCompiler.compile, sim.Program.count
def compile(self, graph, operands, target):
    values = [node.meta["val"] for node in graph.find_nodes(op="placeholder")]
    hints.update({size.node.expr: size.node.hint for value in values for size in value.shape if hasattr(size, "node")})
    return stand_in(self, graph, operands, target)
def baked(self, value, dims, dtype):
    return self.full(int(sim.math.prod(self.shapes[value][dim] for dim in dims).subs(hints)), (), dtype)
sim.SimCompiler.compile = compile
sim.Program.count = lambda self, value, dims, dtype: (baked if hints else count)(self, value, dims, dtype)
parser = argparse.ArgumentParser()
command.configure(parser)
sys.exit(command.run(parser.parse_args()))
"""


@pytest.mark.full("a driver that bakes a size is among the faults")
def test_a_compiler_that_bakes_a_size_is_found(symbolic: str) -> None:
    command = ["--driver", drivers.sim(), "--level", "graph", "--only", "executables_are_for_all_sizes"]
    result = run_program(["-c", BAKING, *command], environment={"OUTBOARD_SIM_CHIP": symbolic})
    assert result.returncode == 1, result.stdout + result.stderr
    assert "the mean of 7x2, compiled without sizes: 6 of 7 numbers are wrong" in result.stdout, result.stdout


#: The clause, with a compiler of the simulator's whose quotients are rounded twice.
ROUNDING_TWICE = """
import os, types, torch
from outboard.compilers import sim
from outboard_conformance.clause import Broken
from outboard_conformance.clauses.operators import arithmetic_is_exact

def divide(call):
    program, dtype = call.program, call.dtype
    inverse = program.pointwise("divide", dtype, program.full(1, (), dtype), call.value(1, dtype))
    return program.pointwise("multiply", dtype, call.value(0, dtype), inverse)
sim.RULES[torch.ops.aten.div.Tensor] = divide
driver = types.SimpleNamespace(path=os.environ["OUTBOARD_DRIVER"])
try:
    arithmetic_is_exact(types.SimpleNamespace(driver=driver))
except Broken as error:
    print(error)
"""


@pytest.mark.full("three programs that compile sixty operators each")
def test_division_that_is_not_correctly_rounded_is_found(tmp_path: Path) -> None:
    for driver in ("host", "sim"):
        result = conform(getattr(drivers, driver)(), "--level", "operators", "--only", "arithmetic_is_exact")
        assert result.returncode == 0, result.stdout + result.stderr
    environment = {"OUTBOARD_SIM_COMPILER": "1", "OUTBOARD_CACHE_DIR": str(tmp_path), "OUTBOARD_DRIVER": drivers.sim()}
    result = run_program(["-c", ROUNDING_TWICE], environment=environment)
    assert re.findall(r"^(div.*) of torch.float32: \d+ of \d+ are wrong", result.stdout, re.MULTILINE), result.stderr


#: The clause, with tiles of the simulator's that lose the sign of zeros on the way back.
UNSIGNED = """
import os, types
from outboard.compilers import sim_tiles
from outboard_conformance.clause import Broken
from outboard_conformance.clauses.operators import layouts_keep_every_bit

back = sim_tiles.from_tiles
def without_signs(program, tiles, layout):
    return program.pointwise("add", layout.dtype, back(program, tiles, layout), program.full(0.0, (), layout.dtype))
driver = types.SimpleNamespace(path=os.environ["OUTBOARD_DRIVER"])
bench = types.SimpleNamespace(driver=driver)
print(layouts_keep_every_bit(bench))
sim_tiles.from_tiles = without_signs
from outboard.compiler.adapter import memory_layouts
memory_layouts.spec_of.cache_clear()
try:
    layouts_keep_every_bit(bench)
except Broken as error:
    print(error)
"""


def test_a_layout_that_loses_a_sign_is_found(tmp_path: Path) -> None:
    tiled = {"OUTBOARD_SIM_COMPILER": "1", "OUTBOARD_SIM_TILE": "32", "OUTBOARD_CACHE_DIR": str(tmp_path)}
    result = run_program(["-c", UNSIGNED], environment=tiled | {"OUTBOARD_DRIVER": drivers.sim()})
    kept, *lost = result.stdout.splitlines()
    assert kept == "layouts tiles 32x32", result.stdout + result.stderr
    assert re.match(r"tiles 32x32 of torch.float32 \[31, 33\]: \d+ differ: \[0.0", lost[0]), result.stdout


@pytest.mark.full("ten runs of a minute")
@pytest.mark.parametrize("driver", ["sim", "host", "strict"])
def test_our_drivers_keep_every_clause_ten_times(driver: str) -> None:
    result = conform(getattr(drivers, driver)(), "--level", "graph", "--times", "10")
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("driver", ["host"] if not FULL else ["host", "sim"])
def test_levels_of_pytorch_are_kept(driver: str) -> None:
    only = () if FULL else ("--only", "a_perceptron_trains")
    result = conform(getattr(drivers, driver)(), "--level", "models", *only)
    assert result.returncode == 0, result.stdout + result.stderr
    assert re.search(r"kept +models +a_perceptron_trains .*3 calls", result.stdout), result.stdout


@pytest.mark.parametrize("fault", TRIED)
def test_a_fault_is_found_by_its_clause(wrong: Path, symbolic: str, fault: str) -> None:
    driver, clause, outcome = FAULTS[fault]
    kind, _, driver = driver.rpartition(" ")
    arguments = ("--level", "graph", "--only", clause, "--patience", "15" if outcome != "hung" else "3")
    environment = {"OUTBOARD_WRONG_DRIVER": getattr(drivers, driver)(), "OUTBOARD_SIM_CHIP": symbolic if kind else ""}
    assert conform(str(wrong), *arguments, **environment).returncode == 0, "without the fault"
    result = conform(str(wrong), *arguments, **environment, OUTBOARD_WRONG=fault)
    assert result.returncode == 1, result.stdout + result.stderr
    assert re.search(rf"^ *{outcome} .*{clause}", result.stdout, re.MULTILINE), result.stdout


def test_each_result_is_said_while_the_next_clause_runs(wrong: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTBOARD_WRONG_DRIVER", drivers.sim())
    monkeypatch.setenv("OUTBOARD_WRONG", "hangs")
    heard: list[tuple[str, float]] = []
    names, patience = ["errors_have_a_text", "streams_wait_for_events"], 3.0
    runner.run(
        str(wrong), names, Offer(), patience=patience, said=lambda each: heard.append((each.outcome, time.monotonic()))
    )
    (first, early), (second, late) = heard
    assert (first, second) == ("kept", "hung") and late - early >= patience / 2


def test_all_faults_are_tried() -> None:
    source = (Path(__file__).parent / "wrong_driver.c").read_text()
    assert set(re.findall(r"\bFAULT\((\w+), ?wrong", source)) == set(FAULTS)


def test_what_clauses_say_stands_in_the_header() -> None:
    text = plain(HEADER.read_text())
    assert {
        name: clause.says
        for name, clause in CLAUSES.items()
        if clause.level in DRIVER and plain(clause.says) not in text
    } == {}


@pytest.mark.parametrize("part", ["submissions", "resets"])
def test_what_is_missing_is_said_before_any_work(part: str) -> None:
    bench = SimpleNamespace(driver=SimpleNamespace(has=lambda name: False))  # and nothing else that could be asked
    tried = [each for each in CLAUSES.values() if each.run.__module__.endswith(part)]
    assert tried
    for each in tried:
        with pytest.raises(NotApplicable):
            each.run(bench)


def test_functions_are_those_of_the_header() -> None:
    table = (HEADER.parent / "functions.def").read_text()
    listed = re.findall(r"^OB_(REQUIRED|OPTIONAL)\((\w+)\)", table, re.MULTILINE)
    assert [name for _, name in listed] == list(FUNCTIONS)
    assert [name for kind, name in listed if kind == "REQUIRED"] == REQUIRED
    assert {name for group in GROUPS for name in group} <= set(FUNCTIONS)


def test_results_are_kept_and_taken_up_again(tmp_path: Path) -> None:
    kept, library = tmp_path / "results.json", drivers.sim()
    first = conform(library, "--level", "contract", "--only", "the_table_is_one", "--json", str(kept))
    assert first.returncode == 0 and "1 kept" in first.stdout
    arguments = ("--level", "contract", "--only", "the_table_is_one", "--only", "errors_have_a_text")
    second = conform(library, *arguments, "--json", str(kept), "--resume")
    assert second.returncode == 0 and "2 kept" in second.stdout and "the_table_is_one" not in second.stdout
    other = conform(drivers.host(), *arguments, "--json", str(kept), "--resume")
    assert other.returncode == 2 and "another driver" in other.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--driver", "/nowhere/lib.so"], "is neither a file"),
        ([], "--driver LIB is missing"),
        (["--driver", __file__, "--only", "no_such_clause"], "no clause 'no_such_clause'"),
        (["--driver", __file__, "--resume"], "--resume needs the file of --json"),
        (["--driver", __file__, "--level", "contract", "--only", "copies_may_overlap"], "needs --level memory"),
        (["--driver", __file__, "--json", "/nowhere/results.json"], "/nowhere is not a folder"),
        (["--driver", __file__, "--html", "/"], "/ is a folder"),
        (["--driver", __file__, "--times", "0"], "invalid positive number value: '0'"),
        (["--driver", __file__, "--patience", "nan"], "invalid positive number value: 'nan'"),
    ],
)
def test_wrong_usage_says_what_to_do(arguments: list[str], says: str) -> None:
    command = [sys.executable, "-m", "outboard_conformance", *arguments]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 2 and says in result.stderr and "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (None, "OSError"),
        ("int nothing;", "outboard_driver"),
        (
            "static struct { long size; int version; char *name; } t = {24, 1}; void *outboard_driver() { return &t; }",
            "the driver's table has no device_count",
        ),
        (
            "#include <unistd.h>\n#include <stdlib.h>\n"
            '__attribute__((constructor)) void f() { write(2, "\\xff!", 2); if (!fork()) sleep(7); abort(); }',
            "signal 6",
        ),
    ],
    ids=["text", "empty", "no functions", "ends the process"],
)
def test_what_is_no_driver_is_said_to_be_none(source: str | None, says: str, tmp_path: Path) -> None:
    library = tmp_path / "a driver.so"
    library.write_text("not a library")
    if source is not None:
        (tmp_path / "driver.c").write_text(source)
        subprocess.run(["cc", "-w", "-shared", "-fPIC", "-o", str(library), str(tmp_path / "driver.c")], check=True)
    result = conform(str(library), "--level", "memory")
    assert result.returncode == 1 and says in result.stderr and "Traceback" not in result.stderr


def test_losses_that_are_no_number_are_wrong() -> None:
    assert are_below(1.0, [0.0, 0.5]) and not are_below(1.0, [0.0, math.nan]) and not are_below(1.0, [2.0])


def test_a_driver_without_devices_is_named(tmp_path: Path) -> None:
    result = conform(drivers.host(), OUTBOARD_HOST_COMPILER=str(tmp_path / "none"))
    assert result.returncode == 1 and "OSError: the driver finds no device" in result.stderr


def test_a_driver_in_the_current_folder_needs_no_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my driver.so").write_bytes(Path(drivers.sim()).read_bytes())
    monkeypatch.chdir(tmp_path)
    result = conform("my driver.so", "--level", "contract", "--only", "the_table_is_one")
    assert result.returncode == 0, result.stderr


def test_results_of_something_else_are_not_taken_up(tmp_path: Path) -> None:
    kept = tmp_path / "results.json"
    kept.write_text("[]")
    result = conform(drivers.sim(), "--only", "the_table_is_one", "--json", str(kept), "--resume")
    assert result.returncode == 2 and "holds no results of this command" in result.stderr


def plain(text: str) -> str:
    """Text without the marks of comments, in one line."""
    return " ".join(re.sub(r"/\*|\*/|^ *\*", " ", text, flags=re.MULTILINE).split())
