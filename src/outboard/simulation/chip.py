# SPDX-License-Identifier: Apache-2.0
"""Hardware as a few numbers."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch

#: Chips that come with Outboard, a file each, with the source of each number.
_CHIPS = Path(__file__).parent / "chips"


@dataclass(frozen=True)
class Chip:
    """A device as its specification has it. What is left out costs no time.

    Attributes:
        name: what reports call it.
        flops: operations per second in products of matrices, by the dtype of their operands ("float32", ...). A dtype
            that is not there is computed as float32.
        efficiency: of a product's operator ("aten::convolution"), the part of ``flops`` that it reaches, else 1.
        bandwidth: bytes per second between its memory and its arithmetic.
        memory: bytes.
        latency: seconds that every step takes besides.
        host_bandwidth: bytes per second between host and device, in each direction.
        host_latency: seconds that each such copy takes besides.
        link_bandwidth: bytes per second to other devices, in each direction.
        link_latency: seconds that each message takes besides.
        devices: how many take part in a collective.
        operators: those that it has ("aten::mm", ...), all if None. Others are computed by the host, to which their
            operands are copied.
        dtypes: of an operator, those that it has it for ("float32", ...), by its first tensor's; of others, all.
        buckets: the sizes that its compiler pads dimensions to that vary; none if it is of one set of sizes.
        symbolic: whether its executables are for all sizes.
        tile: the side of the squares of elements as which its compiler has tensors of floats lie in memory; 0: by rows.
        faults: of an operator ("aten::mm"), what goes wrong on the simulator's device: "wrong" (its results are),
            "error" (its compiler fails), or "hang" (the executable never ends).
        source: where the numbers come from.

    Raises:
        ValueError: for what is no number, is 0 where only latencies may be, or negative; no float32 among ``flops``; or
            a dtype that PyTorch does not have; or buckets or a tile that are no sizes, or of a chip with symbolic ones;
            or a fault that is none.
    """

    name: str
    flops: Mapping[str, float]
    bandwidth: float
    memory: float = float("inf")
    latency: float = 0.0
    host_bandwidth: float = float("inf")
    host_latency: float = 0.0
    link_bandwidth: float = float("inf")
    link_latency: float = 0.0
    devices: int = 1
    operators: frozenset[str] | None = None
    dtypes: Mapping[str, frozenset[str]] = field(default_factory=dict)
    buckets: tuple[int, ...] = ()
    symbolic: bool = False
    tile: int = 0
    faults: Mapping[str, str] = field(default_factory=dict)
    efficiency: Mapping[str, float] = field(default_factory=dict)
    source: str = ""

    def __post_init__(self) -> None:
        for dtype in {*self.flops, *itertools.chain(*self.dtypes.values())}:
            if not isinstance(getattr(torch, dtype, None), torch.dtype):
                raise ValueError(f"chip {self.name}: dtypes are such as float32, and {dtype!r} is none")
        if not all(isinstance(size, int) and size > 0 for size in self.buckets):
            raise ValueError(f"chip {self.name}: buckets are sizes such as 64, not {[*self.buckets]}")
        if self.symbolic not in (True, False) or (self.symbolic and self.buckets):
            raise ValueError(f"chip {self.name}: symbolic is true or false, and true only without buckets")
        if not isinstance(self.tile, int) or self.tile < 0 or (self.tile and self.symbolic):
            raise ValueError(f"chip {self.name}: tile is a size such as 32, and only without symbolic sizes")
        if wrong := sorted(set(self.faults.values()) - _FAULTS):
            raise ValueError(f"chip {self.name}: faults are {', '.join(sorted(_FAULTS))}, not {', '.join(wrong)}")
        if "float32" not in self.flops:
            raise ValueError(f"chip {self.name}: flops has to have float32, which other dtypes are computed as")
        for name in _POSITIVE:
            self._require(name, getattr(self, name), positive=True)
        for name in _NOT_NEGATIVE:
            self._require(name, getattr(self, name), positive=False)
        for table in ("flops", "efficiency"):
            for key, value in getattr(self, table).items():
                self._require(f"{table}.{key}", value, positive=True)

    def _require(self, name: str, value: object, positive: bool) -> None:
        if not isinstance(value, (int, float)):
            raise ValueError(f"chip {self.name}: {name} has to be a number, not {value!r}")
        if not (value > 0 if positive else value >= 0):
            least = "more than 0" if positive else "0 or more"
            raise ValueError(f"chip {self.name}: {name} has to be {least}, not {value}")

    @classmethod
    def load(cls, path: str | Path) -> Chip:
        """A chip from a TOML file whose keys are the attributes; ``flops``, ``efficiency``, ``dtypes`` and ``faults``
        are tables.

        Raises ValueError for a file that is no TOML, a key that is none of them, and one that is missing; OSError for a
        file that cannot be read; and ImportError on Python 3.10 with neither ``tomli`` nor pip.
        """
        try:
            given = _toml(Path(path).read_text(encoding="utf-8"))
        except ValueError as error:  # of which TOML's errors are
            raise ValueError(f"{path}: {error}") from None
        known = {each.name for each in fields(cls)}
        if unknown := sorted(set(given) - known):
            raise ValueError(
                f"{path}: {', '.join(unknown)} says nothing of a chip; there is {', '.join(sorted(known))}"
            )
        if missing := sorted({"name", "flops", "bandwidth"} - set(given)):
            raise ValueError(f"{path}: {', '.join(missing)} is missing")
        if "operators" in given:
            given["operators"] = frozenset(given["operators"])
        given["dtypes"] = {name: frozenset(dtypes) for name, dtypes in given.get("dtypes", {}).items()}
        given["buckets"] = tuple(sorted(given.get("buckets", ())))
        return cls(**given)

    @classmethod
    def known(cls, name: str) -> Chip:
        """One of the chips that come with Outboard, as their specifications have them: "a100", "h100", "mi250x" (one of
        its two dies), "tpu-v5e" and "v100". Raises ValueError for another name."""
        files = {file.stem: file for file in sorted(_CHIPS.glob("*.toml"))}
        if name not in files:
            raise ValueError(f"there is no chip {name!r}, only {', '.join(files)}")
        return cls.load(files[name])

    def has(self, operator: str, dtype: torch.dtype) -> bool:
        """Whether it computes this operator ("aten::mm"), of a first tensor of this dtype, itself."""
        known = self.operators is None or operator in self.operators
        return known and (operator not in self.dtypes or _name(dtype) in self.dtypes[operator])

    def bucket(self, size: int) -> int | None:
        """The least of its buckets that is not below a size; None if there is none."""
        return min((each for each in self.buckets if each >= size), default=None)

    def peak(self, dtype: torch.dtype) -> float:
        """Operations per second in products of such matrices."""
        return self.flops.get(_name(dtype), self.flops["float32"])

    def reached(self, operators: Iterable[str]) -> float:
        """The part of its peak that a product reaches with what joined it: of the first that ``efficiency`` has.
        Operators are named with their namespace or without."""
        known = {name.rpartition("::")[2]: part for name, part in self.efficiency.items()}
        names = (name.rpartition("::")[2] for name in operators)
        return next((known[name] for name in names if name in known), 1.0)


_FAULTS = {"error", "hang", "wrong"}
_POSITIVE = ("bandwidth", "memory", "host_bandwidth", "link_bandwidth", "devices")
_NOT_NEGATIVE = ("latency", "host_latency", "link_latency")


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _toml(text: str) -> dict[str, Any]:
    for name in ("tomllib", "tomli", "pip._vendor.tomli"):  # the first is there since Python 3.11
        try:
            reader = importlib.import_module(name)
        except ModuleNotFoundError:
            continue
        found: dict[str, Any] = reader.loads(text)
        return found
    raise ImportError("chips are read from TOML, for which Python 3.10 needs a package: pip install tomli")
