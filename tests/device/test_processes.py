# SPDX-License-Identifier: Apache-2.0
"""Processes: forked children, signals, what is sent from one to another, and what a long one keeps."""

from __future__ import annotations

import pickle
import textwrap
from types import ModuleType

import pytest
import torch
from processes import INTERRUPTED

from tests.conftest import RunPython

PRELUDE = """
import gc, os, signal, sys, threading, time
import torch
name = torch._C._get_privateuse1_backend_name()
module = torch.get_device_module(name)
refusal = (
    f"Cannot re-initialize {name} in forked subprocess. To use {name} with multiprocessing, you must use the 'spawn' "
    "start method"
)
def in_child(function, patience=30):
    '''What `function` returned or raised in a forked child, as text; the child ends as Python processes do.'''
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(patience)
        try:
            text = f"returned {function()}"
        except BaseException as error:
            text = f"{'RuntimeError' if isinstance(error, RuntimeError) else type(error).__name__}: {error}"
        os.write(send, text[:4000].encode())
        sys.exit(0)
    os.close(send)
    text = b""
    while part := os.read(receive, 4096): text += part
    os.close(receive)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return text.decode() if status == 0 else f"exit code {status} {text.decode()}"
"""


@pytest.fixture
def python(run_python: RunPython) -> RunPython:
    """``run_python`` with :data:`PRELUDE`."""

    def run(source: str, check: bool = True, timeout: float = 120, **environment: str) -> str:
        return run_python(PRELUDE + textwrap.dedent(source), check, timeout, **environment)

    return run


def test_import_and_seeds_open_no_device_and_children_open_their_own(python: RunPython) -> None:
    python("""
        torch.manual_seed(5)
        x = torch.randn(4) @ torch.randn(4)
        module.empty_cache(), module.compile_stats()
        assert not module.is_initialized()
        drawn = "torch.rand(3, device=name).tolist()"
        first = in_child(lambda: (torch.ones(4, device=name).sum().item(), eval(drawn), module.is_initialized()))
        assert not module.is_initialized()
        assert first == f"returned {(4.0, eval(drawn), True)}", first
        assert module.is_initialized()
        refused = in_child(lambda: torch.ones(4, device=name))
        assert refused.startswith("RuntimeError: Cannot re-initialize"), refused
    """)


def test_a_process_may_end_before_the_threads_of_its_last_backward_pass(python: RunPython) -> None:
    """They get no time on the one processor until the main thread is done, which ends Python meanwhile."""
    python(
        """
        def step():
            x = torch.randn(6, 8, requires_grad=True)
            loss = (x.to(name) * 2).sum()
            loss.backward()
            return loss
        def train():
            os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
            step()
            for thread in os.listdir("/proc/self/task"):
                with open(f"/proc/self/task/{thread}/comm") as file:
                    if file.read().startswith("pt_autograd"):
                        os.sched_setscheduler(int(thread), os.SCHED_IDLE, os.sched_param(0))
            global kept
            kept = step()
        for _ in range(6):
            ended = in_child(train)
            assert ended == "returned None", ended
    """,
        OUTBOARD_DRIVER="sim",
        OUTBOARD_SIM_COMPILER="1",
    )


def test_threads_open_devices_at_once(python: RunPython) -> None:
    python("""
        ready = threading.Barrier(8)
        found = []
        def ask():
            ready.wait()
            found.append(torch.full((3,), 2.0, device=name).sum().item())
        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        assert found == [6.0] * 8, found
    """)


def test_forked_child_is_refused_everywhere(python: RunPython) -> None:
    python("""
        x = torch.ones(4, device=name)
        y = x + 1
        unmade, zero, host = torch.empty(4, device=name), torch.zeros(4, device=name), torch.zeros(4)
        event, stream = torch.Event(name), torch.Stream(name)
        event.record()
        assert y.sum().item() == 8
        refused = {
            "cpu": lambda: x.cpu(), "cpu of zeros": lambda: zero.cpu(), "item": lambda: y[0].item(),
            "repr": lambda: repr(x), "tolist": lambda: x.tolist(), "bool": lambda: bool(y[0] > 0),
            "copy_": lambda: x.copy_(host), "copy_ back": lambda: host.copy_(x), "to": lambda: host.to(name),
            "copy_ on the device": lambda: x.copy_(y), "clone": lambda: x.clone(), "fill": lambda: x.fill_(3),
            "zero": lambda: x.zero_(), "add": lambda: x + 1, "matmul": lambda: x @ x, "sort": lambda: x.sort(),
            "fallback": lambda: torch.linalg.eigh(x.view(2, 2)), "foreach": lambda: torch._foreach_add_([x], 1),
            "empty": lambda: torch.empty(4, device=name), "ones": lambda: torch.ones(4, device=name),
            "randn": lambda: torch.randn(4, device=name), "resize": lambda: x.resize_(100),
            "storage": lambda: x.untyped_storage().resize_(1000), "record_stream": lambda: x.record_stream(stream),
            "Stream": lambda: torch.Stream(name), "stream.synchronize": lambda: stream.synchronize(),
            "stream.query": lambda: stream.query(), "with stream": lambda: stream.__enter__(),
            "stream.wait_event": lambda: stream.wait_event(event), "set_stream": lambda: module.set_stream(stream),
            "event.record": lambda: event.record(), "event.query": lambda: event.query(),
            "event.synchronize": lambda: event.synchronize(), "event.wait": lambda: event.wait(),
            "synchronize": lambda: module.synchronize(), "accelerator": lambda: torch.accelerator.synchronize(),
            "Generator": lambda: torch.Generator(name), "manual_seed": lambda: module.manual_seed(1),
            "rng state": lambda: module.get_rng_state(), "memory_stats": lambda: module.memory_stats(),
            "mem_get_info": lambda: module.mem_get_info(), "empty_cache": lambda: module.empty_cache(),
            "host memory": lambda: torch.accelerator.memory_stats(), "pin_memory": lambda: host.pin_memory(),
            "properties": lambda: module.get_device_properties(), "set_device": lambda: module.set_device(0),
            "current_device": lambda: module.current_device(), "fallbacks": lambda: module.fallbacks(),
            "graph": lambda: torch.accelerator.Graph().capture_begin(),
            "compile": lambda: torch.compile(lambda a: a + 1)(x), "pickle": lambda: __import__("pickle").dumps(x),
            "deepcopy": lambda: __import__("copy").deepcopy(x), "dlpack": lambda: torch.from_dlpack(x),
            "save": lambda: torch.save(x, os.devnull),
        }
        def use_all():
            wrong = {}
            for what, use in refused.items():
                try:
                    wrong[what] = f"returned {use()!r}"
                except RuntimeError as error:
                    if refusal not in str(error): wrong[what] = str(error)
            return wrong
        text = in_child(use_all, patience=60)
        assert text == "returned {}", text
        torch.testing.assert_close((x + y).cpu(), torch.full((4,), 3.0))  # the parent goes on
    """)


def test_forked_child_works_on_the_cpu(python: RunPython) -> None:
    """Also lets go of what it inherited."""
    python("""
        x = torch.randn(1000, device=name)
        pinned, event, stream = torch.ones(4).pin_memory(), torch.Event(name), torch.Stream(name)
        event.record()
        kept = [x * i for i in range(20)]
        leaf = torch.ones(3, 4, device=name, requires_grad=True)
        def work():
            global x, pinned, event, stream
            assert module._is_in_bad_fork() and not torch.ones(3).is_pinned() and x.shape == (1000,)
            x[3:].view(-1), x.data_ptr(), x.is_contiguous()
            assert leaf.t().shape == (4, 3)  # autograd meets it
            x = pinned = event = stream = None
            kept.clear()
            gc.collect()
            model = torch.nn.Linear(4, 2)
            optimizer = torch.optim.Adam(model.parameters(), foreach=True)
            for _ in range(2):
                model(torch.ones(3, 4)).sum().backward()
                optimizer.step()
            function = torch.compile(lambda a: a.sin() + 1, backend="eager")
            torch.testing.assert_close(function(torch.ones(3)), torch.ones(3).sin() + 1)
            torch.manual_seed(3)
            thread = threading.Thread(target=lambda: torch.ones(3).sum())
            thread.start()
            thread.join()
            return torch.get_num_threads() > 0
        text = in_child(work)
        assert text == "returned True", text
        torch.testing.assert_close((x + 1).cpu(), x.cpu() + 1)
    """)


@pytest.mark.parametrize("batch_size", [2, None])
def test_forked_worker_that_uses_the_device_says_so(python: RunPython, batch_size: int | None) -> None:
    """In the parent, not only in the worker's own output."""
    python(
        f"""
        class Rows(torch.utils.data.Dataset):
            rows = torch.arange(40.0, device=name).view(10, 4)
            def __len__(self): return 10
            def __getitem__(self, i): return self.rows[i]
        Rows.rows.sum().item()
        loader = torch.utils.data.DataLoader(
            Rows(), batch_size={batch_size}, num_workers=1, multiprocessing_context="fork", timeout=30
        )
        try:
            list(loader)
        except RuntimeError as error:
            assert refusal in str(error), error
        else:
            raise SystemExit("the worker was not refused")
        assert Rows.rows.sum().item() == 780
        """
    )


def test_random_forks_threads_and_signals(python: RunPython) -> None:
    """Children come from a process whose threads hold any lock; signals meet any wait."""
    python("""
        import random
        chance = random.Random(5)
        x = torch.ones(2000, device=name)
        expected = (x * 2).cpu()
        stop, failures = threading.Event(), []
        def work(seed):
            mine, chance = torch.ones(2000, device=name), random.Random(seed)
            while not stop.is_set():
                try:
                    kind = chance.randrange(6)
                    if kind == 0: torch.testing.assert_close((mine * 2).cpu(), expected)
                    elif kind == 1: torch.Event(name).record()
                    elif kind == 2: torch.ones(50).pin_memory().to(name, non_blocking=True)
                    elif kind == 3: module.memory_stats()
                    elif kind == 4: torch.arange(30).to(name).sum().item()
                    else: torch.accelerator.synchronize()
                except BaseException as error:
                    failures.append(repr(error))
                    return
        threads = [threading.Thread(target=work, args=(i,), daemon=True) for i in range(3)]
        for thread in threads: thread.start()
        class Alarm(Exception): pass
        def on_alarm(*_): raise Alarm
        signal.signal(signal.SIGALRM, on_alarm)
        def child():
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(20)
            for use in (lambda: x + 1, lambda: x.cpu(), lambda: torch.Stream(name), lambda: x[5].item()):
                try: use()
                except RuntimeError as error: assert refusal in str(error), error
                else: os._exit(3)
            assert not torch.ones(3).is_pinned() and torch.ones(30).sum().item() == 30
            os._exit(0)
        alarms = 0
        for _ in range(200):
            if chance.random() < 0.3:
                pid = os.fork()
                if pid == 0:
                    try: child()
                    finally: os._exit(4)
                assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
                continue
            try:
                signal.setitimer(signal.ITIMER_REAL, chance.uniform(0.0001, 0.01))
                for _ in range(5):
                    y = x * 2
                    y.cpu(), torch.accelerator.synchronize(), torch.ones(20).to(name)
                time.sleep(10)  # the alarm must not arrive behind the try, nor where a loop jumps back
            except Alarm:
                alarms += 1
        stop.set()
        for thread in threads: thread.join()
        assert not failures, failures
        assert alarms > 100, alarms
        torch.testing.assert_close((x * 2).cpu(), expected)
    """)


LONG = """
x = torch.randn(1024, 1024, device=name) / 40
(x @ x).sum().item()
def queue_work(seconds):
    begin, products = time.monotonic(), 0
    while time.monotonic() - begin < 0.5:
        (x @ x).sum().item()
        products += 1
    for _ in range(int(products * 2 * seconds)): last = x @ x
    return last
"""
LONG += INTERRUPTED


def test_interrupted_waits(python: RunPython) -> None:
    """Ctrl-C ends each wait soon, what was queued goes on, and the process ends without waiting for it."""
    begun = python(
        LONG
        + textwrap.dedent("""
        event = torch.Event(name)
        last = queue_work(3)
        event.record()
        for wait in (last[0, 0].item, torch.accelerator.synchronize, last.cpu, event.synchronize):
            assert interrupted(wait) < 1
        if torch.accelerator.current_stream().query(): raise SystemExit("too little was queued")
        torch.accelerator.synchronize()  # later use works
        torch.testing.assert_close((last + 1)[:3].cpu(), last[:3].cpu() + 1)
        last = queue_work(20)
        from outboard.compiler import progress
        ended, end = [], progress.give_way
        progress.give_way = lambda: ended.append(end())  # before what will be printed of the exception
        try: interrupted(torch.accelerator.synchronize)
        finally: print(time.monotonic())
        assert len(ended) == 1, ended
        raise KeyboardInterrupt
        """),
        check=False,
    )
    assert "KeyboardInterrupt" in begun, begun
    assert "too little" not in begun and "Error" not in begun, begun


def test_interrupted_backward_passes(python: RunPython) -> None:
    """PyTorch runs them on a thread of its own, whose waits Ctrl-C ends too, whether for results or for room in the
    queue; not with a handler of the program's own, which might want the pass to go on."""
    python(
        LONG
        + textwrap.dedent("""
        class Work(torch.autograd.Function):
            @staticmethod
            def forward(ctx, y, work):
                ctx.work = work
                return y.clone()
            @staticmethod
            def backward(ctx, gradient):
                ctx.work()
                return gradient, None
        small = x[:256, :256].clone()
        def endless():
            while True: torch.mm(small, small)
        w = torch.ones(3, device=name, requires_grad=True)
        def backward(work): return Work.apply(w * 2, work).sum().backward
        assert interrupted(backward(lambda: queue_work(3).sum().item())) < 1
        with torch.autograd.detect_anomaly(check_nan=False):
            assert interrupted(backward(endless), after=1) < 1
        seen = []
        signal.signal(signal.SIGINT, lambda *_: seen.append(0))
        timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        w.grad = None
        backward(lambda: (time.sleep(0.4), x.cpu()))()
        timer.join()
        assert seen == [0] and w.grad.tolist() == [2] * 3
        """)
    )


def test_interrupted_while_the_queue_is_full(python: RunPython) -> None:
    out = python(
        LONG
        + textwrap.dedent("""
        def endless():
            while True: torch.mm(x, x)
        assert interrupted(endless, after=2) < 1
        begin = time.monotonic()
        import atexit
        atexit.register(lambda: print("left after", time.monotonic() - begin))
        """)
    )
    assert "left after" in out


def test_threads_go_on_while_one_is_interrupted(python: RunPython) -> None:
    python(
        LONG
        + textwrap.dedent("""
        results = []
        def wait(i):
            y = torch.full((100,), float(i), device=name) + 1
            torch.accelerator.synchronize()
            results.append(y.cpu().sum().item() == 100 * (i + 1))
        queue_work(2)
        threads = [threading.Thread(target=wait, args=(i,)) for i in range(4)]
        for thread in threads: thread.start()
        assert interrupted(torch.accelerator.synchronize) < 1
        assert interrupted(x.cpu) < 1
        for thread in threads: thread.join()
        assert results == [True] * 4, results
        """)
    )


def test_fresh_inputs_take_no_more_host_memory(python: RunPython) -> None:
    """Each call has an input from the host, and the host does not wait for the device."""
    python("""
        import ctypes
        class Info(ctypes.Structure):
            _fields_ = [(field, ctypes.c_size_t) for field in
                        "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()]
        libc = ctypes.CDLL("libc.so.6")
        libc.mallinfo2.restype = Info
        def taken():
            torch.accelerator.synchronize()
            info = libc.mallinfo2()
            return info.arena + info.hblkhd
        model = torch.nn.Conv2d(3, 8, 3).to(name)
        def calls(count):
            with torch.no_grad():
                for _ in range(count): model(torch.ones(1, 3, 16, 16).to(name))
        calls(1500)
        grown = []
        for _ in range(3):  # what a busy machine lets queue up is taken once, a leak each time
            before = taken()
            calls(1500)
            grown.append(taken() - before)
        assert min(grown) < 1 << 20, grown  # once 7.8 KiB a call
    """)


def test_pickle_and_queues(device: str) -> None:
    x = torch.arange(6.0, device=device).view(2, 3).t()
    again = pickle.loads(pickle.dumps(x))
    assert again.device == x.device and again.stride() == x.stride()
    assert torch.equal(again.cpu(), x.cpu())


def test_out_of_memory_names_the_limit(python: RunPython) -> None:
    python("""
        def refusal_of(function):
            try: function()
            except torch.OutOfMemoryError as error: return str(error)
            raise SystemExit("was not refused")
        total = module.get_device_properties().total_memory
        largest = module.get_device_properties().max_allocation
        free, all_memory = module.mem_get_info()
        assert 0 < free <= all_memory == total and largest <= total, (free, all_memory, total)
        text = refusal_of(lambda: torch.empty(total + 1, dtype=torch.uint8, device=name).fill_(1))
        assert "max_allocation" in text or "the device's memory" in text, text
        assert "cannot move" not in text and f"{min(total, largest) / 2**20:.2f} MiB" in text, text
        module.set_per_process_memory_fraction(0.25)
        assert module.mem_get_info()[1] <= total // 4 + 1
        text = refusal_of(lambda: torch.empty(total // 2, dtype=torch.uint8, device=name).fill_(1))
        assert "set_per_process_memory_fraction" in text and "cannot move" not in text, text
    """)


def test_a_tensor_larger_than_opencl_allows(python: RunPython, device_module: ModuleType) -> None:
    """On CPUs OpenCL's limit is not the machine's: 5 GiB, of which few pages are touched."""
    properties = device_module.get_device_properties()
    if properties.type != "cpu" or properties.total_memory < 6 << 30:
        pytest.skip("needs a CPU device, and 6 GiB of memory")
    python(
        """
        x = torch.empty(5 << 30, dtype=torch.uint8, device=name)
        end = x[-1000:]
        end.fill_(7)
        end += 1
        end[:10] = torch.arange(10, dtype=torch.uint8)
        x[:3] = end[20:23]
        assert (end[:10] * 2).tolist() == [2 * i for i in range(10)] and end[10:].sum().item() == 990 * 8
        assert x[:3].tolist() == [8, 8, 8]
        del x, end
        module.empty_cache()
        assert module.memory_reserved() == 0
        """
    )
