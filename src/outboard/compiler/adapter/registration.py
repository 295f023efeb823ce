# SPDX-License-Identifier: Apache-2.0
"""Makes Inductor know our device: scheduling, wrapper, device interface."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch
from torch._C import DispatchKey
from torch._decomp import decomposition_table
from torch._decomp.decompositions_for_rng import extra_random_decomps
from torch._dynamo.source import LocalSource
from torch._inductor import decomposition as inductor_decompositions
from torch._inductor import ir, lowering
from torch._inductor.codegen.common import (
    DeviceOpOverrides,
    OpDecompositions,
    pointwise_overrides_data,
    register_backend_for_device,
    register_device_op_overrides,
)
from torch._inductor.custom_graph_pass import CustomGraphModulePass
from torch._inductor.utils import is_view, sympy_product
from torch._inductor.virtualized import V, ops
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils import _pytree as pytree

from outboard import patches

from ..dialects import c
from ..operators import facts
from ..operators.overloads import overloads_of
from ..plans import files
from ..target import target_of
from . import ambient
from .graphs import aliases, floats, gaps, overlaps, pending, second_derivatives
from .graphs.replays import register_replays
from .interface import device_name, register_interface
from .operators import (
    additions,
    affine_grids,
    drawn_again,
    indices,
    interpolation,
    layouts,
    pooling,
    random,
    rounding,
    scatters,
    shapes,
)
from .operators.corrections import CORRECTIONS
from .operators.decompositions import cumulative_sum, embedding_gradient
from .operators.recurrent import CELLS
from .overrides import EIGHTHS
from .scheduling import LoopScheduling
from .symbols import derived_size
from .wrapper import EagerWrapper, PlanWrapper, operator_builder

#: Inductor's settings for one operator. No fusion across reductions is at stake, so everything optional is off.
EAGER_CONFIG: dict[str, Any] = {
    "split_reductions": False,
    "allow_buffer_reuse": False,
    "size_asserts": False,
    "nan_asserts": False,
    "alignment_asserts": False,
    "implicit_fallbacks": True,
    "fallback_random": False,
    "comment_origin": False,
    "triton.tiling_prevents_pointwise_fusion": False,
    "triton.tiling_prevents_reduction_fusion": False,
    "triton.coalesce_tiling_analysis": False,
    "unroll_reductions_threshold": 1,
    "comprehensive_padding": False,  # results lie as PyTorch's do
    "loop_ordering_after_fusion": False,
    "benchmark_kernel": False,
    "max_autotune": False,
    "max_autotune_gemm": False,
    "assert_indirect_indexing": True,
    "compute_all_bounds": False,
    "combo_kernels": False,
    "memory_planning": False,
    "cpp_wrapper": False,
    "profile_bandwidth": False,
    "graph_partition": False,
}


class OutboardDeviceOps(DeviceOpOverrides):
    """Lines of Python that generated modules use to steer the device."""

    def import_get_raw_stream_as(self, name: str) -> str:
        return f"{name} = lambda index: 0"

    def set_device(self, device_idx: int | str) -> str:
        return f"torch.accelerator.set_device_index({device_idx})"

    def synchronize(self) -> str:
        return "torch.accelerator.synchronize()"

    def device_guard(self, device_idx: int | str) -> str:
        return f"torch.accelerator.device_index({device_idx})"

    def current_stream(self) -> str:
        return "torch.accelerator.current_stream()"


class _ChosenWrapper(PlanWrapper):
    """Makes the wrapper of the compilation under way: an operator's own, else the one for whole graphs."""

    @classmethod
    def create(
        cls, is_subgraph: bool, subgraph_name: Any, parent_wrapper: Any, partition_signatures: Any = None
    ) -> Any:
        from .graphs.compiled import GraphWrapper

        builder = operator_builder.get()
        if builder is None or is_subgraph:
            return GraphWrapper.create(is_subgraph, subgraph_name, parent_wrapper, partition_signatures)
        wrapper = EagerWrapper()
        wrapper.builder = builder
        return wrapper


def _devices() -> str:
    return "\0".join(target_of(index).plan_key for index in range(torch.accelerator.device_count()))


def fingerprint() -> bytes:
    """32 bytes that change with the compiler's source and with the devices present."""
    return hashlib.sha256(files.compiler_fingerprint() + _devices().encode()).digest()


class _Fingerprint(CustomGraphModulePass):
    """A pass that changes nothing; its identity makes PyTorch's caches of graphs tell our versions and devices apart,
    and the state of PyTorch's that graphs were traced and compiled under."""

    def __call__(self, gm: torch.fx.GraphModule) -> None:
        """Leaves the graph as it is."""

    def uuid(self) -> bytes:
        """Changes with the compiler's source, with the devices present, and with the state."""
        return hashlib.sha256(fingerprint() + repr(ambient.state()).encode()).digest()


@functools.cache
def register() -> None:
    """Registers the device with Inductor and Dynamo, once."""
    name = device_name()
    register_backend_for_device(name, LoopScheduling, _ChosenWrapper, device_custom_pass=_Fingerprint())
    register_device_op_overrides(name, OutboardDeviceOps())
    register_interface()
    _prefer_two_pass_variance(name)
    _allow_all_atomic_additions(name)
    _leave_dtypes_to_the_host(name)
    scatters.add_in_order(name)
    scatters.compare_with_indices(name)
    _count_places_in_order(name)
    _name_sizes_of_padded()
    _broadcast_known_ones(name)
    _hold_every_guard()
    _compute_on_the_device(name)
    _keep_layouts(name)
    _concatenate_by_parts(name)
    _leave_to_kernels(name)
    _allow_calls_of_kernels()
    _change_decompositions(name)
    drawn_again.keep_states(name)
    aliases.register(name)
    gaps.register()
    floats.register()
    overlaps.register(name)
    pending.register(name)
    second_derivatives.register(name)
    pooling.register(name)
    rounding.register(name)
    indices.register(name)
    interpolation.register(name)
    shapes.register(name)
    affine_grids.register(name)
    register_replays(name)


def _prefer_two_pass_variance(name: str) -> None:
    """Mean first, then squared deviations: here faster than Welford's one pass, and as exact."""

    def is_ours(x: Any) -> bool:
        device = x.get_device()
        return device is not None and bool(device.type == name)

    def choosing(original: Callable[..., Any]) -> Callable[..., bool]:
        @functools.wraps(original)
        def choose(x: Any, *others: Any, **more: Any) -> bool:
            return is_ours(x) or bool(original(x, *others, **more))

        return choose

    def lowering_of(elsewhere: Callable[..., Any]) -> Callable[..., Any]:
        def lower(x: Any, axis: Any, correction: Any, keepdim: bool, return_mean: bool) -> Any:
            return (_variance if is_ours(x) else elsewhere)(x, axis, correction, keepdim, return_mean)

        return lower

    made = {"use_two_step_variance": choosing, "var_mean_sum_": lowering_of}
    patches.apply(
        "variances are computed in two passes",
        {f"torch._inductor.lowering.{key}": value for key, value in made.items()},
    )


def _variance(x: Any, axis: Any, correction: Any, keepdim: bool, return_mean: bool) -> tuple[Any, ...]:
    """The variance by deviations from the mean, corrected for what the mean has lost in rounding (T. Chan, G. Golub and
    R. LeVeque, "Algorithms for computing the sample variance", 1983). Of numbers far from 0 that is not little, unless
    they are summed in a wider dtype, in which squares of deviations do not overflow, either."""
    module: Any = lowering
    axis = module._validate_reduction_axis(x, axis)
    dtype, size = _summed_in(x), x.get_size()
    count = sympy_product(size[i] for i in axis)
    freedom = sympy.Max(count - (1 if correction is None else correction), 0)

    def number(value: Any, like: Any) -> Any:
        constant = ir.IndexingConstant(index=value, dtype=dtype, device=x.get_device())
        return ir.ExpandView.create(constant, list(like.get_size()))

    numbers = module.to_dtype(x, dtype)
    total = module.sum_(numbers, axis, True)
    exact = module.div(total, number(count, total))
    exact.realize()
    mean = module.to_dtype(exact, x.get_dtype())
    deviations = module.sub(numbers, exact)
    squares = module.sum_(module.square(deviations), axis, keepdim)
    if dtype == x.get_dtype():
        rest = module.sum_(deviations, axis, keepdim)
        squares = _without(squares, module.div(module.square(rest), number(count, rest)))
    variance = module.to_dtype(module.div(squares, number(freedom, squares)), x.get_dtype())
    if not return_mean:
        return (variance,)
    return variance, mean if keepdim else module.squeeze(mean, axis)


def _without(squares: Any, lost: Any) -> Any:
    """What the mean has lost in rounding, taken from a sum of squares: that must not leave less than nothing, nor turn
    NaN into nothing, nor infinity into NaN."""

    def inner(whole: Any, part: Any) -> Any:
        infinite = ops.eq(whole, ops.constant(math.inf, squares.get_dtype()))
        return ops.where(infinite, whole, ops.relu(ops.sub(whole, part)))

    made: Any = lowering.make_pointwise(inner)
    return made(squares, lost)


def _summed_in(x: Any) -> torch.dtype:
    """The dtype that numbers and squares are summed in: as on PyTorch's CPU, float64 where that is no slow one."""
    dtype: torch.dtype = x.get_dtype()
    target = target_of(x.get_device().index or 0)
    return torch.float64 if dtype == torch.float32 and target.tuning.sums_in_doubles else dtype


def _allow_all_atomic_additions(name: str) -> None:
    """Kernels here add atomically to all dtypes but floats of 8 bits; Inductor calls the host for those that Triton
    cannot add to."""

    def allowing(original: Callable[..., Any]) -> Callable[..., bool]:
        def choose(dtype: torch.dtype) -> bool:
            return dtype in EIGHTHS if name in V.graph.device_types else bool(original(dtype))

        return choose

    place = "torch._inductor.lowering.needs_fallback_due_to_atomic_add_limitations"
    patches.apply("integers and bools are added to atomically", {place: allowing})


def _leave_dtypes_to_the_host(name: str) -> None:
    """Inductor calls operators on tensors that it has no loops for as they are. Here that are also those of dtypes that
    no kernel reads, of which views can be made nevertheless."""

    def judging(original: Callable[..., Any]) -> Callable[..., bool]:
        def judge(t: torch.Tensor, node: Any = None) -> bool:
            if t.device.type != name or c.is_in_memory(t.dtype) or t.is_complex():
                return bool(original(t, node))
            target = None if node is None else node.target
            if not isinstance(target, torch._ops.OpOverload) or target is torch.ops.aten.view.dtype:
                return True
            return not is_view(target)

        return judge

    place = "torch._inductor.lowering.unsupported_input_tensor"
    patches.apply("operators on dtypes without kernels run on the CPU", {place: judging})


def _count_places_in_order(name: str) -> None:
    """Has ``argmax`` and ``argmin`` of all elements look at them as one row. Inductor may reorder several reduced
    dimensions to follow memory, and the place of an element would be counted in that order."""
    module: Any = lowering

    def in_a_row(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def lower(x: Any, axis: Any = None, keepdims: bool = False, **kwargs: Any) -> Any:
            sizes = x.get_size()
            ours = x.get_device() is not None and x.get_device().type == name
            if not ours or axis is not None or len(sizes) < 2:
                return original(x, axis, keepdims, **kwargs)
            place = original(module.view(x, [sympy_product(sizes)]), 0, False, **kwargs)
            return module.view(place, [1] * len(sizes)) if keepdims else place

        return lower

    for packet in (torch.ops.aten.argmax, torch.ops.aten.argmin):
        for key in (packet, *overloads_of(packet)):
            if key in module.lowerings:
                module.lowerings[key] = in_a_row(module.lowerings[key])


def _name_sizes_of_padded() -> None:
    """Gives the sizes of what one call pads names of their own: products of the sums that they are, sympy would expand
    for seconds."""
    module: Any = lowering

    def naming(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def lower(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            builder, loops = operator_builder.get(), getattr(result.data, "data", None)
            if builder is None or not isinstance(loops, ir.Pointwise):
                return result
            sizes = [derived_size(builder, V.graph.sizevars.shape_env, size) for size in loops.ranges]
            return ir.TensorBox.create(dataclasses.replace(loops, ranges=sizes))

        return lower

    for key in (torch.ops.aten.constant_pad_nd, torch.ops.aten.constant_pad_nd.default):
        module.lowerings[key] = naming(module.lowerings[key])


def _broadcast_known_ones(name: str) -> None:
    """Has all elements of a broadcast read the one that there is where a size is known to be 1 by a guard only, such as
    (n + 1) // n. Inductor broadcasts it, and then looks for sizes that are the number 1."""

    def judging(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def make(self: ir.ExpandView) -> Callable[[Sequence[sympy.Expr]], Sequence[sympy.Expr]]:
            device, sizes = self.get_device(), self.data.get_size()
            if device is None or device.type != name:
                return original(self)
            steps = [0 if V.graph.sizevars.is_size_one_or_false(size) else 1 for size in sizes]

            def reindex(index: Sequence[sympy.Expr]) -> Sequence[sympy.Expr]:
                own = index[len(index) - len(sizes) :]
                return [step * place for step, place in zip(steps, own, strict=True)]

            return reindex

        return make

    patches.apply(
        "sizes that are known to be 1 are broadcast", {"torch._inductor.ir:ExpandView.make_reindexer": judging}
    )


def _hold_every_guard() -> None:
    """Has a graph that PyTorch's caches keep serve sizes for which all of its guards hold. PyTorch joins their texts by
    ``and``, also those with an ``or`` outside of parentheses: if the second half of such a guard holds, those before
    it do not count, and a graph that is for one size serves others."""

    def parenthesized(_original: Callable[..., Any]) -> Callable[..., Any]:
        def produce(
            self: ShapeEnv,
            placeholders: Sequence[Any],
            *,
            guards: Any = None,
            ignore_static: bool = True,
        ) -> str | None:
            sources = [LocalSource(f"t{place}") for place in range(len(placeholders))]
            parts = self.produce_guards(placeholders, sources, guards=guards, ignore_static=ignore_static)
            return " and ".join(f"({part})" for part in parts) or None

        return produce

    patches.apply(
        "all guards of a cached graph hold",
        {"torch.fx.experimental.symbolic_shapes:ShapeEnv.produce_guards_expression": parenthesized},
    )


def _compute_on_the_device(name: str) -> None:
    """Has an element-wise operation of a number on the CPU and a tensor on the device run on the device, whichever
    comes first. Inductor looks for the devices that it knows, and would have its CPU kernel read the tensor."""

    def including_ours(original: Callable[..., Any]) -> Callable[..., bool]:
        return lambda device: device == name or bool(original(device))

    patches.apply("numbers on the CPU meet tensors on the device", {"torch._inductor.lowering.is_gpu": including_ours})


def _keep_layouts(name: str) -> None:
    """Leaves convolutions in the layout that they come in: kernels here read sliding windows along rows."""

    def keeping(original: Callable[..., Any]) -> Callable[..., bool]:
        def choose(gm: torch.fx.GraphModule, *, is_inference: bool) -> bool:
            devices = {node.meta["val"].device.type for node in gm.graph.nodes if _is_tensor(node.meta.get("val"))}
            return name not in devices and bool(original(gm, is_inference=is_inference))

        return choose

    place = "torch._inductor.graph:GraphLowering.decide_layout_opt"
    patches.apply("convolutions keep the layout that they come in", {place: keeping})


#: Operations per element of a tensor that are cheap enough to be done for every element of a longer one.
_FEW_OPERATIONS = 4


def _concatenate_by_parts(name: str) -> None:
    """Has each part of a concatenation computed where it belongs. In one kernel for all parts, as Inductor likes it,
    every element costs as much as the dearest part: a decoding step would rotate a whole cache of keys for one new
    key."""

    def by_parts(original: Callable[..., Any]) -> Callable[..., Any]:
        def choose(inputs: Any, dim: int = 0) -> Any:
            device = inputs[0].get_device()
            dear = any(_operations(part) > _FEW_OPERATIONS for part in inputs)
            if device is not None and device.type == name and dear:
                return ir.TensorBox(ir.ConcatKernel.create(inputs, dim))
            return original(inputs, dim)

        return choose

    patches.apply("parts of concatenations are computed apart", {"torch._inductor.lowering.pointwise_cat": by_parts})


def _operations(node: Any) -> int:
    """Operations per element of what is not computed yet."""
    while isinstance(node, (ir.TensorBox, ir.StorageBox, ir.BaseView)):
        node = node.data
    return node.inner_fn_opcount().num_ops if isinstance(node, ir.Pointwise) else 0


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _leave_to_kernels(name: str) -> None:
    """Makes operators with a good kernel of their own calls of it instead of loops."""
    preferred = (operator.removeprefix("aten::") for operator in facts.with_fact(lambda fact: fact.preferred))
    for operator in (*preferred, *_not_in_loops()):
        packet = getattr(torch.ops.aten, operator)
        for overload in overloads_of(packet):
            if overload in lowering.lowerings:
                lowering.lowerings[overload] = _called_on(name, overload, lowering.lowerings[overload])


def _not_in_loops() -> list[str]:
    """Functions, such as Bessel's, that Inductor takes for granted in loops and that ours do not have."""
    known = c.SUPPORTED | set(dir(OpDecompositions))
    names = [data.name for name, data in pointwise_overrides_data.items() if name not in known]
    return [name for name in names if hasattr(torch.ops.aten, name)]


def _allow_calls_of_kernels() -> None:
    """Lets graphs call operators that could be decomposed. Where the environment has ``CI`` set, Inductor refuses: a
    check that its developers make of their own tables, and no matter of the users whose tests run there."""

    def allowing(original: Callable[..., Any]) -> Callable[..., Any]:
        return functools.partial(original, warn=False, override_decomp=True)

    patches.apply("graphs call operators that have decompositions", {"torch._inductor.graph.make_fallback": allowing})


def _change_decompositions(name: str) -> None:
    """Has whole graphs on our device decompose recurrent cells, which Inductor knows on no device, and random orders,
    which it leaves to PyTorch, decompose and round rightly what it does not, draw random numbers as single calls do,
    and leave the gradient of an embedding to its kernel."""
    table = inductor_decompositions.decompositions

    def on_ours(function: Callable[..., Any], elsewhere: Callable[..., Any] | None) -> Callable[..., Any]:
        @functools.wraps(function)
        def decompose(*args: Any, **kwargs: Any) -> Any:
            tensors = [leaf.device for leaf in pytree.tree_leaves(args) if isinstance(leaf, torch.Tensor)]
            if any(torch.device(device).type == name for device in [*tensors, kwargs.get("device") or "cpu"]):
                result = function(*args, **kwargs)
                if result is not NotImplemented or elsewhere is None:
                    return result
                return elsewhere(*args, **kwargs)
            return NotImplemented if elsewhere is None else elsewhere(*args, **kwargs)

        return decompose

    ours: dict[Any, Callable[..., Any]] = {
        **additions.DECOMPOSITIONS,
        **CELLS,
        **rounding.DECOMPOSITIONS,
        **CORRECTIONS,
        **layouts.DECOMPOSITIONS,
        **pooling.DECOMPOSITIONS,
        **random.DECOMPOSITIONS,
        torch.ops.aten.cumsum.default: cumulative_sum,
        torch.ops.aten.embedding_dense_backward.default: embedding_gradient,
        torch.ops.aten.randperm.default: random.random_order,
    }
    for overload, function in ours.items():
        chosen = extra_random_decomps if overload in extra_random_decomps else table
        chosen[overload] = on_ours(function, chosen.get(overload))
    for overload, function in rounding.rounding_numbers(table).items():
        table[overload] = on_ours(function, table[overload])
    for overload, known in itertools.product(layouts.described(), (table, extra_random_decomps, decomposition_table)):
        if overload in known:
            known[overload] = on_ours(layouts.laid_out(overload, known[overload]), known[overload])
    for overload, function in ours.items():
        for key in {DispatchKey.Autograd, DispatchKey.CompositeImplicitAutograd} & overload.py_kernels.keys():
            # Tracing takes these apart before it looks at any table.
            overload.py_kernels[key] = on_ours(function, overload.py_kernels[key])
            overload._dispatch_cache.clear()
    inductor_decompositions.fast_random_decomps.cache_clear()


def _called_on(name: str, overload: Any, original: Callable[..., Any]) -> Callable[..., Any]:
    call = lowering.fallback_handler(overload, add_to_fallback_set=False)

    @functools.wraps(original)
    def lower(*args: Any, **kwargs: Any) -> Any:
        devices = [arg.get_device() for arg in args if isinstance(arg, ir.TensorBox)]
        ours = any(device is not None and device.type == name for device in devices)
        return call(*args, **kwargs) if ours else original(*args, **kwargs)

    return lower
