# SPDX-License-Identifier: Apache-2.0
"""What of PyTorch is replaced, in one table: each place with the parameters that it is known to have, by feature. Where
releases that Outboard is built for differ, the table says what each has.

A feature replaces all of its places or none. Where a release of PyTorch has another function than the one that a
replacement was written for, the feature is off, which is said once, and PyTorch is left as it is. Entries that are
added to PyTorch's own tables (decompositions, lowerings, interfaces) are no replacements and not listed; nor are the
updates of ``torch.optim``, which are wrapped whatever they take.
"""

from __future__ import annotations

import importlib
import inspect
import logging
import types
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from outboard import torch_release

_log = logging.getLogger(__name__)


class Place(NamedTuple):
    """A function, method or value of PyTorch's: ``module.name`` or ``module:Class.name``; of functions the names of
    the parameters, in order, with the stars that they have; None for what is none."""

    where: str
    parameters: str | None
    #: What older releases have instead, by the last release that has it ("2.13"), the oldest first.
    until: Mapping[str, str] = types.MappingProxyType({})

    def expected(self, version: str) -> str | None:
        """The parameters in a version of PyTorch ("2.13.0+cpu")."""
        running = torch_release.number(version)
        known = (parameters for last, parameters in self.until.items() if running <= torch_release.number(last))
        return next(known, self.parameters)


_POST_COMPILE = "example_inputs compiled_graph cudagraphs constants boxed_forward_device_index"
_COMPILE_FRAME = Place(
    "torch._dynamo.convert_frame._compile",
    "code globals locals builtins closure compiler_fn one_graph export export_constraints hooks cache_entry "
    "cache_entries cache_entries_for_reasons cache_size frame frame_state compile_id skip package convert_frame_box",
)
_COMPILE_GRAPH = Place(
    "torch._inductor.compile_fx._compile_fx_inner", "gm example_inputs compile_region_name **graph_kwargs"
)
_CONTEXT = "torch.distributed.tensor.experimental._context_parallel._attention"
_RPC = "torch.distributed.rpc"
C10D = "torch.distributed.distributed_c10d"
DDP = "torch.nn.parallel:DistributedDataParallel"
_AUTOGRAD_CACHE = "torch._functorch._aot_autograd.autograd_cache"
_AUTOGRAD_CACHE_KEY = Place(
    f"{_AUTOGRAD_CACHE}.autograd_cache_key",
    "mod example_inputs config compiler_config_extra act_input_paths",
    {"2.13": "mod example_inputs config compiler_config_extra"},
)

_GUARDS = (
    "self f_code output_graph cache_entries guard_fail_fn guard_filter_fn shape_code_parts runtime_global_scope "
    "save_guards strict_error"
)
_ENTRY = (
    "compiled_fw_func compiled_bw_func aot_joint_graph_str aot_forward_graph_str aot_backward_graph_str "
    "runtime_metadata dispatch_wrappers maybe_subclass_meta num_fw_outs_saved_for_bw "
    "indices_of_inps_to_detach forward_time_taken_ns backward_time_taken_ns sanitized_aot_config guards_expr "
    "backward_state_indices num_symints_saved_for_bw serialized_bw_module min_cut_info_str"
)
_NEW_GROUP = (
    "group_size group_rank global_ranks_in_group backend store group_name backend_options timeout pg_tag device_id "
    "group_desc"
)
_DDP_INIT = (
    "self module device_ids output_device dim broadcast_buffers init_sync process_group bucket_cap_mb "
    "find_unused_parameters check_reduction gradient_as_bucket_view static_graph "
    "delay_all_reduce_named_params param_to_hook_all_reduce mixed_precision device_mesh "
    "skip_all_reduce_unused_params bucket_cap_mb_list batched_grad_copy forward_sync_buffers"
)

#: By feature, which is said as what works.
TABLE: Mapping[str, tuple[Place, ...]] = {
    "memory of the device is not shared silently": (
        Place("torch.storage:UntypedStorage.share_memory_", "self *args **kwargs"),
        Place("torch.storage:UntypedStorage.is_shared", None),
    ),
    "tensors are printed without compiling anything": (Place("torch._tensor_str._tensor_str", "self indent"),),
    "tensors are exchanged by DLPack": (
        Place(
            "torch:Tensor.__dlpack__",
            "self stream max_version dl_device copy read_only",
            {"2.13": "self stream max_version dl_device copy"},
        ),
        Place("torch:Tensor.__dlpack_device__", "self"),
        Place("torch.utils.dlpack.to_dlpack", None),
        Place("torch.to_dlpack", None),
        Place("torch.utils.dlpack.from_dlpack", "ext_tensor device copy"),
        Place("torch.from_dlpack", "ext_tensor device copy"),
    ),
    "Ctrl-C ends a backward pass": (Place("torch.autograd:Variable._execution_engine", None),),
    "export_stacks of the profiler knows the device's time": (
        Place("torch.autograd.profiler_util:EventList.supported_export_stacks_metrics", "self"),
    ),
    "frames are compiled in isolation": (_COMPILE_FRAME,),
    "graphs are compiled in isolation": (_COMPILE_GRAPH,),
    "graphs that no program can be made for run operator by operator": (_COMPILE_GRAPH,),
    "graphs keep operators that the device's compiler or the program wants whole": (
        Place(
            "torch._inductor.compile_fx.compile_fx",
            "model_ example_inputs_ inner_compile config_patches decompositions ignore_shape_env compile_region_name",
        ),
    ),
    "graphs see conjugates and negatives that are pending": (
        Place(
            "torch._inductor.output_code:CompiledFxGraph.post_compile",
            "self example_inputs constants graph_kwargs",
        ),
    ),
    "second derivatives of compiled functions are refused": (
        Place(
            "torch._functorch._aot_autograd.runtime_wrappers._codegen_compiled_backward",
            "num_rng num_tensors_no_vc_check inputs_require_grad",
        ),
    ),
    "AOTInductor refuses the device": (
        Place("torch._inductor.compile_fx.compile_fx_aot", "model_ example_inputs_ inner_compile config_patches"),
    ),
    "traces of earlier processes are used": (_COMPILE_FRAME,),
    "traces are kept for later processes": (
        Place("torch._dynamo.bytecode_transformation._unique_id_counter", None),
        Place(
            "torch._dynamo.guards:CheckFunctionManager.__init__",
            f"{_GUARDS} guard_build_local_state",
            {"2.13": _GUARDS},
        ),
        Place(f"{_AUTOGRAD_CACHE}.should_bundle_autograd_cache", ""),
        _AUTOGRAD_CACHE_KEY,
        Place(f"{_AUTOGRAD_CACHE}:AOTAutogradCache.make_entry", _ENTRY),
        Place(f"{_AUTOGRAD_CACHE}:AOTAutogradCache.save", "key entry remote"),
    ),
    "mode='reduce-overhead' replays graphs": (
        Place("torch._inductor.cudagraph_utils.check_lowering_disable_cudagraph", "device_node_mapping"),
        Place("torch._inductor.output_code.cudagraph_post_compile", _POST_COMPILE),
        Place("torch._inductor.output_code.cudagraph_partition_post_compile", _POST_COMPILE),
    ),
    "variances are computed in two passes": (
        Place("torch._inductor.lowering.use_two_step_variance", "x axis keepdim input_dtype"),
        Place("torch._inductor.lowering.var_mean_sum_", "x axis correction keepdim return_mean"),
    ),
    "integers and bools are added to atomically": (
        Place("torch._inductor.lowering.needs_fallback_due_to_atomic_add_limitations", "dtype"),
    ),
    "operators on dtypes without kernels run on the CPU": (
        Place("torch._inductor.lowering.unsupported_input_tensor", "t node"),
    ),
    "scatters add in order": (
        Place("torch._inductor.lowering.scatter_fallback", "op_overload self dim index src reduce include_self"),
        Place("torch._inductor.lowering.index_put_impl_", "self indices values accumulate check may_realize"),
    ),
    "sizes that are known to be 1 are broadcast": (Place("torch._inductor.ir:ExpandView.make_reindexer", "self"),),
    "all guards of a cached graph hold": (
        Place(
            "torch.fx.experimental.symbolic_shapes:ShapeEnv.produce_guards_expression",
            "self placeholders guards ignore_static",
        ),
    ),
    "numbers on the CPU meet tensors on the device": (Place("torch._inductor.lowering.is_gpu", "device"),),
    "convolutions keep the layout that they come in": (
        Place("torch._inductor.graph:GraphLowering.decide_layout_opt", "gm is_inference"),
    ),
    "graphs that write inputs are for those that overlap in the same way": (
        Place(
            "torch._inductor.compile_fx.compile_fx",
            "model_ example_inputs_ inner_compile config_patches decompositions ignore_shape_env compile_region_name",
        ),
        _AUTOGRAD_CACHE_KEY,
    ),
    "writes into views leave alone what lies between": (
        Place(
            "torch._subclasses.functional_tensor:FunctionalTensorMode.__torch_dispatch__",
            "self func types args kwargs",
        ),
    ),
    "results that are views of inputs lie where they should": (
        Place(
            "torch._functorch._aot_autograd.runtime_wrappers.create_synthetic_base_metadata",
            "m synthetic_base_info outer_args inner_args inner_args_desc",
        ),
        Place(
            "torch._functorch._aot_autograd.graph_capture.create_functionalized_fn",
            "fn args args_descs meta aot_config trace_joint joint_fn_handle",
        ),
    ),
    "results share the memory that they share in eager mode, and no more": (
        Place("torch._inductor.graph:GraphLowering.run", "self *args"),
        Place("torch._inductor.graph:GraphLowering.output", "self target args kwargs"),
    ),
    "a copy that is returned stays one where its source will be written in place": (
        Place("torch._inductor.fx_passes.post_grad.remove_noop_ops", "graph"),
    ),
    "a sum with zero or a product with one that is returned is a tensor of its own": (
        Place("torch._inductor.fx_passes.joint_graph.remove_no_ops", "gm zeros ones"),
    ),
    "a product of floats with zero is computed": (
        Place("torch._inductor.fx_passes.joint_graph:UniformValueConstantFolder._add_peephole_patterns", "self"),
    ),
    "quotients by constants are rounded once": (Place("torch._inductor.lowering.div_prim", "a b"),),
    "what is written into a buffer that has been written goes into that buffer": (
        Place("torch._inductor.lowering.mutate_to", "changed val unsafe_alias"),
    ),
    "a result that is computed in an input is read before the input is written": (
        Place("torch._inductor.fx_passes.reinplace.reinplace_inplaceable_ops_core", "graph"),
    ),
    "graphs that hold the value of a float serve no other": (
        Place(f"{_AUTOGRAD_CACHE}:AOTAutogradCache.save", "key entry remote"),
    ),
    "multiples of floats that a graph takes are added": (
        Place("torch.fx.passes._tensorify_python_scalars._tensorify_impl", "gm shape_env fake_mode"),
    ),
    "floats are returned where there is a default device": (
        Place("torch._dynamo.variables.tensor:SymNodeVariable.as_tensor", "self tx dtype"),
    ),
    "indices that become floats are rounded": (
        Place("torch._inductor.index_propagation:SymPyOps.to_dtype", "value dtype src_dtype use_compute_types"),
    ),
    "indices that graphs compute are inside": (
        Place("torch._inductor.index_propagation:IndexPropagation.indirect_indexing", "self index size check wrap_neg"),
    ),
    "parts of concatenations are computed apart": (Place("torch._inductor.lowering.pointwise_cat", "inputs dim"),),
    "graphs call operators that have decompositions": (
        Place("torch._inductor.graph.make_fallback", "op layout_constraint warn override_decomp get_decomp_fn"),
    ),
    "groups of no particular backend have the device's": (
        Place(
            f"{C10D}._new_process_group_helper",
            f"{_NEW_GROUP} enable_reconfigure",
            {"2.13": _NEW_GROUP},
        ),
    ),
    "groups have monitored_barrier": (
        Place(f"{C10D}.monitored_barrier", "group timeout wait_all_ranks"),
        Place("torch.distributed.monitored_barrier", "group timeout wait_all_ranks"),
    ),
    "barriers take any number of a device": (
        Place(f"{C10D}.barrier", "group async_op device_ids timeout"),
        Place("torch.distributed.barrier", "group async_op device_ids timeout"),
    ),
    "DDP takes hooks of halves": (Place(f"{DDP}._check_comm_hook", "self hook"),),
    "DDP takes any number of a device": (
        Place(
            f"{DDP}.__init__",
            f"{_DDP_INIT} lazy_bucket_allocation",
            {"2.14": _DDP_INIT},
        ),
    ),
    "meshes share devices among ranks": (
        Place("torch.distributed.device_mesh:DeviceMesh._setup_world_group_and_device", "self"),
    ),
    "attention over parts of sequences is one operator": (
        Place(f"{_CONTEXT}._enable_cp_dtensor_dispatcher", ""),
        Place(f"{_CONTEXT}._disable_cp_dtensor_dispatcher", ""),
    ),
    "rpc sends tensors of the device": (Place(f"{_RPC}.internal:_InternalRPCPickler._tensor_reducer", "self tensor"),),
    "rpc knows maps of the device": (Place(f"{_RPC}.options._to_device_map", "device_map"),),
    "rpc calls operators with tensors of the device": (
        Place(f"{_RPC}.api._invoke_rpc", "to func rpc_type args kwargs rpc_timeout"),
        Place(f"{_RPC}.api.remote", "to func args kwargs timeout"),
    ),
    "flex_attention takes tensors of the device": (
        Place("torch.nn.attention.flex_attention._validate_device", "query key value"),
        Place("torch.nn.attention.flex_attention._vmap_for_bhqkv", "fn prefix suffix out_dims group_dim"),
    ),
    "attention takes jagged tensors of the device": (
        Place(
            "torch.nested._internal.ops.jagged_scaled_dot_product_attention",
            "query key value attn_mask dropout_p is_causal scale enable_gqa",
        ),
    ),
}

#: What PyTorch does by itself, from a release on: there these features are not asked for, and nothing is replaced.
BUILT_IN_SINCE: Mapping[str, str] = {
    "multiples of floats that a graph takes are added": "2.14",
    "what is written into a buffer that has been written goes into that buffer": "2.15",
    "sizes that are known to be 1 are broadcast": "2.15",
}

#: Places that this process has replaced, and why features are off.
replaced: set[str] = set()
refused: dict[str, str] = {}


def apply(feature: str, made: Mapping[str, Callable[[Any], Any]]) -> bool:
    """Replaces places of a feature in ``TABLE``, by name, each by what a function makes of what is there; a feature may
    do so in parts. Returns False, and changes nothing, if this PyTorch does that by itself, or has not what the table
    says.

    Raises:
        KeyError: if the table has no such feature.
        ValueError: if a name is no place of the feature.
    """
    places = TABLE[feature]
    if unknown := made.keys() - {place.where for place in places}:
        raise ValueError(f"no places of the feature: {', '.join(sorted(unknown))}")
    if feature in refused or feature not in needed(torch.__version__):
        return False
    if reasons := list(filter(None, map(mismatch, places))):
        refused[feature] = "; ".join(reasons)
        _log.warning("another PyTorch than Outboard was written for: not so that %s (%s)", feature, refused[feature])
        return False
    for where, make in made.items():
        owner, name = _owner(where)
        value = make(getattr(owner, name))
        is_static = isinstance(owner, type) and isinstance(inspect.getattr_static(owner, name), staticmethod)
        setattr(owner, name, staticmethod(value) if is_static else value)
        replaced.add(where)
    return True


def needed(version: str) -> dict[str, tuple[Place, ...]]:
    """The features of ``TABLE`` that a version of PyTorch ("2.13.0+cpu") does not have by itself."""
    running = torch_release.number(version)
    built_in = {feature for feature, first in BUILT_IN_SINCE.items() if torch_release.number(first) <= running}
    return {feature: places for feature, places in TABLE.items() if feature not in built_in}


def mismatch(place: Place) -> str:
    """How what this PyTorch has in a place differs from the table; "" if it does not."""
    try:
        owner, name = _owner(place.where)
        found = getattr(owner, name)
    except (ImportError, AttributeError):
        return f"there is no {place.where}"
    expected = place.expected(torch.__version__)
    if expected is None:
        return ""
    parameters = " ".join(map(_spelled, inspect.signature(found).parameters.values()))
    return "" if parameters == expected else f"{place.where} takes {parameters}"


def _spelled(parameter: inspect.Parameter) -> str:
    if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
        return f"*{parameter.name}"
    return f"**{parameter.name}" if parameter.kind is inspect.Parameter.VAR_KEYWORD else parameter.name


def _owner(where: str) -> tuple[Any, str]:
    """The module or class that has a place, and the name there. Raises ImportError and AttributeError."""
    path, _, name = where.rpartition(".")
    module, _, inner = path.partition(":")
    owner: Any = importlib.import_module(module)
    return (getattr(owner, inner) if inner else owner), name
