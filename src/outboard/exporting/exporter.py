# SPDX-License-Identifier: Apache-2.0
"""Writes a model as one file: ``outboard.export``."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind, TensorArgument

from outboard.compiler.plans.dtypes import dtype_number
from outboard.compiler.plans.schema import serialize
from outboard.compiler.plans.strided import span
from outboard.compiler.target import target_of
from outboard.version import __version__

from . import format as f
from . import weights as w

_WRITES = {
    OutputKind.BUFFER_MUTATION: "buffer",
    OutputKind.PARAMETER_MUTATION: "parameter",
    OutputKind.USER_INPUT_MUTATION: "input",
}
_VALUES = {InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR}


def export(
    model: torch.nn.Module,
    *inputs: Any,
    path: str | os.PathLike[str],
    keywords: Mapping[str, Any] | None = None,
    dynamic: Any = None,
    weights: str | os.PathLike[str] = "include",
) -> None:
    """Writes ``model`` as one file that ``outboard.load`` and the C++ runner run without tracing or compiling graphs.

    Args:
        model: a module, on a device of ours. ``torch.export.export`` traces it, in the mode (``eval()``) that it is in.
        inputs: example arguments. Tensors give dtypes and sizes; other values become constants of the file.
        path: the file to write. It appears when it is complete.
        keywords: example keyword arguments.
        dynamic: which sizes may differ at a call, as ``dynamic_shapes`` of ``torch.export.export`` has it:
            ``{"x": {0: torch.export.Dim("batch", min=1, max=64)}}``. Without it, sizes are fixed.
        weights: ``"include"`` puts parameters and buffers into the file; ``"reference"`` into a safetensors file of the
            same name beside it; a path refers to a safetensors file that exists and has them under their names in
            ``state_dict``. Tensors that safetensors cannot hold as they lie in memory are included in any case.

    Raises:
        NotImplementedError: what the device cannot run by itself (operators are named), random numbers, writes to
            buffers or inputs, arguments that are neither tensors nor plain values.
        ValueError: tensors that are not on one device of ours; a weights file that does not have the model's values.
        TypeError: ``model`` is no module.
        Whatever ``torch.export.export`` raises for models it cannot trace.
    """
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"export() expects a torch.nn.Module, not {type(model).__name__}")
    from outboard.compiler.adapter.graphs import trees

    def dense(value: Any) -> Any:
        return value.detach().contiguous() if isinstance(value, torch.Tensor) else value

    arguments = trees.map_leaves(dense, inputs)
    named = trees.map_leaves(dense, dict(keywords or {}))
    examples = [leaf for leaf in trees.flatten((arguments, named))[0] if isinstance(leaf, torch.Tensor)]
    device = _device_of(model, examples)
    with torch.no_grad():
        program = torch.export.export(model, arguments, named or None, dynamic_shapes=dynamic)
    _write(program, device, Path(path), os.fspath(weights))


def _device_of(model: torch.nn.Module, examples: list[torch.Tensor]) -> int:
    """The index of the one device that all tensors are on. Raises ValueError."""
    tensors = [*model.parameters(), *model.buffers(), *examples]
    devices = {tensor.device for tensor in tensors}
    name = torch._C._get_privateuse1_backend_name()
    if len(devices) != 1 or next(iter(devices)).type != name:
        found = ", ".join(sorted(map(str, devices))) or "no tensors"
        raise ValueError(f"export() needs the model and its inputs on one device of type {name!r}; found {found}")
    return next(iter(devices)).index or 0


def _write(program: ExportedProgram, device: int, path: Path, weights: str) -> None:
    from outboard.compiler.adapter.exported import decompose, lower_program

    decomposed = decompose(program, device)
    _refuse_effects(decomposed)
    signature = _Signature(decomposed)
    lowered = lower_program(decomposed, device)
    store = _Weights(path, weights)
    plan_inputs = signature.plan_inputs(store)
    plan_inputs += [(f.Source.WEIGHT, store.add(f"constant {i}", c)) for i, c in enumerate(lowered.constants)]
    store.place()
    target = target_of(device)
    plan = serialize(lowered.plan)
    model = f.Model(
        producer=f"outboard {__version__}, torch {torch.__version__}",
        dialect=target.dialect,
        needs=f.needs_of(target),
        symbols=signature.symbols,
        inputs=signature.inputs,
        outputs=signature.outputs,
        call=json.dumps(signature.call),
        weights_file=store.file,
        weights=store.records,
        plan_inputs=plan_inputs,
        plan=plan,
        device_key=target.cache_key,
        binaries=_binaries(plan, device),
    )
    _write_file(path, model, store)


def _binaries(plan: bytes, device: int) -> list[bytes]:
    from outboard import _C

    return _C.Plan(plan, device).binaries()


def _refuse_effects(program: ExportedProgram) -> None:
    for output in program.graph_signature.output_specs:
        if output.kind in _WRITES:
            raise NotImplementedError(
                f"export: the model writes to its {_WRITES[output.kind]} {output.target!r}"
                + ("; in evaluation mode, eval(), it may not" if output.kind == OutputKind.BUFFER_MUTATION else "")
            )
        if output.kind != OutputKind.USER_OUTPUT:
            raise NotImplementedError(f"export: a result of kind {output.kind.name}")


class _Signature:
    """How a program is called, in the terms of the file."""

    def __init__(self, program: ExportedProgram) -> None:
        self._program = program
        self._numbers: dict[str, int] = {}
        self.symbols: list[f.Symbol] = []
        self.inputs: list[f.Argument] = []
        self.outputs: list[f.Argument] = []
        self._fakes = {node.name: node.meta.get("val") for node in program.graph.nodes}
        self._sources = [self._source(spec) for spec in program.graph_signature.input_specs]
        self.call = {"in": self._inputs(), "out": self._outputs()}

    def plan_inputs(self, store: _Weights) -> list[tuple[f.Source, int]]:
        """For each placeholder of the program, the input or weight that the plan gets. Adds weights to ``store``."""
        return [
            (f.Source.INPUT, source) if isinstance(source, int) else (f.Source.WEIGHT, store.add(*source))
            for source in self._sources
            if source is not None
        ]

    def _source(self, spec: Any) -> int | tuple[str, torch.Tensor] | None:
        if spec.kind in _VALUES:
            values = self._program.state_dict if spec.target in self._program.state_dict else self._program.constants
            return spec.target, values[spec.target]
        if spec.kind != InputKind.USER_INPUT:
            raise NotImplementedError(f"export: an input of kind {spec.kind.name}")
        if isinstance(spec.arg, ConstantArgument):
            return None
        if not isinstance(spec.arg, TensorArgument):
            raise NotImplementedError(f"export: input {spec.arg.name!r} is a number that varies")
        fake = self._fakes[spec.arg.name]
        self.inputs.append(self._tensor(spec.arg.name, fake, self._input_size))
        return len(self.inputs) - 1

    def _tensor(self, name: str, fake: torch.Tensor, size: Any) -> f.Argument:
        sizes = [size(s, f"{name}.{dim}") for dim, s in enumerate(fake.shape)]
        return f.Argument(name, f.Argument.Kind.TENSOR, dtype_number(fake.dtype), sizes)

    def _input_size(self, size: Any, place: str) -> f.Dimension:
        from outboard.compiler.adapter.exported import dimension

        found = dimension(size, self._program)
        if isinstance(found, int):
            return f.Dimension(f.Dimension.Kind.FIXED, found)
        name, least, most = found
        if name not in self._numbers:
            self._numbers[name] = len(self.symbols)
            self.symbols.append(f.Symbol(place, least, f.UNBOUNDED if most is None else most))
        return f.Dimension(f.Dimension.Kind.SYMBOL, self._numbers[name])

    def _output_size(self, size: Any, place: str) -> f.Dimension:
        if not isinstance(size, torch.SymInt):
            return f.Dimension(f.Dimension.Kind.FIXED, int(size))
        number = self._numbers.get(str(size))
        return f.Dimension(f.Dimension.Kind.ANY) if number is None else f.Dimension(f.Dimension.Kind.SYMBOL, number)

    def _inputs(self) -> dict[str, Any]:
        from outboard.compiler.adapter.graphs import trees

        specs = [s for s in self._program.graph_signature.input_specs if s.kind == InputKind.USER_INPUT]
        leaves = [
            {"constant": _plain(spec.arg.value, spec.arg.name)}
            if isinstance(spec.arg, ConstantArgument)
            else {"input": self._sources[self._program.graph_signature.input_specs.index(spec)]}
            for spec in specs
        ]
        return {"tree": trees.text_of(self._program.call_spec.in_spec), "leaves": leaves}

    def _outputs(self) -> dict[str, Any]:
        from outboard.compiler.adapter.graphs import trees

        structure = self._program.call_spec.out_spec
        specs = self._program.graph_signature.output_specs
        names = trees.names_of(trees.build(structure, range(len(specs))), "output")
        leaves: list[dict[str, Any]] = []
        for name, spec in zip(names, specs, strict=True):
            if isinstance(spec.arg, ConstantArgument):
                leaves.append({"constant": _plain(spec.arg.value, name)})
                continue
            leaves.append({"output": len(self.outputs)})
            self.outputs.append(self._output(name, self._fakes[spec.arg.name]))
        return {"tree": trees.text_of(structure), "leaves": leaves}

    def _output(self, name: str, fake: Any) -> f.Argument:
        if isinstance(fake, torch.Tensor):
            return self._tensor(name, fake, self._output_size)
        if isinstance(fake, torch.SymInt):
            return f.Argument(name, f.Argument.Kind.INT, dtype_number(torch.int64), [])
        raise NotImplementedError(f"export: result {name!r} is a {type(fake).__name__}")


def _plain(value: Any, name: str) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise NotImplementedError(f"export: {name!r} is a {type(value).__name__}; tensors and plain values can be kept")


class _Weights:
    """The tensors that come with a model, each once, and where they will be."""

    def __init__(self, path: Path, choice: str) -> None:
        self._path = path
        self._choice = choice
        self._known: dict[tuple[Any, ...], int] = {}
        self.tensors: list[torch.Tensor] = []
        self.records: list[f.Weight] = []
        self.file = ""

    def add(self, name: str, tensor: torch.Tensor) -> int:
        """The number of a tensor; the same for the same memory, dtype and geometry."""
        tensor = tensor.detach()
        key = (tensor.data_ptr(), tensor.storage_offset(), tensor.dtype, *tensor.shape, None, *tensor.stride())
        if tensor.numel() and key in self._known:
            return self._known[key]
        self._known[key] = len(self.tensors)
        self.tensors.append(tensor)
        sizes, strides = list(tensor.shape), list(tensor.stride())
        nbytes = span(sizes, strides) * tensor.itemsize
        self.records.append(f.Weight(name, dtype_number(tensor.dtype), sizes, strides, False, 0, nbytes, bytes(32)))
        return len(self.tensors) - 1

    def place(self) -> None:
        """Decides which tensors are in another file, and finds (or writes) them there."""
        if self._choice == "include":
            return
        chosen = {r.name: t for r, t in zip(self.records, self.tensors, strict=True) if w.fits_safetensors(t)}
        file = self._path.with_suffix(".safetensors") if self._choice == "reference" else Path(self._choice)
        if self._choice == "reference":
            w.write_safetensors(file, chosen)
        self.file = os.path.relpath(file, self._path.parent)
        found = w.places(file)
        for record, tensor in zip(self.records, self.tensors, strict=True):
            if record.name in chosen and not (record.name.startswith("constant ") and record.name not in found):
                self._refer(file, record, tensor, found)

    def _refer(self, file: Path, record: f.Weight, tensor: torch.Tensor, found: dict[str, w.Place]) -> None:
        place = w.place_of(file, record.name, tensor, found)
        record.external, record.offset = True, place.offset
        record.digest = hashlib.sha256(w.memory_of(tensor)).digest()
        with file.open("rb") as data:
            data.seek(place.offset)
            if hashlib.sha256(data.read(record.nbytes)).digest() != record.digest:
                raise ValueError(f"{record.name!r} has other values in {file} than in the model")


def _write_file(path: Path, model: f.Model, store: _Weights) -> None:
    """Tensors first, whose offsets and digests the header needs; it is written last, where room was left for it."""
    at = len(f.header(model, 0))
    with w.replacing(path) as file:
        file.seek(at)
        for record, tensor in zip(model.weights, store.tensors, strict=True):
            if record.external:
                continue
            data = bytes(w.memory_of(tensor)).ljust(f.padded(record.nbytes), b"\0")
            record.offset, record.digest = at, hashlib.sha256(data).digest()
            file.write(data)
            at += len(data)
        file.seek(0)
        file.write(f.header(model, at))
