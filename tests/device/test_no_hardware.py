# SPDX-License-Identifier: Apache-2.0
"""Without a driver's vendor library PyTorch still imports, and every use of the device says what to install."""

from __future__ import annotations

from tests.conftest import RunPython

_PREAMBLE = """
import torch
name = torch._C._get_privateuse1_backend_name()
module = getattr(torch, name)
"""


#: Neither OpenCL nor a compiler for the processor.
_NOTHING = {
    "OUTBOARD_DRIVER": "",
    "OUTBOARD_OPENCL_LIBRARY": "/nonexistent",
    "OUTBOARD_HOST_COMPILER": "/nonexistent",
}


def test_import_and_queries(run_python: RunPython) -> None:
    run_python(
        _PREAMBLE
        + """
assert not module.is_available() and module.device_count() == 0
assert not torch.accelerator.is_available() and torch.accelerator.device_count() == 0
assert module.memory_allocated() == 0 and module.memory_stats() == {} and module.default_generators == ()
module.empty_cache()
torch.manual_seed(1)
module.manual_seed_all(1)
assert torch.ones(3).sum() == 3 and not torch.ones(3).is_pinned()
assert torch.device(name, 1).type == name
torch.save(torch.ones(2), "/dev/null")
""",
        cold=True,
        **_NOTHING,
    )


def test_use_says_what_to_install(run_python: RunPython) -> None:
    out = run_python(
        _PREAMBLE
        + """
uses = [
    lambda: torch.ones(3, device=name),
    lambda: torch.ones(3).to(name),
    lambda: getattr(torch.ones(3), name)(),
    lambda: getattr(torch.nn.Linear(2, 2), name)(),
    lambda: torch.randn(2, device=torch.device(name, 0)),
    lambda: module.current_device(),
    lambda: module.synchronize(),
    lambda: module.set_device(0),
    lambda: module.init(),
    lambda: torch.Stream(name),
    lambda: torch.accelerator.synchronize(),
    lambda: torch.empty(3).pin_memory(),
]
for use in uses:
    try:
        use()
    except RuntimeError as error:
        assert "install" in str(error) and "outboard doctor" in str(error), error
    else:
        raise AssertionError("no error")
print("all refused")
""",
        cold=True,
        **_NOTHING,
    )
    assert "all refused" in out


def test_a_missing_driver_is_a_problem_not_an_error(run_python: RunPython) -> None:
    out = run_python(
        _PREAMBLE + "from outboard import activation; print(activation.problems(), module.device_count())",
        cold=True,
        OUTBOARD_DRIVER="no-such-driver",
    )
    assert "no-such-driver" in out and out.rstrip().endswith(" 0")


def test_an_unwritable_cache_directory_warns_once(run_python: RunPython) -> None:
    out = run_python(
        _PREAMBLE + "print(torch.zeros(3, device=name).cpu().sum().item())",
        check=False,
        cold=True,
        OUTBOARD_CACHE_DIR="/proc/none",
    )
    assert out.count("RuntimeWarning") == 1 and "0.0" in out


def test_an_unknown_profile_does_not_break_torch(run_python: RunPython) -> None:
    out = run_python(
        "import torch; print(torch.ones(2).sum().item())", check=False, cold=True, OUTBOARD_PROFILE="no-such"
    )
    assert "2.0" in out and "no-such" in out
