# SPDX-License-Identifier: Apache-2.0
"""State of PyTorch's, beside a graph and its inputs, that decides what the graph computes (docs/state.md)."""

from __future__ import annotations

import itertools

import torch

from . import implemented

#: Where PyTorch keeps how exact products of float32 are. (The older way to ask raises where a program has used both.)
_PRECISIONS = (("generic", "all"), *itertools.product(("cuda", "mkldnn"), ("all", "matmul", "conv", "rnn")))


def state() -> tuple[object, ...]:
    """What a graph that is kept for other processes must be told apart by. Of two tuples that are equal, the graphs are
    the same; processes can compare them as text."""
    cuda = torch.backends.cuda
    return (
        torch.get_default_dtype(),
        [torch._C._get_fp32_precision_getter(*each) for each in _PRECISIONS],
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch._C._get_deterministic_fill_uninitialized_memory(),
        torch._C._get_flash_sdp_enabled(),
        torch._C._get_mem_efficient_sdp_enabled(),
        torch._C._get_overrideable_sdp_enabled(),
        torch._C._get_math_sdp_enabled(),
        cuda.fp16_bf16_reduction_math_sdp_allowed(),
        _autocast(),
        [str(overload) for overload in implemented.overloads()],
    )


def _autocast() -> tuple[object, ...]:
    name = torch._C._get_privateuse1_backend_name()
    return tuple((torch.is_autocast_enabled(each), torch.get_autocast_dtype(each)) for each in (name, "cpu"))
