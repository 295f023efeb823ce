# SPDX-License-Identifier: Apache-2.0
"""``torch.profiler`` shows what the device does: kernels with their times, who launched them, copies and memory."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, record_function, schedule

from tests.conftest import RunPython
from tests.profiles.pages import code_of

BOTH = [ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]


def _model() -> tuple[torch.nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 96), torch.nn.GELU(), torch.nn.Linear(96, 8)).to("ocl")
    x = torch.randn(16, 64).to("ocl")
    model(x).square().mean().backward()  # what is compiled is compiled
    torch.ocl.synchronize()
    return model, x


def _on_device(profiled: profile) -> list[Any]:
    return [event for event in profiled.events() if event.device_type == DeviceType.PrivateUse1]


def _trace(profiled: profile, path: Path) -> list[dict[str, Any]]:
    profiled.export_chrome_trace(str(path))
    return json.loads(path.read_text())["traceEvents"]


def test_the_table_sorts_by_the_device_s_time_and_names_its_kernels() -> None:
    model, x = _model()
    with profile(activities=BOTH) as profiled:
        model(x).square().mean().backward()
    averages = profiled.key_averages()
    table = averages.table(sort_by="ocl_time_total", row_limit=50)
    assert "Self OCL" in table and "OCL total" in table
    rows = {row.key: row for row in averages}
    for operator in ("aten::addmm", "aten::gelu", "aten::gelu_backward", "aten::mm"):
        assert rows[operator].ocl_time_total > 0
        assert rows[operator].ocl_time_total == rows[operator].device_time_total
    # On the host's side an operator's time holds those it calls; AddmmBackward0 calls two aten::mm.
    assert rows["AddmmBackward0"].device_time_total >= rows["aten::mm"].self_device_time_total * 0.999
    assert {"gelu_0", "gelu_backward_0"} <= {event.name for event in _on_device(profiled)}
    assert sum(row.self_ocl_time_total for row in averages) > 0


def test_the_trace_links_each_kernel_to_its_launch_and_its_operator(tmp_path: Path) -> None:
    model, x = _model()
    with profile(activities=BOTH) as profiled:
        model(x).square().mean().backward()
        torch.ocl.synchronize()
    events = _trace(profiled, tmp_path / "trace.json")
    kernels = [event for event in events if event.get("cat") == "kernel"]
    launches = {event["args"]["correlation"]: event for event in events if event.get("cat") == "privateuse1_runtime"}
    operators = {event["args"]["External id"]: event for event in events if event.get("cat") == "cpu_op"}
    starts = {event["id"]: event for event in events if event.get("cat") == "ac2g" and event["ph"] == "s"}
    ends = {event["id"]: event for event in events if event.get("cat") == "ac2g" and event["ph"] == "f"}
    assert len(kernels) >= 8
    assert set(starts) == set(ends)
    for kernel in kernels:
        launch = launches[kernel["args"]["correlation"]]
        assert launch["name"] == "launch"
        assert kernel["ts"] + kernel["dur"] >= launch["ts"]  # none ends before it is asked for
        operator = operators[kernel["args"]["External id"]]
        assert operator["ts"] <= launch["ts"] <= operator["ts"] + operator["dur"]
        assert operator["tid"] == launch["tid"]
        assert ends[kernel["args"]["correlation"]]["ts"] == kernel["ts"]
        assert kernel["args"]["device"] == 0 and kernel["args"]["stream"] == 0
    by_time = sorted(kernels, key=lambda kernel: kernel["ts"])
    for one, next_one in zip(by_time, by_time[1:], strict=False):
        assert one["ts"] + one["dur"] <= next_one["ts"] + 1e-3  # microseconds; one stream
    names = {event["args"]["name"] for event in events if event["ph"] == "M" and event["name"] == "process_name"}
    assert "ocl:0" in names


def test_device_times_are_those_of_events() -> None:
    a = torch.randn(1024, 1024).to("ocl")
    a @ a
    torch.ocl.synchronize()
    before, after = torch.Event("ocl", enable_timing=True), torch.Event("ocl", enable_timing=True)
    with profile(activities=BOTH) as profiled:
        before.record()
        for _ in range(5):
            a @ a
        after.record()
        torch.ocl.synchronize()
    profiled_ms = sum(event.time_range.elapsed_us() for event in _on_device(profiled)) / 1000
    between_ms = before.elapsed_time(after)
    assert 0.3 * between_ms <= profiled_ms <= 1.01 * between_ms


def test_copies_and_fills_say_where_and_how_much(tmp_path: Path) -> None:
    host = torch.arange(1000, dtype=torch.float32)
    with profile(activities=BOTH) as profiled:
        there = host.to("ocl")
        (there + 1).cpu()
        other = torch.zeros(500, device="ocl")
        other[:250] = 2
        other.add_(1)
        torch.ocl.synchronize()
    events = _trace(profiled, tmp_path / "trace.json")
    copies = {(event["name"], event["args"]["bytes"]) for event in events if event.get("cat") == "gpu_memcpy"}
    assert ("Memcpy DtoH", 4000) in copies or torch.ocl.get_device_properties().host_accessible
    fills = [event for event in events if event.get("cat") == "gpu_memset"]
    assert fills and all(event["args"]["bytes"] > 0 for event in fills)


def test_memory_is_counted_for_the_operator_that_took_it() -> None:
    x = torch.randn(1000).to("ocl")
    x + 1
    with profile(activities=BOTH, profile_memory=True) as profiled:
        y = torch.empty(256, 1024, device="ocl")
        z = x + 1
        del y
    rows = {row.key: row for row in profiled.key_averages()}
    assert rows["aten::empty"].self_device_memory_usage == 256 * 1024 * 4
    assert rows["aten::add"].self_ocl_memory_usage == 4000
    assert rows["[memory]"].self_device_memory_usage == -256 * 1024 * 4
    assert "OCL Mem" in profiled.key_averages().table()
    assert z.numel() == 1000


def test_ranges_of_the_user_s_have_a_time_on_the_device(tmp_path: Path) -> None:
    model, x = _model()
    with profile(activities=BOTH) as profiled:
        with record_function("forward pass"), torch.ocl.nvtx.range("inner"):
            model(x)
        model(x)
    events = _trace(profiled, tmp_path / "trace.json")
    ranges = [event for event in events if event.get("cat") == "gpu_user_annotation"]
    assert {event["name"] for event in ranges} >= {"inner"}
    kernels = [event for event in events if event.get("cat") == "kernel"]
    inner = next(event for event in ranges if event["name"] == "inner")
    inside = [
        kernel for kernel in kernels if inner["ts"] <= kernel["ts"] and kernel["ts"] <= inner["ts"] + inner["dur"]
    ]
    assert 0 < len(inside) < len(kernels)


def test_a_schedule_gives_a_trace_per_cycle(tmp_path: Path) -> None:
    model, x = _model()
    kernels: list[int] = []

    def ready(profiled: profile) -> None:
        events = _trace(profiled, tmp_path / f"{len(kernels)}.json")
        kernels.append(sum(event.get("cat") == "kernel" for event in events))

    with profile(activities=BOTH, schedule=schedule(wait=1, warmup=1, active=2, repeat=2), on_trace_ready=ready) as p:
        for _ in range(8):
            model(x)
            p.step()
    assert len(kernels) == 2
    assert kernels[0] == kernels[1] > 0


def test_without_the_device_s_activity_nothing_of_it_is_shown(tmp_path: Path) -> None:
    model, x = _model()
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        model(x)
    assert _on_device(profiled) == []
    assert not [event for event in _trace(profiled, tmp_path / "trace.json") if event.get("cat") == "kernel"]
    with profile(activities=[ProfilerActivity.PrivateUse1]) as profiled:
        model(x)
    events = _trace(profiled, tmp_path / "other.json")
    assert [event for event in events if event.get("cat") == "kernel"]
    assert not [event for event in events if event.get("cat") == "cpu_op"]


def test_compiled_kernels_carry_the_names_of_what_was_fused() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.silu(x * 2 + 1).sum(-1)

    compiled = torch.compile(function)
    x = torch.randn(8, 32).to("ocl")
    compiled(x)
    with profile(activities=BOTH) as profiled:
        compiled(x)
    names = [event.name for event in _on_device(profiled)]
    assert any("silu" in name and "sum" in name for name in names), names


def test_replays_of_graphs_are_shown() -> None:
    x = torch.randn(100).to("ocl")
    graph = torch.ocl.Graph()
    (x * 2).exp()
    with torch.ocl.graph(graph):
        y = (x * 2).exp()
    with profile(activities=BOTH) as profiled:
        graph.replay()
        torch.ocl.synchronize()
    assert len(_on_device(profiled)) >= 1
    torch.testing.assert_close(y.cpu(), (x.cpu() * 2).exp())


def test_threads_and_streams_are_told_apart(tmp_path: Path) -> None:
    x = torch.randn(64, 64).to("ocl")
    x.exp()
    side = torch.Stream("ocl")

    def work() -> None:
        with side:
            x.exp()

    with profile(
        activities=BOTH, experimental_config=torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
    ) as profiled:
        x.exp()
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        torch.ocl.synchronize()
    events = _trace(profiled, tmp_path / "trace.json")
    kernels = [event for event in events if event.get("cat") == "kernel"]
    launches = [event for event in events if event.get("cat") == "privateuse1_runtime"]
    assert {kernel["tid"] for kernel in kernels} == {0, side.stream_id}
    assert len({launch["tid"] for launch in launches}) == 2
    names = {event["args"]["name"] for event in events if event["ph"] == "M" and event["name"] == "thread_name"}
    assert {"stream 0", f"stream {side.stream_id}"} <= names


def test_stacks_are_weighed_by_the_device_s_time(tmp_path: Path) -> None:
    model, x = _model()
    with profile(activities=BOTH, with_stack=True) as profiled:
        model(x)
    path = tmp_path / "stacks"
    profiled.export_stacks(str(path), metric="self_ocl_time_total")
    assert path.exists()
    with pytest.raises(ValueError, match="self_ocl_time_total"):
        profiled.export_stacks(str(path), metric="self_nonsense_time_total")


def test_the_page_runs_as_printed(run_python: RunPython, tmp_path: Path) -> None:
    output = run_python(f"import os\nos.chdir({str(tmp_path)!r})\n" + code_of("profiler.md"))
    assert "Self OCL" in output and "one step" in output
    assert (tmp_path / "trace.json").exists() and (tmp_path / "snapshot.pickle").exists()


def test_compiling_is_one_piece(run_python: RunPython) -> None:
    """What the compiler calls while it compiles an operator is not counted as the program's."""
    output = run_python(
        """
        import torch
        from torch.profiler import profile
        x = torch.randn(8, 8).to("ocl")
        with profile() as profiled:
            (x @ x).softmax(-1)
            (x @ x).softmax(-1)
        counts = {row.key: row.count for row in profiled.key_averages()}
        print({name: n for name, n in counts.items() if "::" in name and name != "outboard::compile"})
        print(1 <= counts["outboard::compile"] <= 2)
        """,
        cold=True,
    )
    expected = {"aten::mm": 2, "aten::matmul": 2, "aten::softmax": 2, "aten::_softmax": 2}
    counted, compiled = output.splitlines()
    assert eval(counted) == expected
    assert compiled == "True"
