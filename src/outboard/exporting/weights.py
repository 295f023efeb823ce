# SPDX-License-Identifier: Apache-2.0
"""The bytes of tensors, in model files and in safetensors files."""

from __future__ import annotations

import dataclasses
import json
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import torch

from outboard.compiler.plans.strided import span

#: dtypes by their names in safetensors files
_SAFETENSORS = {
    torch.bool: "BOOL", torch.uint8: "U8", torch.int8: "I8", torch.int16: "I16", torch.uint16: "U16",
    torch.int32: "I32", torch.uint32: "U32", torch.int64: "I64", torch.uint64: "U64", torch.float16: "F16",
    torch.bfloat16: "BF16", torch.float32: "F32", torch.float64: "F64", torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
}  # fmt: skip
#: More than this and a file is not a safetensors file (the limit that the format sets).
_LONGEST_HEADER = 100_000_000


def memory_of(tensor: torch.Tensor) -> memoryview:
    """The bytes from a tensor's first element to its last, as they lie in memory, gaps included."""
    length = span(tensor.shape, tensor.stride())
    flat = tensor.detach().as_strided((length,), (1,), tensor.storage_offset()).cpu()
    return flat.view(torch.uint8).numpy().data


def fits_safetensors(tensor: torch.Tensor) -> bool:
    """Whether a safetensors file can hold the tensor as it lies in memory."""
    return tensor.dtype in _SAFETENSORS and tensor.is_contiguous()


@dataclasses.dataclass
class Place:
    """Where a safetensors file has a tensor, in bytes from the file's start."""

    dtype: str
    shape: list[int]
    offset: int
    nbytes: int


def write_safetensors(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    """Writes a safetensors file (https://github.com/huggingface/safetensors, section "Format")."""
    header: dict[str, object] = {}
    end = 0
    for name, tensor in tensors.items():
        begin, end = end, end + tensor.numel() * tensor.itemsize
        header[name] = {
            "dtype": _SAFETENSORS[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with replacing(path) as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors.values():
            file.write(memory_of(tensor))


def places(path: Path) -> dict[str, Place]:
    """What a safetensors file holds. Raises ValueError if it is not one."""
    with path.open("rb") as file:
        start = file.read(8)
        length = int.from_bytes(start, "little")
        if len(start) < 8 or length > _LONGEST_HEADER:
            raise ValueError(f"{path} is not a safetensors file")
        try:
            header = json.loads(file.read(length))
            return {
                name: Place(entry["dtype"], entry["shape"], 8 + length + begin, end - begin)
                for name, entry in header.items()
                if name != "__metadata__"
                for begin, end in [entry["data_offsets"]]
            }
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path} is not a safetensors file") from error


def place_of(path: Path, name: str, tensor: torch.Tensor, found: dict[str, Place]) -> Place:
    """Where the file has ``name``. Raises ValueError if it has not, or of another dtype or shape."""
    place = found.get(name)
    if place is None:
        raise ValueError(f"{path} has no tensor {name!r}")
    if place.dtype != _SAFETENSORS[tensor.dtype] or place.shape != list(tensor.shape):
        raise ValueError(
            f"{name!r} is {place.dtype} of shape {place.shape} in {path}, "
            f"the model's is {_SAFETENSORS[tensor.dtype]} of shape {list(tensor.shape)}"
        )
    return place


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A file that takes the place of ``path`` when it is complete; readers see the old file or the new one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        with temporary.open("wb") as file:
            yield file
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
