# SPDX-License-Identifier: Apache-2.0
"""The tour of common operators and models whose plans a wheel brings (see ``ship_plans``).

What it runs is what an ordinary first hour runs: single operators, small networks with common optimizers, and one small
model of each architecture that many people use, as its library builds it: inference, a training step, text generation.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

#: Of models that read or write text.
_TEXT: dict[str, Any] = {
    "vocab_size": 100, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128,
    "max_position_embeddings": 128, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_IMAGE: dict[str, Any] = {
    "image_size": 32, "patch_size": 8, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 128,
}  # fmt: skip
_SWIN = {"image_size": 32, "patch_size": 4, "embed_dim": 16, "depths": [2, 1], "num_heads": [2, 2], "window_size": 4}
_GPT2 = {"vocab_size": 100, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128}
_T5 = {"vocab_size": 100, "d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4,
       "decoder_start_token_id": 0}  # fmt: skip
_MAMBA = {"vocab_size": 100, "hidden_size": 64, "num_hidden_layers": 2, "state_size": 8}
_WHISPER: dict[str, Any] = {
    "vocab_size": 100, "d_model": 64, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128, "num_mel_bins": 8,
    "max_source_positions": 20, "max_target_positions": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "decoder_start_token_id": 1, "suppress_tokens": None, "begin_suppress_tokens": None,
}  # fmt: skip

#: Classes of transformers, their configurations, and what they are given.
MODELS: dict[str, tuple[dict[str, Any], str]] = {
    "BertForSequenceClassification": (_TEXT, "sentences"),
    "BertForMaskedLM": (_TEXT, "text"),
    "DistilBertForSequenceClassification": (
        {"vocab_size": 100, "dim": 64, "n_layers": 2, "n_heads": 4, "hidden_dim": 128}, "sentences"),
    "GPT2LMHeadModel": (_GPT2, "text"),
    "LlamaForCausalLM": ({**_TEXT, "num_key_value_heads": 2}, "text"),
    "Qwen2ForCausalLM": ({**_TEXT, "num_key_value_heads": 2}, "text"),
    "T5ForConditionalGeneration": (_T5, "text"),
    "MambaForCausalLM": (_MAMBA, "text"),
    "ViTForImageClassification": (_IMAGE, "images"),
    "SwinForImageClassification": (_SWIN, "images"),
    "ResNetForImageClassification": (
        {"embedding_size": 8, "hidden_sizes": [8, 16, 16, 32], "depths": [1, 2, 1, 1]}, "images"),
    "WhisperForConditionalGeneration": (_WHISPER, "speech"),
}  # fmt: skip


def run(name: str) -> None:
    """The whole tour on the device called ``name``. Models are left out where transformers is not installed."""
    readme(name)
    operators(name)
    networks(name)
    if importlib.util.find_spec("transformers") is not None:
        for kind in MODELS:
            model(name, kind)
    torch.accelerator.synchronize()


def readme(name: str) -> None:
    """README's first example."""
    x = torch.randn(4, 4, device=name)
    model = torch.nn.Linear(4, 2).to(name)
    model(x).sum().backward()


def operators(name: str) -> None:
    """Creating, copying, printing, arithmetic, functions, reductions, indexing."""
    x = torch.ones(3, device=name)
    str(x), str(x * 2 + 1), str(torch.arange(10, device=name))
    (torch.randn(4, 4, device=name).to(name) @ torch.randn(4, 4, device=name)).cpu()
    for a, b in ((torch.randn(5, 7), torch.randn(5, 7)), (torch.randn(5, 7), torch.randn(7))):
        a, b = a.to(name), b.to(name)
        for pair in (torch.add, torch.sub, torch.mul, torch.div, torch.maximum, torch.minimum, torch.pow):
            pair(a, b)
        (a == b, a < b, a > b, a != b, a + 1, a - 1, 1 - a, a * 2, a / 2, 1 / a, a**2, -a)
    for function in (torch.exp, torch.log, torch.sqrt, torch.rsqrt, torch.abs, torch.sin, torch.cos, torch.tanh):
        function(a)
    for function in (torch.sigmoid, F.relu, F.gelu, F.silu):
        function(a)
    for shape in ((6,), (4, 6)):
        y = torch.randn(shape, device=name)
        y.sum(), y.mean(), y.max(), y.min(), y.argmax(-1), y.sum(-1), y.mean(-1), y.max(-1), y.std(), y.var()
        y.softmax(-1), y.log_softmax(-1), y.cumsum(-1), y.sort(), y.topk(2), y.norm(), y.any(), y.all()
    y[0], y[:, 1], y[y > 0], torch.cat([y, y]), torch.stack([y, y]), y.T.contiguous(), y.half().float(), y.long()
    y.fill_(1), y.zero_(), torch.zeros(3, device=name), torch.eye(3, device=name), torch.where(y > 0, y, -y)
    torch.equal(y, y), torch.allclose(y, y), torch.rand(3, device=name), torch.randint(5, (3,), device=name)


def networks(name: str) -> None:
    """Training of small networks with common layers and optimizers."""
    mlp = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.LayerNorm(32), nn.Dropout(0.1), nn.Linear(32, 5))
    features = (nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2))
    network = nn.Sequential(*features, nn.Flatten(), nn.Linear(128, 5))
    for model, shape in ((mlp, (8, 20)), (network, (8, 1, 8, 8))):
        model.to(name)
        data, labels = torch.randn(shape, device=name), torch.randint(5, (8,), device=name)
        for optimizer in (
            torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9),
            torch.optim.Adam(model.parameters()),
            torch.optim.AdamW(model.parameters()),
        ):
            for _ in range(2):
                optimizer.zero_grad()
                loss = F.cross_entropy(model(data), labels)
                loss.backward()
                optimizer.step()
            loss.item()
        with torch.no_grad():
            (model.eval()(data).argmax(1) == labels).float().mean().item()


def model(name: str, kind: str) -> None:
    """Inference, steps of training with clipped gradients and, where it writes text, generation."""
    import transformers

    transformers.logging.set_verbosity_error()
    owner = getattr(transformers, kind)
    options, task = MODELS[kind]
    network = owner(owner.config_class(**options)).to(name)
    optimizer = torch.optim.AdamW(network.parameters())
    for inputs in _inputs(task, name):
        with torch.no_grad():
            network.eval()(**inputs).logits.argmax(-1).cpu()
        network.train()
        network(**inputs).loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    if task == "text" and network.can_generate():
        given = {key: inputs[key] for key in ("input_ids", "attention_mask") if key in inputs}
        for options in ({"do_sample": False}, {"do_sample": True, "top_k": 5}):
            network.eval().generate(**given, max_new_tokens=3, pad_token_id=0, **options).cpu()


def _inputs(task: str, name: str) -> Iterator[dict[str, Tensor]]:
    """Batches on the device: sizes differ, so that plans are not of one of them alone."""
    for batch, length in ((2, 12), (3, 7), (4, 33)):
        if task == "images":
            found = {"pixel_values": torch.randn(batch, 3, 32, 32), "labels": torch.arange(batch) % 2}
        elif task == "speech":
            ids = torch.randint(3, 100, (batch, length))
            found = {"input_features": torch.randn(batch, 8, 40), "labels": ids}
        else:
            ids = torch.randint(3, 100, (batch, length))
            mask = torch.ones_like(ids)
            mask[1, length // 2 :] = 0
            labels = torch.arange(batch) % 2 if task == "sentences" else ids
            found = {"input_ids": ids, "attention_mask": mask, "labels": labels}
        yield {key: value.to(name) for key, value in found.items()}
