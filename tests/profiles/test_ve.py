# SPDX-License-Identifier: Apache-2.0
"""The profile ``ve``: what SOL's documents promise, each program in a process of its own."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.conftest import RunPython
from tests.profiles.pages import code_of

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "packages" / "ve"

#: The authors' own text, from the feature request that docs/profile-ve.md names.
_PRINTED = """
import torch
from torchvision import models
model = models.resnet50()
input = torch.rand(1, 3, 224, 224)
# 1. loads SOL
# 2. loads the shared library that adds the memory allocator and function callbacks to PyTorch
# 3. adds the Python API to the torch module
import sol.pytorch
# Parses ```model``` and returns an optimized ```torch.nn.Module```.
sol_model = sol.optimize(model, input)
# Copies model to VE
sol_model.hip()
# Copies data to VE
input_ve = input.hip()
# Executes the model in eval mode
with torch.no_grad():
    sol_model.eval()
    output_ve = sol_model(input_ve)
"""


def _run(run_python: RunPython, source: str, *folders: Path, **variables: str) -> str:
    """Runs a program under the profile, with the package ``sol`` and ``folders`` importable."""
    prefix = f"import sys; sys.path[:0] = {[str(PACKAGE), *map(str, folders)]!r}\n"
    return run_python(prefix + textwrap.dedent(source), OUTBOARD_PROFILE="ve", **variables)


def _imports(module: str) -> bool:
    command = [sys.executable, "-c", f"import {module}"]
    return subprocess.run(command, capture_output=True, timeout=120).returncode == 0


@pytest.fixture
def torchvision(tmp_path: Path) -> Path:
    """A folder from which ``torchvision.models`` can be imported, where the real one cannot.

    Its wheels on PyPI are made for PyTorch with CUDA, and do not load with a build for the CPU. The stand-in is the
    same network from this repository's examples.
    """
    if not _imports("torchvision.models"):
        package = tmp_path / "torchvision"
        package.mkdir()
        (package / "__init__.py").touch()
        (package / "models.py").write_text("from examples.models.resnet import resnet50\n")
    return tmp_path


def test_the_text_as_its_authors_printed_it(run_python: RunPython, torchvision: Path) -> None:
    checks = """
    assert output_ve.device == torch.device("ve", 0) and not torch.ve.fallbacks(), torch.ve.fallbacks()
    with torch.no_grad():
        expected = model.cpu().eval()(input)
    torch.testing.assert_close(output_ve.cpu(), expected, rtol=1e-3, atol=1e-3)
    """
    _run(run_python, _PRINTED + textwrap.dedent(checks), torchvision, ROOT)


def test_each_name_is_there_as_hip_and_as_ve(run_python: RunPython) -> None:
    lines = (Path(__file__).parent / "api-ve.txt").read_text().splitlines()
    names = [line for line in lines if line and not line.startswith("#")]
    assert len(names) == 10
    _run(
        run_python,
        f"""
        import operator, torch, torch.hip
        for name in {names}:
            path = name.removeprefix("torch.")
            old, new = (operator.attrgetter(p)(torch) for p in (path, path.replace("hip", "ve")))
            assert callable(old) and old is new, name
        assert torch.hip is torch.ve
        """,
    )


def test_each_call_does_what_it_does_on_cuda(run_python: RunPython) -> None:
    _run(
        run_python,
        """
        import torch
        assert torch.hip.is_available() and torch.hip.device_count() == 2
        x = torch.ones(1000).hip()
        assert x.device == torch.device("ve:0") and x.is_hip and x.is_ve and not torch.ones(1).is_hip
        assert x.hip() is x and x.hip(1).device.index == 1 and x.hip("ve:1").device.index == 1
        torch.hip.set_device(1)
        assert torch.hip.current_device() == 1 and torch.ones(1).hip().device.index == 1
        with torch.hip.device(0):
            assert torch.hip.current_device() == 0
        with torch.hip.device_of(x):
            assert torch.hip.current_device() == 0
        assert torch.hip.current_device() == 1
        y = x + 1
        torch.hip.synchronize(); torch.hip.synchronize(0)
        assert torch.hip.memory_allocated(0) >= 8000
        layer = torch.nn.Linear(2, 2)
        weight = layer.weight
        assert layer.hip() is layer and layer.weight is weight and weight.device.type == "ve"
        """,
        OUTBOARD_NUM_DEVICES="2",
    )


def test_the_word_hip_for_a_device_says_what_to_write(run_python: RunPython) -> None:
    _run(
        run_python,
        """
        import torch
        on_device, layer = torch.ones(2).ve(), torch.nn.Linear(2, 2)
        for refused in (
            lambda: torch.ones(2).to("hip"),
            lambda: torch.ones(2).to("hip:0"),
            lambda: on_device.to("hip"),
            lambda: torch.ones(2, requires_grad=True).to(torch.device("hip", 0)),
            lambda: layer.to("hip"),
            lambda: torch.empty(2, device="hip"),
            lambda: torch.zeros(2, device="hip"),
            lambda: torch.tensor([1.0], device="hip"),
            lambda: torch.rand(2, 2, device="hip"),
            lambda: torch.arange(3, device="hip"),
        ):
            try:
                refused()
            except RuntimeError as error:
                assert "write .to('ve'), device='ve', or the method .hip()" in str(error), error
            else:
                raise AssertionError
        # Nothing else changes: autograd's threads, the CPU, the device itself.
        w = torch.ones(3, requires_grad=True)
        (w.ve() * 2).sum().backward()
        assert w.grad.tolist() == [2, 2, 2] and layer.ve().weight.device.type == "ve"
        """,
    )


def test_sol_has_the_names_of_its_documents(run_python: RunPython) -> None:
    _run(
        run_python,
        """
        import torch
        import sol.pytorch as sol_of_torch
        import sol, outboard
        assert sol.optimize is sol_of_torch.optimize is outboard.optimize
        assert sol.deploy is sol_of_torch.deploy is outboard.export
        model = torch.nn.Linear(3, 2)
        optimized = sol.optimize(model, torch.rand(1, 3))
        optimized.ve()
        assert isinstance(optimized, torch.nn.Module) and model.weight.device.type == "ve"
        for wrong, error in ((lambda: sol.optimize("not a module"), TypeError), (lambda: sol.nothing, AttributeError)):
            try:
                wrong()
            except error:
                pass
            else:
                raise AssertionError
        """,
    )


def test_deploy_writes_a_model_that_runs(run_python: RunPython, tmp_path: Path) -> None:
    _run(
        run_python,
        f"""
        import torch, sol.pytorch, outboard
        model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU()).hip().eval()
        x = torch.rand(2, 3)
        sol.deploy(model, x.hip(), path={str(tmp_path / "model.ob")!r})
        loaded = outboard.load({str(tmp_path / "model.ob")!r})
        torch.testing.assert_close(loaded(x.hip()).cpu(), model(x.hip()).cpu(), rtol=0, atol=0)
        """,
    )


def test_training_is_compiled_forward_and_backward(run_python: RunPython) -> None:
    _run(
        run_python,
        """
        import copy, torch, sol.pytorch
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
            torch.nn.Flatten(), torch.nn.Linear(72, 32), torch.nn.GELU(), torch.nn.LayerNorm(32),
            torch.nn.Linear(32, 5),
        )
        reference = copy.deepcopy(model)
        images, labels = torch.rand(16, 3, 8, 8), torch.randint(5, (16,))
        sol_model = sol.optimize(model, images)
        sol_model.hip()
        on_device, wanted = images.hip(), labels.hip()

        def calls():
            stats = torch.hip.compile_stats()
            return stats["hits"] + stats["misses"]

        optimizers = [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (sol_model, reference)]
        for step in range(5):
            for optimizer in optimizers:
                optimizer.zero_grad()
            before = calls()
            output = sol_model(on_device)
            forward = calls() - before
            loss = torch.nn.functional.cross_entropy(output, wanted)
            gradient = torch.autograd.grad(loss, output)[0]
            before = calls()
            output.backward(gradient) if step else torch.nn.functional.cross_entropy(output, wanted).backward()
            backward = calls() - before
            expected = torch.nn.functional.cross_entropy(reference(images), labels)
            expected.backward()
            for optimizer in optimizers:
                optimizer.step()
            torch.testing.assert_close(loss.cpu(), expected, rtol=1e-4, atol=1e-5)
            if step:
                assert forward == 0 and backward == 0, (forward, backward)
        sol_model.cpu()
        for ours, theirs in zip(sol_model.state_dict().values(), reference.state_dict().values(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)
        assert not torch.ve.fallbacks(), torch.ve.fallbacks()
        """,
    )


def test_the_page_runs(run_python: RunPython, tmp_path: Path) -> None:
    _run(run_python, f"import os; os.chdir({str(tmp_path)!r})\n" + code_of("profile-ve.md"), ROOT)
