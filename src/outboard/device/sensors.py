# SPDX-License-Identifier: Apache-2.0
"""What a device's sensors say, where its driver reads any: the names and units of ``torch.cuda``."""

from __future__ import annotations

from outboard import _C
from outboard.device.devices import DeviceLike, get_device_properties, index_of
from outboard.device.memory import mem_get_info


def _read(field: str, what: str, device: DeviceLike) -> int:
    """Raises NotImplementedError where there is no such sensor."""
    index = index_of(device)
    value: int | None = _C.sensors(index)[field]
    if value is None:
        driver = get_device_properties(index).driver
        raise NotImplementedError(f"the driver '{driver}' has no sensor that tells {what}")
    return value


def utilization(device: DeviceLike = None) -> int:
    """Percent of the time since a moment ago in which a device (default: the current one) computed.

    Raises:
        NotImplementedError: if the device has no such sensor, as for all functions here.
    """
    return _read("compute_busy", "how busy the device is", device)


def memory_usage(device: DeviceLike = None) -> int:
    """Percent of that time in which the device's memory was read or written."""
    return _read("memory_busy", "how busy the device's memory is", device)


def temperature(device: DeviceLike = None) -> int:
    """Degrees Celsius."""
    return _read("temperature", "the temperature", device)


def power_draw(device: DeviceLike = None) -> int:
    """Milliwatts."""
    return _read("power", "the power that the device draws", device)


def clock_rate(device: DeviceLike = None) -> int:
    """MHz of what computes."""
    return _read("clock", "the clock rate", device)


def device_memory_used(device: DeviceLike = None) -> int:
    """Bytes of a device's memory that are in use, by this process or others; without a sensor, what is not free."""
    used: int | None = _C.sensors(index_of(device))["memory_used"]
    if used is not None:
        return used
    free, total = mem_get_info(device)
    return total - free
