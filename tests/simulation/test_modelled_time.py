# SPDX-License-Identifier: Apache-2.0
"""The simulator with a clock: results are computed, and events, profiler and reports show a chip's time."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from processes import run_program

from outboard import Chip

CHIP = """\
name = "a toy"  # as get_device_name says
bandwidth = 1e11
memory = 8e9
host_bandwidth = 1e10
latency = 1e-6
devices = 2
operators = [
    "aten::addmm", "aten::mm", "aten::relu", "aten::t", "aten::permute",
]
[flops]
float32 = 1e12
[efficiency]
"aten::addmm" = 0.002
"""

PROGRAM = """
import torch
from pathlib import Path
from torch import nn
import outboard
from torch._C._autograd import DeviceType

name = torch._C._get_privateuse1_backend_name()
device = torch.get_device_module(name)
chip = outboard.Chip.load({chip!r})
assert device.get_device_name() == "a toy" and device.mem_get_info()[1] == 8_000_000_000
torch.manual_seed(0)
torch.set_grad_enabled(False)
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 16))
x = torch.randn(32, 64)
expected = model(x)
predicted = outboard.simulate(model, [x], chip=chip)
model.to(name)
there = x.to(name)
compiled = torch.compile(model)
compiled(there)

# The compiler counts as outboard.simulate does.
times = []
for _ in range(2):
    device.sim.forget()
    begin, end = (torch.Event(name, enable_timing=True) for _ in range(2))
    begin.record()
    y = compiled(there)
    end.record()
    torch.testing.assert_close(y.cpu(), expected)
    report = device.sim.report()
    steps = [one for one in report.steps if one.step.engine == "compute"]
    assert [one.step.flops for one in steps] == [one.step.flops for one in predicted.steps]
    assert [one.step.moved for one in steps] == [one.step.moved for one in predicted.steps], (steps, predicted.steps)
    assert abs(report.busy() - predicted.seconds) < 2e-9 * len(steps)  # whole nanoseconds
    assert abs(begin.elapsed_time(end) / 1e3 - predicted.seconds) < 2e-9 * len(steps)
    assert abs(report.busy("download") - y.nbytes / 1e10) < 2e-9
    times.append(report.seconds)
assert times[0] == times[1]
report.save({page!r})
page = Path({page!r}).read_text()
assert "download" in page and "addmm + relu" in page

# So does the profiler.
with torch.profiler.profile() as profile:
    compiled(there)
    device.synchronize()
kernels = [one for one in profile.events() if one.device_type == DeviceType.PrivateUse1]
assert abs(sum(one.time_range.elapsed_us() for one in kernels) / 1e6 - predicted.seconds) < 1e-8

# Copies have engines of their own, and a stream that waits for an event has its time.
device.sim.forget()
large = torch.randn(1 << 20).pin_memory()
other = torch.Stream(name)
with other:
    moved = large.to(name, non_blocking=True)
y = compiled(there)
device.synchronize()
report = device.sim.report()
upload, *computed = report.steps
assert upload.step.engine == "upload" and computed[0].begin < upload.end, report
torch.accelerator.current_stream().wait_stream(other)
torch.relu(moved)
device.synchronize()
after = device.sim.report().steps[-1]
assert after.step.name == "relu" and after.begin >= upload.end

# Devices have engines of their own.
device.sim.forget()
with torch.get_device_module().device(1):
    torch.relu(x.to(name))
assert device.sim.report(0).steps == ()
assert [one.step.name for one in device.sim.report(1).steps] == ["upload", "relu"]

# What the chip lacks is the host's.
torch.testing.assert_close(torch.sin(there).cpu(), torch.sin(x))
assert "no such operator on a toy" in device.fallbacks(reasons=True)["aten::sin"][1][0], device.fallbacks(reasons=True)
"""

SIMULATOR = {"OUTBOARD_DRIVER": "sim"}


def run(code: str, **environment: str) -> str:
    result = run_program(["-c", code], environment=SIMULATOR | environment, timeout=120)
    assert result.returncode == 0, f"{result.stdout}\n{result.stderr}"
    return result.stdout + result.stderr


def test_events_profiler_and_reports_show_the_time_of_the_chip(tmp_path: Path) -> None:
    chip = tmp_path / "chip.toml"
    chip.write_text(CHIP)
    program = PROGRAM.format(chip=str(chip), page=str(tmp_path / "page.html"))
    run(program, OUTBOARD_SIM_CHIP=str(chip), OUTBOARD_CACHE_DIR=str(tmp_path / "cache"))


#: A product and its relayouts: weights and inputs once, and what the host reads.
TILED = """
import torch, outboard
name = torch._C._get_privateuse1_backend_name()
device = torch.get_device_module(name)
torch.set_grad_enabled(False)
model, x = torch.nn.Linear(64, 16).to(name), torch.randn(33, 64).to(name)
compiled = torch.compile(model)
compiled(x)
for names in (["addmm"], ["addmm", "from tiles 32x32"]):
    device.sim.forget()
    y = compiled(x)
    if len(names) == 2:
        y = y.cpu()
    steps = [one.step for one in device.sim.report().steps if one.step.engine == "compute"]
    assert [step.name for step in steps] == names, steps
assert steps[1].read == 2 * 32 * 32 * 4 and steps[1].written == 33 * 16 * 4, steps
assert outboard.layout_of(model.weight) == outboard.layout_of(x) == "tiles 32x32"
"""


def test_relayouts_take_time(tmp_path: Path) -> None:
    chip = tmp_path / "chip.toml"
    chip.write_text(f"tile = 32\n{CHIP}")
    run(TILED, OUTBOARD_SIM_CHIP=str(chip), OUTBOARD_CACHE_DIR=str(tmp_path))


def test_without_a_chip_there_is_no_report() -> None:
    run(
        """
import torch
device = torch.get_device_module(torch._C._get_privateuse1_backend_name())
for call in (device.sim.report, device.sim.forget):
    try: call()
    except RuntimeError as error: assert "OUTBOARD_SIM_CHIP" in str(error)
    else: raise AssertionError
"""
    )


def test_other_devices_have_no_modelled_time(tmp_path: Path) -> None:
    (tmp_path / "chip.toml").write_text(CHIP)
    program = """
import torch
device = torch.get_device_module(torch._C._get_privateuse1_backend_name())
assert device.sim.report(2).steps == () == device.sim.report(1).steps
try: device.sim.report(0)
except RuntimeError as error: assert "is not the simulator's" in str(error)
else: raise AssertionError
"""
    run(program, OUTBOARD_DRIVER="host,sim", OUTBOARD_SIM_CHIP=str(tmp_path / "chip.toml"))


def test_a_file_that_is_no_chip_is_no_device(tmp_path: Path) -> None:
    (tmp_path / "chip.toml").write_text('name = "x"\n')
    for file in ("chip.toml", "missing.toml"):
        path = str(tmp_path / file)
        found = run(
            """
import torch
assert not torch.accelerator.is_available()
try: torch.empty(3, device=torch._C._get_privateuse1_backend_name())
except RuntimeError as error: print(error)
""",
            OUTBOARD_SIM_CHIP=path,
        )
        assert path in found, found


def test_faults_of_the_page_of_the_simulator(tmp_path: Path) -> None:
    """Its blocks, run: results are checked, what hangs is named, and no such executable is met without the file."""
    page = (Path(__file__).parents[2] / "docs/simulate.md").read_text().partition("## Faults")[2].partition("\n## ")[0]
    blocks = re.findall(r"^```(\w+)\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL)
    (_, faults), (_, program), (_, printed), (_, hanging), (_, then) = blocks
    chip = tmp_path / "chip.toml"
    chip.write_text('name = "a toy"\nbandwidth = 1e11\n[flops]\nfloat32 = 1e12\n' + faults)
    settings = {"OUTBOARD_SIM_CHIP": str(chip), "OUTBOARD_CACHE_DIR": str(tmp_path / "cache")}
    checked = run_program(["-c", program], environment=SIMULATOR | settings | {"OUTBOARD_CHECK_EXECUTABLES": "1"})
    assert checked.stdout == printed, checked.stderr
    begin = program.partition("torch.testing")[0]
    settings["OUTBOARD_WATCHDOG"] = "0.4"
    hung = run_program(["-c", begin + hanging], environment=SIMULATOR | settings)
    assert hung.stdout == then, hung.stderr
    assert "the function 'relu' has been running" in hung.stderr
    wrong = "print((F.softmax(there, -1).cpu() - F.softmax(x, -1)).min() > 0.9)"
    assert "True" in run(begin + wrong, **settings)
    chip.write_text(chip.read_text().partition("[faults]")[0])
    assert "False" in run(begin + wrong, **settings)
    with pytest.raises(ValueError, match="faults are error, hang, wrong, not slow"):
        chip.write_text(chip.read_text() + '[faults]\n"aten::mm" = "slow"\n')
        Chip.load(chip)


#: Calls and graphs of several sizes; prints what each took of the chip's time, and its steps.
SIZES = """
import torch
from torch import nn
name = torch._C._get_privateuse1_backend_name()
device = torch.get_device_module(name)
torch.manual_seed(0)
net = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
layer, table = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.0), nn.Embedding(7, 16)
net, layer, table = (each.to(name) for each in (net, layer, table))
calls = [
    (lambda x: torch.relu(x @ x.T), lambda n: torch.randn(n, 6)),
    (lambda x: (x + x[:, :1]).relu().softmax(0), lambda n: torch.randn(n, 5)),
    (lambda x: layer(table(x)), lambda n: torch.randint(7, (n, 3))),
    (net, lambda n: torch.randn(n, 3, 8, 8)),
]
for place, (function, draw) in list(enumerate(calls))[{part}]:
    for run in (function, torch.compile(function)):
        for n in (5, 6, 11):
            x = draw(n).to(name)
            torch._dynamo.maybe_mark_dynamic(x, 0)
            device.synchronize(), device.sim.forget()
            result = run(x)
            if run is not function and result.requires_grad:
                result.sum().backward()
            device.synchronize()
            report = device.sim.report()
            steps = [each.step for each in report.steps if each.step.engine == "compute"]
            print(place, run is function, n, report.busy(), [(e.name, e.flops, e.read, e.written) for e in steps])
assert device.fallbacks() == {}, device.fallbacks(reasons=True)
"""


@pytest.mark.parametrize("part", [":2", pytest.param("2:", marks=pytest.mark.full("models, by the same rules"))])
def test_executables_for_all_sizes_take_the_time_of_those_for_one(tmp_path: Path, part: str) -> None:
    told, code = [], SIZES.replace("{part}", part)
    for symbolic in ("true", "false"):
        chip = tmp_path / f"{symbolic}.toml"
        flops = "[flops]\nfloat32 = 1e9\n"
        chip.write_text(f'name = "sizes"\nbandwidth = 1e9\nlatency = 1e-6\nsymbolic = {symbolic}\n{flops}')
        environment = {"OUTBOARD_DRIVER": "sim", "OUTBOARD_SIM_CHIP": str(chip)}
        result = run_program(["-c", code], environment=environment | {"OUTBOARD_CACHE_DIR": str(tmp_path / symbolic)})
        assert result.returncode == 0, result.stderr
        told.append(result.stdout.splitlines())
    assert len(told[0]) == 12 and "(" in told[0][0]
    for of_all, of_one in zip(*told, strict=True):
        assert of_all == of_one
