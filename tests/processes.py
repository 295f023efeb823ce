# SPDX-License-Identifier: Apache-2.0
"""Programs in processes of their own, without PyTorch's import in each.

Importing PyTorch and its compiler costs a process about ten times what most tests want of it. So one process imports
them, opens no device, and is forked for each program: the program has its own address space, environment, device,
caches and exit, as it would have if Python had started it. What it shares with the others is what an import leaves:
hash seed, addresses, and variables that PyTorch reads while it is imported. A test of any of these asks for
``cold=True``; where variables differ that are not in ``_LATE``, the process is a cold one anyway.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

#: Variables that nothing reads before a program begins, besides those of Outboard and of its profiles.
_LATE = {"TORCHINDUCTOR_CACHE_DIR", "XDG_CACHE_HOME", "POCL_CACHE_DIR", "PYTEST_CURRENT_TEST", "VARIANT", "SCALE"}
_LATE |= {
    "SHLVL",
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCH_DISTRIBUTED_DEBUG",
}
_LATE_PREFIXES = ("OUTBOARD_", "RBLN_", "TORCH_RBLN_")

#: What a program is sent that does not end. It writes where its threads are at the second one: LLVM takes the first.
_LAST_SIGNALS = (signal.SIGABRT, signal.SIGABRT, signal.SIGKILL)

#: A function for programs that import os, signal, threading and time.
INTERRUPTED = """
signal.signal(signal.SIGINT, signal.default_int_handler)  # what a shell runs in the background ignores it

def interrupted(wait, after=0.2):
    '''Seconds from Ctrl-C until it arrived.'''
    sent = []
    def interrupt():
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)
    timer = threading.Timer(after, interrupt)
    timer.start()
    try:
        wait()
    except KeyboardInterrupt:
        return time.monotonic() - sent[0]
    finally:
        timer.join()
    raise SystemExit("was not interrupted")
"""

_server_lock = threading.Lock()
_server: _Server | None = None


def run_program(
    arguments: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    cwd: Path | str | None = None,
    timeout: float = 300,
    cold: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Runs Python with ``arguments`` (``-c SOURCE``, ``-m MODULE`` or a file first) and more variables than this has.

    ``timeout`` is in seconds; subprocess.TimeoutExpired is raised after it, when the program has been killed. It has
    what the program wrote, whose end is where each of its threads was.
    """
    variables = dict(os.environ) | dict(environment or {})
    server = None if cold else _server_for(variables)
    if server is None:
        command = [sys.executable, "-X", "faulthandler", *arguments]
        return _run_cold(command, variables, cwd, timeout)
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        request = {"arguments": list(arguments), "environment": variables, "cwd": str(cwd or os.getcwd())}
        with server.connect() as connection:
            socket.send_fds(connection, [b"!"], [out.fileno(), err.fileno()])
            connection.sendall(json.dumps(request).encode() + b"\n")
            status = _status(connection, timeout)
        texts = [_text(file.fileno()) for file in (out, err)]
    if status is None:
        raise subprocess.TimeoutExpired(list(arguments), timeout, *texts)
    return subprocess.CompletedProcess(list(arguments), status, *texts)


def _run_cold(
    command: list[str], variables: dict[str, str], cwd: Path | str | None, timeout: float
) -> subprocess.CompletedProcess[str]:
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=variables, cwd=cwd, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            texts = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            for number in _LAST_SIGNALS:
                process.send_signal(number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(2)
            raise subprocess.TimeoutExpired(command, timeout, *process.communicate()) from None
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(command, process.returncode, *texts)


def _text(descriptor: int) -> str:
    with open(descriptor, encoding="utf-8", closefd=False) as file:
        file.seek(0)
        return file.read()


def _status(connection: socket.socket, timeout: float) -> int | None:
    """The exit status, negative for a signal, or None. The program's process comes first, its status later."""
    answers = connection.makefile()
    process = int(answers.readline())
    if select.select([connection], [], [], timeout)[0]:
        return int(answers.readline())
    for number in _LAST_SIGNALS:
        os.kill(process, number)
        if select.select([connection], [], [], 2)[0]:
            break
    return None


class _Server:
    """The process that is forked, seen from the tests. It ends with the process that started it."""

    def __init__(self) -> None:
        self.environment = dict(os.environ)
        self._folder = tempfile.TemporaryDirectory(prefix="outboard-tests-")
        self._address = os.path.join(self._folder.name, "socket")
        quiet = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "OPENBLAS_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, __file__, self._address],
            env=self.environment | quiet,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        atexit.register(self.stop)
        assert self._process.stdout is not None
        if self._process.stdout.readline() != b"ready\n":
            raise RuntimeError("the process that runs the tests' programs did not start")

    def serves(self, variables: Mapping[str, str]) -> bool:
        """Whether a program with these variables may do without importing PyTorch itself."""
        names = variables.keys() | self.environment.keys()
        different = {name for name in names if variables.get(name) != self.environment.get(name)}
        return all(name in _LATE or name.startswith(_LATE_PREFIXES) for name in different)

    def connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(self._address)
        return connection

    def stop(self) -> None:
        """Ends the process, which sees the end of its input, and waits for it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        self._folder.cleanup()


def _server_for(variables: Mapping[str, str]) -> _Server | None:
    """The process to fork for a program with these variables, or None if there is none."""
    global _server
    with _server_lock:
        if _server is None:
            _server = _Server()
    return _server if _server.serves(variables) else None


class _Program(Exception):
    """Unwinds a forked process out of the server, so that it ends as any interpreter does."""

    def __init__(self, request: dict[str, Any]) -> None:
        super().__init__("to be run")
        self.request = request


def _serve(address: str) -> NoReturn:
    """Accepts requests until standard input ends. Raises _Program in the processes that are to run one."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(64)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # who answers a request ends by itself
    gc.freeze()  # a collection would write to, and so copy, every page that holds an object
    os.write(1, b"ready\n")
    while sys.stdin not in select.select([sys.stdin, listener], [], [])[0]:
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            _answer(connection)
        connection.close()
    os._exit(0)


def _answer(connection: socket.socket) -> NoReturn:
    """Forks the program, and says how it ends."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _, (out, err), _, _ = socket.recv_fds(connection, 1, 2)
    with connection.makefile() as lines:
        request = json.loads(lines.readline())
    process = os.fork()
    if process == 0:
        connection.close()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(out, 1)
        os.dup2(err, 2)
        os.close(out)
        os.close(err)
        raise _Program(request)
    with contextlib.suppress(BrokenPipeError):  # a test that has given up no longer listens
        connection.sendall(f"{process}\n".encode())
        status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        connection.sendall(f"{status}\n".encode())
    os._exit(0)


def _become(environment: Mapping[str, str], cwd: str) -> None:
    """What an interpreter has before its program's first line."""
    for name in os.environ.keys() - environment.keys():
        del os.environ[name]
    os.environ.update(environment)
    os.chdir(cwd)
    faulthandler.enable()
    import outboard  # noqa: F401 - the device, which PyTorch's import was told to leave out


def _run(arguments: Sequence[str]) -> None:
    """Python's command line, as far as the tests use it."""
    kind, *rest = arguments
    if kind == "-m":
        sys.argv[:] = rest
        sys.path[0] = os.getcwd()
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        return
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    if kind == "-c":
        sys.argv[:] = ["-c", *rest[1:]]
        sys.path[0] = ""
        exec(compile(rest[0], "<string>", "exec", dont_inherit=True), main.__dict__)
        return
    main.__file__ = str(Path(kind).absolute())
    sys.argv[:] = arguments
    sys.path[0] = str(Path(kind).parent.absolute())
    exec(compile(Path(kind).read_bytes(), main.__file__, "exec", dont_inherit=True), main.__dict__)


def _main() -> int:
    import torch._dynamo.repro.after_dynamo
    import torch._functorch._aot_autograd.subclass_codegen
    import torch._inductor.compile_fx  # noqa: F401
    from torch._inductor.codecache import torch_key

    torch_key()  # a hash of PyTorch's sources, which is kept
    try:
        _serve(sys.argv[1])
    except _Program as program:
        request = program.request
    _become(request["environment"], request["cwd"])
    try:
        _run(request["arguments"])
    except Exception as error:
        frames = error.__traceback__
        traceback.print_exception(type(error), error, frames.tb_next if frames else None)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(_main())
