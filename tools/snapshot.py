# SPDX-License-Identifier: Apache-2.0
"""All the state of a process that is its program's, and that nobody else may touch: generators, defaults, modes,
settings, and what the standard library keeps.

``snapshot()`` writes it down as values that can be compared, ``differences()`` says which are others, and
``disturbances()`` which ones a first call changes.
"""

from __future__ import annotations

import ctypes
import decimal
import gc
import locale
import logging
import os
import random
import resource
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.utils._device

Snapshot = dict[str, Any]

#: Where PyTorch keeps how exact products of float32 are, by backend and operation.
_PRECISIONS = [
    (backend, operation) for backend in ("generic", "cuda", "mkldnn") for operation in ("all", "matmul", "conv", "rnn")
]


def snapshot() -> Snapshot:
    """The state as it is now."""
    found: Snapshot = {}
    for part in (_generators, _defaults, _switches, _modes, _compilers, _python, _system):
        found |= part()
    return found


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, str]:
    """What is not as it was, by name, with both values. What is there only now was nobody's: an import's loggers."""
    changed = {name: (value, after.get(name)) for name, value in before.items() if value != after.get(name)}
    return {name: f"{_short(one)} became {_short(other)}" for name, (one, other) in sorted(changed.items())}


def disturbances(call: Callable[[], object]) -> dict[str, str]:
    """What the first of two calls, which compiles, changes that is the program's. Generators may move, but not to
    another place than the second call moves them to."""
    start = _seeded()
    call()
    first = snapshot()
    _seeded()
    call()
    second = snapshot()
    moved = {name: value for name, value in second.items() if _is_generator(name)}
    kept = {name: value for name, value in start.items() if not _is_generator(name)}
    return differences(kept, first) | differences(moved, first)


def _seeded() -> Snapshot:
    torch.manual_seed(0)
    random.seed(0)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(0)
    return snapshot()


def _is_generator(name: str) -> bool:
    return name.startswith("generator ")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:120]}... ({len(text)} characters)"


def _generators() -> Snapshot:
    found: Snapshot = {
        "generator cpu": torch.get_rng_state().numpy().tobytes(),
        "generator random": random.getstate(),
    }
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is not None:
        module: Any = torch.get_device_module(accelerator)
        for index in range(torch.accelerator.device_count()):
            found[f"generator {accelerator.type}:{index}"] = module.get_rng_state(index).numpy().tobytes()
    if "numpy" in sys.modules:
        import numpy

        state: Any = numpy.random.get_state(legacy=True)
        found["generator numpy"] = (state[0], state[1].tobytes(), *state[2:])
        found["numpy.geterr"] = numpy.geterr()
        found["numpy.printoptions"] = repr(numpy.get_printoptions())
    return found


def _defaults() -> Snapshot:
    found: Snapshot = {
        "default dtype": torch.get_default_dtype(),
        "default device": str(torch.get_default_device()),
        "default device of modes": str(torch.utils._device.CURRENT_DEVICE),
        "print options": str(torch._tensor_str.PRINT_OPTS),
        "threads": (torch.get_num_threads(), torch.get_num_interop_threads()),
    }
    if torch.accelerator.is_available():
        found["current device"] = torch.accelerator.current_device_index()
        found["current stream"] = torch.accelerator.current_stream()
    return found


def _switches() -> Snapshot:
    c: Any = torch._C
    names = [name for name in dir(c) if name.startswith("_get_") and name.endswith(_SWITCHES)]
    found: Snapshot = {f"torch._C.{name}": _of(getattr(c, name)) for name in names}
    for backend, operation in _PRECISIONS:
        found[f"precision {backend} {operation}"] = _of(c._get_fp32_precision_getter, backend, operation)
    autocast = [(name, torch.is_autocast_enabled(name), torch.get_autocast_dtype(name)) for name in _autocast_devices()]
    found |= {
        "deterministic": (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
            torch.utils.deterministic.fill_uninitialized_memory,
        ),
        "float32 products": _of(torch.get_float32_matmul_precision),
        "always warns": torch.is_warn_always_enabled(),
        "autocast": (autocast, torch.is_autocast_cache_enabled()),
        "denormals": _keeps_denormals(),
        "einsum": (torch.backends.opt_einsum.enabled, torch.backends.opt_einsum.strategy),
        "quantized engine": torch.backends.quantized.engine,
        "allocator": c._is_default_mobile_cpu_allocator_set(),
        "sparse checks": torch.sparse.check_sparse_tensor_invariants.is_enabled(),
        "future": [_of(getattr(torch.__future__, name)) for name in dir(torch.__future__) if "get_" in name],
    }
    return found


#: How the names of PyTorch's getters end that say how something is computed.
_SWITCHES = ("_enabled", "_reduction", "_precision", "_order", "_deterministic", "_benchmark", "_allow_tf32", "_memory")


def _of(function: Callable[..., Any], *args: Any) -> Any:
    """What a getter returns; where it has no answer here, the type of its exception."""
    try:
        return function(*args)
    except Exception as error:  # noqa: BLE001 - that it raises is its state
        return type(error).__name__


def _autocast_devices() -> list[str]:
    return sorted(torch._C._autocast_supported_devices())


def _keeps_denormals() -> bool:
    """Whether this thread computes with numbers below the least normal one."""
    return float(sys.float_info.min) / 2 != 0.0


def _modes() -> Snapshot:
    c: Any = torch._C
    return {
        "gradients": (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), c._is_multithreading_enabled()),
        "view replay": c._is_view_replay_enabled(),
        "anomalies": (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
        "saved tensors": c._autograd._top_saved_tensors_default_hooks(True) is None,
        "function modes": [id(c._get_function_stack_at(i)) for i in range(c._len_torch_function_stack())],
        "operator modes": [id(c._get_dispatch_stack_at(i)) for i in range(c._len_torch_dispatch_stack())],
        "functions seen": c._is_torch_function_enabled(),
        "functorch": c._functorch.peek_interpreter_stack() is None,
        "dispatch keys": (repr(c._dispatch_tls_local_include_set()), repr(c._dispatch_tls_local_exclude_set())),
        "tracing": c._get_tracing_state() is None,
    }


def _compilers() -> Snapshot:
    found: Snapshot = {}
    for name in ("torch._dynamo.config", "torch._inductor.config", "torch._functorch.config", "torch._export.config"):
        module: Any = sys.modules.get(name)
        if hasattr(module, "_get_dict"):
            found |= {f"{name}.{key}": _plain(value) for key, value in module._get_dict().items()}
    if "torch._dynamo.eval_frame" in sys.modules:
        evaluation: Any = sys.modules["torch._dynamo.eval_frame"]
        found["frames"] = repr(torch._C._dynamo.eval_frame.get_eval_frame_callback())
        found["stance"] = repr(evaluation._stance)
    return found


def _plain(value: object) -> str:
    return repr(sorted(map(repr, value)) if isinstance(value, (set, frozenset)) else value)


def _python() -> Snapshot:
    found: Snapshot = {
        "gc": (gc.isenabled(), gc.get_threshold(), gc.get_debug(), len(gc.callbacks)),
        "recursion limit": sys.getrecursionlimit(),
        "switch interval": sys.getswitchinterval(),
        "sys.path": list(sys.path),
        "sys.argv": list(sys.argv),
        "hooks": (sys.excepthook, sys.displayhook, sys.unraisablehook, sys.breakpointhook, threading.excepthook),
        "streams": (id(sys.stdout), id(sys.stderr), id(sys.stdin)),
        "tracers": (sys.gettrace(), sys.getprofile(), threading._trace_hook, threading._profile_hook),  # type: ignore[attr-defined]
        "warnings.filters": [repr(each) for each in warnings.filters if "SymPy" not in repr(each)],  # by its import
        "warnings.show": (warnings.showwarning, warnings._showwarnmsg_impl),  # type: ignore[attr-defined]
        "decimal": repr(decimal.getcontext()),
        "logging.disabled": logging.root.manager.disable,
        "logging.classes": logging.getLoggerClass(),
    }
    loggers: dict[str, Any] = {"": logging.root, **logging.root.manager.loggerDict}
    for name, logger in loggers.items():
        if isinstance(logger, logging.Logger) and not name.startswith("torch"):
            found[f"logger {name}"] = (logger.level, len(logger.handlers), logger.disabled, logger.propagate)
    return found


#: Variables that PyTorch's compiler sets for the processes that it starts, whatever it compiles for.
_SET_BY_PYTORCH = frozenset({"TORCHINDUCTOR_CACHE_DIR", "_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR"})


def _system() -> Snapshot:
    rounding = ctypes.CDLL(None).fegetround()
    return {
        "environment": {name: value for name, value in os.environ.items() if name not in _SET_BY_PYTORCH},
        "directory": os.getcwd(),
        "locale": locale.setlocale(locale.LC_ALL),
        "umask": _umask(),
        "signals": {each: signal.getsignal(each) for each in signal.valid_signals()},
        "blocked signals": signal.pthread_sigmask(signal.SIG_BLOCK, []),
        "timers": signal.getitimer(signal.ITIMER_REAL),
        "cores": os.sched_getaffinity(0),
        "limits": [resource.getrlimit(each) for each in (resource.RLIMIT_NOFILE, resource.RLIMIT_STACK)],
        "rounding": rounding,
    }


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
