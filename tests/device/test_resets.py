# SPDX-License-Identifier: Apache-2.0
"""torch.<device>.reset(): a device as new, on the strict driver and the simulator, in processes of their own."""

from __future__ import annotations

from types import ModuleType

import pytest

from outboard.drivers import sim, strict
from tests.conftest import RunPython

FAULTS = strict().replace("strict", "faults")

PRELUDE = """
import ctypes, os, subprocess, sys, threading, torch
from outboard import drivers
device = torch._C._get_privateuse1_backend_name()
module = torch.get_device_module(device)
def fail(function, nth, status):
    ctypes.CDLL(os.environ["OUTBOARD_DRIVER"]).outboard_faults_fail(function.encode(), ctypes.c_uint64(nth), status)
def lost(use):
    try:
        use()
    except torch.AcceleratorError as error:
        assert "was reset" in str(error), error
    else:
        raise SystemExit("it was not lost")
def works():
    torch.testing.assert_close((torch.arange(1000., device=device) * 2 + 1).cpu(), torch.arange(1000.) * 2 + 1)
"""

#: The strict driver around the host's, with failures on request between it and the runtime.
FAILING = {"OUTBOARD_DRIVER": FAULTS, "OUTBOARD_FAULTS_DRIVER": strict(), "OUTBOARD_STRICT_DRIVER": "host"}


def test_a_device_is_as_new_after_it_was_lost(run_python: RunPython) -> None:
    out = run_python(
        PRELUDE
        + """
module.manual_seed(7)
first = torch.rand(4, device=device).cpu()
x, stream, event = torch.ones(1000, device=device), torch.Stream(device), torch.Event(device)
compiled = torch.compile(lambda t: (t * 3).relu().sum())
assert compiled(x).item() == 3000
replayed = torch.compile(lambda t: t * 3 + 1, mode="reduce-overhead")
def replays():
    for _ in range(4):
        assert replayed(torch.ones(1000, device=device)).sum().item() == 4000
replays()
with stream:
    (x + 1).sum()
    event.record()
graph = module.Graph()
with module.graph(graph):
    y = x + 1
torch.accelerator.synchronize()
fail("stream_wait", 1, 6)
try:
    x.sum().item()
except torch.AcceleratorError as error:
    assert "reset()" in str(error) and "checkpoint" in str(error), error
state = module.get_rng_state()
assert module.reset() is None
for use in (lambda: x.cpu(), lambda: x + 1, lambda: x.add_(1), lambda: compiled(x), lambda: event.synchronize(),
            lambda: graph.replay()):
    lost(use)
works()
assert compiled(torch.ones(1000, device=device)).item() == 3000  # its programs are loaded again
replays()
assert torch.equal(state, module.get_rng_state())
module.manual_seed(7)
assert torch.equal(torch.rand(4, device=device).cpu(), first)
with stream:
    event.record()  # as new
    works()
event.synchronize()
del x, y, graph
works()
module.empty_cache()
fail("device_reset", 1, 7)
try:
    module.reset(0)
except RuntimeError as error:
    assert "resetting the device failed: injected" in str(error), error
module.reset(0)
works()
violations = ctypes.CDLL(drivers.strict()).outboard_strict_violations
violations.restype = ctypes.c_uint64
assert violations() == 0
print("ended")
""",
        **FAILING,
    )
    assert "ended" in out


def test_others_do_not_notice_a_reset(run_python: RunPython) -> None:
    """Another device, another process; a thread that works on the device hears that it is lost, or nothing."""
    out = run_python(
        PRELUDE
        + """
other = torch.ones(1000, device=f"{device}:1")
program = f"import torch\\nx = torch.ones(9, device='{device}')\\nfor _ in range(200): x = x + 1"
program += "\\nassert x.sum().item() == 1809"
process = subprocess.Popen([sys.executable, "-c", program])
wrong, ended = [], threading.Event()
def work():
    while not ended.is_set():
        try:
            works()
        except torch.AcceleratorError as error:
            if "reset" not in str(error):
                wrong.append(error)
        except BaseException as error:
            wrong.append(error)
thread = threading.Thread(target=work)
thread.start()
for _ in range(20):
    module.reset(0)
ended.set()
thread.join()
assert not wrong, wrong
assert (other + 1).sum().item() == 2000
works()
assert process.wait() == 0
print("ended")
""",
        OUTBOARD_NUM_DEVICES="2",
        **FAILING,
    )
    assert "ended" in out


def test_a_device_that_hangs_is_reset(run_python: RunPython) -> None:
    out = run_python(
        PRELUDE
        + """
a = torch.randn(8, 8)
x = a.to(device)
torch.testing.assert_close((x @ x).cpu(), a @ a, rtol=1e-4, atol=1e-4)
hang = ctypes.CDLL(drivers.sim()).outboard_sim_hang
hang(1)
y = x @ x
waits = threading.Thread(target=lambda: lost(lambda: y.cpu()))
waits.start()
waits.join(0.2)
assert waits.is_alive()
module.reset()
waits.join(20)
assert not waits.is_alive()
hang(0)
lost(lambda: y.cpu())
x = a.to(device)
torch.testing.assert_close((x @ x).cpu(), a @ a, rtol=1e-4, atol=1e-4)
print("ended")
""",
        OUTBOARD_DRIVER=sim(),
        OUTBOARD_SIM_COMPILER="1",
    )
    assert "ended" in out


#: Kernels, executables, and executables with layouts. (Where all runs on the CPU, contents wait on the host, unharmed.)
TIERS = {
    "kernels": FAILING,
    "graphs": {"OUTBOARD_DRIVER": sim(), "OUTBOARD_SIM_COMPILER": "1"},
    "tiles": {"OUTBOARD_DRIVER": sim(), "OUTBOARD_SIM_COMPILER": "1", "OUTBOARD_SIM_TILE": "32"},
}


@pytest.mark.parametrize("tier", TIERS)
def test_what_is_written_whole_is_good_again(run_python: RunPython, tier: str) -> None:
    out = run_python(
        PRELUDE
        + """
given = torch.arange(64.).reshape(8, 8)
def now():
    return given.to(device) + 0
def made():
    return (torch.ones(8, 8).to(device) @ torch.ones(8, 8).to(device)) + 1
writes = {
    "copy_ from the host": (lambda x: x.copy_(given), given),
    "copy_": (lambda x: x.copy_(now()), given),
    "copy_ of another dtype": (lambda x: x.copy_(given.to(torch.int32).to(device)), given),
    "_foreach_copy_": (lambda x: torch._foreach_copy_([x], [now()]), given),
    "fill_": (lambda x: x.fill_(3), torch.full((8, 8), 3.)),
    "zero_": (lambda x: x.zero_(), torch.zeros(8, 8)),
    "a view of all": (lambda x: x.view(-1).fill_(2), torch.full((8, 8), 2.)),
    "add(out=)": (lambda x: torch.add(now(), 1, out=x), given + 1),
    "mm(out=)": (lambda x: torch.mm(now(), now(), out=x), given @ given),
    "arange(out=)": (lambda x: torch.arange(64., out=x.view(-1)), given),
    "set anew": (lambda x: (x.untyped_storage().resize_(0), x.untyped_storage().resize_(256), x.copy_(given)), given),
    "normal_": (lambda x: x.normal_(5, 0), torch.full((8, 8), 5.)),
    "uniform_": (lambda x: x.uniform_(4, 4), torch.full((8, 8), 4.)),
}
lost_still = {
    "a part": lambda x: x[0].copy_(given[0]),
    "a column": lambda x: x[:, 3].fill_(1),
    "in place": lambda x: x.add_(1),
    "read and written": lambda x: torch.add(x, 1, out=x),
    "onto itself": lambda x: x.copy_(x.t()),
    "refused": lambda x: torch.add(now(), now().long() > 0, out=x.view(torch.int32)),
}
each = {name: made() for name in [*writes, *lost_still]}
views = {name: x[2:] for name, x in each.items()}
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8)).to(device)
checkpoint = {name: value.cpu() for name, value in model.state_dict().items()}
wanted = model(given.to(device)).detach().cpu()
torch.accelerator.synchronize()
module.reset()
for name, (write, expected) in writes.items():
    write(each[name])
    torch.testing.assert_close((each[name] + 0).cpu(), expected, msg=lambda text: name + text)
    torch.testing.assert_close((views[name] + 0).cpu(), expected[2:], msg=lambda text: name + text)
for name, write in lost_still.items():
    try:
        write(each[name])
    except RuntimeError as error:
        assert name in ("onto itself", "refused") or "was reset" in str(error), (name, error)
    else:
        raise SystemExit(name + " made a lost tensor good")
    lost(lambda: each[name] + 1)
model.load_state_dict(checkpoint)
torch.testing.assert_close(model(given.to(device)).detach().cpu(), wanted)
print("ended")
""",
        **TIERS[tier],
    )
    assert "ended" in out


def test_resets_leave_no_threads(run_python: RunPython) -> None:
    run_python(
        PRELUDE
        + """
stream = torch.Stream(device)
def cycle():
    works()
    with stream:
        works()
    module.reset()
for _ in range(5):
    cycle()
threads = len(os.listdir("/proc/self/task"))
for _ in range(50):
    cycle()
assert len(os.listdir("/proc/self/task")) <= threads
""",
        OUTBOARD_DRIVER=sim(),
    )


def test_a_driver_that_cannot_says_so(device_module: ModuleType) -> None:
    with pytest.raises(NotImplementedError, match="cannot reset its devices"):
        device_module.reset()
    with pytest.raises(RuntimeError, match="nvalid device index"):
        device_module.reset(99)


def test_resets_leave_little_memory_behind(run_python: RunPython) -> None:
    """Of each stream in use its queue, and no tables of tensors, which have 2 MiB of addresses."""
    out = run_python(
        PRELUDE
        + """
class Mallinfo(ctypes.Structure):
    names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in names.split()]
libc = ctypes.CDLL(None)
libc.mallinfo2.restype = Mallinfo
def used():
    found = libc.mallinfo2()
    with open("/proc/self/statm") as pages:
        return found.uordblks + found.hblkhd, int(pages.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
def use(times):
    for _ in range(times):
        torch.ones(1000, device=device).cpu()
        module.reset()
    return used()
before = use(5)
print(max(end - begin for begin, end in zip(before, use(20))) // 20)
""",
        OUTBOARD_DRIVER=sim(),
    )
    assert int(out) < 256 << 10, out
