# SPDX-License-Identifier: Apache-2.0
"""The profile ``rbln``: what torch-rbln's documents promise, each program in a process of its own."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest
from processes import run_program

from tests.conftest import RunPython
from tests.profiles.pages import code_of

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "packages" / "rbln"

#: Statistics that torch-rbln's ``memory_stats`` is documented to have.
_STATISTICS = [
    *(f"{gauge}.{key}" for gauge in ("allocated", "reserved") for key in ("current", "peak", "total_allocated")),
    *(f"{gauge}.total_freed" for gauge in ("allocated", "reserved")),
    *(f"{gauge}.{key}" for gauge in ("active", "cached") for key in ("current", "peak")),
    *("num_alloc_retries", "num_ooms", "num_device_alloc", "num_device_free"),
]


def _program(source: str) -> str:
    """Source with the package ``torch_rbln`` importable."""
    lines = ["import os, sys, warnings", f"sys.path.insert(0, {str(PACKAGE)!r})"]
    return "\n".join(lines) + "\n" + textwrap.dedent(source)


def _run(run_python: RunPython, source: str, check: bool = True, **variables: str) -> str:
    """Runs a program under the profile; what it printed, with its warnings if not ``check``."""
    return run_python(_program(source), check=check, OUTBOARD_PROFILE="rbln", **variables)


def _warnings(output: str, text: str) -> int:
    """How many warnings have this in their text."""
    return len(re.findall(rf"Warning: .*{re.escape(text)}", output))


def test_the_package_has_its_modules(run_python: RunPython) -> None:
    _run(
        run_python,
        """
        import torch, torch_rbln, torch_rbln.device, torch.rbln
        import torch_rbln.profiler, torch_rbln.random
        from torch_rbln.device.device import device_summary
        from torch_rbln.device.streams import Stream
        from torch_rbln.memory import memory_stats, offload
        from torch_rbln.programs import capture_programs
        assert torch_rbln.device is torch.rbln is torch_rbln.memory is torch_rbln.profiler is torch_rbln.random
        assert torch_rbln.programs is torch.rbln and Stream is torch.rbln.Stream and Stream.priority_range() == (0, 0)
        """,
    )


def test_every_documented_name_has_its_signature(run_python: RunPython) -> None:
    listed = (Path(__file__).parent / "api-rbln.txt").read_text().splitlines()
    out = _run(
        run_python,
        f"""
        import inspect, torch
        for line in {[line for line in listed if not line.startswith("#")]}:
            name = line.partition("(")[0]
            parameters = inspect.signature(getattr(torch.rbln, name)).parameters.values()
            print(name + str(inspect.Signature([each.replace(annotation=each.empty) for each in parameters])))
        """,
    )
    assert out.splitlines() == [line for line in listed if not line.startswith("#")]


def test_a_region_is_explained_in_its_words(run_python: RunPython) -> None:
    _run(
        run_python,
        """
        import torch
        x = torch.eye(4, device="rbln")

        def step():
            x.sum().item()
            x.copy_(torch.ones(4, 4))

        cold, steady = torch.rbln.explain_steady(step, return_cold=True)
        with torch.rbln.profile(with_stack=True, trace=False) as report:
            step()
        verdict = report.verdict()
        assert verdict["hidden_host_bounces"] == 1 and verdict["hidden_host_bounce_bytes"] == 64
        assert verdict["runtime_hidden_d2h"] == 1 and verdict["cpu_fallbacks"] == verdict["recompiles"] == 0
        assert {"copy", "wait"} <= {note["signal"] for note in verdict["notes"]}
        assert report.help(signal="wait") and report.help("copy") in report.help()
        assert steady.verdict().keys() == verdict.keys()
        difference = cold.diff(report)
        assert type(difference) is torch.rbln.RBLNDiff and difference.persists and "persists" in difference.report()
        assert type(torch.rbln.explain_steady(step, as_diff=True)) is torch.rbln.RBLNDiff
        assert type(report) is torch.rbln.RBLNProfile is torch.rbln.RBLNExplain
        """,
    )


def test_programs_are_captured(run_python: RunPython) -> None:
    _run(
        run_python,
        """
        import torch
        x = torch.rand(4, 8, device="rbln")
        with torch.rbln.capture_programs() as programs:
            model = torch.compile(torch.nn.Linear(8, 2).to("rbln"), backend="rbln")
            y = model(x)
            with torch.rbln.capture_programs() as inner:
                torch.compile(lambda a: a.sin(), backend="rbln", dynamic=False)(x)
        torch.compile(lambda a: a.cos(), backend="rbln")(x)
        first, second = programs
        assert inner == [second] and first.name == "0/0" and first.device == x.device
        assert len(first.input_specs) == 3 and all(spec.dtype == torch.float32 for spec in first.input_specs)
        assert {spec.shape for spec in first.input_specs} == {(2, 8), (2,), (4, 8)}
        assert [spec.shape for spec in first.output_specs] == [(4, 2)]
        assert first.output_specs[0].physical_placement is None and "sin" not in first.input_specs[0].name
        assert torch.equal(second.runtime(x)[0], x.sin())
        """,
    )


def test_memory_has_the_functions_for_parts_and_files(run_python: RunPython) -> None:
    out = _run(
        run_python,
        """
        import torch
        x = torch.ones(1 << 20).to("rbln")
        assert torch.rbln.memory_allocated() == 0
        torch.rbln.bind_device_memory(x)
        assert torch.rbln.memory_allocated() >= 4 << 20
        part = torch.rbln.mem_get_info_per_chiplet()
        assert part["npu.0.chiplet.0.free"] + part["npu.0.used"] == part["npu.0.total"]
        stats = torch.rbln.memory_stats_per_chiplet("rbln:0")
        assert stats["npu.0.chiplet.0.allocated.current"] == torch.rbln.memory_stats()["allocated.current"]
        host = torch.rbln.huge_host_empty(100)
        assert host.is_pinned() and host.shape == (100,) and host.dtype == torch.uint8
        torch.rbln.set_device_layout_like(x, x)
        for _ in range(2):
            with torch.rbln.offload():
                assert torch.zeros(4, device="rbln").tolist() == [0] * 4
        assert torch.rbln.release_offload_temp_storage() == 0 and not torch.rbln.is_dummy_device()
        try:
            torch.rbln.bind_device_memory(torch.ones(2))
        except TypeError as error:
            print(error)
        """,
        check=False,
    )
    assert "takes a tensor of rbln, not of cpu" in out and _warnings(out, "moves nothing to files here") == 1


def test_the_documented_statistics_are_there(run_python: RunPython) -> None:
    _run(
        run_python,
        f"""
        import torch
        torch.ones(4, device="rbln").add_(1)
        statistics = torch.rbln.memory_stats("rbln:0")
        assert set({_STATISTICS}) <= set(statistics), statistics
        torch.rbln.reset_accumulated_memory_stats()
        for name in ("allocated.total_allocated", "reserved.total_freed", "num_ooms", "num_device_alloc"):
            assert torch.rbln.memory_stats()[name] == 0, name
        """,
    )


@pytest.mark.parametrize(
    "make",
    [
        "torch.zeros(1 << 20, device='rbln')",
        "torch.ones(1 << 20, device='rbln')",
        "torch.full((1 << 20,), 2.5, device='rbln')",
        "torch.tensor([1.0] * (1 << 20), device='rbln')",
        "torch.randn(1 << 20, device='rbln')",
        "torch.rand(1024, 1024, device='rbln')",
        "torch.arange(1 << 20, device='rbln', dtype=torch.float32)",
        "torch.linspace(0, 1, 1 << 20, device='rbln')",
        "torch.randn(1 << 20).to('rbln')",
        "torch.randn(1024, 1024).t().to('rbln')",
        "torch.nn.Linear(1024, 1024).rbln().weight",
    ],
)
def test_memory_is_taken_when_work_needs_it(run_python: RunPython, make: str) -> None:
    """However the device's memory is made: on the host's own, too."""
    _run(
        run_python,
        f"""
        import torch
        made = {make}
        assert torch.rbln.memory_allocated() == 0, torch.rbln.memory_allocated()
        on_cpu = made.detach().cpu()
        assert torch.rbln.memory_allocated() == 0, "reading it is no work of the device"
        worked = made + 1
        assert torch.rbln.memory_allocated() >= 8 << 20, torch.rbln.memory_allocated()
        assert torch.equal(worked.cpu(), on_cpu + 1)
        """,
    )


def test_eager_malloc_is_asked_at_each_allocation(run_python: RunPython) -> None:
    _run(
        run_python,
        """
        import torch
        first = torch.empty(1 << 20, device="rbln")
        assert torch.rbln.memory_allocated() == 4 << 20
        os.environ["TORCH_RBLN_EAGER_MALLOC"] = "0"
        second = torch.empty(1 << 20, device="rbln")
        assert torch.rbln.memory_allocated() == 4 << 20
        os.environ["TORCH_RBLN_EAGER_MALLOC"] = "1"
        third = torch.ones(1 << 20).to("rbln")
        assert torch.rbln.memory_allocated() == 8 << 20
        assert torch.equal(third.cpu(), torch.ones(1 << 20))
        """,
        TORCH_RBLN_EAGER_MALLOC="1",
    )


def test_contexts_give_themselves(run_python: RunPython) -> None:
    _run(
        run_python,
        """
        import torch
        assert torch.rbln.device_count() == 2
        with torch.rbln.device(1) as chosen:
            assert isinstance(chosen, torch.rbln.device) and chosen.idx == 1
            assert torch.rbln.current_device() == 1
            x = torch.ones(2, device="rbln")
        assert torch.rbln.current_device() == 0 and x.device.index == 1
        with torch.rbln.device_of(x) as chosen:
            assert isinstance(chosen, torch.rbln.device_of) and torch.rbln.current_device() == 1
        with torch.rbln.device_of(x.untyped_storage()):
            assert torch.rbln.current_device() == 1
        with torch.rbln.device(None), torch.rbln.device(-1):
            assert torch.rbln.current_device() == 0
        torch.rbln.set_device(1)
        for obj in (torch.ones(2), 3, None, "rbln:0", object(), torch.nn.Linear(1, 1)):
            with torch.rbln.device_of(obj):
                assert torch.rbln.current_device() == 1
        """,
        OUTBOARD_NUM_DEVICES="2",
    )


def _mapped(run_python: RunPython, **variables: str) -> str:
    """Count, summary and, for each logical device, a sum computed there; of four physical devices."""
    return _run(
        run_python,
        """
        import torch
        print(torch.rbln.device_count(), torch.rbln.physical_device_count())
        torch.rbln.device_summary()
        for index in range(torch.rbln.device_count()):
            x = torch.arange(3.0, device=f"rbln:{index}") + index
            assert x.device.index == index and x.tolist() == [index, index + 1, index + 2]
        """,
        check=False,
        OUTBOARD_NUM_DEVICES="4",
        **variables,
    )


@pytest.mark.parametrize(
    ("variables", "counts", "rows"),
    [
        ({}, "4 4", ["rbln:0 [ 0 ] Active", "rbln:3 [ 3 ] Active"]),
        ({"RBLN_DEVICES": "2,0"}, "2 2", ["rbln:0 [ 2 ] Active", "rbln:1 [ 0 ] Active"]),
        ({"RBLN_VISIBLE_DEVICES": "3"}, "1 1", ["rbln:0 [ 3 ] Active"]),
        ({"RBLN_DEVICES": ""}, "4 4", ["rbln:2 [ 2 ] Active"]),
        ({"RBLN_NPUS_PER_DEVICE": "1"}, "4 4", ["rbln:1 [ 1 ] Active"]),
        ({"RBLN_DEVICE_MAP": "[3],[1]"}, "2 4", ["rbln:0 [ 3 ] Active", "rbln:1 [ 1 ] Active", "- [ 0, 2 ] Unused"]),
        ({"RBLN_DEVICE_MAP": "[1]", "RBLN_DEVICES": "2,3"}, "1 2", ["rbln:0 [ 3 ] Active", "- [ 2 ] Unused"]),
    ],
)
def test_devices_are_mapped(run_python: RunPython, variables: dict[str, str], counts: str, rows: list[str]) -> None:
    out = _mapped(run_python, **variables)
    assert out.startswith(counts + "\n"), out
    shown = [" ".join(line.replace("|", " ").split()) for line in out.splitlines()]
    assert all(row in shown for row in rows), out
    assert "Warning: " not in out


def test_devices_are_chosen_until_one_is_needed(run_python: RunPython) -> None:
    """Each rank of ``rbln-ccl`` cuts the list to its own card when torch is there already, and has a seed."""
    run_python(
        """
        import os, torch
        torch.manual_seed(7)
        os.environ["RBLN_VISIBLE_DEVICES"] = "2"
        assert not torch.rbln.is_initialized()
        assert torch.rbln.physical_device_count() == torch.rbln.device_count() == 1
        assert torch.rbln.is_initialized()
        torch.rbln.device_summary()
        os.environ["RBLN_VISIBLE_DEVICES"] = "1,3"
        assert torch.rbln.device_count() == 1
        """,
        OUTBOARD_NUM_DEVICES="4",
        OUTBOARD_PROFILE="rbln",
        RBLN_VISIBLE_DEVICES="0,1,2,3",
    )


@pytest.mark.parametrize(
    ("variables", "counts", "row"),
    [
        ({"RBLN_NPUS_PER_DEVICE": "2"}, "2 4", "rbln:1 [ 2, 3 ] Active (first of 2)"),
        ({"RBLN_DEVICE_MAP": "[0],[2,3]", "RBLN_NPUS_PER_DEVICE": "4"}, "2 4", "rbln:1 [ 2, 3 ] Active (first of 2)"),
    ],
)
def test_a_group_is_its_first_device_and_says_so(
    run_python: RunPython, variables: dict[str, str], counts: str, row: str
) -> None:
    out = _mapped(run_python, **variables)
    assert counts + "\n" in out and row in [" ".join(line.replace("|", " ").split()) for line in out.splitlines()], out
    assert _warnings(out, f"{next(iter(variables))} joins several devices to one, which Outboard cannot") == 1


@pytest.mark.parametrize(
    ("name", "value", "complaint"),
    [
        ("RBLN_DEVICES", "first", "is not a list of device numbers"),
        ("RBLN_DEVICES", "0,7", "names device 7; there are 4"),
        ("RBLN_DEVICES", "1,1", "names a device twice"),
        ("RBLN_NPUS_PER_DEVICE", "3", "is none of 1, 2, 4, 8, 16, 32"),
        ("RBLN_NPUS_PER_DEVICE", "8", "there are only 4 devices"),
        ("RBLN_DEVICE_MAP", "0,1", "is not a list of groups"),
        ("RBLN_DEVICE_MAP", "[0,1,2]", "has a group of 3"),
        ("RBLN_DEVICE_MAP", "[0],[0]", "names a device twice"),
    ],
)
def test_a_mapping_without_sense_leaves_no_device(run_python: RunPython, name: str, value: str, complaint: str) -> None:
    out = _run(
        run_python,
        """
        import torch
        print(torch.rbln.is_available(), torch.rbln.device_count(), torch.ones(2).sum().item())
        try:
            torch.ones(2, device="rbln")
        except RuntimeError as error:
            print("RuntimeError", error)
        """,
        check=False,
        OUTBOARD_NUM_DEVICES="4",
        **{name: value},
    )
    assert "False 0 2.0" in out and "RuntimeError" in out
    assert _warnings(out, name) == 1 and complaint in out


#: Three operators that run on the CPU, each for another reason: no kernel, a compiler that fails, strides.
_FALLBACKS = """
import torch
from outboard import _C
from outboard.compiler import eager

def attempt(what):
    try:
        what()
    except NotImplementedError as error:
        return str(error)
    return "ran"

x = torch.eye(3, device="rbln")

def unsupported():
    torch.linalg.eigvals(x)

def failing(call, target, compile=eager._compile):
    return ("refused", b"") if call.op.startswith("aten::erfinv") else compile(call, target)

eager._compile = failing

def refused():
    torch.erfinv(x)
"""


def test_fallbacks_are_forbidden_by_category(run_python: RunPython, tmp_path: Path) -> None:
    source = _FALLBACKS + "print(attempt(unsupported)); print(attempt(refused))"
    empty = {"OUTBOARD_CACHE_DIR": str(tmp_path)}  # what an earlier process compiled is not refused
    out = _run(run_python, source, **empty)
    assert out == "ran\nran\n"
    out = _run(run_python, source, **empty, TORCH_RBLN_DISABLE_FALLBACK="unsupported_op")
    assert "has no kernel for this device, and TORCH_RBLN_DISABLE_FALLBACK forbids" in out and out.endswith("ran\n")
    out = _run(run_python, source, **empty, TORCH_RBLN_DISABLE_FALLBACK="compile_error, strided_copy_error")
    assert out.startswith("ran\n") and "could not be compiled for this device" in out
    out = _run(run_python, source, **empty, TORCH_RBLN_DISABLE_FALLBACK="all")
    assert "ran" not in out and out.count("forbids") == 2


def test_fallbacks_are_forbidden_when_it_matters(run_python: RunPython, tmp_path: Path) -> None:
    """By the category: one is decided when the device is set up, the others are asked for each time."""
    _run(
        run_python,
        _FALLBACKS
        + """
assert attempt(unsupported) == attempt(refused) == "ran"
os.environ["TORCH_RBLN_DISABLE_FALLBACK"] = "unsupported_op,compile_error"
assert attempt(unsupported) == "ran" and "compile_error" in attempt(refused)
del os.environ["TORCH_RBLN_DISABLE_FALLBACK"]
assert attempt(refused) == "ran"
""",
        OUTBOARD_CACHE_DIR=str(tmp_path),
    )


def test_an_unknown_category_is_named_once(run_python: RunPython) -> None:
    source = _FALLBACKS + "attempt(unsupported)"
    out = _run(run_python, source, check=False, TORCH_RBLN_DISABLE_FALLBACK="non_blocking_copy")
    assert _warnings(out, "no fallbacks of the kind non_blocking_copy") == 1


#: What torch-rbln 0.12 reads, and its runtime: found in the files of its package.
_VARIABLES = [
    "RBLN_DEVICES",
    "RBLN_DEVICE_MAP",
    "RBLN_DISABLE_AUTO_RDMA_IP",
    "RBLN_DUMMY_DEVICE",
    "RBLN_FORCE_LOOPBACK_CONTROL_PLANE",
    "RBLN_LOCAL_IP",
    "RBLN_NPUS_PER_DEVICE",
    "RBLN_OFFLOAD_DIR",
    "RBLN_PROFILER",
    "RBLN_RDMA_HCA",
    "RBLN_RDMA_IP",
    "RBLN_ROOT_IP",
    "RBLN_VISIBLE_DEVICES",
    "TORCH_RBLN_C10D_ASYNC",
    "TORCH_RBLN_DEPLOY",
    "TORCH_RBLN_DEV_DISABLE_OP_CPU_FALLBACK",
    "TORCH_RBLN_DIAGNOSE",
    "TORCH_RBLN_DISABLE_FALLBACK",
    "TORCH_RBLN_EAGER_MALLOC",
    "TORCH_RBLN_LOG",
    "TORCH_RBLN_LOG_LEVEL",
    "TORCH_RBLN_SKIP_ABI_CHECK",
    "TORCH_RBLN_USE_DEVICE_TP",
    "TORCH_RBLN_USE_TP_FAILOVER",
]


def test_each_variable_is_honoured_or_explained_once(run_python: RunPython) -> None:
    out = _run(
        run_python,
        f"""
        import torch
        from outboard.profiles.rbln import variables
        assert set({_VARIABLES}) <= variables._KNOWN | variables._WITHOUT_EFFECT.keys()
        page = open({str(ROOT / "docs" / "profile-rbln.md")!r}).read()
        assert not [name for name in {_VARIABLES} if f"`{{name}}`" not in page]
        """,
        check=False,
        TORCH_RBLN_USE_DEVICE_TP="ON",
        RBLN_PROFILER="1",
        RBLN_SOMETHING="1",
        TORCH_RBLN_DEPLOY="ON",
    )
    assert _warnings(out, "RBLN_PROFILER has no effect with Outboard: torch.profiler and") == 1, out
    assert _warnings(out, "TORCH_RBLN_USE_DEVICE_TP has no effect with Outboard: a graph is not split") == 1
    assert _warnings(out, "no use for the environment variables RBLN_SOMETHING.") == 1
    assert "Error" not in out and "DEPLOY" not in out


def test_fallbacks_are_logged(run_python: RunPython, tmp_path: Path) -> None:
    log = tmp_path / "torch_rbln.log"
    variables = {"TORCH_RBLN_LOG_PATH": str(log)}
    out = _run(run_python, _FALLBACKS + "unsupported()", check=False, TORCH_RBLN_LOG_LEVEL="INFO", **variables)
    line = r"\[torch_rbln\] \[INFO\] aten::\S+ runs on the CPU: it has no kernel for this device \(unsupported_op\)"
    assert re.search(line, out) and re.search(line, log.read_text())
    log.unlink()
    out = _run(run_python, _FALLBACKS + "unsupported()", check=False, TORCH_RBLN_LOG_LEVEL="WARNING", **variables)
    assert "[INFO]" not in out + log.read_text()
    out = _run(run_python, "import torch", check=False, TORCH_RBLN_LOG_LEVEL="LOUD")
    assert _warnings(out, "TORCH_RBLN_LOG_LEVEL must be one of DEBUG, INFO, WARNING, ERROR, not 'LOUD'") == 1
    out = _run(run_python, "import torch", check=False, TORCH_RBLN_LOG_PATH="/no/such/folder/log")
    assert _warnings(out, "TORCH_RBLN_LOG_PATH='/no/such/folder/log' cannot be written") == 1


def test_the_backend_of_torch_compile(run_python: RunPython) -> None:
    out = _run(
        run_python,
        """
        import torch
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 2)).rbln()
        x = torch.randn(3, 4, device="rbln")
        torch.rbln.reset_fallbacks()
        options = {"cache_dir": "here", "num_devices": 2, "max_autotune": False}
        for compiled in (
            torch.compile(model, backend="rbln"),
            torch.compile(model, backend="rbln", dynamic=False, options=options),
            torch.compile(model, backend="rbln", mode="reduce-overhead"),
            torch.compile(model, backend="rbln", options=options),
        ):
            torch._dynamo.reset()
            result = compiled(x)
            torch.testing.assert_close(result.cpu(), model(x).cpu())
            result.sum().backward()
            assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0
        assert torch.rbln.fallbacks() == {}
        assert "rbln" in torch._dynamo.list_backends()
        """,
        check=False,
    )
    assert "Traceback" not in out, out
    assert _warnings(out, "the options cache_dir, num_devices mean nothing to Outboard's compiler") == 1, out


@pytest.mark.parametrize("variables", [{}, {"TORCH_RBLN_DIAGNOSE": "1"}, {"OUTBOARD_PROFILE": "ocl"}])
def test_diagnose(variables: dict[str, str]) -> None:
    environment = {"OUTBOARD_PROFILE": "", "RBLN_DEVICES": "0"} | variables
    result = run_program(["-m", "torch_rbln.diagnose"], environment=environment, cwd=PACKAGE, cold=True)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "RBLN_DEVICES=0" in result.stdout and "outboard doctor" in result.stdout
    name = variables.get("OUTBOARD_PROFILE", "rbln")
    assert f"{name}:0" in result.stdout and re.search(rf"profile: +{name} ", result.stdout)


#: A device without a kernel language, whose only compiler is one of graphs, as an NPU's is.
GRAPHS = {"OUTBOARD_DRIVER": "sim", "OUTBOARD_SIM_COMPILER": "1"}


@pytest.mark.parametrize("variables", [{}, GRAPHS], ids=["kernels", "graphs"])
def test_the_page_runs_as_printed(variables: dict[str, str], run_python: RunPython) -> None:
    out = _run(run_python, code_of("profile-rbln.md"), check=False, **variables)
    assert "Error" not in out and _warnings(out, "the options cache_dir mean nothing") == 1, out


def test_a_compiler_of_graphs_runs_halves(run_python: RunPython) -> None:
    """What torch-rbln's tutorials do, in the dtype of its NPUs: operators, a model, explained, compiled and trained."""
    _run(
        run_python,
        """
import copy, torch
every = torch.arange(-32768, 32768).to(torch.int16).view(torch.float16)
every = every[~every.isnan()]
assert torch.equal((every.to("rbln") * 1).cpu().view(torch.int16), every.view(torch.int16))
wide = torch.randn(999) * 10.0 ** torch.randint(-9, 6, (999,))
wide = torch.cat((wide, torch.tensor([65504, 65519.9, 65520, 2**-24, 2**-25, 2**-14, 0.0, -0.0])))
assert torch.equal(wide.to("rbln").half().cpu().view(torch.int16), wide.half().view(torch.int16))

torch.manual_seed(0)
reference = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 64)).half()
model, x = copy.deepcopy(reference).to("rbln"), torch.randn(4, 64).half()
with torch.no_grad():
    given = x.to("rbln")
    for run in (model, torch.compile(model, backend="rbln")):
        torch.testing.assert_close(run(given).cpu(), reference(x), rtol=2e-3, atol=2e-3)
    assert torch.rbln.explain_steady(lambda: model(given)).verdict()["clean"]
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
losses = []
for _ in range(3):
    optimizer.zero_grad()
    losses.append((model(given).float() ** 2).mean())
    losses[-1].backward()
    optimizer.step()
assert losses[-1] < losses[0] and not torch.rbln.fallbacks(), torch.rbln.fallbacks()
""",
        **GRAPHS,
    )


def test_random_numbers_follow_from_the_seed(run_python: RunPython) -> None:
    _run(
        run_python,
        """
        import torch
        def draw():
            torch.manual_seed(7)
            made = [torch.randn(1000, device="rbln"), torch.rand(1000, device="rbln", dtype=torch.float16)]
            made += [torch.randint(0, 9, (1000,), device="rbln"), torch.empty(1000, device="rbln").bernoulli_(0.5)]
            made.append(torch.randn(1000, device="rbln"))
            return [each.cpu() for each in made]
        first, second = draw(), draw()
        assert all(torch.equal(a, b) for a, b in zip(first, second))
        assert not torch.equal(first[0], first[-1]) and abs(first[0].mean()) < 0.2
        generator = torch.Generator("rbln").manual_seed(3)
        a = torch.randn(10, device="rbln", generator=generator)
        b = torch.randn(10, device="rbln", generator=generator.manual_seed(3))
        assert torch.equal(a.cpu(), b.cpu())
        assert torch.rbln.fallbacks() == {}
        """,
    )
