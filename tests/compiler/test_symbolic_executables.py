# SPDX-License-Identifier: Apache-2.0
"""A device whose executables are for all sizes: the simulator, of a chip that says so."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import test_buckets
import test_graph_compilers
from processes import run_program

CHIP = """\
name = "symbols"
bandwidth = 1e11
symbolic = true
[flops]
float32 = 1e12
"""


def run(code: str, folder: Path, **environment: str) -> str:
    """Runs code on the simulator with such a chip; returns what it printed."""
    chip = folder / "chip.toml"
    chip.write_text(CHIP)
    settings = {"OUTBOARD_SIM_CHIP": str(chip), "OUTBOARD_SIM_BUCKETS": "", "OUTBOARD_CHECK_EXECUTABLES": "1"}
    settings |= {"OUTBOARD_DRIVER": "sim", "OUTBOARD_CACHE_DIR": str(folder / "cache"), **environment}
    result = run_program(["-c", test_graph_compilers.PRELUDE + code], environment=settings)
    assert result.returncode == 0, f"{result.stdout}\n{result.stderr}"
    assert "contract of driver.h is broken" not in result.stderr
    return result.stdout


STRICT = {"OUTBOARD_DRIVER": "strict", "OUTBOARD_STRICT_DRIVER": "sim"}


@pytest.mark.parametrize("code", ["TRAINING", "LAYOUTS", "OPERATORS"])
def test_models_and_calls_are_the_cpus(tmp_path: Path, code: str) -> None:
    run(getattr(test_graph_compilers, code), tmp_path, **STRICT if code == "LAYOUTS" else {})


@pytest.mark.parametrize(
    "model",
    [
        pytest.param("perceptron", marks=pytest.mark.full("the language model has its layers, too")),
        pytest.param("convolutional", marks=pytest.mark.full("its operators are among LAYOUTS and OPERATORS")),
        "language_model",
    ],
)
def test_one_executable_serves_all_sizes_of_a_step_of_training(tmp_path: Path, model: str) -> None:
    code = f"chosen = {model!r}\n" + test_buckets.TRAINING
    made = ast.literal_eval(run(code, tmp_path))
    assert made[0] and len(set(made)) == 1, made
    assert not any(ast.literal_eval(run(code, tmp_path)))


def test_one_executable_serves_all_sizes_of_a_call(tmp_path: Path) -> None:
    for line in run(test_buckets.EAGER, tmp_path).splitlines():
        name, _, counts = line.partition(" [")
        made = ast.literal_eval(f"[{counts}")
        assert len(set(made)) == 1, (name, made)


#: A model as a file for batches of all sizes, run in Python and without.
EXPORTED = """
import os, outboard, pathlib, subprocess
from outboard import drivers
folder = pathlib.Path(os.environ["OUTBOARD_CACHE_DIR"])
model = convolutional().eval()
path, batch = folder / "model.obm", torch.export.Dim("batch", min=2)
there = [torch.randn(n, 3, 8, 8) for n in (2, 5, 9)]
expected = [model(x).detach() for x in there]
outboard.export(model.to(device), there[0].to(device), path=path, dynamic=({0: batch},))
loaded = outboard.load(path)
(given,), (result,) = ([argument.name for argument in each] for each in (loaded.inputs, loaded.outputs))
for x, wanted in zip(there, expected):
    found = loaded(x.to(device)).cpu()
    close(found, wanted)
    (folder / "given").write_bytes(x.numpy().tobytes())
    command = [pathlib.Path(outboard.cmake_prefix()) / "bin/outboard-run", path]
    command += [f"{given}={folder / 'given'}:{'x'.join(map(str, x.shape))}", "--out", folder]
    subprocess.run(command, env=os.environ | {"OUTBOARD_DRIVER": drivers.sim()}, check=True)
    assert (folder / f"{result}.bin").read_bytes() == found.numpy().tobytes()
assert ours.fallbacks() == {}
"""


def test_a_model_as_a_file_serves_all_sizes(tmp_path: Path) -> None:
    run(EXPORTED, tmp_path)


#: A compiler that asks for sizes, and one whose executable is wrong for all of them.
FAULTS = """
from importlib.metadata import EntryPoint
from outboard import compilers
from outboard.compilers import sim

class Asking(sim.SimCompiler):
    def compile(self, graph, operands, target):
        for node in graph.find_nodes(op="placeholder"):
            value = node.meta["val"]
            assert not isinstance(value, torch.Tensor) or value.shape[0] < 6 or value.shape[0] >= 6
        made = super().compile(graph, operands, target)
        return change(made) if b"multiply" in made.code else made

def change(made):
    checked = sim.Program()
    checked.lines = made.code.partition(b"\\n")[2].replace(b"multiply", b"add").decode().splitlines()
    return compilers.Executable(checked.code())

compilers._OWN = (EntryPoint("outboard-sim", "__main__:Asking", compilers.GROUP),)
function = torch.compile(lambda x: x.relu() + 1, dynamic=True)
for n in (4, 5, 7, 9):
    x = torch.randn(n, 3)
    close(function(x.to(device)), x.relu() + 1)
    close(x.to(device).exp(), x.exp())
assert ours.fallbacks() == {}, ours.fallbacks(reasons=True)
close(x.to(device) * 3, x * 3)
assert "computes wrongly: result 0 is up to" in reasons("aten::mul.Tensor")[1]
"""


def test_compilers_that_ask_for_sizes_or_lie(tmp_path: Path) -> None:
    run(FAULTS, tmp_path)
