# SPDX-License-Identifier: Apache-2.0
"""docs/npu-operators.md: each operator that Ascend's extension publishes, and whether ``torch_npu`` has it.

``PYTHONPATH=packages/npu OUTBOARD_PROFILE=npu python tools/npu_names.py --write docs/npu-operators.md`` makes the page;
tests/profiles/test_npu_operators.py checks it.
"""

from __future__ import annotations

import pages

#: Why operators are not there, by what they have in common.
REASONS = {
    "joins a product with a collective; `torch.distributed` and a product do the same in two calls": (
        "npu_all_gather_base_mm npu_all_gather_quant_mm npu_all_to_all_matmul npu_all_to_all_quant_matmul "
        "npu_alltoallv_gmm npu_alltoallv_quant_gmm npu_gmm_alltoallv npu_matmul_all_to_all npu_mm_all_reduce_base "
        "npu_mm_reduce_scatter_base npu_quant_gmm_alltoallv npu_quant_matmul_all_to_all npu_quant_mm_reduce_scatter"
    ),
    "moves rows between the devices of a system of Ascend's, through memory that those share": (
        "attention_worker_scheduler attention_worker_scheduler_ ffn_worker_scheduler ffn_worker_scheduler_ "
        "npu_attention_to_ffn npu_attention_worker_combine npu_ffn_to_attention npu_ffn_worker_batching "
        "npu_moe_distribute_combine npu_moe_distribute_combine_add_rms_norm npu_moe_distribute_combine_v2 "
        "npu_moe_distribute_dispatch npu_moe_distribute_dispatch_v2 npu_moe_update_expert"
    ),
    "packs numbers of four bits, or in Ascend's own formats, which PyTorch's tensors do not have": (
        "npu_add_quant_gmm npu_add_quant_gmm_ npu_add_quant_matmul npu_add_quant_matmul_ "
        "npu_add_rms_norm_dynamic_mx_quant npu_anti_mx_quant npu_convert_weight_to_int4pack "
        "npu_dual_level_quant_matmul npu_dynamic_block_mx_quant npu_dynamic_block_quant "
        "npu_dynamic_dual_level_mx_quant npu_dynamic_mx_quant npu_dynamic_mx_quant_with_dual_axis "
        "npu_grouped_dynamic_block_quant npu_grouped_dynamic_mx_quant npu_hans_decode npu_hans_encode "
        "npu_kronecker_quant npu_matmul_compress_dequant npu_quant_max npu_rms_norm_dynamic_mx_quant npu_rotate_quant "
        "npu_swiglu_group_quant npu_swiglu_mx_quant npu_swiglu_mx_quant_with_dual_axis npu_transpose_quant_batchmatmul "
        "npu_weight_quant_preprocess npu_stride_add"
    ),
    "one step of quantised inference; its parts are there: `npu_quantize`, `npu_dynamic_quant`, `npu_quant_matmul`": (
        "npu_add_rms_norm_dynamic_quant npu_add_rms_norm_quant npu_dequant_bias npu_dequant_swiglu_quant "
        "npu_gelu_quant npu_group_quant npu_grouped_matmul_finalize_routing npu_grouped_matmul_swiglu_quant "
        "npu_grouped_matmul_swiglu_quant_v2 npu_ifmr npu_moe_init_routing_quant npu_quant_conv2d "
        "npu_quant_fusion_attention npu_quant_grouped_matmul_dequant npu_quant_matmul_dequant npu_quant_matmul_gelu "
        "npu_quant_matmul_reduce_sum npu_quant_scatter npu_quant_scatter_ npu_rms_norm_quant npu_rms_norm_quant_v2 "
        "npu_swiglu_quant"
    ),
    "one model's layer as one operator; written with PyTorch's, `torch.compile` fuses it": (
        "npu_chunk_gated_delta_rule npu_dense_lightning_indexer_grad_kl_loss npu_dense_lightning_indexer_softmax_lse "
        "npu_fused_attention_layernorm_qkv_fwd npu_fused_causal_conv1d npu_fused_causal_conv1d_v2 "
        "npu_fused_floyd_attention npu_fused_matmul npu_kv_rmsnorm_rope_cache npu_kv_rmsnorm_rope_cache_v2 "
        "npu_kv_rmsnorm_rope_cache_v2_functional npu_lightning_indexer npu_masked_causal_conv1d "
        "npu_masked_softmax_with_rel_pos_bias npu_mhc_post npu_mhc_pre npu_mhc_sinkhorn npu_mla_prolog "
        "npu_mla_prolog_v2 npu_mla_prolog_v3 npu_mla_prolog_v3_functional npu_multi_head_attention "
        "npu_qkv_rms_norm_rope_cache npu_qkv_rms_norm_rope_cache_functional npu_quant_lightning_indexer "
        "npu_recurrent_gated_delta_rule npu_recurrent_gated_delta_rule_functional "
        "npu_sparse_lightning_indexer_grad_kl_loss npu_rope_quant_kvcache npu_dequant_rope_quant_kvcache"
    ),
    "attention to chosen blocks of keys: `torch.nn.attention.flex_attention`": (
        "npu_block_sparse_attention npu_kv_quant_sparse_flash_attention npu_nsa_compress npu_nsa_compress_attention "
        "npu_nsa_compress_attention_infer npu_nsa_compress_infer npu_nsa_select_attention "
        "npu_nsa_select_attention_infer npu_sparse_flash_attention"
    ),
    "its other versions are there": (
        "npu_add_rms_norm_v2 npu_add_rms_norm_v2_functional npu_fused_attention_score npu_fused_attention_score_fwd "
        "npu_moe_init_routing_v2"
    ),
    "PyTorch's own does it: `torch.nn.LSTM`, `torch.nn.GRU`, `torch.dropout`, `torch.nn.functional.batch_norm`": (
        "batch_norm_gather_stats_update batch_norm_reduce dropout_with_byte_mask npu_attn_softmax_ "
        "npu_dropout_do_mask npu_dropout_gen_mask npu_dropout_with_add_softmax npu_gru npu_indexing npu_lstm "
        "npu_lstm_cell npu_lstm_data"
    ),
    "torchvision has it, in terms that are documented": (
        "npu_deformable_conv2d npu_nms_rotated npu_ps_roi_pooling npu_roi_align npu_rotated_box_decode "
        "npu_rotated_box_encode npu_rotated_iou npu_rotated_overlaps"
    ),
    "what it computes is shown by an example alone, or not at all": (
        "npu_anchor_response_flags npu_bounding_box_decode npu_grid_assign_positive npu_normalize_batch "
        "npu_random_choice_with_mask npu_scatter npu_sub_sample npu_yolo_boxes_encode"
    ),
    "changes where a tensor's memory is, which Outboard's allocator decides": (
        "empty_with_swapped_memory npu_change_data_ptr"
    ),
    "a service of Ascend's systems": "obfuscation_calculate obfuscation_finalize obfuscation_initialize",
}
WHY = {name: reason for reason, names in REASONS.items() for name in names.split()}


def page() -> str:
    """The text of docs/npu-operators.md.

    Raises:
        ValueError: if an operator is neither there nor in the table, or both.
    """
    from torch_npu import operators

    published = set(operators.schemas())
    if wrong := published ^ (set(operators.FUNCTIONS) | set(WHY)) or set(operators.FUNCTIONS) & set(WHY):
        raise ValueError(f"neither there nor explained, or both: {', '.join(sorted(wrong))}")
    lines = [
        "# Operators of torch_npu", "",
        "Made by `tools/npu_names.py` from the operators that torch-npu 2.14 publishes; of backward passes there is"
        " only the one that programs call.",
        f"Of {len(published)}, [the profile npu](profile-npu.md) has {len(operators.FUNCTIONS)}, as"
        " `torch_npu.<name>` and as `torch.ops.npu.<name>`.", "",
        "They are made of PyTorch's operators, so they have gradients, and `torch.compile` fuses them. A test compares"
        " each with its documented formula in float64. What an argument asks for and they do not do raises"
        " `NotImplementedError`.", "",
        "| operator | what it does |", "|---|---|",
    ]  # fmt: skip
    for name in sorted(operators.FUNCTIONS):
        (first, *_) = (operators.FUNCTIONS[name].__doc__ or "").splitlines()
        lines.append(f"| `{name}` | {_plain(first)} |")
    lines += ["", "The others:", "", "| operator | why not |", "|---|---|"]
    for reason, names in REASONS.items():
        lines.append(f"| {', '.join(f'`{name}`' for name in sorted(names.split()))} | {reason} |")
    return "\n".join(lines) + "\n"


def _plain(text: str) -> str:
    """A docstring's line in Markdown."""
    return text.replace(":func:", "").replace("``", "`").replace("|", "\\|")


if __name__ == "__main__":
    pages.main(page, __doc__)
