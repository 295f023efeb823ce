# SPDX-License-Identifier: Apache-2.0
"""Tiny models of the architectures that people use, from transformers: forward, backward and, where they write text,
``generate``, equal to the CPU's and without an operator that runs elsewhere. ``make test-ecosystem`` runs them."""

from __future__ import annotations

import copy
import os
from typing import Any

import pytest
import torch
from torch import Tensor

transformers = pytest.importorskip("transformers", reason="the extra `demo` installs it")
pytestmark = pytest.mark.skipif(os.environ.get("OUTBOARD_TEST_ECOSYSTEM") != "1", reason="make test-ecosystem")

_TEXT: dict[str, Any] = {
    "vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
    "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_GROUPED = {**_TEXT, "num_key_value_heads": 2}
_IMAGE: dict[str, Any] = {
    "image_size": 32, "patch_size": 8, "num_channels": 3, "hidden_size": 32, "num_hidden_layers": 2,
    "num_attention_heads": 4, "intermediate_size": 64,
}  # fmt: skip
_PAIR: dict[str, Any] = {
    "vocab_size": 60, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "max_position_embeddings": 64,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1, "forced_eos_token_id": None,
}  # fmt: skip
_EXPERTS = {**_GROUPED, "num_experts_per_tok": 2, "moe_intermediate_size": 32}

#: Those that write text, by the prefix of their classes: what their configuration differs in.
DECODERS: dict[str, dict[str, Any]] = {
    "Llama": _GROUPED,
    "Mistral": _GROUPED,
    "Qwen2": _GROUPED,
    "Qwen3": {**_GROUPED, "head_dim": 8},
    "Gemma": {**_GROUPED, "head_dim": 8},
    "Gemma2": {**_GROUPED, "head_dim": 8},
    "Phi": _TEXT,
    "Phi3": _GROUPED,
    "GPT2": {"vocab_size": 60, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "bos_token_id": 1,
             "eos_token_id": 2},
    "GPTNeoX": _TEXT,
    "OPT": {**_TEXT, "ffn_dim": 64, "word_embed_proj_dim": 32},
    "Bloom": {"vocab_size": 60, "hidden_size": 32, "n_layer": 2, "n_head": 4, "bos_token_id": 1, "eos_token_id": 2},
    "Falcon": {**_TEXT, "new_decoder_architecture": False},
    "StableLm": _GROUPED,
    "Olmo2": _GROUPED,
    "Cohere": _GROUPED,
    "Mixtral": {**_GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2},
    "Qwen2Moe": {**_EXPERTS, "num_experts": 4, "shared_expert_intermediate_size": 32},
    "Olmoe": {**_GROUPED, "num_experts": 4, "num_experts_per_tok": 2},
    "Mamba": {"vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 8, "bos_token_id": 1,
              "eos_token_id": 2, "pad_token_id": 0},
}  # fmt: skip
#: Those that read text: the class, and what its configuration differs in.
ENCODERS: dict[str, dict[str, Any]] = {
    "BertForMaskedLM": _TEXT,
    "RobertaForMaskedLM": _TEXT,
    "AlbertForMaskedLM": {**_TEXT, "embedding_size": 16},
    "ElectraForMaskedLM": {**_TEXT, "embedding_size": 16},
    "DistilBertForMaskedLM": {"vocab_size": 60, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64},
    "DebertaV2ForMaskedLM": {**_TEXT, "relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
    "ModernBertForMaskedLM": {**_TEXT, "cls_token_id": 1, "sep_token_id": 2, "reference_compile": False},
    "MPNetForMaskedLM": _TEXT,
}
#: Those that see: the class, and what its configuration differs in.
VIEWERS: dict[str, dict[str, Any]] = {
    "ViTForImageClassification": _IMAGE,
    "DeiTForImageClassification": _IMAGE,
    "Dinov2ForImageClassification": {**_IMAGE, "mlp_ratio": 2},
    "ConvNextForImageClassification": {"hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 1, 1]},
    "ResNetForImageClassification": {"embedding_size": 8, "hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 1, 1]},
    "SwinForImageClassification": {"image_size": 32, "patch_size": 4, "embed_dim": 16, "depths": [1, 1],
                                   "num_heads": [2, 2], "window_size": 4},
    "SegformerForImageClassification": {"depths": [1, 1, 1, 1], "hidden_sizes": [8, 8, 16, 16],
                                        "decoder_hidden_size": 16, "num_attention_heads": [1, 1, 2, 2]},
}  # fmt: skip


def _made(kind: str, options: dict[str, Any]) -> Any:
    """A model of that class, with dropout off, as it computes in training and in inference alike."""
    owner = getattr(transformers, kind)
    config = owner.config_class(**options)
    for name in vars(config):
        if "drop" in name and isinstance(getattr(config, name), float):
            setattr(config, name, 0.0)
    torch.manual_seed(0)
    return owner(config).eval()


def _compare(model: Any, inputs: dict[str, Tensor], device: str) -> Any:
    """Compares logits and gradients; returns the model on the device."""
    module = torch.get_device_module(device)
    before = module.fallbacks()
    other = copy.deepcopy(model).to(device)
    expected, found = model(**inputs).logits, other(**{name: x.to(device) for name, x in inputs.items()}).logits
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-3, atol=1e-4)
    expected.square().mean().backward()
    found.square().mean().backward()
    for (name, one), two in zip(other.named_parameters(), model.parameters(), strict=True):
        if two.grad is not None:
            torch.testing.assert_close(
                one.grad.cpu(), two.grad, rtol=5e-3, atol=1e-4, msg=lambda m, n=name: f"{n}: {m}"
            )
    assert module.fallbacks() == before
    return other


def _generate(model: Any, other: Any, device: str, **inputs: Tensor) -> None:
    module = torch.get_device_module(device)
    before = module.fallbacks()
    options = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    expected = model.generate(**inputs, **options)
    assert torch.equal(other.generate(**{name: x.to(device) for name, x in inputs.items()}, **options).cpu(), expected)
    assert module.fallbacks() == before


@pytest.mark.parametrize("kind", DECODERS)
def test_decoders(device: str, kind: str) -> None:
    name = f"{kind}LMHeadModel" if hasattr(transformers, f"{kind}LMHeadModel") else f"{kind}ForCausalLM"
    model = _made(name, DECODERS[kind])
    ids = torch.randint(3, 60, (2, 7))
    other = _compare(model, {"input_ids": ids, "attention_mask": torch.ones_like(ids)}, device)
    _generate(model, other, device, input_ids=ids, attention_mask=torch.ones_like(ids))


@pytest.mark.parametrize("kind", ENCODERS)
def test_encoders(device: str, kind: str) -> None:
    ids = torch.randint(3, 60, (2, 9))
    mask = torch.ones_like(ids)
    mask[1, 6:] = 0
    _compare(_made(kind, ENCODERS[kind]), {"input_ids": ids, "attention_mask": mask}, device)


@pytest.mark.parametrize("kind", VIEWERS)
def test_viewers(device: str, kind: str) -> None:
    _compare(_made(kind, VIEWERS[kind]), {"pixel_values": torch.randn(2, 3, 32, 32)}, device)


@pytest.mark.parametrize("kind", ["Bart", "T5", "Pegasus"])
def test_translators(device: str, kind: str) -> None:
    t5 = {"vocab_size": 60, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "pad_token_id": 0,
          "eos_token_id": 2, "decoder_start_token_id": 1}  # fmt: skip
    model = _made(f"{kind}ForConditionalGeneration", t5 if kind == "T5" else _PAIR)
    ids = torch.randint(3, 60, (2, 7))
    other = _compare(model, {"input_ids": ids, "decoder_input_ids": ids[:, :4].contiguous()}, device)
    _generate(model, other, device, input_ids=ids)


def test_whisper(device: str) -> None:
    options = {**_PAIR, "num_mel_bins": 8, "max_source_positions": 20, "max_target_positions": 32,
               "suppress_tokens": None, "begin_suppress_tokens": None}  # fmt: skip
    model = _made("WhisperForConditionalGeneration", options)
    _compare(model, {"input_features": torch.randn(1, 8, 40), "decoder_input_ids": torch.tensor([[1, 5, 6]])}, device)


@pytest.mark.parametrize("kind", ["Wav2Vec2ForCTC", "HubertForCTC"])
def test_speech(device: str, kind: str) -> None:
    options = {**_TEXT, "conv_dim": (16, 16), "conv_kernel": (10, 4), "conv_stride": (5, 4),
               "num_feat_extract_layers": 2, "num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 2,
               "mask_time_prob": 0.0}  # fmt: skip
    _compare(_made(kind, options), {"input_values": torch.randn(2, 800)}, device)
