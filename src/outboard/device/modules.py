# SPDX-License-Identifier: Apache-2.0
"""Moving modules: parameters stay the objects they are, as on CUDA.

PyTorch moves a parameter between devices by giving it another tensor's data, but only among the backends of its own
tree (``c10::TensorImpl::has_compatible_shallow_copy_type``); for others ``Module.to`` makes new parameters. Weights
that are tied, such as the embedding and the last layer of a language model, would then part ways without a word, and
an optimizer made before would go on with the old ones. PyTorch's other way, exchanging what two tensors are
(``torch.utils.swap_tensors``), has no such limit; this makes it the way of moves from and to our device.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from outboard import patches
from outboard.device.devices import name

_state = threading.local()


def keep_parameters() -> None:
    """Makes ``Module.to`` and its relatives keep the identity of parameters that they move from or to the device."""
    patches.apply("modules keep their parameters when they move", {"torch.nn:Module._apply": _exchanging})


def _exchanging(original: Callable[[nn.Module, Callable[..., Any], bool], nn.Module]) -> Callable[..., nn.Module]:
    def _apply(self: nn.Module, fn: Callable[..., Any], recurse: bool = True) -> nn.Module:
        if getattr(_state, "inside", False) or not _crosses(self, fn):
            return original(self, fn, recurse)
        attributes = [(parameter, dict(vars(parameter))) for parameter in self.parameters()]
        try:
            with _swapping():
                original(self, fn, recurse)
            _attach_hooks(self)
            return self
        except RuntimeError as error:
            if "Couldn't swap" not in str(error):
                raise
            warnings.warn(
                f"{error}: something else holds the parameter (a weak reference, a graph of autograd), so the module "
                "gets new ones. Tied weights may part, and optimizers made before keep the old ones: move the module "
                "first.",
                stacklevel=3,
            )
            return original(self, fn, recurse)
        finally:
            for parameter, kept in attributes:  # what others have written on it, which went with what was exchanged
                vars(parameter).update(kept)

    return _apply


def _attach_hooks(module: nn.Module) -> None:
    """Hooks of tensors stay behind with what was exchanged: hangs them on again."""
    for parameter in module.parameters():
        hooks: Any = parameter._backward_hooks
        if hooks:
            parameter._backward_hooks = hooks


def _crosses(module: nn.Module, fn: Callable[..., Any]) -> bool:
    """Whether ``fn`` moves a module's parameters from or to our device, as tried with an empty tensor."""
    first = next(module.parameters(), None)
    if first is None or type(first) is not nn.Parameter:
        return False
    with torch.no_grad():
        moved = fn(torch.empty(0, dtype=first.dtype, device=first.device))
    return (
        isinstance(moved, torch.Tensor)
        and moved.device != first.device
        and name()
        in (
            moved.device.type,
            first.device.type,
        )
    )


@contextmanager
def _swapping() -> Iterator[None]:
    before = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)
    _state.inside = True
    try:
        yield
    finally:
        _state.inside = False
        torch.__future__.set_swap_module_params_on_conversion(before)
