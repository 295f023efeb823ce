# SPDX-License-Identifier: Apache-2.0
"""Has Inductor replay graphs on our device where it would use CUDA graphs (``mode="reduce-overhead"``)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch._inductor.cudagraph_utils import log_cudagraph_skip_and_bump_counter
from torch._inductor.utils import BoxedBool

from outboard import patches

from ...replay import Replayed


def register_replays(name: str) -> None:
    """Makes Inductor's decisions about CUDA graphs ours for graphs on the device called ``name``."""
    patches.apply(
        "mode='reduce-overhead' replays graphs",
        {
            "torch._inductor.cudagraph_utils.check_lowering_disable_cudagraph": partial(_allowing, name),
            "torch._inductor.output_code.cudagraph_post_compile": partial(_replaying, name),
            "torch._inductor.output_code.cudagraph_partition_post_compile": partial(_replaying, name),
        },
    )


def _allowing(name: str, original: Callable[..., str | None]) -> Callable[..., str | None]:
    """Graphs on one device of ours are welcome, too. What the host does in them shows when they are captured."""

    @functools.wraps(original)
    def check(device_node_mapping: dict[torch.device, torch.fx.Node]) -> str | None:
        devices = {device for device in device_node_mapping if device.type not in ("meta", "cpu")}
        if len(devices) == 1 and next(iter(devices)).type == name:
            return None
        return original(device_node_mapping)

    return check


def _replaying(name: str, original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def post_compile(
        example_inputs: Sequence[Any], compiled_graph: Any, cudagraphs: BoxedBool, *others: Any, **kwargs: Any
    ) -> None:
        if name not in compiled_graph.device_types:
            original(example_inputs, compiled_graph, cudagraphs, *others, **kwargs)
            return
        reasons = compiled_graph.cudagraph_info.cudagraph_fail_reasons
        if reasons:
            BoxedBool.disable(cudagraphs)
            _skip(", ".join(reasons))
            return
        compiled_graph.current_callable = Replayed(
            compiled_graph.current_callable,
            next(iter(compiled_graph.device_idxs)),
            compiled_graph.fx_kwargs["static_input_idxs"] or (),
            compiled_graph.mutated_input_idxs,
            _skip,
        )

    return post_compile


def _skip(reason: str) -> None:
    """Tells and counts as Inductor does. Raises RuntimeError if ``triton.cudagraph_or_error`` is set."""
    log_cudagraph_skip_and_bump_counter(f"a graph compiled with reduce-overhead runs without captures: {reason}")
