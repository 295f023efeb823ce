# SPDX-License-Identifier: Apache-2.0
"""``torch.compile(model, backend="rbln", options=...)``: the backend that compiles for the device anyway."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch

from outboard.compiler import on_import
from outboard.profiles.rbln import programs

_NAME = "rbln"

#: Options that a warning has named already.
_named: set[str] = set()


def install() -> None:
    """Registers the backend when, and only when, the program imports Dynamo."""
    on_import.call_after("torch._dynamo.backends.registry", _register)


def _register() -> None:
    from torch._dynamo.backends.registry import register_backend

    register_backend(compile_graph, name=_NAME)


def compile_graph(
    graph: torch.fx.GraphModule,
    example_inputs: list[torch.Tensor],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compiles a graph as ``torch.compile`` without ``backend`` does.

    Args:
        mode: as of ``torch.compile``.
        options: Inductor's, as of ``torch.compile``; others, such as those of RBLN's compiler, are named in a warning.
    """
    make: Callable[..., Any] = torch._TorchCompileInductorWrapper
    compiled: Callable[..., Any] = make(mode, _inductor_options(options or {}), None)(graph, example_inputs)
    programs.note(graph, compiled)
    return compiled


def _inductor_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Those that Inductor knows; names the others, each once."""
    import torch._inductor

    known = torch._inductor.list_options()
    ours = {name: value for name, value in options.items() if name.replace("-", "_") in known}
    if unknown := sorted(set(options) - set(ours) - _named):
        _named.update(unknown)
        warnings.warn(
            f'torch.compile(backend="{_NAME}"): the options {", ".join(unknown)} mean nothing to Outboard\'s compiler.',
            stacklevel=2,
        )
    return ours
