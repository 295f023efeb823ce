# SPDX-License-Identifier: Apache-2.0
"""Plans for devices that are not there: what the compiler would write for them."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch

from outboard import _C
from outboard.compiler import kernels, target
from outboard.compiler.adapter.lowering import lower_operator
from outboard.compiler.kernels.call import ExternCall
from outboard.compiler.operators.overloads import find_overload
from outboard.compiler.plans import plan as p
from outboard.compiler.plans.builder import PlanBuilder, TensorArg

#: What a GPU of NVIDIA declares (csrc/drivers/cuda): CUDA's manual says the same of compute capability 8.0 and 9.0.
NVIDIA = target.Target(
    dialect="cuda",
    type="gpu",
    execution="simt",
    max_work_group_size=1024,
    sub_group_size=32,
    vector_width=1,
    local_memory=49152,
    host_accessible=False,
    has_fp16=True,
    matrix_units=True,
    cache_key="nvidia",
)

#: GPUs of AMD, as HIP's documentation describes them: wavefronts of 64 work-items in CDNA, of 32 in RDNA.
AMD_CDNA = dataclasses.replace(
    NVIDIA, dialect="hip", sub_group_size=64, local_memory=65536, matrix_units=False, cache_key="amd-cdna"
)
AMD_RDNA = dataclasses.replace(AMD_CDNA, sub_group_size=32, cache_key="amd-rdna")


@contextlib.contextmanager
def compiling_for(device: target.Target) -> Iterator[None]:
    """Has the compiler take every device for this one."""
    properties = dataclasses.asdict(device)
    target.target_of.cache_clear()
    try:
        with mock.patch.object(_C, "device_properties", lambda index: properties):
            yield
    finally:
        target.target_of.cache_clear()


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The tensors among (lists of) arguments, in order: the inputs of a plan whose numbers are constants."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)


def on_device(value: Any) -> Any:
    """The same arguments with tensors of a device of ours, whose elements are nothing in particular."""
    if isinstance(value, torch.Tensor):
        device = torch._C._get_privateuse1_backend_name()
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=device)
    return type(value)(map(on_device, value)) if isinstance(value, (list, tuple)) else value


def plan_of_operator(op: str, arguments: tuple[Any, ...], device: target.Target) -> p.Plan:
    """The plan of an operator by itself, numbers as constants."""
    return lower_operator(_C.signed_call(op, on_device(arguments), {}, True), device).plan


def plan_of_call(op: str, arguments: tuple[Any, ...], device: target.Target) -> p.Plan:
    """The plan of an operator as a call in a graph, by a kernel of ``compiler/kernels``. Raises ValueError if none
    takes it."""
    builder = PlanBuilder(device)
    numbers = {id(tensor): builder.add_input(p.InputKind.TENSOR) for tensor in tensors_in(arguments)}

    def lower(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return TensorArg(numbers[id(value)], value.dtype, tuple(value.shape), tuple(value.stride()))

    like = tensors_in(find_overload(op)(*arguments))
    results = [builder.allocate_like(tensor.shape, tensor.stride(), tensor.dtype) for tensor in like]
    if not kernels.lower(builder, ExternCall(op, [lower(value) for value in arguments], {}, results)):
        raise ValueError(f"no kernel takes this call of {op}")
    for result in results:
        builder.output_tensor(result)
    return builder.finish()
