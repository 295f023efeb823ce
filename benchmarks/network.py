# SPDX-License-Identifier: Apache-2.0
"""Collectives between machines that are network namespaces of this one, with links of limited bandwidth.

``python -m benchmarks.network`` makes a namespace for each machine, and one with the bridge that joins them, so that
nothing of the host's own network is touched. Each machine's link is a pair of virtual cards with ``tc tbf`` (bandwidth)
and, where the kernel has it, ``tc netem`` (latency) on either end. One process of the device's backend runs in each and
measures, in groups of 1, 2, 4 and 8, ``all_reduce``, ``all_gather``, ``reduce_scatter``, ``broadcast``, ``send`` with
``recv``, and a step of DistributedDataParallel. All is removed at the end. Needs root, and Debian's ``iproute2``.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"  # the device is opened in the ranks
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["OUTBOARD_SHARED_MEMORY"] = "0"  # the ranks are on one machine, after all

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

#: Bytes of a whole tensor, and how often each is measured.
SIZES = {4 << 10: 15, 64 << 10: 9, 512 << 10: 5, 2 << 20: 3}
RANKS = (1, 2, 4, 8)
STEPS = 5  #: of DDP
#: As in a cluster: connections begin with large windows, and one that was idle between two collectives keeps its own.
TCP = {"tcp_slow_start_after_idle": "0", "tcp_rmem": "4096 4194304 16777216", "tcp_wmem": "4096 4194304 16777216"}
LIMIT = 170.0  #: seconds, after which the ranks are ended
_CLONE_NEWNET = 0x40000000


def run(command: str) -> None:
    """Runs ``ip`` or ``tc``. Raises RuntimeError with what it said, such as that this user may not."""
    done = subprocess.run(command.split(), capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{command}: {done.stderr.strip()}")


def has_netem() -> bool:
    """Whether this kernel delays packets: tried on the loopback of a namespace that is gone afterwards."""
    name = f"ob{os.getpid()}-try"
    run(f"ip netns add {name}")
    try:
        tried = f"ip netns exec {name} tc qdisc add dev lo root netem delay 1ms".split()
        return subprocess.run(tried, capture_output=True).returncode == 0
    finally:
        run(f"ip netns del {name}")


@contextmanager
def machines(count: int, rate: str, delay: str) -> Iterator[list[str]]:
    """Names of ``count`` namespaces, whose cards ``m0``, ``m1``... have the addresses 10.77.0.1, 10.77.0.2...

    ``rate`` is tc's, of each link in each direction; ``delay``, where not empty, netem's, for each way of a link.
    """
    mark = f"ob{os.getpid()}"
    switch, names = f"{mark}-switch", [f"{mark}-{i}" for i in range(count)]
    made: list[str] = []
    try:
        for name in (switch, *names):
            run(f"ip netns add {name}")
            made.append(name)
        run(f"ip -n {switch} link add bridge type bridge")
        run(f"ip -n {switch} link set bridge up")
        for i, name in enumerate(names):
            run(f"ip -n {name} link add m{i} type veth peer name p{i} netns {switch}")
            run(f"ip -n {switch} link set p{i} master bridge")
            run(f"ip -n {switch} link set p{i} up")
            run(f"ip -n {name} addr add 10.77.0.{i + 1}/24 dev m{i}")
            run(f"ip -n {name} link set m{i} up")
            run(f"ip -n {name} link set lo up")
            for space, card in ((name, f"m{i}"), (switch, f"p{i}")):
                _limit(space, card, rate, delay)
        yield names
    finally:
        for name in reversed(made):
            run(f"ip netns del {name}")


def _limit(space: str, card: str, rate: str, delay: str) -> None:
    run(f"tc -n {space} qdisc add dev {card} root handle 1: tbf rate {rate} burst 32kb latency 200ms")
    if delay:
        run(f"tc -n {space} qdisc add dev {card} parent 1: handle 2: netem delay {delay} limit 100000")


def enter(name: str) -> None:
    """Moves this thread into a network namespace. OSError where it may not."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/run/netns/{name}") as file:
        if libc.setns(file.fileno(), _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"cannot enter the network namespace {name}")


def _calls(size: int, group: Any, device: str) -> dict[str, Callable[[], Any]]:
    """Each collective of tensors of ``size`` bytes."""
    ranks, rank = dist.get_world_size(group), dist.get_rank(group)
    whole = torch.ones(size // 4, device=device)
    part = torch.ones(size // 4 // ranks, device=device)

    def message() -> None:
        if rank == 0:
            dist.send(whole, 1)
        elif rank == 1:
            dist.recv(whole, 0)

    return {
        "all_reduce": lambda: dist.all_reduce(whole, group=group),
        "all_gather": lambda: dist.all_gather_into_tensor(whole, part, group=group),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, whole, group=group),
        "broadcast": lambda: dist.broadcast(whole, 0, group=group),
        "send_recv": message,
    }


def _slowest(call: Callable[[], Any], repeats: int, group: Any) -> float:
    """Median over ``repeats`` of the seconds until the last rank has the result."""
    call()
    times = []
    for _ in range(repeats):
        dist.barrier(group)
        begin = time.perf_counter()
        call()
        torch.accelerator.synchronize()
        times.append(time.perf_counter() - begin)
    slowest = torch.tensor(times, dtype=torch.float64, device=torch.accelerator.current_accelerator())
    dist.all_reduce(slowest, dist.ReduceOp.MAX, group=group)
    return statistics.median(slowest.tolist())


def _step(model: torch.nn.Module, batch: torch.Tensor) -> None:
    model(batch).square().mean().backward()
    for parameter in model.parameters():
        parameter.grad = None


def _training(group: Any, device: str) -> dict[str, float]:
    """Seconds of a step of DDP and of the same without sums, and the bytes of its gradients."""
    torch.manual_seed(0)
    layers = [torch.nn.Linear(512, 512) for _ in range(4)]
    model = torch.nn.Sequential(*layers).to(device)
    batch = torch.randn(64, 512, device=device)
    alone = _slowest(lambda: _step(model, batch), STEPS, group)
    wrapped = torch.nn.parallel.DistributedDataParallel(model, process_group=group)
    for _ in range(2):  # DDP sorts its buckets after the first step
        _step(wrapped, batch)
    together = _slowest(lambda: _step(wrapped, batch), STEPS, group)
    size = sum(parameter.numel() * 4 for parameter in model.parameters())
    return {"ranks": dist.get_world_size(group), "alone": alone, "seconds": together, "bytes": size}


def measure(rank: int, count: int, output: Path) -> None:
    """What a rank does, in its namespace: measures in groups of the first ranks; rank 0 writes the file."""
    import outboard  # noqa: F401 - opens the device

    torch.set_num_threads(1)
    accelerator = torch.accelerator.current_accelerator()
    assert accelerator is not None
    device = accelerator.type
    dist.init_process_group(init_method="tcp://10.77.0.1:29500", rank=rank, world_size=count)
    samples: list[dict[str, Any]] = []
    steps: list[dict[str, float]] = []
    for ranks in [n for n in RANKS if n <= count]:
        group = dist.new_group(list(range(ranks)))
        if rank < ranks:
            for size, repeats in SIZES.items() if ranks > 1 else ():
                for name, call in _calls(size, group, device).items():
                    seconds = _slowest(call, repeats, group)
                    samples.append({"collective": name, "ranks": ranks, "bytes": size, "seconds": seconds})
            steps.append(_training(group, device))
        dist.barrier()
    if rank == 0:
        output.write_text(json.dumps({"samples": samples, "steps": steps}))
    dist.destroy_process_group()


def start(names: list[str], output: Path) -> None:
    """Forks a rank into each namespace, and waits. RuntimeError if one fails or the time is up."""
    children = {}
    for rank, name in enumerate(names):
        pid = os.fork()
        if pid == 0:
            _rank(rank, names, name, output)
        children[pid] = rank
    end = time.monotonic() + LIMIT
    try:
        while children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                if time.monotonic() > end:
                    raise RuntimeError(f"ranks {sorted(children.values())} did not end in {LIMIT:.0f} s")
                time.sleep(0.05)
            elif (rank := children.pop(pid, -1)) >= 0 and status != 0:
                raise RuntimeError(f"rank {rank} ended with status {status}")
    finally:
        for pid in children:
            os.kill(pid, 9)
            os.waitpid(pid, 0)


def _rank(rank: int, names: list[str], name: str, output: Path) -> None:
    status = 1
    try:
        enter(name)
        for key, value in TCP.items():
            Path("/proc/sys/net/ipv4", key).write_text(value)
        os.environ["GLOO_SOCKET_IFNAME"] = f"m{rank}"
        measure(rank, len(names), output)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(status)


def processor() -> str:
    """The processor's name, as the system has it."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def show(result: dict[str, Any]) -> None:
    """Prints tables of medians in milliseconds."""
    samples = result["samples"]
    columns = sorted({sample["ranks"] for sample in samples})
    print(
        "| collective | bytes | "
        + " | ".join(f"{n} ranks" for n in columns)
        + " |\n"
        + "|---" * (len(columns) + 2)
        + "|"
    )
    times = {(s["collective"], s["bytes"], s["ranks"]): s["seconds"] * 1e3 for s in samples}
    for name, size in dict.fromkeys((s["collective"], s["bytes"]) for s in samples):
        print(f"| {name} | {size:,} | " + " | ".join(f"{times[name, size, n]:.2f}" for n in columns) + " |")
    print("\n| DDP, ranks | step without sums | step |\n|---|---|---|")
    for step in result["steps"]:
        print(f"| {step['ranks']} | {step['alone'] * 1e3:.1f} | {step['seconds'] * 1e3:.1f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=8, choices=RANKS, help="machines")
    parser.add_argument("--rate", default="100mbit", help="bandwidth of a link, as tc writes it")
    parser.add_argument("--delay", default="500us", help="latency of a link, where the kernel has netem; '' for none")
    parser.add_argument("--output", type=Path, default=Path("out/network.json"))
    options = parser.parse_args()
    if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("tc"):
        sys.exit("benchmarks.network makes network namespaces: run it as root, with ip and tc (Debian's iproute2)")
    delay = options.delay if not options.delay or has_netem() else ""
    if options.delay and not delay:
        print("this kernel has no netem: links have the bandwidth asked for, and the latency of the system itself")
    options.output.parent.mkdir(parents=True, exist_ok=True)
    begin = time.monotonic()
    with machines(options.ranks, options.rate, delay) as names:
        start(names, options.output)
    result = json.loads(options.output.read_text())
    cores = len(os.sched_getaffinity(0))
    result |= {"rate": options.rate, "delay": delay, "processor": processor(), "cores": cores}
    options.output.write_text(json.dumps(result, indent=1) + "\n")
    show(result)
    print(f"\n{processor()}, {cores} cores, links of {options.rate}, {time.monotonic() - begin:.0f} s")


if __name__ == "__main__":
    main()
