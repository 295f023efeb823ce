# SPDX-License-Identifier: Apache-2.0
"""Ways to run an OpInfo's sample: called, compiled, through TorchScript, under ``torch.func``'s transformations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.testing._internal.jit_metaprogramming_utils import gen_script_fn_and_args
from torch.testing._internal.opinfo.core import OpInfo, SampleInput
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

#: A sample as a function of its tensors, which returns those of the result.
Function = Callable[..., tuple[Tensor, ...]]
#: Elements of a result, or of an argument, up to which a way computes a derivative for each.
MOST_DERIVATIVES = 128


class NotThisWay(Exception):
    """The sample cannot be run this way on any device."""


def called(op: OpInfo, sample: SampleInput) -> Any:
    """The operator's result."""
    return sample.output_process_fn_grad(op(sample.input, *sample.args, **sample.kwargs))


def traced(op: OpInfo, sample: SampleInput) -> Any:
    """By ``torch.jit.trace``: the results of the graph's first run and of one after it was optimised."""
    function, tensors = _as_function(op, sample)
    graph = torch.jit.trace(function, tensors, check_trace=False)
    return [graph(*tensors) for _ in range(3)][::2]


def scripted(op: OpInfo, sample: SampleInput) -> Any:
    """By ``torch.jit.script``, which is given the call as text."""
    kind, name = "functional", op.name
    if name.startswith("nn.functional."):
        kind, name = "nn_functional", name.removeprefix("nn.functional.")
    graph, tensors = gen_script_fn_and_args(name, kind, sample.input, *sample.args, **sample.kwargs)
    return [sample.output_process_fn_grad(graph(*tensors)) for _ in range(3)][::2]


def compiled(op: OpInfo, sample: SampleInput) -> Any:
    """By ``torch.compile``, on a device; of it and its gradients, where it has some."""
    return _compiled(op, sample, dynamic=False)


def dynamic(op: OpInfo, sample: SampleInput) -> Any:
    """The same, with symbols for sizes."""
    return _compiled(op, sample, dynamic=True)


def _compiled(op: OpInfo, sample: SampleInput, dynamic: bool) -> Any:
    function, tensors = _as_function(op, sample)
    if op.supports_autograd:
        tensors = tuple(each.detach().requires_grad_(each.is_floating_point()) for each in tensors)
    run = function
    if tensors[0].device.type != "cpu":
        torch._dynamo.reset()
        run = torch.compile(function, dynamic=dynamic)
    results = run(*(each.clone() for each in tensors))  # which an operator may write
    learned = [result for result in results if result.requires_grad]
    if not learned:
        return results
    inputs = [each for each in tensors if each.requires_grad]
    return results, torch.autograd.grad(learned, inputs, [torch.ones_like(each) for each in learned], allow_unused=True)


def vmap(op: OpInfo, sample: SampleInput) -> Any:
    """By ``torch.func.vmap``, with the first tensor as a batch of two, then with all of them, along the last axis."""
    function, tensors = _as_function(op, sample)
    first, *rest = tensors
    over_first = torch.func.vmap(function, (0, *(None for _ in rest)), randomness="different")
    over_all = torch.func.vmap(function, in_dims=-1, out_dims=-1, randomness="different")
    pairs = [torch.stack((tensor, tensor.flip(0) if tensor.dim() else tensor), -1) for tensor in tensors]
    return over_first(torch.stack((first, first)), *rest), over_all(*pairs)


def vjp(op: OpInfo, sample: SampleInput) -> Any:
    """Results and gradients by ``torch.func.vjp``."""
    function, tensors = _differentiable(op, sample)
    results, gradients = torch.func.vjp(function, *tensors)
    return results, gradients(tuple(torch.ones_like(result) for result in results))


def jvp(op: OpInfo, sample: SampleInput) -> Any:
    """Results and directional derivatives by ``torch.func.jvp``."""
    function, tensors = _differentiable(op, sample)
    return torch.func.jvp(function, tensors, tuple(torch.ones_like(tensor) for tensor in tensors))


def jacrev(op: OpInfo, sample: SampleInput) -> Any:
    """The matrix of derivatives by ``torch.func.jacrev``, which is a batch of backward passes."""
    function, tensors = _differentiable(op, sample)
    if sum(result.numel() for result in function(*tensors)) > MOST_DERIVATIVES:
        raise NotThisWay("too many derivatives")
    return torch.func.jacrev(function, tuple(range(len(tensors))))(*tensors)


def hessian(op: OpInfo, sample: SampleInput) -> Any:
    """The second derivatives of the sum of the results by the first tensor, forward over reverse."""
    function, tensors = _differentiable(op, sample)
    if tensors[0].numel() > MOST_DERIVATIVES:
        raise NotThisWay("too many derivatives")
    return torch.func.hessian(lambda *inputs: sum(result.sum() for result in function(*inputs)))(*tensors)


WAYS: dict[str, Callable[[OpInfo, SampleInput], Any]] = {
    way.__name__: way for way in (called, compiled, dynamic, traced, scripted, vmap, vjp, jvp, jacrev, hessian)
}


def _as_function(op: OpInfo, sample: SampleInput) -> tuple[Function, tuple[Tensor, ...]]:
    """The sample as a function of its tensors, and these."""
    leaves, structure = tree_flatten((sample.input, sample.args, sample.kwargs))
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
    if not places or any(leaves[i].layout != torch.strided for i in places):
        raise NotThisWay("no tensors, or sparse ones")

    def function(*tensors: Tensor) -> tuple[Tensor, ...]:
        own = list(leaves)
        for place, tensor in zip(places, tensors, strict=True):
            own[place] = tensor
        input_, args, kwargs = tree_unflatten(own, structure)
        results = tree_leaves(sample.output_process_fn_grad(op(input_, *args, **kwargs)))
        return tuple(result for result in results if isinstance(result, Tensor))

    return function, tuple(leaves[i] for i in places)


def _differentiable(op: OpInfo, sample: SampleInput) -> tuple[Function, tuple[Tensor, ...]]:
    """The same of floating-point and complex tensors alone."""
    function, tensors = _as_function(op, sample)
    chosen = [i for i, tensor in enumerate(tensors) if tensor.is_floating_point() or tensor.is_complex()]
    if not chosen:
        raise NotThisWay("nothing to differentiate by")

    def of_chosen(*given: Tensor) -> tuple[Tensor, ...]:
        own = list(tensors)
        for place, tensor in zip(chosen, given, strict=True):
            own[place] = tensor
        results = function(*own)
        return tuple(result for result in results if result.is_floating_point() or result.is_complex())

    return of_chosen, tuple(tensors[i] for i in chosen)
