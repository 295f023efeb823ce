# SPDX-License-Identifier: Apache-2.0
"""A library that is imported first, and imports PyTorch itself, finds the device as it does elsewhere; and so does any
module of our own.

With OUTBOARD_TEST_FULL=1 each module is imported alone, else some of them, other ones each day.
"""

from __future__ import annotations

import os
import pkgutil
from pathlib import Path

import pytest

import outboard
from tests.conftest import RunPython, of_today

ACCELERATE = """
    from accelerate import Accelerator
    chosen = Accelerator(mixed_precision="fp16")
    assert chosen.scaler._device == chosen.device.type
"""
TRANSFORMERS = """
    from transformers import Trainer, TrainingArguments
    chosen = TrainingArguments("/nowhere", bf16=True)
    assert hasattr(Trainer._save_rng_state, "__wrapped__")
"""
LIGHTNING = """
    from lightning import Fabric
    chosen = Fabric()
"""


@pytest.mark.parametrize(
    ("library", "source"), [("accelerate", ACCELERATE), ("transformers", TRANSFORMERS), ("lightning", LIGHTNING)]
)
def test_a_library_imported_first(run_python: RunPython, device: str, library: str, source: str) -> None:
    pytest.importorskip(library, reason="the extra `test` installs it")
    if os.environ.get("OUTBOARD_TEST_ECOSYSTEM") == "1" and library != "accelerate":
        pytest.skip("imports torchvision, and PyPI's needs torchvision_wheel, which imports PyTorch")
    program = f"""
    import warnings
    warnings.filterwarnings("error", "Outboard", RuntimeWarning)
{source}
    import outboard.activation
    print(chosen.device.type, outboard.activation.problems())
    """
    assert run_python(program, cold=True).split()[-2:] == [device, "[]"]


@pytest.mark.parametrize("fails", [False, True])
def test_an_adapter_comes_when_the_import_has_ended(run_python: RunPython, tmp_path: Path, fails: bool) -> None:
    """Not before, though its module is there; and not at all if the import fails."""
    ending = "raise ImportError('half-way')" if fails else "complete = True"
    (tmp_path / "hasty.py").write_text(f"import wait_for_hasty\n{ending}\n")
    (tmp_path / "wait_for_hasty.py").write_text(
        "import sys\n"
        "from outboard.compiler.on_import import call_after\n"
        "call_after('hasty', lambda: print('called', sys.modules['hasty'].complete))\n"
    )
    program = f"""
    import sys
    sys.path.insert(0, {str(tmp_path)!r})
    try:
        import hasty
    except ImportError as error:
        print(error)
    else:
        print(type(hasty.__spec__).__name__)
    """
    assert run_python(program).split() == (["half-way"] if fails else ["called", "True", "ModuleSpec"])


def modules_of_the_day() -> list[str]:
    """What a program could import of the package: all of it, or every sixtieth."""
    found = sorted(each.name for each in pkgutil.walk_packages(outboard.__path__, "outboard."))
    found = [name for name in found if not name.endswith(".__main__") and not name.startswith("outboard.drivers.lib")]
    return of_today(found, 60)


def test_any_module_can_be_the_first_to_import_the_compiler(run_python: RunPython) -> None:
    """PyTorch's compiler has the device by then, however deep in our own imports its import stood."""
    program = f"""
    import importlib, os
    import torch, outboard
    for name in {[*modules_of_the_day(), "outboard.compiler.adapter.symbols"]}:
        if (child := os.fork()) == 0:
            importlib.import_module(name)
            from torch._dynamo.device_interface import get_interface_for_device
            get_interface_for_device(torch._C._get_privateuse1_backend_name())
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0, name
    """
    run_python(program, cold=True)
