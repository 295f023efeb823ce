# SPDX-License-Identifier: Apache-2.0
"""Second derivatives of compiled functions, which PyTorch's compiler cannot compute, are refused.

PyTorch raises where a derivative is asked for through the compiled backward pass, which it finds by the history of the
tensors that were saved for it. Where those have none, because they are results of the graph, what was asked for is not
reached: a gradient penalty has no gradient.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor

from outboard import _C, patches

_Function = Callable[..., Any]


def register(name: str) -> None:
    """Has compiled functions on the device of that name refuse second derivatives, whatever they save."""
    place = "torch._functorch._aot_autograd.runtime_wrappers._codegen_compiled_backward"
    refusing = functools.partial(_refusing, name)
    patches.apply("second derivatives of compiled functions are refused", {place: refusing})


def _refusing(name: str, original: Callable[..., _Function]) -> Callable[..., _Function]:
    @functools.wraps(original)
    def codegen(*args: Any, **kwargs: Any) -> _Function:
        return functools.partial(_run, name, original(*args, **kwargs))

    return codegen


def _run(name: str, backward: _Function, grads: Any, ctx: Any, *parts: Any) -> Any:
    *others, differentiably = parts

    def joined(ctx: Any, run: _Function, inputs: list[Any]) -> Any:
        history = [_C.joined_to_inputs_of(ctx)] if _is_on(name, inputs) else []
        return differentiably(ctx, run, history + inputs)

    return backward(grads, ctx, *others, joined)


def _is_on(name: str, values: Iterable[Any]) -> bool:
    return any(isinstance(value, Tensor) and value.device.type == name for value in values)
