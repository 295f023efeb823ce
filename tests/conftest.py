# SPDX-License-Identifier: Apache-2.0
"""Shared by all Python tests. They run on whatever device the process has, under any profile.

``OUTBOARD_TEST_TARGET`` has the compiler treat the device as another one, whose kernels can so be tested here: ``gpu``
(any device whose work-groups are large enough), or ``narrow``, a CPU of 16-byte vectors and little local memory.
"""

from __future__ import annotations

import ctypes
import datetime
import gc
import logging
import os
import textwrap
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import TypeVar

# What kernels of ours compute is to be tested; test_library_functions has tests of what else could. PyTorch loads the
# device, which looks for that library.
os.environ.setdefault("OUTBOARD_HOST_ONEDNN", "0")
# What programs print is compared whole, however slow the machine.
os.environ.setdefault("OUTBOARD_PROGRESS", "0")
# Programs that tests start in another folder find the same packages.
if search_path := os.environ.get("PYTHONPATH"):
    os.environ["PYTHONPATH"] = os.pathsep.join(os.path.abspath(folder) for folder in search_path.split(os.pathsep))

import pytest  # noqa: E402
import torch  # noqa: E402
from processes import run_program  # noqa: E402

#: Whether ``make test-full`` runs: more sizes, other random programs each day, and the tests that are marked ``full``.
FULL = os.environ.get("OUTBOARD_TEST_FULL") == "1"

Item = TypeVar("Item")


def of_today(items: Sequence[Item], share: int) -> list[Item]:
    """Every ``share``-th of what is tried, beginning with another one each day; all in ``make test-full``."""
    return list(items if FULL else items[datetime.date.today().toordinal() % share :: share])


#: Runs Python source in its own process with extra environment variables; returns what it printed.
RunPython = Callable[..., str]

#: Copies a CPU tensor to the device in such a way that its contents wait on the host until they are needed.
WaitOnHost = Callable[[torch.Tensor], torch.Tensor]


def _environment() -> dict[str, str]:
    """What programs that tests start get, but for what pytest and PyTorch's modules set."""
    others = ("PYTEST_", "PYTORCH_", "TORCHINDUCTOR_")
    return {name: value for name, value in os.environ.items() if not name.startswith(others)}


_ENVIRONMENT = _environment()

# pytest listens to each logger that does not pass on what it gets, and this one's records are made only for who
# listens: a twentieth of the time of a test that compiles.
logging.getLogger("torch.__trace").addHandler = lambda handler: None  # type: ignore[method-assign]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips what is marked ``full``, with its reason, unless everything is run. Raises UsageError if importing a test
    changed the environment, of which all others would start their programs."""
    if changed := sorted(dict(_environment().items() ^ _ENVIRONMENT.items())):
        raise pytest.UsageError(f"importing the tests changed the environment: {', '.join(changed)}")
    for item in items:
        marker = item.get_closest_marker("full")
        if marker is not None and not FULL:
            item.add_marker(pytest.mark.skip(reason=f"{marker.args[0]}: make test-full"))


def pytest_collection_finish() -> None:
    """Spares the garbage collector what lives as long as the process: PyTorch, and the tests themselves."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    name = os.environ.get("OUTBOARD_TEST_TARGET", "")
    if not name:
        yield
        return
    from outboard import settings
    from outboard.compiler.target import pretend

    patch = pytest.MonkeyPatch()
    # Plans are kept by the device that is there, and these are for another one.
    patch.setattr(settings, "_cache_directory", tmp_path_factory.mktemp("plans"))
    pretend(name)
    yield
    patch.undo()


@pytest.fixture(scope="session")
def device() -> str:
    """Name of the device."""
    name = torch._C._get_privateuse1_backend_name()
    if not torch.get_device_module(name).is_available():
        pytest.fail("there is no device to test; run `outboard doctor`")
    return name


@pytest.fixture(scope="session")
def device_module(device: str) -> ModuleType:
    """``torch.<device>``."""
    return torch.get_device_module(device)


@pytest.fixture(scope="session")
def _violations() -> Callable[[], int]:
    """How often the runtime broke the contract of driver.h so far: only the strict driver knows."""
    if os.environ.get("OUTBOARD_DRIVER") != "strict":
        return lambda: 0
    from outboard import drivers

    count = ctypes.CDLL(drivers.strict()).outboard_strict_violations
    count.restype = ctypes.c_uint64
    return count


@pytest.fixture(autouse=True)
def _contract_is_kept(_violations: Callable[[], int]) -> Iterator[None]:
    before = _violations()
    yield
    assert _violations() == before, "the runtime broke the contract of driver.h: see the output above"


@pytest.fixture(autouse=True)
def _no_mode_is_left() -> Iterator[None]:
    """A default device that a test forgets would be a mode around every call of the tests after it."""
    yield
    assert torch._C._len_torch_function_stack() == 0, "the test left a default device, or another mode"


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture
def wait_on_host(device: str) -> WaitOnHost:
    """What happens to contents for which there is no room, on devices where others would be there at once."""
    from outboard import _C

    def send(tensor: torch.Tensor) -> torch.Tensor:
        limit = _C.memory_limit(0)
        _C.set_memory_limit(0, 1)
        try:
            sent = tensor.to(device)
        finally:
            _C.set_memory_limit(0, limit)
        assert _C.memory_state(sent) == "host"
        return sent

    return send


@pytest.fixture
def run_python() -> RunPython:
    """Function ``run(source, check=True, timeout=300, cold=False, **environment)``: see :mod:`processes`."""

    def run(source: str, check: bool = True, timeout: float = 300, cold: bool = False, **environment: str) -> str:
        program = ["-c", textwrap.dedent(source)]
        result = run_program(program, environment=environment, timeout=timeout, cold=cold)
        if check and result.returncode != 0:
            pytest.fail(f"exit code {result.returncode}\n{result.stdout}\n{result.stderr}")
        return result.stdout if check else result.stdout + result.stderr

    return run
