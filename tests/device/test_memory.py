# SPDX-License-Identifier: Apache-2.0
"""Device memory through ``torch.<device>``: statistics, laziness, more tensors than memory, pins, snapshots."""

from __future__ import annotations

import gc
import inspect
import pickle
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import pytest
import torch

from outboard import _C
from tests.conftest import FULL, RunPython, WaitOnHost

MIB = 1 << 20


@pytest.fixture(autouse=True)
def _clean(device: str) -> Iterator[None]:
    gc.collect()  # what earlier tests left in cycles is not freed between two looks at the memory
    torch.accelerator.synchronize()
    torch.accelerator.empty_cache()
    yield
    torch.accelerator.synchronize()


LIMITED = """
import torch
from outboard import _C
device = torch._C._get_privateuse1_backend_name()
module = torch.get_device_module(device)
MIB = 1 << 20
def full(mebibytes, value):
    return torch.full((mebibytes * MIB,), value, dtype=torch.uint8, device=device)
def runs_out(call):
    try:
        call()
    except torch.OutOfMemoryError as error:
        return str(error)
    raise SystemExit("did not run out of memory")
"""


@pytest.fixture
def limited(run_python: RunPython) -> Callable[[str], str]:
    """Runs code in a process with 16 MiB of device memory."""
    return lambda code: run_python(LIMITED + textwrap.dedent(code), OUTBOARD_MEMORY_LIMIT="16MiB")


def check_invariants(module: ModuleType) -> dict[str, int]:
    stats: dict[str, int] = module.memory_stats()
    assert stats["allocated.current"] <= stats["active.current"] <= stats["reserved.current"]
    assert stats["cached.current"] == stats["reserved.current"] - stats["active.current"]
    for gauge in ("allocated", "reserved", "active", "cached"):
        assert stats[f"{gauge}.current"] <= stats[f"{gauge}.peak"]
    return stats


#: What the documentation of torch.rbln promises of memory: functions of ``torch.<device>``, and keys of memory_stats.
DOCUMENTED_FUNCTIONS = (
    "empty_cache",
    "memory_allocated",
    "memory_reserved",
    "max_memory_allocated",
    "max_memory_reserved",
    "memory_stats",
    "reset_peak_memory_stats",
    "reset_accumulated_memory_stats",
)
GAUGES = ("allocated", "reserved", "active", "cached")
ACCUMULATED = (
    *(f"{gauge}.total_{what}" for gauge in ("allocated", "reserved") for what in ("allocated", "freed")),
    "num_alloc_retries",
    "num_ooms",
    "num_device_alloc",
    "num_device_free",
)
DOCUMENTED_KEYS = (*(f"{gauge}.{when}" for gauge in GAUGES for when in ("current", "peak")), *ACCUMULATED)
LAZY_KEYS = tuple(
    f"lazy.{what}.{unit}"
    for what in ("unbacked", "zero", "host", "spilled", "materialized", "spills", "restores")
    for unit in ("bytes", "count")
)


@pytest.mark.parametrize("name", DOCUMENTED_FUNCTIONS)
def test_documented_functions(device: str, device_module: ModuleType, name: str) -> None:
    """Each takes ``device=None | int | str | torch.device`` by position and by name, and says what it does."""
    function = getattr(device_module, name)
    assert getattr(device_module.memory, name) is function
    assert inspect.getdoc(function)
    parameters = inspect.signature(function).parameters
    assert list(parameters) == ["device"] and parameters["device"].default is None
    results = [function(), *(function(where) for where in (None, 0, device, f"{device}:0", torch.device(device, 0)))]
    assert len({type(result) for result in [*results, function(device=0)]}) == 1
    for wrong in (99, f"{device}:99", "cpu", torch.device("cpu")):
        with pytest.raises((RuntimeError, ValueError)):
            function(wrong)


def test_documented_keys(device: str, device_module: ModuleType) -> None:
    keep, _ = torch.ones(MIB, device=device), torch.ones(3 * MIB, device=device)
    del _
    stats = device_module.memory_stats()
    assert not {*DOCUMENTED_KEYS, *LAZY_KEYS} - stats.keys()
    assert all(type(value) is int and value >= 0 for value in stats.values())
    assert stats["active.peak"] >= stats["active.current"] + 3 * MIB
    device_module.reset_peak_memory_stats()
    reset = device_module.memory_stats()
    assert all(reset[f"{gauge}.peak"] == reset[f"{gauge}.current"] == stats[f"{gauge}.current"] for gauge in GAUGES)
    assert all(reset[key] == stats[key] for key in ACCUMULATED)
    device_module.reset_accumulated_memory_stats()
    assert all(device_module.memory_stats()[key] == 0 for key in ACCUMULATED)
    assert keep[0].item() == 1


def test_the_accelerator_module_agrees(device: str, device_module: ModuleType) -> None:
    """PyTorch's device-independent functions tell the same."""
    torch.accelerator.empty_cache()
    kept_by_others = device_module.memory_stats()["cached.current"]  # in segments with living tensors
    x = torch.ones(MIB, device=device)
    for name in ("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved"):
        assert getattr(torch.accelerator, name)() == getattr(device_module, name)() >= x.nbytes
    stats = torch.accelerator.memory_stats()
    assert stats["allocated_bytes.all.current"] == device_module.memory_allocated()
    assert stats["reserved_bytes.all.peak"] == device_module.max_memory_reserved()
    torch.accelerator.reset_peak_memory_stats()
    assert device_module.max_memory_allocated() == device_module.memory_allocated()
    torch.accelerator.reset_accumulated_memory_stats()
    assert device_module.memory_stats()["num_device_alloc"] == 0
    del x
    torch.accelerator.empty_cache()
    stats = device_module.memory_stats()
    assert stats["reserved.total_freed"] > 0 and stats["cached.current"] - kept_by_others < MIB * 4


def test_documented_functions_of_devices(device: str, device_module: ModuleType) -> None:
    assert device_module.is_available() is True
    assert device_module.device_count() >= 1 and device_module.current_device() == 0
    for where in (0, device, f"{device}:0", torch.device(device, 0)):
        device_module.set_device(where)
        assert device_module.current_device() == 0
    assert torch.float16 in device_module.get_amp_supported_dtype()
    tensor = torch.ones(3, device=device)
    for owner in (tensor, tensor.untyped_storage(), torch.ones(3)):
        with device_module.device_of(owner):
            assert device_module.current_device() == 0


@pytest.mark.parametrize("argument", [None, 0, "name", "name:0", "torch"])
def test_every_function_takes_every_kind_of_device(device: str, device_module: ModuleType, argument: object) -> None:
    where = {"name": device, "name:0": f"{device}:0", "torch": torch.device(device, 0)}.get(str(argument), argument)
    x = torch.ones(1000, device=device) + 1
    assert device_module.memory_allocated(where) >= x.nbytes
    assert device_module.max_memory_allocated(where) >= device_module.memory_allocated(where)
    assert device_module.memory_reserved(where) >= device_module.memory_allocated(where)
    assert device_module.max_memory_reserved(where) >= device_module.memory_reserved(where)
    device_module.reset_peak_memory_stats(where)
    stats = device_module.memory_stats(where)
    assert stats["allocated.peak"] == stats["allocated.current"]
    device_module.reset_accumulated_memory_stats(where)
    stats = device_module.memory_stats(where)
    for key in (
        "allocated.total_allocated",
        "reserved.total_freed",
        "num_ooms",
        "num_device_alloc",
        "lazy.spills.count",
    ):
        assert stats[key] == 0
    device_module.empty_cache(where)


def test_totals_and_currents_agree(device: str, device_module: ModuleType) -> None:
    device_module.reset_accumulated_memory_stats()
    before = check_invariants(device_module)
    x = torch.ones(3 * MIB, device=device, dtype=torch.uint8)
    made = check_invariants(device_module)
    assert made["allocated.current"] - before["allocated.current"] == x.nbytes == made["allocated.total_allocated"]
    del x
    after = check_invariants(device_module)
    assert after["allocated.current"] == before["allocated.current"]
    assert after["allocated.total_freed"] == 3 * MIB
    device_module.empty_cache()
    assert device_module.memory_reserved() <= made["reserved.current"]


def test_making_tensors_takes_no_memory(device: str, device_module: ModuleType) -> None:
    before = device_module.memory_stats()
    x = torch.empty(MIB, device=device)
    y = torch.zeros(MIB, device=device)
    stats = device_module.memory_stats()
    assert stats["allocated.current"] == before["allocated.current"]
    for state, tensor in (("unbacked", x), ("zero", y)):
        assert _C.memory_state(tensor) == state
        assert stats[f"lazy.{state}.bytes"] - before[f"lazy.{state}.bytes"] == tensor.nbytes
        assert stats[f"lazy.{state}.count"] - before[f"lazy.{state}.count"] == 1
    assert y.cpu().count_nonzero() == 0 and y[3:5].tolist() == [0, 0]
    assert device_module.memory_allocated() == before["allocated.current"]
    torch.testing.assert_close((y + 1).cpu(), torch.ones(MIB))
    assert device_module.memory_allocated() == before["allocated.current"] + y.nbytes


def test_contents_from_the_host_take_memory_once(device: str, device_module: ModuleType) -> None:
    """Where the host addresses the device's memory they are there at once; elsewhere, or if there is no room, they
    wait on the host."""
    device_module.synchronize()
    before = device_module.memory_stats()
    x = torch.ones(MIB).to(device)
    stats = device_module.memory_stats()
    there = device_module.get_device_properties().host_accessible
    assert _C.memory_state(x) == ("device" if there else "host")
    assert stats["allocated.current"] - before["allocated.current"] == (x.nbytes if there else 0)
    assert stats["lazy.host.bytes"] - before["lazy.host.bytes"] == (0 if there else x.nbytes)
    limit = _C.memory_limit(0)
    _C.set_memory_limit(0, stats["active.current"] + x.nbytes - 1)
    try:
        y = torch.full((MIB,), 2.0).to(device)
        assert _C.memory_state(y) == "host"
        assert y[5].item() == 2
    finally:
        _C.set_memory_limit(0, limit)
    torch.testing.assert_close((x + y).cpu(), torch.full((MIB,), 3.0))


def test_zeros_larger_than_the_device(device: str, device_module: ModuleType) -> None:
    x = torch.zeros(50 << 30, dtype=torch.uint8, device=device)
    assert x[-3:].tolist() == [0, 0, 0]
    half = x[: x.numel() // 2].view(torch.int32)
    assert half[7].item() == 0
    with pytest.raises(torch.OutOfMemoryError, match="MiB"):
        x.view(-1).resize_(1 << 43).add_(1)
    assert device_module.memory_stats()["num_ooms"] > 0


def test_zero_of_a_whole_storage_is_a_mark(device: str, device_module: ModuleType) -> None:
    x = torch.ones(1000, device=device)
    x.zero_()
    assert _C.memory_state(x) == "zero"
    x[10:20] = 3
    expected = torch.zeros(1000)
    expected[10:20] = 3
    torch.testing.assert_close(x.cpu(), expected)
    x[:500].zero_()
    assert _C.memory_state(x) == "device"
    x.fill_(-0.0)
    assert torch.signbit(x.cpu()).all()


def test_views_and_resizes_of_what_is_not_there(device: str, wait_on_host: WaitOnHost) -> None:
    host = torch.arange(12.0)
    for make in (lambda: wait_on_host(host), lambda: torch.zeros(12, device=device)):
        x = make()
        expected = x.cpu()
        torch.testing.assert_close(x.view(3, 4).t().cpu(), expected.view(3, 4).t())
        torch.testing.assert_close(make().view(3, 4)[1:, ::2].contiguous().cpu(), expected.view(3, 4)[1:, ::2])
        torch.testing.assert_close(make().clone().cpu(), expected)
        x = make()
        x.resize_(20)
        torch.testing.assert_close(x[:12].cpu(), expected)
        x = make()
        x.untyped_storage().resize_(24)
        torch.testing.assert_close(x.new_empty(0).set_(x.untyped_storage()).cpu(), expected[:6])
        y = torch.empty(12, device=device).copy_(make())
        torch.testing.assert_close(y.cpu(), expected)
        torch.testing.assert_close((-make().to(torch.complex64)).conj().cpu(), (-expected.to(torch.complex64)).conj())


def test_uploads_do_not_see_later_changes(device: str, wait_on_host: WaitOnHost) -> None:
    host = torch.arange(1000.0)
    there, waiting = host.to(device), wait_on_host(host)
    host.zero_()
    for x in (there, waiting):
        torch.testing.assert_close((x + 0).cpu(), torch.arange(1000.0))


def test_every_consumer_brings_contents_in(device: str, tmp_path: Path, wait_on_host: WaitOnHost) -> None:
    host = torch.arange(64.0)

    def fresh() -> torch.Tensor:
        return wait_on_host(host)

    torch.save(fresh(), tmp_path / "x")
    torch.testing.assert_close(torch.load(tmp_path / "x").cpu(), host)
    torch.testing.assert_close(pickle.loads(pickle.dumps(fresh())).cpu(), host)
    torch.testing.assert_close((fresh().view(8, 8) @ fresh().view(8, 8)).cpu(), host.view(8, 8) @ host.view(8, 8))
    torch.testing.assert_close(torch.linalg.eigvalsh(fresh().view(8, 8)).cpu(), torch.linalg.eigvalsh(host.view(8, 8)))
    stream = torch.Stream(device)
    x = fresh()
    with stream:
        y = x + 1
    z = x + 2
    torch.accelerator.synchronize()
    torch.testing.assert_close(y.cpu() + 1, z.cpu())


def test_more_tensors_than_memory(limited: Callable[[str], str]) -> None:
    limited("""
        tensors = [full(2, i + 1) for i in range(32)]
        stats = module.memory_stats()
        assert stats["reserved.peak"] <= 16 * MIB
        assert stats["lazy.spilled.bytes"] == 64 * MIB - stats["allocated.current"] >= 48 * MIB
        assert [_C.memory_state(t) for t in tensors[:4]] == ["spilled"] * 4
        assert _C.memory_state(tensors[-1]) == "device"
        for i, tensor in enumerate(tensors):
            assert (tensor + 1).max().item() == i + 2
        assert [t[17].item() for t in tensors] == list(range(1, 33))
        del tensors, tensor
        stats = module.memory_stats()
        assert stats["lazy.spilled.bytes"] == stats["allocated.current"] == 0, stats
    """)


def test_one_operation_that_does_not_fit(limited: Callable[[str], str]) -> None:
    limited("""
        x = full(12, 1)
        text = runs_out(lambda: x + 1)
        assert "tried to allocate 12.00 MiB" in text and "OUTBOARD_MEMORY_LIMIT" in text, text
        assert module.memory_stats()["num_ooms"] == 1
        assert x.add_(1)[3].item() == 2
    """)


def test_pin(limited: Callable[[str], str]) -> None:
    limited("""
        pinned = module.memory.pin(full(6, 5))
        others = [full(4, i) for i in range(6)]
        assert _C.memory_state(pinned) == "device"
        assert "pinned" in runs_out(lambda: full(12, 1))
        module.memory.unpin(pinned)
        large = full(12, 1)
        assert _C.memory_state(pinned) == "spilled"
        assert pinned[9].item() == 5 and large[0].item() == 1
        assert [t[0].item() for t in others] == list(range(6))
        try:
            module.memory.pin(torch.ones(3))
        except RuntimeError:
            pass
        else:
            raise SystemExit("pinned a CPU tensor")
    """)


def test_raw_memory(device: str, device_module: ModuleType) -> None:
    before = device_module.memory_allocated()
    pointer = device_module.caching_allocator_alloc(5000)
    assert pointer != 0 and device_module.memory_allocated() == before + 5000
    device_module.caching_allocator_delete(pointer)
    assert device_module.memory_allocated() == before
    with pytest.raises(ValueError, match="not allocated"):
        device_module.caching_allocator_delete(pointer)
    other = device_module.caching_allocator_alloc(1, device, torch.Stream(device))
    device_module.caching_allocator_delete(other)
    assert device_module.caching_allocator_alloc(0) == 0


def test_snapshot(device: str, device_module: ModuleType, tmp_path: Path) -> None:
    device_module.memory._record_memory_history(max_entries=50)
    x = torch.ones(5 * MIB, device=device)
    address = x.nbytes
    del x
    keep = torch.ones(3000, device=device)
    device_module.memory._dump_snapshot(tmp_path / "snapshot.pickle")
    device_module.memory._record_memory_history(None)
    snapshot = pickle.loads((tmp_path / "snapshot.pickle").read_bytes())
    stats = device_module.memory_stats()
    assert sum(s["total_size"] for s in snapshot["segments"] if s["device"] == 0) == stats["reserved.current"]
    assert sum(s["active_size"] for s in snapshot["segments"] if s["device"] == 0) == stats["active.current"]
    for segment in snapshot["segments"]:
        assert sum(block["size"] for block in segment["blocks"]) == segment["total_size"]
        assert {block["state"] for block in segment["blocks"]} <= {
            "active_allocated",
            "active_pending_free",
            "inactive",
        }
    actions = [entry["action"] for entry in snapshot["device_traces"][0]]
    assert {"alloc", "free_completed"} <= set(actions)
    assert any(entry["size"] == address for entry in snapshot["device_traces"][0] if entry["action"] == "alloc")
    assert device_module.memory._snapshot()["device_traces"][0] == []
    assert keep[0].item() == 1


def _two_tensors(device: str) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.ones(MIB, device=device) + 1, torch.ones(3 * MIB, device=device) + 2


def _names(frames: list[dict[str, Any]]) -> list[str]:
    return [frame["name"] for frame in frames]


@pytest.mark.parametrize("context", ["all", "alloc", "state", None])
@pytest.mark.parametrize("stacks", ["python", "all"])
def test_the_history_names_the_lines_of_the_program(
    device: str, device_module: ModuleType, context: Literal["all", "alloc", "state"] | None, stacks: Any
) -> None:
    device_module.memory._record_memory_history(context=context, stacks=stacks, clear_history=True)
    kept, freed = _two_tensors(device)
    size = freed.nbytes
    del freed
    snapshot = device_module.memory._snapshot()
    device_module.memory._record_memory_history(None)
    blocks = [block for segment in snapshot["segments"] for block in segment["blocks"]]
    kept_blocks = [b for b in blocks if b["requested_size"] == kept.nbytes and "_two_tensors" in _names(b["frames"])]
    entries = snapshot["device_traces"][0]
    allocs = [e for e in entries if e["action"] == "alloc" and e["size"] == size]
    frees = [e for e in entries if e["action"] == "free_completed" and e["size"] == size]
    assert allocs and frees
    assert bool(kept_blocks) == (context is not None)
    assert all(("_two_tensors" in _names(e["frames"])) == (context in ("all", "alloc")) for e in allocs)
    assert any("test_the_history" in str(_names(e["frames"])) for e in frees) == (context == "all")
    if context == "all":
        frame = next(f for f in allocs[0]["frames"] if f["name"] == "_two_tensors")
        assert frame["filename"].endswith("test_memory.py")
        assert frame["line"] == _two_tensors.__code__.co_firstlineno + 1
        assert any("::" in name for name in _names(allocs[0]["frames"])) == (stacks == "all")


def test_the_state_alone_keeps_no_history(device: str, device_module: ModuleType) -> None:
    device_module.memory._record_memory_history("state", clear_history=True)
    kept, _ = _two_tensors(device)
    snapshot = device_module.memory._snapshot()
    device_module.memory._record_memory_history(None)
    assert snapshot["device_traces"][0] == []
    named = [b for s in snapshot["segments"] for b in s["blocks"] if "_two_tensors" in _names(b["frames"])]
    assert kept.nbytes in [block["requested_size"] for block in named]
    with pytest.raises(ValueError, match="enabled is"):
        device_module.memory._record_memory_history("some")


def test_a_history_is_kept_while_threads_ask_for_statistics(device: str, device_module: ModuleType) -> None:
    """Stacks need Python's lock and memory needs its own: neither is waited for with the other held."""
    device_module.memory._record_memory_history(max_entries=1000)
    ended = threading.Event()

    def ask() -> None:
        while not ended.is_set():
            device_module.memory_stats()
            device_module.memory.memory_snapshot()

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    x = torch.ones(1000, device=device)
    for _ in range(300):
        x = x * 1.0 + torch.ones(1000, device=device)
    ended.set()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    device_module.memory._record_memory_history(None)
    assert x[0].item() == 301


def test_pytorch_visualises_the_snapshot(device: str, device_module: ModuleType) -> None:
    """PyTorch's own reader of snapshots accepts ours."""
    from torch.cuda import _memory_viz

    device_module.memory._record_memory_history()
    x = torch.ones(MIB, device=device) + 1
    snapshot = device_module.memory._snapshot()
    device_module.memory._record_memory_history(None)
    assert "<html" in _memory_viz.trace_plot(snapshot).lower()
    assert "MiB" in _memory_viz.segsum(snapshot)
    assert x[0].item() == 2


def test_summary(device_module: ModuleType) -> None:
    text = device_module.memory_summary()
    assert "allocated" in text and "spilled" in text and "num_ooms" in text
    assert "spilled" not in device_module.memory_summary(abbreviated=True)
    lazy = {key.split(".")[1] for key in device_module.memory_stats() if key.startswith("lazy.")}
    assert lazy <= {line.partition(" ")[0] for line in text.splitlines()}


def test_eager_memory(run_python: RunPython) -> None:
    run_python(
        """
        import torch
        from outboard import _C
        device = torch._C._get_privateuse1_backend_name()
        module = torch.get_device_module(device)
        x = torch.empty(1 << 20, device=device)
        assert module.memory_allocated() == x.nbytes, module.memory_allocated()
        y = torch.zeros(1 << 20, device=device)
        z = torch.ones(1 << 20).to(device)
        assert [_C.memory_state(t) for t in (x, y, z)] == ["device"] * 3
        assert module.memory_allocated() == 3 * x.nbytes
        torch.testing.assert_close((y + z).cpu(), torch.ones(1 << 20))
        """,
        OUTBOARD_LAZY="0",
    )


def test_allocator_settings(run_python: RunPython) -> None:
    run_python(
        """
        import torch
        device = torch._C._get_privateuse1_backend_name()
        module = torch.get_device_module(device)
        x = torch.ones(1200 * 1024, dtype=torch.uint8, device=device)
        assert module.memory_stats()["active.current"] == 1280 * 1024, module.memory_stats()
        assert "divisions" in module.memory._snapshot()["allocator_settings"]["PYTORCH_ALLOC_CONF"]
        """,
        PYTORCH_ALLOC_CONF="roundup_power2_divisions:4",
    )


@pytest.mark.parametrize("key", ["expandable_segments", "pinned_use_background_threads"])
def test_options_without_effect_are_named(run_python: RunPython, key: str) -> None:
    source = "import torch; print(torch.ones(3, device=torch._C._get_privateuse1_backend_name()).sum().item())"
    output = run_python(source, check=False, PYTORCH_ALLOC_CONF=f"{key}:True")
    assert "3.0" in output and f"{key} has no effect" in output


def test_reserved_memory_stays_flat(device: str, device_module: ModuleType) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Linear(64, 5)).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    iterations = 2000 if FULL else 200
    reserved = 0
    for i in range(iterations):
        x = torch.randn(16, 20).to(device)
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        if i == 10:
            reserved = device_module.memory_reserved()
    assert device_module.memory_reserved() == reserved


@pytest.mark.full("trains for half a minute")
@pytest.mark.parametrize("model", ["resnet18", "gpt2"])
def test_fragmentation_with_varying_sizes(model: str, tmp_path: Path) -> None:
    from benchmarks import fragmentation

    peaks = fragmentation.measure(model, steps=40, folder=tmp_path)
    assert peaks["allocations"] > 1000
    assert peaks["active"] <= peaks["reserved"] <= fragmentation.TARGET * peaks["active"], peaks


@pytest.mark.parametrize(
    "model", ["gpt2", pytest.param("resnet50", marks=pytest.mark.full("one model shows it, this one trains longer"))]
)
def test_training_in_a_part_of_the_memory(model: str) -> None:
    from examples.bigger_than_memory import compare

    whole, half, quarter = compare(model, steps=2)
    assert whole.spilled == 0 and half.spilled > 0 and quarter.restored > 0
    assert quarter.peak_reserved <= quarter.limit < whole.peak / 3
    assert half.digest == whole.digest
    assert quarter.digest == whole.digest


def test_a_compiled_graph_in_a_part_of_the_memory(run_python: RunPython) -> None:
    """Each step of a plan fits, the graph's tensors together do not; the bits are those of the run in all of it."""
    run_python("""
        import torch
        device = torch._C._get_privateuse1_backend_name()
        module = torch.get_device_module(device)

        def train():
            torch.manual_seed(0)
            model = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(8))).to(device)
            compiled = torch.compile(model, fullgraph=True)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
            x = torch.randn(64, 512).to(device)
            for _ in range(3):
                optimizer.zero_grad()
                compiled(x).square().mean().backward()
                optimizer.step()
            return [p.detach().cpu() for p in model.parameters()]

        module.reset_peak_memory_stats()
        whole = train()
        stats = module.memory_stats()
        assert stats["lazy.spills.count"] == 0
        limit = stats["reserved.peak"] // 3
        module.empty_cache()
        module.set_per_process_memory_fraction(limit / module.get_device_properties().total_memory)
        part = train()
        stats = module.memory_stats()
        assert stats["lazy.spills.count"] > 0 and stats["lazy.restores.count"] > 0, stats
        module.reset_peak_memory_stats()
        assert stats["reserved.current"] <= limit
        assert all(torch.equal(a, b) for a, b in zip(whole, part))
    """)


def test_older_names_of_cuda_warn_and_work(device: str, device_module: ModuleType) -> None:
    kept = torch.ones(1000, device=device) + 1
    for old, new in (("memory_cached", "memory_reserved"), ("max_memory_cached", "max_memory_reserved")):
        with pytest.warns(FutureWarning, match=f"torch.{device}.{old}` has been renamed to `torch.{device}.{new}`"):
            assert getattr(device_module, old)() == getattr(device_module, new)() > 0
    with pytest.warns(FutureWarning, match="reset_peak_memory_stats"):
        device_module.reset_max_memory_cached()
    assert device_module.max_memory_reserved() == device_module.memory_reserved()
    assert kept.numel() == 1000


def test_statistics_as_dictionaries_in_dictionaries(device: str, device_module: ModuleType) -> None:
    nested, flat = device_module.memory_stats_as_nested_dict(), device_module.memory_stats()
    assert nested["reserved"]["current"] == flat["reserved.current"]
    assert nested["lazy"]["spills"]["bytes"] == flat["lazy.spills.bytes"] and nested["num_ooms"] == flat["num_ooms"]
    host = device_module.host_memory_stats_as_nested_dict()
    assert host["allocated_bytes"].keys() >= {"current", "peak", "allocated", "freed"}


def test_the_fraction_of_memory_can_be_asked_for(device_module: ModuleType) -> None:
    before = device_module.get_per_process_memory_fraction()
    try:
        device_module.set_per_process_memory_fraction(0.25)
        assert device_module.get_per_process_memory_fraction() == pytest.approx(0.25)
    finally:
        device_module.set_per_process_memory_fraction(before)
