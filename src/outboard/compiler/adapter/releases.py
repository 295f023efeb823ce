# SPDX-License-Identifier: Apache-2.0
"""Private calls of PyTorch that are others in another release."""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Callable, Sequence
from typing import Any

import torch

from outboard import patches, torch_release

_IS_2_12 = torch_release.release(torch.__version__) == "2.12"


def prefetch_hash_of_sources() -> None:
    """Has a thread compute the hash of PyTorch's sources. PyTorch 2.12 has no way to wait for such a thread: there the
    hash is computed when it is asked for."""
    from torch._inductor import codecache

    if _IS_2_12:
        return
    key: Any = codecache.torch_key
    key.prefetch()
    os.register_at_fork(after_in_child=key.clear)


def replace_functions() -> None:
    """Replaces functions of PyTorch 2.12 by what 2.13 has.

    Sizes of pools would be guarded by the remainders of their divisions: one compilation for even ones, another for odd
    ones. A graph that was compiled under autocast in one dtype would be taken under autocast in another one.
    """
    if not _IS_2_12:
        return
    patches.apply("sizes of pools may be any", {"torch._meta_registrations.div_rtn": _rounded_down})
    place = "torch._functorch._aot_autograd.autograd_cache.autograd_cache_key"
    patches.apply("graphs are kept by what autocast was to do", {place: _with_autocast})


def _rounded_down(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def div_rtn(x: Any, y: Any) -> Any:
        return x // y

    return div_rtn


def _with_autocast(original: Callable[..., Any]) -> Callable[..., Any]:
    """The key of a graph, with the dtypes of autocast where that is on."""

    @functools.wraps(original)
    def key(mod: Any, example_inputs: Any, config: Any, *others: Any, **more: Any) -> Any:
        found, lines = original(mod, example_inputs, config, *others, **more)
        types = [name for name in torch._C._autocast_supported_devices() if torch.is_autocast_enabled(name)]
        state = [f"{name}: {torch.get_autocast_dtype(name)}" for name in types]
        if not state:
            return found, lines
        return f"a{hashlib.sha256(repr((found, state)).encode()).hexdigest()}", [*lines, f"autocast: {state}"]

    return key


def refuse_negative_places(name: str) -> None:
    """Has ``gather`` and ``embedding`` on the device called ``name`` fail for negative indices, as on the CPU and from
    PyTorch 2.13 on; 2.12's lowerings count them from the end."""
    if not _IS_2_12:
        return
    from torch._inductor import lowering

    lowerings: Any = lowering.lowerings
    aten = torch.ops.aten
    # Which argument has the indices, and the size that they are below, by the arguments before it.
    selected: dict[Any, tuple[int, Callable[..., Any]]] = {
        aten.gather: (2, lambda x, dim: x.get_size()[dim] if x.get_size() else 1),
        aten.embedding: (1, lambda weight: weight.get_size()[0]),
    }
    for packet, (place, size_of) in selected.items():
        for key in (packet, packet.default):
            lowerings[key] = _with_places_checked(lowerings[key], name, place, size_of)


def leave_out_empty_parts(name: str) -> None:
    """Has concatenations on the device called ``name`` take vectors without elements for nothing, whatever dimensions
    the other parts have, as on the CPU and from PyTorch 2.13 on."""
    if not _IS_2_12:
        return
    from torch._inductor import lowering

    module: Any = lowering
    aten = torch.ops.aten

    def without(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def cat(inputs: Any, dim: int = 0) -> Any:
            parts = [part for part in inputs if list(part.get_size()) != [0]]
            if inputs[0].get_device().type != name or not parts or len(parts) == len(inputs):
                return original(inputs, dim)
            return module.clone(parts[0]) if len(parts) == 1 else original(parts, dim)

        return cat

    for key in (aten.cat, aten.cat.default):
        module.lowerings[key] = without(module.lowerings[key])


def _with_places_checked(
    original: Callable[..., Any], name: str, place: int, size_of: Callable[..., Any]
) -> Callable[..., Any]:
    """A lowering whose argument number ``place`` are indices below the size that those before it have."""

    @functools.wraps(original)
    def lower(*args: Any, **kwargs: Any) -> Any:
        before, index, behind = args[:place], args[place], args[place + 1 :]
        if index.get_device().type == name:
            index = _outside_if_negative(index, size_of(*before))
        return original(*before, index, *behind, **kwargs)

    return lower


def _outside_if_negative(index: Any, size: Any) -> Any:
    """The same indices, but for negative ones the size itself."""
    from torch._inductor import ir
    from torch._inductor.virtualized import ops

    load, dtype = index.make_loader(), index.get_dtype()

    def inner(place: Any) -> Any:
        value = load(place)
        return ops.where(ops.lt(value, ops.constant(0, dtype)), ops.index_expr(size, dtype), value)

    return ir.Pointwise.create(device=index.get_device(), dtype=dtype, inner_fn=inner, ranges=list(index.get_size()))


def shape_functions() -> dict[Any, Callable[..., Any]]:
    """Of operators whose results PyTorch 2.12 does not know, or takes for others than 2.13 does."""
    if not _IS_2_12:
        return {}
    aten = torch.ops.aten
    return {
        aten._scaled_dot_product_flash_attention_for_cpu.default: _attention,
        aten._transformer_encoder_layer_fwd.default: _encoder_layer,
    }


def mistakes_attention_in_double() -> bool:
    """Whether the shape function of attention is wrong about float64."""
    return _IS_2_12


def _attention(mode: Any, overload: torch._ops.OpOverload, *args: Any, **kwargs: Any) -> Any:
    """The output like the query, and the logarithms of sums in the dtype that is computed in, which 2.12 takes for
    float32 whatever the query is."""
    query = args[0] if args else kwargs["query"]
    batch, heads, places = query.shape[:3]
    dtype = torch._prims_common.get_computation_dtype(query.dtype)
    with mode:
        out = torch.empty_like(query)
        return out, query.new_empty((batch, places, heads), dtype=dtype).transpose(1, 2)


def _encoder_layer(mode: Any, overload: torch._ops.OpOverload, *args: Any, **kwargs: Any) -> Any:
    with mode:
        return torch.empty_like(args[0] if args else kwargs["src"])


def decompositions() -> dict[Any, Callable[..., Any]]:
    """Of operators that PyTorch 2.12 cannot trace with symbolic sizes."""
    return {torch.ops.aten.addbmm.default: _addbmm} if _IS_2_12 else {}


def _addbmm(x: Any, batch1: Any, batch2: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """One product over batches and what is summed in each."""
    left = batch1.transpose(0, 1).reshape(batch1.shape[1], -1)
    return torch.addmm(x, left, batch2.reshape(-1, batch2.shape[2]), beta=beta, alpha=alpha)


def settings_of(config: Any, without: Sequence[str], without_prefixes: Sequence[str]) -> dict[str, Any]:
    """The values of a module of settings, which are not to be changed, but for those of these names. PyTorch 2.12
    copies them each time."""
    known = {} if _IS_2_12 else {"readonly_values": True}
    found: dict[str, Any] = config._get_dict(
        ignored_keys=list(without), ignored_prefixes=list(without_prefixes), **known
    )
    return found
