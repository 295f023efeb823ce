# SPDX-License-Identifier: Apache-2.0
"""One row for each operator about which something is special, eager or compiled, in Python or C++.

A row is for all overloads of an operator, unless its field says otherwise. What is in no row holds for most operators.
The functions that a row speaks of stay where they are. ``tools/operator_facts.py`` writes what C++ needs of the rows
to ``csrc/torch/eager/operator_facts.h`` and ``result_layouts.h``; a test fails where they are not up to date.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable


class Layout(enum.Enum):
    """How results lie in memory where PyTorch's shape function does not say so."""

    OF_SHAPE_FUNCTION = enum.auto()
    CONTIGUOUS = enum.auto()
    CONTIGUOUS_IF_NEW = enum.auto()  #: into ``out=`` as the shape function says
    CONTIGUOUS_OUT = enum.auto()  #: into ``out=``; new ones as the shape function says
    CONTIGUOUS_OUT_OF_COMPLEX = enum.auto()  #: so, where the first argument is complex
    OF_FIRST_OPERAND = enum.auto()  #: where the shape function has the second decide, too
    OF_FIRST_ALONE = enum.auto()  #: where the shape function, or its decomposition, has others decide


@dataclasses.dataclass(frozen=True)
class Facts:
    """What is special about one operator."""

    #: Overloads that eager takes as one kernel, though PyTorch's composite kernel would take them apart.
    whole: tuple[str, ...] = ()
    #: A decomposition that there is is used for single calls, too; Inductor's serve whole graphs, or complex numbers.
    decomposed: bool = True
    #: Inductor takes it apart, in whole graphs, into operators that nobody else knows: graph compilers get it whole.
    inductors_own: bool = False
    #: The function of ``compiler/kernels`` that writes its kernel: "sort.lower_topk".
    kernel: str = ""
    #: That kernel is taken where Inductor would generate one less well, or of functions that no dialect has, or would
    #: call one for the sizes of this call only, or unrolls windows, which compiles for minutes.
    preferred: bool = False
    #: Its kernel computes an epilogue in its stores.
    finishes: bool = False
    #: Drivers may have a function for it in their library.
    library: bool = False
    #: The function of ``compiler/kernels`` that takes a call apart, for libraries that have some of it.
    parts: str = ""
    #: Arguments that are integers or floats (not those of ``out`` variants) on whose values no code depends. A plan
    #: holds for any of them, as for any size of a tensor.
    run_time: tuple[str, ...] = ()
    #: Arguments whose elements it only moves, or writes as they are: complex ones go as integers, or as real numbers.
    moves: tuple[str, ...] = ()
    #: Arguments that it writes although its schema does not say so.
    writes: tuple[str, ...] = ()
    #: The tensors of its list, indices, may lie on the CPU, as on CUDA.
    cpu_indices: bool = False
    layout: Layout = Layout.OF_SHAPE_FUNCTION
    #: Position of the argument whose memory format images have that it makes, where the shape function says otherwise.
    format_of: int | None = None
    #: The function of ``adapter/operators/mistaken_shapes`` that says about which calls the shape function is wrong.
    mistaken: str = ""
    #: The operator whose shape function holds for it.
    shaped_as: str = ""
    #: It is lowered to a kernel that writes only the elements touched.
    in_place: bool = False
    #: Told no dtype, it computes in that of what it writes to.
    in_dtype_of_result: bool = False
    #: A wrong index is a RuntimeError.
    gathers: bool = False
    #: It may write to elements that share memory: each gets the same value.
    idempotent: bool = False
    #: It takes statistics that are saved in float32, where the CPU has halves.
    float_statistics: bool = False
    #: The CPU's kernel judges the values of tensors, which a rehearsal with zeros has not.
    judges_values: bool = False
    #: The function of ``csrc/torch/eager/warnings.h`` that warns of some arguments as the CPU's kernel does.
    warning: str = ""
    #: It sees all of a storage, of which a plan has only what its tensors see: PyTorch takes it apart.
    sees_storage: bool = False


_USUAL = Facts()


def of(name: str) -> Facts:
    """The facts of the operator with this qualified name, whatever overload it names: "aten::topk", "aten::mm.out"."""
    return FACTS.get(name.partition(".")[0], _USUAL)


def with_fact(holds: Callable[[Facts], bool]) -> frozenset[str]:
    """The names of operators whose row fulfils a condition."""
    return frozenset(name for name, facts in FACTS.items() if holds(facts))


FACTS: dict[str, Facts] = {
    "aten::abs": Facts(whole=("default",), layout=Layout.CONTIGUOUS_OUT_OF_COMPLEX),
    "aten::abs_": Facts(whole=("default",)),
    "aten::_adaptive_avg_pool2d": Facts(kernel="pool.lower_adaptive_average"),
    "aten::_adaptive_avg_pool2d_backward": Facts(kernel="pool.lower_adaptive_average"),
    "aten::_adaptive_avg_pool3d": Facts(kernel="pool.lower_adaptive_average", run_time=("output_size",)),
    "aten::_adaptive_avg_pool3d_backward": Facts(kernel="pool.lower_adaptive_average"),
    "aten::adaptive_max_pool2d": Facts(decomposed=False, kernel="pool.lower_maximum", preferred=True),
    "aten::adaptive_max_pool2d_backward": Facts(kernel="pool.lower_maximum_backward"),
    "aten::adaptive_max_pool3d": Facts(decomposed=False, kernel="pool.lower_maximum", preferred=True),
    "aten::adaptive_max_pool3d_backward": Facts(kernel="pool.lower_maximum_backward"),
    "aten::add": Facts(decomposed=False),
    "aten::add_": Facts(whole=("Scalar",)),
    "aten::addbmm": Facts(kernel="gemm.lower_addbmm"),
    "aten::addmm": Facts(decomposed=False, kernel="gemm.lower_addmm", finishes=True, library=True),
    "aten::addmv": Facts(kernel="gemm.lower_mv", library=True),
    "aten::addr": Facts(whole=("default", "out"), layout=Layout.OF_FIRST_ALONE),
    "aten::addr_": Facts(whole=("default",)),
    "aten::affine_grid_generator": Facts(whole=("default",)),
    "aten::all": Facts(whole=("dims",)),
    "aten::angle": Facts(layout=Layout.CONTIGUOUS_OUT_OF_COMPLEX),
    "aten::any": Facts(whole=("dims",)),
    "aten::argsort": Facts(kernel="sort.lower_argsort"),
    "aten::as_strided_copy": Facts(sees_storage=True),
    "aten::as_strided_scatter": Facts(sees_storage=True),
    "aten::_assert_async": Facts(judges_values=True),
    "aten::avg_pool1d": Facts(kernel="pool.lower_average"),
    "aten::avg_pool2d": Facts(kernel="pool.lower_average"),
    "aten::avg_pool2d_backward": Facts(kernel="pool.lower_average"),
    "aten::avg_pool3d": Facts(kernel="pool.lower_average"),
    "aten::avg_pool3d_backward": Facts(kernel="pool.lower_average", preferred=True),
    "aten::baddbmm": Facts(decomposed=False, kernel="gemm.lower_addmm", finishes=True, library=True),
    "aten::batch_norm_backward": Facts(run_time=("eps",)),
    "aten::batch_norm_update_stats": Facts(writes=("running_mean", "running_var")),
    "aten::_batch_norm_no_update": Facts(whole=("default",), mistaken="always", run_time=("eps",)),
    "aten::_batch_norm_with_update": Facts(run_time=("momentum", "eps")),
    "aten::bernoulli_": Facts(run_time=("p",)),
    "aten::binary_cross_entropy_with_logits": Facts(whole=("default",)),
    "aten::bitwise_and": Facts(whole=("Scalar",)),
    "aten::bitwise_or": Facts(whole=("Scalar",)),
    "aten::bitwise_xor": Facts(whole=("Scalar",)),
    "aten::bmm": Facts(decomposed=False, kernel="gemm.lower_mm", finishes=True, library=True),
    "aten::bucketize": Facts(kernel="sort.lower_search"),
    "aten::cat": Facts(moves=("tensors",), decomposed=False),
    "aten::cauchy_": Facts(run_time=("median", "sigma")),
    "aten::_cdist_backward": Facts(kernel="distance.lower_cdist", run_time=("p",)),
    "aten::_cdist_forward": Facts(kernel="distance.lower_cdist", run_time=("p",)),
    "aten::celu": Facts(whole=("default",)),
    "aten::celu_": Facts(whole=("default",)),
    "aten::channel_shuffle": Facts(moves=("self",)),
    "aten::clone": Facts(moves=("self",)),
    "aten::complex": Facts(whole=("default",)),
    "aten::conj_physical_": Facts(whole=("default",)),
    "aten::constant_pad_nd": Facts(moves=("self", "value"), whole=("default",), run_time=("pad",)),
    "aten::conv_tbc": Facts(whole=("default",)),
    "aten::convolution": Facts(
        whole=("default",),
        kernel="conv.lower_convolution",
        preferred=True,
        finishes=True,
        library=True,
        parts="conv.without_bias",
    ),
    "aten::convolution_backward": Facts(
        whole=("default",),
        decomposed=False,
        kernel="conv.lower_backward",
        preferred=True,
        library=True,
        parts="conv.gradients",
    ),
    "aten::convolution_backward_overrideable": Facts(kernel="conv.lower_backward"),
    "aten::convolution_overrideable": Facts(kernel="conv.lower_convolution", shaped_as="aten::convolution"),
    "aten::copy_": Facts(moves=("self", "src")),
    "aten::_copy_from": Facts(moves=("self", "dst")),
    "aten::copysign": Facts(layout=Layout.OF_FIRST_OPERAND),
    "aten::copysign_": Facts(whole=("Scalar",)),
    "aten::count_nonzero": Facts(whole=("default",)),
    "aten::_ctc_loss": Facts(judges_values=True),
    "aten::_ctc_loss_backward": Facts(judges_values=True),
    "aten::cummax": Facts(whole=("default",), kernel="scan.lower"),
    "aten::_cummax_helper": Facts(kernel="scan.lower"),
    "aten::cummin": Facts(whole=("default",), kernel="scan.lower"),
    "aten::_cummin_helper": Facts(kernel="scan.lower"),
    "aten::cumprod": Facts(kernel="scan.lower", in_dtype_of_result=True),
    "aten::cumsum": Facts(kernel="scan.lower", in_dtype_of_result=True),
    "aten::deg2rad": Facts(whole=("default",)),
    "aten::diag_embed": Facts(moves=("self",), run_time=("offset",)),
    "aten::diagonal_backward": Facts(moves=("grad_output",), whole=("default",), run_time=("input_sizes", "offset")),
    "aten::diagonal_copy": Facts(moves=("self",), run_time=("offset",)),
    "aten::diagonal_scatter": Facts(moves=("self", "src"), run_time=("offset",)),
    "aten::dist": Facts(whole=("default",)),
    "aten::div": Facts(whole=("Scalar", "Scalar_mode"), layout=Layout.OF_FIRST_OPERAND),
    "aten::div_": Facts(whole=("Scalar", "Scalar_mode")),
    "aten::dot": Facts(kernel="gemm.lower_dot", library=True),
    "aten::elu_backward": Facts(layout=Layout.OF_FIRST_OPERAND),
    "aten::embedding": Facts(moves=("weight",), whole=("default",), run_time=("padding_idx",)),
    "aten::_embedding_bag": Facts(kernel="bags.lower"),
    "aten::_embedding_bag_forward_only": Facts(kernel="bags.lower"),
    "aten::_embedding_bag_per_sample_weights_backward": Facts(run_time=("padding_idx",)),
    "aten::embedding_dense_backward": Facts(
        kernel="index.lower_embedding_gradient", run_time=("num_weights", "padding_idx")
    ),
    "aten::_euclidean_dist": Facts(whole=("default",)),
    "aten::expand_copy": Facts(moves=("self",)),
    "aten::exponential_": Facts(run_time=("lambd",)),
    "aten::eye": Facts(run_time=("n", "m")),
    "aten::fake_quantize_per_tensor_affine_cachemask": Facts(run_time=("scale", "zero_point")),
    "aten::_fft_c2c": Facts(layout=Layout.CONTIGUOUS_OUT),
    "aten::_fft_c2r": Facts(layout=Layout.CONTIGUOUS_OUT),
    "aten::_fft_r2c": Facts(layout=Layout.CONTIGUOUS_OUT),
    "aten::fill_": Facts(decomposed=False),
    "aten::flip": Facts(moves=("self",)),
    "aten::floor_divide": Facts(whole=("Scalar",), layout=Layout.OF_FIRST_OPERAND),
    "aten::floor_divide_": Facts(whole=("Scalar",)),
    "aten::fmod": Facts(whole=("Scalar",)),
    "aten::fmod_": Facts(whole=("Scalar",)),
    "aten::fractional_max_pool2d_backward": Facts(kernel="pool.lower_maximum_backward"),
    "aten::fractional_max_pool3d_backward": Facts(kernel="pool.lower_maximum_backward"),
    "aten::frexp": Facts(whole=("Tensor",)),
    "aten::_fused_adam": Facts(whole=("default",)),
    "aten::_fused_adamw": Facts(whole=("default",)),
    "aten::_fused_rms_norm": Facts(run_time=("eps",)),
    "aten::_fused_sgd": Facts(whole=("default",)),
    "aten::gather": Facts(moves=("self",), gathers=True),
    "aten::geometric_": Facts(run_time=("p",)),
    "aten::glu_backward": Facts(layout=Layout.CONTIGUOUS),
    "aten::grid_sampler_2d": Facts(kernel="grid.lower_forward"),
    "aten::grid_sampler_2d_backward": Facts(kernel="grid.lower_backward"),
    "aten::grid_sampler_3d": Facts(kernel="grid.lower_forward"),
    "aten::grid_sampler_3d_backward": Facts(kernel="grid.lower_backward"),
    "aten::hardshrink_backward": Facts(layout=Layout.OF_FIRST_OPERAND),
    "aten::hardsigmoid_backward": Facts(layout=Layout.OF_FIRST_OPERAND),
    "aten::hardswish_backward": Facts(layout=Layout.OF_FIRST_OPERAND),
    "aten::hardtanh_backward": Facts(layout=Layout.OF_FIRST_OPERAND),
    "aten::huber_loss": Facts(run_time=("delta",), mistaken="target_of_other_dtype"),
    "aten::huber_loss_backward": Facts(
        whole=("default",), layout=Layout.CONTIGUOUS_IF_NEW, mistaken="mean_of_nothing", run_time=("delta",)
    ),
    "aten::im2col": Facts(moves=("self",)),
    "aten::index": Facts(moves=("self",), cpu_indices=True),
    "aten::index_copy": Facts(moves=("self", "source")),
    "aten::index_copy_": Facts(moves=("self", "source")),
    "aten::index_fill": Facts(moves=("self", "value"), whole=("int_Scalar", "int_Tensor")),
    "aten::index_fill_": Facts(moves=("self", "value")),
    "aten::index_put": Facts(moves=("self", "values"), cpu_indices=True),
    "aten::index_put_": Facts(moves=("self", "values"), cpu_indices=True, in_place=True),
    "aten::_index_put_impl": Facts(moves=("self", "values"), cpu_indices=True),
    "aten::_index_put_impl_": Facts(moves=("self", "values"), cpu_indices=True),
    "aten::index_reduce": Facts(decomposed=False, warning="beta", kernel="index.lower_index_reduce", preferred=True),
    "aten::index_reduce_": Facts(warning="beta"),
    "aten::index_select": Facts(moves=("self",)),
    "aten::isin": Facts(kernel="index.lower_isin"),
    "aten::isinf": Facts(whole=("default",)),
    "aten::kaiser_window": Facts(whole=("default", "periodic", "beta")),
    "aten::kthvalue": Facts(whole=("default",), kernel="sort.lower_kthvalue", run_time=("k",)),
    "aten::ldexp": Facts(whole=("Tensor",)),
    "aten::linalg_ldl_solve": Facts(judges_values=True),
    "aten::linalg_lu_solve": Facts(judges_values=True),
    "aten::linear": Facts(kernel="gemm.lower_linear", library=True),
    "aten::log_normal_": Facts(run_time=("mean", "std")),
    "aten::log_sigmoid_forward": Facts(layout=Layout.CONTIGUOUS),
    "aten::_log_softmax_backward_data": Facts(layout=Layout.CONTIGUOUS),
    "aten::logcumsumexp": Facts(whole=("default",), kernel="scan.lower"),
    "aten::logical_and": Facts(whole=("default",)),
    "aten::logical_and_": Facts(whole=("default",)),
    "aten::logical_not": Facts(whole=("default",)),
    "aten::logical_not_": Facts(whole=("default",)),
    "aten::logical_or": Facts(whole=("default",)),
    "aten::logical_or_": Facts(whole=("default",)),
    "aten::logical_xor": Facts(whole=("default",)),
    "aten::logical_xor_": Facts(whole=("default",)),
    "aten::logit": Facts(run_time=("eps",)),
    "aten::logit_backward": Facts(run_time=("eps",), layout=Layout.OF_FIRST_OPERAND),
    "aten::logsumexp": Facts(whole=("default",)),
    "aten::lu_unpack": Facts(judges_values=True),
    "aten::masked_fill": Facts(moves=("self", "value"), whole=("Scalar", "Tensor"), layout=Layout.CONTIGUOUS),
    "aten::masked_fill_": Facts(moves=("self", "value")),
    "aten::masked_scatter": Facts(moves=("self", "source"), whole=("default",), kernel="index.lower_masked_scatter"),
    "aten::masked_scatter_": Facts(moves=("self", "source")),
    "aten::masked_scatter_backward": Facts(run_time=("sizes",)),
    "aten::masked_select": Facts(moves=("self",)),
    "aten::max_pool2d_with_indices": Facts(
        decomposed=False, inductors_own=True, kernel="pool.lower_maximum", preferred=True
    ),
    "aten::max_pool2d_with_indices_backward": Facts(
        decomposed=False, kernel="pool.lower_maximum_backward", preferred=True
    ),
    "aten::max_pool3d_with_indices": Facts(
        decomposed=False, inductors_own=True, kernel="pool.lower_maximum", preferred=True
    ),
    "aten::max_pool3d_with_indices_backward": Facts(kernel="pool.lower_maximum_backward"),
    "aten::max_unpool2d": Facts(format_of=0, gathers=True, run_time=("output_size",)),
    "aten::max_unpool3d": Facts(gathers=True, run_time=("output_size",)),
    "aten::mean": Facts(whole=("default",)),
    "aten::median": Facts(whole=("dim",), kernel="sort.lower_median"),
    "aten::mish_backward": Facts(whole=("default",)),
    "aten::mm": Facts(decomposed=False, kernel="gemm.lower_mm", finishes=True, library=True),
    "aten::mode": Facts(whole=("default", "values"), kernel="sort.lower_mode"),
    "aten::mse_loss_backward": Facts(layout=Layout.CONTIGUOUS_IF_NEW, mistaken="mean_of_nothing"),
    "aten::msort": Facts(kernel="sort.lower_sort"),
    "aten::mul_": Facts(whole=("Scalar",)),
    "aten::multi_margin_loss": Facts(gathers=True, mistaken="target_of_one"),
    "aten::multinomial": Facts(judges_values=True),
    "aten::mv": Facts(whole=("default",), kernel="gemm.lower_mv", library=True),
    "aten::mvlgamma": Facts(whole=("default",), layout=Layout.CONTIGUOUS),
    "aten::nan_to_num": Facts(whole=("default",), run_time=("nan", "posinf", "neginf")),
    "aten::nanmedian": Facts(whole=("dim",), kernel="sort.lower_median"),
    "aten::nansum": Facts(in_dtype_of_result=True),
    "aten::narrow_copy": Facts(run_time=("start", "length")),
    "aten::native_batch_norm": Facts(
        run_time=("momentum", "eps"), writes=("running_mean", "running_var"), mistaken="always"
    ),
    "aten::native_batch_norm_backward": Facts(float_statistics=True, run_time=("eps",), format_of=1),
    "aten::_native_batch_norm_legit": Facts(run_time=("momentum", "eps"), mistaken="always"),
    "aten::_native_batch_norm_legit_no_training": Facts(whole=("default",), mistaken="always", run_time=("eps",)),
    "aten::native_dropout": Facts(run_time=("p",)),
    "aten::native_dropout_backward": Facts(run_time=("scale",), layout=Layout.OF_FIRST_OPERAND),
    "aten::native_group_norm": Facts(
        whole=("default",), run_time=("N", "C", "HxW", "eps"), mistaken="weight_of_other_dtype"
    ),
    "aten::native_group_norm_backward": Facts(run_time=("N", "C", "HxW"), format_of=1),
    "aten::native_layer_norm": Facts(whole=("default",), run_time=("normalized_shape", "eps")),
    "aten::native_layer_norm_backward": Facts(
        run_time=("normalized_shape",), float_statistics=True, layout=Layout.CONTIGUOUS
    ),
    "aten::nll_loss2d_backward": Facts(run_time=("ignore_index",)),
    "aten::nll_loss2d_forward": Facts(run_time=("ignore_index",)),
    "aten::nll_loss_backward": Facts(run_time=("ignore_index",)),
    "aten::nll_loss_forward": Facts(run_time=("ignore_index",)),
    "aten::norm": Facts(whole=("Scalar", "ScalarOpt_dtype")),
    "aten::nonzero_static": Facts(layout=Layout.CONTIGUOUS),
    "aten::normal": Facts(layout=Layout.CONTIGUOUS),
    "aten::normal_": Facts(run_time=("mean", "std")),
    "aten::_padded_dense_to_jagged_forward": Facts(judges_values=True),
    "aten::_pdist_forward": Facts(kernel="distance.lower_pdist", run_time=("p",)),
    "aten::permute_copy": Facts(moves=("self",)),
    "aten::pixel_shuffle": Facts(moves=("self",), format_of=0),
    "aten::pixel_unshuffle": Facts(moves=("self",), format_of=0, mistaken="nothing"),
    "aten::polar": Facts(whole=("default",)),
    "aten::prod": Facts(in_dtype_of_result=True),
    "aten::put": Facts(moves=("self", "source"), whole=("default",), layout=Layout.OF_FIRST_ALONE),
    "aten::put_": Facts(moves=("self", "source")),
    "aten::rad2deg": Facts(whole=("default",)),
    "aten::random_": Facts(run_time=("from", "to")),
    "aten::reflection_pad1d": Facts(moves=("self",), run_time=("padding",)),
    "aten::reflection_pad2d": Facts(moves=("self",), run_time=("padding",), format_of=0),
    "aten::reflection_pad2d_backward": Facts(format_of=1),
    "aten::reflection_pad3d": Facts(moves=("self",), format_of=0, run_time=("padding",)),
    "aten::reflection_pad3d_backward": Facts(format_of=1),
    "aten::remainder": Facts(whole=("Scalar",)),
    "aten::remainder_": Facts(whole=("Scalar",)),
    "aten::repeat": Facts(moves=("self",), whole=("default",), run_time=("repeats",)),
    "aten::repeat_interleave": Facts(moves=("self",), judges_values=True),
    "aten::replication_pad1d": Facts(moves=("self",), run_time=("padding",)),
    "aten::replication_pad1d_backward": Facts(kernel="pool.lower_replication_backward", run_time=("padding",)),
    "aten::replication_pad2d": Facts(moves=("self",), run_time=("padding",), format_of=0),
    "aten::replication_pad2d_backward": Facts(
        kernel="pool.lower_replication_backward", format_of=1, run_time=("padding",)
    ),
    "aten::replication_pad3d": Facts(moves=("self",), format_of=0, run_time=("padding",)),
    "aten::replication_pad3d_backward": Facts(
        kernel="pool.lower_replication_backward", format_of=1, run_time=("padding",)
    ),
    "aten::roll": Facts(moves=("self",), run_time=("shifts",), format_of=0, mistaken="nothing"),
    "aten::rot90": Facts(moves=("self",), whole=("default",)),
    "aten::rrelu_with_noise_functional": Facts(whole=("default",)),
    "aten::rsub": Facts(whole=("Scalar",)),
    "aten::_safe_softmax": Facts(whole=("default",)),
    "aten::scaled_dot_product_attention": Facts(library=True),
    "aten::_scaled_dot_product_attention_math": Facts(library=True),
    "aten::_scaled_dot_product_flash_attention_for_cpu": Facts(
        decomposed=False, kernel="attention.lower_forward", library=True
    ),
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": Facts(
        kernel="attention.lower_backward", library=True
    ),
    "aten::_scaled_dot_product_fused_attention_overrideable": Facts(kernel="attention.lower_forward"),
    "aten::_scaled_dot_product_fused_attention_overrideable_backward": Facts(kernel="attention.lower_backward"),
    "aten::scatter": Facts(moves=("self", "src", "value"), gathers=True, warning="scatter_reduction"),
    "aten::scatter_": Facts(moves=("self", "src", "value"), in_place=True, gathers=True, warning="scatter_reduction"),
    "aten::scatter_add": Facts(gathers=True),
    "aten::scatter_add_": Facts(in_place=True, gathers=True),
    "aten::scatter_reduce": Facts(kernel="index.lower_scatter_reduce", gathers=True),
    "aten::scatter_reduce_": Facts(kernel="index.lower_scatter_reduce", in_place=True, gathers=True),
    "aten::searchsorted": Facts(kernel="sort.lower_search", gathers=True),
    "aten::segment_reduce": Facts(judges_values=True),
    "aten::select_backward": Facts(moves=("grad_output",), run_time=("input_sizes", "index")),
    "aten::select_copy": Facts(moves=("self",), run_time=("index",)),
    "aten::select_scatter": Facts(moves=("self", "src"), run_time=("index",)),
    "aten::slice_backward": Facts(moves=("grad_output",), whole=("default",), run_time=("input_sizes", "start", "end")),
    "aten::slice_copy": Facts(moves=("self",), run_time=("start", "end")),
    "aten::slice_scatter": Facts(moves=("self", "src"), run_time=("start", "end")),
    "aten::smooth_l1_loss": Facts(run_time=("beta",)),
    "aten::smooth_l1_loss_backward": Facts(
        whole=("default",), layout=Layout.CONTIGUOUS_IF_NEW, mistaken="mean_of_nothing", run_time=("beta",)
    ),
    "aten::softshrink_backward": Facts(layout=Layout.OF_FIRST_OPERAND),
    "aten::soft_margin_loss": Facts(whole=("default",)),
    "aten::soft_margin_loss_backward": Facts(whole=("default",)),
    "aten::softplus_backward": Facts(layout=Layout.OF_FIRST_OPERAND),
    "aten::sort": Facts(whole=("default",), kernel="sort.lower_sort"),
    "aten::special_chebyshev_polynomial_t": Facts(kernel="polynomial.lower", preferred=True),
    "aten::special_chebyshev_polynomial_u": Facts(kernel="polynomial.lower", preferred=True),
    "aten::special_chebyshev_polynomial_v": Facts(kernel="polynomial.lower", preferred=True),
    "aten::special_chebyshev_polynomial_w": Facts(kernel="polynomial.lower", preferred=True),
    "aten::special_hermite_polynomial_h": Facts(kernel="polynomial.lower", preferred=True),
    "aten::special_hermite_polynomial_he": Facts(kernel="polynomial.lower", preferred=True),
    "aten::special_laguerre_polynomial_l": Facts(kernel="polynomial.lower", preferred=True),
    "aten::special_legendre_polynomial_p": Facts(kernel="polynomial.lower", preferred=True),
    "aten::special_shifted_chebyshev_polynomial_t": Facts(kernel="polynomial.lower", preferred=True),
    "aten::special_shifted_chebyshev_polynomial_u": Facts(kernel="polynomial.lower", preferred=True),
    "aten::special_shifted_chebyshev_polynomial_v": Facts(kernel="polynomial.lower", preferred=True),
    "aten::special_shifted_chebyshev_polynomial_w": Facts(kernel="polynomial.lower", preferred=True),
    "aten::special_xlog1py": Facts(layout=Layout.OF_FIRST_OPERAND),
    "aten::squeeze_copy": Facts(moves=("self",)),
    "aten::_stack": Facts(moves=("tensors",)),
    "aten::stack": Facts(moves=("tensors",)),
    "aten::std": Facts(warning="degrees_of_freedom"),
    "aten::std_mean": Facts(warning="degrees_of_freedom"),
    "aten::sub": Facts(whole=("Scalar",), decomposed=False),
    "aten::sub_": Facts(whole=("Scalar",)),
    "aten::sum": Facts(whole=("default",), in_dtype_of_result=True),
    "aten::t_copy": Facts(moves=("self",)),
    "aten::take": Facts(moves=("self",)),
    "aten::_thnn_fused_lstm_cell": Facts(mistaken="always"),
    "aten::threshold": Facts(idempotent=True),
    "aten::threshold_": Facts(idempotent=True),
    "aten::threshold_backward": Facts(idempotent=True),
    "aten::topk": Facts(kernel="sort.lower_topk", run_time=("k",)),
    "aten::transpose_copy": Facts(moves=("self",)),
    "aten::tril": Facts(moves=("self",), run_time=("diagonal",)),
    "aten::tril_": Facts(moves=("self",), run_time=("diagonal",)),
    "aten::triu": Facts(moves=("self",), run_time=("diagonal",)),
    "aten::triu_": Facts(moves=("self",), run_time=("diagonal",)),
    "aten::unfold_backward": Facts(run_time=("input_sizes",), layout=Layout.CONTIGUOUS),
    "aten::unfold_copy": Facts(moves=("self",)),
    "aten::uniform_": Facts(run_time=("from", "to")),
    "aten::_unsafe_index": Facts(moves=("self",), cpu_indices=True),
    "aten::_unsafe_index_put": Facts(moves=("self", "values"), cpu_indices=True),
    "aten::_unsafe_masked_index": Facts(whole=("default",), cpu_indices=True),
    "aten::_unsafe_masked_index_put_accumulate": Facts(whole=("default",), cpu_indices=True),
    "aten::unsafe_split": Facts(run_time=("split_size",)),
    "aten::unsqueeze_copy": Facts(moves=("self",)),
    "aten::upsample_bicubic2d": Facts(kernel="upsample.lower", run_time=("output_size",)),
    "aten::_upsample_bicubic2d_aa": Facts(kernel="antialias.lower", run_time=("output_size",)),
    "aten::_upsample_bicubic2d_aa_backward": Facts(kernel="antialias.lower", run_time=("output_size", "input_size")),
    "aten::upsample_bicubic2d_backward": Facts(kernel="upsample.lower", run_time=("output_size", "input_size")),
    "aten::upsample_bilinear2d": Facts(kernel="upsample.lower", run_time=("output_size",)),
    "aten::_upsample_bilinear2d_aa": Facts(kernel="antialias.lower", run_time=("output_size",)),
    "aten::_upsample_bilinear2d_aa_backward": Facts(kernel="antialias.lower", run_time=("output_size", "input_size")),
    "aten::upsample_bilinear2d_backward": Facts(kernel="upsample.lower", run_time=("output_size", "input_size")),
    "aten::_upsample_lanczos2d_aa": Facts(kernel="antialias.lower", run_time=("output_size",)),
    "aten::_upsample_lanczos2d_aa_backward": Facts(kernel="antialias.lower", run_time=("output_size", "input_size")),
    "aten::upsample_linear1d": Facts(kernel="upsample.lower", run_time=("output_size",)),
    "aten::upsample_linear1d_backward": Facts(kernel="upsample.lower", run_time=("output_size", "input_size")),
    "aten::upsample_nearest1d": Facts(kernel="upsample.lower", run_time=("output_size",)),
    "aten::upsample_nearest1d_backward": Facts(kernel="upsample.lower", run_time=("output_size", "input_size")),
    "aten::upsample_nearest2d": Facts(kernel="upsample.lower", run_time=("output_size",)),
    "aten::upsample_nearest2d_backward": Facts(kernel="upsample.lower", run_time=("output_size", "input_size")),
    "aten::upsample_nearest3d": Facts(kernel="upsample.lower", run_time=("output_size",)),
    "aten::upsample_nearest3d_backward": Facts(kernel="upsample.lower", run_time=("output_size", "input_size")),
    "aten::_upsample_nearest_exact1d": Facts(kernel="upsample.lower", run_time=("output_size",)),
    "aten::_upsample_nearest_exact1d_backward": Facts(kernel="upsample.lower", run_time=("output_size", "input_size")),
    "aten::_upsample_nearest_exact2d": Facts(kernel="upsample.lower", run_time=("output_size",)),
    "aten::_upsample_nearest_exact2d_backward": Facts(kernel="upsample.lower", run_time=("output_size", "input_size")),
    "aten::_upsample_nearest_exact3d": Facts(kernel="upsample.lower", run_time=("output_size",)),
    "aten::_upsample_nearest_exact3d_backward": Facts(kernel="upsample.lower", run_time=("output_size", "input_size")),
    "aten::upsample_trilinear3d": Facts(kernel="upsample.lower", run_time=("output_size",)),
    "aten::upsample_trilinear3d_backward": Facts(kernel="upsample.lower", run_time=("output_size", "input_size")),
    "aten::var": Facts(warning="degrees_of_freedom"),
    "aten::var_mean": Facts(warning="degrees_of_freedom"),
    "aten::vdot": Facts(kernel="gemm.lower_dot"),
    "aten::_weight_norm_interface": Facts(mistaken="half"),
    "aten::where": Facts(moves=("self", "other"), warning="byte_condition", mistaken="condition_of_bytes"),
    "aten::xlogy": Facts(layout=Layout.OF_FIRST_OPERAND),
    "outboard::attend_packed": Facts(kernel="attention.lower_packed_forward"),
    "outboard::attend_packed_backward": Facts(kernel="attention.lower_packed_backward"),
    "outboard::compact": Facts(kernel="compaction.lower_compact"),
    "outboard::ctc_loss": Facts(kernel="ctc.lower_loss"),
    "outboard::ctc_sums": Facts(kernel="ctc.lower_sums"),
    "outboard::nms_keep": Facts(kernel="suppression.lower"),
    "outboard::running_counts": Facts(kernel="compaction.lower_running_counts"),
    "torchvision::deform_conv2d": Facts(kernel="deform.lower_forward"),
    "torchvision::_deform_conv2d_backward": Facts(kernel="deform.lower_backward"),
    "torchvision::ps_roi_align": Facts(kernel="regions.lower_forward"),
    "torchvision::_ps_roi_align_backward": Facts(
        kernel="regions.lower_backward", run_time=("batch_size", "height", "width")
    ),
    "torchvision::ps_roi_pool": Facts(kernel="regions.lower_forward"),
    "torchvision::_ps_roi_pool_backward": Facts(
        kernel="regions.lower_backward", run_time=("batch_size", "height", "width")
    ),
    "torchvision::roi_align": Facts(kernel="regions.lower_forward"),
    "torchvision::_roi_align_backward": Facts(
        kernel="regions.lower_backward", run_time=("batch_size", "height", "width")
    ),
    "torchvision::roi_pool": Facts(kernel="regions.lower_forward"),
    "torchvision::_roi_pool_backward": Facts(
        kernel="regions.lower_backward", run_time=("batch_size", "height", "width")
    ),
}
