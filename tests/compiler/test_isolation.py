# SPDX-License-Identifier: Apache-2.0
"""Compilers run without pauses of the garbage collector, and without giving their stack back at every call."""

from __future__ import annotations

import gc
import os
import resource
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch._inductor.graph import GraphLowering

from outboard.compiler.isolation import isolated, unheard
from tests.conftest import RunPython

CALLS = 200


def leaf() -> None:
    pass


def faults(depth: int) -> int:
    """The most page faults of some calls from one frame, among ``depth`` frames on top of each other."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(CALLS):
        leaf()
    here = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    return here if depth == 0 else max(here, faults(depth - 1))


def test_calls_at_the_edge_of_the_stack_cost_nothing() -> None:
    """16 KiB hold some hundred frames: one of 500 is at the edge."""
    assert isolated(faults)(500) < CALLS / 2


def test_the_collector_rests_and_comes_back() -> None:
    assert gc.isenabled()
    assert isolated(gc.isenabled)() is False
    assert gc.isenabled()
    with pytest.raises(ZeroDivisionError):
        isolated(lambda: 1 // 0)()
    assert gc.isenabled()


def test_a_collector_that_is_off_stays_off() -> None:
    gc.disable()
    try:
        isolated(leaf)()
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_the_collector_comes_back_with_the_last_thread() -> None:
    inside, goes_on = threading.Event(), threading.Event()

    def compile_slowly() -> bool:
        inside.set()
        assert goes_on.wait(30)
        return gc.isenabled()

    def compile_meanwhile() -> bool:
        assert inside.wait(30)
        isolated(goes_on.set)()
        return gc.isenabled()

    with ThreadPoolExecutor(2) as threads:
        slow, quick = threads.submit(isolated(compile_slowly)), threads.submit(compile_meanwhile)
        assert slow.result() is False
        quick.result()
    assert gc.isenabled()


def test_a_forked_process_collects_though_another_thread_compiled() -> None:
    inside, goes_on = threading.Event(), threading.Event()

    def compile_slowly() -> None:
        inside.set()
        assert goes_on.wait(60)

    with ThreadPoolExecutor(1) as threads:
        threads.submit(isolated(compile_slowly))
        assert inside.wait(30)
        child = os.fork()
        if child == 0:
            os._exit(0 if gc.isenabled() and isolated(gc.isenabled)() is False and gc.isenabled() else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert not gc.isenabled()
        goes_on.set()
    assert gc.isenabled()


def test_the_function_is_the_same() -> None:
    def add(a: int, *, b: int = 2) -> int:
        """Adds."""
        return a + b

    wrapped: Callable[..., int] = isolated(add)
    assert wrapped(1, b=3) == 4
    assert (wrapped.__name__, wrapped.__doc__) == ("add", "Adds.")


@pytest.mark.parametrize("backward", [False, True])
def test_no_collection_while_graphs_are_compiled(device: str, backward: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A collection during a compilation has hundreds of thousands of objects to look at."""
    torch._dynamo.reset()
    collects: list[bool] = []
    lower = GraphLowering.run

    def noted(self: GraphLowering, *args: object) -> object:
        collects.append(gc.isenabled())
        return lower(self, *args)

    monkeypatch.setattr(GraphLowering, "run", noted)
    with torch.compiler.config.patch(force_disable_caches=True):
        x = torch.rand(8, 8, device=device, requires_grad=True)
        result = torch.compile(lambda x: torch.relu(x * 2).softmax(-1).sum())(x)
        if backward:
            collects.clear()
            result.backward()
    assert collects and not any(collects)
    assert gc.isenabled()


def test_sources_hashed_ahead_are_hashed_right(run_python: RunPython) -> None:
    """In a process forked meanwhile, too, which lacks the thread that does it."""
    program = """
        import os
        import torch._inductor.compile_fx
        from torch._inductor.codecache import torch_key

        child = os.fork()
        if child == 0:
            os._exit(0 if len(torch_key()) == 32 else 1)
        ahead = torch_key()
        torch_key.clear()
        print(ahead == torch_key(), os.waitpid(child, 0)[1])
    """
    assert run_python(program, cold=True).split() == ["True", "0"]


FRAMES = """
import os
import outboard
import torch
from torch._dynamo import convert_frame
from torch._dynamo.utils import counters

def broken(x):
    y = x * 2
    print("a break")
    z = torch.linalg.norm(y) + y.view(-1).cumsum(0).erfinv()
    z.sum().backward()
    return z

def frames(device):
    torch._dynamo.reset()
    counters.clear()
    torch.compile(broken, backend="eager")(torch.randn(4, 5, device=device, requires_grad=True))
    return dict(counters["frames"]), counters["stats"]["unique_graphs"]

files = set()
convert_frame.register_bytecode_hook(lambda code, new: files.add(code.co_filename))
device = torch._C._get_privateuse1_backend_name()
x = torch.ones(2, device=device)
assert frames(device) == frames("cpu"), (frames(device), frames("cpu"))
assert files and not [file for file in files if file.startswith(os.path.dirname(outboard.__file__))], files
assert torch.get_device_module(device).compile_stats()["compiled"] > 3
"""


def test_dynamo_does_not_look_at_our_compiler(run_python: RunPython, tmp_path: Path) -> None:
    """Operators that are new are compiled while Dynamo looks at each frame that begins; a backward pass is ours."""
    run_python(FRAMES, OUTBOARD_CACHE_DIR=str(tmp_path))


def test_a_working_directory_that_is_gone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """PyTorch's compiler asks where it is when it is imported."""
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    assert isolated(os.path.abspath)("x") == "/x"
    with pytest.raises(FileNotFoundError):
        os.getcwd()


def test_warnings_of_a_compiler_are_dropped_and_others_stay_given_once() -> None:
    def warn(text: str) -> None:
        warnings.warn(text, UserWarning, stacklevel=1)

    def elsewhere() -> None:
        thread = threading.Thread(target=warn, args=("another thread's",))
        thread.start()
        thread.join()

    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("default")
        warn("once")
        with unheard():
            warn("a compiler's")
            elsewhere()
        warn("once")
        warn("afterwards")
    assert [str(each.message) for each in given] == ["once", "another thread's", "afterwards"]


def test_graphs_leave_the_devices_module_alone(run_python: RunPython) -> None:
    """Seeds are set outside of graphs. To trace what sets a device's would only warn, of functions of ours in C++."""
    run_python(
        """
import torch, warnings
def drawn(x):
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return torch.rand_like(x)
x = torch.zeros(5, device=torch._C._get_privateuse1_backend_name())
with warnings.catch_warnings(record=True) as given:
    warnings.simplefilter("always")
    made = torch.compile(drawn)(x)
assert torch.equal(made, drawn(x))
assert not any("trace the builtin" in str(each.message) for each in given), [str(each.message) for each in given]
"""
    )
