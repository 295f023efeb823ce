# SPDX-License-Identifier: Apache-2.0
"""Devices: how many, which one is current, what they can do."""

from __future__ import annotations

import dataclasses
from types import TracebackType
from typing import Any

import torch

from outboard import _C, on_open

#: How a user names a device: index, string, torch.device, or None for the current one.
DeviceLike = int | str | torch.device | None


def name() -> str:
    """The device's type as PyTorch spells it."""
    return torch._C._get_privateuse1_backend_name()


def index_of(device: DeviceLike) -> int:
    """The index that ``device`` names; the current device's for None or a device without index.

    Raises:
        ValueError: for another type of device.
        RuntimeError: for an index that does not exist, or if there is no hardware.
    """
    if isinstance(device, str):
        device = torch.device(device)
    if isinstance(device, torch.device):
        if device.type != name():
            raise ValueError(f"Expected a {name()} device, but got: {device}")
        device = device.index
    _lazy_init()
    if device is None:
        return _C.current_device()
    if not 0 <= device < _C.device_count():
        raise RuntimeError(f"Invalid device index {device}: there are {_C.device_count()} {name()} devices.")
    return int(device)


def is_available() -> bool:
    """Whether there is at least one device this process may use: none in a forked child, as with CUDA, where Dynamo
    would ask for its stream while it traces work of the CPU. Never raises."""
    return _C.device_count() > 0 and not _C.forked()


def device_count() -> int:
    """Number of devices; 0 without hardware."""
    return _C.device_count()


def init() -> None:
    """Opens the devices, which happens by itself when one is first needed.

    Raises:
        RuntimeError: without hardware, saying what to install; in a forked child, saying to use ``spawn``.
    """
    _C.require_device()


def _lazy_init() -> None:
    if _C.device_count() == 0 or _C.forked():
        _C.require_device()


def is_initialized() -> bool:
    """Whether devices were opened, and this process may use one. Opens none."""
    return _C.devices_opened() and is_available()


def _is_in_bad_fork() -> bool:
    return _C.forked()


def current_device() -> int:
    """Index of the calling thread's current device.

    Raises:
        RuntimeError: without hardware.
    """
    _lazy_init()
    return _C.current_device()


def set_device(device: DeviceLike) -> None:
    """Selects the calling thread's current device.

    Args:
        device: index, string or ``torch.device``. A negative index is a no-op.

    Raises:
        RuntimeError: for an index that does not exist.
    """
    if isinstance(device, int) and device < 0:
        return
    _C.set_device(index_of(device))


class device:  # noqa: N801 - PyTorch's name
    """Context manager that changes the current device.

    Args:
        device: device to select; None or a negative index is a no-op.
    """

    def __init__(self, device: DeviceLike) -> None:
        no_op = device is None or (isinstance(device, int) and device < 0)
        self.idx = -1 if no_op else index_of(device)
        self.prev_idx = -1

    def __enter__(self) -> object:
        if self.idx >= 0:
            self.prev_idx = _C.current_device()
            _C.set_device(self.idx)
        return None

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.idx >= 0:
            _C.set_device(self.prev_idx)


class device_of(device):  # noqa: N801 - PyTorch's name
    """Context manager that changes the current device to that of a tensor or storage; no-op for those of other devices,
    and for what is on none.

    Args:
        obj: tensor or storage.
    """

    def __init__(self, obj: Any) -> None:
        place = getattr(obj, "device", None)
        super().__init__(place if isinstance(place, torch.device) and place.type == name() else None)


@dataclasses.dataclass(frozen=True)
class DeviceProperties:
    """What a device is and can do. Memory in bytes.

    Attributes:
        type: ``"cpu"``, ``"gpu"`` or ``"accelerator"``.
        dialect: language of its programs; empty without a compiler.
        library: what the driver has ready functions in, with its version; empty without one.
        compiler: what makes executables of graphs for the device, with its version; empty without one.
        static_sizes: whether an executable is for one set of sizes.
        vector_width: preferred float lanes per work-item; 1 on SIMT devices.
        host_accessible: whether the host can address its memory.
        matrix_units: whether its programs multiply small matrices of halves by units made for that.
        takes_host_memory: whether it can address the host's: then it can share memory with other processes.
    """

    name: str
    vendor: str
    driver: str
    driver_version: str
    dialect: str
    cache_key: str
    type: str
    compute_units: int
    max_work_group_size: int
    sub_group_size: int
    vector_width: int
    execution: str
    near_cache: int
    last_cache: int
    library: str
    compiler: str
    static_sizes: bool
    total_memory: int
    max_allocation: int
    local_memory: int
    alignment: int
    host_accessible: bool
    takes_host_memory: bool
    has_fp16: bool
    has_fp64: bool
    has_int64_atomics: bool
    matrix_units: bool

    @property
    def multi_processor_count(self) -> int:
        """The compute units, under the name that CUDA code looks for."""
        return self.compute_units


def get_device_properties(device: DeviceLike = None) -> DeviceProperties:
    """What a device (default: the current one) is and can do."""
    fields: dict[str, Any] = _C.device_properties(index_of(device))
    return DeviceProperties(**fields)


def get_device_name(device: DeviceLike = None) -> str:
    """The hardware's name, as its driver gives it."""
    return get_device_properties(device).name


def is_tf32_supported() -> bool:
    """False: products of float32 keep all their bits."""
    return False


def get_device_capability(device: DeviceLike = None) -> dict[str, Any]:
    """What a device supports: ``supported_dtypes`` (a set of ``torch.dtype``), as ``torch.accelerator`` reports it."""
    capability: dict[str, Any] = torch._C._accelerator_getDeviceCapability(index_of(device))
    return capability


def can_device_access_peer(device: DeviceLike, peer_device: DeviceLike) -> bool:
    """Whether kernels on one device may address another's memory; drivers do not offer that, so only with itself."""
    return index_of(device) == index_of(peer_device)


def synchronize(device: DeviceLike = None) -> None:
    """Waits until all work on all streams of a device (default: the current one) is finished."""
    _C.synchronize(index_of(device))


def reset(device: DeviceLike = None) -> None:
    """Makes a device (default: the current one) as new, also one that was lost or hangs.

    What was on it is gone: tensors, events, captured graphs and communicators of before raise
    ``torch.AcceleratorError`` from then on; work that was queued is left out. What writes all of such a tensor makes it
    good again, with all that share its storage (``copy_``, ``load_state_dict``, ``fill_``, ``normal_``, ``out=``); what
    writes a part raises. Streams and generators stay, with their numbers and seeds, and so do compiled functions, whose
    programs are loaded again and whose calls are captured anew. Limits of memory are those of the beginning. Other
    processes, and other devices, do not notice.

    Raises:
        NotImplementedError: if the device's driver cannot.
        RuntimeError: if it could not this time; then the device is lost.
    """
    index = index_of(device)
    _C.reset_device(index)
    on_open.was_reset(index)
