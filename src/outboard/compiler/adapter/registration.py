# SPDX-License-Identifier: Apache-2.0
"""Makes Inductor know our device: scheduling, wrapper, device interface."""

from __future__ import annotations

import contextlib
import contextvars
import functools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch
from torch._dynamo.device_interface import DeviceInterface, register_interface_for_device
from torch._inductor import lowering
from torch._inductor.codegen.common import (
    DeviceOpOverrides,
    register_backend_for_device,
    register_device_op_overrides,
)

from ..target import target_of
from .scheduling import LoopScheduling
from .wrapper import EagerWrapper, PlanWrapper

#: Inductor's settings for one operator. No fusion across reductions is at stake, so everything optional is off.
EAGER_CONFIG: dict[str, Any] = {
    "split_reductions": False,
    "allow_buffer_reuse": False,
    "size_asserts": False,
    "nan_asserts": False,
    "alignment_asserts": False,
    "implicit_fallbacks": True,
    "fallback_random": False,
    "comment_origin": False,
    "triton.tiling_prevents_pointwise_fusion": False,
    "triton.tiling_prevents_reduction_fusion": False,
    "triton.coalesce_tiling_analysis": False,
    "unroll_reductions_threshold": 1,
    "loop_ordering_after_fusion": False,
    "benchmark_kernel": False,
    "max_autotune": False,
    "max_autotune_gemm": False,
    "assert_indirect_indexing": True,
    "compute_all_bounds": False,
    "combo_kernels": False,
    "memory_planning": False,
    "cpp_wrapper": False,
    "profile_bandwidth": False,
    "graph_partition": False,
}


def device_name() -> str:
    """The device type's name in this process."""
    return torch._C._get_privateuse1_backend_name()


def _device_index(device: Any) -> int:
    if isinstance(device, int):
        return device
    index = torch.device(device).index if device is not None else None
    return index if index is not None else int(torch.accelerator.current_device_index())


class OutboardInterface(DeviceInterface):
    """What Dynamo and Inductor ask a device."""

    class device:  # noqa: N801
        """Switches the current device."""

        def __new__(cls, device: Any) -> Any:
            return torch.accelerator.device_index(_device_index(device))

    Event = torch.Event
    Stream = torch.Stream

    class Worker:
        """What a compile worker process may ask; it does not open devices."""

        @staticmethod
        def set_device(device: int) -> None:
            torch.accelerator.set_device_index(device)

        @staticmethod
        def current_device() -> int:
            return int(torch.accelerator.current_device_index())

        @staticmethod
        def get_device_properties(device: Any = None) -> Any:
            return OutboardInterface.get_device_properties(device)

    @staticmethod
    def current_device() -> int:
        return int(torch.accelerator.current_device_index())

    @staticmethod
    def set_device(device: Any) -> None:
        torch.accelerator.set_device_index(_device_index(device))

    @staticmethod
    def exchange_device(device: int) -> int:
        previous = int(torch.accelerator.current_device_index())
        torch.accelerator.set_device_index(device)
        return previous

    @staticmethod
    def maybe_exchange_device(device: int) -> int:
        return OutboardInterface.exchange_device(device) if device >= 0 else -1

    @staticmethod
    def device_count() -> int:
        return int(torch.accelerator.device_count())

    @staticmethod
    def is_available() -> bool:
        return bool(torch.accelerator.is_available())

    @staticmethod
    def current_stream(device: Any = None) -> Any:
        return torch.accelerator.current_stream(_device_index(device))

    @staticmethod
    def set_stream(stream: Any) -> None:
        torch.accelerator.set_stream(stream)

    @staticmethod
    def get_raw_stream(device_index: int) -> int:
        return 0

    @staticmethod
    def synchronize(device: Any = None) -> None:
        torch.accelerator.synchronize(_device_index(device))

    @staticmethod
    def get_device_properties(device: Any = None) -> Any:
        target = target_of(_device_index(device))
        return SimpleNamespace(
            multi_processor_count=target.compute_units,
            max_threads_per_block=target.max_work_group_size,
            warp_size=max(target.sub_group_size, 1),
            major=0,
        )

    @staticmethod
    def get_compute_capability(device: Any = None) -> str:
        return target_of(_device_index(device)).cache_key

    @staticmethod
    def is_bf16_supported(including_emulation: bool = False) -> bool:
        return True

    @staticmethod
    def is_dtype_supported(dtype: torch.dtype, including_emulation: bool = False) -> bool:
        return dtype not in (torch.float8_e4m3fn, torch.float8_e5m2)

    @staticmethod
    def memory_allocated(device: Any = None) -> int:
        return int(torch.accelerator.memory_allocated(_device_index(device)))

    @staticmethod
    def is_triton_capable(device: Any = None) -> bool:
        return False

    @staticmethod
    def raise_if_triton_unavailable(device: Any = None) -> None:
        """Nothing: kernels here need no Triton."""


class OutboardDeviceOps(DeviceOpOverrides):
    """Lines of Python that generated modules use to steer the device."""

    def import_get_raw_stream_as(self, name: str) -> str:
        return f"{name} = lambda index: 0"

    def set_device(self, device_idx: int) -> str:
        return f"torch.accelerator.set_device_index({device_idx})"

    def synchronize(self) -> str:
        return "torch.accelerator.synchronize()"

    def device_guard(self, device_idx: int) -> str:
        return f"torch.accelerator.device_index({device_idx})"

    def current_stream(self) -> str:
        return "torch.accelerator.current_stream()"


_builder: contextvars.ContextVar[Any] = contextvars.ContextVar("outboard_builder", default=None)


class _ChosenWrapper(PlanWrapper):
    """Makes the wrapper of the compilation under way: an operator's own, else the one for whole graphs."""

    @classmethod
    def create(cls, is_subgraph: bool, subgraph_name: Any, parent_wrapper: Any, partition_signatures: Any = None) -> Any:
        from .graphs import GraphWrapper

        builder = _builder.get()
        if builder is None or is_subgraph:
            return GraphWrapper.create(is_subgraph, subgraph_name, parent_wrapper, partition_signatures)
        wrapper = EagerWrapper()
        wrapper.builder = builder
        return wrapper


@contextlib.contextmanager
def building(builder: Any) -> Iterator[None]:
    """Inside, graphs for our device are appended to ``builder`` instead of becoming a Python module."""
    token = _builder.set(builder)
    try:
        yield
    finally:
        _builder.reset(token)


@functools.cache
def register() -> None:
    """Registers the device with Inductor and Dynamo, once."""
    name = device_name()
    register_backend_for_device(name, LoopScheduling, _ChosenWrapper)
    register_device_op_overrides(name, OutboardDeviceOps())
    register_interface_for_device(name, OutboardInterface)
    for index in range(torch.accelerator.device_count() if torch.accelerator.is_available() else 0):
        register_interface_for_device(f"{name}:{index}", OutboardInterface)
    _prefer_two_pass_variance(name)


def _prefer_two_pass_variance(name: str) -> None:
    """Mean first, then squared deviations: here faster than Welford's one pass, and as exact."""
    original = lowering.use_two_step_variance

    def choose(x: Any, axis: Any, keepdim: Any, input_dtype: Any) -> bool:
        device = x.get_device()
        if device is not None and device.type == name:
            return True
        return bool(original(x, axis, keepdim, input_dtype))

    lowering.use_two_step_variance = choose
