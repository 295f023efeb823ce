# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own tests of torch.distributed, read from the installed PyTorch, with the device's names for CUDA's.

The tests are written for "cuda" with "nccl", or for CPU tensors with "gloo". Their modules are parsed where they are
installed and executed with other names, so that line numbers in tracebacks stay PyTorch's. ``load`` is the only place
that knows which names those are.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import re
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch

COMMON = "torch.testing._internal.common_distributed"
TESTS = "torch.testing._internal.distributed.distributed_test"
DTENSOR = "torch.testing._internal.distributed._tensor.common_dtensor"
_WORD = re.compile(r"\bcuda\b")
#: Members of enumerations whose name is the device's.
_ENUMERATIONS = {"DeviceType", "ProfilerActivity"}
#: Tests with convolutions that take two cores more than 40 minutes: PyTorch's size of pictures, and ours.
_SIZES = {"test_ddp_uneven_inputs": (1000, 100)}


@dataclass(frozen=True)
class Names:
    """What is put for what: ``device`` for "cuda", ``backend`` for ``played`` ("nccl" or "gloo")."""

    device: str
    backend: str
    played: str


class _Substitution(ast.NodeTransformer):
    """Puts the device's names into a module's tree."""

    def __init__(self, names: Names) -> None:
        self._names = names

    def visit_Import(self, node: ast.Import) -> ast.AST:
        return node

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST:
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        for child in ast.walk(node) if node.name in _SIZES else ():
            if isinstance(child, ast.Constant) and child.value == _SIZES[node.name][0]:
                child.value = _SIZES[node.name][1]
        return self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if not isinstance(node.value, str):
            return node
        text = self._names.backend if node.value == self._names.played else node.value
        return ast.copy_location(ast.Constant(_WORD.sub(self._names.device, text)), node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        if node.attr == self._names.played.upper():
            return ast.copy_location(ast.Constant(self._names.backend), node)
        if node.attr == "CUDA" and _last_name(node.value) in _ENUMERATIONS:
            node.attr = "PrivateUse1"
        elif node.attr == f"is_{self._names.played}_available":
            node.attr = "is_available"  # of torch.distributed
        elif node.attr in ("cuda", "is_cuda"):
            node.attr = node.attr.replace("cuda", self._names.device)
        return node


def _last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


@contextmanager
def unopened(device: str, count: int) -> Iterator[None]:
    """While PyTorch's modules ask how many devices there are, tells them without opening one: the process is forked
    later, which a device would not survive."""
    with ExitStack() as stack:
        # Generators are not seeded in what PyTorch takes for a fork of a process that had the device open.
        stack.enter_context(mock.patch.object(getattr(torch, device), "_is_in_bad_fork", lambda: True))
        for module in (getattr(torch, device), torch.accelerator):
            stack.enter_context(mock.patch.object(module, "is_available", lambda: True))
            stack.enter_context(mock.patch.object(module, "device_count", lambda: count))
        yield


def _execute(name: str, names: Names, prepare: Callable[[types.ModuleType], None]) -> types.ModuleType:
    """The module of this name, executed with the device's names, and taken for PyTorch's by its importers."""
    spec = importlib.util.find_spec(name)
    assert spec is not None and spec.origin is not None
    with open(spec.origin, encoding="utf-8") as file:
        tree = ast.parse(file.read(), spec.origin)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    tree = ast.fix_missing_locations(_Substitution(names).visit(tree))
    exec(compile(tree, spec.origin, "exec", dont_inherit=True), module.__dict__)
    prepare(module)
    return module


def _common(names: Names, ranks: int, module: types.ModuleType) -> None:
    """Enters the backend in PyTorch's tables of what each backend can do."""
    module.TEST_CUDA = True  # type: ignore[attr-defined]
    cases: Any = module.DistTestCases  # type: ignore[attr-defined]
    cases.backend_feature.setdefault(names.device, set(cases.backend_feature["gpu"]))
    for feature in ("gpu", names.device, "ddp", "subgroup", "plugin"):
        cases.backend_feature[feature].add(names.backend)
    # A version of NCCL is no property of ours.
    module.requires_nccl_version = lambda version, message: lambda function: function  # type: ignore[attr-defined]
    if ranks > 2:
        # PyTorch skips these below 8 ranks, "always"; what they need is a group of ranks 1 and 2.
        module.skip_if_small_worldsize = lambda function: function  # type: ignore[attr-defined]


def _tests(names: Names, module: types.ModuleType) -> None:
    """Replaces what the module imports by name from torch.cuda."""
    module.autocast = functools.partial(torch.autocast, names.device)  # type: ignore[attr-defined]
    module.GradScaler = functools.partial(torch.amp.GradScaler, names.device)  # type: ignore[attr-defined]


def load(names: Names, ranks: int) -> types.ModuleType:
    """PyTorch's distributed_test for so many ranks; BACKEND and WORLD_SIZE have to be in the environment."""
    _execute(COMMON, Names(names.device, names.backend, "\0"), functools.partial(_common, names, ranks))
    return _execute(TESTS, names, functools.partial(_tests, names))


def load_dtensor(names: Names, ranks: int) -> types.ModuleType:
    """PyTorch's common_dtensor for so many ranks."""
    _execute(COMMON, Names(names.device, names.backend, "\0"), functools.partial(_common, names, ranks))
    return _execute(DTENSOR, Names(names.device, names.backend, "nccl"), lambda module: None)
