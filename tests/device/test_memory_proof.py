# SPDX-License-Identifier: Apache-2.0
"""Memory against a plain model, and a training step with every allocation, copy, fill and launch failing in turn."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import hypothesis
import pytest
import torch
from hypothesis import strategies
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from outboard import _C
from tests.conftest import FULL, RunPython

MIB = 1 << 20
ROOT = Path(__file__).parents[2]
PATHS = os.pathsep.join([str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])

sizes = strategies.sampled_from([1, 5, 1000, 70_000, 300_000])
values = strategies.integers(-4, 4).map(float)


class Machine(RuleBasedStateMachine):
    """Pairs of a device tensor and what the CPU says it holds, in memory for a part of them.

    Each pair owns its storage, or views another's; ``None`` on the CPU side means that the contents are undefined.
    """

    pairs = Bundle("pairs")

    def __init__(self) -> None:
        super().__init__()
        self.device = torch._C._get_privateuse1_backend_name()
        self.module = torch.get_device_module(self.device)
        self.streams = [torch.Stream(self.device) for _ in range(2)]
        self.storages: dict[int, torch.Tensor] = {}  # device tensors by the address of their storage

    def pair(self, device: torch.Tensor, cpu: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.storages[device.untyped_storage().data_ptr()] = device
        return device, cpu

    @rule(target=pairs, size=sizes)
    def zeros(self, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.pair(torch.zeros(size, device=self.device), torch.zeros(size))

    @rule(target=pairs, size=sizes, value=values)
    def upload(self, size: int, value: float) -> tuple[torch.Tensor, torch.Tensor]:
        cpu = torch.arange(float(size)) * value
        return self.pair(cpu.to(self.device), cpu)

    @rule(target=pairs, size=sizes, value=values)
    def pinned_upload(self, size: int, value: float) -> tuple[torch.Tensor, torch.Tensor]:
        cpu = torch.full((size,), value)
        return self.pair(cpu.pin_memory().to(self.device, non_blocking=True), cpu)

    @rule(target=pairs, size=sizes, value=values)
    def unbacked_then_filled(self, size: int, value: float) -> tuple[torch.Tensor, torch.Tensor]:
        return self.pair(torch.empty(size, device=self.device).fill_(value), torch.full((size,), value))

    @rule(target=pairs, source=pairs)
    def view(self, source: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        device, cpu = source
        return device[device.numel() // 3 :], cpu[cpu.numel() // 3 :]

    @rule(target=pairs, source=pairs, value=values)
    def operate(self, source: tuple[torch.Tensor, torch.Tensor], value: float) -> tuple[torch.Tensor, torch.Tensor]:
        device, cpu = source
        return self.pair(device * 2 + value, cpu * 2 + value)

    @rule(target=pairs, source=pairs)
    def clone(self, source: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        return self.pair(source[0].clone(), source[1].clone())

    @rule(target=pairs, source=pairs, which=strategies.integers(0, 1))
    def on_another_stream(
        self, source: tuple[torch.Tensor, torch.Tensor], which: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        device, cpu = source
        stream = self.streams[which]
        stream.wait_stream(torch.accelerator.current_stream())
        with stream:
            made = device - 1
        torch.accelerator.current_stream().wait_stream(stream)
        return self.pair(made, cpu - 1)

    @rule(source=pairs, value=values)
    def in_place(self, source: tuple[torch.Tensor, torch.Tensor], value: float) -> None:
        for tensor in source:
            tensor.add_(value)

    @rule(source=pairs)
    def zero(self, source: tuple[torch.Tensor, torch.Tensor]) -> None:
        for tensor in source:
            tensor.zero_()

    @rule(source=pairs, other=pairs)
    def copy(self, source: tuple[torch.Tensor, torch.Tensor], other: tuple[torch.Tensor, torch.Tensor]) -> None:
        if source[0].numel() < other[0].numel() or source[0].is_set_to(other[0]):
            return
        if source[0].untyped_storage().data_ptr() == other[0].untyped_storage().data_ptr():
            return
        for to, from_ in zip(other, source, strict=True):
            to.copy_(from_[: to.numel()])

    @rule(source=pairs, value=values)
    def upload_again(self, source: tuple[torch.Tensor, torch.Tensor], value: float) -> None:
        source[1].fill_(value)
        source[0].copy_(source[1])

    @rule(source=pairs)
    def host_operator(self, source: tuple[torch.Tensor, torch.Tensor]) -> None:
        for tensor in source:
            tensor.copy_(torch.linalg.vander(tensor[:1], N=2)[0, :1].expand(tensor.shape))

    @rule(source=pairs)
    def read(self, source: tuple[torch.Tensor, torch.Tensor]) -> None:
        torch.testing.assert_close(source[0].cpu(), source[1], rtol=0, atol=0)

    @rule(source=consumes(pairs))
    def free(self, source: tuple[torch.Tensor, torch.Tensor]) -> None:
        torch.testing.assert_close(source[0].cpu(), source[1], rtol=0, atol=0)

    @rule()
    def empty_cache(self) -> None:
        self.module.empty_cache()

    @invariant()
    def accounts_are_exact(self) -> None:
        stats = self.module.memory_stats()
        assert stats["allocated.current"] <= stats["active.current"] <= stats["reserved.current"]
        assert stats["cached.current"] == stats["reserved.current"] - stats["active.current"]
        by_state: dict[str, int] = {}
        for tensor in self.storages.values():
            state = _C.memory_state(tensor)
            by_state[state] = by_state.get(state, 0) + tensor.untyped_storage().nbytes()
        for state in ("unbacked", "zero", "host", "spilled"):
            assert stats[f"lazy.{state}.bytes"] - self.before[f"lazy.{state}.bytes"] == by_state.get(state, 0), state
        assert stats["allocated.current"] - self.before["allocated.current"] == by_state.get("device", 0)

    @hypothesis.stateful.initialize()
    def start(self) -> None:
        gc.collect()
        torch.accelerator.synchronize()
        self.module.empty_cache()
        self.before = self.module.memory_stats()
        self.limit = _C.memory_limit(0)
        _C.set_memory_limit(0, self.before["reserved.current"] + 6 * MIB)

    def teardown(self) -> None:
        self.storages.clear()
        self.names_to_values.clear()  # the bundle's tensors
        if hasattr(self, "limit"):
            _C.set_memory_limit(0, self.limit)


def prove() -> None:
    """Runs the machine. In a process of its own: where other tensors are on the device, they are what moves away, and
    accounts are not exact."""
    module = torch.get_device_module(torch._C._get_privateuse1_backend_name())
    before = module.memory_stats()
    hypothesis.stateful.run_state_machine_as_test(
        Machine,
        settings=hypothesis.settings(
            max_examples=200 if FULL else 10,
            stateful_step_count=60 if FULL else 40,
            deadline=None,
            derandomize=not FULL,
            suppress_health_check=list(hypothesis.HealthCheck),
        ),
    )
    after = module.memory_stats()
    for moved in ("materialized", "spills", "restores"):
        assert after[f"lazy.{moved}.count"] > before[f"lazy.{moved}.count"], moved


def test_against_a_model(run_python: RunPython) -> None:
    run_python("from tests.device.test_memory_proof import prove; prove()", timeout=1200, PYTHONPATH=PATHS)


#: Two training steps of a small model: `step` gives the loss and the parameters, `equal` tells if they are right.
TRAINING = '''
import ctypes, gc, os, torch
device = torch._C._get_privateuse1_backend_name()
module = torch.get_device_module(device)
torch.manual_seed(0)
source = torch.nn.Sequential(torch.nn.Linear(256, 600), torch.nn.ReLU(), torch.nn.Linear(600, 1000))
inputs, targets = torch.randn(32, 256), torch.randn(32, 1000)
state = source.state_dict()

def step():
    model = torch.nn.Sequential(torch.nn.Linear(256, 600), torch.nn.ReLU(), torch.nn.Linear(600, 1000))
    model.load_state_dict(state)
    model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(2):
        optimizer.zero_grad()
        loss = (model(inputs.to(device)) - targets.to(device)).square().mean()
        loss.backward()
        optimizer.step()
    return [loss.detach().cpu(), *(p.detach().cpu() for p in model.parameters())]

def settle():
    """Hears what else the failure led to: each stream that has work behind it may say so, once."""
    for _ in range(3):
        try:
            return torch.accelerator.synchronize()
        except RuntimeError as error:
            assert "injected" in str(error) or "is lost" in str(error), error

expected = step()
equal = lambda values: all(torch.equal(a, b) for a, b in zip(values, expected, strict=True))
assert equal(step())
'''


@pytest.fixture
def faults(device_module: ModuleType) -> Iterator[dict[str, str]]:
    import outboard.drivers

    folder = Path(outboard.drivers.__file__).parent
    inner = "strict" if os.environ.get("OUTBOARD_DRIVER") == "strict" else "opencl"
    yield {
        "OUTBOARD_DRIVER": str(folder / "liboutboard_faults.so"),
        "OUTBOARD_FAULTS_DRIVER": str(folder / f"liboutboard_{inner}.so"),
    }


@pytest.mark.parametrize("limit", ["", "6MiB"])
def test_a_training_step_survives_every_failure(run_python: RunPython, faults: dict[str, str], limit: str) -> None:
    """With the smaller limit half of the calls move tensors out and in."""
    report = run_python(
        TRAINING
        + """
library = ctypes.CDLL(os.environ["OUTBOARD_DRIVER"])
library.outboard_faults_calls.restype = ctypes.c_uint64
library.outboard_faults_live.restype = ctypes.c_int64
live = lambda kind: library.outboard_faults_live(kind.encode())
programs, streams = live("program"), live("stream")
assert programs > 0 and streams > 0 and live("memory") > 0
for function in ("memory_alloc", "copy", "fill", "launch"):
    for status in (3, 7) if function == "memory_alloc" else (7,):
        raised = 0
        for k in range(1, 201):
            module.empty_cache()
            before = library.outboard_faults_calls(function.encode())
            library.outboard_faults_fail(function.encode(), ctypes.c_uint64(k), status)
            try:
                assert equal(step()), f"wrong result: {function} {k}"
            except RuntimeError as error:
                assert "injected" in str(error), error
                raised += 1
                settle()
            library.outboard_faults_fail(function.encode(), ctypes.c_uint64(0), 0)
            calls = library.outboard_faults_calls(function.encode()) - before
            assert equal(step()), f"wrong result after {function} {k}"
            if calls < k:
                break
        print(function, status, "raised", raised, "of", k)
gc.collect()
torch.accelerator.synchronize()
stats = module.memory_stats()
left = [k for k in ("allocated.current", "active.current") if stats[k]]
left += [k for k in stats if k.startswith(("lazy.unb", "lazy.zero", "lazy.host", "lazy.spilled")) and stats[k]]
assert not left, {k: stats[k] for k in left}
module.empty_cache()
left = [kind for kind in ("memory", "host_memory", "event") if live(kind)]
assert not left, {kind: live(kind) for kind in left}
assert (live("program"), live("stream")) == (programs, streams)
""",
        timeout=400,
        OUTBOARD_MEMORY_LIMIT=limit,
        **faults,
    )
    assert report.count("raised") == 5
    print(report)


@pytest.mark.parametrize("limit", ["", "6MiB"])
def test_a_training_step_tells_every_late_failure(device_module: ModuleType, run_python: RunPython, limit: str) -> None:
    """What fails after its call returned, on whatever stream: an error, and never a wrong result."""
    report = run_python(
        TRAINING
        + """
import outboard.drivers
fail_later = ctypes.CDLL(outboard.drivers.strict()).outboard_strict_fail_later
raised = 0
for k in range(1, 200, 2):
    module.empty_cache()
    fail_later(ctypes.c_uint64(k), 7)
    try:
        assert equal(step()), f"wrong result: {k}"
    except RuntimeError as error:
        assert "injected" in str(error), error
        raised += 1
    fail_later(ctypes.c_uint64(0), 0)
    settle()
    assert equal(step()), f"wrong result after {k}"
print("raised", raised)
""",
        timeout=400,
        OUTBOARD_MEMORY_LIMIT=limit,
        OUTBOARD_DRIVER="strict",
    )
    assert int(report.split()[1]) > 20
