# SPDX-License-Identifier: Apache-2.0
"""Runs exported models: ``outboard.load``. Imports neither the compiler nor Inductor."""

from __future__ import annotations

import hashlib
import json
import mmap
import os
from pathlib import Path
from typing import Any

import torch

from outboard import trusted
from outboard.compiler.adapter.graphs import trees
from outboard.compiler.plans.dtypes import dtype_of
from outboard.compiler.target import target_of

from . import format as f

_NEEDS = {1: "half precision", 2: "double precision", 4: "atomics on 64 bits", 8: "sub-groups"}


def load(
    path: str | os.PathLike[str],
    device: torch.device | str | int | None = None,
    weights: str | os.PathLike[str] | None = None,
) -> LoadedModel:
    """A model written by ``outboard.export``, as a function that runs it on a device.

    Args:
        path: the file.
        device: where to run; None means the current device.
        weights: the safetensors file that the model refers to, if it is no longer where it was.

    Raises:
        FileNotFoundError: the file, or the weights it refers to, are not there.
        ValueError: the file is damaged or of another kind or version, or the weights are not those that were exported.
        RuntimeError: the device cannot run it: another language of programs, or lacking arithmetic.
        NotImplementedError: arguments or results are nested in containers that this process has not registered.
    """
    chosen = _device(device)
    file = Path(path)
    data = _contents(file)
    try:
        model = f.parse(data)
        _check_device(model, chosen)
        external = _contents(_weights_file(file, model, weights)) if model.weights_file else memoryview(b"")
        tensors = [_tensor(record, external if record.external else data, chosen) for record in model.weights]
        return LoadedModel(model, tensors, chosen, trusts_binaries=trusted.is_trusted_file(file))
    except f.DamagedFile as error:
        raise f.DamagedFile(f"{file} cannot be loaded: {error}") from None


def _device(device: torch.device | str | int | None) -> torch.device:
    name = torch._C._get_privateuse1_backend_name()
    made = torch.device(name if device is None else device)
    if made.type != name:
        raise ValueError(f"load() runs models on devices of type {name!r}, not {made.type!r}")
    index = int(torch.accelerator.current_device_index()) if made.index is None else made.index
    return torch.device(name, index)


def _contents(file: Path) -> memoryview:
    """A whole file, mapped: private, so that PyTorch may take it for memory that can be written."""
    with file.open("rb") as opened:
        if os.fstat(opened.fileno()).st_size == 0:
            return memoryview(b"")
        return memoryview(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_COPY))


def _weights_file(file: Path, model: f.Model, given: str | os.PathLike[str] | None) -> Path:
    chosen = Path(given) if given is not None else file.parent / model.weights_file
    if not os.path.isfile(chosen):
        raise FileNotFoundError(f"the weights of {file} are expected in {chosen}; pass weights= if they moved")
    return chosen


def _check_device(model: f.Model, device: torch.device) -> None:
    target = target_of(device.index)
    if target.dialect != model.dialect:
        raise RuntimeError(f"the model is for devices with {model.dialect!r} programs; {device} has {target.dialect!r}")
    missing = model.needs & ~f.offers_of(target)
    if missing:
        names = ", ".join(name for bit, name in _NEEDS.items() if bit & missing)
        raise RuntimeError(f"the model was exported for a device with {names}, which {device} has not")


def _tensor(record: f.Weight, data: memoryview, device: torch.device) -> torch.Tensor:
    """A weight on the device. Raises DamagedFile."""
    stored = record.nbytes if record.external else f.padded(record.nbytes)
    contents = data[record.offset : record.offset + stored]
    if len(contents) != stored or hashlib.sha256(contents).digest() != record.digest:
        where = "the weights file has other contents than when it was exported" if record.external else "damaged"
        raise f.DamagedFile(f"{record.name}: {where} (the checksum differs)")
    dtype = dtype_of(record.dtype)
    if not record.nbytes:
        return torch.empty_strided(record.sizes, record.strides, dtype=dtype, device=device)
    flat = torch.frombuffer(contents[: record.nbytes], dtype=torch.uint8).view(dtype).to(device)
    return flat.as_strided(record.sizes, record.strides)


class _CallingConvention:
    """How a call's arguments become tensors and tensors become its results: what ``Model.call`` says in JSON.

    Raises DamagedFile if it says nothing that fits the model, NotImplementedError for unknown containers."""

    def __init__(self, model: f.Model) -> None:
        try:
            call = json.loads(model.call)
            self.structure, self.leaves = self._side(call["in"])
            self.result_structure, self.results = self._side(call["out"])
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise f.DamagedFile("it does not say how it is called") from error
        given = [leaf for leaf in self.leaves if "input" in leaf]
        numbers = [leaf["output"] for leaf in self.results if "output" in leaf]
        if len(given) != len(model.inputs):
            raise f.DamagedFile("it takes other arguments than its plan")
        if not all(type(number) is int and 0 <= number < len(model.outputs) for number in numbers):
            raise f.DamagedFile("it returns what its plan does not")

    @staticmethod
    def _side(side: dict[str, Any]) -> tuple[trees.Structure, list[dict[str, Any]]]:
        structure, leaves = trees.structure_of(side["tree"]), side["leaves"]
        whole = isinstance(leaves, list) and all(isinstance(leaf, dict) and len(leaf) == 1 for leaf in leaves)
        if not whole or trees.leaf_count(structure) != len(leaves):
            raise ValueError("other leaves than the structure has")
        if not all({"input", "output", "constant"}.issuperset(leaf) for leaf in leaves):
            raise ValueError("unknown leaves")
        return structure, leaves


def _check_plan(model: f.Model) -> None:
    """Raises DamagedFile unless the plan takes and returns what the header says, and calls nothing."""
    from outboard import _C

    try:
        inputs, outputs, calls, programs = _C.plan_interface(model.plan)
    except RuntimeError as error:
        raise f.DamagedFile(str(error)) from None
    if programs != len(model.binaries):
        raise f.DamagedFile("its plan has other programs")
    integers = [argument.kind == f.Argument.Kind.INT for argument in model.outputs]
    if calls or inputs != ["tensor"] * len(model.plan_inputs):
        raise f.DamagedFile("its plan takes or calls what is not in the file")
    if outputs != ["int" if integer else "tensor" for integer in integers]:
        raise f.DamagedFile("its plan returns something else")


class LoadedModel:
    """A function with the arguments and results of the model that was exported. Records no gradients.

    ``inputs``, ``outputs`` and ``symbols`` describe the tensors it takes and returns (``outboard.exporting.format``).
    """

    def __init__(
        self, model: f.Model, weights: list[torch.Tensor], device: torch.device, trusts_binaries: bool
    ) -> None:
        from outboard import _C

        call = _CallingConvention(model)
        _check_plan(model)
        self.inputs = model.inputs
        self.outputs = model.outputs
        self.symbols = model.symbols
        self.producer = model.producer
        self.device = device
        self._structure = call.structure
        self._leaves = call.leaves
        self._result_structure = call.result_structure
        self._results = call.results
        self._weights = weights
        self._order = model.plan_inputs
        # Machine code is run only if nobody else can have put it there; the source of the kernels is in the file, too.
        same = trusts_binaries and model.device_key == target_of(device.index).cache_key
        self._plan = _C.Plan(model.plan, device.index, model.binaries if same else [])
        self._dtypes = [dtype_of(argument.dtype) for argument in model.inputs]

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Runs the model.

        Raises TypeError for other arguments than were exported, ValueError for tensors of another dtype, shape or
        device than ``inputs`` says."""
        tensors = self._tensors(arguments, keywords)
        given: list[torch.Tensor | int | float | None] = [
            tensors[number] if source == f.Source.INPUT else self._weights[number] for source, number in self._order
        ]
        with torch.no_grad():
            made = self._plan.run(given)
        leaves = [made[leaf["output"]] if "output" in leaf else leaf["constant"] for leaf in self._results]
        return trees.build(self._result_structure, leaves)

    def __repr__(self) -> str:
        takes = ", ".join(f"{a.name}: {_describe(a, self.symbols)}" for a in self.inputs)
        gives = ", ".join(f"{a.name}: {_describe(a, self.symbols)}" for a in self.outputs)
        return f"LoadedModel({takes}) -> ({gives}) on {self.device}"

    def _tensors(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> list[torch.Tensor]:
        """The tensors among the arguments, checked, row-major, in the order of ``inputs``."""
        leaves, structure = trees.flatten((arguments, keywords))
        if structure != self._structure:
            names = ", ".join(argument.name for argument in self.inputs)
            raise TypeError(f"the model takes its arguments as they were given to export(): tensors {names}")
        tensors: list[torch.Tensor] = []
        for leaf, value in zip(self._leaves, leaves, strict=True):
            if "input" in leaf:
                tensors.append(value)
            elif type(value) is not type(leaf["constant"]) or value != leaf["constant"]:
                raise ValueError(f"the model was exported with {leaf['constant']!r} where {value!r} is given")
        sizes: dict[int, int] = {}
        for argument, dtype, tensor in zip(self.inputs, self._dtypes, tensors, strict=True):
            self._check(argument, dtype, tensor, sizes)
        return [tensor.detach().contiguous().resolve_conj().resolve_neg() for tensor in tensors]

    def _check(self, argument: f.Argument, dtype: torch.dtype, tensor: Any, sizes: dict[int, int]) -> None:
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{argument.name} is a {type(tensor).__name__}; a tensor is expected")
        if tensor.device != self.device:
            raise ValueError(f"{argument.name} is on {tensor.device}; the model was loaded on {self.device}")
        shape = tuple(tensor.shape)
        fits = tensor.dtype == dtype and len(shape) == len(argument.sizes)
        for size, expected in zip(shape, argument.sizes, strict=False):
            fits = fits and self._fits(size, expected, sizes)
        if not fits:
            found = f"{tensor.dtype} of shape {list(shape)}"
            raise ValueError(f"{argument.name} is {found}; the model takes {_describe(argument, self.symbols)}")

    def _fits(self, size: int, expected: f.Dimension, sizes: dict[int, int]) -> bool:
        if expected.kind == f.Dimension.Kind.FIXED:
            return size == expected.value
        symbol = self.symbols[expected.value]
        return symbol.least <= size <= symbol.most and sizes.setdefault(expected.value, size) == size


def _describe(argument: f.Argument, symbols: list[f.Symbol]) -> str:
    """ "torch.float32 of shape [x.0 (1 to 64), 12]" """
    if argument.kind != f.Argument.Kind.TENSOR:
        return argument.kind.name.lower()
    texts = []
    for size in argument.sizes:
        if size.kind == f.Dimension.Kind.FIXED:
            texts.append(str(size.value))
        elif size.kind == f.Dimension.Kind.ANY:
            texts.append("any")
        else:
            symbol = symbols[size.value]
            most = "more" if symbol.most == f.UNBOUNDED else str(symbol.most)
            texts.append(f"{symbol.name} ({symbol.least} to {most})")
    return f"{dtype_of(argument.dtype)} of shape [{', '.join(texts)}]"
