# SPDX-License-Identifier: Apache-2.0
"""Context parallelism (``torch.distributed.tensor.experimental.context_parallel``): attention over sequences of which
each rank has a part.

PyTorch passes keys and values round the ranks for the fused attentions of its own devices, and knows them by name. The
device's is the one that PyTorch calls attention for CPUs, which a rank would compute for its own part alone. Devices
whose attention is otherwise taken apart into products and a softmax keep it whole for that time.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from outboard import patches
from outboard.compiler.on_import import call_after

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

_MODULE = "torch.distributed.tensor.experimental._context_parallel._attention"

#: The dimension of sequences in queries, keys and values.
_SEQUENCE = 2

#: Whether attention could be taken apart before each ``context_parallel`` that has begun.
_before: list[bool] = []


def install() -> None:
    """Adds the device's attention to those that PyTorch passes round, when it is imported."""
    call_after(_MODULE, _add)


def _add() -> None:
    module: Any = sys.modules[_MODULE]
    aten = torch.ops.aten
    forward = aten._scaled_dot_product_flash_attention_for_cpu.default
    backward = aten._scaled_dot_product_flash_attention_for_cpu_backward.default
    module.custom_ops[forward] = _handler(module._templated_ring_attention, forward, ("query", "key", "value"))
    module.custom_ops[backward] = _handler(
        module._templated_ring_attention_backward,
        backward,
        ("grad_out", "query", "key", "value", "out", "logsumexp"),
        grad_out_name="grad_out",
    )
    patches.apply(
        "attention over parts of sequences is one operator",
        {
            f"{_MODULE}._enable_cp_dtensor_dispatcher": _keeping_whole,
            f"{_MODULE}._disable_cp_dtensor_dispatcher": _taking_apart,
        },
    )


def _keeping_whole(original: Callable[[], None]) -> Callable[[], None]:
    @functools.wraps(original)
    def enable() -> None:
        _before.append(torch.backends.cuda.math_sdp_enabled())  # type: ignore[no-untyped-call]
        torch.backends.cuda.enable_math_sdp(False)
        original()

    return enable


def _taking_apart(original: Callable[[], None]) -> Callable[[], None]:
    @functools.wraps(original)
    def disable() -> None:
        original()
        if _before:
            torch.backends.cuda.enable_math_sdp(_before.pop())

    return disable


def _handler(ring: Callable[..., Any], op: Any, names: tuple[str, ...], **options: Any) -> Callable[..., Any]:
    """What DTensor calls instead of ``op``, whose first arguments are tensors with these names."""
    from torch.distributed.tensor import DTensor

    defaults = {"dropout_p": 0.0, "is_causal": False, "scale": None}

    def handle(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[DTensor, ...]:
        given = defaults | dict(zip((*names, "dropout_p", "is_causal"), args, strict=False)) | kwargs
        if given.pop("attn_mask", None) is not None:
            raise NotImplementedError("context_parallel takes no attn_mask: use is_causal=True, or no mask")
        query = given["query"]
        mesh, placements = query.device_mesh, query.placements
        local = {name: value._local_tensor if isinstance(value, DTensor) else value for name, value in given.items()}
        results = ring(mesh.get_group(), _SEQUENCE, op, **local, **options)
        return tuple(DTensor.from_local(result, mesh, placements, run_check=False) for result in results)

    return handle
