# SPDX-License-Identifier: Apache-2.0
"""The modules and optimizers of PyTorch's own tests (``module_db``, ``optim_db``) on the device against the CPU.

A case is a module with arguments, whose results, gradients and buffers are compared, or four steps of an optimizer with
options, whose parameters and state are; and which of these count as written. Exit code 1 if any differ.
"""

from __future__ import annotations

import argparse
import functools
import logging
import random
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.testing._internal.common_modules import module_db
from torch.testing._internal.common_optimizers import optim_db
from torch.utils import _pytree as pytree

#: Modules that draw random numbers, or whose parameters are made by the first call.
_LEFT_OUT = re.compile("Lazy|Dropout|RReLU|Fractional")
_TOLERANCE = {"rtol": 1e-4, "atol": 3e-5}


@dataclass(frozen=True)
class Case:
    """What is computed on a device, compiled or not: tensors."""

    label: str
    run: Callable[[str, bool], list[Any]]


def module_cases(info: Any) -> Iterator[Case]:
    """The cases of an entry of ``module_db``, in float32."""
    if _LEFT_OUT.search(info.name):
        return
    for training in (True, False) if info.train_and_eval_differ else (True,):
        torch.manual_seed(0)
        inputs = info.module_inputs_func(info, device="cpu", dtype=torch.float32, requires_grad=True, training=training)
        for number, given in enumerate(inputs):
            if given.forward_input is not None:
                label = f"{info.name} {number} {'training' if training else 'evaluation'}"
                yield Case(label, functools.partial(_module, info.module_cls, given, training))


def _module(made: Callable[..., Any], given: Any, training: bool, device: str, compiled: bool) -> list[Any]:
    torch.manual_seed(0)
    constructor, forward = given.constructor_input, given.forward_input
    module = made(*constructor.args, **constructor.kwargs).train(training).to(device)
    args, kwargs = _moved((forward.args, forward.kwargs), device)
    # The CPU's batch norm does not count statistics as written; compiled, PyTorch does.
    counters = [each for each in module.buffers() if not each.is_floating_point()]
    versions = [each._version for each in counters]
    results = [*_tensors((torch.compile(module) if compiled else module)(*args, **kwargs))]
    leaves = [*module.parameters(), *(each for each in _tensors((args, kwargs)) if each.requires_grad)]
    outputs = [result for result in results if result.requires_grad]
    if outputs:
        torch.autograd.backward(outputs, [_weights(output) for output in outputs])
    return [*results, *(leaf.grad for leaf in leaves), *module.buffers(), *_were_written(versions, counters)]


def optimizer_cases(info: Any) -> Iterator[Case]:
    """The cases of an entry of ``optim_db``, in float32, each by every implementation that it has."""
    if info.only_supports_sparse_grads:
        return
    for given in info.optim_inputs_func(device="cpu", dtype=torch.float32):
        for implementation in ("one by one", *info.supported_impls):
            options = dict(given.kwargs)
            if implementation in ("foreach", "fused"):
                options[implementation] = True
            if isinstance(options.get("lr"), Tensor) and implementation == "foreach":
                continue  # refused without capturable
            label = f"{info.name} {implementation} {given.kwargs}"
            yield Case(label, functools.partial(_steps, info, options))


def _steps(info: Any, options: dict[str, Any], device: str, compiled: bool) -> list[Any]:
    torch.manual_seed(0)
    parameters = [torch.randn(shape).to(device).requires_grad_() for shape in ((3, 4), (4,))]
    if info.name == "Muon":
        parameters = parameters[:1]
    optimizer = info.optim_cls(parameters, **_moved(options, device))
    step = torch.compile(optimizer.step) if compiled else optimizer.step

    def closure(turn: int) -> Tensor:
        for parameter in parameters:
            parameter.grad = (parameter.detach() * (turn + 1)).cos()
        return (parameters[0].detach() ** 2).sum()

    written = []
    for turn in range(4):
        kept = [*parameters, *_tensors(optimizer.state_dict()["state"])]
        versions = [each._version for each in kept]
        if info.step_requires_closure:
            step(lambda turn=turn: closure(turn))
        else:
            closure(turn)
            step()
        written += _were_written(versions, kept)
    return [*parameters, *_tensors(optimizer.state_dict()["state"]), *written]


def _were_written(versions: list[int], tensors: list[Tensor]) -> list[Tensor]:
    """Which of the tensors count as written since they had these versions."""
    return [torch.tensor(tensor._version > old) for old, tensor in zip(versions, tensors, strict=True)]


def _tensors(tree: Any) -> Iterator[Tensor]:
    return (leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Tensor))


def _moved(tree: Any, device: str) -> Any:
    def move(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        return leaf.detach().clone().to(device).requires_grad_(leaf.requires_grad)

    return pytree.tree_map(move, tree)


def _weights(output: Tensor) -> Tensor:
    """What the gradient of an output is weighted with."""
    places = torch.arange(1.0, 1 + output.numel(), device=output.device).view(output.shape)
    return places.cos().to(output.dtype)


def difference(case: Case, device: str, compiled: bool = False) -> str:
    """How the device's outcome differs from the CPU's, '' if it does not."""
    theirs, ours = _outcome(case, "cpu", False), _outcome(case, device, compiled)
    if isinstance(theirs, Exception) or isinstance(ours, Exception):
        same = isinstance(theirs, Exception) and isinstance(ours, type(theirs))
        return "" if same else f"{ours!r:.300} instead of {theirs!r:.300}"
    try:
        torch.testing.assert_close(ours, theirs, equal_nan=True, **_TOLERANCE)
    except AssertionError as error:
        return str(error)
    return ""


def _outcome(case: Case, device: str, compiled: bool) -> Any:
    torch._dynamo.reset()
    try:
        results = case.run(device, compiled)
        return [None if each is None else each.detach().cpu() for each in results]
    except Exception as error:  # noqa: BLE001 - compared with the CPU's
        return error


def cases(seed: int, share: float = 1.0) -> list[Case]:
    """All cases of a share of both lists' entries, which the seed chooses."""
    chance = random.Random(seed)
    modules, optimizers = (chance.sample(entries, round(len(entries) * share)) for entries in (module_db, optim_db))
    found = [case for info in modules for case in module_cases(info)]
    return found + [case for info in optimizers for case in optimizer_cases(info)]


def main() -> int:
    """Runs the cases; see the module."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--way", choices=("eager", "compiled"), default="eager")
    parser.add_argument("--match", default="", help="only cases whose label this regular expression finds")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--share", type=float, default=1.0, help="of the lists' entries")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    device = torch._C._get_privateuse1_backend_name()
    chosen = [case for case in cases(options.seed, options.share) if re.search(options.match, case.label)]
    different = 0
    for case in chosen:
        found = difference(case, device, options.way == "compiled")
        different += bool(found)
        if found:
            print(f"{case.label}: {found}", flush=True)
    print(f"{len(chosen)} cases, {different} differ")
    return int(different > 0)


if __name__ == "__main__":
    sys.exit(main())
