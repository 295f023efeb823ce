# SPDX-License-Identifier: Apache-2.0
"""``outboard.export`` and ``outboard.load``: the model's results, without tracing, and the same bits from C++."""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import os
import random
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import hypothesis
import pytest
import torch
from hypothesis import strategies as st
from torch import nn
from torch.utils import _pytree as pytree

import outboard
from outboard import _C
from outboard.compiler.adapter.graphs import compiled, trees
from outboard.compiler.choice import functions
from outboard.compiler.target import Target, target_of
from outboard.exporting import format as f
from outboard.exporting import loader
from outboard.exporting.loader import LoadedModel
from tests.conftest import RunPython

ROOT = Path(__file__).resolve().parents[2]
RUNNER = Path(outboard.cmake_prefix()) / "bin" / "outboard-run"
BATCH = torch.export.Dim("batch", min=1, max=64)


class Residual(nn.Module):
    """Two convolutions and what they leave of the input, as in ResNet-18."""

    def __init__(self, channels: int, wider: int, stride: int) -> None:
        super().__init__()
        self.path = nn.Sequential(
            nn.Conv2d(channels, wider, 3, stride, 1, bias=False),
            nn.BatchNorm2d(wider),
            nn.ReLU(),
            nn.Conv2d(wider, wider, 3, 1, 1, bias=False),
            nn.BatchNorm2d(wider),
        )
        same = stride == 1 and channels == wider
        self.shortcut = nn.Identity() if same else nn.Conv2d(channels, wider, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.path(x) + self.shortcut(x))


def resnet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 7, 2, 3, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
        Residual(16, 16, 1),
        Residual(16, 32, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    )


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(12, 40), nn.GELU(), nn.LayerNorm(40), nn.Linear(40, 5))


class Transformer(nn.Module):
    """A language model of one layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 32)
        self.layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, norm_first=True)
        self.scores = nn.Linear(32, 50)

    def forward(self, ids: torch.Tensor, scale: float = 1.0) -> dict[str, Any]:
        states = self.layer(self.embedding(ids) * scale)
        return {"scores": self.scores(states), "states": (states.transpose(1, 2), ids), "length": ids.shape[1]}


class Call(nn.Module):
    """A function as a module, with buffers."""

    def __init__(self, function: Callable[..., Any], **buffers: torch.Tensor) -> None:
        super().__init__()
        self.function = function
        for name, buffer in buffers.items():
            self.register_buffer(name, buffer)

    def forward(self, x: torch.Tensor, *more: Any) -> Any:
        return self.function(self, x, *more)


def moved(values: Sequence[Any], device: str) -> list[Any]:
    return [value.to(device) if isinstance(value, torch.Tensor) else value for value in values]


def exported(module: nn.Module, *inputs: Any, path: Path, device: str, **options: Any) -> LoadedModel:
    """The module, exported and loaded."""
    outboard.export(module.to(device).eval(), *moved(inputs, device), path=path, **options)
    return outboard.load(path)


def raw(tensor: torch.Tensor) -> bytes:
    return tensor.cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()


def run_in_cpp(path: Path, model: Any, inputs: Sequence[torch.Tensor], *options: str) -> list[bytes]:
    """The tensors and integers that ``outboard-run`` makes of the inputs."""
    texts = []
    for argument, tensor in zip(model.inputs, inputs, strict=True):
        file = path.parent / f"{argument.name}.in"
        file.write_bytes(raw(tensor))
        texts.append(f"{argument.name}={file}:{'x'.join(map(str, tensor.shape))}")
    out = path.parent / "out"
    out.mkdir(exist_ok=True)
    command = [str(RUNNER), str(path), *texts, "--out", str(out), *options]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    return [(out / f"{argument.name}.bin").read_bytes() for argument in model.outputs]


def bits(value: Any) -> list[bytes]:
    """What Python's results are in C++."""
    leaves = [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, (torch.Tensor, int))]
    return [raw(leaf) if isinstance(leaf, torch.Tensor) else leaf.to_bytes(8, "little") for leaf in leaves]


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], list[Any]], Any]] = {
    "mlp": (mlp, lambda n: [torch.randn(n, 12)], ({0: BATCH},)),
    "resnet": (resnet, lambda n: [torch.randn(n, 3, 32, 32)], ({0: BATCH},)),
    "transformer": (
        Transformer,
        lambda n: [torch.randint(0, 50, (n, 4 + n)), 2.0],
        {"ids": {0: BATCH, 1: torch.export.Dim("length", min=2, max=128)}, "scale": None},
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_results_are_the_models_and_the_same_bits_in_cpp(name: str, device: str, tmp_path: Path) -> None:
    make, inputs, dynamic = MODELS[name]
    module = make()
    path = tmp_path / "model.obm"
    model = exported(module, *inputs(3), path=path, device=device, dynamic=dynamic)
    for batch in (1, 3, 8):
        given = moved(inputs(batch), device)
        result = model(*given)
        with torch.no_grad():
            torch.testing.assert_close(result, module(*given), rtol=1e-4, atol=1e-5)
        tensors = [value for value in given if isinstance(value, torch.Tensor)]
        assert run_in_cpp(path, model, tensors) == bits(result)


def test_a_model_of_fixed_sizes_takes_no_others(device: str, tmp_path: Path) -> None:
    model = exported(mlp(), torch.randn(4, 12), path=tmp_path / "m", device=device)
    assert model(torch.randn(4, 12, device=device)).shape == (4, 5)
    with pytest.raises(ValueError, match=r"shape \[5, 12\]; the model takes torch.float32 of shape \[4, 12\]"):
        model(torch.randn(5, 12, device=device))


def test_wrong_calls_say_what_is_expected(device: str, tmp_path: Path) -> None:
    model = exported(mlp(), torch.randn(4, 12), path=tmp_path / "m", device=device, dynamic=({0: BATCH},))
    for wrong in (torch.randn(65, 12), torch.randn(4, 13), torch.randn(12), torch.ones(4, 12, dtype=torch.int32)):
        with pytest.raises(ValueError, match=r"takes torch.float32 of shape \[input.0 \(1 to 64\), 12\]"):
            model(wrong.to(device))
    with pytest.raises(ValueError, match="input is on cpu; the model was loaded on"):
        model(torch.randn(4, 12))
    with pytest.raises(TypeError, match="x is a int; a tensor is expected"):
        exported(Call(lambda self, x: x + 1), torch.ones(2), path=tmp_path / "n", device=device)(3)
    for arguments in ((), (torch.randn(4, 12, device=device),) * 2):
        with pytest.raises(TypeError, match="tensors input"):
            model(*arguments)
    assert model(torch.randn(2, 12, device=device)).shape == (2, 5)


def test_sizes_that_are_equal_stay_equal(device: str, tmp_path: Path) -> None:
    dynamic = {"x": {0: BATCH}, "more": ({0: BATCH},)}
    module = Call(lambda self, x, y: x * y)
    model = exported(module, torch.ones(3, 2), torch.ones(3, 2), path=tmp_path / "m", device=device, dynamic=dynamic)
    assert model(torch.ones(5, 2, device=device), torch.ones(5, 2, device=device)).shape == (5, 2)
    with pytest.raises(ValueError, match=r"more_0 is .* \[6, 2\]; the model takes .* \[x.0"):
        model(torch.ones(5, 2, device=device), torch.ones(6, 2, device=device))


def test_guards_of_the_graph_are_checked_at_calls(device: str, tmp_path: Path) -> None:
    """A condition on sizes that decides what is computed holds at every call, or the call is refused."""

    def function(self: Call, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.shape[0] % 4 == 0 else x * 3

    dynamic = ({0: torch.export.Dim.AUTO},)
    model = exported(Call(function), torch.ones(8, 2), path=tmp_path / "m", device=device, dynamic=dynamic)
    assert float(model(torch.ones(8, 2, device=device))[0, 0]) == 2
    with pytest.raises((RuntimeError, ValueError)):
        model(torch.ones(7, 2, device=device))


def test_constants_are_part_of_the_call(device: str, tmp_path: Path) -> None:
    ids = torch.randint(0, 50, (2, 5))
    model = exported(Transformer(), ids, 2.0, path=tmp_path / "m", device=device)
    with pytest.raises(ValueError, match=r"exported with 2.0 where 3.0 is given"):
        model(ids.to(device), 3.0)


def test_keywords(device: str, tmp_path: Path) -> None:
    ids = torch.randint(0, 50, (2, 5))
    module = Transformer().to(device).eval()
    outboard.export(module, path=tmp_path / "m", keywords={"ids": ids.to(device), "scale": 0.5})
    result = outboard.load(tmp_path / "m")(ids=ids.to(device), scale=0.5)
    with torch.no_grad():
        torch.testing.assert_close(result["scores"], module(ids.to(device), 0.5)["scores"])


def test_inputs_of_other_strides_are_taken(device: str, tmp_path: Path) -> None:
    model = exported(Call(lambda self, x: x.exp()), torch.ones(3, 4), path=tmp_path / "m", device=device)
    x = torch.randn(4, 3)
    torch.testing.assert_close(model(x.to(device).T).cpu(), x.T.exp())
    torch.testing.assert_close(model(torch._neg_view(x.view(3, 4).to(device))).cpu(), x.view(3, 4).neg().exp())


def test_results_may_be_inputs_weights_and_views_of_them(device: str, tmp_path: Path) -> None:
    def function(self: Call, x: torch.Tensor) -> Any:
        return x, x.T, x[1:, 2:], self.w, x + self.w, self.w[:2], None, "text"

    path, x = tmp_path / "m", torch.randn(4, 6)
    module = Call(function, w=torch.randn(6))
    model = exported(module, x, path=path, device=device)
    result = model(x.to(device))
    torch.testing.assert_close(result[:-2], module(x.to(device))[:-2])
    assert result[-2:] == (None, "text")
    assert run_in_cpp(path, model, [x]) == bits(result)


def test_strided_buffers_scalars_and_constants(device: str, tmp_path: Path) -> None:
    def function(self: Call, x: torch.Tensor) -> Any:
        offset = torch.tensor([1.0, 2, 3, 4, 5, 6]).to(x.device)
        return x + self.turned + self.expanded + offset, (x * torch.tensor(0.5)).sum(), x[:0] * 2

    path, x = tmp_path / "m", torch.randn(4, 6)
    module = Call(function, turned=torch.randn(6, 4).T, expanded=torch.randn(6).expand(4, 6))
    model = exported(module, x, path=path, device=device)
    result = model(x.to(device))
    torch.testing.assert_close(result, module(x.to(device)))
    assert run_in_cpp(path, model, [x]) == bits(result)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int32, torch.bool, torch.uint8])
def test_dtypes(dtype: torch.dtype, device: str, tmp_path: Path) -> None:
    path = tmp_path / "m"
    x = torch.randint(0, 2, (3, 5)).to(dtype)
    w = torch.randint(0, 2, (3, 5)).to(dtype)
    model = exported(Call(lambda self, x: torch.where(x == self.w, x, self.w), w=w), x, path=path, device=device)
    result = model(x.to(device))
    assert torch.equal(result.cpu(), w)
    assert run_in_cpp(path, model, [x]) == [raw(w)]


def test_indices_out_of_range_are_errors(device: str, tmp_path: Path) -> None:
    path = tmp_path / "m"
    model = exported(nn.Embedding(10, 4), torch.zeros(3, dtype=torch.int64), path=path, device=device)
    with pytest.raises(IndexError, match="out of range"):
        model(torch.tensor([1, 10, 2], device=device)).cpu()
    (tmp_path / "bad").write_bytes(raw(torch.tensor([1, 10, 2])))
    command = [str(RUNNER), str(path), f"input={tmp_path / 'bad'}"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode == 1 and "index out of range" in result.stderr


# ---- what cannot be exported ----


def written(self: Call, x: torch.Tensor) -> torch.Tensor:
    self.count.add_(1)
    return x + self.count


class Pair:
    """A container of which PyTorch knows how to take it apart, and no name."""

    def __init__(self, first: Any, second: Any) -> None:
        self.items = [first, second]


pytree.register_pytree_node(
    Pair,
    lambda pair: (pair.items, None),
    lambda items, context: Pair(*items),
    flatten_with_keys_fn=lambda pair: ([*zip(map(pytree.SequenceKey, range(2)), pair.items, strict=True)], None),
)

REFUSED: dict[str, tuple[Callable[..., Any], str]] = {
    "host operator": (lambda self, x: torch.fft.fft(x).real, "only the host can carry out aten::_fft_r2c"),
    "random numbers": (lambda self, x: x + torch.rand_like(x), "draws random numbers"),
    "dropout": (lambda self, x: nn.functional.dropout(x, 0.5, True), "draws random numbers.*eval"),
    "nothing": (lambda self, x: x, "computes nothing"),
    "buffer written": (written, "writes to its buffer 'count'"),
    "input written": (lambda self, x: x.add_(1), "writes to its input 'x'"),
    "sizes from data": (lambda self, x: x.nonzero(), "cannot become a plan"),
    "numbers from data": (lambda self, x: x * x.sum().item(), "cannot become a plan"),
    "branches": (
        lambda self, x: torch.cond(x.sum() > 0, lambda y: y + 1, lambda y: y - 1, (x,)),
        "graphs inside of graphs",
    ),
    "nameless container": (lambda self, x: Pair(x + 1, x - 1), "containers with a name"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_run_by_itself_is_refused(name: str, device: str, tmp_path: Path) -> None:
    function, message = REFUSED[name]
    with pytest.raises(NotImplementedError, match=message):
        exported(Call(function, count=torch.zeros(())), torch.ones(4, 6), path=tmp_path / "m", device=device)
    assert list(tmp_path.iterdir()) == []


def test_training_mode_of_batch_norm_is_refused(device: str, tmp_path: Path) -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).to(device)
    with pytest.raises(NotImplementedError, match="writes to its buffer '1.running_mean'.*eval"):
        outboard.export(module, torch.randn(2, 3, 8, 8, device=device), path=tmp_path / "m")


def test_wrong_arguments_of_export(device: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="on one device of type .*; found cpu"):
        outboard.export(mlp(), torch.ones(2, 12), path=tmp_path / "m")
    with pytest.raises(ValueError, match="found cpu, "):
        outboard.export(mlp().to(device), torch.ones(2, 12), path=tmp_path / "m")
    with pytest.raises(TypeError, match=r"expects a torch.nn.Module, not function"):
        outboard.export(lambda x: x, torch.ones(2), path=tmp_path / "m")  # type: ignore[arg-type]
    with pytest.raises(FileNotFoundError):
        outboard.export(mlp().to(device), torch.ones(2, 12, device=device), path=tmp_path / "none" / "m")
    numbers = Call(lambda self, x, n: x * n).to(device)
    dynamic = {"x": None, "more": (torch.export.Dim.DYNAMIC,)}
    with pytest.raises(NotImplementedError, match="'more_0' is a number that varies"):
        outboard.export(numbers, torch.ones(2, device=device), 3, path=tmp_path / "m", dynamic=dynamic)


def test_the_drivers_library_is_not_used(device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever OUTBOARD_LIBRARY says: where the model runs there may be none."""
    monkeypatch.setattr(functions, "_finds", lambda target, operator, operands: True)
    monkeypatch.setenv("OUTBOARD_LIBRARY", "driver")
    monkeypatch.setattr(compiled, "target_of", lambda index: dataclasses.replace(target_of(index), library="made up"))
    module = torch.nn.Linear(4, 3)
    model = exported(module, torch.ones(2, 4), path=tmp_path / "m", device=device)
    torch.testing.assert_close(model(torch.ones(2, 4, device=device)).cpu(), module.cpu()(torch.ones(2, 4)))


# ---- weights ----


def test_weights_by_reference(device: str, tmp_path: Path) -> None:
    module, x = mlp(), torch.randn(4, 12)
    path = tmp_path / "model.obm"
    included = exported(module, x, path=tmp_path / "included", device=device)
    model = exported(module, x, path=path, device=device, weights="reference")
    weights = tmp_path / "model.safetensors"
    assert path.stat().st_size < (tmp_path / "included").stat().st_size
    assert bits(model(x.to(device))) == bits(included(x.to(device)))
    assert run_in_cpp(path, model, [x]) == bits(included(x.to(device)))
    elsewhere = tmp_path / "elsewhere.safetensors"
    weights.rename(elsewhere)
    with pytest.raises(FileNotFoundError, match="pass weights= if they moved"):
        outboard.load(path)
    assert bits(outboard.load(path, weights=elsewhere)(x.to(device))) == bits(included(x.to(device)))
    assert run_in_cpp(path, model, [x], "--weights", str(elsewhere)) == bits(included(x.to(device)))


def test_safetensors_files_are_those_of_the_library(device: str, tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch", reason="needs the package safetensors")
    module, x = mlp(), torch.randn(4, 12)
    model = exported(module, x, path=tmp_path / "model.obm", device=device, weights="reference")
    written = safetensors.load_file(tmp_path / "model.safetensors")
    state = module.state_dict()
    assert written.keys() == state.keys()
    assert all(torch.equal(written[name], state[name].cpu()) for name in state)
    checkpoint = tmp_path / "checkpoint.safetensors"
    extra = {"unused": torch.ones(3), **{name: value.cpu() for name, value in state.items()}}
    safetensors.save_file(extra, checkpoint, metadata={"format": "pt"})
    other = exported(module, x, path=tmp_path / "other.obm", device=device, weights=checkpoint)
    assert bits(other(x.to(device))) == bits(model(x.to(device)))


def test_weights_files_that_do_not_fit(device: str, tmp_path: Path) -> None:
    module, x = mlp(), torch.randn(4, 12)
    first = tmp_path / "first.obm"
    exported(module, x, path=first, device=device, weights="reference")
    weights = tmp_path / "first.safetensors"
    data = bytearray(weights.read_bytes())
    data[-3] ^= 1
    changed = tmp_path / "changed.safetensors"
    changed.write_bytes(data)
    with pytest.raises(ValueError, match=r"3.bias: the weights file has other contents"):
        outboard.load(first, weights=changed)
    with pytest.raises(ValueError, match="'3.bias' has other values in"):
        exported(module, x, path=tmp_path / "second", device=device, weights=changed)
    with pytest.raises(ValueError, match=r"has no tensor 'weight'"):
        exported(nn.Linear(12, 3), x, path=tmp_path / "second", device=device, weights=weights)
    wider = nn.Sequential(nn.Linear(12, 41))
    with pytest.raises(ValueError, match=r"'0.weight' is F32 of shape \[40, 12\] in"):
        exported(wider, x, path=tmp_path / "second", device=device, weights=weights)
    for text in (b"", b"no tensors here", b"\x10\0\0\0\0\0\0\0[1, 2, 3]       "):
        changed.write_bytes(text)
        with pytest.raises(ValueError, match="is not a safetensors file"):
            exported(module, x, path=tmp_path / "second", device=device, weights=changed)
    assert not (tmp_path / "second").exists()


def test_shared_weights_are_there_once(device: str, tmp_path: Path) -> None:
    ids = torch.randint(0, 50, (2, 5))
    module = Transformer().to(device)
    module.scores.weight = module.embedding.weight
    exported(module, ids, path=tmp_path / "m", device=device)
    with (tmp_path / "m").open("rb") as file:
        model = f.parse(memoryview(file.read()))
    shapes = [weight.sizes for weight in model.weights]
    assert shapes.count([50, 32]) == 1


# ---- files ----


def test_loading_imports_no_compiler(device: str, tmp_path: Path, run_python: RunPython) -> None:
    exported(resnet(), torch.randn(2, 3, 32, 32), path=tmp_path / "m", device=device)
    out = run_python(
        f"""
        import sys, torch, outboard
        model = outboard.load({str(tmp_path / "m")!r})
        model(torch.ones(2, 3, 32, 32, device=model.device)).cpu()
        name = torch._C._get_privateuse1_backend_name()
        print([m for m in ("sympy", "torch._inductor", "torch._dynamo") if m in sys.modules])
        print(torch.get_device_module(name).fallbacks())
        """,
        cold=True,
    )
    assert out.split("\n")[:2] == ["[]", "{}"]


def test_the_file_brings_the_devices_programs(device: str, tmp_path: Path, run_python: RunPython) -> None:
    """A device that has the binaries builds nothing, even if no cache helps."""
    path = tmp_path / "m"
    exported(mlp(), torch.randn(4, 12), path=path, device=device)
    source = f"""
        import torch, outboard
        from outboard import _C
        model = outboard.load({str(path)!r})
        model(torch.ones(4, 12).to(model.device)).cpu()
        print(_C.program_statistics(0)["built"])
        """
    assert run_python(source, OUTBOARD_CACHE_DIR=str(tmp_path / "empty")).split() == ["0"]
    data = path.read_bytes()
    model = f.parse(memoryview(data))
    model.device_key = "another device"
    rewrite(path, model, data)
    assert int(run_python(source, OUTBOARD_CACHE_DIR=str(tmp_path / "empty"))) > 0


def rewrite(path: Path, model: f.Model, data: bytes) -> None:
    """Writes the file ``data`` with another header."""
    path.write_bytes(rewritten(model, data))


def rewritten(model: f.Model, data: bytes) -> bytes:
    """The file ``data`` with another header."""
    begin = f.parse(memoryview(data)).weights[0].offset
    size = len(f.header(model, 0))
    moved = [dataclasses.replace(weight, offset=weight.offset + size - begin) for weight in model.weights]
    model = dataclasses.replace(model, weights=moved)
    return f.header(model, len(data) + size - begin) + data[begin:]


def damaged(data: bytes) -> list[bytes]:
    random.seed(0)
    cuts = [data[:length] for length in (0, 1, 7, 8, 63, 64, 65, len(data) // 2, len(data) - 1)]
    flips = []
    for position in [*range(0, 64, 3), *(random.randrange(len(data)) for _ in range(150))]:
        flips.append(data[:position] + bytes([data[position] ^ (1 << random.randrange(8))]) + data[position + 1 :])
    return [*cuts, *flips, data + b"\0", b"PK\x03\x04" + bytes(500)]


def test_damaged_files_are_refused(device: str, tmp_path: Path) -> None:
    path = tmp_path / "m"
    exported(mlp(), torch.randn(4, 12), path=path, device=device)
    for data in damaged(path.read_bytes()):
        path.write_bytes(data)
        with pytest.raises(ValueError, match=f"{path} cannot be loaded: "):
            outboard.load(path)


def test_damaged_files_are_refused_in_cpp(device: str, tmp_path: Path) -> None:
    path = tmp_path / "m"
    exported(mlp(), torch.randn(4, 12), path=path, device=device)
    for data in damaged(path.read_bytes())[::25]:
        path.write_bytes(data)
        result = subprocess.run([str(RUNNER), str(path)], capture_output=True, text=True, timeout=60)
        assert result.returncode == 1 and "cannot be loaded: " in result.stderr, result.stderr


CALL_TREES = [
    '[1, {"type": "collections.defaultdict", "context": {"default_factory_module": "this", '
    '"default_factory_name": "d", "dict_context": []}, "children_spec": []}]',
    '[1, {"type": "builtins.dict", "context": "[{\\"\\\\u005f_enum__\\": true, \\"fqn\\": \\"this:d\\", '
    '\\"name\\": \\"A\\"}]", "children_spec": []}]',
]


@pytest.mark.parametrize("tree", CALL_TREES)
def test_a_structure_imports_nothing(tree: str) -> None:
    sys.modules.pop("this", None)
    with pytest.raises(NotImplementedError, match="not read from files"):
        trees.structure_of(tree)
    assert "this" not in sys.modules


def wrong_number(draw: st.DrawFn) -> int:
    return draw(st.one_of(st.integers(-2, 70), st.sampled_from([2**31, 2**32 - 1, 2**62, 2**63 - 1, -(2**63)])))


def spoil(draw: st.DrawFn, value: Any) -> Any:
    """The same kind of value with one thing in it that is another."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, enum.IntEnum):
        return draw(st.sampled_from(list(type(value))))
    if isinstance(value, int):
        return wrong_number(draw)
    if isinstance(value, str):
        return draw(
            st.one_of(st.text(max_size=8), st.just(value[: len(value) // 2]), st.just("[" * 5000), st.just("a\0b"))
        )
    if isinstance(value, bytes):
        at = draw(st.integers(0, max(len(value) - 1, 0)))
        return draw(st.sampled_from([value[:at], value[:at] + b"\xff" + value[at + 1 :], b"", value + b"\0"]))
    if isinstance(value, (list, tuple)):
        # A tuple is a record: one with more or fewer fields cannot be written.
        if isinstance(value, list) and (not value or draw(st.integers(0, 3)) == 0):
            return draw(st.sampled_from([type(value)(), value + value]))
        at = draw(st.integers(0, len(value) - 1))
        return type(value)(spoil(draw, each) if i == at else each for i, each in enumerate(value))
    field = draw(st.sampled_from(dataclasses.fields(value)))
    return dataclasses.replace(value, **{field.name: spoil(draw, getattr(value, field.name))})


def resealed(plan: bytes) -> bytes:
    """A plan with its length and checksum made right."""
    head, body = plan[:12], plan[36:]
    return head + len(body).to_bytes(8, "little") + hashlib.sha256(body).digest()[:16] + body


def test_what_is_wrong_under_right_checksums_is_refused(
    device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a file says, loading it raises what is documented, or works. Nothing runs here: kernels do what they
    say."""
    path, spoilt = tmp_path / "m", tmp_path / "spoilt"
    exported(mlp(), torch.randn(4, 12), path=path, device=device)
    data = path.read_bytes()
    monkeypatch.setattr(_C, "Plan", lambda *unused: None)
    refused = 0

    @hypothesis.settings(max_examples=400, deadline=None, database=None, derandomize=True)
    @hypothesis.given(st.data())
    def check(source: st.DataObject) -> None:
        nonlocal refused
        model = f.parse(memoryview(data))
        draw = source.draw
        if draw(st.booleans()):
            model.plan = resealed(spoil(draw, model.plan))
        else:
            model = spoil(draw, model)
        try:
            written = rewritten(model, data)
        except (struct.error, OverflowError, UnicodeEncodeError):
            hypothesis.reject()  # no such file can be
        spoilt.write_bytes(written)
        try:
            outboard.load(spoilt)
        except (ValueError, FileNotFoundError, NotImplementedError):
            refused += 1
        except RuntimeError as error:
            assert "the model" in str(error)
            refused += 1

    check()
    assert refused > 100


def test_files_of_other_versions_and_devices_are_refused(device: str, tmp_path: Path) -> None:
    path = tmp_path / "m"
    exported(mlp(), torch.randn(4, 12), path=path, device=device)
    data = path.read_bytes()
    path.write_bytes(data[:8] + b"\x09" + data[9:])
    with pytest.raises(ValueError, match="version 9 of the format, this is version 1"):
        outboard.load(path)
    model = f.parse(memoryview(data))
    model.dialect = "esperanto"
    rewrite(path, model, data)
    with pytest.raises(RuntimeError, match="for devices with 'esperanto' programs"):
        outboard.load(path)
    with pytest.raises(FileNotFoundError):
        outboard.load(tmp_path / "none")
    with pytest.raises(ValueError, match="runs models on devices of type"):
        outboard.load(path, device="cpu")


def test_a_failed_export_leaves_the_old_file(device: str, tmp_path: Path) -> None:
    path = tmp_path / "m"
    exported(mlp(), torch.randn(4, 12), path=path, device=device)
    before = path.read_bytes()
    with pytest.raises(NotImplementedError):
        exported(Call(lambda self, x: torch.fft.fft(x).real), torch.ones(4), path=path, device=device)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["m"]


# ---- another project ----


@pytest.mark.skipif(shutil.which("c++") is None, reason="there is no C++ compiler")
def test_the_example_builds_by_itself_and_agrees(device: str, tmp_path: Path) -> None:
    search = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    cmake = shutil.which("cmake", path=search)
    assert cmake is not None, "cmake is part of the build requirements"

    def run(*command: str) -> str:
        result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    run(sys.executable, "-m", "examples.cpp_runner.export_model", str(tmp_path))
    build = str(tmp_path / "build")
    run(cmake, "-S", "examples/cpp_runner", "-B", build, f"-DCMAKE_PREFIX_PATH={outboard.cmake_prefix()}")
    run(cmake, "--build", build)
    assert "equal to Python's scores, bit by bit" in run(f"{build}/classify", str(tmp_path))


def test_programs_with_sub_groups_are_for_devices_that_have_them(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, rich = Target(execution="simt"), Target(execution="simt", sub_group_size=16)
    assert f.needs_of(rich) == f.needs_of(plain) | 8
    assert f.needs_of(dataclasses.replace(rich, execution="vector")) == f.needs_of(plain)
    model: Any = SimpleNamespace(dialect=rich.dialect, needs=f.needs_of(rich))
    monkeypatch.setattr(loader, "target_of", lambda index: rich)
    loader._check_device(model, torch.device(device, 0))
    monkeypatch.setattr(loader, "target_of", lambda index: plain)
    with pytest.raises(RuntimeError, match="exported for a device with sub-groups, which"):
        loader._check_device(model, torch.device(device, 0))
