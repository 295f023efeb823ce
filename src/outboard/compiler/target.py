# SPDX-License-Identifier: Apache-2.0
"""What the compiler must know of the device it generates code for."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping

from . import dialects
from .tuning import Tuning


@dataclasses.dataclass(frozen=True)
class Limits:
    """What a device has room for at once: work-items of a work-group, work-items of a sub-group (1: it has none), and
    bytes of local memory of a work-group."""

    work_group: int
    sub_group: int
    local_memory: int


@dataclasses.dataclass(frozen=True)
class Target:
    """The properties of one device that steer code generation (see ``ob_device_properties`` in driver.h)."""

    dialect: str = "opencl-c"
    type: str = "cpu"  #: "cpu", "gpu" or "accelerator", for users to know
    execution: str = ""  #: "vector" or "simt"; "": as ``vector_width`` says
    compute_units: int = 1
    max_work_group_size: int = 1
    sub_group_size: int = 1  #: work-items that read each other's registers; 1 where there are none
    vector_width: int = 16  #: preferred float lanes per work-item; 1 on SIMT devices
    local_memory: int = 32768  #: bytes per work-group
    near_cache: int = 0  #: bytes of a compute unit's fastest cache of data; 0: unknown
    last_cache: int = 0  #: bytes of the last cache before memory; 0: unknown
    host_accessible: bool = True
    has_fp16: bool = False
    has_fp64: bool = True
    has_int64_atomics: bool = True
    matrix_units: bool = False  #: whether sub-groups multiply matrices of halves by words of the dialect
    cache_key: str = ""
    library: str = ""  #: name and version of what the driver has ready functions in; "" for nothing
    compiler: str = ""  #: name and version of what makes executables of graphs for the device; "" for nothing
    static_sizes: bool = False  #: whether an executable is for one set of sizes and strides

    @functools.cached_property
    def tuning(self) -> Tuning:
        """How the device likes its code."""
        return Tuning.of(
            execution=self.execution,
            vector_width=self.vector_width,
            near_cache=self.near_cache,
            last_cache=self.last_cache,
            has_fp64=self.has_fp64,
        )

    @property
    def plan_key(self) -> str:
        """What plans for the device are kept under: what changes its programs, and what its library and its compiler of
        graphs may change."""
        library = f"\1{self.library}" if self.library else ""
        compiler = f"\2{self.compiler}\2{self.static_sizes}" if self.compiler else ""
        units = "\3" if self.matrix_units else ""
        return f"{self.cache_key}{library}{compiler}{units}"

    def key_of(self, signature: bytes) -> bytes:
        """What a plan for the device is kept under; ``signature`` says what it computes."""
        return self.plan_key.encode() + b"\0" + signature

    @property
    def limits(self) -> Limits:
        """What the device has room for."""
        return Limits(self.max_work_group_size, self.sub_group_size, self.local_memory)

    @property
    def has_dialect(self) -> bool:
        """Whether programs can be made for the device: it has a dialect, and somebody here writes it."""
        return dialects.is_known(self.dialect)

    @staticmethod
    def from_properties(properties: Mapping[str, object]) -> Target:
        """The target described by ``outboard._C.device_properties(index)``."""
        kinds = {0: "cpu", 1: "gpu", 2: "accelerator"}
        values: dict[str, object] = {}
        for field in dataclasses.fields(Target):
            if field.name not in properties:
                continue
            value = properties[field.name]
            if field.name == "type":
                values["type"] = value.lower() if isinstance(value, str) else kinds[int(str(int(value)))]  # type: ignore[call-overload]
            elif isinstance(field.default, bool):
                values[field.name] = bool(value)
            elif isinstance(field.default, int):
                values[field.name] = int(value)  # type: ignore[call-overload]
            else:
                values[field.name] = str(value)
        target = Target(**values)  # type: ignore[arg-type]
        # A device whose work-groups are smaller than its sub-groups has no whole one to shuffle in.
        whole = target.sub_group_size <= max(target.max_work_group_size, 1)
        return target if whole else dataclasses.replace(target, sub_group_size=1)


#: Devices of other kinds, as what differs from the one that is there.
OTHER_KINDS: dict[str, dict[str, object]] = {
    "gpu": {"type": "gpu", "execution": "simt", "vector_width": 1},
    "narrow": {"type": "cpu", "execution": "vector", "vector_width": 4, "local_memory": 32768},
}
_pretended: list[str] = []


def pretend(kind: str) -> None:
    """Makes the compiler see all devices as of another kind (a key of ``OTHER_KINDS``) from here on, so that kernels
    for it can be tested here. To be called before anything is compiled, with a cache directory of its own: what the
    process keeps of compiled operators does not tell kinds apart. Raises KeyError for unknown kinds."""
    _pretended[:] = [kind] if OTHER_KINDS[kind] else []
    target_of.cache_clear()


@functools.cache
def target_of(device_index: int) -> Target:
    """The target of a device of ours, by index."""
    from outboard import _C

    target = Target.from_properties(_C.device_properties(device_index))
    for kind in _pretended:
        changes = OTHER_KINDS[kind] | {"cache_key": f"{target.cache_key}|{kind}"}
        target = dataclasses.replace(target, **changes)  # type: ignore[arg-type]
    return target


def index_of(target: Target) -> int:
    """The first device of a target. Raises StopIteration if there is none."""
    from outboard import _C

    return next(i for i in range(_C.device_count()) if target_of(i).plan_key == target.plan_key)
