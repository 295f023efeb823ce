# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.gpu_compilers [--dialect cuda hip] [--only families operators models] [--shard 1/8]``: what the
compiler writes for GPUs of NVIDIA, in CUDA C++, compiled by NVRTC, and for those of AMD, in HIP C++, by hipcc, which
need none of them. Nothing runs. Ends with 1 if a program is refused.

``families`` are those that ``tests.oclgrind`` runs; ``operators`` what PyTorch's own tests of operators call, on
float32, bfloat16 and int64; ``models`` whole graphs, forward and training. The operators are many: a shard takes each
eighth of them, the first one first.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

# Tensors need a device, and nothing runs on it.
os.environ["OUTBOARD_DRIVER"] = "sim"

import torch  # noqa: E402
from torch.testing._internal.common_methods_invocations import op_db  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from outboard import _C
from outboard.compiler.adapter.exported import decompose, lower_program  # noqa: E402
from outboard.compiler.adapter.lowering import lower_operator  # noqa: E402
from outboard.compiler.adapter.operators.refusals import is_refusal  # noqa: E402
from outboard.compiler.plans import plan as p  # noqa: E402
from outboard.compiler.target import Target  # noqa: E402
from tests.lowering import AMD_CDNA, AMD_RDNA, NVIDIA, compiling_for, on_device, plan_of_call, plan_of_operator  # noqa: E402
from tests.oclgrind import families  # noqa: E402

from .errors import CompileError  # noqa: E402
from .hipcc import Hipcc  # noqa: E402
from .nvrtc import Nvrtc  # noqa: E402

Compiler = Nvrtc | Hipcc
#: By dialect: what a GPU declares, who compiles for it, and the architectures to compile for.
GPUS: dict[str, list[tuple[Target, type[Compiler], tuple[str, ...]]]] = {
    "cuda": [(NVIDIA, Nvrtc, ("sm_80", "sm_90"))],
    "hip": [(AMD_CDNA, Hipcc, ("gfx90a",)), (AMD_RDNA, Hipcc, ("gfx1030",))],
}

DTYPES = (torch.float32, torch.bfloat16, torch.int64)
SAMPLES = 4  #: of each operator and dtype


def family_plans(gpu: Target) -> Iterator[tuple[str, p.Plan]]:
    """The plans of the families of kernels for GPUs, each with its operator's name."""
    for family, programs in (families.generated() | families.handwritten() | families.calls()).items():
        plan_of = plan_of_call if family == families.CALLS else plan_of_operator
        for op, arguments in programs:
            yield op, plan_of(op, arguments, gpu)


class _Calls(TorchDispatchMode):
    """Collects the operators that are called, once for each kind of arguments, while they run on the CPU."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()
        self.waiting: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        key = f"{func} {[_kind(value) for value in args]} {sorted(kwargs or {})}"
        if key not in self.seen and func.namespace == "aten":
            self.seen.add(key)
            self.waiting.append((func, args, dict(kwargs or {})))
        return func(*args, **(kwargs or {}))


def _kind(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.dtype, value.dim(), value.is_contiguous()
    return [_kind(item) for item in value] if isinstance(value, (list, tuple)) else type(value)


def operator_plans(gpu: Target, first: int = 0, step: int = 1) -> Iterator[tuple[str, p.Plan]]:
    """The plans of the operators that PyTorch's samples reach, of each ``step``-th of PyTorch's descriptions. What the
    device would leave to the CPU has none."""
    calls = _Calls()
    for info in op_db[first::step]:
        if info.name.startswith("jiterator"):
            continue  # a compiler of PyTorch's own for CUDA, which the CPU does not have
        for dtype in set(DTYPES) & info.dtypes:
            _sample(info, dtype, calls)
            while calls.waiting:
                func, args, kwargs = calls.waiting.pop()
                plan = _plan(func, args, kwargs, gpu)
                if plan is not None:
                    yield str(func), plan


def _sample(info: Any, dtype: torch.dtype, calls: _Calls) -> None:
    gradients = dtype.is_floating_point and info.supports_autograd
    try:
        for _, sample in zip(range(SAMPLES), info.sample_inputs("cpu", dtype, requires_grad=gradients), strict=False):
            with calls:
                result = info.op(sample.input, *sample.args, **sample.kwargs)
                if isinstance(result, torch.Tensor) and result.requires_grad:
                    result.sum().backward()
    except (RuntimeError, NotImplementedError, TypeError, ValueError):
        return  # the CPU has no such operator in this dtype


def _plan(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], gpu: Target) -> p.Plan | None:
    if "device" in kwargs:
        kwargs["device"] = torch.device(torch._C._get_privateuse1_backend_name())
    moved = {name: on_device(value) for name, value in kwargs.items()}
    try:
        return lower_operator(_C.signed_call(func.name(), on_device(args), moved, True), gpu).plan
    except Exception as error:
        if is_refusal(error) or isinstance(error, (RuntimeError, IndexError, TypeError, ValueError)):
            return None  # the CPU's, or none of this device
        raise


def _models() -> dict[str, tuple[Callable[[], torch.nn.Module], tuple[Any, ...]]]:
    nn = torch.nn
    image, words = torch.randn(2, 3, 32, 32), torch.randn(2, 9, 32)
    return {
        "mlp": (lambda: nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 5)), (words,)),
        "convolutions": (
            lambda: nn.Sequential(
                nn.Conv2d(3, 8, 3, padding=1),
                nn.BatchNorm2d(8),
                nn.SiLU(),
                nn.MaxPool2d(2),
                nn.Conv2d(8, 8, 3, stride=2, groups=4),
                nn.GroupNorm(2, 8),
                nn.AdaptiveAvgPool2d(1),
                nn.Flatten(),
                nn.Linear(8, 3),
                nn.LogSoftmax(1),
            ),
            (image,),
        ),  # fmt: skip
        "encoder": (lambda: nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), (words,)),
        "decoder": (lambda: nn.TransformerDecoderLayer(32, 4, 64, batch_first=True), (words, words)),
        "lstm": (lambda: nn.LSTM(32, 16, batch_first=True), (words,)),
        "upsampling": (lambda: nn.Sequential(nn.ConvTranspose2d(3, 4, 2, 2), nn.Upsample(scale_factor=2)), (image,)),
    }


def model_plans(_gpu: Target) -> Iterator[tuple[str, p.Plan]]:
    """The plans of whole graphs: models as they are exported, in float32 and bfloat16."""
    device = torch._C._get_privateuse1_backend_name()
    for name, (make, inputs) in _models().items():
        for dtype in (torch.float32, torch.bfloat16):
            torch.manual_seed(0)
            model = make().eval().to(dtype).to(device)
            program = torch.export.export(model, tuple(value.to(dtype).to(device) for value in inputs))
            yield f"{name} in {dtype}", lower_program(decompose(program, 0), 0).plan


PARTS: dict[str, Callable[..., Iterator[tuple[str, p.Plan]]]] = {
    "families": family_plans,
    "operators": operator_plans,
    "models": model_plans,
}


def check(part: str, plans: Iterator[tuple[str, p.Plan]], compilers: dict[str, Compiler]) -> int:
    """Compiles the programs of a part, each once per architecture; returns how many are refused."""

    def attempt(source: str, name: str) -> str:
        for architecture, compiler in compilers.items():
            try:
                slow = compiler.compile(source)
            except CompileError as error:
                return f"{name} for {architecture}:\n{error}\n{source}"
            if slow and part == "families":
                return "\n".join([f"{name} for {architecture}:", *slow])
        return ""

    results: dict[str, Future[str]] = {}
    # NVRTC compiles one program at a time per thread, without the GIL, while this thread makes further ones.
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for name, plan in plans:
            for source, _options in plan.programs:
                if source not in results:
                    results[source] = pool.submit(attempt, source, name)
    refused = [text for text in (result.result() for result in results.values()) if text]
    for text in refused[:3]:
        print(text)
    print(f"{part}: {len(results)} programs for {', '.join(compilers)}, {len(refused)} refused", flush=True)
    return len(refused)


def shard(text: str) -> tuple[int, int]:
    """``"2/8"``: the second of eight, as the place of the first operator and the distance of the next."""
    number, _, count = text.partition("/")
    if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise argparse.ArgumentTypeError(f"'{text}' is none of 1/8 to 8/8")
    return int(number) - 1, int(count)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dialect", nargs="+", choices=list(GPUS), default=["cuda"])
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--shard", type=shard, default=(0, 1), help="of the operators, as 1/8")
    options = parser.parse_args()
    refused = 0
    for gpu, compiler, architectures in [case for dialect in options.dialect for case in GPUS[dialect]]:
        compilers = {architecture: compiler(architecture) for architecture in architectures}
        with compiling_for(gpu):
            for part in options.only:
                plans = PARTS[part](gpu, *(options.shard if part == "operators" else ()))
                refused += check(part, plans, compilers)
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main())
