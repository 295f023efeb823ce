# SPDX-License-Identifier: Apache-2.0
"""The shortest driver, ``csrc/drivers/null``: what its first lines tell a reader to run works, and more than that."""

import re
import subprocess
from pathlib import Path

import pytest
from processes import run_program

REPOSITORY = Path(__file__).parents[2]
DRIVER = REPOSITORY / "csrc/drivers/null/driver.c"

TRAINING = """
import torch, warnings

warnings.simplefilter("ignore")
torch.manual_seed(0)
cpu = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.GELU(), torch.nn.Linear(4, 2))
model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.GELU(), torch.nn.Linear(4, 2))
model.load_state_dict(cpu.state_dict())
model.to("ocl")
x = torch.randn(5, 3)
for each, batch in ((cpu, x), (model, x.to("ocl"))):
    optimizer = torch.optim.AdamW(each.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        each(batch).square().mean().backward()
        optimizer.step()
torch.testing.assert_close(model(x.to("ocl")).cpu(), cpu(x))
torch.testing.assert_close(torch.compile(model)(x.to("ocl")).cpu(), cpu(x))
counts = torch.ocl.fallbacks()
assert counts["aten::addmm"] and counts["aten::gelu"], counts
with torch.ocl.stream(torch.ocl.Stream()):
    start, end = (torch.ocl.Event(enable_timing=True) for _ in range(2))
    start.record()
    y = x.to("ocl")
    end.record()
torch.ocl.synchronize()
assert start.elapsed_time(end) >= 0 and torch.equal(y.cpu(), x)
print(torch.ocl.get_device_name())
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The driver, built by the command in its first lines, with every warning an error."""
    command = re.search(r"^ \*   cc (.*) -o libnull.so$", DRIVER.read_text(), re.MULTILINE)
    assert command is not None
    built = tmp_path_factory.mktemp("driver") / "libnull.so"
    options = ["-Wall", "-Wpedantic", "-Werror", "-o", str(built)]
    subprocess.run(["cc", *command.group(1).split(), *options], cwd=REPOSITORY, check=True)
    return built


def test_the_lines_at_its_top(library: Path) -> None:
    program = re.search(r'python -c "(.*)"$', DRIVER.read_text(), re.MULTILINE)
    assert program is not None
    assert run(library, program.group(1)).strip() == "tensor([1, 2, 3], device='ocl:0')"


def test_a_model_trains_on_it_by_counted_fallbacks(library: Path) -> None:
    assert run(library, TRAINING).strip() == "null"


def test_it_conforms(library: Path) -> None:
    result = run_program(["-m", "outboard_conformance", "--driver", str(library), "--level", "memory"], timeout=300)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "kept  memory    copies_may_overlap" in result.stdout


def run(library: Path, source: str) -> str:
    """What a program prints whose only device is the driver's."""
    environment = {"OUTBOARD_DRIVER": str(library)}
    result = run_program(["-c", source], environment=environment, timeout=300)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout
