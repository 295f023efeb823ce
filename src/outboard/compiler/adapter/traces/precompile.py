# SPDX-License-Identifier: Apache-2.0
"""What ``torch.compile`` traced for our device is kept for later processes, which trace nothing
(``OUTBOARD_PRECOMPILE=0``: is not).

When Dynamo is about to trace a frame, traces of earlier processes are tried first. One whose guards hold is handed to
Dynamo as if it had just been made: an ordinary entry of the frame's cache, with guards, backend and all. If there is
none, Dynamo traces, and what it makes is written down when the process ends.

Guards and graphs are serialised by PyTorch's own means (``torch._dynamo.package``), which are experimental there. Its
cache of traces (``caching_precompile``) is not used: it is one setting for all devices, looks a trace up when
``torch.compile`` is called and not when it is known what for, and drops guards. These things are ours:

* Only frames with tensors on our device, compiled in the ordinary way, are looked at (``trace_keys``). What
  ``torch.compile`` does for other devices is left alone.
* A trace is looked up by all that it depends on and guards may leave out: methods of classes, settings, hooks.
* Each function that was traced must be found again under its name, with the same code.
* Guards hold to what they were made for. PyTorch makes those on what a Python module or class holds for whatever is
  there when the trace is loaded.
* Guards on the identity of functions, classes and modules are kept: in the process that loads the trace there must be
  the same one in the same place, and stay there. With a guard on the identity of another object, the trace is not kept.
* Frames with graph breaks, and graphs that hold constants, are not kept.

Traces are pickles, which run what they say when they are read. So each is signed with a key that only the user can
read (``outboard.signing``) together with the key and name it is kept under, and read only if it was: those of another
user, root's in an image included, are passed over.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import contextvars
import dataclasses
import dis
import functools
import hashlib
import importlib
import itertools
import logging
import os
import pickle
import sys
import types
import uuid
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch._dynamo import convert_frame, guards, package
from torch._dynamo.package import SerializedCode
from torch._dynamo.source import get_global_source_name, get_local_source_name
from torch._dynamo.types import GuardedCode, wrap_guarded_code
from torch._dynamo.utils import CleanupHook, CleanupManager, counters

from outboard import patches, settings, signing, trusted

from ...isolation import unheard
from ..graphs import arrangements
from . import trace_keys

_log = logging.getLogger(__name__)
_MAGIC = b"OBTRACE4"
#: Of more traces with one key (all with different guards) only those used last are kept. To look at one in vain costs a
#: fifth of a second for a large model.
_MOST = 4
#: Stands among traces with a key if one could not be kept.
_REFUSED = "refused"
#: Guards that cannot be taken to another process as they are, by type.
_ON_IDENTITY = frozenset({"ID_MATCH", "CLOSURE_MATCH", "CLASS_MATCH", "WEAKREF_ALIVE", "DICT_VERSION"})
#: Those of them that can be made again there. A code object is matched as a constant.
_MADE_AGAIN = frozenset(
    f"{each}_MATCH" for each in ("ID", "CLOSURE", "FUNCTION", "CLASS", "MODULE", "BUILTIN", "CONSTANT")
)
#: Names in a function's code that stand for the environment, on which nothing is guarded.
_ENVIRONMENT = frozenset({"environ", "environb", "getenv", "getenvb"})
_OF_THE_SHELL = frozenset({"PWD", "OLDPWD", "SHLVL", "_", "LINES", "COLUMNS"})
#: Names made up here have numbers from this many on, at random.
_NAMES = 1 << 62


@dataclasses.dataclass
class _Identity:
    """What the value of ``source`` is, and the type of guard that it stays that."""

    source: Any
    guard: str
    value: tuple[str, ...]


@dataclasses.dataclass
class _Source:
    """A graph of Dynamo's as Python, with the modules and other values that it names."""

    text: str
    modules: dict[str, str]
    values: dict[str, Any]

    @classmethod
    def of(cls, graph: torch.fx.Graph) -> _Source:
        """The source of a graph."""
        code = graph.python_code("self")
        used = _globals(compile(code.src, "<graph>", "exec"))
        named = {name: value for name, value in code.globals.items() if name in used}
        modules = {name: value.__name__ for name, value in named.items() if isinstance(value, types.ModuleType)}
        return cls(code.src, modules, {name: value for name, value in named.items() if name not in modules})

    def function(self) -> Callable[..., Any]:
        """What runs the graph operator by operator."""
        modules = {name: importlib.import_module(module) for name, module in self.modules.items()}
        names = {**modules, **self.values}
        exec(self.text, names)
        return partial(names["forward"], None)


@dataclasses.dataclass
class _Trace:
    """What another process needs to go on as if it had traced."""

    guards: bytes
    identities: list[_Identity]
    #: What the guards that travel hold values to, by name and type of guard.
    values: dict[tuple[str, str], str]
    code: SerializedCode
    imports: dict[str, str]
    #: Functions that were traced: module, name, digest.
    sources: list[tuple[str, str, str]]
    graph_name: str
    #: A digest of the variables of the environment, if a function that was traced reads any.
    environment: str
    #: What the graph writes of its inputs, which do not overlap, and how to call it operator by operator if some do.
    inputs: arrangements.Inputs | None
    source: _Source | None
    #: The graph, compiled; serialised, because not every trace that is looked at serves.
    graph: bytes = b""


class _Refused(Exception):
    """A trace that is not kept, or not used; says why."""


#: What is being traced now, if it is for later processes.
_tracing: contextvars.ContextVar[_Recorder | None] = contextvars.ContextVar("outboard_tracing", default=None)
#: Whether the graph in hand is one of these, so that it is stored whole.
_bundling: contextvars.ContextVar[bool] = contextvars.ContextVar("outboard_bundling", default=False)
#: Traces made by this process, without their graphs, by the name of the graph; with their keys.
_made: dict[str, tuple[str, _Trace]] = {}


def enable() -> None:
    """Has Dynamo try traces of earlier processes before it traces a frame with tensors on our device."""
    patches.apply("traces of earlier processes are used", {"torch._dynamo.convert_frame._compile": _trying_traces})


def _trying_traces(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def compile_(
        code: types.CodeType,
        scope: dict[str, Any],
        values: dict[str, Any],
        builtins_: Any,
        closure: Any,
        backend: Any,
        one_graph: bool,
        export: bool,
        constraints: Any,
        hooks: Any,
        *others: Any,
        package: Any = None,
        **options: Any,
    ) -> Any:
        def trace(recorder: Any) -> Any:
            first = (code, scope, values, builtins_, closure, backend, one_graph, export, constraints, hooks)
            return original(*first, *others, package=recorder, **options)

        key = None
        if package is None and not export and not _is_watched(hooks):
            key = _key_of(code, scope, values, backend, one_graph)
        if key is None:
            return trace(package)
        found = _find(key, code, scope, values, options["compile_id"])
        if found is not None:
            return wrap_guarded_code(found)
        if _is_refused(key) or not _prepare():
            return trace(package)
        recorder = _Recorder(key, code, scope)
        with _set(_tracing, recorder), _set(_bundling, True):
            result = trace(recorder)
        recorder.finish()
        return result

    return compile_


def _key_of(code: types.CodeType, *frame: Any) -> str | None:
    key_of: Callable[..., str | None] = trace_keys.key_of
    try:
        return key_of(code, *frame, torch._C._get_privateuse1_backend_name())
    except Exception as error:  # noqa: BLE001 - what belongs to the user may raise anything when it is looked at
        _log.info("no traces are kept of %s: %s", code.co_name, error)
        return None


def _is_watched(hooks: Any) -> bool:
    """Whether somebody has a say in what Dynamo does."""
    return any(dataclasses.asdict(hooks).values()) or bool(convert_frame._bytecode_hooks)


@contextlib.contextmanager
def _set(variable: contextvars.ContextVar[Any], value: Any) -> Iterator[None]:
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


@functools.cache
def _prepare() -> bool:
    """Has PyTorch tell what it compiles for us, once. Nothing changes for what is compiled for others. False if this
    PyTorch cannot be made to."""
    # Otherwise names of a trace that was loaded and of one that is made may be the same, which raises.
    names = itertools.count(uuid.uuid4().int % _NAMES)
    cache = "torch._functorch._aot_autograd.autograd_cache"
    can = patches.apply(
        "traces are kept for later processes",
        {
            "torch._dynamo.bytecode_transformation._unique_id_counter": lambda counter: names,
            "torch._dynamo.guards:CheckFunctionManager.__init__": _keeping_guards,
            f"{cache}.should_bundle_autograd_cache": _bundled,
            f"{cache}.autograd_cache_key": _without_name,
            f"{cache}:AOTAutogradCache.make_entry": partial(_whole, config_of=_config_of_entry),
            f"{cache}:AOTAutogradCache.save": partial(_whole, config_of=_config_of_saved),
        },
    )
    if can:
        atexit.register(_save, os.getpid())
    return can


def _bundled(original: Callable[[], bool]) -> Callable[[], bool]:
    """A graph whose trace is kept is stored whole."""
    return lambda: _bundling.get() or original()


def _without_name(original: Callable[..., Any]) -> Callable[..., Any]:
    """AOTAutograd's key has the graph's name in it, which is new each time: without it, a graph that had to be traced
    is found all the same."""

    @functools.wraps(original)
    def key(mod: Any, example_inputs: Any, config: Any, *others: Any, **more: Any) -> Any:
        if _bundling.get() and config.precompile_backend_id is not None:
            config = dataclasses.replace(config, precompile_backend_id="outboard")
        return original(mod, example_inputs, config, *others, **more)

    return key


def _whole(original: Callable[..., Any], config_of: Callable[..., Any]) -> Callable[..., Any]:
    """A graph is stored whole if its trace is kept. A backward graph is compiled long after it was traced."""

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        ours = config_of(*args, **kwargs).precompile_backend_id in _made or _bundling.get()
        with _set(_bundling, ours):
            return original(*args, **kwargs)

    return call


def _config_of_entry(*unused: Any, sanitized_aot_config: Any, **others: Any) -> Any:
    return sanitized_aot_config


def _config_of_saved(key: str, entry: Any, *unused: Any, **others: Any) -> Any:
    return entry.sanitized_aot_config


class _Recorder:
    """Writes down what Dynamo makes of one frame. Stands where Dynamo has a ``CompilePackage``, and has its methods."""

    def __init__(self, key: str, code: types.CodeType, scope: dict[str, Any]) -> None:
        self._key = key
        self._code = code
        self._scope = scope
        self._known = frozenset(scope)
        self._refusals: list[str] = []
        self._imports: dict[str, str] = {}
        self._graphs: list[str] = []
        self._made: types.CodeType | None = None
        self._sources: list[types.CodeType] = []
        self._identities: list[_Identity] = []
        self._guards = b""
        self._values: dict[tuple[str, str], str] = {}
        self._inputs: arrangements.Inputs | None = None
        self._source: _Source | None = None

    @contextlib.contextmanager
    def code_context(self, code: types.CodeType) -> Iterator[None]:
        """Around the tracing of a frame."""
        yield

    def add_import_source(self, alias: str, module: str) -> None:
        """The code finds a module under a name made up."""
        self._imports[alias] = module

    def add_resume_function(self, *unused: Any) -> None:
        """The code is interrupted by what Dynamo cannot trace."""
        self._refuse("it has a graph break")

    def add_backend_id(self, name: str, backend: Any = None) -> None:
        """The code calls a graph."""
        self._graphs.append(name)

    def add_guarded_code(self, state: bytes, code: types.CodeType) -> None:
        """Dynamo has made the code."""
        self._made = code

    def add_inlined_source(self, sources: Sequence[types.CodeType]) -> None:
        """These functions have been traced."""
        self._sources += sources

    def update_device_type(self, graph: Any) -> None:
        """The graph that was traced."""
        if graph is None:
            return
        if any(node.op == "get_attr" for node in graph.nodes):
            self._refuse("its graph holds constants")
        self._inputs = arrangements.Inputs.of(graph)
        if self._inputs is not None:
            self._source = _Source.of(graph)
            if self._inputs.shares:
                self._refuse("it writes inputs that may overlap")

    def bypass_current_entry(self) -> None:
        """Dynamo knows that the trace cannot be kept."""
        self._refuse("Dynamo cannot store it")

    def _refuse(self, reason: str) -> None:
        self._refusals.append(reason)

    def keep_guards(self, serialize: Callable[[Callable[..., Any]], bytes | None]) -> None:
        """Writes the guards down: what ``serialize`` gives for those that it is told to, and the rest by name."""
        lost: list[str] = []
        digests: dict[type, str] = {}

        def choose(entries: Sequence[Any]) -> Sequence[bool]:
            kept = [not _is_on_identity(entry) for entry in entries]
            self._identities = []
            for entry, stays in zip(entries, kept, strict=True):
                if stays and entry.has_value:
                    value = trace_keys.guarded_value(entry.value, entry.guard_type, entry.is_global, digests)
                    self._values[entry.orig_guard.name, entry.guard_type] = value
                if not stays and not self._keep_identity(entry):
                    lost.append(entry.name)
            return kept

        try:
            with unheard():  # it asks tensors for gradients, of which those that are no leaves warn
                self._guards = serialize(choose) or b""
        except Exception as error:  # noqa: BLE001 - pickling what belongs to the user may raise anything
            self._refuse(f"its guards cannot be stored: {error}")
        if lost:
            self._refuse(f"other processes cannot check {', '.join(sorted(set(lost)))}")

    def _keep_identity(self, entry: Any) -> bool:
        value = trace_keys.identity_of(entry.value) if entry.has_value else None
        if value is None or entry.guard_type not in _MADE_AGAIN:
            return False
        self._identities.append(_Identity(entry.orig_guard.originating_source, entry.guard_type, value))
        return True

    def finish(self) -> None:
        """Keeps the trace in memory until its graph is compiled too, with its gradients if it has any."""
        if self._made is None:
            return
        try:
            trace = self._trace()
        except Exception as error:  # noqa: BLE001 - what belongs to the user may raise anything when it is looked at
            _log.info("a trace of %s is not kept: %s", self._code.co_name, error)
            _remember_refusal(self._key)
            return
        _made[trace.graph_name] = (self._key, trace)

    def _trace(self) -> _Trace:
        assert self._made is not None
        if self._refusals or not self._guards:
            raise _Refused("; ".join(self._refusals) or "it has no guards")
        if len(self._graphs) != 1:
            raise _Refused(f"it has {len(self._graphs)} graphs")
        (graph,) = self._graphs
        made_up = _globals(self._made) - self._known - set(self._imports) - {graph} - set(vars(builtins))
        for name in set(self._scope) - self._known:  # Dynamo has made up names for Python modules, in code and guards
            if (identity := trace_keys.identity_of(self._scope[name])) and identity[0] == "module":
                self._imports[name] = identity[1]
        made_up -= set(self._imports)
        if made_up:
            raise _Refused(f"it needs {', '.join(sorted(made_up))}")
        reads = any(_ENVIRONMENT.intersection(code.co_names) for code in (self._code, *self._sources))
        code, environment = SerializedCode.from_code_object(self._made), _environment() if reads else ""
        sources = self._named_sources()
        guards = (self._guards, self._identities, self._values)
        return _Trace(*guards, code, self._imports, sources, graph, environment, self._inputs, self._source)

    def _named_sources(self) -> list[tuple[str, str, str]]:
        modules = {getattr(module, "__file__", None): name for name, module in list(sys.modules.items())}
        names: dict[str, str] = {}
        found = []
        for code in dict.fromkeys((self._code, *self._sources)):
            module = names.setdefault(code.co_filename, modules.get(code.co_filename, ""))
            if code is self._code or code.co_filename.startswith("<frozen "):  # a part of the key, or of Python
                continue
            name, digest = trace_keys.qualname_of(code, module), trace_keys.code_digest(code)
            if code.co_filename == "<string>":
                module, name = trace_keys.method_written_for(code) or ("", None)
            if name is None or trace_keys.find_code(module, name, digest) is None:
                raise _Refused(f"{code.co_name} in {code.co_filename} is not found by its name")
            found.append((module, name, digest))
        return found


def _environment() -> str:
    """A digest of the process's variables, without those that a shell changes from command to command."""
    variables = sorted((name, value) for name, value in os.environ.items() if name not in _OF_THE_SHELL)
    return hashlib.sha256(repr(variables).encode()).hexdigest()


def _is_on_identity(entry: Any) -> bool:
    return any(name in each for name in _ON_IDENTITY for each in (entry.guard_type, *entry.derived_guard_types))


def _globals(code: types.CodeType) -> set[str]:
    """Global names that a function's code looks up, those of functions inside included."""
    names = {each.argval for each in dis.get_instructions(code) if each.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    inner = (_globals(const) for const in code.co_consts if isinstance(const, types.CodeType))
    return names.union(*inner)


def _keeping_guards(original: Callable[..., None]) -> Callable[..., None]:
    """After the guards of this process, which are all, makes those that travel."""

    @functools.wraps(original)
    def init(
        self: Any, f_code: types.CodeType, output_graph: Any, *others: Any, save_guards: bool = False, **options: Any
    ) -> None:
        recorder = _tracing.get()
        if recorder is None or not save_guards:
            original(self, f_code, output_graph, *others, save_guards=save_guards, **options)
            return
        original(self, f_code, output_graph, *others, save_guards=False, **options)

        def serialize(choose: Callable[..., Any]) -> bytes | None:
            copy: Any = object.__new__(guards.CheckFunctionManager)
            original(copy, f_code, output_graph, guard_filter_fn=choose, save_guards=True, strict_error=True)
            state: bytes | None = copy.guards_state
            return state

        recorder.keep_guards(serialize)
        self.guards_state = b""  # Dynamo wants some; ours are kept already

    return init


# ---- on disk


def _folder(key: str) -> Path | None:
    from ..registration import fingerprint

    base = settings.cache_directory()
    if base is None or not signing.available():
        return None
    return base / "traces" / fingerprint().hex() / key


def _is_refused(key: str) -> bool:
    """Whether traces with the key could not be kept before: writing them down in vain takes as long as loading one."""
    folder = _folder(key)
    if folder is None:
        return False
    try:
        return _read(folder / _REFUSED) == b""
    except (OSError, _Refused):
        return False


def _remember_refusal(key: str) -> None:
    folder = _folder(key)
    if folder is not None:
        _write(folder / _REFUSED, b"")


def _write(path: Path, body: bytes) -> None:
    content = signing.sealed(_what(path), body)
    if content is None or settings.writable_cache_directory() is None:
        return
    try:
        trusted.write(path, content)
    except OSError as error:
        trusted.say_once("what torch.compile traces is not kept", error)


def _read(path: Path) -> bytes:
    """What :func:`_write` wrote under this name. Raises OSError and _Refused."""
    body = signing.unsealed(_what(path), trusted.read(path))
    if body is None:
        raise _Refused("it is damaged, another's, or not of this user")
    return body


def _what(path: Path) -> bytes:
    """A trace by its whole key: what PyTorch and the compiler are, the frame's key, and the digest of its guards."""
    return b"\0".join((_MAGIC, *(part.encode() for part in path.parts[-3:])))


def _save(process: int) -> None:
    """Writes what this process (not one forked from it) traced."""
    from torch._dynamo.precompile_context import PrecompileContext
    from torch._functorch._aot_autograd.aot_autograd_result import BundledAOTAutogradResult

    if process != os.getpid():
        return
    for name, (key, trace) in _made.items():
        graph = PrecompileContext.serialize_artifact_by_key(name)
        folder = _folder(key)
        # There is no graph if it cannot be stored, or gradients could have been asked for and were not.
        if folder is None or graph is None or not isinstance(graph.content, BundledAOTAutogradResult):
            continue
        try:
            body = pickle.dumps(dataclasses.replace(trace, graph=pickle.dumps(graph)))
            _write(folder / hashlib.sha256(trace.guards).hexdigest(), body)
            for old in _by_age(folder)[_MOST:]:
                _delete(old)
        except Exception as error:  # noqa: BLE001 - pickling what belongs to the user may raise anything
            _log.warning("what torch.compile traced is not kept for later processes: %s", error)


def _find(key: str, code: types.CodeType, scope: dict[str, Any], values: dict[str, Any], compile_id: Any) -> Any:
    """A trace that serves the frame, in place; None if there is none."""
    folder = _folder(key)
    for path in _by_age(folder)[:_MOST] if folder is not None else []:
        try:
            trace = _load(path)
            found = _in_place(trace, code, scope, values, compile_id)
        except _Refused as refusal:
            _log.info("not using %s: %s", path, refusal)
            continue
        except Exception as error:  # noqa: BLE001 - whatever is wrong with it, the frame can be traced
            _log.info("not using %s: %s: %s", path, type(error).__name__, error)
            continue
        trusted.mark_used(path)
        counters["dynamo_cache"]["dynamo_cache_hit"] += 1
        return found
    counters["dynamo_cache"]["dynamo_cache_miss"] += 1
    return None


def _by_age(folder: Path) -> list[Path]:
    """Traces, those used last first."""
    try:
        with trusted.opened(folder) as descriptor:
            entries = [entry for entry in os.scandir(f"/proc/self/fd/{descriptor}") if _is_trace(entry.name)]
            found = [(entry.stat(follow_symlinks=False).st_mtime, folder / entry.name) for entry in entries]
    except trusted.Untrusted as error:
        trusted.say_once("what torch.compile traced is not used", error)
        return []
    except OSError:  # there is none, or one of them was just deleted
        return []
    return [path for _, path in sorted(found, reverse=True)]


def _is_trace(name: str) -> bool:
    return name[0] != "." and name != _REFUSED


def _delete(path: Path) -> None:
    """Deletes a trace, as far as this process may: the place is for others."""
    if settings.writable_cache_directory() is None:
        return
    try:
        trusted.remove(path)
    except OSError as error:
        _log.info("%s cannot be deleted: %s", path, error)


def _load(path: Path) -> _Trace:
    """The trace in a file. Raises _Refused, having deleted what is in the place of a trace, and OSError."""
    try:
        body = _read(path)
    except _Refused:
        _delete(path)
        raise
    trace = pickle.loads(body)
    if not isinstance(trace, _Trace):
        raise _Refused("it is no trace")
    return trace


def _in_place(
    trace: _Trace, code: types.CodeType, scope: dict[str, Any], values: dict[str, Any], compile_id: Any
) -> GuardedCode:
    """Raises _Refused, or whatever PyTorch raises, if the trace does not serve."""
    if trace.environment and trace.environment != _environment():
        raise _Refused("a variable of the environment is another")
    for source in trace.sources:
        if trace_keys.find_code(*source) is None:
            raise _Refused(f"{source[1]} has changed")
    for alias, module in trace.imports.items():
        if scope.setdefault(alias, importlib.import_module(module)) is not sys.modules[module]:
            raise _Refused(f"{alias} is something else")
    manager = _guard(trace, code, scope, values)
    if not manager.check(values):
        raise _Refused("its guards do not hold")
    graph = pickle.loads(trace.graph).after_deserialization()
    made, name = _renamed(SerializedCode.to_code_object(trace.code), trace.graph_name)
    missing = _globals(made) - set(scope) - {name} - set(vars(builtins))
    if missing:
        raise _Refused(f"there is no {', '.join(sorted(missing))}")
    disable: Any = torch._dynamo.disable
    hook = CleanupHook.create(scope, name, disable(_checked(graph, trace), reason="do not trace Dynamo-compiled graph"))
    CleanupManager.instance[made] = [hook]
    dynamo: Any = convert_frame
    dynamo.orig_code_map[made] = code
    dynamo.output_codes.add(made)
    return GuardedCode(made, manager, compile_id, f"Torch-Compiled Region: {compile_id}")


def _checked(graph: Callable[..., Any], trace: _Trace) -> Callable[..., Any]:
    """The compiled graph, for inputs that overlap as those did that it was made for."""
    if trace.inputs is None:
        return graph
    assert trace.source is not None
    return arrangements.checked(graph, arrangements.Check(trace.inputs), trace.source.function)


def _guard(trace: _Trace, code: types.CodeType, scope: dict[str, Any], values: dict[str, Any]) -> Any:
    """The trace's guards, made for this process."""
    state: Any = package.load_guards_state(trace.guards)
    graph = state.output_graph
    name = graph.name_of_builtins_dict_key_in_fglobals
    if name:
        known = torch._dynamo.output_graph.get_builtins_dict(scope)
        if scope.setdefault(name, known) is not known:
            raise _Refused(f"{name} is something else")
    known_values: dict[str, Any] = {}
    digests: dict[type, str] = {}
    for guard in graph.guards:
        wanted = trace.values.get((guard.name, guard.create_fn_name()))
        if wanted is None:  # there was no such value, which guards look after
            continue
        found = guard.originating_source.get_value({"G": scope, "L": values}, guards._get_closure_vars(), known_values)
        is_global = get_global_source_name(guard.originating_source) is not None
        if trace_keys.guarded_value(found, guard.create_fn_name(), is_global, digests) != wanted:
            raise _Refused(f"{guard.name} is something else")
    for identity in trace.identities:
        _check_identity(identity, graph, scope, values)
        graph.guards.add(torch._guards.Guard(identity.source, getattr(guards.GuardBuilder, identity.guard)))
    return package.load_guard_manager(state, code, scope)


def _check_identity(identity: _Identity, graph: Any, scope: dict[str, Any], values: dict[str, Any]) -> None:
    """Raises _Refused if the object is another one here, or if no guard can be made that it stays this one."""
    source = identity.source
    found = source.get_value({"G": scope, "L": values}, guards._get_closure_vars(), {})
    if trace_keys.identity_of(found) != identity.value:
        raise _Refused(f"{source.name} is something else")
    if (root := get_global_source_name(source)) is not None:
        graph.global_scope[root] = scope[root]
        return
    root = get_local_source_name(source)
    if root is not None and isinstance(values.get(root), types.FunctionType):
        graph.local_scope[root] = values[root]
        return
    stored = {"G": graph.global_scope, "L": graph.local_scope}
    if source.get_value(stored, guards._get_closure_vars(), {}) is not found:  # guards are made for what was stored
        raise _Refused(f"{source.name} has no name")


def _renamed(code: types.CodeType, name: str) -> tuple[types.CodeType, str]:
    """The code with a new name for its graph: the same trace may be loaded twice."""
    new = f"__compiled_fn_{uuid.uuid4().hex}"
    names = tuple(new if each == name else each for each in code.co_names)
    return code.replace(co_names=names), new
