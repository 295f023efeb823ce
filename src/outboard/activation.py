# SPDX-License-Identifier: Apache-2.0
"""Gives the process its device: what happens once, when PyTorch loads Outboard."""

from __future__ import annotations

import atexit
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

#: What kept Outboard itself from being set up, one line each (drivers and devices: ``_C.problems()``).
_problems: list[str] = []
_done = False


def activate() -> None:
    """Registers the device with PyTorch, once per process. Warns instead of raising; see :func:`problems`."""
    global _done
    if _done:
        return
    _done = True
    try:
        _activate()
    except Exception as error:  # noqa: BLE001 - an exception here would break `import torch` for everyone
        _report(f"Outboard could not be loaded: {type(error).__name__}: {error}.", "Run `outboard doctor` for details.")


def problems() -> list[str]:
    """What is wrong with this installation, its drivers and its devices; empty if nothing is."""
    found = list(_problems)
    if (core := sys.modules.get("outboard._C")) is not None:
        found += core.problems()
    return found


def _activate() -> None:
    # What compiles imports this, and Python refuses to import it once the main thread has ended.
    import concurrent.futures.process  # noqa: F401

    import torch

    from outboard import torch_release

    if (mismatch := torch_release.mismatch(torch.__version__)) is not None:
        sys.meta_path.insert(0, _Refusal(mismatch))
        return _report(mismatch)
    return _set_up()


class _Refusal:
    """What imports the extension, which would lack symbols, is told why that cannot be."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """Raises ImportError for the extension; other modules are others' to find."""
        if name == "outboard._C":
            raise ImportError(self._reason, name=name)


def _set_up() -> None:
    import torch
    from torch.utils import backend_registration

    from outboard import _C, distributed, drivers, expected_memory, integrations, on_open, profiles, settings
    from outboard import device as module
    from outboard.device import interruptions, profiling

    choice = profiles.choose()
    if choice.problem:
        _report(choice.problem)
    profile = profiles.load(choice)
    backend_registration.rename_privateuse1_backend(profile.name)
    profile.before_devices()
    if (unusable := settings.find_cache_directory()) is not None:
        _report(unusable)
    cache_directory = settings.cache_directory()
    wanted = os.environ.get("OUTBOARD_DRIVER")
    libraries, driver_problems = drivers.select(wanted, preferred=profile.driver)
    _problems.extend(driver_problems)
    _problems.extend(drivers.prepare(cache_directory))
    _C.set_cache_directory(str(cache_directory) if cache_directory is not None else "")
    _C.set_shipped_programs(str(Path(__file__).parent / "plans" / "programs"))
    _C.set_build_executable(str(Path(__file__).parent / "bin" / "outboard-build"))
    _C.register_graphs()
    # Runs after what is registered next: programs may still be on their way to disk.
    atexit.register(_trim_cache, os.getpid(), _cache_limit())
    atexit.register(_shut_down)
    expected = expected_memory.install(cache_directory) if cache_directory is not None else expected_memory.nothing

    def opened(count: int) -> list[int]:
        on_open.opened(count)
        return expected(count)

    processor = ([], []) if wanted else drivers.processor()
    _C.initialize(libraries, _choice(profile.choose_devices), *processor, opened)

    torch._register_device_module(profile.name, module)  # type: ignore[no-untyped-call]
    backend_registration.generate_methods_for_privateuse1_backend(for_storage=True)
    module.amp.set_supported_dtypes(profile.amp_dtypes)
    module.dlpack.install()
    interruptions.install()
    module.sharing.install(profile.name)
    module.printing.print_on_cpu()
    profiling.install(profile.name)
    _connect_compiler()
    if profile.distributed_backend is not None:
        distributed.install(profile.name, profile.distributed_backend)
    integrations.install(profile.name)
    profiles.install(choice, profile)


def _choice(choose: Callable[[int], list[int]] | None) -> Callable[[int], list[int]] | None:
    """The same choice of devices, with what is wrong with it as a problem instead of an exception."""
    if choose is None:
        return None

    def chosen(count: int) -> list[int]:
        try:
            return choose(count)
        except Exception as error:  # noqa: BLE001 - a question for the number of devices raises nothing in PyTorch
            _report(f"No device is used: {error}.")
            return []

    return chosen


def _cache_limit() -> int:
    from outboard.compiler.plans import eviction

    try:
        return eviction.limit()
    except ValueError as error:
        _report(f"{error}; using {eviction.DEFAULT_LIMIT >> 30} GiB.")
        return eviction.DEFAULT_LIMIT


def _shut_down() -> None:
    """Ends queued work; at once if an interrupt by the user ends the process."""
    from outboard import _C

    last = getattr(sys, "last_type", None)
    _C.shutdown(last is not None and issubclass(last, KeyboardInterrupt))


def _trim_cache(process: int, limit: int) -> None:
    """Keeps the cache within its size, if this process (not one forked from it) may have added to it."""
    from outboard import _C, settings
    from outboard.compiler.plans import eviction

    directory = settings.writable_cache_directory()
    if directory is None or process != os.getpid():
        return
    if _C.devices_opened() and any(_C.program_statistics(index)["built"] for index in range(_C.device_count())):
        eviction.trim(directory, limit)


def _connect_compiler() -> None:
    """Hands C++ the compiler as functions that import it when they are first called."""
    from outboard import _C
    from outboard.compiler import on_import

    def plan_for(
        call: _C.SignedCall, from_cache: bool, may_compile: bool, library: bool
    ) -> tuple[str, list[bytes], bool]:
        from outboard.compiler import requests

        return requests.plan_for(call, from_cache, may_compile, library)

    def keep_plan(device: int, signature: bytes, bake: bool, plan: bytes) -> None:
        from outboard.compiler import requests

        requests.keep_plan(device, signature, bake, plan)

    def keep_bake(device: int, signature: bytes) -> None:
        from outboard.compiler import requests

        requests.keep_bake(device, signature)

    def writes(dialect: str) -> bool:
        from outboard.compiler import dialects

        return dialects.is_known(dialect)

    def attends(query: Any, key: Any, value: Any, causal: bool, scale: float | None, plain: bool) -> bool | None:
        from outboard.compiler.choice import attention

        if not attention.is_in_library(query):
            return None
        return plain and attention.goes_to_library(query, key, value, causal, scale)

    _C.set_compiler(plan_for, keep_plan, keep_bake, writes, attends)
    on_import.install()
    _C.set_fallback_policy(_fallback_policy())


def _fallback_policy() -> str:
    policy = os.environ.get("OUTBOARD_FALLBACK", "allow")
    if policy in ("allow", "warn", "error"):
        return policy
    _report(f"OUTBOARD_FALLBACK must be allow, warn or error, not {policy!r}; using allow.")
    return "allow"


def _report(problem: str, advice: str = "") -> None:
    _problems.append(problem)
    warnings.warn(f"{problem} {advice}".rstrip(), RuntimeWarning, stacklevel=2)
