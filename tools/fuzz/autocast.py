# SPDX-License-Identifier: Apache-2.0
"""Autocast on the CPU by the lists of operators that CUDA has, and the device: the CPU's own are others.

The lists are read from PyTorch's header, so they are those of the release that is installed.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

_HEADER = Path(torch.__file__).parent / "include/ATen/autocast_mode.h"
_KEY = "AutocastCPU"
#: Which of the header's lists wants what.
_LISTS = {
    "LOWER_PRECISION_FP": "lower", "FP32": "float32", "FP32_SET_OPT_DTYPE": "float32",
    "DIFFERENT_REDISPATCH_SIGNATURE": "dtype", "PROMOTE": "widest",
}  # fmt: skip
#: The overload that is called with a dtype in the place of one without.
_WITH_DTYPE = {
    "aten::norm.Scalar": "aten::norm.ScalarOpt_dtype",
    "aten::norm.ScalarOpt_dim": "aten::norm.ScalarOpt_dim_dtype",
}


def policies() -> dict[str, str]:
    """By the name of an operator (``aten::mm``, ``aten::pow.Scalar``): in which precision CUDA's autocast runs it."""
    text = _HEADER.read_text()
    found = {"aten::binary_cross_entropy": "banned"}
    for name, policy in _LISTS.items():
        body = re.search(rf"#define AT_FORALL_{name}\(_\)((?:.*\\\n)+.*)", text)
        assert body, name
        names = [".".join(filter(None, one)) for one in re.findall(r"_\((\w+)(?:, (\w+))?\)", body[1])]
        names += re.findall(r'"([\w.]+)",', body[1])
        found |= {f"aten::{one}": policy for one in names}
    return found


def as_cuda() -> Any:
    """Gives the CPU's autocast CUDA's lists for as long as what is returned is kept."""
    library = torch.library.Library("aten", "IMPL")  # noqa: TOR901 - kept by the caller
    wanted = policies()
    for name in torch._C._dispatch_get_all_op_names():  # noqa: SLF001 - there is no other list
        if name in wanted:
            library.impl(name, _kernel(name, wanted[name]), _KEY, allow_override=True)
        elif name.startswith("aten::") and torch._C._dispatch_has_kernel_for_dispatch_key(name, _KEY):  # noqa: SLF001
            library.impl(name, torch.library.fallthrough_kernel, _KEY, allow_override=True)
    return library


def _operator(name: str) -> Any:
    packet, _, overload = name.removeprefix("aten::").partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def _kernel(name: str, policy: str) -> Callable[..., Any]:
    operator = _operator(_WITH_DTYPE.get(name, name))

    def kernel(*args: Any, **kwargs: Any) -> Any:
        if policy == "banned":
            raise RuntimeError(f"{name} is unsafe to autocast")
        if policy == "dtype":  # numbers as they are, and a dtype for the result
            kwargs["dtype"] = torch.float32 if _is_cast(args[0]) else args[0].dtype
        else:
            cast = functools.partial(_cast, dtype=_dtype(policy, args, kwargs))
            args, kwargs = tree_map(cast, (args, kwargs))
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)):  # noqa: SLF001
            return operator(*args, **kwargs)

    return kernel


def _is_cast(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point() and value.dtype != torch.float64


def _cast(value: Any, dtype: torch.dtype) -> Any:
    return value.to(dtype) if _is_cast(value) else value


def _dtype(policy: str, args: Any, kwargs: Any) -> torch.dtype:
    """What operands of 32 bits and less become."""
    lower = torch.get_autocast_dtype("cpu")
    if policy == "lower":
        return lower
    given = {x.dtype for x in tree_leaves((args, kwargs)) if _is_cast(x)}
    if policy == "widest" and not given <= {torch.float32, lower}:
        raise RuntimeError("Unexpected floating ScalarType in at::autocast::prioritize")
    return torch.float32 if policy == "float32" or torch.float32 in given else lower
