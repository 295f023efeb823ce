# SPDX-License-Identifier: Apache-2.0
"""What the sensors of devices say, under the names of torch.cuda."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from outboard import _C
from tests.conftest import RunPython

#: A chip for the simulator.
CHIP = """
name = "a toy"
bandwidth = 1e11
memory = 8e9
host_bandwidth = 1e10
[flops]
float32 = 1e12
"""

#: torch.cuda's names and the driver's.
NAMES = {
    "utilization": "compute_busy",
    "memory_usage": "memory_busy",
    "temperature": "temperature",
    "power_draw": "power",
    "clock_rate": "clock",
}


@pytest.mark.parametrize("name", NAMES)
def test_a_sensor_is_read_or_said_to_be_absent(device_module: ModuleType, name: str) -> None:
    read = getattr(device_module, name)
    if _C.sensors(0)[NAMES[name]] is None:
        with pytest.raises(NotImplementedError, match="has no sensor that tells"):
            read()
    else:
        assert isinstance(read(), int) and isinstance(read(0), int)
    with pytest.raises(ValueError, match="cpu"):
        read("cpu")


def test_the_memory_of_all_processes_is_told(device_module: ModuleType) -> None:
    assert 0 < device_module.device_memory_used() <= 1 << 50
    assert isinstance(device_module.device_memory_used(0), int)


def test_a_busy_processor_is_busy(device: str, run_python: RunPython) -> None:
    """The processor's driver tells the load since it was last asked."""
    out = run_python(
        """
import torch
device = torch._C._get_privateuse1_backend_name()
module = torch.get_device_module(device)
x = torch.randn(512, 512, device=device)
module.utilization()
for _ in range(60):
    x = torch.softmax(x @ x, 1)
x.sum().item()
assert 0 < module.utilization() <= 100
print("ended")
""",
        OUTBOARD_DRIVER="host",
    )
    assert "ended" in out


def test_the_simulator_tells_what_it_models(run_python: RunPython, tmp_path: Path) -> None:
    (tmp_path / "chip.toml").write_text(CHIP)
    out = run_python(
        """
import torch
device = torch._C._get_privateuse1_backend_name()
module = torch.get_device_module(device)
assert module.utilization() == 0
x = torch.ones(1 << 20, device=device)
for _ in range(8):
    x = torch.relu(x)
torch.accelerator.synchronize()
assert 0 < module.utilization() <= 100
assert module.device_memory_used() >= 4 << 20
try:
    module.power_draw()
except NotImplementedError as error:
    assert "'sim' has no sensor that tells the power" in str(error), error
print("ended")
""",
        OUTBOARD_DRIVER="sim",
        OUTBOARD_SIM_CHIP=str(tmp_path / "chip.toml"),
    )
    assert "ended" in out
